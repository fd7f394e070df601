"""A home and two prefill workers whose every message, copy, step and payload may be late, or go wrong."""

from collections import deque
from dataclasses import dataclass, field, replace
from typing import Any

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from core.cost_model import StepCost
from core.ends import End
from core.outcomes import Outcome
from core.request import AttemptKey, Choice, InstanceKey, Leg, ModelIdentity, Role, TenantClass
from core.sampling import SamplingParams
from decode_worker import actions as home_actions
from decode_worker.attempts import DrawnToken, GatewayKey, PrefillDrawn, StartRequest
from decode_worker.config import DecodeConfig
from decode_worker.decode_worker import DecodeWorker
from decode_worker.decode_worker import build as build_home
from decode_worker.mailboxes import ResumePoint, SendFrame
from engine.config import EngineConfig
from engine.fake_kv import FakeModel, expected_tokens
from engine.job import Job
from engine.plan import StepPlan
from engine.timed_backend import TimedBackend, digest_layout
from kv_transfer.layout import header_of
from kv_transfer.types import ChunkHeader, Peer
from prefill_worker import actions as prefill_actions
from prefill_worker.actions import PrefillRequest
from prefill_worker.config import PrefillConfig
from prefill_worker.prefill_worker import PrefillWorker
from prefill_worker.prefill_worker import build as build_prefill

COST = StepCost(base_ns=1_000_000, token_ns=20_000, context_ns=50)
MODEL = FakeModel(vocab_size=1000, stop_token=7, stop_one_in=16)
NAME = ModelIdentity("fake", "1")
HOME = Peer("home", "a")
GATEWAY = GatewayKey("gateway", "a")
BYTES_PER_TOKEN = 16


DAMAGES = ["lane fails", "lane fails", "stream breaks", "restarts", "drains", *["nothing"] * 6]


@dataclass
class Prefill:
    """A prefill worker, its engine thread, and everything on its way to and from it."""

    peer: Peer
    worker: PrefillWorker
    backend: TimedBackend
    thread: deque[Any] = field(default_factory=deque)
    to_it: deque[Any] = field(default_factory=deque)
    to_home: deque[Any] = field(default_factory=deque)
    packed: dict[tuple[Peer, ChunkHeader], bytes] = field(default_factory=dict)
    lane: deque[tuple[ChunkHeader, bytes]] = field(default_factory=deque)
    wanted: deque[tuple[ChunkHeader, bool]] = field(default_factory=deque)
    """What the home has posted receives for, and whether to drop it."""
    lane_epoch: int = 0
    lane_offers: deque[int] = field(default_factory=deque)


@dataclass
class Client:
    """What its gateway knows of an attempt."""

    request: StartRequest
    outputs: dict[int, list[int]]
    finished: list[int] = field(default_factory=list)
    end: End | None = None
    cancelled: bool = False


