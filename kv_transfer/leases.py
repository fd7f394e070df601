"""How long a transfer may wait: until its peer has been silent for a lease, and never beyond its deadline."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from core.deadlines import Deadlines
from kv_transfer.reasons import EndReason
from kv_transfer.types import Peer

Key = TypeVar("Key", bound=Hashable)


@dataclass(slots=True)
class _Lease:
    peer: Peer
    lease_us: int
    deadline_us: int
    progress_us: int


@dataclass(slots=True)
class _PeerLife:
    heard_us: int
    transfers: int


class Leases(Generic[Key]):
    """One lease per live transfer.

    The lease counts from the last sign of life of the peer, on any transfer: one that queues behind others
    must not expire while they progress.
    """

    def __init__(self) -> None:
        self._leases: dict[Key, _Lease] = {}
        self._peers: dict[Peer, _PeerLife] = {}
        self._looks: Deadlines[Key] = Deadlines()
        """When each lease is looked at next: never after its end, and before it where there were signs of
        life since. Thousands of leases live on one peer's word, so none is touched for it."""

    def open(self, key: Key, peer: Peer, lease_us: int, deadline_us: int, now_us: int) -> None:
        """`deadline_us` is absolute, on the clock of now_us. Raises ValueError naming a bad field."""
        if lease_us <= 0:
            raise ValueError(f"lease_us: {lease_us}, must be positive")
        assert key not in self._leases
        self._leases[key] = _Lease(peer, lease_us, deadline_us, now_us)
        life = self._peers.setdefault(peer, _PeerLife(now_us, 0))
        life.transfers += 1
        self._look_again(key)

    def set_lease(self, key: Key, lease_us: int) -> None:
        """The other end may shorten or lengthen what it grants; a grant of nothing is ignored."""
        if lease_us > 0:
            self._leases[key].lease_us = lease_us
            self._look_again(key)

    def close(self, key: Key) -> None:
        lease = self._leases.pop(key)
        self._looks.clear(key)
        life = self._peers[lease.peer]
        life.transfers -= 1
        if life.transfers == 0:
            del self._peers[lease.peer]

    def heard(self, peer: Peer, now_us: int) -> None:
        """The peer lives. Peers without transfers are not remembered."""
        if (life := self._peers.get(peer)) is not None:
            life.heard_us = max(life.heard_us, now_us)

    def progressed(self, key: Key, now_us: int) -> None:
        """Our own end got on with the transfer."""
        lease = self._leases[key]
        lease.progress_us = max(lease.progress_us, now_us)

    def _end_us(self, lease: _Lease) -> int:
        """As far as is known now."""
        heard_us = max(lease.progress_us, self._peers[lease.peer].heard_us)
        return min(heard_us + lease.lease_us, lease.deadline_us)

    def _look_again(self, key: Key) -> None:
        self._looks.set(key, self._end_us(self._leases[key]))

    @property
    def next_deadline_us(self) -> int | None:
        """When `expired` should be asked; it may find that none is."""
        return self._looks.next_us

    def expired(self, now_us: int) -> list[tuple[Key, EndReason]]:
        """Whose time is over, with the reason; each is named once, and then closed by who asked."""
        over: list[tuple[Key, EndReason]] = []
        for key in self._looks.due(now_us):
            lease = self._leases[key]
            if self._end_us(lease) > now_us:
                self._look_again(key)
            else:
                late = lease.deadline_us <= now_us
                over.append((key, EndReason.DEADLINE_EXCEEDED if late else EndReason.LEASE_EXPIRED))
        return over

    def check(self, is_live: Callable[[Key], bool]) -> None:
        assert all(is_live(key) for key in self._leases)
        assert len(self._looks) == len(self._leases), "a wait without an end"
        counts: dict[Peer, int] = {}
        for lease in self._leases.values():
            counts[lease.peer] = counts.get(lease.peer, 0) + 1
        assert counts == {peer: life.transfers for peer, life in self._peers.items()}

    def __len__(self) -> int:
        return len(self._leases)
