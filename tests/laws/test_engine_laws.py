"""Two engines of different block sizes under adversarial events: laws after each, exact tokens at the end."""

from dataclasses import dataclass, field

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from core.cost_model import StepCost
from core.request import AttemptKey, Choice, TenantClass
from core.sampling import SamplingParams
from engine.config import EngineConfig
from engine.engine import Engine
from engine.fake_kv import FakeModel, expected_tokens
from engine.job import FirstToken, Job, Stage, StepOutcome, Token
from engine.plan import StepPlan
from engine.timed_backend import TimedBackend, digest_layout

COST = StepCost(base_ns=1_000_000, token_ns=20_000, context_ns=50)
MODELS = [FakeModel(vocab_size=vocab_size, stop_token=7, stop_one_in=40) for vocab_size in (1000, 2, 3)]
"""With two or three words everything has been said before, and speculation finds it."""
CHUNK_TOKENS = 24
JOBS_MAX = 12
STEPS_MAX = 20_000
"""Far more than 12 jobs of 3 choices can need, 3 tokens a step."""


@dataclass
class Node:
    """An engine with its backend and the step it may be running."""

    engine: Engine
    backend: TimedBackend
    plan: StepPlan | None = None
    steps: int = 0


@dataclass
class Asked:
    """What a client wants and has so far."""

    job: Job
    node: Node
    outputs: dict[int, list[int]] = field(default_factory=dict)
    finished: list[int] = field(default_factory=list)
    is_handed: bool = False
    prefilled: list[FirstToken] = field(default_factory=list)
    prefill_final: bool = False
    is_bound: bool = False
    is_arrived: bool = False
    sent_to: int = 0
    computed: int = 0


@dataclass(frozen=True)
class Wish:
    """A job as hypothesis draws it."""

    node: int
    is_handed: bool
    beginning: int
    prompt_tokens: int
    output_counts: tuple[int, ...]
    tenant_class: TenantClass
    max_tokens: int
    temperature: float
    min_tokens: int
    tenant: str


BOUNDS: st.SearchStrategy[dict[str, int]] = st.fixed_dictionaries(
    {
        "itl_target_us": st.sampled_from([0, 1, 1_200, 50_000]),
        "long_prefill_us": st.sampled_from([0, 700, 250_000]),
        "long_partials_max": st.integers(1, 2),
        "swap_blocks": st.sampled_from([0, 2, 5, 100]),
        "swap_block_us": st.sampled_from([0, 150]),
        "speculation": st.sampled_from([0, 1, 4, 20]),
    }
)
"""Of time, of the host pool and of drafts."""
WISHES = st.builds(
    Wish,
    node=st.integers(0, 1),
    is_handed=st.booleans(),
    beginning=st.integers(0, 2),
    prompt_tokens=st.one_of(st.integers(1, 40), st.sampled_from([16, 32, 64, 100, 150])),
    output_counts=st.lists(st.integers(0, 3), min_size=1, max_size=3).map(tuple),
    tenant_class=st.sampled_from(list(TenantClass)),
    max_tokens=st.integers(4, 90),
    temperature=st.sampled_from([0.0, 1.0]),
    min_tokens=st.integers(0, 40),
    tenant=st.sampled_from(["one", "two", "three"]),
)


def _job(wish: Wish, number: int) -> Job:
    counts = wish.output_counts
    if wish.is_handed and len(counts) > 1:
        counts = (0,) * len(counts)
    return Job(
        key=AttemptKey(f"request-{number}", 0),
        # Equal blocks after different beginnings: tokens of one block alone prove nothing.
        prompt=((wish.beginning,) * 4 + (9,) * 300)[: wish.prompt_tokens],
        choices=tuple(Choice(index, tuple(range(100, 100 + count))) for index, count in enumerate(counts)),
        params=SamplingParams(
            max_tokens=wish.max_tokens,
            temperature=wish.temperature,
            min_tokens=wish.min_tokens,
            stop_token_ids=(7,),
        ),
        seed=number,
        hash_root=b"rootroot",
        tenant=wish.tenant,
        tenant_class=wish.tenant_class,
    )


