"""Whether the native kernels agree with the oracle, and to the bit with themselves, on random models."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

from core.sampling import SamplingParams
from engine.kernels import build
from engine.models.config import Llama3RopeScaling, ModelConfig
from engine.models.tensors import expected_tensors
from engine.native_backend import NativeBackend
from engine.plan import Backend, Row, SampleSpec, StepPlan, StepResult
from engine.torch_backend import TorchBackend

DTYPES = [
    pytest.param(dtype, marks=pytest.mark.skipif(bool(reason), reason=f"no native kernels: {reason}"))
    for dtype in ("float32", "bfloat16", "int8")
    for reason in [build.unavailable(dtype)]
]
SCALING = Llama3RopeScaling(8.0, 1.0, 4.0, 64)
VOCABULARY = 90


def _config(architecture: str = "llama", **changes: Any) -> ModelConfig:
    shape: dict[str, Any] = {
        "architecture": architecture,
        "vocab_size": VOCABULARY,
        "hidden_size": 80,
        "intermediate_size": 112,
        "layers": 2,
        "heads": 6,
        "kv_heads": 2,
        "head_dim": 32,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10_000.0,
        "rope_scaling": None,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "qk_norm": False,
    }
    return ModelConfig(**{**shape, **changes})


CONFIGS = {
    "llama": _config(),
    "llama3_scaled_untied": _config(rope_scaling=SCALING, tie_word_embeddings=False),
    "mistral_head_96": _config("mistral", heads=4, kv_heads=4, head_dim=96),
    "qwen2_head_64": _config("qwen2", heads=14, kv_heads=2, head_dim=64, attention_bias=True),
    "qwen3_head_128": _config("qwen3", heads=2, kv_heads=1, head_dim=128, qk_norm=True),
    "llama_head_16": _config(heads=9, kv_heads=3, head_dim=16),
}


@cache
def _weights(name: str) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    weights = {}
    for tensor, shape in expected_tensors(CONFIGS[name]).items():
        noise = torch.randn(shape, generator=generator)
        is_norm = tensor.endswith("norm.weight")
        weights[tensor] = (
            1.0 + 0.1 * noise if is_norm else noise * (1.5 if "embed" in tensor else shape[-1] ** -0.5)
        )
    return weights


@contextmanager
def _native(
    name: str, dtype: str, *, block_size: int = 16, blocks: int = 64, threads: int = 1
) -> Iterator[NativeBackend]:
    backend = NativeBackend(
        CONFIGS[name], _weights(name), dtype=dtype, block_size=block_size, blocks=blocks, threads=threads
    )
    try:
        yield backend
    finally:
        backend.close()


@contextmanager
def _oracle(name: str, dtype: str) -> Iterator[TorchBackend]:
    backend = TorchBackend(
        CONFIGS[name], _weights(name), dtype=dtype, device="cpu", block_size=16, blocks=64, threads=1
    )
    try:
        yield backend
    finally:
        backend.close()


def _tokens(count: int, seed: int = 3) -> tuple[int, ...]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(0, VOCABULARY, (count,), generator=generator).tolist())


def _row(tokens: Sequence[int], start: int, table: Sequence[int], sequence: int = 0) -> Row:
    """A row that asks for every log probability: floats, so that equality is equality of bits."""
    params = SamplingParams(temperature=0.0, logprobs=VOCABULARY)
    spec = SampleSpec(0, params, 1, start + len(tokens), 0)
    return Row(sequence, tuple(tokens), start, tuple(table), (spec,))


def _step(backend: Backend, *rows: Row) -> StepResult:
    return backend.execute(StepPlan(0, (), (), rows))


def _whole(backend: Backend, tokens: Sequence[int], table: Sequence[int]) -> tuple[object, bytes]:
    """The last token's distribution, and the KV of all tokens of all layers."""
    sampled = _step(backend, _row(tokens, 0, table)).sampled[0]
    return sampled, backend.read_kv(tuple(table), 0, len(tokens))


