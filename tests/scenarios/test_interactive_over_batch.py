"""Scenario 43 over a whole fleet: an interactive request comes when batch work has every slot or block."""

from dataclasses import replace

import pytest

from core.request import TenantClass
from sim import laws
from sim.config import FleetConfig, worker
from sim.fleet import Fleet, tenant

BATCH = tenant("batch", TenantClass.BATCH)
INTERACTIVE = tenant("interactive", TenantClass.INTERACTIVE)


@pytest.mark.parametrize("prefills", [0, 1])
@pytest.mark.parametrize("swap_blocks", [0, 300])
@pytest.mark.parametrize("short_of", ["slots", "blocks"])
def test_an_interactive_request_has_its_first_token_within_400_ms(
    short_of: str, swap_blocks: int, prefills: int
) -> None:
    room = {"max_running": 8} if short_of == "slots" else {"max_running": 64}
    blocks = 2_000 if short_of == "slots" else 8 * 20
    decode = worker(blocks, swap_blocks=swap_blocks, **room)
    fleet = Fleet(replace(FleetConfig(decodes=1, decode=decode), prefills=prefills))
    batch = [fleet.ask(200, 300, tenant=BATCH) for _ in range(24)]
    fleet.run(1_500_000)
    for _ in range(3):
        asked_us = fleet.loop.now_us
        urgent = fleet.ask(200, 10, tenant=INTERACTIVE)
        fleet.run_until(lambda urgent=urgent: urgent.tokens > 0)  # type: ignore[misc]
        assert fleet.loop.now_us - asked_us < 400_000
        fleet.run(200_000)
    laws.finish(fleet)
    laws.completed(*batch, urgent)