class EnginePair(RuleBasedStateMachine):
    """A prefill and a decode engine; jobs run on either alone, or are handed from one to the other."""

    @initialize(
        tokens=st.tuples(st.integers(96, 260), st.integers(96, 260)),
        sizes=st.sampled_from([(16, 16), (16, 4), (8, 32), (4, 16)]),
        max_running=st.integers(1, 6),
        max_step_tokens=st.sampled_from([3, 7, 33, 512]),
        watermark=st.integers(0, 2),
        prefix_hash_bits=st.sampled_from([64, 64, 3]),
        bounds=BOUNDS,
        model=st.sampled_from(MODELS),
    )
    def start(
        self,
        tokens: tuple[int, int],
        sizes: tuple[int, int],
        max_running: int,
        max_step_tokens: int,
        watermark: int,
        prefix_hash_bits: int,
        bounds: dict[str, int],
        model: FakeModel,
    ) -> None:
        self.model = model
        self.nodes = [
            self._node(
                EngineConfig(
                    blocks=count // size,
                    block_size=size,
                    max_running=max_running,
                    max_step_tokens=max_step_tokens,
                    watermark_blocks=watermark,
                    max_positions=300,
                    prefix_hash_bits=prefix_hash_bits,
                    **bounds,  # type: ignore[arg-type]
                )
            )
            for count, size in zip(tokens, sizes, strict=True)
        ]
        self.asked: dict[AttemptKey, Asked] = {}
        self.lingering_pins: list[tuple[Node, AttemptKey]] = []
        self.now_us = 0
        self.next_request = 0

    def _node(self, config: EngineConfig) -> Node:
        layout = digest_layout(config.block_size, config.blocks)
        return Node(Engine(config, COST), TimedBackend(COST, layout, self.model))

    @rule(wishes=st.lists(WISHES, min_size=1, max_size=6))
    def ask(self, wishes: list[Wish]) -> None:
        for wish in wishes[: JOBS_MAX - len(self.asked)]:
            self._ask(wish)

    def _ask(self, wish: Wish) -> None:
        self.next_request += 1
        job = _job(wish, self.next_request)
        is_handed = wish.is_handed
        asked = Asked(job, self.nodes[1 if is_handed else wish.node], is_handed=is_handed)
        asked.outputs = {choice.index: [] for choice in job.choices}
        if asked.node.engine.add(job, Stage.DECODE if is_handed else Stage.FULL, self.now_us) is not None:
            return
        if is_handed and self.nodes[0].engine.add(job, Stage.PREFILL, self.now_us) is not None:
            asked.node.engine.cancel(job.key, self.now_us)
            return
        self.asked[job.key] = asked

    @rule(node=st.integers(0, 1))
    def begin_step(self, node: int) -> None:
        if self.nodes[node].plan is None:
            self.nodes[node].plan = self.nodes[node].engine.plan(self.now_us)

    @rule(node=st.integers(0, 1))
    def end_step(self, node: int) -> None:
        self._end_step(self.nodes[node])

    @rule(node=st.integers(0, 1), count=st.integers(1, 20))
    def steps(self, node: int, count: int) -> None:
        for _ in range(count):
            self.begin_step(node)
            self._end_step(self.nodes[node])

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def bind(self, data: st.DataObject) -> None:
        self._bind(self._pick(data))

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def send_chunk(self, data: st.DataObject) -> None:
        self._send_chunk(self._pick(data))

    @precondition(lambda self: self.asked)
    @rule(data=st.data(), late=st.booleans())
    def fall_back(self, data: st.DataObject, late: bool) -> None:
        """The prefill side fails; the home computes for itself, while a late write may still land."""
        asked = self._pick(data)
        if asked.is_handed and not asked.is_arrived:
            asked.node.engine.to_local(asked.job.key, self.now_us)
            self._drop_transfer(asked, late)
            asked.is_handed = False

    @precondition(lambda self: self.asked)
    @rule(data=st.data(), late=st.booleans())
    def cancel(self, data: st.DataObject, late: bool) -> None:
        asked = self._pick(data)
        for _ in range(2):
            asked.node.engine.cancel(asked.job.key, self.now_us)
        if asked.is_handed and not asked.is_arrived:
            self._drop_transfer(asked, late)
        del self.asked[asked.job.key]

    @precondition(lambda self: self.lingering_pins)
    @rule()
    def transfer_ends(self) -> None:
        node, key = self.lingering_pins.pop(0)
        node.engine.unpin(key)

    @rule(jump_us=st.sampled_from([0, 1, 1_000_000, 10**12]))
    def clock_jumps(self, jump_us: int) -> None:
        self.now_us += jump_us

    @invariant()
    def laws_hold(self) -> None:
        for node in getattr(self, "nodes", []):
            node.engine.check()

    def teardown(self) -> None:
        while getattr(self, "asked", None):
            before = self._moved()
            self._everybody_moves()
            assert self._moved() != before, "work remains and nothing moves"
            assert max(node.steps for node in self.nodes) < STEPS_MAX, "steps without end"
        self._nothing_remains()

    def _moved(self) -> tuple[int, ...]:
        """Changes with every step, chunk, bind and end."""
        transfers = sum(asked.sent_to + asked.is_bound for asked in self.asked.values())
        return (len(self.asked), transfers, *(node.steps for node in self.nodes))

    def _everybody_moves(self) -> None:
        while self.lingering_pins:
            self.transfer_ends()
        for asked in list(self.asked.values()):
            self._send_chunk(asked)
            self._bind(asked)
        for index, node in enumerate(self.nodes):
            self._end_step(node)
            self.steps(index, 1)
            node.engine.check()

    def _nothing_remains(self) -> None:
        for node in getattr(self, "nodes", []):
            self._end_step(node)
        while getattr(self, "lingering_pins", None):
            self.transfer_ends()
        for node in getattr(self, "nodes", []):
            node.engine.check()
            counts = node.engine.counts()
            assert counts.held == counts.in_flight == 0, counts
            assert node.engine.host_slots_used == 0
            assert node.engine.running == node.engine.waiting == 0

    def _pick(self, data: st.DataObject) -> Asked:
        return self.asked[data.draw(st.sampled_from(list(self.asked)))]

    def _bind(self, asked: Asked) -> None:
        if not asked.is_handed or asked.is_bound or not self.nodes[0].engine.block_table(asked.job.key):
            return
        bound = asked.node.engine.bind(asked.job.key, self.now_us)
        if bound is not None:
            asked.is_bound, asked.sent_to = True, bound.cached_tokens
            for node in self.nodes:
                node.engine.pin(asked.job.key)

    def _send_chunk(self, asked: Asked) -> None:
        if not asked.is_bound or asked.is_arrived:
            return
        key, start = asked.job.key, asked.sent_to
        stop = min(start + CHUNK_TOKENS, asked.computed)
        if stop > start:
            payload = self.nodes[0].backend.read_kv(self.nodes[0].engine.block_table(key), start, stop)
            asked.node.backend.write_kv(asked.node.engine.block_table(key), start, stop, payload)
            asked.sent_to = stop
        if asked.prefill_final and asked.sent_to >= asked.computed:
            asked.is_arrived = True
            for node in self.nodes:
                node.engine.unpin(key)
            self.nodes[0].engine.release(key, self.now_us)
            self._take(asked.node.engine.arrive(key, tuple(asked.prefilled), self.now_us))

    def _drop_transfer(self, asked: Asked, late: bool) -> None:
        self.nodes[0].engine.cancel(asked.job.key, self.now_us)
        if asked.is_bound:
            self.lingering_pins.extend((node, asked.job.key) for node in self.nodes)
            asked.is_bound = False
        if not late:
            while self.lingering_pins:
                self.transfer_ends()

    def _end_step(self, node: Node) -> None:
        if node.plan is None:
            return
        result = node.backend.execute(node.plan)
        node.plan = None
        node.steps += 1
        self.now_us += result.elapsed_us
        outcome = node.engine.step_done(result, self.now_us)
        self._take_computed(outcome)
        self._take(outcome.tokens)

    def _take_computed(self, outcome: StepOutcome) -> None:
        for computed in outcome.computed:
            asked = self.asked[computed.key]
            assert asked.is_handed and computed.tokens >= asked.computed
            asked.computed, asked.prefill_final = computed.tokens, computed.final

    def _take(self, tokens: tuple[Token, ...]) -> None:
        for token in tokens:
            asked = self.asked[token.key]
            if asked.is_handed and not asked.is_arrived:
                asked.prefilled.append(FirstToken(token.choice, token.sampled))
                continue
            self._deliver(asked, token)

    def _deliver(self, asked: Asked, token: Token) -> None:
        choice = next(choice for choice in asked.job.choices if choice.index == token.choice)
        assert token.choice not in asked.finished
        assert token.index == len(choice.output) + len(asked.outputs[token.choice])
        asked.outputs[token.choice].append(token.sampled.token)
        if token.finish is not None:
            self._verify(asked, choice)
            asked.finished.append(token.choice)
        if len(asked.finished) == len(asked.job.choices):
            assert asked.job.key not in asked.node.engine
            del self.asked[asked.job.key]

    def _verify(self, asked: Asked, choice: Choice) -> None:
        job = asked.job
        room = asked.node.engine.config.positions_max - len(job.prompt) - len(choice.output)
        expected = expected_tokens(
            job.prompt, job.params, job.seed, choice.index, room, output=choice.output, model=self.model
        )
        assert asked.outputs[choice.index] == expected


EnginePair.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestEnginePair = EnginePair.TestCase
