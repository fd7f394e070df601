"""Which tokenizer.json says the same as a GGUF file's tokenizer metadata."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CONTROL, USER_DEFINED = 3, 4
"""Values of tokenizer.ggml.token_type for special tokens and for added ordinary ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufVocabulary:
    """The tokenizer metadata of a GGUF file; field names follow tokenizer.ggml.*."""

    model: str
    pre: str
    tokens: Sequence[str]
    token_types: Sequence[int]
    merges: Sequence[str]


def tokenizer_json(vocabulary: GgufVocabulary) -> dict[str, Any]:
    """The content of tokenizer.json (https://github.com/huggingface/tokenizers).

    Raises ValueError, naming it, for a tokenizer model or pre-tokenizer that is not supported.
    """
    if vocabulary.model != "gpt2":
        raise ValueError(f"tokenizer model {vocabulary.model} is not supported (gpt2 is)")
    if vocabulary.pre not in PRE_TOKENIZERS:
        known = ", ".join(PRE_TOKENIZERS)
        raise ValueError(f"pre-tokenizer {vocabulary.pre} is not supported ({known} are)")
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added_tokens(vocabulary),
        "normalizer": None,
        "pre_tokenizer": PRE_TOKENIZERS[vocabulary.pre],
        "post_processor": None,
        "decoder": _byte_level(use_regex=True),
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            # Llama 3 takes a word that is a token as it is, however its merges would build it.
            "ignore_merges": vocabulary.pre == "llama-bpe",
            "vocab": {token: number for number, token in enumerate(vocabulary.tokens)},
            "merges": [merge.split(" ", 1) for merge in vocabulary.merges],
        },
    }


def _added_tokens(vocabulary: GgufVocabulary) -> list[dict[str, Any]]:
    return [
        {
            "id": number,
            "content": vocabulary.tokens[number],
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": kind == CONTROL,
        }
        for number, kind in enumerate(vocabulary.token_types)
        if kind in (CONTROL, USER_DEFINED)
    ]


def _byte_level(*, use_regex: bool) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


def _sequence(*steps: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "pretokenizers": list(steps)}


def _split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


PRE_TOKENIZERS: dict[str, dict[str, Any]] = {
    "smollm": _sequence({"type": "Digits", "individual_digits": True}, _byte_level(use_regex=True)),
    "gpt-2": _sequence(_split(GPT2_PATTERN), _byte_level(use_regex=False)),
    "llama-bpe": _sequence(_split(LLAMA3_PATTERN), _byte_level(use_regex=False)),
}
