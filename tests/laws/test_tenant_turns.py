"""Tenants that always have work get compute by their weights, whatever their jobs cost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.request import bounded_weight
from engine.tenant_turns import ABSENT_MAX, TenantTurns

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


Event = tuple[int, int, bool]
"""(which tenant has work, what it costs, whether it then leaves)."""


@given(
    events=st.lists(st.tuples(st.integers(0, 7), st.integers(1, 1_000), st.booleans()), max_size=80),
    data=st.data(),
)
def test_forgetting_tenants_that_have_nothing_here_changes_nobodys_turn(
    events: list[Event], data: st.DataObject
) -> None:
    """So that leaving and coming back is no better with it than without."""
    forgetful, mindful = TenantTurns(), TenantTurns()
    here: dict[str, None] = {}
    for number, cost_ns, leaves in events:
        tenant = str(number)
        for turns in (forgetful, mindful):
            if tenant not in here:
                turns.come(tenant)
        here[tenant] = None
        assert [forgetful[name] for name in here] == [mindful[name] for name in here]
        chosen = min(here, key=lambda name: (mindful[name], name))
        for turns in (forgetful, mindful):
            turns.chosen(chosen)
            turns.spend(chosen, 1.0, cost_ns)
        if leaves:
            del here[chosen]
        if data.draw(st.booleans()):
            forgetful.forget(here)
            assert len(forgetful) <= len(mindful)


@pytest.mark.parametrize("staying", [0, 3])
def test_however_many_come_once_few_are_remembered_and_none_comes_back_further_forward(staying: int) -> None:
    turns = TenantTurns()
    here = [f"stays-{number}" for number in range(staying)]
    for tenant in here:
        turns.come(tenant)
    left_ns: dict[str, int] = {}
    for number in range(5 * ABSENT_MAX):
        tenant = f"once-{number}"
        turns.come(tenant)
        turns.chosen(tenant)
        turns.spend(tenant, 1.0, 1_000 + number % 3)
        left_ns[tenant] = turns[tenant]
        if turns.is_crowded:
            turns.forget(here)
        assert len(turns) <= 2 * (ABSENT_MAX + staying) + 1
    for tenant, ns in left_ns.items():
        turns.come(tenant)
        assert turns[tenant] >= ns
