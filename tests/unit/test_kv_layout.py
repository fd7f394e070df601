"""The wire layout: ranges over pages, lengths, checksums, what must agree, how prompts are cut."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.request import ModelIdentity
from engine.plan import KvLayout
from kv_transfer.geometry import OutgoingConfig, plan
from kv_transfer.lane_header import HEADER_BYTES, encode
from kv_transfer.layout import BlockRange, block_ranges, chunk_bytes, header_of, matches, plane_bytes
from kv_transfer.staging import Staging
from kv_transfer.types import ChunkHeader, Fingerprint, TransferKey

LAYOUT = KvLayout(layers=30, kv_heads=3, head_dim=64, dtype="bfloat16", block_size=16, blocks=64)
MODEL = ModelIdentity("smol", "abc")


def test_lengths() -> None:
    assert chunk_bytes(LAYOUT, 10, 12) == 2 * 30 * 2 * 3 * 64 * 2
    assert plane_bytes(LAYOUT, 5) == 5 * 3 * 64 * 2


@pytest.mark.parametrize(
    ("start", "stop", "expected"),
    [
        (0, 0, []),
        (0, 4, [BlockRange(7, 0, 4)]),
        (3, 5, [BlockRange(7, 3, 4), BlockRange(2, 0, 1)]),
        (2, 12, [BlockRange(7, 2, 4), BlockRange(2, 0, 4), BlockRange(9, 0, 4)]),
        (9, 10, [BlockRange(9, 1, 2)]),
    ],
)
def test_block_ranges(start: int, stop: int, expected: list[BlockRange]) -> None:
    assert list(block_ranges((7, 2, 9), start, stop, 4)) == expected


@pytest.mark.parametrize(("start", "stop"), [(0, 13), (-1, 3), (5, 4)])
def test_block_ranges_beyond_the_table(start: int, stop: int) -> None:
    with pytest.raises(ValueError, match="tokens"):
        list(block_ranges((7, 2, 9), start, stop, 4))


def test_headers_match_their_payload_only() -> None:
    header = header_of(TransferKey(4, 2), 1, 8, 10, b"payload!")
    assert header == ChunkHeader(4, 2, 1, 8, 10, 8, header.checksum) and header.key == TransferKey(4, 2)
    assert matches(header, memoryview(b"payload!"))
    assert not matches(header, b"paYload!") and not matches(header, b"payload")


def test_every_field_of_a_header_is_on_the_lane() -> None:
    header = ChunkHeader(2**64 - 1, 2, 3, 4, 5, 6, 7)
    fields = ("transfer", "epoch", "chunk", "start", "stop", "bytes", "checksum")
    changed = [encode(replace(header, **{field: 9})) for field in fields]
    assert len({encode(header), *changed}) == 8
    assert all(len(encoded) == HEADER_BYTES for encoded in changed)


@pytest.mark.parametrize(
    ("field", "theirs"),
    [
        ("dtype", {"dtype": "float32"}),
        ("layers", {"layers": 31}),
        ("kv_heads", {"kv_heads": 1}),
        ("head_dim", {"head_dim": 32}),
        ("model.name", {"model": ModelIdentity("other", "abc")}),
        ("model.revision", {"model": ModelIdentity("smol", "abd")}),
        ("model.adapter", {"model": ModelIdentity("smol", "abc", "lora")}),
    ],
)
def test_fingerprints_name_the_differing_field(field: str, theirs: dict[str, object]) -> None:
    ours = Fingerprint.of(MODEL, LAYOUT)
    message = ours.mismatch(replace(ours, **theirs))  # type: ignore[arg-type]
    assert message is not None and message.startswith(f"{field}: ")


def test_int8_weights_give_other_kv_than_bfloat16_ones() -> None:
    """As large on the wire, and refused."""
    ours, theirs = (replace(LAYOUT, dtype=dtype) for dtype in ("bfloat16", "int8"))
    assert ours.bytes_per_token == theirs.bytes_per_token
    message = Fingerprint.of(MODEL, ours).mismatch(Fingerprint.of(MODEL, theirs))
    assert message == "dtype: 'bfloat16' here, 'int8' at the peer"


def test_page_size_is_not_part_of_the_fingerprint() -> None:
    other = replace(LAYOUT, block_size=64, blocks=3)
    assert Fingerprint.of(MODEL, LAYOUT).mismatch(Fingerprint.of(MODEL, other)) is None


@pytest.mark.parametrize(
    ("first", "tokens", "chunks"),
    [
        (0, 8, [(0, 8)]),
        (0, 9, [(0, 4), (4, 8), (8, 9)]),
        (3, 9, [(3, 9)]),
        (9, 9, []),
        (1, 12, [(1, 5), (5, 9), (9, 12)]),
    ],
)
def test_short_prompts_go_whole_and_long_ones_in_chunks(
    first: int, tokens: int, chunks: list[tuple[int, int]]
) -> None:
    config = OutgoingConfig(bytes_per_token=2, chunk_tokens=4, whole_prompt_tokens=8)
    geometry = plan(config, first, tokens)
    assert [geometry.range(chunk) for chunk in range(geometry.chunks)] == chunks


def test_no_chunk_exceeds_the_byte_bound() -> None:
    config = OutgoingConfig(
        bytes_per_token=10, chunk_tokens=4, whole_prompt_tokens=8, chunk_bytes_max=29, credit_bytes_peer=29
    )
    geometry = plan(config, 0, 5)
    assert [geometry.bytes(chunk) for chunk in range(geometry.chunks)] == [20, 20, 10]


@pytest.mark.parametrize(
    ("field", "bad"),
    [
        ("bytes_per_token", {"bytes_per_token": 0}),
        ("chunk_tokens", {"chunk_tokens": 0}),
        ("credit_chunks", {"credit_chunks": 0}),
        ("whole_prompt_tokens", {"whole_prompt_tokens": -1}),
        ("chunk_bytes_max", {"chunk_bytes_max": 1}),
        ("credit_bytes_peer", {"credit_bytes_peer": 1}),
    ],
)
def test_bad_config_is_named(field: str, bad: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=field):
        replace(OutgoingConfig(bytes_per_token=2), **bad)


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 40)), max_size=40))
def test_staging_never_overlaps_and_comes_back_whole(steps: list[tuple[bool, int]]) -> None:
    staging = Staging(100)
    taken: list[int] = []
    for take, number in steps:
        if take and (offset := staging.take(number)) is not None:
            taken.append(offset)
        elif not take and taken:
            staging.give_back(taken.pop(number % len(taken)))
        staging.check()
    for offset in taken:
        staging.give_back(offset)
    assert staging.taken_bytes == 0 and staging.take(100) == 0
