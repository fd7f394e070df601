"""Tenants that always have work get compute by their weights, whatever their jobs cost."""

from hypothesis import given
from hypothesis import strategies as st

from core.request import bounded_weight
from engine.tenant_turns import TenantTurns

Tenants = list[tuple[float, int]]
"""(weight, the most that one of its jobs costs)."""


@given(
    tenants=st.lists(
        st.tuples(st.floats(0.001, 1_000), st.integers(1, 10**9)),
        min_size=2,
        max_size=6,
    ),
    rounds=st.integers(1, 200),
    data=st.data(),
)
def test_service_per_weight_never_lies_further_apart_than_a_job_of_each(
    tenants: Tenants, rounds: int, data: st.DataObject
) -> None:
    """The bound of start-time fair queueing (Goyal et al. 1996, theorem 1)."""
    turns = TenantTurns()
    served_ns = [0] * len(tenants)
    for number in range(len(tenants)):
        turns.come(str(number))
    for _ in range(rounds):
        chosen = min(range(len(tenants)), key=lambda number: (turns[str(number)], number))
        turns.chosen(str(chosen))
        weight, cost_max_ns = tenants[chosen]
        cost_ns = data.draw(st.integers(1, cost_max_ns))
        turns.spend(str(chosen), weight, cost_ns)
        served_ns[chosen] += cost_ns
    weights = [bounded_weight(weight) for weight, _ in tenants]
    virtual = [served / weight for served, weight in zip(served_ns, weights, strict=True)]
    one_job = [cost_max / weight for (_, cost_max), weight in zip(tenants, weights, strict=True)]
    for first in range(len(tenants)):
        for second in range(first):
            apart = abs(virtual[first] - virtual[second])
            assert apart <= one_job[first] + one_job[second] + rounds, "a nanosecond is lost to rounding each"
