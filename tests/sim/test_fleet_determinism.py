"""A run is its seed: the same digest again, and every decision repeated from its recording."""

import pytest

from core.replay import replay
from sim.fleet import Fleet
from sim.main import main
from sim.registry import FACTORIES
from sim.runs import BrokenLaw, RunConfig, run

FAULTY = RunConfig(seed=5, requests=20, faults=4)


def test_same_seed_same_digest() -> None:
    assert run(FAULTY).journal.digest == run(FAULTY).journal.digest


def test_another_seed_another_digest() -> None:
    other = RunConfig(seed=6, requests=20, faults=4)
    assert run(FAULTY).journal.digest != run(other).journal.digest


@pytest.mark.parametrize("seed", [5, 11])
def test_recorded_decisions_are_repeated(seed: int) -> None:
    fleet = run(RunConfig(seed=seed, requests=20, faults=4, record=True))
    replayed = replay(b"".join(fleet.recording), FACTORIES)
    assert not replayed.mismatches, str(replayed.mismatches[0])
    assert replayed.events > 1000 and replayed.bytes_unread == 0
    kinds = [name.split("-")[0] for name in replayed.objects]
    assert sorted(dict.fromkeys(kinds)) == ["decode", "gateway", "prefill", "router"]


def test_recording_changes_nothing() -> None:
    recorded = RunConfig(seed=5, requests=20, faults=4, record=True)
    assert run(recorded).journal.digest == run(FAULTY).journal.digest


def test_failing_run_says_how_to_see_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(fleet: Fleet) -> None:
        raise AssertionError("a planted fault")

    monkeypatch.setattr("sim.laws.finish", broken)
    with pytest.raises(
        BrokenLaw, match=r"planted fault(.|\n)*baton sim --seed 5 --requests 20 --faults 4 --log"
    ):
        run(FAULTY)


def test_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "3", "--requests", "5", "--faults", "1", "--log"]) == 0
    printed = capsys.readouterr().out
    assert "gateway-0.router_up" in printed and "seed 3: " in printed


def test_command_line_tells_a_broken_law(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(fleet: Fleet) -> None:
        raise AssertionError("a planted fault")

    monkeypatch.setattr("sim.laws.finish", broken)
    assert main(["--seed", "3", "--requests", "5", "--faults", "0"]) == 1
    assert "replay with: baton sim --seed 3 --requests 5 --faults 0 --log" in capsys.readouterr().err
