"""Whether a Hugging Face folder is found, fingerprinted, read or refused by name."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from engine.models.checkpoint import load_config, parse_config
from engine.models.config import Llama3RopeScaling
from engine.models.errors import ModelError
from engine.models.store import resolve
from engine.models.weights import ALIGNMENT_BYTES, WeightFiles, load_weights
from tests.reference.small_models import small_config, small_weights

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 160,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": True,
}


def _folder(path: Path, tensors: dict[str, torch.Tensor] | None = None, **changes: Any) -> Path:
    path.mkdir()
    (path / "config.json").write_text(json.dumps({**LLAMA, **changes}))
    (path / "tokenizer.json").write_text("{}")
    save_file(tensors or small_weights(small_config()), path / "model.safetensors")
    return path


def test_the_config_is_read(tmp_path: Path) -> None:
    assert load_config(_folder(tmp_path / "m")) == small_config()


def test_old_and_new_rope_fields_mean_the_same() -> None:
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    old = parse_config({**LLAMA, "rope_theta": 5e5, "rope_scaling": scaling}, "old")
    new = parse_config({**LLAMA, "rope_parameters": {**scaling, "rope_theta": 5e5}}, "new")
    assert old == new
    assert old.rope_theta == 5e5 and old.rope_scaling == Llama3RopeScaling(8.0, 1.0, 4.0, 8192)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["GemmaForCausalLM"]}, "architecture GemmaForCausalLM"),
        ({"architectures": ["Qwen3MoeForCausalLM"]}, "architecture Qwen3MoeForCausalLM"),
        ({"architectures": []}, r"architecture \(none\)"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope type yarn"),
        ({"rope_scaling": {"type": "linear", "factor": 4.0}}, "rope type linear"),
        ({"rope_parameters": {"rope_type": "llama3"}}, "field factor is missing"),
        ({"hidden_act": "gelu"}, "hidden_act gelu"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"attention_bias": True}, "attention_bias"),
        ({"quantization_config": {"quant_method": "gptq"}}, r"quantization_config \(gptq\)"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"architectures": ["MistralForCausalLM"], "sliding_window": 512}, "sliding_window"),
        ({"sliding_window": 512, "use_sliding_window": True}, "sliding_window"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding_window"),
        ({"hidden_size": None}, "a field has the wrong type"),
        ({"vocab_size": "many"}, "a field has the wrong type"),
        ({"num_key_value_heads": 3}, "4 heads cannot share 3 kv_heads"),
        ({"num_hidden_layers": 0}, "layers is 0"),
        ({"head_dim": 15}, "head_dim 15 is odd"),
    ],
)
def test_the_unsupported_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=f"^here: .*{message}"):
        parse_config({**LLAMA, **changes}, "here")


@pytest.mark.parametrize(
    "changes",
    [
        {"architectures": ["MistralForCausalLM"], "sliding_window": 4096},
        {"architectures": ["Qwen2ForCausalLM"], "sliding_window": 512, "use_sliding_window": False},
        {"rope_scaling": None, "quantization_config": None},
    ],
)
def test_what_is_said_but_idle_is_accepted(changes: dict[str, Any]) -> None:
    parse_config({**LLAMA, **changes}, "here")


@pytest.mark.parametrize("missing", ["vocab_size", "hidden_size", "num_attention_heads", "rms_norm_eps"])
def test_a_missing_field_is_named(missing: str) -> None:
    with pytest.raises(ModelError, match=f"field {missing} is missing"):
        parse_config({name: value for name, value in LLAMA.items() if name != missing}, "here")


@pytest.mark.parametrize("text", ["", "[1]", "{", '"x"'])
def test_a_config_that_is_not_an_object(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ModelError, match=r"config\.json: not (JSON|a JSON object)"):
        load_config(tmp_path)


def test_shards_are_read_through_their_index(tmp_path: Path) -> None:
    weights = small_weights(small_config())
    folder = _folder(tmp_path / "m")
    (folder / "model.safetensors").unlink()
    names = list(weights)
    shards = {"model-1-of-2.safetensors": names[::2], "model-2-of-2.safetensors": names[1::2]}
    for shard, held in shards.items():
        save_file({name: weights[name] for name in held}, folder / shard)
    index = {"weight_map": {name: shard for shard, held in shards.items() for name in held}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    loaded = load_weights(folder, "float32")
    assert sorted(loaded) == sorted(weights)
    assert all(loaded[name].equal(weights[name]) for name in names)
    (folder / "model-2-of-2.safetensors").unlink()
    with pytest.raises(ModelError, match=r"model-2-of-2\.safetensors: cannot be read"):
        load_weights(folder, "float32")


def test_weights_can_be_read_one_by_one(tmp_path: Path) -> None:
    """And nobody holds those that were let go of."""
    weights = small_weights(small_config())
    files = WeightFiles(_folder(tmp_path / "m"), "float32")
    assert sorted(files) == sorted(weights) and len(files) == len(weights)
    assert all(files[name].equal(weights[name]) for name in files)
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()
    kept = files.all()
    assert all(kept[name].equal(weights[name]) for name in files)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_arrive_aligned_and_in_the_asked_dtype(tmp_path: Path, dtype: str) -> None:
    weights = {name: tensor.half() for name, tensor in small_weights(small_config()).items()}
    weights["unused.odd"] = torch.zeros(3, dtype=torch.float16)
    loaded = load_weights(_folder(tmp_path / "m", weights), dtype)
    assert "unused.odd" not in loaded
    assert all(str(tensor.dtype) == f"torch.{dtype}" for tensor in loaded.values())
    assert all(tensor.data_ptr() % ALIGNMENT_BYTES == 0 for tensor in loaded.values())


def test_missing_and_misshapen_tensors_are_named(tmp_path: Path) -> None:
    weights = small_weights(small_config())
    name = "model.layers.1.mlp.up_proj.weight"
    without = _folder(tmp_path / "without", {key: value for key, value in weights.items() if key != name})
    with pytest.raises(ModelError, match=rf"tensor {name} is missing \(1 of "):
        load_weights(without, "float32")
    misshapen = _folder(tmp_path / "misshapen", {**weights, name: torch.zeros(96, 63)})
    with pytest.raises(ModelError, match=rf"tensor {name} has shape \[96, 63\], config.json says \[96, 64\]"):
        load_weights(misshapen, "float32")
    whole_numbers = _folder(tmp_path / "int", {**weights, name: torch.zeros(96, 64, dtype=torch.int8)})
    with pytest.raises(ModelError, match=rf"tensor {name} has dtype torch\.int8"):
        load_weights(whole_numbers, "float32")


@pytest.mark.parametrize("kept", [0, 4, 1000, -1000])
def test_a_truncated_file_is_refused(tmp_path: Path, kept: int) -> None:
    folder = _folder(tmp_path / "m")
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:kept])
    with pytest.raises(ModelError, match=r"model\.safetensors: cannot be read") as caught:
        load_weights(folder, "float32")
    assert "\n" not in str(caught.value)


def test_an_unknown_dtype_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="dtype float8 is not supported"):
        load_weights(tmp_path, "float8")


def test_a_folder_is_named_and_fingerprinted(tmp_path: Path) -> None:
    one, same = _folder(tmp_path / "one"), _folder(tmp_path / "same")
    other = _folder(tmp_path / "other", rms_norm_eps=1e-6)
    found = resolve(str(one))
    assert (found.path, found.name, len(found.revision)) == (one, "one", 12)
    assert found.fingerprint == resolve(str(same)).fingerprint != resolve(str(other)).fingerprint


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json", "model.safetensors"])
def test_an_incomplete_folder_is_refused(tmp_path: Path, missing: str) -> None:
    folder = _folder(tmp_path / "m")
    (folder / missing).unlink()
    with pytest.raises(ModelError, match=r"m: .*(is missing|has no \.safetensors file)"):
        resolve(str(folder))


def test_a_name_that_is_nothing(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="gpt-9: no such model, file or folder"):
        resolve("gpt-9")
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(ModelError, match=r"notes\.txt: neither a \.gguf file nor"):
        resolve(str(tmp_path / "notes.txt"))
