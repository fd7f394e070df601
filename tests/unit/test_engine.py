"""The engine by example: each way a job can go, and what it may not do meanwhile."""

from dataclasses import replace

import pytest

from core.cost_model import StepCost
from core.outcomes import FinishReason, Outcome
from core.prefix_hashes import chain
from core.request import AttemptKey, Choice, TenantClass
from core.sampling import SamplingParams
from engine.config import EngineConfig
from engine.engine import Engine
from engine.fake_kv import expected_tokens
from engine.job import Computed, FirstToken, Job, Stage, Token
from engine.plan import Sampled, StepPlan, StepResult
from engine.timed_backend import TimedBackend, digest_layout

COST = StepCost(base_ns=1_000_000, token_ns=10_000, context_ns=100)
ROOT = b"rootroot"


class Node:
    """An engine and its backend, stepped by hand, with everything it said."""

    def __init__(
        self,
        *,
        blocks: int = 32,
        block_size: int = 16,
        max_running: int = 64,
        max_step_tokens: int = 512,
        max_positions: int = 8192,
        max_jobs: int = 100,
        watermark_blocks: int = 0,
    ) -> None:
        config = EngineConfig(
            blocks=blocks,
            block_size=block_size,
            max_running=max_running,
            max_step_tokens=max_step_tokens,
            max_positions=max_positions,
            max_jobs=max_jobs,
            watermark_blocks=watermark_blocks,
        )
        self.engine = Engine(config, COST)
        self.backend = TimedBackend(COST, digest_layout(block_size, blocks))
        self.tokens: list[Token] = []
        self.computed: list[Computed] = []

    def plan(self) -> StepPlan:
        plan = self.engine.plan(0)
        assert plan is not None
        return plan

    def finish(self, plan: StepPlan) -> None:
        outcome = self.engine.step_done(self.backend.execute(plan), 0)
        self.tokens += outcome.tokens
        self.computed += outcome.computed
        self.engine.check()

    def step(self) -> StepPlan:
        plan = self.plan()
        self.finish(plan)
        return plan

    def run(self) -> None:
        while (plan := self.engine.plan(0)) is not None:
            self.finish(plan)

    def output(self, name: str, choice: int = 0) -> list[int]:
        return [t.sampled.token for t in self.tokens if t.key.request == name and t.choice == choice]

    def assert_idle(self) -> None:
        counts = self.engine.counts()
        assert counts.free + counts.cached == counts.total, counts
        assert self.engine.running == self.engine.waiting == 0


def job(
    name: str,
    prompt_tokens: int = 20,
    *,
    outputs: tuple[tuple[int, ...], ...] = ((),),
    max_tokens: int = 10,
    first_token: int = 0,
    tenant: str = "tenant",
    tenant_class: TenantClass = TenantClass.STANDARD,
    stop: tuple[int, ...] = (),
) -> Job:
    return Job(
        key=AttemptKey(name, 0),
        prompt=tuple(range(first_token, first_token + prompt_tokens)),
        choices=tuple(Choice(index, output) for index, output in enumerate(outputs)),
        params=SamplingParams(max_tokens=max_tokens, stop_token_ids=stop),
        seed=len(name),
        hash_root=ROOT,
        tenant=tenant,
        tenant_class=tenant_class,
    )


def right(asked: Job, choice: int = 0, count: int = 999) -> list[int]:
    output = asked.choices[choice].output
    return expected_tokens(asked.prompt, asked.params, asked.seed, choice, count, output=output)


def add(node: Node, asked: Job, stage: Stage = Stage.FULL) -> AttemptKey:
    assert node.engine.add(asked, stage, 0) is None
    return asked.key


def first_of(asked: Job) -> tuple[FirstToken, ...]:
    """What a right prefill elsewhere would have drawn."""
    return tuple(FirstToken(c.index, Sampled(c.index, right(asked, c.index)[0])) for c in asked.choices)


