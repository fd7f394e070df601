"""Which file a weight is read from, and in which number format it arrives."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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


class WeightFiles(Mapping[str, torch.Tensor]):
    """Every weight of the model in a folder, on the CPU, by its Hugging Face name, read when asked for.

    Its file is mapped only for as long as the caller keeps the weight: whoever packs a model weight by
    weight never has it in memory twice.
    """

    def __init__(self, folder: Path, dtype: str) -> None:
        """dtype is "float32" or "bfloat16". Raises ModelError for what is missing or cannot be read, named;
        reading does for what is misshapen.
        """
        if dtype not in DTYPES:
            raise ModelError(f"dtype {dtype} is not supported ({', '.join(DTYPES)} are)")
        self._dtype = DTYPES[dtype]
        self._shapes = expected_tensors(load_config(folder))
        self._files: dict[str, Path] = {}
        for file in weight_files(folder, dtype):
            with _opened(file) as opened:
                self._files |= {name: file for name in opened.keys() if name in self._shapes}  # noqa: SIM118
        if missing := [name for name in self._shapes if name not in self._files]:
            count = f"{len(missing)} of {len(self._shapes)} are"
            raise ModelError(f"{folder}: tensor {missing[0]} is missing ({count})")

    def __getitem__(self, name: str) -> torch.Tensor:
        with _opened(self._files[name]) as opened:
            return self._read(opened, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)

    def all(self) -> dict[str, torch.Tensor]:
        """To be kept: each file is mapped once."""
        weights: dict[str, torch.Tensor] = {}
        for file in dict.fromkeys(self._files.values()):
            with _opened(file) as opened:
                weights |= {name: self._read(opened, name) for name, of in self._files.items() if of == file}
        return weights

    def _read(self, opened: Any, name: str) -> torch.Tensor:
        return _checked(opened, name, self._shapes[name], self._dtype, self._files[name])


def load_weights(folder: Path, dtype: str) -> dict[str, torch.Tensor]:
    """All of WeightFiles at once.

    A file that already holds that dtype is mapped, not read, so processes on one host share its pages.
    """
    return WeightFiles(folder, dtype).all()


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


@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    try:
        with safe_open(str(file), framework="pt") as opened:
            yield opened
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
