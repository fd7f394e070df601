"""How Python calls the kernels: the C interface of kernels.cpp, one function each."""

import ctypes
from ctypes import POINTER, Structure, c_double, c_float, c_int32, c_uint64, c_void_p
from enum import IntEnum
from functools import cache

from engine.kernels import build

PHASES = ("norm", "qkv", "rotary", "attention", "output", "gate_up", "down", "head", "wait")
"""Phase of model.hpp, in its order."""


class Shape(Structure):
    """Shape of model.hpp: a model, its pool and the size of a step."""

    _fields_ = (
        *(
            (name, c_int32)
            for name in ("vocab", "hidden", "intermediate", "layers", "heads", "kv_heads", "head_dim")
        ),
        *((name, c_int32) for name in ("block_size", "blocks", "tokens_max", "samples_max")),
        *((name, c_int32) for name in ("tied", "qkv_bias", "qk_norm")),
        ("epsilon", c_float),
    )


class Batch(Structure):
    """Batch of model.hpp: addresses of int32 arrays, but for logits (float32)."""

    _fields_ = (
        *((name, c_int32) for name in ("rows", "samples")),
        *((name, c_void_p) for name in ("tokens", "row_first", "row_start", "table_first", "tables")),
        *((name, c_void_p) for name in ("sample_tokens", "wants_logits", "logits", "argmax")),
    )


KINDS = {"float32": 0, "bfloat16": 1, "int8": 2}
"""What baton_create calls a dtype: int8 is of the weights, with bfloat16 activations and KV."""


class Slot(IntEnum):
    """Slot of model.hpp: which weight baton_load fills."""

    QKV = 0
    OUTPUT = 1
    GATE_UP = 2
    DOWN = 3
    HEAD = 4
    EMBEDDING = 5
    INPUT_NORM = 6
    POST_NORM = 7
    QUERY_NORM = 8
    KEY_NORM = 9
    QKV_BIAS = 10
    FINAL_NORM = 11
    INVERSE_FREQUENCY = 12


_SIGNATURES: dict[str, tuple[object, tuple[object, ...]]] = {
    "baton_create": (c_void_p, (POINTER(Shape), c_int32, c_int32)),
    "baton_destroy": (None, (c_void_p,)),
    "baton_set_threads": (None, (c_void_p, c_int32)),
    "baton_load": (None, (c_void_p, c_int32, c_int32, c_void_p)),
    "baton_forward": (None, (c_void_p, POINTER(Batch))),
    "baton_zero_block": (None, (c_void_p, c_int32)),
    "baton_block": (c_void_p, (c_void_p, c_int32)),
    "baton_copy_block": (None, (c_void_p, c_int32, c_int32)),
    "baton_read_kv": (None, (c_void_p, c_void_p, c_int32, c_int32, c_void_p)),
    "baton_write_kv": (None, (c_void_p, c_void_p, c_int32, c_int32, c_void_p)),
    "baton_sizes": (None, (c_void_p, POINTER(c_uint64))),
    "baton_take_phases": (None, (c_void_p, POINTER(c_uint64))),
    "baton_measure_peak": (c_double, (c_int32, c_int32)),
    "baton_measure_tile_peak": (c_double, (c_int32,)),
    "baton_measure_read": (c_double, (c_uint64, c_int32, c_int32)),
}


@cache
def open_library(progress: build.Progress = build.say) -> ctypes.CDLL:
    """The kernels, compiled if need be; a call releases the interpreter lock. Raises OSError."""
    library = ctypes.CDLL(str(build.ensure_built(progress)))
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
    return library


def measure_peak_flops(dtype: str, threads: int) -> float:
    """Multiply-adds from registers, in FLOP/s (each counts as two), best of twenty: the compute roof."""
    return float(open_library().baton_measure_peak(dtype != "float32", threads))


def measure_tile_peak_flops(threads: int) -> float:
    """Products of AMX tiles from registers, in FLOP/s; 0 where the kernels use none."""
    return float(open_library().baton_measure_tile_peak(threads))


def measure_read_bandwidth(threads: int, bytes_read: int, turns: int) -> float:
    """Bytes/s of reading that much memory once, best of some turns: the memory roof."""
    return float(open_library().baton_measure_read(bytes_read, threads, turns))
