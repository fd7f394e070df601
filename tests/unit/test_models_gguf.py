"""Whether a GGUF file becomes the Hugging Face folder that says the same."""

import json
import os
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Quantization
from numpy.typing import NDArray

from engine.models.checkpoint import load_config
from engine.models.errors import ModelError
from engine.models.store import cache_root, resolve
from engine.models.weights import load_weights

HIDDEN, INNER, HEADS, KV_HEADS, VOCABULARY = 256, 512, 4, 2, 300
SHAPES = {
    "token_embd.weight": (VOCABULARY, HIDDEN),
    "output_norm.weight": (HIDDEN,),
    "blk.0.attn_norm.weight": (HIDDEN,),
    "blk.0.attn_q.weight": (HIDDEN, HIDDEN),
    "blk.0.attn_k.weight": (HIDDEN // 2, HIDDEN),
    "blk.0.attn_v.weight": (HIDDEN // 2, HIDDEN),
    "blk.0.attn_output.weight": (HIDDEN, HIDDEN),
    "blk.0.ffn_norm.weight": (HIDDEN,),
    "blk.0.ffn_gate.weight": (INNER, HIDDEN),
    "blk.0.ffn_up.weight": (INNER, HIDDEN),
    "blk.0.ffn_down.weight": (HIDDEN, INNER),
}
NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "blk.0.attn_v.weight": "model.layers.0.self_attn.v_proj.weight",
    "blk.0.attn_output.weight": "model.layers.0.self_attn.o_proj.weight",
    "blk.0.ffn_down.weight": "model.layers.0.mlp.down_proj.weight",
    "blk.0.attn_norm.weight": "model.layers.0.input_layernorm.weight",
}
Bytes = NDArray[np.uint8]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATON_CACHE", str(tmp_path / "cache"))


def _values(name: str) -> NDArray[np.float32]:
    shape = SHAPES[name]
    generator = np.random.default_rng(list(SHAPES).index(name))
    return generator.standard_normal(shape, dtype=np.float32)


def _write(file: Path, kind: Quantization = Quantization.F32, **changes: Any) -> Path:
    """A one-layer llama; changes override metadata, None leaves a field or a tensor out."""
    writer = gguf.GGUFWriter(str(file), changes.pop("architecture", "llama"))
    fields: dict[str, Any] = {
        "block_count": 1,
        "context_length": 128,
        "embedding_length": HIDDEN,
        "feed_forward_length": INNER,
        "head_count": HEADS,
        "head_count_kv": KV_HEADS,
        "layer_norm_rms_eps": 1e-5,
        "rope_freq_base": 5000.0,
        "tokenizer_model": "gpt2",
        "tokenizer_pre": "smollm",
        "token_list": [f"t{number}" for number in range(VOCABULARY)],
        "token_types": [3, *[1] * (VOCABULARY - 1)],
        "token_merges": ["t 1"],
        "eos_token_id": 0,
    }
    tensors = changes.pop("tensors", {})
    for name, value in {**fields, **changes}.items():
        if value is not None:
            getattr(writer, f"add_{name}")(value)
    for name in SHAPES:
        data, stored = tensors.get(name, _encoded(name, kind))
        if data is not None:
            writer.add_tensor(name, data, raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def _encoded(name: str, kind: Quantization) -> tuple[NDArray[Any], Quantization]:
    values = _values(name)
    if values.ndim == 1:
        return values, Quantization.F32
    if kind in HANDMADE:
        return HANDMADE[kind](values.shape, list(SHAPES).index(name)), kind
    return gguf.quants.quantize(values, kind), kind


def _halves(values: NDArray[np.float64]) -> Bytes:
    return values.astype(np.float16).view(np.uint8).reshape(*values.shape, 2)


def _q4_k_bytes(shape: tuple[int, ...], seed: int) -> Bytes:
    generator = np.random.default_rng(seed)
    blocks = (shape[0], shape[1] // 256)
    scales = [_halves(generator.uniform(0.001, 0.01, blocks)) for _ in range(2)]
    rest = generator.integers(0, 256, (*blocks, 12 + 128), dtype=np.uint8)
    return np.concatenate([*scales, rest], axis=-1).reshape(shape[0], -1)


def _q6_k_bytes(shape: tuple[int, ...], seed: int) -> Bytes:
    generator = np.random.default_rng(seed)
    blocks = (shape[0], shape[1] // 256)
    rest = generator.integers(0, 256, (*blocks, 128 + 64 + 16), dtype=np.uint8)
    return np.concatenate([rest, _halves(generator.uniform(0.001, 0.01, blocks))], axis=-1).reshape(
        shape[0], -1
    )


HANDMADE = {Quantization.Q4_K: _q4_k_bytes, Quantization.Q6_K: _q6_k_bytes}


def _half(pair: Bytes) -> float:
    return float(pair.view(np.float16)[0])


def _q4_k_block(block: Bytes) -> list[float]:
    """256 values, as ggml-quants.c lays them out: d, dmin, 6-bit scales and minima, 4-bit values."""
    scale, minimum, packed = _half(block[:2]), _half(block[2:4]), block[4:16]
    answer: list[float] = []
    for part in range(8):
        if part < 4:
            six, low = packed[part] & 63, packed[part + 4] & 63
        else:
            six = (packed[part + 4] & 15) | ((packed[part - 4] >> 6) << 4)
            low = (packed[part + 4] >> 4) | ((packed[part] >> 6) << 4)
        nibbles = block[16 + part // 2 * 32 :][:32] >> (4 * (part % 2)) & 15
        answer += [scale * int(six) * int(nibble) - minimum * int(low) for nibble in nibbles]
    return answer


def _q6_k_block(block: Bytes) -> list[float]:
    """256 values of one block: low 4 bits, high 2 bits, signed 8-bit scales of 16 values, d."""
    low, high, scales = block[:128], block[128:192], block[192:208].view(np.int8)
    scale = _half(block[208:210])
    answer = []
    for at in range(256):
        half, within = divmod(at, 128)
        quarter, column = divmod(within, 32)
        four = low[half * 64 + (quarter % 2) * 32 + column] >> (4 * (quarter // 2)) & 15
        two = high[half * 32 + column] >> (2 * quarter) & 3
        answer.append(scale * int(scales[at // 16]) * (int(four | (two << 4)) - 32))
    return answer


@pytest.mark.parametrize(
    ("kind", "block"), [(Quantization.Q4_K, _q4_k_block), (Quantization.Q6_K, _q6_k_block)]
)
def test_k_quantizations_are_read_as_their_format_says(
    tmp_path: Path, kind: Quantization, block: Any
) -> None:
    weights = load_weights(resolve(str(_write(tmp_path / "m.gguf", kind))).path, "float32")
    name = "blk.0.ffn_down.weight"
    data = HANDMADE[kind](SHAPES[name], list(SHAPES).index(name))
    width = data.shape[1] // 2
    for row in (0, 7, 255):
        expected = [*block(data[row, :width]), *block(data[row, width:])]
        np.testing.assert_allclose(weights[NAMES[name]][row].numpy(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        (Quantization.F32, 0.0),
        (Quantization.F16, 0.002),
        (Quantization.BF16, 0.02),
        (Quantization.Q8_0, 0.02),
        (Quantization.Q4_0, 0.4),
        (Quantization.Q4_1, 0.3),
    ],
)
def test_every_quantization_comes_back_near_what_was_written(
    tmp_path: Path, kind: Quantization, error: float
) -> None:
    weights = load_weights(resolve(str(_write(tmp_path / "m.gguf", kind))).path, "float32")
    for name, converted in NAMES.items():
        values = _values(name)
        assert float(np.abs(weights[converted].numpy() - values).max()) <= error
        if values.ndim == 2:
            exact = gguf.quants.dequantize(gguf.quants.quantize(values, kind), kind)
            np.testing.assert_array_equal(weights[converted].numpy(), exact)


def test_rotary_rows_return_to_hugging_face_order(tmp_path: Path) -> None:
    """Exporting interleaves the halves of a head (llama.cpp, convert_hf_to_gguf.py, permute)."""
    original = {"q": (_values("blk.0.attn_q.weight"), HEADS), "k": (_values("blk.0.attn_k.weight"), KV_HEADS)}
    permuted = {
        f"blk.0.attn_{name}.weight": (
            values.reshape(heads, 2, len(values) // heads // 2, HIDDEN).swapaxes(1, 2).reshape(values.shape),
            Quantization.F32,
        )
        for name, (values, heads) in original.items()
    }
    weights = load_weights(resolve(str(_write(tmp_path / "m.gguf", tensors=permuted))).path, "float32")
    for name, (values, _) in original.items():
        np.testing.assert_array_equal(weights[f"model.layers.0.self_attn.{name}_proj.weight"].numpy(), values)


def test_both_dtypes_and_the_config_are_written(tmp_path: Path) -> None:
    folder = resolve(str(_write(tmp_path / "m.gguf"))).path
    config = load_config(folder)
    assert (config.hidden_size, config.heads, config.kv_heads, config.head_dim) == (HIDDEN, 4, 2, 64)
    assert (config.rope_theta, config.max_position_embeddings) == (5000.0, 128)
    assert config.tie_word_embeddings and config.vocab_size == VOCABULARY
    wide, narrow = load_weights(folder, "float32"), load_weights(folder, "bfloat16")
    assert list(wide) == list(narrow)
    for name, tensor in wide.items():
        assert tensor.bfloat16().equal(narrow[name]), name
    assert json.loads((folder / "generation_config.json").read_text()) == {"eos_token_id": 0}
    assert json.loads((folder / "tokenizer_config.json").read_text())["eos_token"] == "t0"


def test_a_second_resolve_reads_the_cache(tmp_path: Path) -> None:
    heard: list[str] = []
    file = _write(tmp_path / "m.gguf")
    first = resolve(str(file), lambda what, fraction: heard.append(what))
    assert heard and heard[-1] == "converted m.gguf"
    heard.clear()
    assert resolve(str(file), lambda what, fraction: heard.append(what)) == first
    assert not heard
    assert [entry.name for entry in cache_root().iterdir()] == [first.path.name]


def test_of_two_conversions_at_once_one_wins(tmp_path: Path) -> None:
    file = _write(tmp_path / "m.gguf")
    found: list[Any] = []

    def other_process(what: str, fraction: float) -> None:
        if not found:
            found.append(None)
            found[0] = resolve(str(file))

    assert resolve(str(file), other_process) == found[0]
    assert [entry.name for entry in cache_root().iterdir()] == [found[0].path.name]


def test_what_a_dead_conversion_left_is_removed(tmp_path: Path) -> None:
    old, fresh = cache_root() / ".converting-old", cache_root() / ".converting-fresh"
    for left in (old, fresh):
        left.mkdir(parents=True)
    os.utime(old, (1e9, 1e9))
    resolve(str(_write(tmp_path / "m.gguf")))
    assert fresh.exists() and not old.exists()


def test_the_fingerprint_is_the_content(tmp_path: Path) -> None:
    one, same = _write(tmp_path / "a.gguf"), _write(tmp_path / "b.gguf")
    other = _write(tmp_path / "c.gguf", rope_freq_base=5001.0)
    assert resolve(str(one)).fingerprint == resolve(str(same)).fingerprint
    assert resolve(str(one)).revision != resolve(str(other)).revision


REFUSALS: dict[str, tuple[dict[str, Any], str]] = {
    "architecture": ({"architecture": "gemma"}, "architecture gemma"),
    "tokenizer model": ({"tokenizer_model": "llama"}, "tokenizer model llama"),
    "pre-tokenizer": ({"tokenizer_pre": "deepseek"}, "pre-tokenizer deepseek"),
    "rope scaling": ({"rope_scaling_type": gguf.RopeScalingType.YARN}, "rope scaling yarn"),
    "a field": ({"head_count": None}, "llama.attention.head_count is missing"),
    "a tensor": ({"tensors": {"blk.0.ffn_up.weight": (None, None)}}, "mlp.up_proj.weight is missing"),
    "a shape": (
        {"tensors": {"blk.0.ffn_up.weight": (np.zeros((8, HIDDEN), np.float32), Quantization.F32)}},
        r"mlp.up_proj.weight has shape \[8, 256\]",
    ),
    "a quantization": (
        {
            "tensors": {
                "blk.0.ffn_up.weight": (np.zeros((INNER, HIDDEN // 32 * 22), np.uint8), Quantization.Q5_0)
            }
        },
        "is Q5_0",
    ),
}


@pytest.mark.parametrize("what", REFUSALS)
def test_the_unsupported_is_refused_by_name(tmp_path: Path, what: str) -> None:
    changes, message = REFUSALS[what]
    file = _write(tmp_path / "m.gguf", **changes)
    with pytest.raises(ModelError, match=message) as caught:
        resolve(str(file))
    assert "m.gguf" in str(caught.value) and "\n" not in str(caught.value)
    assert not list(cache_root().iterdir()), "nothing half done stays in the cache"


@pytest.mark.parametrize("kept", [3, 100, 5000, -100])
def test_a_truncated_file_is_refused(tmp_path: Path, kept: int) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(_write(tmp_path / "whole.gguf").read_bytes()[:kept])
    with pytest.raises(ModelError, match=r"m\.gguf: (not a GGUF file|GGUF file is truncated or damaged)"):
        resolve(str(file))


def test_another_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"PK\x03\x04" + bytes(100))
    with pytest.raises(ModelError, match=r"m\.gguf: not a GGUF file"):
        resolve(str(tmp_path / "m.gguf"))


def test_a_cache_that_cannot_be_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "occupied").write_text("a file, where a folder should be")
    monkeypatch.setenv("BATON_CACHE", str(tmp_path / "occupied"))
    with pytest.raises(ModelError, match=r"occupied/models: the model cache cannot be written"):
        resolve(str(_write(tmp_path / "m.gguf")))
