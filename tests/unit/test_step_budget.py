"""What a step may still take on, by tokens and by predicted time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.cost_model import StepCost
from engine.step_budget import PREFILL_PARTS, StepBudget
from engine.step_prediction import StepLoad, StepPrediction

COST = StepCost(base_ns=10_000_000, token_ns=1_000_000, context_ns=1_000)


def budget(tokens: int = 512, target_us: int = 50_000, decodes: int = 0, cost: StepCost = COST) -> StepBudget:
    made = StepBudget(tokens, target_us, StepPrediction(cost))
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
    made = StepBudget(512, 50_000, StepPrediction(COST))
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
