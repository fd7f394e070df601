"""When the kernels are there, and what is said when they are not."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from baton.fleet_plan import UpOptions
from baton.up import prepare
from engine import backends
from engine.kernels import build, support
from engine.kernels.build import BASE_FEATURES, BFLOAT16_FEATURE, Processor

OLD = Processor("old", ("avx2", "fma"))
PLAIN = Processor("plain", BASE_FEATURES)
NEW = Processor("new", (*BASE_FEATURES, BFLOAT16_FEATURE))
NEWEST = Processor("newest", (*NEW.features, *build.AMX_FEATURES))


@pytest.fixture
def fresh_word(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has said anything yet."""
    monkeypatch.setenv(support.SAID_KEY, "")
    support.say_torch_runs.cache_clear()


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(build, "compiler", lambda: None)
    monkeypatch.setenv("BATON_CACHE", str(tmp_path))


@pytest.fixture
def broken_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = tmp_path / "g++"
    script.write_text("#!/bin/sh\necho 'kernels.cpp:1: error: no such luck' >&2\nexit 1\n")
    script.chmod(0o755)
    monkeypatch.setattr(build, "compiler", lambda: str(script))
    monkeypatch.setenv("BATON_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize(
    ("processor", "dtype", "reason"),
    [
        (OLD, "float32", "lacks avx512f"),
        (OLD, "bfloat16", "lacks avx512f"),
        (PLAIN, "bfloat16", "lacks avx512_bf16"),
        (PLAIN, "int8", "lacks avx512_bf16"),
        (NEW, "int4", "no dtype int4"),
    ],
)
def test_names_what_is_missing(processor: Processor, dtype: str, reason: str) -> None:
    assert reason in (build.unavailable(dtype, processor) or "")


@pytest.mark.skipif(build.compiler() is None, reason="no C++ compiler")
@pytest.mark.parametrize(
    ("processor", "dtype"), [(PLAIN, "float32"), (NEW, "float32"), (NEW, "bfloat16"), (NEW, "int8")]
)
def test_serves_where_the_processor_can(processor: Processor, dtype: str) -> None:
    assert build.unavailable(dtype, processor) is None


