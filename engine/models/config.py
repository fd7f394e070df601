"""The shape of a supported model, whatever file it came from."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Llama3RopeScaling:
    """Llama 3.1 rope scaling (rope_type "llama3" in config.json)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A decoder of the Llama family: RMSNorm, rotary embedding, grouped-query attention, SwiGLU."""

    architecture: str
    """"llama", "mistral", "qwen2" or "qwen3"."""
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: Llama3RopeScaling | None
    max_position_embeddings: int
    """Tokens of prompt and output together."""
    tie_word_embeddings: bool
    attention_bias: bool
    """Biases on q, k and v (Qwen2; Llama where its config says so)."""
    qk_norm: bool
    """RMSNorm on each head of q and k before the rotary embedding (Qwen3)."""
