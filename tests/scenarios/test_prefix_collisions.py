"""Scenario 18: two prefixes under one hash are told apart, and never answer for each other."""

import random

from core.cost_model import StepCost
from core.request import AttemptKey, Choice, TenantClass
from core.sampling import SamplingParams
from engine.config import EngineConfig
from engine.engine import Engine
from engine.fake_kv import expected_tokens
from engine.job import Job, Stage
from engine.timed_backend import TimedBackend, digest_layout


def test_a_prefix_hash_of_eight_bits_collides_and_is_never_believed() -> None:
    draws = random.Random(18)
    engine = Engine(EngineConfig(blocks=600, prefix_hash_bits=8), StepCost(1_000_000, 10_000, 0))
    backend = TimedBackend(StepCost(1_000_000, 10_000, 0), digest_layout(16, 600))
    answers: dict[AttemptKey, list[int]] = {}
    cached = 0
    prompts = [tuple(draws.randrange(1000) for _ in range(80)) for _ in range(120)]
    for number, prompt in enumerate([*prompts, *prompts]):
        job = Job(
            key=AttemptKey(f"request-{number}", 0),
            prompt=prompt,
            choices=(Choice(0),),
            params=SamplingParams(max_tokens=3),
            seed=1,
            hash_root=b"rootroot",
            tenant="tenant",
            tenant_class=TenantClass.STANDARD,
        )
        assert engine.add(job, Stage.FULL, 0) is None
        while (plan := engine.plan(0)) is not None:
            for token in engine.step_done(backend.execute(plan), 0).tokens:
                answers.setdefault(token.key, []).append(token.sampled.token)
                cached += token.cached_tokens > 0
        assert answers[job.key] == expected_tokens(prompt, job.params, 1, 0, 3)
        engine.check()
    assert engine.prefix_collisions > 100
    assert cached > 20, "the cache still serves what it has"
