"""The 64 bytes that precede a payload on a lane."""

import struct

from kv_transfer.types import ChunkHeader

HEADER_MAGIC = 0x4241544F4E4B5631
"""BATONKV1: a header of another version is no header."""
_FORMAT = struct.Struct("<8Q")
HEADER_BYTES = _FORMAT.size


def encode(header: ChunkHeader) -> bytes:
    """Little-endian unsigned 64-bit numbers; the receiver compares them with what was announced."""
    return _FORMAT.pack(
        HEADER_MAGIC,
        header.transfer,
        header.epoch,
        header.chunk,
        header.start,
        header.stop,
        header.bytes,
        header.checksum,
    )
