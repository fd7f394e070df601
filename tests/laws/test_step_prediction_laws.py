"""What steps teach about steps: any machine is learnt, stalls teach little, equal histories agree."""

import math
import random

import hypothesis.strategies as st
from hypothesis import given, settings

from core.cost_model import StepCost, attended
from engine.step_prediction import FACTOR_MAX, FACTOR_MIN, StepLoad, StepPrediction

REFERENCE = StepCost(base_ns=8_000_000, token_ns=500_000, context_ns=200)
FACTORS = st.floats(0.25, 4.0)
ROUNDING = 1e-3
"""What a measurement that is wrong by less than a microsecond can move factors of steps of milliseconds."""


def _load(draws: random.Random) -> StepLoad:
    """A step as a busy engine has them: some decodes, mostly with a chunk."""
    spans = [(position, position + 1) for position in draws.choices(range(50, 2000), k=draws.randrange(17))]
    if not spans or draws.random() < 0.5:
        start = draws.randrange(0, 3000)
        spans.append((start, start + draws.randrange(2, 200)))
    return StepLoad.of(spans)


def _true_us(factors: list[float], load: StepLoad) -> int:
    machine = StepPrediction(REFERENCE)
    machine.factors = list(factors)
    return machine.step_ns(load) // 1000


def test_an_untaught_prediction_is_the_reference() -> None:
    load = StepLoad.of([(9, 10), (100, 101), (0, 64)])
    pairs = 10 + 101 + attended(0, 64)
    assert StepPrediction(REFERENCE).step_ns(load) // 1000 == REFERENCE.step_us(66, pairs)


@settings(max_examples=60, deadline=None)
@given(factors=st.lists(FACTORS, min_size=5, max_size=5), seed=st.integers(0, 1000))
def test_no_step_leads_away_from_the_machine(factors: list[float], seed: int) -> None:
    """The squared distance to the true factors falls with every step, but for a rounded microsecond."""
    draws, prediction = random.Random(seed), StepPrediction(REFERENCE)
    distance = math.dist(prediction.factors, factors)
    for _ in range(200):
        load = _load(draws)
        prediction.measured(load, _true_us(factors, load))
        nearer = math.dist(prediction.factors, factors)
        assert nearer <= distance + ROUNDING
        distance = nearer


# The same examples every time: how fast one machine is learnt is a figure, which some rare one will miss.
@settings(max_examples=60, deadline=None, derandomize=True)
@given(factors=st.lists(FACTORS, min_size=5, max_size=5), seed=st.integers(0, 1000))
def test_any_machine_is_soon_learnt(factors: list[float], seed: int) -> None:
    draws, prediction = random.Random(seed), StepPrediction(REFERENCE)
    for _ in range(400):
        load = _load(draws)
        prediction.measured(load, _true_us(factors, load))
    errors = []
    for _ in range(50):
        load = _load(draws)
        true_us = _true_us(factors, load)
        errors.append(abs(prediction.step_ns(load) / 1000 - true_us) / true_us)
    assert sorted(errors)[45] < 0.15, sorted(errors)[-8:]


@settings(max_examples=40, deadline=None)
@given(factor=FACTORS, count=st.integers(1, 16))
def test_a_steady_batch_is_soon_predicted_to_the_percent(factor: float, count: int) -> None:
    load, prediction = StepLoad.of([(500, 501)] * count), StepPrediction(REFERENCE)
    true_us = int(prediction.step_ns(load) * factor) // 1000
    for _ in range(30):
        prediction.measured(load, true_us)
    assert abs(prediction.step_ns(load) / 1000 - true_us) < 0.01 * true_us


def test_decodes_teach_nothing_about_chunks() -> None:
    prediction = StepPrediction(REFERENCE)
    for _ in range(100):
        prediction.measured(StepLoad.of([(500, 501)] * 8), 90_000)
    assert prediction.factors[3:] == [1.0, 1.0]


def test_one_stall_moves_a_prediction_by_no_more_than_its_share() -> None:
    load, prediction = StepLoad.of([(500, 501)] * 8), StepPrediction(REFERENCE)
    before = prediction.step_ns(load)
    prediction.measured(load, 60_000_000)
    assert before < prediction.step_ns(load) <= 1.26 * before


@settings(max_examples=40, deadline=None)
@given(times=st.lists(st.integers(0, 10**12), max_size=40), seed=st.integers(0, 99))
def test_whatever_is_measured_factors_stay_bounded_and_histories_agree(times: list[int], seed: int) -> None:
    first, second = StepPrediction(REFERENCE), StepPrediction(REFERENCE)
    for prediction in (first, second):
        draws = random.Random(seed)
        for elapsed_us in times:
            prediction.measured(_load(draws), elapsed_us)
    assert first.factors == second.factors
    assert all(FACTOR_MIN <= factor <= FACTOR_MAX for factor in first.factors)


def test_a_cost_of_nothing_predicts_and_learns_nothing() -> None:
    prediction = StepPrediction(StepCost(0, 0, 0))
    prediction.measured(StepLoad.of([(0, 5)]), 1_000)
    assert prediction.step_ns(StepLoad.of([(0, 5)])) == 0
