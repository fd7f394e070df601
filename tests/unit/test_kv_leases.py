"""How long a transfer may wait for its peer."""

from collections import Counter

from kv_transfer.leases import Leases
from kv_transfer.reasons import EndReason
from kv_transfer.types import Peer

PEER, OTHER = Peer("prefill", "a"), Peer("prefill", "b")
FAR_US = 10**12


def test_a_lease_ends_a_lease_after_the_last_sign_of_life() -> None:
    leases: Leases[int] = Leases()
    for key, peer in enumerate((PEER, PEER, OTHER)):
        leases.open(key, peer, 100, FAR_US, 0)
    leases.heard(PEER, 50)
    assert leases.expired(99) == []
    assert leases.expired(100) == [(2, EndReason.LEASE_EXPIRED)]
    leases.close(2)
    leases.progressed(1, 60)
    assert leases.expired(149) == []
    assert leases.expired(150) == [(0, EndReason.LEASE_EXPIRED)]
    leases.close(0)
    assert leases.expired(160) == [(1, EndReason.LEASE_EXPIRED)]
    leases.close(1)
    leases.check(lambda key: True)
    assert leases.next_deadline_us is None


def test_no_sign_of_life_moves_a_deadline_and_a_shorter_lease_counts_at_once() -> None:
    leases: Leases[str] = Leases()
    leases.open("late", PEER, 100, 120, 0)
    leases.open("short", PEER, 100, FAR_US, 0)
    leases.set_lease("short", 10)
    assert leases.next_deadline_us == 10
    leases.heard(PEER, 110)
    assert leases.expired(119) == []
    assert leases.expired(120) == [("short", EndReason.LEASE_EXPIRED), ("late", EndReason.DEADLINE_EXCEEDED)]


def test_the_next_deadline_of_thousands_costs_no_look_at_each() -> None:
    leases: Leases[int] = Leases()
    for key in range(4_096):
        leases.open(key, PEER, 100, FAR_US, 0)
    looked: Counter[str] = Counter()
    end_us = leases._end_us

    def counted(lease: object) -> int:
        looked["leases"] += 1
        return end_us(lease)  # type: ignore[arg-type]

    leases._end_us = counted  # type: ignore[method-assign]
    for now_us in range(1, 100):
        leases.heard(PEER, now_us)
        assert leases.next_deadline_us == 100
        assert leases.expired(now_us) == []
    assert not looked
