"""Stale, forged, oversized and incompatible hand-offs: an error or the exact answer, never another one."""

from dataclasses import replace

import pytest

from core.ends import End
from core.outcomes import Outcome
from core.request import ModelIdentity
from decode_worker.attempts import DrawnToken, PrefillDrawn
from engine.plan import Sampled
from kv_transfer.layout import header_of
from kv_transfer.reasons import EndReason
from kv_transfer.types import TransferKey
from sim import faults, laws
from sim.clients import Asked
from sim.config import FleetConfig, worker
from sim.fleet import PUBLIC_SALT, Fleet, tenant
from sim.phases import Phase, View

SMALL = worker(64, max_step_tokens=64)
ONE_PAIR = FleetConfig(prefills=1, decodes=1, prefill=SMALL, decode=SMALL)
COLOCATED = replace(ONE_PAIR, prefills=0)


def in_transfer() -> tuple[Fleet, Asked, TransferKey]:
    fleet = Fleet(replace(ONE_PAIR, lane_latency_us=20_000))
    asked = fleet.ask(300, 8)
    view = View(fleet, asked)
    fleet.run_until(lambda: view.is_in(Phase.FIRST_CHUNK))
    home = view.home()
    assert home is not None and home[1].transfer is not None
    return fleet, asked, home[1].transfer


@pytest.mark.parametrize("lie", ["stale epoch", "unknown transfer", "other peer", "old incarnation"])
def test_forged_words_change_nothing(lie: str) -> None:
    fleet, asked, transfer = in_transfer()
    home, peer = fleet.decode("decode-0"), fleet.prefill("prefill-0").peer
    if lie == "stale epoch":
        transfer = replace(transfer, epoch=transfer.epoch - 1)
    elif lie == "unknown transfer":
        transfer = replace(transfer, transfer=999)
    elif lie == "other peer":
        peer = replace(peer, worker="prefill-9")
    else:
        peer = replace(peer, incarnation="prefill-0.older")
    header = header_of(transfer, 4, 0, 64, b"\7" * 64 * 16)
    home.tell("chunk_arrived", peer, header, True)
    home.tell("first_tokens", peer, transfer, PrefillDrawn((DrawnToken(0, Sampled(0, 5), None),), 0, 1))
    home.tell("transfer_failed", peer, transfer, End(Outcome.INTERNAL, "forged"))
    home.tell("scattered", header, True)
    laws.finish(fleet)
    laws.completed(asked)


@pytest.mark.parametrize("start", [0, 32, 290])
def test_a_chunk_of_the_wrong_range_ends_the_transfer(start: int) -> None:
    """The right peer announces what overlaps or exceeds: the home computes for itself, exactly."""
    fleet, asked, transfer = in_transfer()
    home, peer = fleet.decode("decode-0"), fleet.prefill("prefill-0").peer
    header = header_of(transfer, 9, start, start + 32, b"\7" * 32 * 16)
    home._announced_epoch = -1  # on no lane
    home.tell("chunk_sent", peer, header)
    assert home.plain._incoming.aborted[EndReason.WRONG_RANGE] == 1
    laws.finish(fleet)
    laws.completed(asked)


@pytest.mark.parametrize("config", [ONE_PAIR, COLOCATED])
def test_too_long_prompt_names_its_limit_and_others_run(config: FleetConfig) -> None:
    fleet = Fleet(config)
    long, positions = fleet.ask(1_020, 16), fleet.ask(5_000, 16)
    small = [fleet.ask(40, 8) for _ in range(6)]
    laws.finish(fleet)
    for one, limit in ((long, "KV pool of 1024"), (positions, "4096 positions")):
        assert one.outcome is Outcome.PROMPT_TOO_LONG and one.end is not None
        assert limit in one.end.message
    laws.completed(*small)


def test_prompt_larger_than_the_prefill_pool_runs_at_its_home() -> None:
    fleet = Fleet(replace(ONE_PAIR, prefill=worker(16), decode=worker(128)))
    large, small = fleet.ask(600, 8), fleet.ask(60, 8)
    laws.finish(fleet)
    laws.completed(large, small)


