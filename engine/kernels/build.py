"""Where the compiled kernels come from: a cache keyed by source, flags and processor, or g++ now."""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from core.parent_death import tied

SOURCE_FOLDER = Path(__file__).parent
ENTRY = "kernels.cpp"
BASE_FEATURES = ("avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512cd", "avx2", "fma")
"""As /proc/cpuinfo names them: what the processor has and the operating system saves."""
BFLOAT16_FEATURE = "avx512_bf16"
# No contraction: the compiler may not fuse a multiply and an add that the source keeps apart, or the
# same formula could round differently from one inlined copy to the next.
BASE_FLAGS = (
    *("-std=c++20", "-O3", "-march=x86-64-v4", "-ffp-contract=off"),
    *("-fPIC", "-shared", "-pthread", "-fno-math-errno"),
)
AMX_FEATURES = ("amx_tile", "amx_bf16")
AMX_FLAGS = ("-mamx-tile", "-mamx-bf16", "-DBATON_AMX")
BFLOAT16_FLAGS = ("-mavx512bf16", "-DBATON_BFLOAT16")
COMPILE_SECONDS_MAX = 300

Progress = Callable[[str], None]


def say(line: str) -> None:
    """The Progress of a command line."""
    print(line, file=sys.stderr, flush=True)


@dataclass(frozen=True, slots=True)
class Processor:
    """What of this machine the kernels depend on."""

    model: str
    features: tuple[str, ...]

    @property
    def has_bfloat16(self) -> bool:
        return BFLOAT16_FEATURE in self.features

    @property
    def has_amx(self) -> bool:
        return self.has_bfloat16 and all(feature in self.features for feature in AMX_FEATURES)

    def missing(self) -> tuple[str, ...]:
        return tuple(feature for feature in BASE_FEATURES if feature not in self.features)


@cache
def this_processor() -> Processor:
    """The processor as Linux reports it; no features anywhere else."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return Processor("unknown", ())
    fields: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
    return Processor(fields.get("model name", "unknown"), tuple(fields.get("flags", "").split()))


def unavailable(dtype: str, processor: Processor | None = None) -> str | None:
    """Why the kernels cannot serve this dtype here, in one line; None where they can."""
    processor = processor or this_processor()
    if dtype not in ("float32", "bfloat16", "int8"):
        return f"the native kernels have no dtype {dtype}"
    if missing := processor.missing():
        return f"this processor lacks {missing[0]}"
    if dtype != "float32" and not processor.has_bfloat16:
        return f"this processor lacks {BFLOAT16_FEATURE} (float32 would run natively)"
    if not library_path(processor).exists() and compiler() is None:
        return "no C++ compiler (g++ or c++) is installed"
    return None


def compiler() -> str | None:
    return shutil.which("g++") or shutil.which("c++")


def library_path(processor: Processor) -> Path:
    """The library's place in the cache; another source, flag or processor is another place."""
    digest = hashlib.sha256()
    for file in sources():
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    digest.update("\0".join((*flags(processor), processor.model)).encode())
    return _cache_folder() / digest.hexdigest()[:20] / "kernels.so"


def sources() -> list[Path]:
    return sorted([*SOURCE_FOLDER.glob("*.hpp"), *SOURCE_FOLDER.glob("*.cpp")])


def flags(processor: Processor) -> tuple[str, ...]:
    """The compiler's; BATON_AMX=0 keeps to the vector instructions, with their bits, where AMX exists."""
    bfloat16 = BFLOAT16_FLAGS if processor.has_bfloat16 else ()
    amx = AMX_FLAGS if processor.has_amx and os.environ.get("BATON_AMX") != "0" else ()
    return (*BASE_FLAGS, *bfloat16, *amx)


def _cache_folder() -> Path:
    root = os.environ.get("BATON_CACHE") or Path.home() / ".cache" / "baton"
    return Path(root) / "kernels"


def ensure_built(progress: Progress) -> Path:
    """The library's path, compiled first if this is the first use.

    Two processes may compile at once: each writes a file of its own and renames it into place.
    Raises OSError, with the compiler's last line, if it fails.
    """
    processor = this_processor()
    library = library_path(processor)
    if library.exists():
        return library
    progress("compiling the CPU kernels, once for this machine (about 10 s)")
    library.parent.mkdir(parents=True, exist_ok=True)
    _remove_what_the_dead_left(library.parent)
    with tempfile.TemporaryDirectory(prefix=f"{os.getpid()}-", dir=library.parent) as folder:
        fresh = Path(folder) / library.name
        _compile(processor, fresh)
        os.replace(fresh, library)
    return library


def _remove_what_the_dead_left(folder: Path) -> None:
    """A process that was killed while it compiled could not."""
    for left in folder.glob("*-*"):
        if not Path("/proc", left.name.partition("-")[0]).exists():
            shutil.rmtree(left, ignore_errors=True)


def _compile(processor: Processor, library: Path) -> None:
    found = compiler()
    if found is None:
        raise OSError("no C++ compiler (g++ or c++) is installed")
    command = [*tied([found]), *flags(processor), "-o", str(library), str(SOURCE_FOLDER / ENTRY)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_SECONDS_MAX)
    except subprocess.TimeoutExpired as error:
        raise OSError(f"the kernels did not compile within {COMPILE_SECONDS_MAX} s") from error
    if done.returncode != 0:
        errors = (
            [line for line in done.stderr.splitlines() if "error" in line]
            or done.stderr.splitlines()
            or ["?"]
        )
        raise OSError(f"the kernels do not compile: {errors[0]}")
