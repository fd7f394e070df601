"""What clients ask over time."""

from dataclasses import dataclass
from random import Random

from core.request import TenantClass
from services.gateway.requests import Tenant
from sim.fleet import PUBLIC_SALT, Fleet


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Requests spread evenly at random over a span; lengths are drawn between (least, most)."""

    requests: int = 40
    span_us: int = 2_000_000
    prompt_tokens: tuple[int, int] = (1, 400)
    max_tokens: tuple[int, int] = (1, 40)
    tenants: int = 3
    shared_prefix_one_in: int = 4
    """Prompts that begin with their tenant's system prompt."""
    public_one_in: int = 10
    choices_one_in: int = 8
    """Requests for three answers."""
    sampled_one_in: int = 2
    """At temperature 1."""
    cancel_one_in: int = 6
    """Clients that leave after a while."""
    stop_one_in: int = 10
    """Requests with a stop string."""


def plan(fleet: Fleet, workload: Workload, random: Random) -> None:
    """Puts every arrival on the fleet's clock; what it asks for is drawn now."""
    system_prompts = [fleet.prompt(160) for _ in range(workload.tenants)]
    for _ in range(workload.requests):
        _plan_one(fleet, workload, random, system_prompts)


def _plan_one(
    fleet: Fleet, workload: Workload, random: Random, system_prompts: list[tuple[int, ...]]
) -> None:
    number = random.randrange(workload.tenants)
    tenant = Tenant(f"tenant-{number}", TenantClass(number % len(TenantClass)))
    prompt = fleet.prompt(random.randint(*workload.prompt_tokens))
    if _one_in(random, workload.shared_prefix_one_in):
        prompt = system_prompts[number] + prompt
    max_tokens = random.randint(*workload.max_tokens)
    gateway = random.choice(fleet.gateways)
    choices = 3 if _one_in(random, workload.choices_one_in) else 1
    temperature = 1.0 if _one_in(random, workload.sampled_one_in) else 0.0
    salt = PUBLIC_SALT if _one_in(random, workload.public_one_in) else None
    stop_after = random.randint(1, max_tokens) if _one_in(random, workload.stop_one_in) else 0
    leaves_after_us = random.randrange(1_000_000) if _one_in(random, workload.cancel_one_in) else None

    def ask() -> None:
        if not fleet.gateway(gateway).alive:
            return
        asked = fleet.ask(
            prompt,
            max_tokens,
            gateway=gateway,
            tenant=tenant,
            choices=choices,
            temperature=temperature,
            stop_after=stop_after,
            salt=salt,
        )
        if leaves_after_us is not None:
            fleet.loop.after(leaves_after_us, lambda: fleet.cancel(asked))

    fleet.loop.after(random.randrange(workload.span_us), ask)


def _one_in(random: Random, count: int) -> bool:
    return count > 0 and random.randrange(count) == 0
