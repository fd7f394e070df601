"""One random run of a fleet from its seed: what is asked, what befalls it, and whether the laws held."""

from dataclasses import dataclass, replace
from random import Random

from core.outcomes import Outcome
from sim import faults, laws
from sim.config import FleetConfig, worker
from sim.fleet import Fleet
from sim.worker_node import WorkerSpec
from sim.workload import Workload, plan

POOLS = (40, 64, 200)
"""Blocks of 16 tokens: from where everything is preempted to where nothing is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """`baton sim` in one value."""

    seed: int = 0
    requests: int = 40
    faults: int = 5
    span_us: int = 3_000_000
    keep_text: bool = False
    record: bool = False
    check_every: int = 1

    @property
    def command(self) -> str:
        """Replays this run."""
        return f"baton sim --seed {self.seed} --requests {self.requests} --faults {self.faults} --log"


class BrokenLaw(AssertionError):
    """A law did not hold; the message says which, when, and how to see it again."""


def run(config: RunConfig) -> Fleet:
    """Runs to the end and checks every law. Raises BrokenLaw."""
    fleet = begin(config)
    try:
        conclude(fleet, config)
    except Exception as error:
        at = f"at {fleet.loop.now_us / 1e6:.6f} s: {type(error).__name__}: {error}"
        raise BrokenLaw(f"{at}\nreplay with: {config.command}") from error
    return fleet


def begin(config: RunConfig) -> Fleet:
    random = Random(config.seed)
    fleet = Fleet(
        replace(
            _drawn(random),
            seed=config.seed,
            keep_text=config.keep_text,
            record=config.record,
            check_every=config.check_every,
        )
    )
    plan(fleet, Workload(requests=config.requests, span_us=config.span_us), random)
    if config.faults:
        faults.at_random(fleet, random, config.faults, config.span_us)
    return fleet


def conclude(fleet: Fleet, config: RunConfig) -> None:
    fleet.run(config.span_us)
    laws.finish(fleet)
    allowed = [Outcome.COMPLETED, Outcome.CANCELLED]
    if config.faults:
        # Where all workers of a kind are gone for long, this is the truth.
        allowed += [Outcome.NO_WORKER, Outcome.WORKER_LOST]
    for asked in fleet.clients.asked.values():
        assert asked.abandoned or asked.outcome in allowed, f"{asked.request}: {asked.end}"


def _drawn(random: Random) -> FleetConfig:
    def spec(running: int) -> WorkerSpec:
        return worker(random.choice(POOLS), max_running=random.choice((running, 16)))

    return FleetConfig(gateways=2, routers=2, prefills=2, decodes=2, prefill=spec(3), decode=spec(4))
