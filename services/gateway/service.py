"""A gateway process: its parts, connected, from start to drain."""

import asyncio
import os
import random
import secrets
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from capacity.store import CapacityStore
from core.addresses import advertised
from core.membership import Joined, Member, MemberKind, Membership
from core.request import ModelIdentity
from proto import gateway_pb2, inference_pb2
from proto.gateway_pb2_grpc import add_GatewayPeerServicer_to_server
from proto.inference_pb2_grpc import add_InferenceServicer_to_server
from rpc.channels import Channels
from rpc.clock import wall_us
from rpc.errors import ServiceError
from rpc.metrics import CountingInterceptor, RpcMetrics, process_registry
from rpc.reach import warn_of_loopback, warn_of_open_door
from rpc.recording import recorded_in
from rpc.server import Server, Service, make_server
from rpc.service_main import Process
from rpc.settings import ConnectionSettings
from services.gateway.cancels import Cancels
from services.gateway.config import GatewayConfig
from services.gateway.discovery import Discovery
from services.gateway.driver import Driver
from services.gateway.fleet import Fleet
from services.gateway.gateway import Gateway
from services.gateway.grpc_api import InferenceApi
from services.gateway.http_api import HttpApi
from services.gateway.http_server import HttpServer, listen
from services.gateway.intake import Intake
from services.gateway.metrics import GatewayMetrics
from services.gateway.models import Models, ServedModel
from services.gateway.peer_api import PeerApi
from services.gateway.request_names import RequestNames
from services.gateway.tenants import Tenants, TenantsError
from text.conversation import TemplateError
from text.tokenizer import TokenizerError


async def serve(config: GatewayConfig, process: Process) -> None:
    """Runs until the process is told to drain. Raises ServiceError with one clear line."""
    parts = GatewayService(config, process)
    await parts.start()
    try:
        await parts.until_ready()
        await process.draining.wait()
    finally:
        await parts.stop()


@dataclass(slots=True)
class Servers:
    http: HttpServer
    grpc: Server
    peer: Server


