"""Which token ids a text has, and which text a token id stands for."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import tokenizers

from text.control_guard import ControlGuard, stand_in
from text.literal_twin import literal_twin
from text.named_tokens import CONFIG_NAMES, named_ids
from text.pieces import LeadingSpace, piece_rules


class TokenizerError(Exception):
    """A tokenizer's files cannot be used, or a text has no tokens; says which file or field."""


class Tokenizer:
    """One model's vocabulary; immutable once open, so threads and choices share it."""

    def __init__(self, definition: str, configs: Sequence[Mapping[str, object]] = ()) -> None:
        """`definition` is the content of a tokenizer.json; `configs` are searched in order for BOS and EOS.

        Raises TokenizerError naming the field.
        """
        self._encoder = _load(definition)
        self._literal = _load(literal_twin(definition))
        added = self._encoder.get_added_tokens_decoder()
        self._special = {token_id: token.content for token_id, token in added.items() if token.special}
        self._check_twin()
        self._rules = piece_rules(json.loads(definition).get("decoder"))
        self._bytes: dict[int, bytes] = {}
        self.whole_texts: dict[int, str] = {}
        """Text of those tokens met so far that are whole characters; "" for control tokens."""
        self.vocab_size: int = max(self._encoder.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        """One more than the highest token id; a model's logits may be wider."""
        self.eos_token_ids = named_ids(configs, "eos", self._id_of)
        self.bos_token_id = next(iter(named_ids(configs, "bos", self._id_of)), None)
        token_id_of = {content: token_id for token_id, content in self._special.items()}
        self.control_guard = ControlGuard(token_id_of, _normalize(self._encoder, added))

    @classmethod
    def open(cls, folder: Path) -> "Tokenizer":
        """The tokenizer of a model folder.

        Reads tokenizer.json and, for the BOS and EOS tokens, whichever of generation_config.json, config.json
        and tokenizer_config.json exist. Raises TokenizerError naming the file.
        """
        path = folder / "tokenizer.json"
        definition = _read(path)
        configs = [_read_object(folder / name) for name in CONFIG_NAMES]
        try:
            return cls(definition, configs)
        except TokenizerError as error:
            raise TokenizerError(f"{path}: {error}") from error

    def encode(self, text: str, special: bool) -> list[int]:
        """Token ids of `text`, in which control strings are control tokens.

        `special` adds what the post-processor of tokenizer.json adds (BOS, EOS, CLS, SEP). Nothing is ever
        truncated or padded. Raises TokenizerError on a lone surrogate.
        """
        return _encode(self._encoder, text, special)

    def encode_literal(self, text: str) -> list[int]:
        """Token ids of `text` without a single control token: control strings are spelled out as text."""
        return _encode(self._literal, text, False)

    def encode_guarded(self, rendered: str) -> list[int]:
        """Token ids of a prompt rendered from strings that `control_guard.marked` prepared."""
        return _encode(self._literal, self.control_guard.reveal(rendered), False)

    def decode(self, token_ids: Iterable[int]) -> str:
        """Text of the tokens; control tokens are nothing, invalid UTF-8 is U+FFFD as in bytes.decode."""
        shown = [token_id for token_id in token_ids if not self.is_special(token_id)]
        if not self._rules.streams:
            return self._encoder.decode(shown)
        pieces = [self.token_bytes(token_id) for token_id in shown]
        if pieces and self._rules.leading_space is LeadingSpace.STRIP_FIRST_PIECE:
            pieces[0] = pieces[0].replace(b" ", b"")
        text = b"".join(pieces).decode("utf-8", "replace")
        return text.removeprefix(" ") if self._rules.leading_space is LeadingSpace.STRIP_ONE else text

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes a token stands for, perhaps a part of a character; a control token's are its name's.

        Ids outside the vocabulary (models pad their logits) stand for no bytes.
        """
        if (known := self._bytes.get(token_id)) is not None:
            return known
        piece = self._encoder.id_to_token(token_id) if 0 <= token_id < self.vocab_size else None
        if piece is None:
            return b""
        special = token_id in self._special
        made = self._bytes[token_id] = piece.encode() if special else self._rules.piece_bytes(piece)
        if special or _is_utf8(made):
            self.whole_texts[token_id] = "" if special else made.decode()
        return made

    def token_text(self, token_id: int) -> str:
        """`token_bytes` as text, U+FFFD where they are not whole characters."""
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def is_special(self, token_id: int) -> bool:
        """Whether the token is a control token, which detokenizes to nothing."""
        return token_id in self._special

    @property
    def leading_space(self) -> LeadingSpace:
        """What decoding does to the space at the start of a text."""
        return self._rules.leading_space

    @property
    def streams(self) -> bool:
        """Whether text can be decoded token by token."""
        return self._rules.streams

    def _check_twin(self) -> None:
        for token_id, content in self._special.items():
            if self._literal.token_to_id(stand_in(token_id)) != token_id:
                raise TokenizerError(f"added_tokens: {content!r} is not token {token_id} of the vocabulary")

    def _id_of(self, content: str, field: str) -> int:
        if (token_id := self._encoder.token_to_id(content)) is None:
            raise TokenizerError(f"{field}: {content!r} is not in the vocabulary")
        return int(token_id)


def _load(definition: str) -> tokenizers.Tokenizer:
    try:
        encoder = tokenizers.Tokenizer.from_str(definition)
    except Exception as error:  # the library raises bare Exception
        raise TokenizerError(f"not a usable tokenizer definition: {error}") from error
    encoder.no_truncation()
    encoder.no_padding()
    return encoder


def _encode(encoder: tokenizers.Tokenizer, text: str, special: bool) -> list[int]:
    try:
        # The batch call is the one that lets other threads run, so a long prompt can be encoded beside them.
        (encoding,) = encoder.encode_batch_fast([text], add_special_tokens=special)
        return list(encoding.ids)
    except (UnicodeEncodeError, TypeError) as error:
        raise TokenizerError(f"text: not encodable as UTF-8: {error}") from error


def _normalize(
    encoder: tokenizers.Tokenizer, added: Mapping[int, tokenizers.AddedToken]
) -> Callable[[str], str] | None:
    """The normalizer, if some control string is looked for in normalized text."""
    normalizer = encoder.normalizer
    if normalizer is None or not any(token.special and token.normalized for token in added.values()):
        return None
    return lambda text: str(normalizer.normalize_str(text))


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TokenizerError(f"{path}: cannot be read: {error}") from error


def _read_object(path: Path) -> Mapping[str, object]:
    if not path.exists():
        return {}
    try:
        value = json.loads(_read(path))
    except ValueError as error:
        raise TokenizerError(f"{path}: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise TokenizerError(f"{path}: not a JSON object")
    return value
