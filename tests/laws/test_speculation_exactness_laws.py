"""L10 under speculation: with drafts, without them, preempted or not, the answer is one."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from core.cost_model import StepCost, attended
from core.request import AttemptKey, Choice, TenantClass
from core.sampling import SamplingParams
from engine.config import EngineConfig
from engine.engine import Engine
from engine.fake_kv import FakeModel
from engine.job import Job, Stage, Token
from engine.kernels import build
from engine.native_backend import NativeBackend
from engine.plan import Backend, StepPlan, StepResult
from engine.timed_backend import TimedBackend, digest_layout
from engine.torch_backend import TorchBackend
from tests.reference.small_models import small_config, small_weights

COST = StepCost(base_ns=1_000_000, token_ns=10_000, context_ns=0)
BLOCKS = 96
PHRASE = (11, 12, 13, 14, 15, 16, 17)
Open = Callable[[], Backend]


def _timed() -> Backend:
    return TimedBackend(COST, digest_layout(16, BLOCKS), FakeModel(vocab_size=2))


def _torch(dtype: str) -> Open:
    def open_it() -> Backend:
        config = small_config()
        shape: dict[str, Any] = {"device": "cpu", "block_size": 16, "blocks": BLOCKS, "threads": 1}
        return TorchBackend(config, small_weights(config), dtype=dtype, host_slots=BLOCKS, **shape)

    return open_it


def _native(dtype: str) -> Open:
    def open_it() -> Backend:
        config = small_config()
        shape: dict[str, Any] = {"block_size": 16, "blocks": BLOCKS, "threads": 2, "host_slots": BLOCKS}
        return NativeBackend(config, small_weights(config), dtype=dtype, **shape)

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
PARAMS = (
    {"temperature": 0.0},
    {"temperature": 0.1},
    {"temperature": 0.15, "top_p": 0.9, "logprobs": 3},
    {"temperature": 0.0, "frequency_penalty": 0.2, "repetition_penalty": 1.05},
    {"temperature": 0.1, "presence_penalty": 0.4},
    {"temperature": 0.0, "logprobs": 2, "min_tokens": 30, "stop_token_ids": tuple(range(40, 160))},
    {"temperature": 0.1, "min_tokens": 12, "stop_token_ids": tuple(range(40, 160))},
)
"""Every kind of draw whose outcome depends on where it stands or on what came before."""


def _job(number: int) -> Job:
    params: dict[str, Any] = {"max_tokens": 60, **PARAMS[number]}
    return Job(
        key=AttemptKey(f"request-{number}", 0),
        prompt=(number, *PHRASE * (3 + number)),
        choices=tuple(Choice(index) for index in range(1 + (number == 1))),
        params=SamplingParams(**params),
        seed=number,
        hash_root=b"rootroot",
        tenant="tenant",
        tenant_class=TenantClass.STANDARD,
    )


def _as_predicted(plan: StepPlan, result: StepResult) -> StepResult:
    """What drafts pay then depends on no clock."""
    context = sum(attended(row.start, row.start + len(row.tokens)) for row in plan.rows)
    return msgspec.structs.replace(result, elapsed_us=COST.step_us(plan.tokens, context))


def _run(open_it: Open, **changes: Any) -> tuple[dict[tuple[str, int], list[Token]], Engine]:
    fields: dict[str, Any] = {"blocks": BLOCKS, "max_step_tokens": 64, "prefix_cache": False, **changes}
    engine, backend = Engine(EngineConfig(**fields), COST), open_it()
    for number in range(len(PARAMS)):
        assert engine.add(_job(number), Stage.FULL, 0) is None
    outputs: dict[tuple[str, int], list[Token]] = {}
    while (plan := engine.plan(0)) is not None:
        result = _as_predicted(plan, backend.execute(plan))
        for token in engine.step_done(result, 0).tokens:
            outputs.setdefault((token.key.request, token.choice), []).append(token)
        engine.check()
    backend.close()
    return outputs, engine


@pytest.mark.parametrize("open_it", BACKENDS)
def test_drafts_change_nothing_but_the_number_of_steps(open_it: Open) -> None:
    """Tokens, log probabilities and ends, to the bit."""
    plain, without = _run(open_it, speculation=0)
    assert without.drafted == 0
    for changes in (
        {"speculation": 1},
        {"speculation": 8},
        {"speculation": 8, "max_running": 2},
        {"speculation": 8, "blocks": 24, "watermark_blocks": 0},
        {"speculation": 8, "blocks": 24, "swap_blocks": BLOCKS, "swap_block_us": 0},
    ):
        found, engine = _run(open_it, **changes)
        assert found == plain, changes
        assert engine.drafted > engine.accepted > 10, changes
        assert (engine.preemptions > 0) == ("blocks" in changes), changes
