"""Which tokens may follow an answer so far."""

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from text.grammar import GrammarError, one_line

TRIED_TOKENS = 4


class GrammarMatcher:
    """One answer's place in its grammar: a function of the grammar and the answer's tokens, nothing else.

    It moves on by the tokens that are new, and back where the answer it is asked about is another one, so a
    preempted, handed over or retried answer meets the same masks as an undisturbed one.
    """

    __slots__ = ("_matcher", "_tokens")

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher
        self._tokens: tuple[int, ...] = ()

    @classmethod
    def compiled(cls, grammar: str, vocabulary: LLTokenizer) -> "GrammarMatcher":
        """Raises GrammarError with the library's words for a grammar that is wrong or too large."""
        matcher = LLMatcher(vocabulary, grammar, log_level=0, limits=LLParserLimits(verbose_errors=False))
        _raise_if_failed(matcher)
        return cls(matcher)

    def fresh(self) -> "GrammarMatcher":
        """The beginning of another answer to the same grammar; shares what is compiled."""
        copy = self._matcher.deep_copy()
        copy.reset()
        return GrammarMatcher(copy)

    def mask_after(self, answer: tuple[int, ...]) -> bytes:
        """One bit per token id, lowest first: which may follow. Only the end token where nothing else may.

        Raises GrammarError where the answer is none of this grammar's, or a limit of the library is met.
        """
        self._move_to(answer)
        mask = self._matcher.compute_bitmask()
        _raise_if_failed(self._matcher)
        if not any(mask):
            raise GrammarError("no token of the vocabulary continues the answer")
        return mask

    def _move_to(self, answer: tuple[int, ...]) -> None:
        known = self._tokens
        if answer[: len(known)] != known:
            self._matcher.reset()
            known = ()
        self._tokens = answer
        for token in answer[len(known) :]:
            if not self._matcher.consume_token(token):
                _raise_if_failed(self._matcher)


def _raise_if_failed(matcher: LLMatcher) -> None:
    if matcher.is_error():
        raise GrammarError(one_line(matcher.get_error()))


def check_grammar(grammar: str, vocabulary: LLTokenizer) -> None:
    """Compile a grammar and begin an answer: some limits are only met on the way. Raises GrammarError."""
    matcher = GrammarMatcher.compiled(grammar, vocabulary)
    answer: tuple[int, ...] = ()
    for _ in range(TRIED_TOKENS):
        bits = int.from_bytes(matcher.mask_after(answer), "little")
        answer = (*answer, (bits & -bits).bit_length() - 1)
