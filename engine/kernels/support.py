"""Whether the native kernels run a model here; where they do not, torch does, and that is said once."""

import os
from functools import cache

from engine.kernels import build
from engine.models.config import ModelConfig

HEAD_DIM_MAX = 256
SAID_KEY = "BATON_SAID"
"""Environment variable with the line that a launcher has said already, for all whom it starts."""


def why_not(
    config: ModelConfig, dtype: str, block_size: int, progress: build.Progress = build.say
) -> str | None:
    """One line, or None where the kernels are there, or now compiled, and run this model."""
    reason = build.unavailable(dtype) or unsupported(config, block_size)
    if reason is None:
        try:
            build.ensure_built(progress)
        except OSError as error:
            return str(error)
    return reason


def unsupported(config: ModelConfig, block_size: int) -> str | None:
    """Which number of this model or paging the kernels cannot run, in one line; None where they can."""
    for name, value in (
        ("hidden_size", config.hidden_size),
        ("intermediate_size", config.intermediate_size),
        ("head_dim", config.head_dim),
        ("block_size", block_size),
    ):
        if value < 16 or value % 16:
            return f"{name}: {value} is not a multiple of 16"
    return None if config.head_dim <= HEAD_DIM_MAX else f"head_dim: {config.head_dim} is above {HEAD_DIM_MAX}"


@cache
def say_torch_runs(reason: str, say: build.Progress = build.say) -> None:
    """Once per process, and not where the launcher has; for the processes this one starts as well."""
    line = f"torch runs this model, much slower than the native CPU kernels would: {reason}"
    if os.environ.get(SAID_KEY) != line:
        os.environ[SAID_KEY] = line
        say(line)
