"""What one placement decision costs by fleet size: median and 99th percentile, in microseconds of CPU."""

import argparse
import json
import random
import statistics
import time
from collections import deque

from core.outcomes import Outcome
from core.request import AttemptKey, ModelIdentity, Role
from router.actions import Place
from router.messages import InstanceInfo, PrefixEvents, Submission, WorkerHello
from router.policy import RouterPolicy
from router.router import Router

MODEL = ModelIdentity("model", "r1")
RUNNING_MAX = 64
HASHES = [number.to_bytes(8, "little") for number in range(128)]


def fleet(workers: int) -> Router:
    """Half prefill, half decode; a 2k-token prefix is cached on one worker in eight."""
    router = Router("r1", RouterPolicy(worker_queue_us=10_000_000))
    router.leases_lost(0)
    router.gateway_up("g", "i", (), 0)
    info = InstanceInfo(
        model=MODEL, dtype="float32", block_size=16, blocks_total=100_000, max_positions=131_072,
        max_running=10_000, cost_base_ns=5_000_000, cost_token_ns=20_000, cost_context_ns=2,
        kv_bytes_per_token=100_000,
    )  # fmt: skip
    for number in range(workers):
        role = Role.PREFILL if number % 2 else Role.DECODE
        router.worker_hello(WorkerHello(f"w{number}", "i", role, f"h{number}:1", 1, (info,)), 0)
        if number % 8 == 0:
            router.prefix_events(f"w{number}", "i", PrefixEvents(0, MODEL, True, b"".join(HASHES)), 0)
    return router


def measure(workers: int, decisions: int) -> dict[str, float]:
    """Times `submit` that places at once, first token and settle following untimed."""
    router, rng, times_us = fleet(workers), random.Random(1), []
    running: deque[AttemptKey] = deque()
    for number in range(decisions):
        key = AttemptKey(f"q{number}", 1)
        submission = Submission(
            key=key, tenant=f"t{number % 7}", model=MODEL, prompt_tokens=rng.randrange(100, 4000),
            max_tokens=256, prefix_hashes=b"".join(HASHES[: rng.randrange(129)]),
        )  # fmt: skip
        start = time.thread_time_ns()
        answers = router.submit("g", submission, number * 1000)
        times_us.append((time.thread_time_ns() - start) / 1000)
        assert isinstance(answers[0], Place), answers
        running.append(key)
        if len(running) > RUNNING_MAX:
            oldest = running.popleft()
            router.first_token(oldest, number * 1000)
            router.settle(oldest, Outcome.COMPLETED, submission.prompt_tokens, 100, True, number * 1000)
    times_us.sort()
    return {"median_us": statistics.median(times_us), "p99_us": times_us[int(len(times_us) * 0.99)]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 32, 500, 4000])
    parser.add_argument("--decisions", type=int, default=2000)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    options = parser.parse_args()
    results = {str(workers): measure(workers, options.decisions) for workers in options.workers}
    for workers, result in results.items():
        print(f"{workers:>6} workers: median {result['median_us']:.0f} us, p99 {result['p99_us']:.0f} us")
    if options.json:
        print(json.dumps({"bench": "router_placement", "workers": results}))


if __name__ == "__main__":
    main()
