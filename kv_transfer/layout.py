"""How KV looks between engines: [layer, K/V, token, kv_head, head_dim], whatever the pages at either end."""

import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from engine.plan import KvLayout
from kv_transfer.types import ChunkHeader, TransferKey


@dataclass(frozen=True, slots=True)
class BlockRange:
    """The part of one block that a range of tokens covers."""

    block: int
    """Physical block."""
    start: int
    """First slot of the block."""
    stop: int
    """One past the last slot."""


def chunk_bytes(layout: KvLayout, start: int, stop: int) -> int:
    """Length of the payload of tokens start..stop."""
    return (stop - start) * layout.bytes_per_token


def plane_bytes(layout: KvLayout, tokens: int) -> int:
    """Length of one layer's K (or V) of so many tokens: the contiguous run the wire is made of."""
    return chunk_bytes(layout, 0, tokens) // (layout.layers * 2)


def block_ranges(
    block_table: tuple[int, ...], start: int, stop: int, block_size: int
) -> Iterator[BlockRange]:
    """Where tokens start..stop lie, in token order. Raises ValueError naming a range beyond the table."""
    if not 0 <= start <= stop <= len(block_table) * block_size:
        raise ValueError(f"tokens {start}..{stop}: the block table holds {len(block_table) * block_size}")
    position = start
    while position < stop:
        logical, slot = divmod(position, block_size)
        end = min(stop - logical * block_size, block_size)
        yield BlockRange(block_table[logical], slot, end)
        position += end - slot


def checksum(payload: bytes | bytearray | memoryview) -> int:
    """CRC-32 of the payload: against corruption and mixed-up buffers, not against a hostile peer."""
    return zlib.crc32(payload)


def header_of(
    key: TransferKey, chunk: int, start: int, stop: int, payload: bytes | bytearray | memoryview
) -> ChunkHeader:
    """The header of a packed chunk."""
    return ChunkHeader(
        key.transfer, key.epoch, chunk, start, stop, memoryview(payload).nbytes, checksum(payload)
    )


def matches(header: ChunkHeader, payload: bytes | bytearray | memoryview) -> bool:
    """Whether the payload is the one the header speaks of."""
    return memoryview(payload).nbytes == header.bytes and checksum(payload) == header.checksum
