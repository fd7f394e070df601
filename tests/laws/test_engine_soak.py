"""A long adversarial life of one small engine: laws after every step, exact answers, nothing left."""

import random
from dataclasses import dataclass, field

import pytest

from core.cost_model import StepCost
from core.outcomes import Outcome
from core.request import AttemptKey, Choice, TenantClass
from core.sampling import SamplingParams
from engine.config import EngineConfig
from engine.engine import Engine
from engine.fake_kv import FakeModel, expected_tokens
from engine.job import Job, Stage
from engine.timed_backend import Fault, TimedBackend, digest_layout

COST = StepCost(base_ns=1_000_000, token_ns=50_000, context_ns=100)
MODEL = FakeModel(vocab_size=1000, stop_token=7, stop_one_in=60)
STEPS = 12_000
"""Of all variants together, in well under a minute."""
VARIANTS = (
    {"swap_blocks": 0},
    {"swap_blocks": 12, "swap_block_us": 1},
    {"swap_blocks": 200, "swap_block_us": 0, "itl_target_us": 3_000, "long_prefill_us": 2_000},
    {"swap_blocks": 200, "swap_block_us": 50, "itl_target_us": 1, "long_partials_max": 1},
)


@dataclass
class Soak:
    """Jobs of any length, class and tenant keep coming; some are cancelled, some refused; the clock jumps."""

    draws: random.Random
    engine: Engine
    backend: TimedBackend
    now_us: int = 0
    made: int = 0
    live: dict[AttemptKey, tuple[Job, dict[int, list[int]]]] = field(default_factory=dict)
    completed: int = 0
    refused: int = 0

    def arrive(self) -> None:
        self.made += 1
        draws = self.draws
        prompt_tokens = draws.choice([1, 5, 16, 33, 80, 200, 400, 700])
        job = Job(
            key=AttemptKey(f"request-{self.made}", 0),
            prompt=((draws.randrange(3),) * 20 + (9,) * 700)[:prompt_tokens],
            choices=tuple(Choice(index) for index in range(draws.choice([1, 1, 1, 2, 3]))),
            params=SamplingParams(
                max_tokens=draws.choice([1, 2, 30, 150]), temperature=1.0, stop_token_ids=(7,)
            ),
            seed=self.made,
            hash_root=b"rootroot",
            tenant=draws.choice(["one", "two", "three"]),
            tenant_class=draws.choice(list(TenantClass)),
        )
        refusal = self.engine.add(job, Stage.FULL, self.now_us)
        if refusal is None:
            self.live[job.key] = (job, {choice.index: [] for choice in job.choices})
        else:
            assert refusal in (Outcome.PROMPT_TOO_LONG, Outcome.WORKER_FULL)
            self.refused += 1

    def step(self) -> bool:
        plan = self.engine.plan(self.now_us)
        if plan is None:
            return False
        if self.draws.random() < 0.05:
            self.cancel()
        result = self.backend.execute(plan)
        self.now_us += result.elapsed_us + self.draws.choice([0, 0, 5, 10**7])
        for token in self.engine.step_done(result, self.now_us).tokens:
            _, outputs = self.live[token.key]
            outputs[token.choice].append(token.sampled.token)
        for key in [key for key in self.live if key not in self.engine]:
            self.verify(*self.live.pop(key))
        self.engine.check()
        return True

    def cancel(self) -> None:
        if self.live:
            key = self.draws.choice(list(self.live))
            self.engine.cancel(key, self.now_us)
            del self.live[key]

    def verify(self, job: Job, outputs: dict[int, list[int]]) -> None:
        self.completed += 1
        room = self.engine.config.positions_max - len(job.prompt)
        for choice, drawn in outputs.items():
            assert drawn == expected_tokens(job.prompt, job.params, job.seed, choice, room, model=MODEL), job


def soak(variant: dict[str, int], steps: int, fault: Fault | None = None) -> Soak:
    config = EngineConfig(
        blocks=40,
        max_running=6,
        max_step_tokens=256,
        max_jobs=20,
        max_positions=600,
        **variant,  # type: ignore[arg-type]
    )
    backend = TimedBackend(COST, digest_layout(16, 40), MODEL, fault=fault)
    run = Soak(random.Random(len(str(variant))), Engine(config, COST), backend)
    for _ in range(steps):
        while run.draws.random() < 0.3:
            run.arrive()
        run.step()
    while run.step():
        pass
    return run


@pytest.mark.parametrize("variant", VARIANTS)
def test_laws_hold_and_everything_ends(variant: dict[str, int]) -> None:
    run = soak(variant, STEPS // len(VARIANTS))
    counts = run.engine.counts()
    assert not run.live and counts.free + counts.cached == counts.total
    assert run.engine.host_slots_used == 0
    assert run.engine.preemptions > 50 and run.completed > 100 and run.refused > 50
    assert (run.engine.swaps > 30) == bool(variant["swap_blocks"])


def test_kv_that_does_not_come_back_is_noticed() -> None:
    with pytest.raises(AssertionError, match="request-"):
        soak(VARIANTS[2], 2_000, Fault.SKIPPED_SWAP)
