"""Which tokens each sequence of a step may draw, worked out beside the forward pass."""

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from llguidance import LLTokenizer

from engine.plan import Row
from text.grammar import GrammarError
from text.grammar_matcher import GrammarMatcher

GRAMMARS_MAX = 128
"""Compiled grammars kept, the least recently used going first."""
ANSWERS_MAX = 1024
"""Answers whose place is kept; another one is replayed from its tokens."""


@dataclass(frozen=True, slots=True)
class StepMasks:
    """One step's masks."""

    masks: dict[int, bytes]
    """By row number: one bit per token id, lowest first; the same for every choice the row draws for."""
    failures: dict[int, str]
    """By row number: why nothing can be drawn there."""


NO_MASKS = StepMasks({}, {})
Key = TypeVar("Key")
Value = TypeVar("Value")


@dataclass(slots=True)
class MaskCost:
    """What grammars have cost since the start."""

    masks: int = 0
    compute_us: float = 0.0
    """Processor time, on the thread beside the forward pass."""
    compile_us: float = 0.0
    """There too: new grammars."""
    waited_us: float = 0.0
    """Of it, what steps had to wait for after their forward pass."""


def no_vocabulary() -> LLTokenizer:
    """For a backend that is opened without a tokenizer: rows with a grammar fail."""
    raise GrammarError("this engine has no vocabulary to follow a grammar with")


class GrammarMasks:
    """Compiled grammars and the places of running answers; one thread of its own, which holds no GIL long.

    What it keeps is only a cache: a mask follows from the grammar and the tokens of the row alone.
    """

    def __init__(self, open_vocabulary: Callable[[], LLTokenizer]) -> None:
        """`open_vocabulary` is called once, on the thread; it may raise GrammarError."""
        self._open_vocabulary = open_vocabulary
        self._vocabulary: LLTokenizer | GrammarError | None = None
        self._compiled: OrderedDict[str, GrammarMatcher] = OrderedDict()
        self._answers: OrderedDict[int, tuple[str, GrammarMatcher]] = OrderedDict()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammars")
        self.cost = MaskCost()

    def warm(self) -> "Future[LLTokenizer]":
        """Open the vocabulary now, before serving: for half a second no other thread of Python runs."""
        return self._thread.submit(self._opened)

    def begin(self, rows: Sequence[Row]) -> Callable[[], StepMasks]:
        """Start on a step's masks; the answer waits for them."""
        wanted = [
            (number, row.sequence, row.samples[0].grammar, row.samples[0].output_tokens)
            for number, row in enumerate(rows)
            if row.samples and row.samples[0].grammar
        ]
        if not wanted:
            return lambda: NO_MASKS
        future = self._thread.submit(self._work_out, wanted)
        return lambda: self._wait(future)

    def close(self) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _wait(self, future: "Future[StepMasks]") -> StepMasks:
        started_ns = time.perf_counter_ns()
        found = future.result()
        self.cost.waited_us += (time.perf_counter_ns() - started_ns) / 1000
        return found

    def _work_out(self, wanted: Sequence[tuple[int, int, str, tuple[int, ...]]]) -> StepMasks:
        started_ns = time.thread_time_ns()
        found = StepMasks({}, {})
        for number, sequence, grammar, answer in wanted:
            try:
                found.masks[number] = self._matcher(sequence, grammar).mask_after(answer)
            except GrammarError as error:
                self._answers.pop(sequence, None)
                found.failures[number] = str(error)
        self.cost.masks += len(wanted)
        self.cost.compute_us += (time.thread_time_ns() - started_ns) / 1000
        return found

    def _matcher(self, sequence: int, grammar: str) -> GrammarMatcher:
        known, matcher = self._answers.pop(sequence, ("", None))
        if matcher is None or known != grammar:
            matcher = self._grammar(grammar).fresh()
        _keep(self._answers, sequence, (grammar, matcher), ANSWERS_MAX)
        return matcher

    def _grammar(self, grammar: str) -> GrammarMatcher:
        matcher = self._compiled.pop(grammar, None)
        if matcher is None:
            vocabulary = self._opened()
            started_ns = time.thread_time_ns()
            matcher = GrammarMatcher.compiled(grammar, vocabulary)
            took_us = (time.thread_time_ns() - started_ns) / 1000
            self.cost.compile_us += took_us
            self.cost.compute_us -= took_us  # it is counted around this
        _keep(self._compiled, grammar, matcher, GRAMMARS_MAX)
        return matcher

    def _opened(self) -> LLTokenizer:
        if self._vocabulary is None:
            try:
                self._vocabulary = self._open_vocabulary()
            except GrammarError as error:
                self._vocabulary = error
        if isinstance(self._vocabulary, GrammarError):
            raise self._vocabulary
        return self._vocabulary


def _keep(kept: "OrderedDict[Key, Value]", key: Key, value: Value, most: int) -> None:
    kept[key] = value
    if len(kept) > most:
        kept.popitem(last=False)
