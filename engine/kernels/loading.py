"""How a checkpoint's shape and weights become the kernels'."""

import ctypes
from collections.abc import Mapping, Sequence

import torch

from engine.kernels.binding import Shape, Slot
from engine.models.config import ModelConfig
from engine.models.rotary import inverse_frequencies

SOURCE_DTYPES = {"float32": "float32", "bfloat16": "bfloat16", "int8": "bfloat16"}
"""What weights of each dtype are made of; int8 is made as they are packed."""
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def shape_of(config: ModelConfig, block_size: int, blocks: int, tokens_max: int, samples_max: int) -> Shape:
    """What baton_create takes; tokens_max and samples_max are those of one pass."""
    return Shape(
        vocab=config.vocab_size,
        hidden=config.hidden_size,
        intermediate=config.intermediate_size,
        layers=config.layers,
        heads=config.heads,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        block_size=block_size,
        blocks=blocks,
        tokens_max=tokens_max,
        samples_max=samples_max,
        tied=config.tie_word_embeddings,
        qkv_bias=config.attention_bias,
        qk_norm=config.qk_norm,
        epsilon=config.rms_norm_eps,
    )


def load_model(
    library: ctypes.CDLL, model: int, config: ModelConfig, weights: Mapping[str, torch.Tensor], dtype: str
) -> None:
    """Packs weights (Hugging Face names, any dtype) into a model of baton_create, a layer at a time."""
    kind = DTYPES[SOURCE_DTYPES[dtype]]

    def put(slot: Slot, tensors: Sequence[torch.Tensor], kept: torch.dtype, layer: int = 0) -> None:
        joined = (tensors[0] if len(tensors) == 1 else torch.cat(list(tensors))).to(kept).contiguous()
        library.baton_load(model, slot, layer, joined.data_ptr())

    for layer in range(config.layers):
        name = f"model.layers.{layer}"
        qkv = [f"{name}.self_attn.{kind}_proj" for kind in ("q", "k", "v")]
        put(Slot.QKV, [weights[f"{part}.weight"] for part in qkv], kind, layer)
        put(Slot.OUTPUT, [weights[f"{name}.self_attn.o_proj.weight"]], kind, layer)
        gate_up = [weights[f"{name}.mlp.{part}_proj.weight"] for part in ("gate", "up")]
        put(Slot.GATE_UP, gate_up, kind, layer)
        put(Slot.DOWN, [weights[f"{name}.mlp.down_proj.weight"]], kind, layer)
        put(Slot.INPUT_NORM, [weights[f"{name}.input_layernorm.weight"]], torch.float32, layer)
        put(Slot.POST_NORM, [weights[f"{name}.post_attention_layernorm.weight"]], torch.float32, layer)
        if config.attention_bias:
            put(Slot.QKV_BIAS, [weights[f"{part}.bias"] for part in qkv], torch.float32, layer)
        if config.qk_norm:
            put(Slot.QUERY_NORM, [weights[f"{name}.self_attn.q_norm.weight"]], torch.float32, layer)
            put(Slot.KEY_NORM, [weights[f"{name}.self_attn.k_norm.weight"]], torch.float32, layer)
    embedding = weights["model.embed_tokens.weight"]
    put(Slot.HEAD, [embedding if config.tie_word_embeddings else weights["lm_head.weight"]], kind)
    if not config.tie_word_embeddings:
        put(Slot.EMBEDDING, [embedding], kind)
    put(Slot.FINAL_NORM, [weights["model.norm.weight"]], torch.float32)
    put(Slot.INVERSE_FREQUENCY, [inverse_frequencies(config)], torch.float32)
