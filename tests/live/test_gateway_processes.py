"""Two gateway processes on one port, found through a real store."""

import asyncio
import io
import json
import os
import random
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio
import httpx
import pytest

from baton.ports import SharedPort
from capacity.embedded import start_embedded
from capacity.store import CapacityStore
from core.membership import Member, MemberKind
from proto import inference_pb2 as api
from proto.inference_pb2_grpc import InferenceStub
from rpc.logs import Log, LogSettings
from rpc.service_main import Process
from services.gateway import discovery
from services.gateway.config import GatewayConfig, ModelConfig
from services.gateway.service import GatewayService
from tests.live.gateway_fleet import FakeFleet, eventually, fake_fleet, model_folder

BODY = {"model": "tiny", "messages": [{"role": "user", "content": "SAY LONG ab"}], "max_tokens": 4000}
KEYS = '[[tenant]]\nname = "a"\nkey = "key-a"\n'


@asynccontextmanager
async def gateway_process(**settings: Any) -> AsyncIterator[asyncio.subprocess.Process]:
    told = {f"BATON_GATEWAY_{name.upper()}": json.dumps(value) for name, value in settings.items()}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "baton.main", "gateway"),
        env={**os.environ, **told},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def ready_line(process: asyncio.subprocess.Process) -> dict[str, Any]:
    assert process.stdout is not None
    async with asyncio.timeout(30.0):
        line: dict[str, Any] = json.loads(await process.stdout.readline())
    return line


@pytest.mark.parametrize(
    ("host", "tenants", "is_open"),
    [("0.0.0.0", "", True), ("10.0.0.5", "", True), ("127.0.0.1", "", False), ("0.0.0.0", KEYS, False)],
)
async def test_a_gateway_beyond_loopback_that_asks_for_no_key_says_so_once(
    tmp_path: Path, host: str, tenants: str, is_open: bool
) -> None:
    (tmp_path / "tenants.toml").write_text(tenants)
    config = GatewayConfig(
        id="gw",
        host=host,
        models=(ModelConfig(name="tiny", folder=str(model_folder(tmp_path)), max_positions=4096),),
        tenants_file=str(tmp_path / "tenants.toml") if tenants else "",
    )
    said = io.StringIO()
    gateway = GatewayService(config, Process(Log(LogSettings(), out=said)))
    await gateway.stop()
    assert said.getvalue().count('"level":"warning","event":"open_to_all"') == is_open


async def announce(fleet: FakeFleet, url: str) -> None:
    store = CapacityStore(url, "test", random=random.Random(1))
    worker = fleet.workers[0]
    for member in (
        Member(MemberKind.ROUTER, "router-0", fleet.router_address, "1"),
        Member(MemberKind.DECODE, worker.id, worker.address, worker.incarnation),
    ):
        assert await store.announce(member, 60_000_000) is True
    await store.close()


async def test_two_processes_share_a_port_and_forward_cancels(tmp_path: Path) -> None:
    store = start_embedded()
    http_port, grpc_port = SharedPort("127.0.0.1", 0), SharedPort("127.0.0.1", 0)
    try:
        async with fake_fleet(tmp_path / "model") as fleet:
            await announce(fleet, store.url)
            common: dict[str, Any] = {
                "http_port": http_port.port,
                "grpc_port": grpc_port.port,
                "share_ports": True,
                "redis_url": store.url,
                "drain_grace_s": 1.0,
                "models": [{"name": "tiny", "folder": str(fleet.folder), "max_positions": 4096}],
            }
            async with (
                gateway_process(id="gw-a", **common) as first,
                gateway_process(id="gw-b", **common) as second,
            ):
                lines = await asyncio.gather(ready_line(first), ready_line(second))
                assert [line["id"] for line in lines] == ["gw-a", "gw-b"]
                assert [line["pid"] for line in lines] == [first.pid, second.pid]
                await use_both(fleet, http_port.port, grpc_port.port)
                for process in (first, second):
                    process.send_signal(signal.SIGTERM)
                    assert await asyncio.wait_for(process.wait(), 10.0) == 0
    finally:
        http_port.close()
        grpc_port.close()
        store.stop()


@pytest.mark.parametrize("has_been", [False, True])
@pytest.mark.parametrize("name", ["", "mine"])
async def test_a_cancel_finds_a_gateway_that_has_only_just_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, has_been: bool
) -> None:
    """Through a gateway that has not read the store since; also where the id was another's before."""
    monkeypatch.setattr(discovery, "READ_EVERY_S", 3600.0)
    store = start_embedded()
    try:
        async with fake_fleet(tmp_path / "model") as fleet:
            fleet.workers[0].pace_s = 0.01
            if has_been:
                before = await fleet.add_gateway(id="gw-b", redis_url=store.url)
                await eventually(lambda: before.membership.members(MemberKind.GATEWAY))
            earlier = await fleet.add_gateway(id="gw-a", redis_url=store.url)
            await eventually(lambda: len(earlier.membership.members(MemberKind.GATEWAY)) == 1 + has_been)
            if has_been:
                await before.stop()
                fleet.gateways.remove(before)
            await fleet.add_gateway(id="gw-b", redis_url=store.url)
            headers = {"x-request-id": name} if name else {}
            running = asyncio.ensure_future(one_request(fleet.url_of(2), headers))
            await eventually(lambda: fleet.workers[0].attempts)
            [(request, _)] = fleet.workers[0].attempts
            async with httpx.AsyncClient(base_url=fleet.url_of(1)) as client:
                answer = await client.post(f"/v1/requests/{name or request}/cancel")
            assert answer.status_code == 200
            assert (await running).status_code == 499
            await fleet.idle()
    finally:
        store.stop()


