"""What one engine step computes, and what came of it."""

from dataclasses import dataclass
from typing import Protocol

import msgspec

from core.sampling import SamplingParams
from engine.footprint import Footprint


class SampleSpec(msgspec.Struct, frozen=True, array_like=True):
    """One token to draw from the logits of a row's last position; where a row has drafts, see Row.drafts."""

    choice: int
    params: SamplingParams
    seed: int
    """64-bit; with choice and position it fixes the random number."""
    position: int
    """Absolute position of the token to draw: prompt tokens + output tokens so far."""
    output_count: int
    """Output tokens so far, for min_tokens."""
    prompt_tokens: tuple[int, ...] = ()
    """Filled only where params.needs_history."""
    output_tokens: tuple[int, ...] = ()
    """Filled only where params.needs_history or grammar is set."""
    grammar: str = ""
    """What the output must follow (text/grammar.py); empty: anything. The same for all of a row's samples."""


class Row(msgspec.Struct, frozen=True, array_like=True):
    """One sequence's share of a step: a decode (one token) or a prefill chunk (many)."""

    sequence: int
    """The engine's number of the sequence; names it in the result."""
    tokens: tuple[int, ...]
    """Token ids to feed, at positions start .. start + len(tokens)."""
    start: int
    block_table: tuple[int, ...]
    """Physical block of each logical block; position p lives in block_table[p // block_size]."""
    samples: tuple[SampleSpec, ...] = ()
    """Empty for a chunk that does not reach the sequence's last known token."""
    drafts: int = 0
    """So many of the last tokens are guesses; there is then one sample for the token before each of them
    and one for the last, samples[i] drawn from the logits of tokens[len(tokens) - len(samples) + i]."""

    @property
    def draw_points(self) -> range:
        """Which of the row's tokens are followed by a draw; without drafts, all samples are of the last."""
        return range(len(self.tokens) - 1 - self.drafts, len(self.tokens)) if self.samples else range(0)

    def samples_at(self, point: int) -> tuple[SampleSpec, ...]:
        """What is drawn after token number `point` of the row, one of draw_points."""
        return (self.samples[point - self.draw_points.start],) if self.drafts else self.samples

    @property
    def draft_tokens(self) -> tuple[int, ...]:
        return self.tokens[len(self.tokens) - self.drafts :]


class StepPlan(msgspec.Struct, frozen=True, array_like=True):
    """One step, in execution order: swap out, swap in, zero, copy, compute, sample.

    A plan may have no rows: it then only moves blocks.
    """

    step: int
    zero_blocks: tuple[int, ...]
    """Freshly acquired blocks whose old contents must not be read."""
    copy_blocks: tuple[tuple[int, int], ...]
    """(source, destination): copy-on-write."""
    rows: tuple[Row, ...]
    swap_out: tuple[tuple[int, int], ...] = ()
    """(device block, host slot): whole blocks to keep; a block may be given to others in this very step."""
    swap_in: tuple[tuple[int, int], ...] = ()
    """(device block, host slot): whole blocks to bring back."""

    @property
    def tokens(self) -> int:
        return sum(len(row.tokens) for row in self.rows)


class Sampled(msgspec.Struct, frozen=True, array_like=True):
    """One drawn token."""

    choice: int
    token: int
    logprob: float | None = None
    """Natural log, of the raw distribution (before temperature and filters); None unless asked."""
    top: tuple[tuple[int, float], ...] = ()
    """(token, logprob), likeliest first; as many as params.logprobs asked."""


class StepResult(msgspec.Struct, frozen=True, array_like=True):
    """What a step drew: for each row of the plan, in order, one Sampled per SampleSpec.

    For a row with drafts the draws may end with the first that is not its draft: those after it would
    follow a token that was never drawn.
    """

    step: int
    sampled: tuple[tuple[Sampled, ...], ...]
    elapsed_us: int
    failures: tuple[tuple[int, str], ...] = ()
    """(row number, why its grammar cannot be followed): its entry of `sampled` is empty."""


@dataclass(frozen=True, slots=True)
class KvLayout:
    """The shape of a model's KV cache; two engines may exchange KV only if shape and dtype agree."""

    layers: int
    kv_heads: int
    head_dim: int
    dtype: str
    """"float32", "bfloat16", or "int8": weights in int8 and KV in bfloat16, which is not the KV that other
    weights would give (or "digest" for TimedBackend)."""
    block_size: int
    """Tokens per block; not part of the agreement: the wire layout converts."""
    blocks: int

    @property
    def bytes_per_token(self) -> int:
        """On the wire: [layer, K/V, kv_head, head_dim]."""
        width = {"float32": 4, "bfloat16": 2, "int8": 2, "digest": 1}[self.dtype]
        return self.layers * 2 * self.kv_heads * self.head_dim * width


class Backend(Protocol):
    """A model and its KV pool. Called from one thread at a time; execute blocks until the step is done."""

    layout: KvLayout

    def execute(self, plan: StepPlan) -> StepResult: ...

    def read_kv(self, block_table: tuple[int, ...], start: int, stop: int) -> bytes:
        """The KV of tokens start..stop in the wire layout [layer, K/V, token, kv_head, head_dim]."""
        ...

    def write_kv(
        self, block_table: tuple[int, ...], start: int, stop: int, payload: bytes | memoryview
    ) -> None:
        """Put a payload of read_kv, from an engine of any block size, into these blocks.

        Raises ValueError if the payload's length is not (stop - start) * bytes_per_token.
        """
        ...

    def footprint(self) -> Footprint: ...
    def close(self) -> None: ...
