"""What a GGUF file becomes: a Hugging Face folder with weights in float32 and in bfloat16."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engine.models.checkpoint import parse_config
from engine.models.errors import ModelError
from engine.models.gguf_file import GgufFile
from engine.models.safetensors_file import SafetensorsWriter
from engine.models.tensors import expected_tensors
from text.gguf_vocabulary import GgufVocabulary, tokenizer_json

WEIGHT_FILES = {"float32": "model.safetensors", "bfloat16": "model.bfloat16.safetensors"}


def write_folder(file: Path, folder: Path, progress: Callable[[str, float], None]) -> None:
    """Convert file into folder, which exists and is empty.

    Raises ModelError for a file that is damaged, misshapen or unsupported, OSError when the folder
    cannot be written.
    """
    progress(f"reading {file.name}", 0.0)
    gguf = GgufFile(file)
    _write_json(folder / "tokenizer.json", _tokenizer(gguf, file))
    _write_json(folder / "tokenizer_config.json", _tokenizer_config(gguf))
    _write_json(folder / "config.json", gguf.config())
    _write_json(folder / "generation_config.json", _generation_config(gguf.config()))
    _write_weights(gguf, file, folder, progress)
    progress(f"converted {file.name}", 1.0)


def _write_weights(gguf: GgufFile, file: Path, folder: Path, progress: Callable[[str, float], None]) -> None:
    expected = expected_tensors(parse_config(gguf.config(), str(file)))
    shapes = {name: expected[name] for name in gguf.names() if name in expected}
    if missing := [name for name in expected if name not in shapes]:
        raise ModelError(f"{file}: tensor {missing[0]} is missing ({len(missing)} of {len(expected)} are)")
    writers = [SafetensorsWriter(folder / name, dtype, shapes) for dtype, name in WEIGHT_FILES.items()]
    try:
        for done, (name, values) in enumerate(gguf.tensors()):
            if name not in shapes or values.shape != shapes[name]:
                shape, wanted = list(values.shape), expected.get(name)
                raise ModelError(f"{file}: tensor {name} has shape {shape}, expected {wanted}")
            for writer in writers:
                writer.write(values)
            progress(f"converting {file.name}", (done + 1) / len(shapes))
    finally:
        for writer in writers:
            writer.close()


def _tokenizer(gguf: GgufFile, file: Path) -> dict[str, Any]:
    vocabulary = GgufVocabulary(
        model=gguf.field("tokenizer.ggml.model"),
        pre=gguf.field("tokenizer.ggml.pre", "default"),
        tokens=gguf.field("tokenizer.ggml.tokens"),
        token_types=gguf.field("tokenizer.ggml.token_type"),
        merges=gguf.optional_field("tokenizer.ggml.merges") or (),
    )
    try:
        return tokenizer_json(vocabulary)
    except ValueError as error:
        raise ModelError(f"{file}: {error}") from error


def _tokenizer_config(gguf: GgufFile) -> dict[str, Any]:
    """bos_token and eos_token are texts here, as in Hugging Face folders, for the chat template to use."""
    tokens = gguf.field("tokenizer.ggml.tokens")
    content: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": bool(gguf.field("tokenizer.ggml.add_bos_token", False)),
        "clean_up_tokenization_spaces": False,
        "model_max_length": int(gguf.field("llama.context_length")),
    }
    names = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    for name, field in names.items():
        if (number := gguf.optional_field(f"tokenizer.ggml.{field}_token_id")) is not None:
            content[name] = tokens[int(number)]
    if (template := gguf.optional_field("tokenizer.chat_template")) is not None:
        content["chat_template"] = template
    return content


def _generation_config(config: dict[str, Any]) -> dict[str, Any]:
    names = ("bos_token_id", "eos_token_id", "pad_token_id")
    return {name: config[name] for name in names if config[name] is not None}


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False, indent=1), encoding="utf-8")
