"""What a prefill worker says of its load."""

from core.cost_model import StepCost
from engine.config import EngineConfig
from prefill_worker.config import PrefillConfig
from prefill_worker.prefill_worker import build


def test_an_idle_worker_says_that_nothing_waits() -> None:
    """However dear a step is: a router that heard of work there would wait for it for ever."""
    slow = StepCost(base_ns=150_000_000, token_ns=900_000, context_ns=180)
    engine = EngineConfig(blocks=16, block_size=16, max_running=4, max_step_tokens=64, max_positions=256)
    worker = build(PrefillConfig(), engine, slow, bytes_per_token=16)
    assert worker.queued_prefill_us() == 0
    worker.check()