async def test_a_flood_of_cancels_shares_its_readings_of_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or it would keep its gateway from announcing itself, and from hearing that others still live."""
    reads: list[tuple[MemberKind, ...]] = []
    members = CapacityStore.members

    async def counted(store: CapacityStore, *kinds: MemberKind) -> Any:
        reads.append(kinds)
        return await members(store, *kinds)

    monkeypatch.setattr(CapacityStore, "members", counted)
    store = start_embedded()
    try:
        async with fake_fleet(tmp_path / "model") as fleet:
            gateway = await fleet.add_gateway(id="gw-a", redis_url=store.url)
            await eventually(lambda: gateway.membership.members(MemberKind.GATEWAY))
            reads.clear()
            await asyncio.gather(*(gateway.fleet.peers_now() for _ in range(1000)))
            assert 1 <= reads.count((MemberKind.GATEWAY,)) <= 2
    finally:
        store.stop()


async def use_both(fleet: FakeFleet, http_port: int, grpc_port: int) -> None:
    fleet.workers[0].pace_s = 0.01
    url = f"http://127.0.0.1:{http_port}"
    owners: dict[str, str] = {}
    running = []
    # The kernel spreads connections: a few more reach both.
    while len(owners) < 2:
        before = len(fleet.workers[0].attempts)
        running.append(asyncio.ensure_future(one_request(url)))
        await eventually(lambda before=before: len(fleet.workers[0].attempts) > before)  # type: ignore[misc]
        request = list(fleet.workers[0].attempts)[-1][0]
        owners[request.split("-")[1] + request.split("-")[2]] = request
    async with httpx.AsyncClient(base_url=url) as client:
        await eventually_known(client)
    ids = [key[0] for key in fleet.workers[0].attempts]
    for request in ids[::2]:
        async with httpx.AsyncClient(base_url=url) as client:
            assert (await client.post(f"/v1/requests/{request}/cancel")).status_code == 200
    for request in ids[1::2]:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{grpc_port}") as channel:
            assert (await InferenceStub(channel).Cancel(api.CancelRequest(request_id=request))).found
    assert [answer.status_code for answer in await asyncio.gather(*running)] == [499] * len(ids)
    await eventually(lambda: not fleet.workers[0].attempts and not fleet.router.live)


async def one_request(url: str, headers: dict[str, str] | None = None) -> httpx.Response:
    async with httpx.AsyncClient(base_url=url, timeout=30.0) as client:
        return await client.post("/v1/chat/completions", json=BODY, headers=headers)


async def eventually_known(client: httpx.AsyncClient) -> None:
    """Until the gateway that this client reaches knows the whole fleet."""
    async with asyncio.timeout(10.0):
        while True:
            shown = (await client.get("/fleet")).json()
            known = [one["id"] for one in (*shown["gateways"], *shown["routers"])]
            if known == ["gw-a", "gw-b", "router-0"]:
                break
    assert shown["tenants"]["default"]["in_flight"] == sum(g["in_flight"] for g in shown["gateways"])


async def test_mistakes_are_one_line_and_an_exit_code(tmp_path: Path) -> None:
    async with fake_fleet(tmp_path / "model") as fleet:
        model = {"name": "tiny", "folder": str(fleet.folder), "max_positions": 4096}
        port = int(fleet.url.rpartition(":")[2])
        (tmp_path / "tenants.toml").write_text("[[tenant]]\nname = 1\n")
        wrong: list[tuple[dict[str, Any], str]] = [
            ({"http_port": port, "grpc_port": 0}, "cannot listen on 127.0.0.1"),
            ({"tenants_file": str(tmp_path / "tenants.toml")}, "tenant[0].name: wrong type"),
            ({"models": [{**model, "folder": str(tmp_path / "nothing")}]}, "tokenizer.json"),
        ]

        async def start(told: dict[str, Any]) -> tuple[int | None, str]:
            async with gateway_process(**{"id": "gw", "models": [model], "http_port": 0, **told}) as process:
                _, errors = await asyncio.wait_for(process.communicate(), 30.0)
            return process.returncode, errors.decode()

        found = await asyncio.gather(*(start(told) for told, _ in wrong))
    for (code, errors), (_, line) in zip(found, wrong, strict=True):
        assert code == 2 and line in errors and errors.count("\n") == 1, errors
