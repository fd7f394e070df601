"""What text a choice's tokens show, and where a stop string ends it."""

from collections.abc import Sequence
from dataclasses import dataclass

from core.outcomes import FinishReason
from services.gateway.requests import Logprobs
from text.detokenizer import Detokenizer
from text.stop_matcher import StopMatcher
from text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of one choice's answer, as clients get it."""

    choice: int
    first_index: int
    """Output index of the first token."""
    tokens: tuple[int, ...]
    """Those that count: up to the one that completed a stop string."""
    text: str
    """Whole characters; empty while bytes or a possible stop string are withheld."""
    logprobs: tuple[Logprobs, ...] = ()
    """As long as tokens, or empty."""
    finish: FinishReason | None = None
    stop_token: bool = False
    """The last token is a stop token: counted, not shown."""


class ChoiceText:
    """One choice's text from its first token to its last."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        choice: int,
        stops: Sequence[str],
        stop_token_ids: Sequence[int],
        *,
        continues: bool,
    ) -> None:
        """`continues`: the answer goes on after the prompt's text (completions), so its first space stays."""
        self._choice = choice
        self._detokenizer = Detokenizer(tokenizer, continues=continues)
        self._matcher = StopMatcher(stops) if stops else None
        self._stop_token_ids = frozenset(stop_token_ids)
        self._finished = False

    def push(
        self,
        first_index: int,
        tokens: tuple[int, ...],
        logprobs: tuple[Logprobs, ...],
        finish: FinishReason | None,
    ) -> Piece | None:
        """What these tokens add; None after the choice has finished."""
        if self._finished:
            return None
        stop_token = finish is FinishReason.STOP and bool(tokens) and tokens[-1] in self._stop_token_ids
        shown: list[str] = []
        for count, token in enumerate(tokens[:-1] if stop_token else tokens, start=1):
            text, stopped = self._match(self._detokenizer.push(token))
            shown.append(text)
            if stopped:
                self._finished = True
                return self._piece(first_index, tokens[:count], shown, logprobs, FinishReason.STOP)
        if finish is not None:
            self._finished = True
            text, stopped = self._match(self._detokenizer.flush())
            shown.append(text)
            finish = FinishReason.STOP if stopped else finish
            if self._matcher is not None:
                shown.append(self._matcher.flush())
        return self._piece(first_index, tokens, shown, logprobs, finish, stop_token)

    def _match(self, text: str) -> tuple[str, bool]:
        if self._matcher is None or not text:
            return text, False
        shown, stop = self._matcher.push(text)
        return shown, stop is not None

    def _piece(
        self,
        first_index: int,
        tokens: tuple[int, ...],
        shown: list[str],
        logprobs: tuple[Logprobs, ...],
        finish: FinishReason | None,
        stop_token: bool = False,
    ) -> Piece:
        counted = logprobs[: len(tokens)]
        return Piece(self._choice, first_index, tokens, "".join(shown), counted, finish, stop_token)
