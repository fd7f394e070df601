"""What a GGUF file holds: its config.json fields, its tokenizer, and its tensors under Hugging Face names."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType as Quantization
from gguf import GGUFReader, ReaderTensor
from gguf.quants import dequantize
from numpy.typing import NDArray

from engine.models.errors import ModelError

QUANTIZATIONS = (
    Quantization.F32,
    Quantization.F16,
    Quantization.BF16,
    Quantization.Q8_0,
    Quantization.Q4_0,
    Quantization.Q4_1,
    Quantization.Q4_K,
    Quantization.Q6_K,
)
LAYER_TENSORS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
MODEL_TENSORS = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}


class GgufFile:
    """An open GGUF file of the llama architecture.

    Raises ModelError when it is not GGUF, is truncated, or holds another architecture or a
    quantization that is not in QUANTIZATIONS. Opening parses all metadata, seconds for a large
    vocabulary, so this happens at conversion only.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._reader = _open(path)
        architecture = self.field("general.architecture")
        if architecture != "llama":
            raise ModelError(f"{path}: GGUF architecture {architecture} is not supported (llama is)")
        self._names = {tensor.name: _hugging_face_name(tensor.name) for tensor in self._reader.tensors}
        self._refuse_unsupported()

    def field(self, name: str, default: Any = None) -> Any:
        """A metadata field as a plain Python value; ModelError if absent and without a default."""
        field = self._reader.get_field(name)
        if field is None:
            if default is None:
                raise ModelError(f"{self._path}: metadata field {name} is missing")
            return default
        return field.contents()

    def optional_field(self, name: str) -> Any:
        """A metadata field, or None."""
        field = self._reader.get_field(name)
        return None if field is None else field.contents()

    def config(self) -> dict[str, Any]:
        """The config.json of the same model."""
        hidden = int(self.field("llama.embedding_length"))
        heads = int(self.field("llama.attention.head_count"))
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": int(self._tensor("token_embd.weight").shape[1]),
            "hidden_size": hidden,
            "intermediate_size": int(self.field("llama.feed_forward_length")),
            "num_hidden_layers": int(self.field("llama.block_count")),
            "num_attention_heads": heads,
            "num_key_value_heads": int(self.field("llama.attention.head_count_kv", heads)),
            "head_dim": int(self.field("llama.attention.key_length", hidden // heads)),
            "hidden_act": "silu",
            "rms_norm_eps": float(np.float32(self.field("llama.attention.layer_norm_rms_epsilon"))),
            "rope_theta": float(self.field("llama.rope.freq_base", 10000.0)),
            "rope_scaling": None,
            "max_position_embeddings": int(self.field("llama.context_length")),
            "tie_word_embeddings": "output.weight" not in self._names,
            "attention_bias": False,
            "mlp_bias": False,
            "bos_token_id": self.optional_field("tokenizer.ggml.bos_token_id"),
            "eos_token_id": self.optional_field("tokenizer.ggml.eos_token_id"),
            "pad_token_id": self.optional_field("tokenizer.ggml.padding_token_id"),
        }

    def tensors(self) -> Iterator[tuple[str, NDArray[np.float32]]]:
        """(Hugging Face name, float32 values in Hugging Face row order), one at a time."""
        heads = int(self.field("llama.attention.head_count"))
        kv_heads = int(self.field("llama.attention.head_count_kv", heads))
        for tensor in self._reader.tensors:
            shape = tuple(int(size) for size in reversed(tensor.shape))
            values = _dequantized(tensor).reshape(shape)
            if tensor.name.endswith("attn_q.weight"):
                values = _restore_rotary_rows(values, heads)
            elif tensor.name.endswith("attn_k.weight"):
                values = _restore_rotary_rows(values, kv_heads)
            yield self._names[tensor.name], np.ascontiguousarray(values)

    def names(self) -> list[str]:
        """Hugging Face names, in the order of tensors()."""
        return list(self._names.values())

    def _tensor(self, name: str) -> ReaderTensor:
        for tensor in self._reader.tensors:
            if tensor.name == name:
                return tensor
        raise ModelError(f"{self._path}: tensor {name} is missing")

    def _refuse_unsupported(self) -> None:
        for tensor in self._reader.tensors:
            if tensor.tensor_type not in QUANTIZATIONS:
                kind = tensor.tensor_type.name
                raise ModelError(f"{self._path}: tensor {tensor.name} is {kind}, which is not supported")
            if not self._names[tensor.name]:
                raise ModelError(f"{self._path}: tensor {tensor.name} is not part of a plain llama model")
        if (scaling := self.field("llama.rope.scaling.type", "none")) != "none":
            raise ModelError(f"{self._path}: rope scaling {scaling} is not supported in GGUF")


def _open(path: Path) -> GGUFReader:
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror})") from error
    if magic != b"GGUF":
        raise ModelError(f"{path}: not a GGUF file")
    try:
        return GGUFReader(path)
    except Exception as error:  # the reader meets damage as whatever numpy then raises
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise ModelError(f"{path}: GGUF file is truncated or damaged ({reason})") from error


def _hugging_face_name(name: str) -> str:
    """Empty for a tensor that a plain llama model does not have."""
    if name in MODEL_TENSORS:
        return MODEL_TENSORS[name]
    prefix, _, rest = name.partition(".")
    layer, _, tensor = rest.partition(".")
    base = tensor.removesuffix(".weight")
    if prefix != "blk" or not layer.isdigit() or base == tensor or base not in LAYER_TENSORS:
        return ""
    return f"model.layers.{layer}.{LAYER_TENSORS[base]}.weight"


def _dequantized(tensor: ReaderTensor) -> NDArray[np.float32]:
    values = dequantize(np.asarray(tensor.data), tensor.tensor_type)
    return np.asarray(values, dtype=np.float32)


def _restore_rotary_rows(values: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """GGUF pairs rotary rows (0, 1), (2, 3)…; Hugging Face pairs row i with row i + head_dim / 2.

    values is [heads * head_dim, hidden].
    """
    rows, hidden = values.shape
    pairs = values.reshape(heads, rows // heads // 2, 2, hidden)
    return pairs.swapaxes(1, 2).reshape(rows, hidden)
