"""Which Hugging Face checkpoints are served: config.json to ModelConfig, or a refusal by name."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.models.config import Llama3RopeScaling, ModelConfig
from engine.models.errors import ModelError

ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}


def load_config(folder: Path) -> ModelConfig:
    """Read and check folder/config.json.

    Raises ModelError if it is missing, is not JSON, lacks a field, or asks for anything but a dense
    Llama, Mistral, Qwen2 or Qwen3 decoder with default or Llama 3 rotary embedding.
    """
    file = folder / "config.json"
    return parse_config(read_json(file), str(file))


def read_json(file: Path) -> dict[str, Any]:
    """A JSON object from a file; ModelError if there is none."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelError(f"{file}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise ModelError(f"{file}: not JSON ({error})") from error
    if not isinstance(content, dict):
        raise ModelError(f"{file}: not a JSON object")
    return content


def parse_config(content: Mapping[str, Any], source: str) -> ModelConfig:
    """The ModelConfig of a parsed config.json; source names it in a ModelError."""
    names = content.get("architectures") or ["(none)"]
    architecture = ARCHITECTURES.get(names[0])
    if architecture is None:
        known = ", ".join(ARCHITECTURES)
        raise ModelError(f"{source}: architecture {names[0]} is not supported ({known} are)")
    _refuse_unsupported(content, architecture, source)
    try:
        config = _build(content, architecture, source)
    except KeyError as error:
        raise ModelError(f"{source}: field {error.args[0]} is missing") from error
    except (TypeError, ValueError) as error:
        raise ModelError(f"{source}: a field has the wrong type ({error})") from error
    _check_shape(config, source)
    return config


def _build(content: Mapping[str, Any], architecture: str, source: str) -> ModelConfig:
    hidden_size, heads = int(content["hidden_size"]), int(content["num_attention_heads"])
    rope = _rope_parameters(content)
    return ModelConfig(
        architecture=architecture,
        vocab_size=int(content["vocab_size"]),
        hidden_size=hidden_size,
        intermediate_size=int(content["intermediate_size"]),
        layers=int(content["num_hidden_layers"]),
        heads=heads,
        kv_heads=int(content.get("num_key_value_heads") or heads),
        head_dim=int(content.get("head_dim") or hidden_size // heads),
        rms_norm_eps=float(content["rms_norm_eps"]),
        rope_theta=float(rope.get("rope_theta", 10000.0)),
        rope_scaling=_rope_scaling(rope, source),
        max_position_embeddings=int(content["max_position_embeddings"]),
        tie_word_embeddings=bool(content.get("tie_word_embeddings", False)),
        attention_bias=architecture == "qwen2",
        qk_norm=architecture == "qwen3",
    )


def _rope_parameters(content: Mapping[str, Any]) -> dict[str, Any]:
    """transformers 5 writes rope_parameters; before, rope_theta stood alone beside rope_scaling."""
    rope = dict(content.get("rope_scaling") or {})
    if content.get("rope_theta") is not None:
        rope["rope_theta"] = content["rope_theta"]
    rope.update(content.get("rope_parameters") or {})
    return rope


def _rope_scaling(rope: Mapping[str, Any], source: str) -> Llama3RopeScaling | None:
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind == "default":
        return None
    if kind != "llama3":
        raise ModelError(f"{source}: rope type {kind} is not supported (default and llama3 are)")
    return Llama3RopeScaling(
        factor=float(rope["factor"]),
        low_freq_factor=float(rope["low_freq_factor"]),
        high_freq_factor=float(rope["high_freq_factor"]),
        original_max_position_embeddings=int(rope["original_max_position_embeddings"]),
    )


def _refuse_unsupported(content: Mapping[str, Any], architecture: str, source: str) -> None:
    if (activation := content.get("hidden_act", "silu")) != "silu":
        raise ModelError(f"{source}: hidden_act {activation} is not supported (silu is)")
    if content.get("quantization_config"):
        method = content["quantization_config"].get("quant_method", "unknown")
        raise ModelError(f"{source}: quantization_config ({method}) is not supported")
    if content.get("mlp_bias"):
        raise ModelError(f"{source}: mlp_bias is not supported")
    if content.get("attention_bias") and architecture != "qwen2":
        raise ModelError(f"{source}: attention_bias is not supported for {architecture}")
    if float(content.get("partial_rotary_factor") or 1.0) != 1.0:
        raise ModelError(f"{source}: partial_rotary_factor is not supported")
    if _window_is_active(content, architecture):
        raise ModelError(f"{source}: sliding_window attention is not supported")


def _window_is_active(content: Mapping[str, Any], architecture: str) -> bool:
    """A window as long as the context hides nothing, and Qwen names one it does not use."""
    if "sliding_attention" in (content.get("layer_types") or []):
        return True
    window = content.get("sliding_window")
    if window is None or int(window) >= int(content.get("max_position_embeddings", 0)):
        return False
    return bool(content.get("use_sliding_window", architecture == "mistral"))


def _check_shape(config: ModelConfig, source: str) -> None:
    for name in ("vocab_size", "hidden_size", "intermediate_size", "layers", "heads", "kv_heads", "head_dim"):
        if getattr(config, name) < 1:
            raise ModelError(f"{source}: {name} is {getattr(config, name)}, must be at least 1")
    if config.heads % config.kv_heads:
        raise ModelError(f"{source}: {config.heads} heads cannot share {config.kv_heads} kv_heads evenly")
    if config.head_dim % 2:
        raise ModelError(f"{source}: head_dim {config.head_dim} is odd")
