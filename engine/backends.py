"""Which backend runs a model on this machine, and how many KV blocks it gets."""

from pathlib import Path

import torch

from engine.grammar_masks import GrammarMasks
from engine.kernels import build
from engine.kernels.loading import SOURCE_DTYPES
from engine.kernels.support import say_torch_runs, why_not
from engine.models.checkpoint import load_config
from engine.models.config import ModelConfig
from engine.models.weights import WeightFiles
from engine.native_backend import NativeBackend
from engine.plan import Backend, KvLayout
from engine.torch_backend import TorchBackend, free_bytes, refuse_if_too_large
from text.grammar_vocabulary import open_grammar_vocabulary

POOL_TOKENS_MAX = 65_536
POOL_BYTES_MAX = {"cpu": 2 << 30, "cuda": 64 << 30}
POOL_SHARE = {"cpu": 8, "cuda": 2}
"""One part in so many of the free memory: on a laptop other workers and programs live beside us."""


def open_backend(
    folder: Path,
    *,
    dtype: str,
    device: str,
    block_size: int,
    blocks: int,
    threads: int,
    host_slots: int = 0,
    masks: GrammarMasks | None = None,
) -> Backend:
    """Load the model in folder and allocate its pool, and `host_slots` blocks beside it to swap to.

    On a CPU the native kernels serve where they can, else torch does, and says so once.
    `masks` for answers that follow a grammar; without one the folder's tokenizer is opened when first
    needed. dtype is "float32", "bfloat16", or "int8" (weights in int8, the rest in bfloat16: native
    kernels only); device "cpu" or "cuda". Raises ModelError (model files), EngineMemoryError (the blocks
    do not fit) or ValueError naming the argument.
    """
    _check(device=device, block_size=block_size, blocks=blocks, threads=threads)
    config = load_config(folder)
    if dtype == "int8" and device != "cpu":
        raise ValueError("dtype: int8 runs on the native CPU kernels only")
    weights = WeightFiles(folder, SOURCE_DTYPES.get(dtype, dtype))
    masks = masks or GrammarMasks(lambda: open_grammar_vocabulary(folder))
    pool = {"block_size": block_size, "blocks": blocks, "threads": threads, "host_slots": host_slots}
    if device == "cpu":
        if (reason := why_not(config, dtype, block_size)) is None:
            layout = KvLayout(config.layers, config.kv_heads, config.head_dim, dtype, block_size, blocks)
            refuse_if_too_large(layout, torch.device(device), host_slots)
            return NativeBackend(config, weights, dtype=dtype, masks=masks, progress=build.say, **pool)
        if dtype == "int8":
            raise ValueError(f"dtype: int8 runs on the native CPU kernels only: {reason}")
        say_torch_runs(reason)
    return TorchBackend(config, weights.all(), dtype=dtype, device=device, masks=masks, **pool)


def default_blocks(config: ModelConfig, *, dtype: str, device: str, block_size: int) -> int:
    """Blocks for a pool of POOL_TOKENS_MAX tokens, or fewer where memory is short; at least 1."""
    one = KvLayout(config.layers, config.kv_heads, config.head_dim, dtype, block_size, 1)
    budget = min(POOL_BYTES_MAX[device], free_bytes(torch.device(device)) // POOL_SHARE[device])
    tokens = min(POOL_TOKENS_MAX, budget // one.bytes_per_token)
    return max(1, tokens // block_size)


def _check(*, device: str, block_size: int, blocks: int, threads: int) -> None:
    if device not in POOL_BYTES_MAX:
        raise ValueError(f"device: {device} is not supported ({', '.join(POOL_BYTES_MAX)} are)")
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device: cuda asked for, but this machine or this torch has none")
    for name, value in (("block_size", block_size), ("blocks", blocks), ("threads", threads)):
        if value < 1:
            raise ValueError(f"{name}: {value} given, must be at least 1")
