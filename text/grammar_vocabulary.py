"""Which bytes each token adds to an answer, laid out for grammars."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from llguidance import LLTokenizer, TokenizerWrapper

from text.grammar import GrammarError, one_line
from text.named_tokens import CONFIG_NAMES, named_ids


def open_grammar_vocabulary(folder: Path) -> LLTokenizer:
    """The trie that masks are computed on, from a model folder's tokenizer.json and the configs beside it.

    Takes half a second per 50,000 tokens. It holds the model's own encoder: where a grammar forces a text,
    the mask allows the tokens that the model itself would cut it into. Raises GrammarError naming the file
    that cannot be used, or where no token could end an answer.
    """
    path = folder / "tokenizer.json"
    definition = _object(path) | {"truncation": None, "padding": None}
    ids = _ids(definition, path)

    def id_of(content: str, field: str) -> int:
        if content not in ids:
            raise GrammarError(f"{path}: {field}: {content!r} is not in the vocabulary")
        return ids[content]

    configs = [_object(folder / name) for name in CONFIG_NAMES if (folder / name).exists()]
    end = named_ids(configs, "eos", id_of)
    if not end:
        raise GrammarError(f"{folder}: the model names no end token, so no answer could end")
    try:
        return LLTokenizer(json.dumps(definition), eos_token=list(end))
    except ValueError as error:
        raise GrammarError(f"{path}: grammars cannot use it: {one_line(str(error))}") from error


def byte_vocabulary(control: Sequence[str]) -> LLTokenizer:
    """The smallest vocabulary that any grammar can be tried on: each byte a token, and the control tokens.

    Made at once and a few kilobytes large, where a model's own takes half a second during which no other
    thread runs: enough to tell whether a grammar is good, on an event loop's process. `control` begins with
    the end token.
    """
    return LLTokenizer(TokenizerWrapper(_Bytes(control)))


class _Bytes:
    """What TokenizerWrapper wants to see."""

    def __init__(self, control: Sequence[str]) -> None:
        self.tokens = [bytes([byte]) for byte in range(256)] + [text.encode() for text in control]
        self.special_token_ids = [256 + number for number in range(len(control))]
        self.eos_token_id = 256
        self.bos_token_id = None

    def __call__(self, text: bytes | str) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


def _ids(definition: Mapping[str, Any], path: Path) -> dict[str, int]:
    """Every piece's id; unigram models list (piece, score), and the place is the id."""
    try:
        vocabulary = definition["model"]["vocab"]
        if not isinstance(vocabulary, Mapping):
            vocabulary = {entry[0]: number for number, entry in enumerate(vocabulary)}
        added = definition.get("added_tokens") or []
        return {**vocabulary, **{token["content"]: token["id"] for token in added}}
    except (KeyError, TypeError, IndexError) as error:
        raise GrammarError(f"{path}: has no vocabulary as tokenizer.json should: {error!r}") from error


def _object(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise GrammarError(f"{path}: cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise GrammarError(f"{path}: not a JSON object")
    return found
