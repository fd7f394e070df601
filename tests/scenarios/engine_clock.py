"""An engine alone in virtual time: jobs arrive when asked, steps take what they are predicted to take."""

from dataclasses import dataclass, field
from typing import Any

from core.cost_model import StepCost
from core.request import AttemptKey, Choice, TenantClass
from core.sampling import SamplingParams
from engine.config import EngineConfig
from engine.engine import Engine
from engine.fake_kv import expected_tokens
from engine.job import Job, Stage
from engine.timed_backend import TimedBackend, digest_layout

COST = StepCost(base_ns=8_000_000, token_ns=500_000, context_ns=200)
"""A small model on two CPU cores: a step of 8 ms, 0.5 ms a token."""
TARGET_US = 50_000


@dataclass
class Asked:
    """A job, and when each of its tokens came."""

    job: Job
    at_us: int
    tokens: list[int] = field(default_factory=list)
    times_us: list[int] = field(default_factory=list)
    is_ended: bool = False

    @property
    def first_token_us(self) -> int:
        """TTFT."""
        return self.times_us[0] - self.at_us

    def gaps_us(self, since_us: int = 0) -> list[int]:
        """ITLs of tokens after `since_us`."""
        pairs = zip(self.times_us, self.times_us[1:], strict=False)
        return [later - earlier for earlier, later in pairs if earlier >= since_us]


class EngineClock:
    """`slowness` makes every step take so many times what the declared cost says."""

    def __init__(
        self, *, blocks: int = 2048, slowness: int = 1, cost: StepCost = COST, **config: int
    ) -> None:
        settings: dict[str, Any] = {"itl_target_us": TARGET_US, "max_positions": 4096, **config}
        self.engine = Engine(EngineConfig(blocks=blocks, prefix_cache=False, **settings), cost)
        self.backend = TimedBackend(cost, digest_layout(16, blocks))
        self.slowness = slowness
        self.now_us = 1_000_000
        self.asked: dict[AttemptKey, Asked] = {}
        self.steps_us: list[int] = []

    def ask(
        self,
        prompt_tokens: int,
        max_tokens: int,
        tenant_class: TenantClass = TenantClass.STANDARD,
        tenant: str = "tenant",
        weight: float = 1.0,
    ) -> Asked:
        number = len(self.asked)
        job = Job(
            key=AttemptKey(f"request-{number}", 0),
            prompt=tuple((number * 7 + position) % 997 for position in range(prompt_tokens)),
            choices=(Choice(0),),
            params=SamplingParams(max_tokens=max_tokens),
            seed=number,
            hash_root=b"rootroot",
            tenant=tenant,
            tenant_class=tenant_class,
            tenant_weight=weight,
        )
        assert self.engine.add(job, Stage.FULL, self.now_us) is None
        self.asked[job.key] = Asked(job, self.now_us)
        return self.asked[job.key]

    def step(self) -> bool:
        plan = self.engine.plan(self.now_us)
        if plan is None:
            return False
        result = self.backend.execute(plan)
        elapsed_us = result.elapsed_us * self.slowness
        self.now_us += elapsed_us
        self.steps_us.append(elapsed_us)
        slow = type(result)(result.step, result.sampled, elapsed_us)
        for token in self.engine.step_done(slow, self.now_us).tokens:
            asked = self.asked[token.key]
            asked.tokens.append(token.sampled.token)
            asked.times_us.append(self.now_us)
            asked.is_ended = token.finish is not None
        if len(self.steps_us) % 16 == 0:
            self.engine.check()
        return True

    def run_for(self, duration_us: int) -> None:
        until_us = self.now_us + duration_us
        while self.now_us < until_us:
            if not self.step():
                self.now_us = until_us

    def finish(self) -> None:
        """To the end of everything; every answer is then whole and exact."""
        while self.step():
            pass
        self.engine.check()
        for asked in self.asked.values():
            job = asked.job
            assert asked.is_ended
            assert asked.tokens == expected_tokens(job.prompt, job.params, job.seed, 0, job.params.max_tokens)
