"""How much text is certain after each token of one choice."""

import codecs

from text.pieces import LeadingSpace
from text.tokenizer import Tokenizer, TokenizerError

_new_utf8_decoder = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """Turns one choice's tokens into text as they come, whole characters only.

    Everything `push` and `flush` return, joined, equals `Tokenizer.decode` of all tokens. For byte-level
    vocabularies that is also what the tokenizers library decodes. With sentencepiece byte fallback the
    library makes U+FFFD of every byte in a run of byte tokens that has an error, which would take back good
    characters already shown; here only the invalid bytes become U+FFFD.
    """

    __slots__ = ("_at_start", "_decoder", "_pending", "_texts", "_tokenizer")

    def __init__(self, tokenizer: Tokenizer, *, continues: bool = False) -> None:
        """`continues` keeps the space at the start, for text that goes on after other text.

        Raises TokenizerError if the tokenizer's decoder cannot work token by token.
        """
        if not tokenizer.streams:
            raise TokenizerError("decoder: text of this vocabulary cannot be streamed token by token")
        self._tokenizer = tokenizer
        self._texts = tokenizer.whole_texts
        self._decoder = _new_utf8_decoder("replace")
        self._pending = False
        self._at_start = not continues and tokenizer.leading_space is not LeadingSpace.KEEP

    def push(self, token_id: int) -> str:
        """The text that is certain now and was not before; control tokens add none."""
        if not self._pending and not self._at_start:
            text = self._texts.get(token_id)
            if text is not None:
                return text
        return self._push_bytes(token_id)

    def flush(self) -> str:
        """The rest when no more tokens come: U+FFFD if they end inside a character."""
        self._pending = False
        return self._decoder.decode(b"", final=True)

    def _push_bytes(self, token_id: int) -> str:
        token = self._tokenizer.token_bytes(token_id)
        if self._tokenizer.is_special(token_id):
            return ""
        if self._at_start and token:
            token = self._without_leading_space(token)
        text = self._decoder.decode(token)
        self._pending = bool(self._decoder.getstate()[0])
        return text

    def _without_leading_space(self, token: bytes) -> bytes:
        self._at_start = False
        if self._tokenizer.leading_space is LeadingSpace.STRIP_FIRST_PIECE:
            return token.replace(b" ", b"")
        return token.removeprefix(b" ")
