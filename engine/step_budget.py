"""How much one step may still take on."""

import math

from core.cost_model import attended
from engine.prefill_burst import PrefillBurst
from engine.step_prediction import StepLoad, StepPrediction

PREFILL_PARTS = 5
"""Prefill gets at least one part in so many of the ITL target, however long the decode rows take."""


class StepBudget:
    """Tokens, and beside decode rows predicted time, left in the step being planned.

    Decode rows are taken first and always granted. Chunks then get what is left of the ITL target,
    or their least share of it, and those of short prompts also what earlier steps saved; in a step
    without decode rows nobody waits, and only tokens count.
    """

    __slots__ = (
        "_beyond_ns",
        "_burst",
        "_chunked",
        "_deposit_ns",
        "_is_awaited",
        "_left_ns",
        "_load",
        "_prediction",
        "_reserved_ns",
        "_spent_ns",
        "_target_ns",
        "_tokens",
    )

    def __init__(
        self, max_step_tokens: int, itl_target_us: int, prediction: StepPrediction, burst: PrefillBurst
    ) -> None:
        """`itl_target_us` 0: no bound in time."""
        self._tokens = max_step_tokens
        self._target_ns = itl_target_us * 1000
        self._prediction = prediction
        self._burst = burst
        self._load: tuple[int, int] = (0, 0)
        self._deposit_ns = math.inf
        self._left_ns = math.inf
        """Of the target, for any chunk; below nothing where a prompt took more than it was predicted to."""
        self._beyond_ns = 0.0
        """Of what earlier steps saved."""
        self._reserved_ns = 0.0
        """Of both, for a prompt that waits for a later step to hold it."""
        self._spent_ns = 0.0
        """By chunks, of whatever."""
        self._chunked = False
        self._is_awaited = False

    @property
    def spent(self) -> bool:
        return self._tokens == 0 or self._left_ns + self._beyond_ns <= 0

    @property
    def full(self) -> bool:
        """No row fits, not even one that decodes."""
        return self._tokens == 0

    def decode(self, stop: int, *, is_awaited: bool = True) -> None:
        """A row of one token that attends to `stop` positions; `is_awaited`: somebody counts its ITL."""
        self._is_awaited |= is_awaited
        self._tokens -= 1
        rows, context = self._load
        self._load = (rows + 1, context + stop)

    def trial(self, stop: int, count: int) -> None:
        """`count` drafts behind a decode row that attends to `stop` positions."""
        for depth in range(1, count + 1):
            self.decode(stop + depth)

    @property
    def decode_ns(self) -> int:
        """Predicted time of a step of the decode rows alone."""
        rows, context = self._load
        return self._prediction.step_ns(StepLoad(decodes=rows, decode_context=context))

    def begin_prefill(self) -> None:
        """The decode rows are in; what is left is for chunks."""
        if not self._target_ns:
            return
        if not self._is_awaited:
            self._burst.refill()
            return
        self._deposit_ns = self._left_ns = max(
            self._target_ns - self.decode_ns, self._target_ns / PREFILL_PARTS
        )
        self._beyond_ns = self._burst.beyond(self._deposit_ns)

    def part_ns(self, parts: int) -> float:
        """One part in so many of what is left of the target; 0 where time does not count."""
        return self._left_ns / parts if math.isfinite(self._left_ns) else 0.0

    def part_tokens(self, parts: int) -> int:
        return self._tokens // parts

    @property
    def saved_ns(self) -> float:
        """What is left of what earlier steps saved."""
        return self._beyond_ns

    def open_up(self, saved_ns: float) -> None:
        """So much of what was saved is for any chunk."""
        of_beyond = min(saved_ns, self._beyond_ns)
        of_reserved = min(saved_ns - of_beyond, self._reserved_ns)
        self._beyond_ns -= of_beyond
        self._reserved_ns -= of_reserved
        self._left_ns += of_beyond + of_reserved

    def chunk(
        self,
        start: int,
        wanted: int,
        *,
        keep_ns: float = 0.0,
        keep_tokens: int = 0,
        may_burst: bool = False,
        at_once: bool = False,
    ) -> int:
        """Tokens granted to a row at position `start`, 0..wanted, leaving `keep` to others.

        `may_burst`: it may take what earlier steps saved. `at_once`: and is rather computed in one later
        step than in several from now on, where one step can hold it; meanwhile nobody but who has the
        `keep` may take what it waits for. Of the others, a step's first chunk gets at least one token.
        """
        granted = min(wanted, max(0, self._tokens - keep_tokens))
        if math.isfinite(self._left_ns):
            fitting = self._fits(start, self._left_ns - keep_ns + (self._beyond_ns if may_burst else 0.0))
            most_ns = self._burst.step_ns - keep_ns
            if at_once and fitting < granted and self._chunk_ns(start, granted) <= most_ns:
                self._reserve(keep_ns)
                return 0
            granted = min(granted, fitting)
        if not granted and not self._chunked:
            granted = min(wanted, self._tokens, 1)
        if granted:
            self._chunked = True
            self._tokens -= granted
            self._spend(self._chunk_ns(start, granted), keep_ns)
        return granted

    def settle(self) -> None:
        """The step is planned: what it left of the target is saved."""
        if math.isfinite(self._deposit_ns):
            self._burst.settle(self._deposit_ns, self._spent_ns)

    def _reserve(self, keep_ns: float) -> None:
        kept_ns = min(keep_ns, self._left_ns)
        self._reserved_ns += self._left_ns - kept_ns + self._beyond_ns
        self._left_ns, self._beyond_ns = kept_ns, 0.0

    def _spend(self, chunk_ns: float, keep_ns: float) -> None:
        """First of the target, then of what was saved; what is kept for others only if need be."""
        of_target = min(chunk_ns, max(0.0, self._left_ns - keep_ns))
        beyond = min(chunk_ns - of_target, self._beyond_ns)
        self._beyond_ns -= beyond
        self._left_ns -= chunk_ns - beyond
        self._spent_ns += chunk_ns

    def _chunk_ns(self, start: int, count: int) -> float:
        pair_ns = self._prediction.chunk_pair_ns()
        return count * self._prediction.chunk_token_ns() + attended(start, start + count) * pair_ns

    def _fits(self, start: int, left_ns: float) -> int:
        """The most tokens n that take no longer: pair/2 n^2 + (token + pair (start + 1/2)) n <= left."""
        if left_ns <= 0:
            return 0
        pair_ns = self._prediction.chunk_pair_ns()
        linear = self._prediction.chunk_token_ns() + pair_ns * (start + 0.5)
        if pair_ns == 0.0:
            return int(left_ns / linear) if linear else self._tokens
        # Written so that nothing cancels where attention is cheap.
        return int(2 * left_ns / (linear + math.sqrt(linear * linear + 2 * pair_ns * left_ns)))
