"""L10 under preemption: swapped to the host, computed again or never disturbed, the answer is one."""

from collections.abc import Callable

import pytest

from core.cost_model import StepCost
from core.request import AttemptKey, Choice, TenantClass
from core.sampling import SamplingParams
from engine.config import EngineConfig
from engine.engine import Engine
from engine.job import Job, Stage
from engine.kernels import build
from engine.native_backend import NativeBackend
from engine.plan import Backend
from engine.timed_backend import TimedBackend, digest_layout
from engine.torch_backend import TorchBackend
from tests.reference.small_models import VOCABULARY, small_config, small_weights

COST = StepCost(base_ns=1_000_000, token_ns=100_000, context_ns=100)
ROOMY, TIGHT = 64, 9
JOBS = 8
Open = Callable[[int, int], Backend]
"""(blocks, host slots)."""


def _timed(blocks: int, host_slots: int) -> Backend:
    return TimedBackend(COST, digest_layout(16, blocks))


def _torch(dtype: str) -> Open:
    def open_it(blocks: int, host_slots: int) -> Backend:
        config = small_config()
        weights = small_weights(config)
        return TorchBackend(
            config, weights, dtype=dtype, device="cpu", block_size=16, blocks=blocks, threads=1,
            host_slots=host_slots,
        )  # fmt: skip

    return open_it


def _native(dtype: str) -> Open:
    def open_it(blocks: int, host_slots: int) -> Backend:
        config = small_config()
        weights = small_weights(config)
        return NativeBackend(
            config, weights, dtype=dtype, block_size=16, blocks=blocks, threads=2, host_slots=host_slots
        )

    return open_it


def _missing(dtype: str) -> pytest.MarkDecorator:
    reason = build.unavailable(dtype)
    return pytest.mark.skipif(bool(reason), reason=f"no native kernels: {reason}")


BACKENDS = [
    pytest.param(_timed, id="timed"),
    pytest.param(_torch("float32"), id="torch-float32"),
    *(
        pytest.param(_native(dtype), id=f"native-{dtype}", marks=_missing(dtype))
        for dtype in ("float32", "bfloat16")
    ),
]


def _job(number: int) -> Job:
    return Job(
        key=AttemptKey(f"request-{number}", 0),
        prompt=tuple((number * 31 + position * 7) % VOCABULARY for position in range(20 + 5 * number)),
        choices=tuple(Choice(index) for index in range(1 + (number == 3))),
        params=SamplingParams(max_tokens=44, temperature=0.9 * (number % 2)),
        seed=number,
        hash_root=b"rootroot",
        tenant="tenant",
        tenant_class=TenantClass(number % 3),
    )


def _run(open_it: Open, blocks: int, swap_blocks: int) -> tuple[dict[tuple[str, int], list[int]], Engine]:
    """Every output, and the engine it came from; jobs arrive one after every five steps."""
    config = EngineConfig(
        blocks=blocks, max_running=16, max_step_tokens=64, max_positions=128, prefix_cache=False,
        swap_blocks=swap_blocks, swap_block_us=0,
    )  # fmt: skip
    engine, backend = Engine(config, COST), open_it(blocks, swap_blocks)
    outputs: dict[tuple[str, int], list[int]] = {}
    steps = 0
    while steps < 5 * JOBS or engine.running or engine.waiting:
        if steps % 5 == 0 and steps < 5 * JOBS:
            assert engine.add(_job(steps // 5), Stage.FULL, steps) is None
        steps += 1
        plan = engine.plan(steps)
        if plan is not None:
            for token in engine.step_done(backend.execute(plan), steps).tokens:
                outputs.setdefault((token.key.request, token.choice), []).append(token.sampled.token)
    backend.close()
    return outputs, engine


@pytest.mark.parametrize("open_it", BACKENDS)
def test_a_preempted_request_answers_as_an_undisturbed_one(open_it: Open) -> None:
    undisturbed, roomy = _run(open_it, ROOMY, 0)
    assert roomy.preemptions == 0 and all(len(tokens) == 44 for tokens in undisturbed.values())
    recomputed, tight = _run(open_it, TIGHT, 0)
    assert tight.preemptions > 3 and tight.swaps == 0
    assert recomputed == undisturbed
    swapped, tight = _run(open_it, TIGHT, 64)
    assert tight.swaps == tight.preemptions > 3
    assert swapped == undisturbed
    assert tight.accounts.recompute_us <= 10, "nothing was computed again"
