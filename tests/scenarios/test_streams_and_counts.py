"""Exact counts, exact continuations, and whose request it is."""

from dataclasses import replace

import pytest

from core.outcomes import FinishReason, Outcome
from services.gateway.gateway import GatewayPolicy
from services.gateway.retry_budget import RetryBudgetConfig
from sim import faults, laws
from sim.config import FleetConfig, worker
from sim.fleet import Fleet
from sim.phases import Phase, View

SMALL = worker(64, max_step_tokens=64)
ONE_PAIR = FleetConfig(prefills=1, decodes=1, prefill=SMALL, decode=SMALL, keep_text=True)


def events(fleet: Fleet, *methods: str) -> list[str]:
    return [line for line in fleet.journal.lines if any(f".{method}(" in line for method in methods)]


def test_one_token_binds_and_sends_nothing() -> None:
    fleet = Fleet(ONE_PAIR)
    asked = fleet.ask(100, 1)
    laws.finish(fleet)
    laws.completed(asked)
    assert asked.tokens == 1 and asked.finishes == {0: FinishReason.LENGTH}
    assert events(fleet, "first_tokens")
    assert not events(fleet, "bind_asked", "bound", "chunk_sent", "packed")


@pytest.mark.parametrize("max_tokens", [2, 3, 17])
def test_exact_counts(max_tokens: int) -> None:
    fleet = Fleet(ONE_PAIR)
    asked = fleet.ask(100, max_tokens)
    laws.finish(fleet)
    laws.completed(asked)
    assert asked.tokens == max_tokens and asked.ended is not None
    assert (asked.ended.prompt_tokens, asked.ended.output_tokens) == (100, max_tokens)
    assert asked.finishes == {0: FinishReason.LENGTH}


def test_eos_first_sends_nothing_further() -> None:
    """The first token is a stop token: counted, finished as stop, and no chunk is sent after it."""
    fleet = Fleet(ONE_PAIR)
    prompt = fleet.prompt(300)
    probe = fleet.ask(prompt, 1)
    laws.finish(fleet)
    first = probe.outputs[0][0]
    fleet = Fleet(replace(ONE_PAIR, lane_latency_us=1))
    asked = fleet.ask(prompt, 20, stop_token_ids=(first,))
    laws.finish(fleet)
    laws.completed(asked)
    assert asked.outputs == {0: [first]} and asked.finishes == {0: FinishReason.STOP}
    said = next(index for index, line in enumerate(fleet.journal.lines) if ".first_tokens(" in line)
    after = fleet.journal.lines[said:]
    assert not [line for line in after if "prefill-0.packed(" in line and "SendChunk" in line]


def test_stop_string_first_cancels_the_rest() -> None:
    fleet = Fleet(ONE_PAIR)
    asked = fleet.ask(200, 200, stop_after=1)
    laws.finish(fleet)
    laws.completed(asked)
    assert asked.tokens == 1 and asked.finishes == {0: FinishReason.STOP}
    assert events(fleet, "cancel"), "the compute is cancelled"
    assert fleet.decode("decode-0").engine.accounts.busy_us < 100_000


def test_cold_and_warm_prompt_count_their_cached_tokens() -> None:
    """Where prefill happened: at the prefill worker, whose cache is what saves."""
    fleet = Fleet(ONE_PAIR)
    prompt = fleet.prompt(160)
    cold = fleet.ask(prompt, 4)
    laws.finish(fleet)
    fleet.restart("decode-0")
    fleet.run(1_000_000)
    warm = fleet.ask(prompt, 4)
    laws.finish(fleet)
    assert cold.ended is not None and warm.ended is not None
    assert (cold.ended.cached_tokens, warm.ended.cached_tokens) == (0, 144)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("choices", [1, 3])
def test_killed_home_is_replayed_exactly(temperature: float, choices: int) -> None:
    fleet = Fleet(FleetConfig(prefills=1, decodes=2, prefill=SMALL, decode=SMALL))
    asked = fleet.ask(100, 40, temperature=temperature, choices=choices)
    fleet.run_until(lambda: asked.tokens >= 10 * choices)
    home = View(fleet, asked).home()
    assert home is not None
    fleet.crash(home[0])
    laws.finish(fleet)
    laws.completed(asked)
    assert asked.tokens == 40 * choices


