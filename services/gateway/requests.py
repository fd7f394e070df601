"""What the gateway hands in to be answered, and what comes back about it."""

from dataclasses import dataclass

import msgspec

from core.ends import End
from core.outcomes import FinishReason
from core.request import Leg, ModelIdentity, TenantClass
from core.sampling import SamplingParams


@dataclass(frozen=True, slots=True)
class Tenant:
    """Who pays for a request, and how much of the fleet it may hold."""

    name: str
    tenant_class: TenantClass = TenantClass.STANDARD
    weight: float = 1.0
    """Share of the fleet's GPU time under contention, relative to the other tenants'."""
    concurrency: int = 0
    """Live requests at most, over the whole fleet; 0 is no limit."""
    tokens_per_minute: int = 0
    """0 is no limit."""
    admin: bool = False
    """May see every tenant's counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRequest:
    """One checked, tokenized request: everything the answer depends on."""

    request: str
    """Unique id, names the owning gateway."""
    tenant: Tenant
    model: ModelIdentity
    prompt: tuple[int, ...]
    choices: int = 1
    params: SamplingParams
    seed: int
    """64-bit; drawn before the first Submit where the client gave none: every attempt has the same."""
    hash_root: bytes
    """8 bytes: who may share this prompt's KV."""
    prefix_hashes: bytes = b""
    """8 bytes per full hash unit of the prompt, packed, capped."""
    deadline_us: int
    """On the clock that now_us is read from."""
    grammar: str = ""
    """What every answer must follow, compiled once and found good (text/grammar.py); empty: anything."""
    stop_strings: bool = False
    """The text side looks for stop strings and confirms the end of each choice (`Gateway.choice_ended`)."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a router put an attempt."""

    legs: tuple[Leg, ...]
    fallback: str
    """"require", "prefer" or "never"."""


@dataclass(frozen=True, slots=True)
class Logprobs:
    """A drawn token's probabilities, natural logarithms of the raw distribution."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    """(token, logprob), likeliest first."""


class Run(msgspec.Struct, frozen=True, array_like=True):
    """Consecutive tokens of one choice, as a decode worker sent them."""

    request: str
    attempt: int
    choice: int
    first_index: int
    """Output index of the first token, counted over all attempts."""
    tokens: tuple[int, ...]
    logprobs: tuple[Logprobs, ...] = ()
    """As long as tokens, or empty."""
    finish: FinishReason | None = None
    cached_tokens: int = 0
    """Prompt tokens found in a cache; on the first run of an attempt."""


@dataclass(frozen=True, slots=True)
class AttemptEnd:
    """A decode worker's last word about an attempt."""

    request: str
    attempt: int
    end: End
