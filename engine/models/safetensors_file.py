"""How tensors lie in a safetensors file, so that every one of them can be used where it is mapped."""

import json
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

ALIGNMENT_BYTES = 64


class SafetensorsWriter:
    """Writes one file of one dtype ("float32" or "bfloat16"), each tensor at a 64-byte boundary.

    Format: https://huggingface.co/docs/safetensors (8 bytes header length, JSON header, data). The
    format allows no gaps, so a tensor whose size is not a multiple of 64 bytes leaves the next ones
    less aligned; whoever loads them copies those.
    """

    def __init__(self, path: Path, dtype: str, shapes: dict[str, tuple[int, ...]]) -> None:
        self._dtype = dtype
        self._file: BinaryIO = path.open("wb")
        self._file.write(_header(dtype, shapes))

    def write(self, values: NDArray[np.float32]) -> None:
        """The next tensor, in the order of shapes."""
        self._file.write(_encoded(values, self._dtype).tobytes())

    def close(self) -> None:
        self._file.close()


def _header(dtype: str, shapes: dict[str, tuple[int, ...]]) -> bytes:
    code, width = {"float32": ("F32", 4), "bfloat16": ("BF16", 2)}[dtype]
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, shape in shapes.items():
        size = width * int(np.prod(shape))
        header[name] = {"dtype": code, "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % ALIGNMENT_BYTES)
    return len(text).to_bytes(8, "little") + text


def _encoded(values: NDArray[np.float32], dtype: str) -> NDArray[np.generic]:
    if dtype == "float32":
        return values.astype("<f4", copy=False)
    bits = values.view(np.uint32)
    # Round to nearest, ties to even; weights are finite, so no NaN can be rounded away.
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")