def _blocks(tokens: int, size: int = 16, first: int = 0) -> tuple[int, ...]:
    return tuple(range(first, first + -(-tokens // size)))


def _assert_close(found: torch.Tensor, expected: torch.Tensor, dtype: str) -> None:
    tolerance = {"float32": 1e-4, "bfloat16": 0.15, "int8": 0.15}[dtype]
    torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)


def _distribution(result: StepResult) -> torch.Tensor:
    by_token = sorted(result.sampled[0][0].top)
    return torch.tensor([logprob for _, logprob in by_token])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CONFIGS)
def test_agrees_with_the_oracle_at_every_position(name: str, dtype: str) -> None:
    """float32 to 1e-4; the others in their likeliest token wherever float32 is sure of it."""
    tokens, table = _tokens(75), (4, 0, 2, 9, 7)
    with _native(name, dtype) as native, _oracle(name, "float32") as oracle:
        sure = 0
        scores = native.score(Row(0, tokens, 0, table)).log_softmax(-1)
        for position in range(0, len(tokens), 5):
            expected = _distribution(_step(oracle, _row(tokens[: position + 1], 0, table)))
            _assert_close(scores[position], expected, dtype)
            best, second = expected.topk(2).values.tolist()
            if best - second > 0.15:
                sure += 1
                assert scores[position].argmax() == expected.argmax()
        assert sure >= 4


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["llama", "qwen2_head_64"])
@pytest.mark.parametrize("cut", [1, 13, 16, 64, 100])
def test_a_chunk_split_changes_no_bit(name: str, dtype: str, cut: int) -> None:
    tokens, table = _tokens(150), _blocks(150)
    with _native(name, dtype) as backend:
        expected = _whole(backend, tokens, table)
        fresh = tuple(block + 20 for block in table)
        for start in range(0, len(tokens), cut):
            result = _step(backend, _row(tokens[start : start + cut], start, fresh))
        assert (result.sampled[0], backend.read_kv(fresh, 0, len(tokens))) == expected


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_batch_changes_no_bit(dtype: str) -> None:
    """Prefills and decodes beside a row, before and behind it, more than one pass holds."""
    tokens, table = _tokens(70), _blocks(70)
    with _native("llama", dtype, blocks=128) as backend:
        expected = _whole(backend, tokens, table)
        for before, behind in ((1, 0), (2, 3), (7, 30), (70, 1)):
            mine = tuple(block + 5 for block in table)
            others = [
                _row(_tokens(1 + n % 20, n), n % 7, (100 + n % 20, 120), 1 + n)
                for n in range(before + behind)
            ]
            result = _step(backend, *others[:before], _row(tokens, 0, mine), *others[before:])
            assert (result.sampled[before], backend.read_kv(mine, 0, len(tokens))) == expected


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["llama", "mistral_head_96"])
def test_threads_paging_and_page_order_change_no_bit(name: str, dtype: str) -> None:
    tokens = _tokens(140)
    with _native(name, dtype) as backend:
        expected = _whole(backend, tokens, _blocks(140))
        assert _whole(backend, tokens, tuple(reversed(_blocks(140, first=30)))) == expected
        for threads in (2, 3, 5, 17):
            backend.set_threads(threads)
            assert _whole(backend, tokens, _blocks(140)) == expected
    for block_size in (32, 48, 256):
        with _native(name, dtype, block_size=block_size, blocks=16, threads=2) as backend:
            assert _whole(backend, tokens, tuple(reversed(_blocks(140, block_size, 3)))) == expected


@pytest.mark.parametrize("dtype", DTYPES)
def test_long_contexts_split_by_length_only(dtype: str) -> None:
    """2,300 tokens: decode splits its keys over threads; prefill and one thread do not."""
    tokens, table = _tokens(2300), _blocks(2300)
    with _native("llama_head_16", dtype, blocks=300) as backend:
        expected = _whole(backend, tokens, table)
        for threads in (1, 2, 4):
            backend.set_threads(threads)
            fresh = tuple(block + 150 for block in table)
            for start, stop in ((0, 700), (700, 2047), (2047, 2299)):
                _step(backend, _row(tokens[start:stop], start, fresh))
            last = _step(backend, _row(tokens[2299:], 2299, fresh))
            assert (last.sampled[0], backend.read_kv(fresh, 0, len(tokens))) == expected


