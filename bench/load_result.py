"""What clients saw of one load: how much came, how fast, and what was bad."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import orjson

from bench.percentiles import percentile

DATA = b"data:"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadResult:
    """Tokens are the server's count (usage) where it gives one, else text chunks."""

    ok: int
    bad: int
    bad_sample: tuple[str, ...]
    """The different things that were bad, most frequent first, at most three, each with its count."""
    wall_s: float
    prompt_tokens: int
    output_tokens: int
    chunks: int
    """Pieces of text that arrived; fewer than tokens when a server joins several."""
    output_tokens_per_s: float
    ttft_p50_ms: float | None
    ttft_p95_ms: float | None
    itl_p50_ms: float | None
    itl_p95_ms: float | None
    itl_max_ms: float | None


class Answer:
    """One stream as it is read: each line is fed with the client's clock."""

    def __init__(self, sent_s: float) -> None:
        self.sent_s = sent_s
        self.arrivals_s: list[float] = []
        self.prompt_tokens = 0
        self.output_tokens: int | None = None
        self.bad = ""
        """Why this answer does not count."""
        self.done = False
        self._finished = False

    def feed(self, line: bytes, now_s: float) -> None:
        """One line of the event stream; comments and blank lines mean nothing."""
        if not line.startswith(DATA):
            return
        data = line[len(DATA) :].strip()
        if data == b"[DONE]":
            self.done = True
            return
        try:
            event = orjson.loads(data)
        except orjson.JSONDecodeError:
            self.bad = f"not JSON: {data[:80]!r}"
            return
        if error := event.get("error"):
            self.bad = str(error.get("message", error) if isinstance(error, dict) else error)[:200]
        if usage := event.get("usage"):
            self.prompt_tokens = usage["prompt_tokens"]
            self.output_tokens = usage["completion_tokens"]
        for choice in event.get("choices") or ():
            self._finished = self._finished or bool(choice.get("finish_reason"))
            if (choice.get("delta") or {}).get("content") or choice.get("text"):
                self.arrivals_s.append(now_s)

    def end(self) -> None:
        """The body has ended."""
        if not self.bad and not (self.done and self._finished):
            self.bad = "ended without finish_reason and [DONE]"
        # Tokens may stand for no text: the end token, where it is ignored.
        if not self.bad and not self.arrivals_s and not self.output_tokens:
            self.bad = "no text"


def summarize(answers: Sequence[Answer], wall_s: float) -> LoadResult:
    """Figures are those of the good answers; the bad ones are counted and sampled."""
    good = [answer for answer in answers if not answer.bad]
    ttft_ms = [(answer.arrivals_s[0] - answer.sent_s) * 1e3 for answer in good if answer.arrivals_s]
    itl_ms = [(after - before) * 1e3 for answer in good for before, after in pairwise(answer.arrivals_s)]
    chunks = sum(len(answer.arrivals_s) for answer in good)
    output_tokens = sum(
        len(answer.arrivals_s) if answer.output_tokens is None else answer.output_tokens for answer in good
    )
    reasons = Counter(answer.bad for answer in answers if answer.bad)
    return LoadResult(
        ok=len(good),
        bad=len(answers) - len(good),
        bad_sample=tuple(f"{count} x {reason}" for reason, count in reasons.most_common(3)),
        wall_s=round(wall_s, 3),
        prompt_tokens=sum(answer.prompt_tokens for answer in good),
        output_tokens=output_tokens,
        chunks=chunks,
        output_tokens_per_s=round(output_tokens / wall_s, 2),
        ttft_p50_ms=_rounded(percentile(ttft_ms, 50)),
        ttft_p95_ms=_rounded(percentile(ttft_ms, 95)),
        itl_p50_ms=_rounded(percentile(itl_ms, 50)),
        itl_p95_ms=_rounded(percentile(itl_ms, 95)),
        itl_max_ms=_rounded(max(itl_ms, default=None)),
    )


def _rounded(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else round(milliseconds, 3)