def test_more_work_than_memory_finishes() -> None:
    node = Node(blocks=64, watermark_blocks=1)
    asked = [job(f"request-{n:02}", 20 + n % 7, max_tokens=180 - n % 7, first_token=n) for n in range(64)]
    for each in asked:
        add(node, each)
    node.run()
    assert node.engine.preemptions > 0
    assert all(node.output(each.key.request) == right(each) for each in asked)
    node.assert_idle()


def test_one_plan_at_a_time_and_only_its_own_result() -> None:
    node = Node()
    add(node, job("a"))
    plan = node.plan()
    with pytest.raises(AssertionError, match="outstanding"):
        node.engine.plan(0)
    result = node.backend.execute(plan)
    with pytest.raises(AssertionError, match="not outstanding"):
        node.engine.step_done(StepResult(plan.step + 1, result.sampled, 1), 0)
    node.engine.step_done(result, 0)
    with pytest.raises(AssertionError, match="not outstanding"):
        node.engine.step_done(result, 0)


@pytest.mark.parametrize(
    ("asked", "stage", "expected"),
    [
        (job("a", 0), Stage.FULL, Outcome.INVALID_ARGUMENT),
        (job("a", outputs=()), Stage.FULL, Outcome.INVALID_ARGUMENT),
        (job("a", outputs=((1, 2),), max_tokens=2), Stage.FULL, Outcome.INVALID_ARGUMENT),
        (job("a", outputs=((1,), ())), Stage.PREFILL, Outcome.INVALID_ARGUMENT),
        (job("a", outputs=((1,), ())), Stage.DECODE, Outcome.INVALID_ARGUMENT),
        (job("a", 64), Stage.FULL, Outcome.PROMPT_TOO_LONG),
        (job("a", 62, outputs=((1, 2),)), Stage.DECODE, Outcome.PROMPT_TOO_LONG),
        (job("a", 63), Stage.FULL, None),
        (job("a", outputs=((1,), ())), Stage.FULL, None),
        (job("old"), Stage.FULL, Outcome.DUPLICATE_REQUEST),
    ],
)
def test_refusals(asked: Job, stage: Stage, expected: Outcome | None) -> None:
    node = Node(blocks=4)
    add(node, job("old"))
    assert node.engine.add(asked, stage, 0) is expected


def test_a_prompt_beyond_the_models_positions_is_refused() -> None:
    node = Node(max_positions=40)
    assert node.engine.add(job("a", 40), Stage.FULL, 0) is Outcome.PROMPT_TOO_LONG
    assert node.engine.add(job("a", 39), Stage.FULL, 0) is None


def test_too_many_jobs_are_refused() -> None:
    node = Node(max_jobs=1)
    add(node, job("a"))
    assert node.engine.add(job("b"), Stage.FULL, 0) is Outcome.WORKER_FULL


@pytest.mark.parametrize(("blocks", "max_positions"), [(32, 50), (3, 8192)])
def test_the_last_position_of_model_or_pool_ends_a_choice_with_length(
    blocks: int, max_positions: int
) -> None:
    node = Node(blocks=blocks, max_positions=max_positions, watermark_blocks=2)
    asked = job("a", 20, max_tokens=999)
    add(node, asked)
    node.run()
    length = min(max_positions, blocks * 16) - 20
    assert node.output("a") == right(asked, count=length)
    assert [token.finish for token in node.tokens if token.finish] == [FinishReason.LENGTH]
    node.assert_idle()


def test_a_stop_token_ends_a_choice_and_is_counted() -> None:
    node = Node()
    stop = right(job("a"))[3]
    add(node, job("a", stop=(stop,)))
    node.run()
    assert (len(node.output("a")), node.tokens[-1].finish) == (4, FinishReason.STOP)
    node.assert_idle()


def test_a_cached_prompt_computes_its_last_token_again() -> None:
    node = Node()
    for name in ("a", "b"):
        add(node, job(name, 32))
        node.run()
    assert node.output("a") == node.output("b")
    assert [token.cached_tokens for token in node.tokens if token.index == 0] == [0, 16]


