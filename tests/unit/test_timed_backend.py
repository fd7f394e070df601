"""Fake KV: the same answer by every road, and another one for every planted fault."""

import pytest

from core.cost_model import StepCost, attended
from core.request import AttemptKey, Choice, TenantClass
from core.sampling import SamplingParams
from engine.config import EngineConfig
from engine.engine import Engine
from engine.fake_kv import FakeModel, expected_tokens
from engine.job import FirstToken, Job, Stage
from engine.plan import KvLayout, Row, Sampled, SampleSpec, StepPlan
from engine.timed_backend import Fault, TimedBackend, digest_layout

COST = StepCost(base_ns=1_000_000, token_ns=10_000, context_ns=100)
PROMPT = tuple(range(50, 91))
PARAMS = SamplingParams(temperature=0.0, max_tokens=12)


def job(name: str = "a", *, choices: int = 1, prompt: tuple[int, ...] = PROMPT) -> Job:
    return Job(
        key=AttemptKey(name, 0),
        prompt=prompt,
        choices=tuple(Choice(index) for index in range(choices)),
        params=PARAMS if choices == 1 else SamplingParams(max_tokens=12),
        seed=1,
        hash_root=b"rootroot",
        tenant="tenant",
        tenant_class=TenantClass.STANDARD,
    )