@pytest.mark.skipif(build.compiler() is None, reason="no C++ compiler")
@pytest.mark.parametrize("processor", [PLAIN, NEW, NEWEST], ids=lambda processor: processor.model)
def test_compiles_without_a_warning_for_every_processor(processor: Processor, tmp_path: Path) -> None:
    """Also for those that this machine is not."""
    compiler = build.compiler()
    assert compiler is not None
    source = build.SOURCE_FOLDER / build.ENTRY
    command = [compiler, *build.flags(processor), "-O0", "-S", "-Wall", "-Werror"]
    done = subprocess.run([*command, "-o", tmp_path / "kernels.s", source], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(build.compiler() is None, reason="no C++ compiler")
@pytest.mark.skipif(bool(build.this_processor().missing()), reason="no AVX-512 here")
def test_threads_and_phases_keep_their_laws(tmp_path: Path) -> None:
    compiler = build.compiler()
    assert compiler is not None
    source, program = Path(__file__).with_name("kernels_threads.cpp"), tmp_path / "laws"
    flags = [flag for flag in build.flags(build.this_processor()) if flag != "-shared"]
    subprocess.run([compiler, *flags, f"-I{build.SOURCE_FOLDER}", "-o", program, source], check=True)
    for seed in ("1", "2"):
        done = subprocess.run([program, seed], capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (0, ""), f"{program} {seed}"


@pytest.mark.usefixtures("no_compiler")
def test_a_build_clears_away_what_a_killed_one_left(tmp_path: Path) -> None:
    folder = build.library_path(build.this_processor()).parent
    dead = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True
    )
    left, at_work = folder / f"{dead.stdout.strip()}-a1", folder / f"{os.getpid()}-b2"
    for each in (left, at_work):
        (each / "inside").mkdir(parents=True)
    with pytest.raises(OSError, match="no C\\+\\+ compiler"):
        build.ensure_built(lambda line: None)
    assert list(folder.iterdir()) == [at_work]


@pytest.mark.usefixtures("no_compiler")
def test_a_built_library_needs_no_compiler() -> None:
    assert build.unavailable("float32", PLAIN) == "no C++ compiler (g++ or c++) is installed"
    library = build.library_path(PLAIN)
    library.parent.mkdir(parents=True)
    library.touch()
    assert build.unavailable("float32", PLAIN) is None


def test_the_place_depends_on_processor_and_source(monkeypatch: pytest.MonkeyPatch) -> None:
    places = [build.library_path(processor) for processor in (PLAIN, NEW, Processor("other", NEW.features))]
    monkeypatch.setattr(build, "sources", lambda: [build.SOURCE_FOLDER / build.ENTRY])
    places.append(build.library_path(NEW))
    assert len(dict.fromkeys(places)) == 4


@pytest.mark.usefixtures("broken_compiler")
def test_a_failed_build_says_the_compilers_word_and_leaves_nothing() -> None:
    said: list[str] = []
    with pytest.raises(OSError, match="no such luck"):
        build.ensure_built(said.append)
    assert len(said) == 1 and "compiling" in said[0]
    folder = build.library_path(build.this_processor()).parent
    assert list(folder.iterdir()) == []


@pytest.mark.skipif(bool(build.this_processor().missing()), reason="no AVX-512 here")
@pytest.mark.usefixtures("fresh_word", "broken_compiler")
def test_torch_serves_where_the_kernels_do_not_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And says so once, however many models are opened; not at all where a launcher has."""
    served: list[str] = []
    monkeypatch.setattr(backends, "load_config", lambda folder: _Config())
    monkeypatch.setattr(backends, "WeightFiles", lambda folder, dtype: _Weights())
    monkeypatch.setattr(backends, "TorchBackend", lambda *given, **named: served.append(named["device"]))
    for _ in range(2):
        backends.open_backend(tmp_path, dtype="float32", device="cpu", block_size=16, blocks=1, threads=1)
    assert served == ["cpu", "cpu"]
    assert capsys.readouterr().err.count("no such luck") == 1
    support.say_torch_runs.cache_clear()  # a child process's
    backends.open_backend(tmp_path, dtype="float32", device="cpu", block_size=16, blocks=1, threads=1)
    assert "no such luck" not in capsys.readouterr().err


@pytest.mark.usefixtures("fresh_word")
@pytest.mark.parametrize(
    ("processor", "reason"), [(OLD, "this processor lacks avx512f"), (PLAIN, "no C++ compiler")]
)
def test_a_launcher_says_it_for_all_it_starts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], processor: Processor, reason: str
) -> None:
    monkeypatch.setattr(build, "this_processor", lambda: processor)
    monkeypatch.setattr(build, "compiler", lambda: None)
    monkeypatch.setattr(build, "library_path", lambda processor: Path("/nowhere"))
    prepare(UpOptions(dtype="float32", cores={}))
    (line,) = (line for line in capsys.readouterr().err.splitlines() if "torch" in line)
    assert line.startswith("baton: torch runs this model, much slower") and reason in line
    assert reason in os.environ[support.SAID_KEY]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_int8_is_refused_where_the_kernels_do_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    monkeypatch.setattr(backends, "load_config", lambda folder: _Config())
    monkeypatch.setattr(backends, "WeightFiles", lambda folder, dtype: _Weights())
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr(build, "this_processor", lambda: PLAIN)
    with pytest.raises(ValueError, match="dtype: int8 runs on the native CPU kernels only"):
        backends.open_backend(tmp_path, dtype="int8", device=device, block_size=16, blocks=1, threads=1)


@pytest.mark.skipif(not build.this_processor().has_amx, reason="no AMX here: the vector path is what runs")
def test_the_vector_path_is_exact_where_amx_would_serve() -> None:
    laws = Path(__file__).with_name("test_kernels_exactness.py")
    command = [sys.executable, "-m", "pytest", str(laws), "-k", "bfloat16 or int8", "-p", "no:cacheprovider"]
    done = subprocess.run(
        command, env={**os.environ, "BATON_AMX": "0"}, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout[-2000:]


class _Config:
    hidden_size = intermediate_size = head_dim = 64


class _Weights(dict[str, object]):
    def all(self) -> dict[str, object]:
        return dict(self)
