"""What a request is, to everyone who handles it without knowing its text."""

from dataclasses import dataclass
from enum import IntEnum, StrEnum

import msgspec


class TenantClass(IntEnum):
    """Scheduling classes, most urgent first; each keeps a minimum share."""

    INTERACTIVE = 0
    STANDARD = 1
    BATCH = 2


WEIGHT_MIN, WEIGHT_MAX = 0.01, 100.0


def bounded_weight(weight: float) -> float:
    """A tenant's weight as it counts: whatever is configured, nobody is starved or served alone."""
    return min(WEIGHT_MAX, max(WEIGHT_MIN, weight))


class Role(StrEnum):
    """What a worker's engine is for."""

    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(frozen=True, slots=True, order=True)
class ModelIdentity:
    """Which weights answer: two requests may share KV only if this is equal."""

    name: str
    revision: str = ""
    """Fingerprint of the weights; empty in a client's request means the newest."""
    adapter: str = ""

    def __str__(self) -> str:
        base = f"{self.name}@{self.revision}" if self.revision else self.name
        return f"{base}+{self.adapter}" if self.adapter else base


class AttemptKey(msgspec.Struct, frozen=True, order=True, array_like=True):
    """One try of one request; a retry is a new attempt with a new placement."""

    request: str
    attempt: int


@dataclass(frozen=True, slots=True)
class Choice:
    """One answer of a request (n > 1 asks for several); the unit of compute below the gateway."""

    index: int
    output: tuple[int, ...] = ()
    """Tokens delivered by earlier attempts; they are output, not prompt, to limits and penalties."""


@dataclass(frozen=True, slots=True)
class InstanceKey:
    """One model revision's weights and pools on one start of one worker."""

    worker: str
    incarnation: str
    """Random per process start."""
    model: ModelIdentity


@dataclass(frozen=True, slots=True)
class Leg:
    """One part of a placement: where something runs, and the reservation that pays for it."""

    role: Role
    instance: InstanceKey
    address: str
    """host:port of the worker's gRPC server."""
    reservation: int
    """The placing router's number."""
    dtype: str
