"""Which small random models and steps the model tests share."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from core.sampling import SamplingParams
from engine.models.checkpoint import load_config
from engine.models.config import ModelConfig
from engine.models.tensors import expected_tensors
from engine.models.weights import load_weights
from engine.plan import Row, SampleSpec, StepPlan
from engine.torch_backend import TorchBackend

VOCABULARY = 160
EVERYTHING = SamplingParams(temperature=0.0, logprobs=VOCABULARY)
"""Greedy, and the log probability of every token of the vocabulary."""
GREEDY = SamplingParams(temperature=0.0)


def small_config(**changes: Any) -> ModelConfig:
    """A Llama of three layers, two query heads to a KV head."""
    fields: dict[str, Any] = {
        "architecture": "llama",
        "vocab_size": VOCABULARY,
        "hidden_size": 64,
        "intermediate_size": 96,
        "layers": 3,
        "heads": 4,
        "kv_heads": 2,
        "head_dim": 16,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "max_position_embeddings": 1024,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "qk_norm": False,
    }
    return ModelConfig(**{**fields, **changes})


def small_weights(config: ModelConfig) -> dict[str, torch.Tensor]:
    """Random float32 weights, the same every time."""
    generator = torch.Generator().manual_seed(11)
    return {
        name: torch.randn(shape, generator=generator) * (0.2 if len(shape) > 1 else 0.1) + (len(shape) == 1)
        for name, shape in expected_tensors(config).items()
    }


def small_backend(*, dtype: str = "float32", block_size: int = 16, threads: int = 1) -> TorchBackend:
    """The small Llama over 1,024 token slots."""
    config = small_config()
    return TorchBackend(
        config,
        small_weights(config),
        dtype=dtype,
        device="cpu",
        block_size=block_size,
        blocks=1024 // block_size,
        threads=threads,
    )


def folder_backend(
    folder: Path, *, dtype: str, block_size: int = 16, blocks: int, threads: int
) -> TorchBackend:
    """A backend over the model in a Hugging Face folder."""
    return TorchBackend(
        load_config(folder),
        load_weights(folder, dtype),
        dtype=dtype,
        device="cpu",
        block_size=block_size,
        blocks=blocks,
        threads=threads,
    )


def row(
    tokens: Sequence[int],
    start: int,
    block_table: Sequence[int],
    params: SamplingParams | None = None,
    sequence: int = 0,
) -> Row:
    """tokens at start…, with one draw after the last of them if params are given."""
    position = start + len(tokens)
    spec = None if params is None else SampleSpec(0, params, seed=0, position=position, output_count=0)
    return Row(sequence, tuple(tokens), start, tuple(block_table), () if spec is None else (spec,))


def step(*rows: Row, zero: Sequence[int] = (), copy: Sequence[tuple[int, int]] = ()) -> StepPlan:
    """A plan of these rows."""
    return StepPlan(0, tuple(zero), tuple(copy), rows)
