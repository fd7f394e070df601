"""What an engine is asked to run, and what it answers."""

from dataclasses import dataclass
from enum import StrEnum

import msgspec

from core.ends import End
from core.outcomes import FinishReason, Outcome
from core.request import AttemptKey, Choice, TenantClass
from core.sampling import SamplingParams
from engine.plan import Sampled


class Stage(StrEnum):
    """Which part of a job this engine runs."""

    FULL = "full"
    """Prefill here, then decode."""
    PREFILL = "prefill"
    """Compute the prompt, draw the first token of each choice, hold the blocks until release()."""
    DECODE = "decode"
    """Blocks are bound first, the KV arrives by transfer, then decode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One request with all its choices.

    A choice with output so far (a retry) is caught up to prompt + output and draws next at output
    index len(output). Stages PREFILL and DECODE take outputs so far only where there is one choice:
    its prompt + output is then what is computed and shipped; with more choices run FULL.
    """

    key: AttemptKey
    prompt: tuple[int, ...]
    choices: tuple[Choice, ...]
    params: SamplingParams
    seed: int
    """64-bit, drawn once per request."""
    hash_root: bytes
    """8 bytes; whose KV this job may share (core/prefix_hashes.py)."""
    tenant: str
    tenant_class: TenantClass
    grammar: str = ""
    """What every answer must follow, as text/grammar.py makes it; empty: anything."""
    tenant_weight: float = 1.0
    """Of the engine's time while others wait too, relative to their tenants'; above 0."""


def refused_because(job: Job, refused: Outcome) -> str:
    """What Engine.add's word means to whoever asked."""
    if refused is Outcome.INVALID_ARGUMENT and job.grammar:
        return "this worker's engine cannot hold an answer to a grammar"
    return "prompt and output exceed this worker's KV blocks"


@dataclass(frozen=True, slots=True)
class Bound:
    """Every block a job's KV needs, taken at once."""

    block_table: tuple[int, ...]
    cached_tokens: int
    """KV of the tokens before this is in these blocks already; the rest must arrive."""


@dataclass(frozen=True, slots=True)
class FirstToken:
    """The token a prefill elsewhere drew for one choice."""

    choice: int
    sampled: Sampled


class Token(msgspec.Struct, frozen=True, array_like=True):
    """One output token of one choice."""

    key: AttemptKey
    choice: int
    index: int
    """Output index, counted over all attempts."""
    sampled: Sampled
    finish: FinishReason | None
    """Set on a choice's last token."""
    cached_tokens: int
    """Prompt tokens this engine found in its prefix cache for this job."""


@dataclass(frozen=True, slots=True)
class Computed:
    """How far a PREFILL job's KV is complete."""

    key: AttemptKey
    tokens: int
    """KV of tokens 0..tokens is in its blocks; never shrinks."""
    final: bool
    """All of it is: the first tokens are in the same StepOutcome."""


@dataclass(frozen=True, slots=True)
class Failed:
    """A job that cannot go on; it is gone from the engine."""

    key: AttemptKey
    reason: str

    @property
    def end(self) -> End:
        return End(Outcome.INVALID_ARGUMENT, f"grammar: {self.reason}", "grammar")


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """What one step gave, in row order."""

    tokens: tuple[Token, ...]
    computed: tuple[Computed, ...]
    failed: tuple[Failed, ...] = ()
    """Nothing of these jobs follows; tokens of this step, of their other choices, may stand beside."""


@dataclass(frozen=True, slots=True)
class BlockCounts:
    """Blocks by state, each counted on its own."""

    total: int
    free: int
    cached: int
    """Unreferenced, kept for a later hit."""
    held: int
    in_flight: int
    """Under a transfer, referenced or not."""