def test_choices_share_the_prompt_and_copy_only_its_last_block() -> None:
    node = Node()
    asked = job("a", 40, outputs=((), (), ()))
    add(node, asked)
    node.step()
    assert node.engine.counts().held == 3
    plan = node.step()
    assert len(plan.copy_blocks) == 2 and len(plan.rows) == 3
    assert node.engine.counts().held == 5
    node.run()
    assert [node.output("a", choice) for choice in range(3)] == [right(asked, choice) for choice in range(3)]
    node.assert_idle()


@pytest.mark.parametrize("max_running", [1, 2, 8])
def test_choices_with_different_outputs_so_far_continue_them(max_running: int) -> None:
    node = Node(max_running=max_running)
    whole = job("a", 40, outputs=((), (), (), ()), max_tokens=30)
    counts = (0, 1, 7, 25)
    outputs = tuple(tuple(right(whole, choice)[:count]) for choice, count in enumerate(counts))
    add(node, job("a", 40, outputs=outputs, max_tokens=30))
    node.run()
    for choice, count in enumerate(counts):
        assert node.output("a", choice) == right(whole, choice)[count:]
        assert [t.index for t in node.tokens if t.choice == choice] == list(range(count, 30))
    node.assert_idle()


def test_what_a_copy_reads_is_given_to_nobody_in_the_same_step() -> None:
    """The second holder of a copied block is preempted by a later row, which wants a block."""
    node = Node(blocks=3)
    asked = job("a", 8, outputs=((), (5, 5)))
    add(node, asked)
    add(node, job("bb", 16, first_token=100))
    assert len(node.step().rows) == 2
    plan = node.step()
    assert len(plan.copy_blocks) == 1
    assert plan.copy_blocks[0][0] not in plan.zero_blocks
    node.run()
    assert [node.output("a", choice) for choice in range(2)] == [right(asked, choice) for choice in range(2)]
    node.assert_idle()


def test_cancel_in_a_running_step_drops_its_rows_and_frees_when_the_step_ends() -> None:
    node = Node(blocks=4)
    key = add(node, job("a", 40, tenant="gone"))
    waiting = add(node, job("b", 40, first_token=500), Stage.DECODE)
    plan = node.plan()
    node.engine.cancel(key, 0)
    node.engine.cancel(key, 0)
    node.engine.check()
    assert node.engine.bind(waiting, 0) is None
    node.finish(plan)
    assert node.tokens == []
    assert node.engine.counts().free == 4, "a cancelled prompt must not be registered"
    assert node.engine.bind(waiting, 0) is not None
    assert node.engine.accounts.cancelled_us > 0 and node.engine.service_us == {}


@pytest.mark.parametrize("steps", [0, 1, 2, 5])
def test_cancel_between_steps_frees_at_once(steps: int) -> None:
    node = Node(max_step_tokens=16)
    key = add(node, job("a", 40, outputs=((), ())))
    for _ in range(steps):
        node.step()
    node.engine.cancel(key, 0)
    node.engine.check()
    node.assert_idle()
    assert node.engine.plan(0) is None


def test_nothing_is_scheduled_before_its_kv_has_arrived() -> None:
    node = Node()
    asked = job("a", 40)
    key = add(node, asked, Stage.DECODE)
    assert node.engine.plan(0) is None
    bound = node.engine.bind(key, 0)
    assert bound is not None and len(bound.block_table) == 3 and bound.cached_tokens == 0
    assert node.engine.bind(key, 0) == bound
    assert node.engine.plan(0) is None
    payload = _prefilled(asked)
    node.backend.write_kv(bound.block_table, 0, 40, payload)
    node.tokens += node.engine.arrive(key, first_of(asked), 0)
    assert node.engine.arrive(key, first_of(asked), 0) == ()
    node.run()
    assert node.output("a") == right(asked)
    node.assert_idle()


