"""A router and decode workers that say what they are told, over real gRPC, and a gateway in front of them."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from core.ends import End
from core.membership import Member, MemberKind
from core.outcomes import Outcome
from proto import common_pb2, decode_pb2, router_pb2
from proto.decode_pb2_grpc import DecodeServicer, add_DecodeServicer_to_server
from proto.router_pb2_grpc import RouterServicer, add_RouterServicer_to_server
from rpc.clock import now_us
from rpc.convert import end_to_wire
from rpc.logs import Level, Log, LogSettings
from rpc.server import Server, Service, make_server
from rpc.service_main import Process
from rpc.streams import InboundStream
from services.gateway.config import GatewayConfig, ModelConfig
from services.gateway.service import GatewayService
from text.tokenizer import Tokenizer as TextTokenizer

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def model_folder(folder: Path) -> Path:
    """A vocabulary of one token per byte, so that every character beyond ASCII is split."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {character: number for number, character in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in CONTROL])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"eos_token": "<|im_end|>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


async def eventually(holds: Callable[[], Any], timeout_s: float = 10.0) -> Any:
    """What `holds` answers once it is true."""
    deadline = asyncio.get_running_loop().time() + timeout_s
    while not (found := holds()):
        assert asyncio.get_running_loop().time() < deadline, "it did not come true"
        await asyncio.sleep(0.005)
    return found


class FakeRouter(RouterServicer):
    """Places every attempt on the first worker that is not to be avoided, or refuses as told."""

    def __init__(self, workers: "list[FakeWorker]") -> None:
        self.workers = workers
        self.refuse: End | None = None
        self.silent = False
        self.submits: list[router_pb2.Submit] = []
        self.settles: list[router_pb2.Settle] = []
        self.withdrawn: list[str] = []
        self.live: dict[tuple[str, int], None] = {}
        self.hellos: list[router_pb2.GatewayHello] = []
        self.concurrency: dict[str, None] = {}

    async def Route(self, request_iterator: Any, context: Any) -> None:
        stream: InboundStream[router_pb2.RouteRequest, router_pb2.RouteResponse] = InboundStream(context)
        await stream.serve(lambda message: self._take(stream, message))

    async def GetState(self, request: Any, context: Any) -> router_pb2.RouterState:
        return router_pb2.RouterState(router="router-0", in_flight=len(self.live))

    def _take(self, stream: Any, message: router_pb2.RouteRequest) -> None:
        kind = message.WhichOneof("message")
        if kind == "hello":
            self.hellos.append(message.hello)
            hello = router_pb2.RouterHello(router="router-0", incarnation="1")
            stream.send(router_pb2.RouteResponse(hello=hello))
        elif kind == "submit":
            self.submits.append(message.submit)
            stream.send(self._answer(message.submit))
        elif kind == "settle":
            self.settles.append(message.settle)
            self.live.pop((message.settle.request, message.settle.attempt), None)
            if message.settle.final:
                self.concurrency.pop(message.settle.request, None)
        elif kind == "withdraw":
            self.withdrawn.append(message.withdraw.request)
            self.concurrency.pop(message.withdraw.request, None)

    def _answer(self, submit: router_pb2.Submit) -> router_pb2.RouteResponse:
        key: dict[str, Any] = {"request": submit.request, "attempt": submit.attempt}
        able = [worker for worker in self.workers if worker.serving]
        able.sort(key=lambda worker: worker.id in submit.avoid_workers)
        refuse = self.refuse
        limit = submit.tenant_concurrency
        if limit and submit.request not in self.concurrency and len(self.concurrency) >= limit:
            refuse = End(Outcome.CONCURRENCY_LIMITED, "the tenant's concurrency is spent")
        if refuse is None and not able:
            refuse = End(Outcome.NO_WORKER, "no decode worker", "", 2_000_000)
        if refuse is not None:
            return router_pb2.RouteResponse(refused=router_pb2.Refused(**key, end=end_to_wire(refuse)))
        worker = able[0]
        model = common_pb2.Model(name=submit.model.name, revision=submit.model.revision)
        instance = common_pb2.Instance(worker=worker.id, incarnation=worker.incarnation, model=model)
        leg = common_pb2.Leg(
            role="decode", instance=instance, address=worker.address, reservation=1, dtype="float32"
        )
        self.live[submit.request, submit.attempt] = None
        self.concurrency[submit.request] = None
        return router_pb2.RouteResponse(placed=router_pb2.Placed(**key, legs=[leg], fallback="prefer"))


@dataclass(slots=True)
class FakeAttempt:
    """One attempt at a fake worker."""

    start: decode_pb2.Start
    gateway: str
    answers: list[list[int]]
    sent: list[int] = field(default_factory=list)
    ended: bool = False


