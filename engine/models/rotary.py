"""How position turns queries and keys: rotary embedding, with Llama 3 scaling."""

import math

import torch

from engine.models.config import Llama3RopeScaling, ModelConfig

TABLE_ROWS = 64
"""Tables are computed in whole groups of rows: no entry may depend on the table's length."""


def rotary_table(config: ModelConfig, positions: int) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin, each [positions rounded up, head_dim / 2] float32 (RoFormer, arXiv:2104.09864, eq. 34)."""
    frequencies = inverse_frequencies(config)
    rows = -(-positions // TABLE_ROWS) * TABLE_ROWS
    angles = torch.arange(rows, dtype=torch.float32)[:, None] * frequencies[None, :]
    groups = torch.split(angles, TABLE_ROWS)
    return torch.cat([group.cos() for group in groups]), torch.cat([group.sin() for group in groups])


def inverse_frequencies(config: ModelConfig) -> torch.Tensor:
    """[head_dim / 2] float32, radians per position."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    frequencies = 1.0 / (config.rope_theta**exponents)
    return frequencies if config.rope_scaling is None else _scaled(frequencies, config.rope_scaling)


def _scaled(frequencies: torch.Tensor, scaling: Llama3RopeScaling) -> torch.Tensor:
    """Long wavelengths are slowed by factor, short ones kept, those between interpolated.

    Source: rope_type "llama3" of Llama 3.1 (github.com/meta-llama/llama-models, apply_scaling).
    """
    original = scaling.original_max_position_embeddings
    wavelengths = 2 * math.pi / frequencies
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    smooth = (original / wavelengths - low) / (high - low)
    between = (1 - smooth) * frequencies / scaling.factor + smooth * frequencies
    slowed = torch.where(wavelengths > original / low, frequencies / scaling.factor, frequencies)
    is_between = (wavelengths <= original / low) & (wavelengths >= original / high)
    return torch.where(is_between, between, slowed)


def rotate(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """heads [tokens, heads, head_dim] turned by cos, sin [tokens, head_dim / 2], in float32."""
    first, second = heads.float().chunk(2, dim=-1)
    cos, sin = cos[:, None, :], sin[:, None, :]
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