def _prefilled(asked: Job) -> bytes:
    source = Node()
    key = add(source, asked, Stage.PREFILL)
    source.run()
    return source.backend.read_kv(source.engine.block_table(key), 0, len(asked.prompt))


def test_arrived_kv_serves_the_next_bind_whole() -> None:
    node = Node()
    first, second = job("a", 32), job("b", 32)
    key = add(node, first, Stage.DECODE)
    bound = node.engine.bind(key, 0)
    assert bound is not None
    node.backend.write_kv(bound.block_table, 0, 32, _prefilled(first))
    node.engine.arrive(key, first_of(first), 0)
    key = add(node, second, Stage.DECODE)
    bound = node.engine.bind(key, 0)
    assert bound is not None and bound.cached_tokens == 32
    node.tokens += node.engine.arrive(key, first_of(second), 0)
    node.run()
    assert node.output("b") == right(second)


def test_kv_that_did_not_arrive_is_never_found() -> None:
    node = Node()
    key = add(node, job("a", 32), Stage.DECODE)
    assert node.engine.bind(key, 0) is not None
    node.engine.cancel(key, 0)
    assert node.engine.counts().free == node.engine.counts().total
    assert node.engine.prefix_hashes() == ()


def test_arrive_needs_blocks_and_one_token_per_choice() -> None:
    node = Node()
    asked = job("a", outputs=((), ()))
    key = add(node, asked, Stage.DECODE)
    with pytest.raises(ValueError, match="not bound"):
        node.engine.arrive(key, first_of(asked), 0)
    node.engine.bind(key, 0)
    with pytest.raises(ValueError, match="first"):
        node.engine.arrive(key, first_of(asked)[:1], 0)


def test_a_first_token_that_is_the_last_ends_the_job_on_arrival() -> None:
    node = Node()
    asked = job("a", outputs=((), ()), max_tokens=1)
    key = add(node, asked, Stage.DECODE)
    node.engine.bind(key, 0)
    tokens = node.engine.arrive(key, first_of(asked), 0)
    assert [token.finish for token in tokens] == [FinishReason.LENGTH] * 2
    assert key not in node.engine
    node.assert_idle()


@pytest.mark.parametrize("is_bound", [False, True])
def test_a_fallback_computes_here_and_leaves_pinned_blocks_alone(is_bound: bool) -> None:
    node = Node()
    asked = job("a", 40, outputs=((), ()))
    key = add(node, asked, Stage.DECODE)
    if is_bound:
        node.engine.bind(key, 0)
        node.engine.pin(key)
    node.engine.to_local(key, 0)
    assert node.engine.counts().in_flight == (3 if is_bound else 0)
    node.run()
    node.engine.to_local(key, 0)
    assert node.engine.counts().in_flight == (3 if is_bound else 0)
    for _ in range(2):
        node.engine.unpin(key)
    assert [node.output("a", choice) for choice in range(2)] == [right(asked, choice) for choice in range(2)]
    node.assert_idle()


def test_pinned_blocks_outlive_a_cancel_and_are_given_to_nobody() -> None:
    node = Node(blocks=4)
    key = add(node, job("a", 40), Stage.DECODE)
    node.engine.bind(key, 0)
    node.engine.pin(key)
    node.engine.cancel(key, 0)
    node.engine.check()
    assert (node.engine.counts().in_flight, node.engine.counts().free) == (3, 1)
    asked = job("b", 30, first_token=300)
    add(node, asked)
    assert node.engine.plan(0) is None
    node.engine.unpin(key)
    node.run()
    assert node.output("b") == right(asked)


def test_bind_takes_all_or_nothing() -> None:
    node = Node(blocks=4)
    first, second = add(node, job("a", 32), Stage.DECODE), add(node, job("b", 32), Stage.DECODE)
    bound = node.engine.bind(first, 0)
    assert bound is not None and len(bound.block_table) == 3, "the next token's block is taken too"
    assert node.engine.bind(second, 0) is None
    assert node.engine.counts().free == 1
    node.engine.cancel(first, 0)
    assert node.engine.bind(second, 0) is not None
    assert node.engine.bind(first, 0) is None


