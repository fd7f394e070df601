"""What the gateway asks its shell to do."""

from dataclasses import dataclass

import msgspec

from core.ends import End
from core.outcomes import FinishReason, Outcome
from core.request import AttemptKey, Choice, Leg, ModelIdentity
from core.sampling import SamplingParams
from services.gateway.requests import Logprobs, Tenant


@dataclass(frozen=True, slots=True, kw_only=True)
class Submit:
    """Ask a router to admit and place an attempt; numbers only."""

    router: str
    key: AttemptKey
    tenant: Tenant
    model: ModelIdentity
    prompt_tokens: int
    output_tokens: int
    """Delivered by earlier attempts, over the choices that go on."""
    max_tokens: int
    choices: int
    prefix_hashes: bytes
    deadline_us: int
    avoid_workers: tuple[str, ...]
    dtype: str
    """Pinned once a token was delivered; empty: any."""


@dataclass(frozen=True, slots=True)
class FirstTokenSeen:
    """Tell the router that an attempt's prefill is over."""

    router: str
    key: AttemptKey


@dataclass(frozen=True, slots=True)
class Settle:
    """Give an attempt's reservations back; `final` gives the tenant's concurrency back too."""

    router: str
    key: AttemptKey
    outcome: Outcome
    prompt_tokens: int
    """Billed tokens, counted once over all attempts: 0 unless final."""
    output_tokens: int
    final: bool


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Take back a Submit that the router has not answered."""

    router: str
    key: AttemptKey


@dataclass(frozen=True, slots=True)
class Connect:
    """Open the stream to a decode worker and keep reopening it until Disconnect."""

    worker: str
    address: str


@dataclass(frozen=True, slots=True)
class Disconnect:
    """Close the stream to a decode worker."""

    worker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Hand an attempt to its decode worker."""

    worker: str
    key: AttemptKey
    model: ModelIdentity
    tenant: Tenant
    prompt: tuple[int, ...]
    choices: tuple[Choice, ...]
    params: SamplingParams
    seed: int
    hash_root: bytes
    legs: tuple[Leg, ...]
    fallback: str
    deadline_us: int
    router: str
    grammar: str = ""
    """What every answer must follow (text/grammar.py)."""


@dataclass(frozen=True, slots=True)
class CancelAttempt:
    """Stop an attempt's compute."""

    worker: str
    key: AttemptKey
    outcome: Outcome


class Deliver(msgspec.Struct, frozen=True, array_like=True):
    """New tokens of a choice for the client: no gap, no duplicate, in order."""

    request: str
    choice: int
    first_index: int
    tokens: tuple[int, ...]
    logprobs: tuple[Logprobs, ...]
    finish: FinishReason | None
    """The worker's word. Where there are stop strings, the text side confirms or corrects it."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The request's one terminal event."""

    request: str
    end: End
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int


Action = (
    Submit
    | FirstTokenSeen
    | Settle
    | Withdraw
    | Connect
    | Disconnect
    | Start
    | CancelAttempt
    | Deliver
    | Ended
)


@dataclass(frozen=True, slots=True)
class LiveAttempt:
    """A placed attempt as a router that lost its memory, or its stream, is told of it."""

    submit: Submit
    legs: tuple[Leg, ...]
    first_token_seen: bool


@dataclass(frozen=True, slots=True)
class Resume:
    """An attempt that goes on over a new stream, and the next output index of each of its choices."""

    key: AttemptKey
    next_index: tuple[int, ...]
