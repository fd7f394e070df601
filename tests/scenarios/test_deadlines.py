"""Scenario 49: nothing is computed for a request whose deadline has passed."""

from dataclasses import replace

import pytest

from core.outcomes import Outcome
from engine.plan import StepPlan
from sim import laws
from sim.config import FleetConfig, worker
from sim.fleet import Fleet
from sim.worker_node import WorkerNode

SMALL = worker(512, max_step_tokens=64)


@pytest.mark.parametrize("prefills", [0, 1])
@pytest.mark.parametrize(("prompt", "max_tokens"), [(3_500, 4), (200, 2_000), (1_500, 400)])
def test_no_step_runs_for_a_request_past_its_deadline(prefills: int, prompt: int, max_tokens: int) -> None:
    """500 ms to live, in the middle of its prefill, its hand-off or its decode: none after 600 ms."""
    fleet = Fleet(replace(FleetConfig(decodes=1, prefill=SMALL, decode=SMALL), prefills=prefills))
    steps: list[tuple[int, str]] = []
    for node in fleet.nodes.values():
        if isinstance(node, WorkerNode):
            _watch(fleet, node, steps)
    others = [fleet.ask(100, 200) for _ in range(3)]
    fleet.run(50_000)
    asked_us = fleet.loop.now_us
    asked = fleet.ask(prompt, max_tokens, deadline_us=500_000)
    laws.finish(fleet)
    laws.completed(*others)
    assert asked.outcome is Outcome.DEADLINE_EXCEEDED
    mine = [at_us for at_us, request in steps if request == asked.request]
    assert mine and max(mine) < asked_us + 600_000
    assert max(at_us for at_us, _ in steps) > asked_us + 600_000, "the others went on"


def _watch(fleet: Fleet, node: WorkerNode, steps: list[tuple[int, str]]) -> None:
    run = node.run_step

    def run_step(plan: StepPlan) -> None:
        steps.extend((fleet.loop.now_us, sequence.job.key.request) for sequence in node.engine._stepping)
        run(plan)

    node.run_step = run_step  # type: ignore[method-assign]
