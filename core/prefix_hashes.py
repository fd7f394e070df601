"""Which prompts may share KV: a chained hash of every full unit of tokens, from a root that says for whom."""

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from struct import pack as pack_struct

from core.request import ModelIdentity

HASH_UNIT = 16
"""Tokens per hash; a constant of the fleet, whatever the engines' block sizes."""
HASH_BYTES = 8


def hash_root(tenant_salt: bytes, model: ModelIdentity, dtype: str) -> bytes:
    """The 8 bytes a chain starts from: equal only for one namespace (a tenant's salt, or the public
    one), one set of weights, one adapter and one dtype."""
    digest = blake2b(digest_size=HASH_BYTES, person=b"baton-root")
    for part in (
        tenant_salt,
        model.name.encode(),
        model.revision.encode(),
        model.adapter.encode(),
        dtype.encode(),
    ):
        # The length keeps ("ab", "c") and ("a", "bc") apart.
        digest.update(len(part).to_bytes(4, "little"))
        digest.update(part)
    return digest.digest()


def extend_chain(root: bytes, hashes: list[bytes], tokens: Sequence[int], unit: int = HASH_UNIT) -> None:
    """Append to `hashes` (a chain over the first tokens) the hashes of all further full units."""
    layout = f"<{unit}I"
    parent = hashes[-1] if hashes else root
    for start in range(len(hashes) * unit, len(tokens) - unit + 1, unit):
        unit_bytes = pack_struct(layout, *tokens[start : start + unit])
        parent = blake2b(parent + unit_bytes, digest_size=HASH_BYTES).digest()
        hashes.append(parent)


def chain(root: bytes, tokens: Sequence[int], unit: int = HASH_UNIT) -> list[bytes]:
    """One 8-byte hash per full unit; each covers all tokens before it too. A partial unit has none."""
    hashes: list[bytes] = []
    extend_chain(root, hashes, tokens, unit)
    return hashes


def pack(hashes: Iterable[bytes]) -> bytes:
    """The hashes end to end, as they travel."""
    return b"".join(hashes)


def unpack(packed: bytes) -> list[bytes]:
    """The hashes of pack; ValueError if the length is not a multiple of 8 bytes."""
    if len(packed) % HASH_BYTES:
        raise ValueError(f"hashes: {len(packed)} bytes is not a multiple of {HASH_BYTES}")
    return [packed[start : start + HASH_BYTES] for start in range(0, len(packed), HASH_BYTES)]