class FakeWorker(DecodeServicer):
    """Answers what the prompt asks for: the text after the last "SAY ", byte by byte.

    "LONG" at the start of it repeats the rest without end. Choice n of an answer begins with n dashes.
    """

    def __init__(self, id: str, tokenizer: TextTokenizer) -> None:
        self.id = id
        self.incarnation = f"{id}-1"
        self.address = ""
        self.serving = True
        self.tokenizer = tokenizer
        self.attempts: dict[tuple[str, int], FakeAttempt] = {}
        self.starts: list[decode_pb2.Start] = []
        self.cancels: list[tuple[str, int]] = []
        self.resumes: list[int] = []
        self.paused = False
        self.pace_s = 0.0
        self._gateways: dict[int, str] = {}
        """By stream."""
        self.cached_tokens = 0
        self._streams: list[InboundStream[decode_pb2.GatewayMessage, decode_pb2.DecodeMessage]] = []
        self._stream: InboundStream[decode_pb2.GatewayMessage, decode_pb2.DecodeMessage] | None = None

    async def Serve(self, request_iterator: Any, context: Any) -> None:
        stream: InboundStream[decode_pb2.GatewayMessage, decode_pb2.DecodeMessage] = InboundStream(context)
        stepping = asyncio.get_running_loop().create_task(self._steps(stream))
        self._streams.append(stream)
        try:
            await stream.serve(lambda message: self._take(stream, message))
        finally:
            self._streams.remove(stream)
            self._gateways.pop(id(stream), None)
            stepping.cancel()

    def break_streams(self) -> None:
        """The connections fail; what runs is kept."""
        for stream in self._streams:
            stream.close(End(Outcome.WORKER_LOST, "broken by the test"))

    @property
    def running(self) -> int:
        return sum(not attempt.ended for attempt in self.attempts.values())

    def _take(self, stream: Any, message: decode_pb2.GatewayMessage) -> None:
        kind = message.WhichOneof("message")
        if kind == "attach":
            self._attach(stream, message.attach)
        elif kind == "start":
            start = message.start
            self.starts.append(start)
            answers = [self._answer(start, choice) for choice in start.choices]
            sent = [len(choice.output) for choice in start.choices]
            self.attempts[start.request, start.attempt] = FakeAttempt(
                start, self._gateways[id(stream)], answers, sent
            )
        elif kind == "cancel":
            key = (message.cancel.request, message.cancel.attempt)
            self.cancels.append(key)
            self.attempts.pop(key, None)

    def _attach(self, stream: Any, attach: decode_pb2.GatewayAttach) -> None:
        self.resumes.append(len(attach.resume))
        self._gateways[id(stream)] = attach.gateway
        unknown = []
        for resume in attach.resume:
            attempt = self.attempts.get((resume.request, resume.attempt))
            if attempt is None:
                unknown.append(resume)
            else:
                attempt.sent = list(resume.next_index)
        attached = decode_pb2.Attached(worker=self.id, incarnation=self.incarnation, unknown=unknown)
        stream.send(decode_pb2.DecodeMessage(attached=attached))

    async def _steps(self, stream: Any) -> None:
        while True:
            await asyncio.sleep(self.pace_s or 0.001)
            if not self.paused and self.attempts:
                self._step(stream)

    def _step(self, stream: Any) -> None:
        frame = decode_pb2.Frame()
        gateway = self._gateways.get(id(stream))
        for key, attempt in list(self.attempts.items()):
            if attempt.gateway != gateway:
                continue
            for position in range(len(attempt.answers)):
                self._advance(frame, key, attempt, position)
            answers = zip(attempt.sent, attempt.answers, strict=True)
            if all(sent >= len(answer) for sent, answer in answers):
                end = common_pb2.End(outcome="completed")
                frame.ends.append(decode_pb2.AttemptEnd(request=key[0], attempt=key[1], end=end))
                del self.attempts[key]
        if frame.runs or frame.ends:
            stream.send(decode_pb2.DecodeMessage(frame=frame))

    def _advance(self, frame: Any, key: tuple[str, int], attempt: FakeAttempt, position: int) -> None:
        answer, index = attempt.answers[position], attempt.sent[position]
        if index >= len(answer):
            return
        run = decode_pb2.TokenRun(
            request=key[0],
            attempt=key[1],
            choice=attempt.start.choices[position].index,
            first_index=index,
            tokens=[answer[index]],
            cached_tokens=self.cached_tokens,
        )
        sampling = attempt.start.sampling
        if sampling.HasField("logprobs"):
            others = [(answer[index] + offset) % 256 for offset in range(sampling.logprobs)]
            values = [-0.5 - offset for offset in range(sampling.logprobs)]
            run.logprobs.append(common_pb2.Logprobs(logprob=-0.5, top_tokens=others, top_logprobs=values))
        if index + 1 == len(answer):
            run.finish_reason = "stop" if answer[index] in sampling.stop_token_ids else "length"
        attempt.sent[position] = index + 1
        frame.runs.append(run)

    def _answer(self, start: decode_pb2.Start, choice: common_pb2.Choice) -> list[int]:
        text = self.tokenizer.decode(start.prompt)
        said = text.rpartition("SAY ")[2].removesuffix("assistant\n").removesuffix("\n")
        body = self.tokenizer.encode_literal("-" * choice.index + said.removeprefix("LONG "))
        if said.startswith("LONG "):
            body = (body * (1 + start.sampling.max_tokens // len(body)))[: start.sampling.max_tokens]
        eos = [token for token in start.sampling.stop_token_ids if self.tokenizer.is_special(token)]
        return [*body, *eos[:1]][: start.sampling.max_tokens]


@dataclass(slots=True)
class FakeFleet:
    """One router, its workers, one or more gateways."""

    router: FakeRouter
    workers: list[FakeWorker]
    servers: list[Server]
    gateways: list[GatewayService]
    router_address: str
    folder: Path

    @property
    def url(self) -> str:
        return self.url_of(0)

    def url_of(self, number: int) -> str:
        servers = self.gateways[number].servers
        assert servers is not None
        return f"http://{servers.http.address}"

    def grpc_of(self, number: int) -> str:
        servers = self.gateways[number].servers
        assert servers is not None
        return servers.grpc.address

    async def idle(self) -> None:
        """Nothing is held anywhere."""
        await eventually(lambda: all(gateway.gateway.in_flight == 0 for gateway in self.gateways))
        await eventually(lambda: not self.router.live and not self.router.concurrency)
        await eventually(lambda: all(not worker.attempts for worker in self.workers))
        for gateway in self.gateways:
            gateway.gateway.check()

    async def add_gateway(self, **settings: Any) -> GatewayService:
        model = ModelConfig(name="tiny", revision="r1", folder=str(self.folder), max_positions=4096)
        config = GatewayConfig(
            **{
                "id": f"gateway-{len(self.gateways)}",
                "http_port": 0,
                "grpc_port": 0,
                "models": (model,),
                "routers": (f"router-0={self.router_address}",),
                "drain_grace_s": 1.0,
                **settings,
            }
        )
        log = Log(LogSettings(level=Level.ERROR))
        gateway = GatewayService(config, Process(log))
        await gateway.start()
        self.gateways.append(gateway)
        await eventually(lambda: gateway.gateway.routers)
        return gateway

    def introduce(self) -> None:
        """Every gateway hears of every other, as the store would tell it."""
        members = []
        for gateway in self.gateways:
            assert gateway.servers is not None
            id = gateway.gateway_id
            members.append(Member(MemberKind.GATEWAY, id, gateway.servers.peer.address, id))
        for gateway in self.gateways:
            gateway.fleet.apply(gateway.membership.announced(tuple(members), 60_000_000, now_us()))


async def serve_worker(worker: FakeWorker, address: str = "127.0.0.1:0") -> Server:
    name = decode_pb2.DESCRIPTOR.services_by_name["Decode"].full_name
    server = await make_server([Service(name, worker, add_DecodeServicer_to_server)], address)
    worker.address = server.address
    return server


@contextlib.asynccontextmanager
async def fake_fleet(folder: Path, *, workers: int = 1, **settings: Any) -> AsyncIterator[FakeFleet]:
    model_folder(folder)
    tokenizer = TextTokenizer.open(folder)
    made = [FakeWorker(f"decode-{number}", tokenizer) for number in range(workers)]
    router = FakeRouter(made)
    servers = [await serve_worker(worker) for worker in made]
    name = router_pb2.DESCRIPTOR.services_by_name["Router"].full_name
    server = await make_server([Service(name, router, add_RouterServicer_to_server)], "127.0.0.1:0")
    fleet = FakeFleet(router, made, [*servers, server], [], server.address, folder)
    try:
        await fleet.add_gateway(**settings)
        yield fleet
    finally:
        for gateway in fleet.gateways:
            await gateway.stop()
        for server in fleet.servers:
            await server.stop(0)


async def post(url: str, path: str, body: Any, **headers: str) -> httpx.Response:
    async with httpx.AsyncClient(base_url=url, timeout=30.0) as client:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        if isinstance(body, bytes):
            return await client.post(path, content=body, headers=named)
        return await client.post(path, json=body, headers=named)
