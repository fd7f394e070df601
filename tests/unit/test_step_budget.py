"""What a step may still take on, by tokens and by predicted time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.cost_model import StepCost
from engine.prefill_burst import STEP_TARGETS, PrefillBurst
from engine.step_budget import PREFILL_PARTS, StepBudget
from engine.step_prediction import StepLoad, StepPrediction

COST = StepCost(base_ns=10_000_000, token_ns=1_000_000, context_ns=1_000)


TARGET_US = 50_000


def strict(target_us: int = TARGET_US) -> PrefillBurst:
    return PrefillBurst(0, target_us)


def budget(
    tokens: int = 512,
    target_us: int = TARGET_US,
    decodes: int = 0,
    cost: StepCost = COST,
    burst: PrefillBurst | None = None,
) -> StepBudget:
    made = StepBudget(tokens, target_us, StepPrediction(cost), burst or strict(target_us))
    for _ in range(decodes):
        made.decode(1)
    made.begin_prefill()
    return made


def test_without_decode_rows_only_tokens_count() -> None:
    made = budget(tokens=300)
    assert made.chunk(0, 200) == 200
    assert made.chunk(0, 200) == 100
    assert made.spent


def test_beside_decode_rows_chunks_get_what_the_target_leaves() -> None:
    # 50 ms less 10 of base and 10 of decodes: 30 tokens of 1 ms, a little less for their attention.
    assert budget(decodes=10).chunk(0, 200) == 29


def test_a_row_nobody_awaits_bounds_nothing() -> None:
    made = StepBudget(512, TARGET_US, StepPrediction(COST), strict())
    made.decode(1, is_awaited=False)
    made.begin_prefill()
    assert made.chunk(0, 999) == 511


def test_a_target_of_nothing_bounds_nothing() -> None:
    assert budget(decodes=10, target_us=0).chunk(0, 200) == 200


def test_decode_rows_beyond_the_target_leave_prefill_its_least_part() -> None:
    assert budget(decodes=100).chunk(0, 200) == 50 // PREFILL_PARTS - 1


def test_the_first_chunk_gets_at_least_one_token() -> None:
    dear = StepCost(base_ns=0, token_ns=10**12, context_ns=0)
    made = budget(decodes=1, cost=dear)
    assert made.chunk(0, 9) == 1
    assert made.chunk(0, 9) == 0


def test_what_is_kept_for_others_is_left() -> None:
    made = budget(decodes=10)
    first = made.chunk(0, 200, keep_ns=made.part_ns(2), keep_tokens=made.part_tokens(2))
    assert first == 14
    assert made.chunk(0, 200) == 15


def saving(ms: int) -> PrefillBurst:
    """So much saved, of two seconds."""
    burst = PrefillBurst(2_000_000, TARGET_US)
    burst.settle(0.0, 1e6 * (2_000 - ms))
    return burst


def test_short_prompts_take_what_was_saved() -> None:
    made = budget(decodes=10, burst=saving(40))
    # 30 ms of the target and 40 beyond it.
    assert made.chunk(0, 200, may_burst=True) == 67
    assert budget(decodes=10, burst=saving(40)).chunk(0, 200) == 29


def test_no_step_takes_more_than_a_few_targets_beyond_its_decode_rows() -> None:
    assert budget(decodes=10, burst=saving(900)).chunk(0, 200, may_burst=True) <= STEP_TARGETS * 50


def test_a_prompt_that_fits_into_a_later_step_waits_for_it() -> None:
    burst = saving(0)
    waited = []
    for _ in range(3):
        made = budget(decodes=10, burst=burst)
        waited.append(made.chunk(0, 80, may_burst=True, at_once=True))
        made.settle()
    assert waited == [0, 0, 80], "30 ms of each step"


def test_who_comes_behind_one_that_waits_gets_only_what_is_kept_for_it() -> None:
    burst = saving(0)
    made = budget(decodes=10, burst=burst)
    keep_ns = made.part_ns(3)
    assert made.chunk(0, 80, keep_ns=keep_ns, may_burst=True, at_once=True) == 0
    assert made.chunk(0, 200) == 9
    assert made.chunk(0, 200, may_burst=True) == 0
    made.settle()
    assert 20e6 <= burst.beyond(0.0) <= 21e6


def test_a_prompt_that_no_step_could_hold_does_not_wait() -> None:
    assert budget(decodes=10, burst=saving(0)).chunk(0, 200, may_burst=True, at_once=True) == 29


def test_nobody_waits_where_nothing_is_ever_saved() -> None:
    assert budget(decodes=10).chunk(0, 80, may_burst=True, at_once=True) == 29


def test_what_is_kept_for_long_prompts_is_not_taken_by_bursts() -> None:
    made = budget(decodes=10, burst=saving(40))
    made.chunk(0, 200, keep_ns=made.part_ns(3), may_burst=True)
    assert made.chunk(0, 200) == 9


def test_without_decode_rows_all_is_saved_again() -> None:
    burst = saving(0)
    budget(burst=burst).settle()
    assert burst.beyond(0.0) == burst.step_ns


@given(
    burst_ms=st.integers(0, 3_000),
    steps=st.lists(
        st.tuples(st.integers(1, 60), st.lists(st.integers(1, 400), max_size=4), st.booleans()), max_size=60
    ),
)
def test_beside_decode_rows_steps_keep_the_target_on_average(
    burst_ms: int, steps: list[tuple[int, list[int], bool]]
) -> None:
    """Over any steps from the first on: the target for each, and once what can be saved."""
    burst = PrefillBurst(burst_ms * 1000, TARGET_US)
    prediction = StepPrediction(COST)
    beyond_ns = 0.0
    for decodes, prompts, at_once in steps:
        made = budget(10_000, decodes=decodes, burst=burst)
        alone_ns = prediction.step_ns(StepLoad(decodes=decodes, decode_context=decodes))
        target_ns = max(TARGET_US * 1000, alone_ns + TARGET_US * 1000 / PREFILL_PARTS)
        taken_ns = 0.0
        for tokens in prompts:
            granted = made.chunk(0, tokens, may_burst=True, at_once=at_once)
            taken_ns += granted * 1e6 + granted * (granted + 1) / 2 * 1e3
        made.settle()
        assert taken_ns <= max(burst.step_ns, target_ns - alone_ns) + 1
        beyond_ns = max(0.0, beyond_ns + alone_ns + taken_ns - target_ns)
        assert beyond_ns <= burst_ms * 1e6 + 1


@pytest.mark.parametrize("context_ns", [0, 1, 1_000, 100_000])
@given(start=st.integers(0, 100_000), decodes=st.integers(1, 30), target_us=st.integers(1, 200_000))
def test_a_chunk_is_the_largest_that_fits(context_ns: int, start: int, decodes: int, target_us: int) -> None:
    cost = StepCost(base_ns=10_000_000, token_ns=1_000_000, context_ns=context_ns)
    prediction = StepPrediction(cost)
    alone_ns = prediction.step_ns(StepLoad(decodes=decodes, decode_context=decodes))
    limit_ns = max(target_us * 1000, alone_ns + target_us * 1000 / PREFILL_PARTS)
    granted = budget(10_000, target_us, decodes, cost).chunk(start, 10_000)

    def step_ns(tokens: int) -> int:
        pairs = tokens * start + tokens * (tokens + 1) // 2
        return prediction.step_ns(StepLoad(decodes, decodes, tokens, pairs))

    assert granted <= 1 or step_ns(granted) <= limit_ns + 2
    assert step_ns(granted + 1) >= limit_ns - 2


def test_what_is_opened_up_of_savings_is_for_any_chunk_and_paid_for() -> None:
    burst = saving(40)
    made = budget(decodes=10, burst=burst)
    made.open_up(20e6)
    assert made.chunk(0, 200) == 48
    made.settle()
    assert budget(decodes=10, burst=burst).saved_ns == pytest.approx(20e6, abs=2e6)
