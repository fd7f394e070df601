"""A Llama of random weights, as large as asked, to measure on: python -m bench.random_llama FOLDER.

What it writes is a Hugging Face folder (config.json, one safetensors file in bfloat16, the default model's
tokenizer), for `baton up --model FOLDER`, for `bench.engine --model FOLDER`, and for a peer beside it. With 1
to 2 billion parameters a step is long beside all that a server does around it. Shapes follow Llama 3.2 1B: 64
dimensions a head, 4 query heads to a KV head, a feed-forward 4 times as wide; the head is not tied to the
embedding, or the likeliest next token would be the last one. The text is gibberish: measure with ignore_eos.
"""

import argparse
import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from baton.progress import ProgressLine
from engine.models.checkpoint import parse_config, read_json
from engine.models.errors import ModelError
from engine.models.safetensors_file import SafetensorsWriter
from engine.models.store import DEFAULT_MODEL, Progress, resolve
from engine.models.tensors import expected_tensors

PARAMETERS = 1.2e9
HEAD_DIM, GROUP = 64, 4
HIDDEN_UNIT = HEAD_DIM * GROUP
BILLION_WIDTH = 2_048
"""Hidden size at a billion parameters; it goes with their cube root, so that depth goes with width."""
STANDARD_DEVIATION = 0.02
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "generation_config.json")


class FolderError(Exception):
    """One clear line about why the folder cannot be written."""


def config_for(parameters: float, base: dict[str, Any]) -> dict[str, Any]:
    """config.json of about so many parameters, with the vocabulary of `base`; never less than one layer."""
    width = BILLION_WIDTH * (parameters / 1e9) ** (1 / 3)
    hidden = HIDDEN_UNIT * max(1, round(width / HIDDEN_UNIT))
    heads = hidden // HEAD_DIM
    config = {
        **base,
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": 4 * hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": heads // GROUP,
        "head_dim": HEAD_DIM,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500_000.0,
        "rope_scaling": None,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }
    one, two = (count({**config, "num_hidden_layers": layers}) for layers in (1, 2))
    return {**config, "num_hidden_layers": max(1, round((parameters - one) / (two - one)) + 1)}


def count(config: dict[str, Any]) -> int:
    """Parameters of a config.json."""
    return sum(
        int(np.prod(shape)) for shape in expected_tensors(parse_config(config, "config.json")).values()
    )


def write(folder: Path, parameters: float, seed: int, progress: Progress) -> dict[str, Any]:
    """The config that was written. Raises FolderError, ModelError for the default model, OSError."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FolderError(f"{folder}: is there already")
    source = resolve(DEFAULT_MODEL, progress).path
    config = config_for(parameters, read_json(source / "config.json"))
    folder.mkdir(parents=True, exist_ok=True)
    needed, free = 2 * count(config), shutil.disk_usage(folder).free
    if needed > free:
        raise FolderError(f"{folder}: {needed >> 20} MiB are needed, {free >> 20} MiB are free")
    for name in TOKENIZER_FILES:
        shutil.copyfile(source / name, folder / name)
    _write_weights(folder / "model.safetensors", config, seed, progress)
    # Last: a folder without it is no model, so that half of one is never served.
    (folder / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    return config


def _write_weights(file: Path, config: dict[str, Any], seed: int, progress: Progress) -> None:
    shapes = expected_tensors(parse_config(config, "config.json"))
    draws = np.random.default_rng(seed)
    total, written = count(config), 0
    writer = SafetensorsWriter(file, "bfloat16", shapes)
    try:
        for shape in shapes.values():
            values = draws.standard_normal(shape, dtype=np.float32)
            values *= STANDARD_DEVIATION
            if len(shape) == 1:
                values += 1.0  # a norm's
            writer.write(values)
            written += values.size
            progress(f"writing {total / 1e9:.2f} billion parameters", written / total)
    finally:
        writer.close()


def main(argv: Sequence[str] | None = None) -> int:
    """Answers the exit code."""
    parser = argparse.ArgumentParser(
        prog="bench.random_llama",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("folder", type=Path, help="to write; must not hold anything")
    parser.add_argument("--params", type=_positive, default=PARAMETERS, help="about so many (%(default)g)")
    parser.add_argument("--seed", type=int, default=1, help="of the weights (%(default)s)")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    options = parser.parse_args(argv)
    try:
        with ProgressLine() as progress:
            config = write(options.folder, options.params, options.seed, progress.show)
    except (FolderError, ModelError, OSError) as error:
        print(f"bench.random_llama: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    parameters = count(config)
    shape = f"{config['num_hidden_layers']} layers of {config['hidden_size']}"
    print(f"{options.folder}: {parameters / 1e9:.2f} billion parameters, {shape}")
    if options.json:
        found = {"folder": str(options.folder), "parameters": parameters, "seed": options.seed}
        print(json.dumps({"bench": "random_llama", **found, "config": config}))
    return 0


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError("must be above 0")
    return value


if __name__ == "__main__":
    sys.exit(main())
