"""A change of routers moves only the keys it must, and load stays bounded."""

from hypothesis import given
from hypothesis import strategies as st

from core.membership import LOAD_BOUND, home_router
from core.request import ModelIdentity

MODEL = ModelIdentity("m", "1")
names = st.lists(st.uuids().map(str), min_size=2, max_size=9, unique=True)
tenants = [f"tenant-{number}" for number in range(400)]


def homes(routers: list[str]) -> dict[str, str | None]:
    return {tenant: home_router(routers, tenant, MODEL) for tenant in tenants}


@given(names, st.data())
def test_a_router_that_leaves_moves_its_own_keys_only(routers: list[str], data: st.DataObject) -> None:
    gone = data.draw(st.sampled_from(routers))
    before, after = homes(routers), homes([router for router in routers if router != gone])
    moved = [tenant for tenant in tenants if before[tenant] != after[tenant]]
    assert moved == [tenant for tenant in tenants if before[tenant] == gone]
    # Binomial(400, 1/n): five standard deviations above its mean.
    mean = len(tenants) / len(routers)
    assert len(moved) <= mean + 5 * mean**0.5


@given(names)
def test_the_order_of_routers_does_not_matter(routers: list[str]) -> None:
    assert homes(routers) == homes(routers[::-1])


@given(names)
def test_no_router_is_loaded_beyond_the_bound(routers: list[str]) -> None:
    loads = dict.fromkeys(routers, 0)
    for tenant in tenants:
        home = home_router(routers, tenant, MODEL, loads=loads)
        assert home is not None
        loads[home] += 1
    assert max(loads.values()) <= LOAD_BOUND * len(tenants) / len(routers) + 1


@given(names, st.integers(2, 4), st.lists(st.binary(min_size=8, max_size=8), min_size=1, max_size=200))
def test_a_split_tenant_has_at_most_that_many_homes(
    routers: list[str], splits: int, hashes: list[bytes]
) -> None:
    found = {home_router(routers, "big", MODEL, first, splits) for first in hashes}
    assert 1 <= len(found) <= splits
    assert len({home_router(routers, "big", MODEL, first) for first in hashes}) == 1


def test_no_router_is_no_home() -> None:
    assert home_router([], "tenant", MODEL) is None