def node(
    block_size: int, *, fault: Fault | None = None, max_step_tokens: int = 512
) -> tuple[Engine, TimedBackend]:
    config = EngineConfig(blocks=512 // block_size, block_size=block_size, max_step_tokens=max_step_tokens)
    return Engine(config, COST), TimedBackend(COST, digest_layout(block_size, config.blocks), fault=fault)


def run(engine: Engine, backend: TimedBackend) -> dict[tuple[str, int], list[int]]:
    outputs: dict[tuple[str, int], list[int]] = {}
    while (plan := engine.plan(0)) is not None:
        for token in engine.step_done(backend.execute(plan), 0).tokens:
            outputs.setdefault((token.key.request, token.choice), []).append(token.sampled.token)
    return outputs


RIGHT = expected_tokens(PROMPT, PARAMS, 1, 0, 99)


def hand_off(fault: Fault | None) -> list[int]:
    """Prefill in blocks of 16, decode in blocks of 4 that had other contents before."""
    (prefill, source), (decode, target) = node(16, max_step_tokens=20), node(4, fault=fault)
    decode.add(job("before", prompt=tuple(range(200, 300))), Stage.FULL, 0)
    run(decode, target)
    prefill.add(job(), Stage.PREFILL, 0)
    decode.add(job(), Stage.DECODE, 0)
    bound = decode.bind(job().key, 0)
    assert bound is not None
    (first,) = run(prefill, source)[("a", 0)]
    table = prefill.block_table(job().key)
    for start in range(0, len(PROMPT), 7):
        stop = min(start + 7, len(PROMPT))
        target.write_kv(bound.block_table, start, stop, source.read_kv(table, start, stop))
    tokens = decode.arrive(job().key, (FirstToken(0, Sampled(0, first)),), 0)
    return [token.sampled.token for token in tokens] + run(decode, target)[("a", 0)]


def alone(*, block_size: int = 16, max_step_tokens: int = 512, fault: Fault | None = None) -> list[int]:
    engine, backend = node(block_size, max_step_tokens=max_step_tokens, fault=fault)
    engine.add(job(), Stage.FULL, 0)
    return run(engine, backend)[("a", 0)]


@pytest.mark.parametrize("block_size", [1, 4, 16, 64])
@pytest.mark.parametrize("max_step_tokens", [1, 5, 512])
def test_blocks_and_chunks_do_not_change_the_answer(block_size: int, max_step_tokens: int) -> None:
    assert alone(block_size=block_size, max_step_tokens=max_step_tokens) == RIGHT


def test_batch_and_prefix_hits_do_not_change_the_answer() -> None:
    engine, backend = node(16)
    for name in "abcdef":
        engine.add(job(name), Stage.FULL, 0)
    assert all(output == RIGHT for output in run(engine, backend).values())
    engine.add(job("g"), Stage.FULL, 0)
    assert run(engine, backend)[("g", 0)] == RIGHT


def test_a_hand_off_between_block_sizes_does_not_change_the_answer() -> None:
    assert hand_off(None) == RIGHT


@pytest.mark.parametrize("fault", [Fault.STALE_BLOCK, Fault.WRONG_BLOCK])
def test_a_stale_or_wrong_block_changes_the_answer(fault: Fault) -> None:
    assert alone(fault=fault) != RIGHT


def test_a_missing_chunk_changes_the_answer() -> None:
    assert hand_off(Fault.MISSING_CHUNK) != RIGHT


def test_a_skipped_copy_changes_the_answer() -> None:
    answers = []
    for fault in (None, Fault.SKIPPED_COPY):
        engine, backend = node(16, fault=fault)
        engine.add(job(choices=2), Stage.FULL, 0)
        answers.append(run(engine, backend))
    assert answers[0] != answers[1]


def test_every_single_slot_matters() -> None:
    backend = TimedBackend(COST, digest_layout(4, 8))
    table, spec = (5, 0, 3, 1), SampleSpec(0, PARAMS, 1, 16, 0)
    backend.execute(StepPlan(1, (), (), (Row(1, tuple(range(15)), 0, table),)))
    last = StepPlan(2, (), (), (Row(1, (99,), 15, table, (spec,)),))
    right = backend.execute(last).sampled
    for position in range(15):
        kept = backend.read_kv(table, position, position + 1)
        for byte in (0, 8):
            damaged = bytearray(kept)
            damaged[byte] ^= 1
            backend.write_kv(table, position, position + 1, bytes(damaged))
            assert backend.execute(last).sampled != right
        backend.write_kv(table, position, position + 1, kept)
    assert backend.execute(last).sampled == right


def test_payload_layout_is_keys_then_values() -> None:
    backend = TimedBackend(COST, digest_layout(4, 8))
    backend.execute(StepPlan(1, (), (), (Row(1, tuple(range(10)), 0, (1, 2, 3)),)))
    whole, part = backend.read_kv((1, 2, 3), 0, 10), backend.read_kv((1, 2, 3), 3, 5)
    assert len(whole) == 10 * backend.layout.bytes_per_token
    assert part == whole[24:40] + whole[80 + 24 : 80 + 40]


def test_a_payload_of_the_wrong_length_is_refused() -> None:
    backend = TimedBackend(COST, digest_layout(4, 8))
    with pytest.raises(ValueError, match="payload: 31 bytes"):
        backend.write_kv((1,), 0, 2, bytes(31))


def test_a_layout_of_a_real_model_is_refused() -> None:
    with pytest.raises(ValueError, match="layout"):
        TimedBackend(COST, KvLayout(2, 2, 8, "float32", 16, 4))


def test_seed_choice_and_temperature_enter_the_draw() -> None:
    sampled = SamplingParams(temperature=1.0, max_tokens=12)
    outputs = [expected_tokens(PROMPT, sampled, seed, choice, 99) for seed in (1, 2) for choice in (0, 1)]
    assert len({tuple(output) for output in outputs}) == 4
    assert expected_tokens(PROMPT, PARAMS, 2, 1, 99) == RIGHT


def test_output_so_far_continues_the_same_answer() -> None:
    assert expected_tokens(PROMPT, PARAMS, 1, 0, 99, output=tuple(RIGHT[:5])) == RIGHT[5:]


def test_stop_token_ends_the_answer_but_not_before_min_tokens() -> None:
    model = FakeModel(stop_one_in=2)
    for min_tokens in (0, 8):
        params = SamplingParams(max_tokens=50, stop_token_ids=(2,), min_tokens=min_tokens)
        lengths = [len(expected_tokens((seed,), params, seed, 0, 99, model=model)) for seed in range(30)]
        assert min(lengths) == min_tokens + 1 and max(lengths) < 50


def test_logprobs_only_where_asked() -> None:
    backend = TimedBackend(COST, digest_layout(4, 8))
    for wanted in (None, 0, 3):
        params = SamplingParams(temperature=0.0, logprobs=wanted)
        row = Row(1, (1, 2), 0, (0,), (SampleSpec(0, params, 1, 2, 0),))
        ((sampled,),) = backend.execute(StepPlan(1, (), (), (row,))).sampled
        assert (sampled.logprob is None) == (wanted is None)
        assert len(sampled.top) == (wanted or 0)
        assert not sampled.top or sampled.top[0] == (sampled.token, sampled.logprob)


def test_a_step_takes_what_the_cost_model_says() -> None:
    backend = TimedBackend(COST, digest_layout(4, 8))
    rows = (Row(1, (1, 2, 3), 0, (0,)), Row(2, (4,), 9, (1, 2, 3)))
    expected = COST.step_us(4, attended(0, 3) + attended(9, 10))
    assert backend.execute(StepPlan(1, (), (), rows)).elapsed_us == expected
    assert (attended(0, 3), attended(9, 10), COST.prefill_us(10, 10)) == (6, 10, 1000)