class Workers(RuleBasedStateMachine):
    """Streams keep their order; nothing else is promised. Laws after every event, exact tokens always."""

    @initialize(
        blocks=st.tuples(st.integers(10, 30), st.integers(10, 40)),
        sizes=st.sampled_from([(16, 16), (16, 4), (4, 16)]),
        chunk_tokens=st.sampled_from([8, 16, 40]),
        max_running=st.integers(1, 5),
        max_step_tokens=st.sampled_from([7, 32, 256]),
        fallback=st.sampled_from(["prefer", "prefer", "require"]),
    )
    def start_workers(
        self,
        blocks: tuple[int, int],
        sizes: tuple[int, int],
        chunk_tokens: int,
        max_running: int,
        max_step_tokens: int,
        fallback: str,
    ) -> None:
        self.now_us = 0
        self.fallback = fallback
        self.clients: dict[AttemptKey, Client] = {}
        self.attached = True
        self.frames: deque[SendFrame] = deque()
        self.staging: dict[ChunkHeader, bytes] = {}
        self.thread: deque[Any] = deque()
        engines = [
            EngineConfig(
                blocks=count,
                block_size=size,
                max_running=max_running,
                max_step_tokens=max_step_tokens,
                max_positions=256,
            )
            for count, size in zip(blocks, sizes, strict=True)
        ]
        self.instance = InstanceKey(HOME.worker, HOME.incarnation, NAME)
        config = DecodeConfig(lease_us=3_000_000)
        self.home: DecodeWorker = build_home(config, self.instance, engines[1], COST, BYTES_PER_TOKEN)
        self.home_backend = TimedBackend(COST, digest_layout(sizes[1], blocks[1]), MODEL)
        self.prefill_engine, self.chunk_tokens = engines[0], chunk_tokens
        self.prefills = [self.new_prefill(index, "a") for index in range(2)]
        self.starts = 1
        self.perform_home(self.home.gateway_attached(GATEWAY, (), 0))

    def new_prefill(self, index: int, incarnation: str) -> Prefill:
        engine = self.prefill_engine
        worker = build_prefill(
            PrefillConfig(ahead_tokens=64, lease_us=3_000_000),
            engine,
            COST,
            BYTES_PER_TOKEN,
            self.chunk_tokens,
            self.chunk_tokens,
        )
        backend = TimedBackend(COST, digest_layout(engine.block_size, engine.blocks), MODEL)
        return Prefill(Peer(f"prefill-{index}", incarnation), worker, backend)

    # What clients do.

    @rule(
        handed_to=st.sampled_from([0, 0, 1, 1, None]),
        prompt_start=st.integers(0, 2),
        prompt_tokens=st.one_of(st.integers(1, 40), st.sampled_from([16, 32, 64, 100])),
        output=st.sampled_from([0, 0, 0, 3]),
        choices=st.sampled_from([1, 1, 1, 3]),
        max_tokens=st.sampled_from([1, 2, 4, 12, 30]),
        temperature=st.sampled_from([0.0, 1.0]),
        deadline_us=st.sampled_from([10**9, 10**9, 3_000_000]),
        tenant_class=st.sampled_from(list(TenantClass)),
    )
    def ask(
        self,
        handed_to: int | None,
        prompt_start: int,
        prompt_tokens: int,
        output: int,
        choices: int,
        max_tokens: int,
        temperature: float,
        deadline_us: int,
        tenant_class: TenantClass,
    ) -> None:
        self.gateway_reattaches()  # a start comes over a stream
        output = output if choices == 1 and max_tokens > output else 0
        key = AttemptKey(f"request-{len(self.clients) + 1}", 1)
        job = Job(
            key=key,
            prompt=tuple(range(prompt_start, prompt_start + prompt_tokens)),
            choices=tuple(Choice(index, tuple(range(100, 100 + output))) for index in range(choices)),
            params=SamplingParams(max_tokens=max_tokens, temperature=temperature, stop_token_ids=(7,)),
            seed=len(self.clients),
            hash_root=b"namespac",
            tenant="tenant",
            tenant_class=tenant_class,
        )
        legs = [Leg(Role.DECODE, self.instance, "home:1", 2 * len(self.clients), "digest")]
        if handed_to is not None:
            peer = self.prefills[handed_to].peer
            instance = InstanceKey(peer.worker, peer.incarnation, NAME)
            legs.insert(0, Leg(Role.PREFILL, instance, "prefill:1", 2 * len(self.clients) + 1, "digest"))
        request = StartRequest(job, tuple(legs), self.fallback, deadline_us, "router")
        self.clients[key] = Client(request, {index: [] for index in range(choices)})
        self.perform_home(self.home.start(GATEWAY, request, self.now_us))

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), twice=st.booleans(), whether=st.booleans())
    def cancel(self, data: st.DataObject, twice: bool, whether: bool) -> None:
        if not whether:
            return
        key = data.draw(st.sampled_from(list(self.clients)))
        self.clients[key].cancelled = True
        for _ in range(1 + twice):
            self.perform_home(self.home.cancel(key, Outcome.CANCELLED, self.now_us))

    @rule(number=st.integers(1, 40))
    def cancel_overtakes_start(self, number: int) -> None:
        key = AttemptKey(f"request-{len(self.clients) + 1}", 1)
        if number == 1:
            self.perform_home(self.home.cancel(key, Outcome.CANCELLED, self.now_us))

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def start_doubled(self, data: st.DataObject) -> None:
        request = self.clients[data.draw(st.sampled_from(list(self.clients)))].request
        if request.job.key in self.home._attempts:
            self.perform_home(self.home.start(GATEWAY, request, self.now_us))

    @rule(whether=st.integers(0, 4))
    def gateway_stream_breaks(self, whether: int) -> None:
        if self.attached and whether == 0:
            self.attached = False
            self.frames.clear()
            self.perform_home(self.home.gateway_lost(GATEWAY, self.now_us))

    @rule()
    def gateway_reattaches(self) -> None:
        if not self.attached:
            self.attached = True
            resume = tuple(
                ResumePoint(key, tuple(self.next_index(client, choice) for choice in client.outputs))
                for key, client in self.clients.items()
                if client.end is None
            )
            self.perform_home(self.home.gateway_attached(GATEWAY, resume, self.now_us))

    def next_index(self, client: Client, choice: int) -> int:
        return len(client.request.job.choices[choice].output) + len(client.outputs[choice])

    # What takes its time.

    @rule(index=st.integers(0, 1), count=st.integers(1, 4))
    def messages_to_prefill(self, index: int, count: int) -> None:
        prefill = self.prefills[index]
        for _ in range(min(count, len(prefill.to_it))):
            self.tell_prefill(prefill, prefill.to_it.popleft())

    @rule(index=st.integers(0, 1), count=st.integers(1, 4), doubled=st.booleans())
    def messages_to_home(self, index: int, count: int, doubled: bool) -> None:
        prefill = self.prefills[index]
        for _ in range(min(count, len(prefill.to_home))):
            message = prefill.to_home.popleft()
            self.tell_home(prefill, message)
            # An announcement for nobody drains the lane each time; one stream says nothing twice in truth.
            if doubled and (not isinstance(message, tuple) or message[0].key in self.home._transfers):
                self.tell_home(prefill, message)

    @rule(index=st.integers(0, 1), count=st.integers(1, 4))
    def prefill_thread_works(self, index: int, count: int) -> None:
        prefill = self.prefills[index]
        for _ in range(min(count, len(prefill.thread))):
            self.work_at_prefill(prefill, prefill.thread.popleft())

    @rule(count=st.integers(1, 6))
    def home_thread_works(self, count: int) -> None:
        for _ in range(min(count, len(self.thread))):
            self.work_at_home(self.thread.popleft())

    @rule(index=st.integers(0, 1), corrupt=st.integers(0, 4))
    def lane_moves(self, index: int, corrupt: int) -> None:
        self.move_lane(self.prefills[index], corrupt=corrupt == 0)

    @rule(count=st.integers(1, 3))
    def frames_arrive(self, count: int) -> None:
        for _ in range(min(count, len(self.frames))):
            self.take_frame(self.frames.popleft())

    @rule(jump_us=st.sampled_from([1, 1_000, 500_000, 2_500_000]), heard=st.booleans())
    def time_passes(self, jump_us: int, heard: bool) -> None:
        self.now_us += jump_us
        for prefill in self.prefills:
            if heard:
                self.perform_home(self.home.prefill_heard(prefill.peer, self.now_us))
                self.perform_prefill(prefill, prefill.worker.home_heard(HOME, self.now_us))
            self.perform_prefill(prefill, prefill.worker.tick(self.now_us))
        self.perform_home(self.home.tick(self.now_us))

    @rule(rounds=st.integers(1, 8), lanes=st.booleans(), home=st.booleans(), corrupt=st.integers(0, 4))
    def all_goes_on(self, rounds: int, lanes: bool, home: bool, corrupt: int) -> None:
        """But for the lanes, or the home's engine thread, perhaps: then chunks pile up before it."""
        for _ in range(rounds):
            self.move_lane(self.prefills[corrupt % 2], corrupt=corrupt == 0)
            self.move_everything(lanes=lanes, home=home)
            self.laws_hold()

    # What goes wrong.

    @rule(index=st.integers(0, 1), kind=st.sampled_from(DAMAGES))
    def goes_wrong(self, index: int, kind: str) -> None:
        prefill = self.prefills[index]
        if kind == "lane fails":
            self.fail_lane(prefill)
        elif kind == "stream breaks":
            self.lose_stream(prefill)
            self.perform_prefill(prefill, prefill.worker.home_lost(HOME, self.now_us))
        elif kind == "restarts":
            self.lose_stream(prefill)
            self.starts += 1
            self.prefills[index] = self.new_prefill(index, str(self.starts))
        elif kind == "drains" and not prefill.worker.draining:
            self.perform_prefill(prefill, prefill.worker.drain(1_000_000, self.now_us))

    @rule(index=st.integers(0, 1), data=st.data())
    def forged_words(self, index: int, data: st.DataObject) -> None:
        """The other prefill worker speaks of a transfer that is none of its business."""
        if not self.home._transfers:
            return
        transfer = data.draw(st.sampled_from(list(self.home._transfers)))
        forger = self.prefills[index].peer
        if self.home._transfers[transfer].prefill == forger:
            forger = replace(forger, incarnation="forged")
        drawn = PrefillDrawn((DrawnToken(0, _sampled(5), None),), 0, 1)
        header = header_of(transfer, 0, 0, 1, b"\0" * BYTES_PER_TOKEN)
        self.perform_home(self.home.first_tokens(forger, transfer, drawn, self.now_us))
        self.perform_home(self.home.transfer_failed(forger, transfer, End(Outcome.INTERNAL), self.now_us))
        self.perform_home(self.home.bind_asked(forger, transfer, self.now_us), but=home_actions.SendAbort)
        self.perform_home(self.home.chunk_sent(forger, header, self.now_us), but=home_actions.DrainChunk)

    @invariant()
    def laws_hold(self) -> None:
        if hasattr(self, "home"):
            self.home.check()
            for prefill in self.prefills:
                prefill.worker.check()

    def teardown(self) -> None:
        """Everybody goes on, in order, and nothing may be left."""
        if not hasattr(self, "home"):
            return
        self.gateway_reattaches()
        for _ in range(3000):
            if not self.move_everything() and not self.unfinished():
                break
            self.laws_hold()
        else:
            raise AssertionError(f"work remains and nothing moves: {self.unfinished()}")
        self.time_passes(3_000_000, True)
        while self.move_everything():
            self.laws_hold()
        self.nothing_remains()

    def unfinished(self) -> list[AttemptKey]:
        return [key for key, client in self.clients.items() if client.end is None]

    def move_everything(self, *, lanes: bool = True, home: bool = True) -> bool:
        """Whether anything moved."""
        moved = bool(self.thread) or bool(self.frames)
        self.home_thread_works(6 if home else 0)
        self.frames_arrive(3)
        for index, prefill in enumerate(self.prefills):
            moved = moved or bool(prefill.thread or prefill.to_it or prefill.to_home or prefill.lane)
            self.messages_to_prefill(index, 4)
            self.messages_to_home(index, 4, False)
            self.prefill_thread_works(index, 4)
            if lanes:
                self.move_lane(prefill)
        if not moved:
            self.time_passes(500_000, True)
        return moved

    def nothing_remains(self) -> None:
        assert self.home.live == self.home.transferring == self.home.waiting == 0
        assert not self.staging
        engines = [self.home.engine, *(prefill.worker.engine for prefill in self.prefills)]
        for engine in engines:
            counts = engine.counts()
            assert counts.held == counts.in_flight == 0, counts
        for prefill in self.prefills:
            assert prefill.worker.live == prefill.worker.transferring == 0
            assert not prefill.packed

    # The shells' part.

    def perform_home(self, actions: list[Any], but: type | None = None) -> None:
        for action in actions:
            if but is not None and isinstance(action, but):
                continue
            match action:
                case SendFrame():
                    assert self.attached, "a frame for a gateway that is away"
                    self.frames.append(action)
                case home_actions.AskPrefill(instance):
                    peer = Peer(instance.worker, instance.incarnation)
                    self.to_prefill(peer, action)
                case home_actions.SendBound(peer) | home_actions.SendAbort(peer):
                    self.to_prefill(peer, action)
                case home_actions.SendReceived(peer):
                    self.to_prefill(peer, action)
                case home_actions.ReceiveChunk(peer, header):
                    self.post(peer, header, False)
                case home_actions.DrainChunk(peer, header):
                    self.post(peer, header, True)
                case home_actions.ScatterChunk() | home_actions.RunStep():
                    self.thread.append(action)
                case home_actions.DiscardChunk(header):
                    self.staging.pop(header, None)
                case home_actions.SendAttached(_, unknown):
                    for key in unknown:
                        self.clients[key].end = End(Outcome.WORKER_LOST)

    def to_prefill(self, peer: Peer, message: Any) -> None:
        prefill = next((one for one in self.prefills if one.peer == peer), None)
        if prefill is not None:
            prefill.to_it.append(message)
        elif isinstance(message, home_actions.AskPrefill):
            self.thread.append(("lost", peer))

    def post(self, peer: Peer, header: ChunkHeader, drop: bool) -> None:
        prefill = next((one for one in self.prefills if one.peer == peer), None)
        if prefill is not None and (self.announced_epoch == prefill.lane_epoch):
            prefill.wanted.append((header, drop))
        elif not drop:
            self.thread.append(("lane", peer))

    announced_epoch = 0

    def tell_home(self, prefill: Prefill, message: Any) -> None:
        peer = prefill.peer
        match message:
            case prefill_actions.AskBind(_, transfer):
                actions = self.home.bind_asked(peer, transfer, self.now_us)
            case prefill_actions.SendFirst(_, transfer):
                tokens = tuple(DrawnToken(one.choice, one.sampled, one.finish) for one in message.drawn)
                drawn = PrefillDrawn(tokens, message.cached_tokens, message.chunks)
                actions = self.home.first_tokens(peer, transfer, drawn, self.now_us)
            case prefill_actions.SendFailed(_, transfer, end):
                actions = self.home.transfer_failed(peer, transfer, end, self.now_us)
            case (header, epoch):
                self.announced_epoch = epoch
                actions = self.home.chunk_sent(peer, header, self.now_us)
        self.perform_home(actions)

    def tell_prefill(self, prefill: Prefill, message: Any) -> None:
        worker, now_us = prefill.worker, self.now_us
        match message:
            case home_actions.AskPrefill():
                request = PrefillRequest(
                    message.transfer,
                    message.job,
                    message.transfer_wanted,
                    message.deadline_remaining_us,
                    message.router,
                    message.reservation,
                )
                actions = worker.start(HOME, request, now_us)
            case home_actions.SendBound(_, transfer, first_token, lease_us):
                actions = worker.bound(HOME, transfer, first_token, lease_us, now_us)
            case home_actions.SendAbort(_, transfer):
                actions = worker.aborted(HOME, transfer, now_us)
            case home_actions.SendReceived(_, transfer, chunk):
                actions = worker.received(HOME, transfer, chunk, now_us)
            case int():
                prefill.lane_offers.append(message)
                actions = []
        self.perform_prefill(prefill, actions)

    def perform_prefill(self, prefill: Prefill, actions: list[Any]) -> None:
        for action in actions:
            match action:
                case prefill_actions.PackChunk() | prefill_actions.RunStep():
                    prefill.thread.append(action)
                case prefill_actions.SendChunk(peer, header):
                    payload = prefill.packed.pop((peer, header))
                    prefill.to_home.append((header, prefill.lane_epoch))
                    prefill.lane.append((header, payload))
                case prefill_actions.DropChunk(peer, header):
                    del prefill.packed[peer, header]
                case _:
                    prefill.to_home.append(action)

    def work_at_prefill(self, prefill: Prefill, work: Any) -> None:
        if isinstance(work, prefill_actions.RunStep):
            result = self.execute(prefill.backend, work.plan)
            self.perform_prefill(prefill, prefill.worker.step_done(result, self.now_us))
            return
        check_pinned(prefill.worker.engine, work.block_table, work.start, work.stop)
        payload = prefill.backend.read_kv(work.block_table, work.start, work.stop)
        header = header_of(work.transfer, work.chunk, work.start, work.stop, payload)
        prefill.packed[work.peer, header] = payload
        self.perform_prefill(prefill, prefill.worker.packed(work.peer, header, self.now_us))

    def work_at_home(self, work: Any) -> None:
        match work:
            case ("lost", peer):
                end = End(Outcome.WORKER_LOST, "connection refused")
                self.perform_home(self.home.prefill_lost(peer, end, self.now_us))
            case ("lane", peer):
                self.perform_home(self.home.lane_failed(peer, self.now_us))
            case home_actions.RunStep(plan):
                result = self.execute(self.home_backend, plan)
                self.perform_home(self.home.step_done(result, self.now_us))
            case home_actions.ScatterChunk(header, table):
                check_pinned(self.home.engine, table, header.start, header.stop)
                self.home_backend.write_kv(table, header.start, header.stop, self.staging.pop(header))
                self.perform_home(self.home.scattered(header, True, self.now_us))

    def execute(self, backend: TimedBackend, plan: StepPlan) -> Any:
        result = backend.execute(plan)
        self.now_us += result.elapsed_us
        return result

    def move_lane(self, prefill: Prefill, *, corrupt: bool = False) -> None:
        """One payload, if it was sent and is awaited; both ends hear of it."""
        if not prefill.lane or not prefill.wanted:
            return
        (header, payload), (wanted, drop) = prefill.lane.popleft(), prefill.wanted.popleft()
        assert header == wanted, "the lane lost its order"
        self.perform_prefill(prefill, prefill.worker.sent(HOME, header, True, self.now_us))
        if not drop:
            self.staging[header] = payload
            self.perform_home(self.home.chunk_arrived(prefill.peer, header, not corrupt, self.now_us))

    def fail_lane(self, prefill: Prefill) -> None:
        lost = [header for header, _ in prefill.lane]
        prefill.lane.clear()
        prefill.wanted.clear()
        prefill.lane_epoch += 1
        for header in lost:
            self.perform_prefill(prefill, prefill.worker.sent(HOME, header, False, self.now_us))
        self.perform_prefill(prefill, prefill.worker.lane_failed(HOME, self.now_us))
        self.perform_home(self.home.lane_failed(prefill.peer, self.now_us))

    def lose_stream(self, prefill: Prefill) -> None:
        for queue in (prefill.to_it, prefill.to_home, prefill.wanted):
            queue.clear()
        lost = [header for header, _ in prefill.lane]
        prefill.lane.clear()
        prefill.lane_epoch += 1
        for header in lost:
            self.perform_prefill(prefill, prefill.worker.sent(HOME, header, False, self.now_us))
        prefill.to_home.clear()
        end = End(Outcome.WORKER_LOST, "its stream broke")
        self.perform_home(self.home.prefill_lost(prefill.peer, end, self.now_us))
        prefill.to_it.clear()

    def take_frame(self, frame: SendFrame) -> None:
        for run in frame.runs:
            client = self.clients[run.key]
            output = client.outputs[run.choice]
            if run.choice in client.finished and not run.sampled:
                continue  # a resumed gateway is told of every end again
            assert client.end is None and run.choice not in client.finished
            assert run.first_index == self.next_index(client, run.choice), "a gap or a duplicate"
            output.extend(one.token for one in run.sampled)
            self.verify(client, run.choice, whole=run.finish is not None)
            if run.finish is not None:
                client.finished.append(run.choice)
        for ended in frame.ends:
            client = self.clients[ended.key]
            assert client.end is None, "two ends"
            client.end = ended.end
            if ended.end.outcome is Outcome.COMPLETED:
                assert sorted(client.finished) == sorted(client.outputs)
            elif ended.end.outcome is Outcome.CANCELLED:
                assert client.cancelled or ended.end.message
            self.check_outcome(client)

    def check_outcome(self, client: Client) -> None:
        assert client.end is not None
        outcome, handed = client.end.outcome, client.request.prefill_leg is not None
        allowed = [Outcome.COMPLETED, Outcome.CANCELLED, Outcome.DEADLINE_EXCEEDED, Outcome.PROMPT_TOO_LONG]
        if handed and self.fallback == "require":
            allowed += [Outcome.TRANSFER_FAILED, Outcome.WORKER_LOST, Outcome.MOVED]
        assert outcome in allowed, client.end

    def verify(self, client: Client, choice: int, *, whole: bool) -> None:
        job = client.request.job
        so_far = job.choices[choice].output
        room = self.home.engine.config.positions_max - len(job.prompt) - len(so_far)
        expected = expected_tokens(
            job.prompt, job.params, job.seed, choice, max(room, 0), output=so_far, model=MODEL
        )
        output = client.outputs[choice]
        assert output == (expected if whole else expected[: len(output)]), "wrong tokens"


def check_pinned(engine: Any, table: tuple[int, ...], start: int, stop: int) -> None:
    """L2, and that only blocks of the running transfer are touched."""
    size = engine.config.block_size
    pins = engine._blocks.manager._pins
    assert all(pins[block] for block in table[start // size : -(-stop // size)]), "not in flight"


def _sampled(token: int) -> Any:
    from engine.plan import Sampled

    return Sampled(0, token)


Workers.TestCase.settings = settings(
    max_examples=100,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestWorkers = Workers.TestCase
