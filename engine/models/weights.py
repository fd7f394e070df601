"""Which file a weight is read from, and in which number format it arrives."""

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from engine.models.checkpoint import load_config, read_json
from engine.models.errors import ModelError
from engine.models.tensors import expected_tensors

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
ALIGNMENT_BYTES = 64
"""Matrix libraries may sum in another order from a less aligned address; every process must sum alike."""


def load_weights(folder: Path, dtype: str) -> dict[str, torch.Tensor]:
    """Every weight of the model in folder, on the CPU, by its Hugging Face name.

    dtype is "float32" or "bfloat16". A file that already holds that dtype is mapped, not read, so
    processes on one host share its pages. Raises ModelError for a missing, damaged or misshapen
    file or tensor, named.
    """
    if dtype not in DTYPES:
        raise ModelError(f"dtype {dtype} is not supported ({', '.join(DTYPES)} are)")
    shapes = expected_tensors(load_config(folder))
    weights: dict[str, torch.Tensor] = {}
    for file in weight_files(folder, dtype):
        _read_file(file, shapes, DTYPES[dtype], weights)
    if missing := [name for name in shapes if name not in weights]:
        raise ModelError(f"{folder}: tensor {missing[0]} is missing ({len(missing)} of {len(shapes)} are)")
    return weights


def weight_files(folder: Path, dtype: str) -> list[Path]:
    """The safetensors files to read: the one already in this dtype, the only one, or all shards."""
    for name in (f"model.{dtype}.safetensors", "model.safetensors"):
        if (folder / name).exists():
            return [folder / name]
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        raise ModelError(f"{folder}: has no model.safetensors and no model.safetensors.index.json")
    shards = read_json(index).get("weight_map")
    if not isinstance(shards, dict) or not shards:
        raise ModelError(f"{index}: field weight_map is missing")
    return [folder / shard for shard in sorted(dict.fromkeys(shards.values()))]


def _read_file(
    file: Path, shapes: dict[str, tuple[int, ...]], dtype: torch.dtype, weights: dict[str, torch.Tensor]
) -> None:
    try:
        with safe_open(str(file), framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118 (not a dict)
                if name in shapes:
                    weights[name] = _checked(opened, name, shapes[name], dtype, file)
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{file}: cannot be read ({str(error).splitlines()[0]})") from error


def _checked(opened: Any, name: str, shape: tuple[int, ...], dtype: torch.dtype, file: Path) -> torch.Tensor:
    tensor: torch.Tensor = opened.get_tensor(name)
    if tuple(tensor.shape) != shape:
        found, wanted = list(tensor.shape), list(shape)
        raise ModelError(f"{file}: tensor {name} has shape {found}, config.json says {wanted}")
    if not tensor.is_floating_point():
        raise ModelError(f"{file}: tensor {name} has dtype {tensor.dtype}, which is not supported")
    tensor = tensor.to(dtype)
    return tensor if tensor.data_ptr() % ALIGNMENT_BYTES == 0 else tensor.clone()
