"""Whatever else is asked without end, a request starts: tables of a target beside endless streams."""

from dataclasses import dataclass
from itertools import combinations
from typing import Any

import pytest

from core.request import TenantClass
from engine.class_shares import CREDIT_MAX_US, MINIMUM_PARTS
from tests.scenarios.engine_clock import COST, Asked, EngineClock

INTERACTIVE, STANDARD, BATCH = TenantClass.INTERACTIVE, TenantClass.STANDARD, TenantClass.BATCH
SHORT, LONG = 60, 1_200
"""Prompt tokens; the second take more than EngineConfig.long_prefill_us."""
OUTPUT = 10
AHEAD = 6
"""Requests of each stream that wait or run at any time."""
SLACK = 4
"""How many times later than its share of the engine's time would have it a request may start."""


@dataclass(frozen=True)
class Kind:
    """What one tenant asks; a tenant is of one class."""

    tenant_class: TenantClass
    prompt_tokens: int
    tenant: str

    @property
    def cost_us(self) -> int:
        return COST.prefill_us(self.prompt_tokens, 0) + OUTPUT * COST.base_ns // 1000


class Streams:
    """An engine that is always asked more than it can do."""

    def __init__(self, kinds: list[Kind], **config: Any) -> None:
        self.clock = EngineClock(**config)
        self._alive: dict[Kind, list[Asked]] = {kind: [] for kind in kinds}

    def ask(self, kind: Kind) -> Asked:
        return self.clock.ask(
            kind.prompt_tokens, OUTPUT, kind.tenant_class, f"{kind.tenant_class}{kind.tenant}"
        )

    def step(self) -> None:
        for kind, alive in self._alive.items():
            alive[:] = [asked for asked in alive if not asked.is_ended]
            alive.extend(self.ask(kind) for _ in range(AHEAD - len(alive)))
        self.clock.step()

    def run_for(self, duration_us: int) -> None:
        until_us = self.clock.now_us + duration_us
        while self.clock.now_us < until_us:
            self.step()

    def starts(self, target: Kind) -> bool:
        """Whether it does in the time that its class's least share takes for it and what came before."""
        before = [kind for kind in self._alive if kind.tenant_class is target.tenant_class]
        work_us = target.cost_us + sum(AHEAD * kind.cost_us for kind in before)
        parts = MINIMUM_PARTS.get(target.tenant_class, 2)
        asked = self.ask(target)
        while not asked.tokens and self.clock.now_us - asked.at_us < SLACK * parts * (
            work_us + CREDIT_MAX_US
        ):
            self.step()
        return bool(asked.tokens)


def kinds(text: str) -> list[Kind]:
    """ "I s a": class, length and tenant of each."""
    classes = {tenant_class.name[0]: tenant_class for tenant_class in TenantClass}
    return [
        Kind(classes[name], SHORT if length == "s" else LONG, tenant)
        for name, length, tenant in (word.split("-") for word in text.split())
    ]


@pytest.mark.parametrize("slots", [3, 32])
@pytest.mark.parametrize(
    ("target", "streams"),
    [
        pytest.param("S-L-a", "S-s-a", id="a tenant's own short ones"),
        pytest.param("S-L-a", "S-s-a S-s-b", id="its own and another's short ones"),
        pytest.param("S-L-a", "S-s-b", id="another's short ones"),
        pytest.param("S-L-a", "S-L-b S-s-b", id="all another asks"),
        pytest.param("S-s-a", "S-L-b S-s-b", id="a short one beside all another asks"),
        pytest.param("I-L-a", "I-s-a S-s-b B-s-c", id="its own short ones and lower classes"),
        pytest.param("S-L-a", "I-s-b", id="a more urgent class"),
        pytest.param("S-L-a", "I-s-b S-s-a", id="a more urgent class and its own short ones"),
        pytest.param("S-L-a", "I-s-b S-L-a", id="a more urgent class and its own long ones"),
        pytest.param("S-L-a", "I-s-b I-L-b S-s-c", id="a more urgent class and another's short ones"),
        pytest.param("B-L-a", "I-s-b B-s-c", id="batch: a more urgent class and another's short ones"),
        pytest.param("B-L-a", "I-s-b S-s-b B-s-a", id="batch: both urgent classes and its own short ones"),
        pytest.param("B-s-a", "I-L-b S-L-b B-L-c", id="batch: nothing but long ones"),
    ],
)
def test_whatever_else_is_asked_without_end_a_request_starts(target: str, streams: str, slots: int) -> None:
    beside = Streams(kinds(streams), max_running=slots)
    beside.run_for(2_000_000)
    assert beside.starts(kinds(target)[0])


@pytest.mark.parametrize(
    ("target_class", "target_tokens", "streams"),
    [
        pytest.param(INTERACTIVE, 150, [(BATCH, 60)], id="smaller ones of batch"),
        pytest.param(INTERACTIVE, 150, [(STANDARD, 60)], id="smaller ones of the next class"),
        pytest.param(INTERACTIVE, 220, [(BATCH, 30)], id="tiny ones of batch"),
        pytest.param(INTERACTIVE, 150, [(BATCH, 60), (STANDARD, 1_200)], id="smaller ones and long ones"),
        pytest.param(INTERACTIVE, 150, [(BATCH, 1_200)], id="long ones of batch"),
        pytest.param(STANDARD, 150, [(STANDARD, 1_200)], id="long ones of its own class"),
    ],
)
def test_a_prompt_that_waits_to_be_computed_at_once_is_not_passed_for_long(
    target_class: TenantClass, target_tokens: int, streams: list[tuple[TenantClass, int]]
) -> None:
    """Where all is spent that earlier steps saved, it waits no longer than if it were cut."""
    waited_us = []
    for burst_us in (0, 200_000):
        clock = EngineClock(max_running=64, prefill_burst_us=burst_us, itl_target_us=50_000)
        beside = [clock.ask(20, 3_000, INTERACTIVE, "decodes") for _ in range(8)]
        alive: list[Asked] = []
        target: Asked | None = None
        while target is None or not target.tokens:
            alive = [asked for asked in alive if not asked.is_ended]
            while len(alive) < AHEAD * len(streams):
                tenant_class, tokens = streams[len(clock.asked) % len(streams)]
                alive.append(clock.ask(tokens, 1, tenant_class, "floods"))
            clock.step()
            assert not any(stream.is_ended for stream in beside)
            if target is None and clock.now_us > 5_000_000:
                target = clock.ask(target_tokens, 1, target_class, "asks")
        waited_us.append(target.first_token_us)
    assert waited_us[1] <= 1.5 * waited_us[0] + 50_000


def test_who_comes_new_to_a_class_does_not_wait_for_what_other_classes_were_given() -> None:
    """The clock of a class that gets a twentieth of the time lies far behind the others'."""
    beside = Streams(kinds("I-s-b B-s-c"), max_running=3, swap_blocks=400)
    beside.run_for(100_000_000)
    assert beside.starts(kinds("B-s-a")[0])


@pytest.mark.soak
@pytest.mark.parametrize("slots", [3, 32])
@pytest.mark.parametrize("target", [f"{name}-{length}-a" for name in "ISB" for length in "sL"])
def test_a_request_starts_beside_any_two_streams(target: str, slots: int) -> None:
    names = [f"{name}-{length}-{tenant}" for name in "ISB" for length in "sL" for tenant in "ab"]
    for streams in combinations(names, 2):
        beside = Streams(kinds(" ".join(streams)), max_running=slots)
        beside.run_for(2_000_000)
        assert beside.starts(kinds(target)[0]), streams
