"""KV moves between two machines: every process listens and is reached where it was told, not on loopback."""

import contextlib
import json
import re
import subprocess
import urllib.request
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import redis

from baton.fleet_plan import Planned, UpOptions, plan_fleet
from baton.supervisor import Child, Supervisor
from baton.up import prepare
from capacity.embedded import find_binary
from core.parent_death import tied
from core.sampling import SamplingParams
from engine.fake_kv import expected_tokens
from tests.e2e.grpc_client import until
from tests.live.namespaces import Machine, two_machines
from text.tokenizer import Tokenizer

OPTIONS = UpOptions(backend="timed", cores={})
READY_S = 60.0
STORE_PORT = 6379
PROMPT = tuple(range(1000, 1600))
OUTPUT_TOKENS = 8
DIGEST_BYTES = 16
"""Of a token's fake KV."""


@contextlib.asynccontextmanager
async def store(home: Machine, folder: Path) -> AsyncIterator[str]:
    options = f"--bind {home.address} --port {STORE_PORT} --protected-mode no --save".split()
    command = home.command(str(find_binary()), *options, "", "--dir", str(folder))
    process = subprocess.Popen(tied(command), stdout=subprocess.DEVNULL)
    url = f"redis://{home.address}:{STORE_PORT}"

    def answers() -> bool:
        try:
            with redis.Redis.from_url(url, socket_timeout=1) as client:
                return bool(client.ping())
        except redis.RedisError:
            return False

    try:
        await until(lambda: home.run(answers), 10, "the store answers")
        yield url
    finally:
        process.kill()
        process.wait()


def child(process: Planned, where: Machine, **told: str) -> Child:
    settings = {f"BATON_{process.role}_{key}".upper(): value for key, value in told.items()}
    command = where.command(*process.command)
    return Child(process.name, command, {**process.environment, **settings})


@contextlib.asynccontextmanager
async def fleet(near: Machine, far: Machine, url: str) -> AsyncIterator[Mapping[str, Child]]:
    """By role. The prefill worker is far from all others."""
    planned = plan_fleet(OPTIONS, prepare(OPTIONS), http_port=0, grpc_port=0, redis_url=url)
    anywhere = {"address": "0.0.0.0:0", "metrics_port": "0"}
    told = {
        "prefill": {**anywhere, "advertise_host": far.address},
        "decode": {"address": f"{near.address}:0", "metrics_port": "0"},
        # No way out: where the hand-off fails, so does the request.
        "router": {**anywhere, "advertise_host": near.address, "policy": '{"fallback": "never"}'},
        "gateway": {"host": near.address, "http_port": "0", "peer_host": near.address},
    }
    supervisor = Supervisor(print)
    children = {
        process.role: child(process, far if process.role == "prefill" else near, **told[process.role])
        for process in planned
    }
    try:
        for each in children.values():
            supervisor.add(each)
        await supervisor.all_ready(READY_S)
        yield children
    finally:
        await supervisor.stop(lambda each: 0)


def fetch(url: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=20) as response:
        return response.read().decode()


def metric(machine: Machine, process: Child, name: str) -> int:
    page = machine.run(lambda: fetch(f"http://{machine.address}:{process.announced['metrics_port']}/metrics"))
    found = re.search(rf"^{name} ([\d.e+]+)$", page, re.MULTILINE)
    assert found is not None, page
    return int(float(found[1]))


async def test_an_answer_is_handed_over_from_one_machine_to_another(tmp_path: Path) -> None:
    with two_machines() as (near, far):
        async with store(near, tmp_path) as url, fleet(near, far, url) as children:
            gateway = f"http://{children['gateway'].announced['http']}"

            def both_known() -> bool:
                return metric(near, children["router"], "baton_router_workers") == 2

            await until(both_known, 10, "both workers are at the router")
            before = near.received_bytes()
            body = {
                "model": OPTIONS.model,
                "prompt": PROMPT,
                "max_tokens": OUTPUT_TOKENS,
                "temperature": 0,
                "ignore_eos": True,
            }
            answer = json.loads(near.run(lambda: fetch(f"{gateway}/v1/completions", body)))
            params = SamplingParams(temperature=0.0, max_tokens=OUTPUT_TOKENS)
            right = expected_tokens(PROMPT, params, 0, 0, OUTPUT_TOKENS)
            tokenizer = Tokenizer.open(Path(prepare(OPTIONS).folder))
            assert answer["choices"][0]["text"] == tokenizer.decode(right)
            # Whose work it was: the prompt's there, the rest here, on KV that came over the cable.
            computed = "baton_worker_computed_tokens_total"
            assert metric(far, children["prefill"], computed) == len(PROMPT)
            assert metric(near, children["decode"], computed) == OUTPUT_TOKENS - 1
            assert near.received_bytes() - before > len(PROMPT) * DIGEST_BYTES