class GatewayService:
    """Everything one process holds, from its sockets to its plain object."""

    def __init__(self, config: GatewayConfig, process: Process) -> None:
        self._config = config
        self._process = process
        self.gateway_id = config.id
        self._log = process.log.bind(role="gateway", id=config.id)
        self._incarnation = secrets.token_hex(8)
        self._started_us = wall_us()
        seeds = random.Random(secrets.randbits(128))
        registry = process_registry()
        self._rpc_metrics = RpcMetrics(registry)
        self.gateway, self._close_recording = recorded_in(
            config.record, config.id, self._incarnation, Gateway(config.policy), (config.policy,)
        )
        self._channels, self._questions = Channels(), Channels()
        self.membership = Membership()
        self.driver = Driver(
            self.gateway,
            gateway_id=config.id,
            incarnation=self._incarnation,
            channels=self._channels,
            metrics=GatewayMetrics(registry, lambda: self.gateway.in_flight),
            log=self._log,
            seeds=seeds,
        )
        self.fleet = Fleet(config.id, self.gateway, self.driver, self.membership, self._questions)
        names = RequestNames()
        self._cancels = Cancels(config.id, names, self.driver.cancel, self.fleet, self._questions)
        self._intake = Intake(config, _models(config), self.driver, names, seeds)
        self._tenants = _tenants(config)
        self._inference = InferenceApi(self._intake, self._tenants, self._cancels, self._log)
        if not config.tenants_file:
            warn_of_open_door(self._log, config.host)
        self._http = HttpApi(
            config,
            intake=self._intake,
            tenants=self._tenants,
            cancels=self._cancels,
            fleet=self.fleet,
            registry=registry,
            is_ready=self._is_ready,
            started_s=self._started_us // 1_000_000,
            log=self._log,
        )
        self.servers: Servers | None = None
        self._discovery: Discovery | None = None
        self._random = seeds

    async def start(self) -> None:
        config = self._config
        # The ports first: a busy one is the likeliest mistake, and nothing must be left running then.
        listening = listen(config.host, config.http_port, config.share_ports)
        peer = PeerApi(config.id, self.gateway, self._cancels)
        counting = CountingInterceptor(self._rpc_metrics)
        try:
            grpc_server = await make_server(
                [
                    Service(
                        inference_pb2.DESCRIPTOR.services_by_name["Inference"].full_name,
                        self._inference,
                        add_InferenceServicer_to_server,
                    )
                ],
                f"{config.host}:{config.grpc_port}",
                settings=ConnectionSettings(share_port=config.share_ports),
                interceptors=[counting],
            )
        except ServiceError:
            listening.close()
            raise
        peer_server = await make_server(
            [
                Service(
                    gateway_pb2.DESCRIPTOR.services_by_name["GatewayPeer"].full_name,
                    peer,
                    add_GatewayPeerServicer_to_server,
                )
            ],
            f"{config.peer_host}:{config.peer_port}",
            interceptors=[counting],
        )
        http_server = HttpServer(self._http, listening)
        await http_server.start()
        self.servers = Servers(http_server, grpc_server, peer_server)
        await grpc_server.set_serving(True)
        await peer_server.set_serving(True)
        self._join_fleet()

    def _join_fleet(self) -> None:
        assert self.servers is not None
        config = self._config
        for router in config.routers:
            id, _, address = router.partition("=")
            self.fleet.apply([Joined(Member(MemberKind.ROUTER, id, address, ""))])
        if not config.redis_url:
            return
        member = Member(
            MemberKind.GATEWAY,
            config.id,
            advertised(self.servers.peer.address, config.advertise_host),
            self._incarnation,
            started_us=self._started_us,
            pid=os.getpid(),
            models=tuple(ModelIdentity(model.name, model.revision) for model in config.models),
        )
        try:
            store = CapacityStore(config.redis_url, f"{config.id}:{self._incarnation}", random=self._random)
        except ValueError as error:
            raise ServiceError(f"redis_url: {error}") from error
        warn_of_loopback(self._log, member.address, config.redis_url)
        self._discovery = Discovery(store, member, self.membership, self.fleet, self._questions)
        self._discovery.start()

    def _is_ready(self) -> bool:
        """Without Redis workers are the router's to know."""
        has_worker = self.fleet.has_worker or not self._config.redis_url
        return self.driver.routers_up > 0 and has_worker and not self._process.draining.is_set()

    async def until_ready(self) -> None:
        """Prints the ready line once a router and a worker can be reached."""
        assert self.servers is not None
        while not self._is_ready():
            if self._process.draining.is_set():
                return
            await asyncio.sleep(0.02)
        self._process.ready(
            "gateway",
            self._config.id,
            self.servers.peer.address,
            http=self.servers.http.address,
            grpc=self.servers.grpc.address,
        )

    async def stop(self) -> None:
        """No new calls; live ones have the grace, then they end as what they are: cancelled."""
        grace_s = self._config.drain_grace_s
        if self._discovery is not None:
            await self._discovery.close()
        self._inference.leaving.set()
        if self.servers is not None:
            await asyncio.gather(self.servers.http.stop(grace_s), self.servers.grpc.stop(grace_s))
            await self.servers.peer.stop(0)
        await self.driver.close()
        await self._questions.close()
        self._intake.close()
        self._close_recording()
        self._log.info(
            "stopped", **{str(outcome): count for outcome, count in self.gateway.outcomes().items()}
        )


def _models(config: GatewayConfig) -> Models:
    try:
        return Models(tuple(ServedModel.open(model, datetime.now()) for model in config.models))
    except (TokenizerError, TemplateError, OSError, ValueError) as error:
        raise ServiceError(f"models: {error}") from error


def _tenants(config: GatewayConfig) -> Tenants:
    if not config.tenants_file:
        return Tenants()
    path = Path(config.tenants_file)
    try:
        return Tenants.parse(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ServiceError(f"{path}: cannot be read: {error}") from error
    except TenantsError as error:
        raise ServiceError(f"{path}: {error}") from error