def test_prefill_tells_its_progress_draws_once_and_holds_until_released() -> None:
    node = Node(max_step_tokens=16)
    asked = job("a", 40, outputs=((), ()))
    key = add(node, asked, Stage.PREFILL)
    node.run()
    assert node.computed == [Computed(key, 16, False), Computed(key, 32, False), Computed(key, 40, True)]
    assert [(t.choice, t.sampled.token) for t in node.tokens] == [(c, right(asked, c)[0]) for c in (0, 1)]
    assert node.engine.counts().held == 3
    for _ in range(2):
        node.engine.release(key, 0)
    node.assert_idle()


def test_prefill_of_a_retry_covers_prompt_and_output() -> None:
    node = Node()
    whole = job("a", 40)
    key = add(node, job("a", 40, outputs=(tuple(right(whole)[:3]),)), Stage.PREFILL)
    node.run()
    assert node.computed == [Computed(key, 43, True)]
    assert [(t.index, t.sampled.token) for t in node.tokens] == [(3, right(whole)[3])]


def test_time_is_charged_to_tenants_and_recompute_apart() -> None:
    node = Node(blocks=6)
    for name, tenant in (("a", "x"), ("bb", "y"), ("ccc", "x")):
        add(node, job(name, 20, max_tokens=60, tenant=tenant, first_token=len(name)))
    before = 0
    while (plan := node.engine.plan(0)) is not None:
        node.finish(plan)
        assert sum(node.engine.service_us.values()) >= before
        before = sum(node.engine.service_us.values())
    accounts = node.engine.accounts
    assert list(accounts.service_us) == ["x", "y"]
    assert accounts.recompute_us > 0
    assert sum(accounts.service_us.values()) + accounts.recompute_us == accounts.busy_us


def test_a_block_table_is_rebuilt_only_when_it_grows() -> None:
    node = Node()
    add(node, job("a", 14, max_tokens=30))
    tables = [node.step().rows[0].block_table for _ in range(20)]
    assert len(dict.fromkeys(id(table) for table in tables)) == 3
    assert [len(table) for table in tables] == [1] * 3 + [2] * 16 + [3]


@pytest.mark.parametrize("block_size", [4, 16, 32])
def test_prefixes_are_reported_in_the_common_unit(block_size: int) -> None:
    node = Node(blocks=512 // block_size, block_size=block_size)
    asked = job("a", 70, max_tokens=1)
    add(node, asked)
    node.run()
    units = {4: 4, 16: 4, 32: 4}[block_size]
    assert node.engine.take_prefix_changes().stored == tuple(chain(ROOT, asked.prompt)[:units])
    assert node.engine.prefix_hashes() == tuple(chain(ROOT, asked.prompt)[:units])


def test_history_is_sent_only_to_samplers_that_need_it() -> None:
    for penalty in (0.0, 0.5):
        node = Node()
        params = SamplingParams(max_tokens=3, presence_penalty=penalty)
        base = job("a", 5)
        add(
            node,
            Job(
                key=base.key,
                prompt=base.prompt,
                choices=base.choices,
                params=params,
                seed=1,
                hash_root=ROOT,
                tenant="t",
                tenant_class=TenantClass.STANDARD,
            ),
        )
        node.step()
        (spec,) = node.step().rows[0].samples
        assert (spec.position, spec.output_count) == (6, 1)
        assert spec.prompt_tokens == (base.prompt if penalty else ())
        assert spec.output_tokens == (tuple(node.output("a")[:1]) if penalty else ())


@pytest.mark.parametrize(
    ("field", "value"),
    [("blocks", 0), ("block_size", 24), ("max_running", 0), ("watermark_blocks", -1), ("max_positions", 1)],
)
def test_config_names_the_field_that_is_wrong(field: str, value: int) -> None:
    with pytest.raises(ValueError, match=field):
        replace(EngineConfig(blocks=4), **{field: value})  # type: ignore[arg-type]
