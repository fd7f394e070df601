"""Evicted prefixes come back from the host: when, for whom, and with what in them."""

import pytest

from core.cost_model import StepCost
from core.request import AttemptKey, Choice, TenantClass
from core.sampling import SamplingParams
from engine.config import EngineConfig
from engine.engine import Engine
from engine.fake_kv import expected_tokens
from engine.job import Job, Stage, Token
from engine.plan import StepPlan
from engine.timed_backend import Fault, TimedBackend, digest_layout

COST = StepCost(base_ns=1_000_000, token_ns=100_000, context_ns=0)


class Node:
    """A pool of ten blocks beside a host pool; one job at a time."""

    def __init__(self, *, swap_blocks: int = 20, swap_block_us: int = 10, fault: Fault | None = None) -> None:
        config = EngineConfig(
            blocks=10, swap_blocks=swap_blocks, swap_block_us=swap_block_us, watermark_blocks=0
        )
        self.engine = Engine(config, COST)
        self.backend = TimedBackend(COST, digest_layout(16, 10), fault=fault)
        self.jobs = 0
        self.plans: list[StepPlan] = []

    def job(self, first: int, prompt_tokens: int = 100) -> Job:
        self.jobs += 1
        return Job(
            key=AttemptKey(f"request-{self.jobs}", 0),
            prompt=tuple(range(first, first + prompt_tokens)),
            choices=(Choice(0),),
            params=SamplingParams(max_tokens=3),
            seed=1,
            hash_root=b"rootroot",
            tenant="tenant",
            tenant_class=TenantClass.STANDARD,
        )

    def run(self, first: int, prompt_tokens: int = 100) -> int:
        """Cached tokens of a prompt that begins with `first`; its answer is checked."""
        job = self.job(first, prompt_tokens)
        assert self.engine.add(job, Stage.FULL, 0) is None
        tokens: list[Token] = []
        self.plans = []
        while (plan := self.engine.plan(0)) is not None:
            self.plans.append(plan)
            tokens += self.engine.step_done(self.backend.execute(plan), 0).tokens
            self.engine.check()
        assert [token.sampled.token for token in tokens] == expected_tokens(job.prompt, job.params, 1, 0, 3)
        return tokens[0].cached_tokens


def test_an_evicted_prefix_comes_back_from_the_host() -> None:
    node = Node()
    assert node.run(0) == 0
    assert node.run(1_000) == 0
    assert node.plans[0].swap_out, "the second prompt pushed out parts of the first"
    assert node.run(0) == 96
    assert node.plans[0].swap_in
    assert node.run(1_000) == 96


def test_what_does_not_come_back_whole_is_noticed() -> None:
    node = Node(fault=Fault.SKIPPED_SWAP)
    node.run(0)
    node.run(1_000)
    with pytest.raises(AssertionError):
        node.run(0)


@pytest.mark.parametrize(("swap_blocks", "swap_block_us"), [(0, 10), (20, 900)])
def test_without_room_or_gain_it_is_forgotten(swap_blocks: int, swap_block_us: int) -> None:
    node = Node(swap_blocks=swap_blocks, swap_block_us=swap_block_us)
    node.run(0)
    node.run(1_000)
    assert not node.plans[0].swap_out
    assert node.run(0) < 96


def test_the_oldest_falls_out_at_the_bottom() -> None:
    node = Node(swap_blocks=5)
    for first in (0, 1_000, 2_000, 3_000):
        node.run(first)
    assert node.run(0) == 0
    assert node.run(3_000) > 0


def test_routers_hear_of_a_prefix_until_it_falls_out() -> None:
    node = Node(swap_blocks=5)
    node.run(0)
    first = node.engine.take_prefix_changes().stored
    assert len(first) == 6
    node.run(1_000)
    assert not set(node.engine.take_prefix_changes().removed) & set(first[:1]), (
        "on the host it is still there"
    )
    node.run(2_000)
    node.run(3_000)
    assert set(first) <= set(node.engine.take_prefix_changes().removed)
    assert not set(first) & set(node.engine.prefix_hashes())


def test_a_transfer_is_never_mixed_with_what_is_on_the_host() -> None:
    """Bound blocks may be written before the next step runs: only what is on the device counts as cached."""
    node = Node()
    node.run(0)
    node.run(1_000)
    job = node.job(0)
    assert node.engine.add(job, Stage.DECODE, 0) is None
    bound = node.engine.bind(job.key, 0)
    assert bound is not None and bound.cached_tokens < 96
    node.engine.cancel(job.key, 0)
    node.engine.check()
