"""Who goes first, who gives way, and that everybody gets there."""

from core.cost_model import StepCost
from core.request import AttemptKey, Choice, TenantClass
from core.sampling import SamplingParams
from engine.class_shares import CREDIT_MAX_US, MINIMUM_PARTS
from engine.config import EngineConfig
from engine.engine import Engine
from engine.job import Job, Stage
from engine.plan import StepPlan
from engine.scheduler import SHORT_FIRST_WEIGHT
from engine.timed_backend import TimedBackend, digest_layout

COST = StepCost(base_ns=0, token_ns=10_000, context_ns=0)
INTERACTIVE, STANDARD, BATCH = TenantClass.INTERACTIVE, TenantClass.STANDARD, TenantClass.BATCH


class Node:
    """An engine over which time is moved by hand."""

    def __init__(
        self,
        *,
        blocks: int = 64,
        max_running: int = 8,
        max_step_tokens: int = 64,
        watermark_blocks: int = 0,
        swap_blocks: int = 0,
        swap_block_us: int = 0,
    ) -> None:
        config = EngineConfig(
            blocks=blocks,
            max_running=max_running,
            max_step_tokens=max_step_tokens,
            watermark_blocks=watermark_blocks,
            prefix_cache=False,
            swap_blocks=swap_blocks,
            swap_block_us=swap_block_us,
        )
        self.engine = Engine(config, COST)
        self.backend = TimedBackend(COST, digest_layout(16, blocks))
        self.now_us = 0
        self.started: list[str] = []
        """Requests in the order of their first token."""
        self.ended: list[str] = []

    def add(
        self,
        name: str,
        prompt_tokens: int = 10,
        *,
        tenant_class: TenantClass = STANDARD,
        max_tokens: int = 4,
        stage: Stage = Stage.FULL,
        choices: int = 1,
    ) -> AttemptKey:
        job = Job(
            key=AttemptKey(name, 0),
            prompt=(len(name),) * prompt_tokens,
            choices=tuple(Choice(index) for index in range(choices)),
            params=SamplingParams(max_tokens=max_tokens),
            seed=0,
            hash_root=b"rootroot",
            tenant="tenant",
            tenant_class=tenant_class,
        )
        assert self.engine.add(job, stage, self.now_us) is None
        return job.key

    def step(self) -> StepPlan | None:
        plan = self.engine.plan(self.now_us)
        if plan is not None:
            result = self.backend.execute(plan)
            self.now_us += result.elapsed_us
            for token in self.engine.step_done(result, self.now_us).tokens:
                if token.index == 0:
                    self.started.append(token.key.request)
                if token.finish is not None:
                    self.ended.append(token.key.request)
        self.engine.check()
        return plan

    def run(self) -> None:
        while self.step() is not None:
            pass


def lengths(plan: StepPlan | None) -> list[int]:
    assert plan is not None
    return [len(row.tokens) for row in plan.rows]


def test_decode_rows_come_first_and_prefill_takes_what_is_left() -> None:
    node = Node(max_step_tokens=20)
    node.add("a", 10, max_tokens=9)
    node.add("b", 10, max_tokens=9)
    assert lengths(node.step()) == [10, 10]
    node.add("long", 100)
    assert lengths(node.step()) == [1, 1, 18]
    assert lengths(node.step()) == [1, 1, 18]


def test_a_more_urgent_class_goes_first_whatever_the_order_of_arrival() -> None:
    node = Node(max_step_tokens=10, max_running=1)
    for name, tenant_class in (("batch", BATCH), ("standard", STANDARD), ("interactive", INTERACTIVE)):
        node.add(name, tenant_class=tenant_class)
        node.now_us += 1
    node.run()
    assert node.started == ["interactive", "standard", "batch"]


def test_a_short_prompt_overtakes_a_long_one_even_when_that_has_begun() -> None:
    node = Node(max_step_tokens=10)
    node.add("long", 500)
    node.step()
    node.add("short", 10)
    node.step()
    assert node.started == ["short"]


def test_a_long_prompt_is_overtaken_only_for_a_multiple_of_its_own_time() -> None:
    node = Node(max_step_tokens=10, max_running=4)
    node.add("long", 100)
    passed = 0
    while "long" not in node.started:
        node.add(f"short-{passed:04}", 10, max_tokens=1)
        node.step()
        passed += 1
    assert node.now_us <= (SHORT_FIRST_WEIGHT + 2) * COST.prefill_us(100, 0)
    assert passed >= SHORT_FIRST_WEIGHT, "it was overtaken at all"


def test_an_urgent_job_takes_a_slot_from_a_lower_class_which_finishes_later() -> None:
    node = Node(max_running=2)
    node.add("batch-1", tenant_class=BATCH, max_tokens=40)
    node.add("batch-22", tenant_class=BATCH, max_tokens=40)
    for _ in range(5):
        node.step()
    node.add("interactive", tenant_class=INTERACTIVE)
    node.step()
    assert node.started[-1] == "interactive"
    assert node.engine.preemptions == 1
    node.run()
    assert sorted(node.ended) == ["batch-1", "batch-22", "interactive"]
    assert node.ended[0] == "interactive"


