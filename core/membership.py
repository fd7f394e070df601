"""Which member of the fleet is where, as far as this process knows."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from core.events import event
from core.request import ModelIdentity


class MemberKind(StrEnum):
    """What a process of the fleet is."""

    GATEWAY = "gateway"
    ROUTER = "router"
    PREFILL = "prefill"
    DECODE = "decode"
    POOLING = "pooling"


@dataclass(frozen=True, slots=True)
class Member:
    """One process's announcement of itself.

    What some version may not say has a default, and what it says beyond these is passed over.
    """

    kind: MemberKind
    id: str
    address: str
    """host:port of its gRPC server."""
    incarnation: str
    """Random per process start."""
    started_us: int = 0
    """Wall clock at process start: of two incarnations under one id the later one counts."""
    pid: int = 0
    models: tuple[ModelIdentity, ...] = ()


@dataclass(frozen=True, slots=True)
class Joined:
    member: Member


@dataclass(frozen=True, slots=True)
class Left:
    member: Member
    reason: str
    """"expired", "withdrawn" or "replaced" (a newer incarnation follows)."""


Change = Joined | Left


@dataclass(slots=True)
class _Known:
    member: Member
    expires_us: int
    down: bool = False


class Membership:
    """The last known announcements, with expiry while their source can be asked.

    Absence from one reading of the source ends nobody: a source that comes back empty would
    otherwise empty the fleet until everyone has announced again. Expiry does, and it rests while
    the source is lost: then the last view stands and direct streams alone tell who is down.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[MemberKind, str], _Known] = {}
        self._source_lost = False
        self._ttl_us = 0

    @event
    def announced(self, members: tuple[Member, ...], ttl_us: int, now_us: int) -> list[Change]:
        """One reading of the source: everything announced there now."""
        changes = self._source_returned(now_us) if self._source_lost else []
        self._ttl_us = ttl_us
        for member in members:
            changes += self._announce(member, now_us + ttl_us)
        return changes + self.tick(now_us)

    @event
    def heard_of(self, members: tuple[Member, ...], ttl_us: int, now_us: int) -> list[Change]:
        """Announcements of some, between whole readings: they join or are renewed, and nobody expires."""
        return [change for member in members for change in self._announce(member, now_us + ttl_us)]

    @event
    def source_lost(self, now_us: int) -> list[Change]:
        """The source cannot be asked; nobody expires until it can."""
        self._source_lost = True
        return []

    @event
    def withdrawn(self, kind: MemberKind, id: str, incarnation: str, now_us: int) -> list[Change]:
        """The member said itself that it is leaving."""
        known = self._known.get((kind, id))
        if known is None or known.member.incarnation != incarnation:
            return []
        del self._known[kind, id]
        return [Left(known.member, "withdrawn")]

    @event
    def mark_down(self, kind: MemberKind, id: str, incarnation: str, now_us: int) -> list[Change]:
        """The direct stream to it broke: still a member, not to be used."""
        known = self._known.get((kind, id))
        if known is not None and known.member.incarnation == incarnation:
            known.down = True
        return []

    @event
    def mark_up(self, kind: MemberKind, id: str, incarnation: str, now_us: int) -> list[Change]:
        known = self._known.get((kind, id))
        if known is not None and known.member.incarnation == incarnation:
            known.down = False
        return []

    @event
    def tick(self, now_us: int) -> list[Change]:
        if self._source_lost:
            return []
        expired = [key for key, known in self._known.items() if known.expires_us <= now_us]
        return [Left(self._known.pop(key).member, "expired") for key in expired]

    @property
    def source_is_lost(self) -> bool:
        return self._source_lost

    @property
    def next_deadline_us(self) -> int | None:
        if self._source_lost:
            return None
        return min((known.expires_us for known in self._known.values()), default=None)

    def get(self, kind: MemberKind, id: str) -> Member | None:
        known = self._known.get((kind, id))
        return None if known is None else known.member

    def members(self, kind: MemberKind) -> tuple[Member, ...]:
        """Every known member of a kind, by id."""
        found = [known.member for known in self._known.values() if known.member.kind is kind]
        return tuple(sorted(found, key=lambda member: member.id))

    def up(self, kind: MemberKind) -> tuple[Member, ...]:
        """Those of them that are not marked down."""
        return tuple(member for member in self.members(kind) if not self._known[kind, member.id].down)

    def check(self) -> None:
        for (kind, id), known in self._known.items():
            assert (kind, id) == (known.member.kind, known.member.id)

    def _announce(self, member: Member, expires_us: int) -> list[Change]:
        key = (member.kind, member.id)
        known = self._known.get(key)
        if known is None:
            self._known[key] = _Known(member, expires_us)
            return [Joined(member)]
        if known.member.incarnation == member.incarnation:
            known.expires_us = max(known.expires_us, expires_us)
            known.member = member
            return []
        if member.started_us <= known.member.started_us:
            return []
        self._known[key] = _Known(member, expires_us)
        return [Left(known.member, "replaced"), Joined(member)]

    def _source_returned(self, now_us: int) -> list[Change]:
        # Everyone has one full term to announce again.
        self._source_lost = False
        for known in self._known.values():
            known.expires_us = max(known.expires_us, now_us + self._ttl_us)
        return []


LOAD_BOUND = 1.25
"""A home takes at most this much more than the mean (Mirrokni, Thorup, Zadimoghaddam: consistent hashing
with bounded loads, 2016)."""


def home_router(
    routers: Sequence[str],
    tenant: str,
    model: ModelIdentity,
    first_hash: bytes = b"",
    splits: int = 1,
    loads: Mapping[str, int] | None = None,
) -> str | None:
    """The router id that is home to this tenant and model; None where there is no router.

    Highest-random-weight hashing: each router's rank for a key depends on that router alone, so one
    that leaves moves only its own keys and one that joins takes only keys it keeps. A router whose
    load exceeds LOAD_BOUND times the mean is passed over. `splits` > 1 spreads one tenant over that
    many homes by the hash of the prompt's first blocks.
    """
    part = int.from_bytes(first_hash[:8], "little") % splits if splits > 1 else 0
    key = f"{tenant}\0{model}\0{part}".encode()
    ranked = sorted(routers, key=lambda router: (_weight(router, key), router), reverse=True)
    if not ranked or not loads:
        return ranked[0] if ranked else None
    bound = LOAD_BOUND * (sum(loads.get(router, 0) for router in ranked) + 1) / len(ranked)
    return next((router for router in ranked if loads.get(router, 0) < bound), ranked[0])


def _weight(router: str, key: bytes) -> bytes:
    return hashlib.blake2b(router.encode() + b"\0" + key, digest_size=8).digest()