def test_prompt_that_fills_the_prefill_pool_to_the_last_slot() -> None:
    """A prefill pool with no position for the first token does not cut the answer short."""
    fleet = Fleet(replace(ONE_PAIR, prefill=worker(16), decode=worker(128)))
    asked = [fleet.ask(count, 12) for count in (254, 255, 256)]
    laws.finish(fleet)
    laws.completed(*asked)


def answers(config: FleetConfig, prompts: list[tuple[int, ...]], temperature: float) -> list[list[int]]:
    fleet = Fleet(replace(config, check_every=20))
    asked = [fleet.ask(prompt, 12, temperature=temperature) for prompt in prompts]
    laws.finish(fleet)
    laws.completed(*asked)
    return [one.outputs[0] for one in asked]


def test_same_prompt_fifty_times() -> None:
    prompt = Fleet(COLOCATED).prompt(150)
    handed, local = answers(ONE_PAIR, [prompt] * 50, 0.0), answers(COLOCATED, [prompt], 0.0)
    assert handed == local * 50


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_handed_over_equals_colocated(temperature: float) -> None:
    source = Fleet(COLOCATED)
    prompts = [source.prompt(1 + 7 * index % 300) for index in range(60)]
    assert answers(ONE_PAIR, prompts, temperature) == answers(COLOCATED, prompts, temperature)


def test_other_revision_is_refused_by_name_and_both_live_on() -> None:
    fleet = Fleet(ONE_PAIR)
    other = replace(SMALL, model=ModelIdentity("fake", "2"))
    fleet.specs["prefill-0"] = other
    fleet.crash("prefill-0")
    fleet.start("prefill-0")
    fleet.run(500_000)
    home, prefill = fleet.decode("decode-0"), fleet.prefill("prefill-0")
    mismatch = home.fingerprint.mismatch(prefill.fingerprint)
    assert mismatch is not None and mismatch.startswith("model.revision")
    asked = fleet.ask(100, 8)
    laws.finish(fleet)
    laws.completed(asked)
    assert home.alive and prefill.alive


def test_incompatible_pair_falls_back() -> None:
    """The router believes the pair fits; the workers find out and say which field."""
    fleet = Fleet(ONE_PAIR)
    fleet.prefill("prefill-0").fingerprint = replace(fleet.prefill("prefill-0").fingerprint, dtype="bfloat16")
    asked = [fleet.ask(100, 8) for _ in range(3)]
    laws.finish(fleet)
    laws.completed(*asked)


@pytest.mark.parametrize("sizes", [(16, 4), (4, 16), (8, 32)])
def test_other_block_sizes_are_converted(sizes: tuple[int, int]) -> None:
    prefill, decode = (worker(1024 // size, block_size=size) for size in sizes)
    fleet = Fleet(replace(ONE_PAIR, prefill=prefill, decode=decode))
    asked = [fleet.ask(37 + 31 * index, 10) for index in range(6)]
    laws.finish(fleet)
    laws.completed(*asked)


def test_public_namespace_is_shared_and_no_other() -> None:
    fleet = Fleet(replace(ONE_PAIR, prefills=0))
    prompt = fleet.prompt(160)
    hits = []
    for name, salt in (("a", PUBLIC_SALT), ("b", PUBLIC_SALT), ("a", None), ("b", None), ("b", None)):
        asked = fleet.ask(prompt, 4, tenant=tenant(name), salt=salt)
        laws.finish(fleet)
        laws.completed(asked)
        assert asked.ended is not None
        hits.append(asked.ended.cached_tokens)
    assert hits == [0, 144, 0, 0, 144]


def test_corrupt_chunks_never_become_tokens() -> None:
    fleet = Fleet(ONE_PAIR)
    faults.corrupt_chunks(fleet, 5)
    asked = [fleet.ask(300, 8) for _ in range(4)]
    laws.finish(fleet)
    laws.completed(*asked)