def test_a_prompt_whose_progress_was_told_is_not_displaced() -> None:
    node = Node(max_running=1, max_step_tokens=10)
    node.add("batch", 30, tenant_class=BATCH, stage=Stage.PREFILL)
    node.step()
    node.add("interactive", tenant_class=INTERACTIVE)
    node.run()
    assert node.started == ["batch", "interactive"]
    assert node.engine.preemptions == 0


def test_nobody_is_preempted_for_a_job_that_would_not_fit_even_then() -> None:
    node = Node(blocks=8, max_running=8)
    node.add("interactive-1", 80, tenant_class=INTERACTIVE, max_tokens=20)
    node.add("batch", 10, tenant_class=BATCH, max_tokens=20)
    while len(node.started) < 2:
        node.step()
    node.add("interactive-22", 100, tenant_class=INTERACTIVE)
    node.step()
    assert node.engine.preemptions == 0
    node.run()
    assert len(node.ended) == 3


def test_choices_that_share_their_prompt_are_not_preempted_as_if_each_held_it_alone() -> None:
    node = Node(blocks=12)
    node.add("batch", 64, tenant_class=BATCH, max_tokens=100, choices=4)  # 4 blocks shared, 4 of their own
    for _ in range(3):
        node.step()
    arriving = node.add("arriving", 40, stage=Stage.DECODE)  # 3 more, under a transfer
    assert node.engine.bind(arriving, node.now_us) is not None
    node.engine.pin(arriving)
    node.add("large", 170, tenant_class=INTERACTIVE)  # 11, of which no more than 9 are to be had
    assert lengths(node.step()) == [1, 1, 1, 1]
    assert node.engine.preemptions == 0


def test_memory_short_takes_from_the_lowest_class_then_from_who_loses_least() -> None:
    node = Node(blocks=6, max_step_tokens=200)
    node.add("i", 30, tenant_class=INTERACTIVE, max_tokens=40)
    node.add("ss", 16, max_tokens=40)
    node.add("sss", 30, max_tokens=40)
    while node.engine.preemptions == 0:
        node.step()
    plan = node.step()
    assert plan is not None
    assert [len(row.block_table) for row in plan.rows] == [3, 3], "the shortest of the lower class gave way"
    node.run()
    assert sorted(node.ended) == ["i", "ss", "sss"]


def test_the_watermark_is_left_free_by_admission_and_used_by_growth() -> None:
    node = Node(blocks=4, watermark_blocks=2)
    node.add("a", 16, max_tokens=30)
    node.add("b", 32)
    node.step()
    assert (node.engine.running, node.engine.waiting, node.engine.counts().free) == (1, 1, 3)
    node.step()
    assert node.engine.counts().free == 2
    node.run()
    assert node.ended == ["a", "b"]


def test_alone_the_watermark_does_not_apply() -> None:
    node = Node(blocks=4, watermark_blocks=4)
    node.add("a", 50)
    node.run()
    assert node.ended == ["a"]


def test_the_bound_on_running_counts_choices_and_those_whose_kv_is_on_its_way() -> None:
    node = Node(max_running=3)
    bound, refused = node.add("bound", stage=Stage.DECODE), node.add("refused", stage=Stage.DECODE)
    node.add("two", choices=2, max_tokens=9)
    assert node.engine.bind(bound, 0) is not None
    node.step()
    assert node.engine.bind(refused, 0) is None
    node.add("waits")
    plan = node.step()
    assert plan is not None and len(plan.rows) == 2
    assert node.engine.waiting == 1


def test_binding_does_not_overtake_who_waits_for_room() -> None:
    node = Node(blocks=12, max_step_tokens=200)
    node.add("a", 100, max_tokens=9)
    node.step()
    earlier = node.add("earlier", 90)
    node.now_us += 10_000_000
    later = node.add("later", 70, stage=Stage.DECODE)
    node.step()
    assert node.engine.counts().free == 5
    assert node.engine.bind(later, node.now_us) is None
    node.engine.cancel(earlier, node.now_us)
    assert node.engine.bind(later, node.now_us) is not None


def test_those_behind_a_job_that_asks_to_bind_do_not_take_the_room_it_waits_for() -> None:
    node = Node(blocks=12, max_step_tokens=200)
    first = node.add("a", 100, max_tokens=99)
    node.step()
    asks = node.add("asks", 100, stage=Stage.DECODE)
    node.now_us += 10_000_000
    node.add("behind", 30)
    for _ in range(3):
        assert node.engine.bind(asks, node.now_us) is None
        node.step()
        assert node.engine.waiting == 1
    node.engine.cancel(first, node.now_us)
    assert node.engine.bind(asks, node.now_us) is not None
    node.engine.cancel(asks, node.now_us)
    node.run()
    assert node.ended == ["behind"]


