"""Mistakes planted in the fleet: the laws catch each, so that they would catch a real one."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from decode_worker.decode_worker import DecodeWorker
from engine.engine import Engine
from engine.timed_backend import Fault
from kv_transfer.coverage import Coverage
from sim import faults, laws
from sim.config import FleetConfig, worker
from sim.fleet import Fleet

SMALL = worker(40, max_running=4)


def fleet_with(fault: Fault | None, role: str) -> Fleet:
    spec = replace(SMALL, fault=fault)
    config = FleetConfig(prefills=1, decodes=1, prefill=SMALL, decode=SMALL)
    return Fleet(replace(config, prefill=spec) if role == "prefill" else replace(config, decode=spec))


def ask_some(fleet: Fleet) -> None:
    """Enough that blocks are used again, and that some are shared."""
    prompt = fleet.prompt(100)
    for index in range(6):
        fleet.ask(prompt + fleet.prompt(30 * index), 20, choices=1 + 2 * (index % 2))


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_nothing_is_caught_where_nothing_is_wrong(role: str) -> None:
    fleet = fleet_with(None, role)
    ask_some(fleet)
    laws.finish(fleet)
    laws.completed(*fleet.clients.asked.values())


@pytest.mark.parametrize(
    ("fault", "role"),
    [
        (Fault.STALE_BLOCK, "prefill"),
        (Fault.WRONG_BLOCK, "prefill"),
        (Fault.WRONG_BLOCK, "decode"),
        (Fault.MISSING_CHUNK, "decode"),
        (Fault.SKIPPED_COPY, "decode"),
    ],
)
def test_wrong_kv_is_caught(fault: Fault, role: str) -> None:
    fleet = fleet_with(fault, role)
    ask_some(fleet)
    with pytest.raises(AssertionError, match="wrong tokens"):
        laws.finish(fleet)


def test_decoding_before_the_kv_is_complete_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """L3: a home that takes one chunk for the whole."""
    monkeypatch.setattr(Coverage, "complete", property(lambda self: self.scattered >= 1))
    fleet = fleet_with(None, "decode")
    fleet.ask(300, 20)
    with pytest.raises(AssertionError):
        laws.finish(fleet)


def test_freeing_under_a_running_write_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """L2: a home gives blocks back at the cancel, while a chunk is still being written into them."""
    drop = DecodeWorker._drop_transfer

    def hasty(self: DecodeWorker, attempt: Any, *rest: Any) -> Any:
        self._engine.unpin(attempt.key)
        return drop(self, attempt, *rest)

    monkeypatch.setattr(DecodeWorker, "_drop_transfer", hasty)
    fleet = fleet_with(None, "decode")
    faults.slow_engine(fleet, "decode-0", 50, 60_000_000)
    asked = fleet.ask(300, 4)
    fleet.run_until(lambda: fleet.decode("decode-0").staged_chunks > 0)
    fleet.cancel(asked)
    with pytest.raises(AssertionError, match="not in flight"):
        laws.finish(fleet)


def test_freeing_under_a_running_read_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """L2: a prefill worker does not hold its blocks while a chunk is packed out of them."""
    monkeypatch.setattr(Engine, "pin", lambda self, key: None)
    fleet = fleet_with(None, "prefill")
    fleet.ask(300, 4)
    with pytest.raises(AssertionError, match="not in flight"):
        laws.finish(fleet)


def test_a_leak_on_cancel_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Engine, "cancel", lambda self, key, now_us: None)
    fleet = fleet_with(None, "decode")
    asked = fleet.ask(100, 40)
    fleet.run_until(lambda: asked.tokens > 3)
    fleet.cancel(asked)
    with pytest.raises(AssertionError):
        laws.finish(fleet)


def test_a_leaked_pin_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Engine, "unpin", lambda self, key: None)
    fleet = fleet_with(None, "decode")
    fleet.ask(100, 4)
    with pytest.raises(AssertionError, match="leaks"):
        laws.finish(fleet)


def test_a_gap_in_the_stream_is_caught() -> None:
    """A client is handed tokens of which one is missing."""
    fleet = fleet_with(None, "decode")
    asked = fleet.ask(100, 20)
    fleet.run_until(lambda: asked.tokens == 5)
    del asked.outputs[0][-1]
    with pytest.raises(AssertionError, match="a gap or a duplicate"):
        laws.finish(fleet)


def test_a_message_applied_twice_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every message comes twice, and the gateway does not look at output indexes."""
    from services.gateway.gateway import Gateway

    take = Gateway._take_run

    def trusting(self: Gateway, live: Any, run: Any, now_us: int) -> Any:
        return take(
            self, live, msgspec.structs.replace(run, first_index=len(live.choices[run.choice].output)), now_us
        )

    monkeypatch.setattr(Gateway, "_take_run", trusting)
    fleet = fleet_with(None, "decode")
    faults.double_messages(fleet, 10_000_000, 1)
    fleet.ask(100, 20)
    with pytest.raises(AssertionError):
        laws.finish(fleet)


def test_a_request_that_nobody_runs_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """L7: free capacity, work, and no step."""
    monkeypatch.setattr(Engine, "plan", lambda self, now_us: None)
    fleet = fleet_with(None, "decode")
    fleet.ask(100, 20)
    with pytest.raises(AssertionError, match="does not happen"):
        fleet.finish(60_000_000)