def test_killed_home_without_a_spare_is_an_error_never_a_stop() -> None:
    fleet = Fleet(ONE_PAIR)
    asked = fleet.ask(100, 40)
    fleet.run_until(lambda: asked.tokens >= 10)
    fleet.crash("decode-0")
    laws.finish(fleet)
    assert asked.outcome in (Outcome.WORKER_LOST, Outcome.NO_WORKER)
    assert not asked.finishes and asked.tokens >= 10


def test_killed_home_with_an_empty_budget_is_an_error() -> None:
    none = RetryBudgetConfig(per_request=0, per_second=0, burst=0)
    config = replace(ONE_PAIR, decodes=2, gateway_policy=GatewayPolicy(retry_budget=none))
    fleet = Fleet(config)
    asked = fleet.ask(100, 40)
    fleet.run_until(lambda: asked.tokens >= 10)
    home = View(fleet, asked).home()
    assert home is not None
    fleet.crash(home[0])
    laws.finish(fleet)
    assert asked.outcome is Outcome.WORKER_LOST and not asked.finishes


def test_broken_stream_resumes_without_gap_duplicate_or_retry() -> None:
    fleet = Fleet(ONE_PAIR)
    asked = fleet.ask(100, 200)
    for count in (5, 40, 90):
        fleet.run_until(lambda count=count: asked.tokens >= count)  # type: ignore[misc]
        faults.cut(fleet, "gateway-0", "decode-0", 1_000_000)
        for stream in fleet.network.between("gateway-0", "decode-0"):
            stream.close("reset")
    laws.finish(fleet)
    laws.completed(asked)
    assert len(events(fleet, "open")) == 1 and len(events(fleet, "placed")) == 1


def test_dead_gateways_requests_stop_within_three_seconds() -> None:
    fleet = Fleet(replace(ONE_PAIR, gateways=2))
    dead = [fleet.ask(100, 900, gateway="gateway-0") for _ in range(2)]
    lives = fleet.ask(100, 60, gateway="gateway-1")
    fleet.run_until(lambda: all(one.tokens > 3 for one in (*dead, lives)))
    fleet.crash("gateway-0")
    fleet.run(3_000_000)
    home = fleet.decode("decode-0")
    assert home.plain.live == 0
    laws.finish(fleet)
    laws.completed(lives)


def test_ids_are_unique_and_another_gateway_knows_none_of_them() -> None:
    """A hundred at once; a cancel at the gateway that does not own the request finds nothing."""
    fleet = Fleet(replace(ONE_PAIR, gateways=2, keep_text=False, check_every=50))
    asked = [fleet.ask(20, 2, gateway=fleet.gateways[index % 2]) for index in range(100)]
    assert len(dict.fromkeys(one.request for one in asked)) == 100
    fleet.gateway("gateway-1").cancel(asked[0].request)
    laws.finish(fleet)
    laws.completed(*asked)


def test_deadline_is_kept_by_the_worker() -> None:
    """500 ms: no step runs for it after 600 ms."""
    fleet = Fleet(ONE_PAIR)
    asked = fleet.ask(100, 900, deadline_us=500_000)
    start_us = asked.asked_us
    fleet.run(600_000)
    assert asked.outcome is Outcome.DEADLINE_EXCEEDED
    assert fleet.decode("decode-0").plain.live == 0
    busy_us = fleet.decode("decode-0").engine.accounts.busy_us
    fleet.run(2_000_000)
    assert fleet.decode("decode-0").engine.accounts.busy_us == busy_us
    assert asked.ended_us is not None and asked.ended_us - start_us < 510_000


def test_phase_view_finds_nothing_where_nothing_is() -> None:
    fleet = Fleet(ONE_PAIR)
    asked = fleet.ask(10, 1)
    laws.finish(fleet)
    fleet.run(10_000_000)
    assert not any(View(fleet, asked).is_in(phase) for phase in Phase)