def test_a_job_that_never_asks_again_holds_nobody_up() -> None:
    node = Node(blocks=12, max_step_tokens=200)
    node.add("a", 100, max_tokens=99)
    node.step()
    assert node.engine.bind(node.add("asks", 100, stage=Stage.DECODE), 0) is None
    node.now_us += 10_000_000
    node.add("behind", 30)
    node.step()
    node.step()
    assert node.engine.waiting == 0


def test_an_urgent_job_that_asks_to_bind_takes_the_room_of_a_lower_class() -> None:
    node = Node(max_running=2)
    node.add("batch-1", tenant_class=BATCH, max_tokens=40)
    node.add("batch-22", tenant_class=BATCH, max_tokens=40)
    for _ in range(3):
        node.step()
    asks = node.add("asks", tenant_class=INTERACTIVE, stage=Stage.DECODE)
    plan = node.engine.plan(node.now_us)
    assert plan is not None
    assert node.engine.bind(asks, node.now_us) is None, "a running step is not disturbed"
    node.engine.step_done(node.backend.execute(plan), node.now_us)
    assert node.engine.bind(asks, node.now_us) is not None
    assert node.engine.preemptions == 1
    node.engine.cancel(asks, node.now_us)
    node.run()
    assert sorted(node.ended) == ["batch-1", "batch-22"]


def test_interactive_load_without_end_leaves_batch_its_least_share() -> None:
    node = Node(max_step_tokens=16, max_running=2)
    for number in range(40):
        node.add(f"batch-{number}", 40, tenant_class=BATCH, max_tokens=4)
    arrivals = 0
    while len(node.ended) < 2000:
        while node.engine.waiting < 45:
            node.add(f"interactive-{arrivals}", 15, tenant_class=INTERACTIVE, max_tokens=2)
            arrivals += 1
        node.step()
        if not any(name.startswith("batch") for name in node.ended):
            assert node.now_us < 3 * MINIMUM_PARTS[BATCH] * COST.prefill_us(40, 0) + CREDIT_MAX_US
    batch = sum(name.startswith("batch") for name in node.ended)
    computed = batch * 43 + (len(node.ended) - batch) * 16
    assert batch * 43 / computed > 0.8 / MINIMUM_PARTS[BATCH] or batch == 40
    assert batch * 43 / computed < 2 / MINIMUM_PARTS[BATCH], "and no more than that"


def test_binding_waits_for_the_step_that_saves_what_gave_way() -> None:
    """A transfer writes when it likes: the blocks are its own only after their copy was made."""
    node = Node(blocks=9, max_step_tokens=200, swap_blocks=20, swap_block_us=0)
    node.add("batch-1", 60, tenant_class=BATCH, max_tokens=20)
    node.add("batch-22", 60, tenant_class=BATCH, max_tokens=20)
    for _ in range(4):
        node.step()
    asks = node.add("asks", 70, tenant_class=INTERACTIVE, stage=Stage.DECODE)
    assert node.engine.bind(asks, node.now_us) is None
    assert node.engine.swaps == 1
    plan = node.step()
    assert plan is not None and len(plan.swap_out) == 4 and not plan.swap_in
    assert len(plan.rows) == 1, "the other goes on"
    assert node.engine.bind(asks, node.now_us) is not None
    node.engine.cancel(asks, node.now_us)
    node.run()
    assert sorted(node.ended) == ["batch-1", "batch-22"]
    assert node.engine.host_slots_used == 0


def test_the_end_of_one_that_gave_way_gives_back_what_was_held_for_it() -> None:
    node = Node(blocks=9, max_step_tokens=200, swap_blocks=20, swap_block_us=0)
    first = node.add("batch-1", 60, tenant_class=BATCH, max_tokens=20)
    second = node.add("batch-22", 60, tenant_class=BATCH, max_tokens=20)
    for _ in range(4):
        node.step()
    asks = node.add("asks", 70, tenant_class=INTERACTIVE, stage=Stage.DECODE)
    assert node.engine.bind(asks, node.now_us) is None
    node.engine.cancel(first, node.now_us)
    node.engine.cancel(second, node.now_us)
    node.engine.check()
    assert node.engine.host_slots_used == 0
    assert node.engine.bind(asks, node.now_us) is not None


def test_what_recomputing_makes_cheaper_is_not_swapped() -> None:
    node = Node(max_running=1, swap_blocks=20, swap_block_us=10_000)
    node.add("batch", 40, tenant_class=BATCH, max_tokens=20)
    for _ in range(4):
        node.step()
    node.add("urgent", tenant_class=INTERACTIVE)
    node.run()
    assert (node.engine.preemptions, node.engine.swaps) == (1, 0)