@pytest.mark.parametrize("dtype", DTYPES)
def test_long_contexts_agree_with_the_oracle(dtype: str) -> None:
    tokens = _tokens(1000)
    with _native("llama", dtype) as native, _oracle("llama", "float32") as oracle:
        found = _distribution(_step(native, _row(tokens, 0, _blocks(1000))))
        expected = _distribution(_step(oracle, _row(tokens, 0, _blocks(1000))))
    _assert_close(found, expected, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_hand_off_into_another_paging_changes_no_bit(dtype: str) -> None:
    tokens, table = _tokens(90), _blocks(90)
    with _native("llama", dtype) as prefill, _native("llama", dtype, block_size=48, blocks=8) as decode:
        _step(prefill, _row(tokens[:-1], 0, table))
        other = (5, 1)
        decode.write_kv(other, 0, 31, prefill.read_kv(table, 0, 31))
        decode.write_kv(other, 31, 89, memoryview(prefill.read_kv(table, 31, 89)))
        expected = _step(prefill, _row(tokens[-1:], 89, table))
        assert _step(decode, _row(tokens[-1:], 89, other)).sampled == expected.sampled
        assert decode.read_kv(other, 0, 90) == prefill.read_kv(table, 0, 90)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_wire_layout_is_the_oracles(dtype: str) -> None:
    tokens, table = _tokens(40), (3, 1, 2)
    kv_dtype = "float32" if dtype == "float32" else "bfloat16"
    with _native("llama", dtype) as native, _oracle("llama", kv_dtype) as oracle:
        _step(native, _row(tokens, 0, table))
        _step(oracle, _row(tokens, 0, table))
        kind = torch.float32 if kv_dtype == "float32" else torch.bfloat16
        found, expected = (
            torch.frombuffer(bytearray(backend.read_kv(table, 5, 40)), dtype=kind).float()
            for backend in (native, oracle)
        )
    _assert_close(found, expected, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_copied_blocks_serve_and_stale_contents_do_not_show(dtype: str) -> None:
    tokens, table = _tokens(40), (0, 1, 2)
    with _native("llama", dtype) as backend:
        expected = _whole(backend, tokens, table)
        copied = StepPlan(1, (9,), ((0, 7), (1, 8)), (_row(tokens[32:], 32, (7, 8, 9)),))
        assert backend.execute(copied).sampled[0] == expected[0]
        backend.write_kv((7, 8, 9), 0, 48, b"\xff" * (48 * backend.layout.bytes_per_token))
        assert _whole(backend, tokens, (7, 8, 9)) == expected
        backend.execute(StepPlan(2, (7,), (), (_row(tokens, 0, table),)))
        assert not any(backend.read_kv((7,), 0, 16))


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_greedy_token_is_the_lowest_of_the_likeliest(dtype: str) -> None:
    """Two equal rows of the embedding give two equal logits."""
    config = CONFIGS["llama"]
    weights = dict(_weights("llama"))
    embedding = weights["model.embed_tokens.weight"].clone()
    params = SamplingParams(temperature=0.0)
    for low, high in ((3, 70), (40, 41), (0, 89)):
        embedding[high] = embedding[low]
        weights["model.embed_tokens.weight"] = embedding
        backend = NativeBackend(config, weights, dtype=dtype, block_size=16, blocks=4, threads=2)
        hits = 0
        for token in range(VOCABULARY):
            row = Row(0, (token,), 0, (0,), (SampleSpec(0, params, 1, 1, 0),))
            drawn = _step(backend, row).sampled[0][0].token
            logits = backend.score(row)[0]
            assert drawn == int(logits.argmax()) and drawn != high
            hits += drawn == low
        backend.close()
        assert hits >= 1


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("threads", [2, 3, 5])
def test_the_greedy_token_is_the_lowest_whoever_met_it_first(dtype: str, threads: int) -> None:
    """Equal logits in many panels, all in one lane, which threads take from each other in any order."""
    panels, panel, column = 256, 32, 5
    config = replace(CONFIGS["llama"], vocab_size=panels * panel)
    weights = dict(_weights("llama"))
    generator = torch.Generator().manual_seed(7)
    embedding = torch.randn((panels * panel, config.hidden_size), generator=generator) * 0.1
    lowest = panel * (panels // threads - 1) + column
    embedding[lowest::panel] = embedding[lowest] * 30
    weights["model.embed_tokens.weight"] = embedding
    backend = NativeBackend(config, weights, dtype=dtype, block_size=16, blocks=4, threads=threads)
    row = Row(0, (lowest,), 0, (0,), (SampleSpec(0, SamplingParams(temperature=0.0), 1, 1, 0),))
    assert int(backend.score(row)[0].argmax()) == lowest
    for _ in range(60):
        assert _step(backend, row).sampled[0][0].token == lowest
    backend.close()


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (Row(4, (), 0, (0,)), "rows: sequence 4"),
        (Row(4, (1, VOCABULARY), 0, (0,)), "tokens: sequence 4"),
        (Row(4, (1, -1), 0, (0,)), "tokens: sequence 4"),
        (Row(4, (1, 2), 15, (0,)), "block_table: sequence 4 has too few"),
        (Row(4, (1, 2), 15, (0, 64)), "block_table: sequence 4 names"),
    ],
)
def test_refuses_what_would_be_a_wrong_address(row: Row, message: str) -> None:
    if reason := build.unavailable("float32"):
        pytest.skip(reason)
    with _native("llama", "float32") as backend, pytest.raises(ValueError, match=message):
        _step(backend, row)


@pytest.mark.parametrize(
    ("changes", "arguments", "field"),
    [
        ({"hidden_size": 72}, {}, "hidden_size"),
        ({"head_dim": 24}, {}, "head_dim"),
        ({"head_dim": 512}, {}, "head_dim"),
        ({}, {"block_size": 24}, "block_size"),
        ({}, {"threads": 0}, "threads"),
    ],
)
def test_refuses_shapes_it_cannot_run(changes: dict[str, Any], arguments: dict[str, int], field: str) -> None:
    if reason := build.unavailable("float32"):
        pytest.skip(reason)
    given: dict[str, Any] = {"block_size": 16, "blocks": 4, "threads": 1, **arguments}
    with pytest.raises(ValueError, match=f"{field}"):
        NativeBackend(_config(**changes), {}, dtype="float32", **given)
