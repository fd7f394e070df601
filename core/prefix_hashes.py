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


ROOT_LENGTHS = (HASH_BYTES, 2 * HASH_BYTES + 4)
"""Bytes of a root: one namespace, or a public beginning and a private rest."""


def root_with_public(public_root: bytes, public_tokens: int, private_root: bytes) -> bytes:
    """A root whose first `public_tokens` tokens everybody may share, and what follows only its tenant.

    Units that are public as a whole are hashed as under `public_root` alone; the first other one mixes
    `private_root` in, so that nothing after the border is found from another tenant's chain.
    """
    return public_root + private_root + public_tokens.to_bytes(4, "little")


def public_tokens(root: bytes) -> int:
    """How many of the first tokens are public under this root."""
    return 0 if len(root) == HASH_BYTES else int.from_bytes(root[2 * HASH_BYTES :], "little")


def namespace_at(root: bytes, stop: int) -> bytes:
    """The 8 bytes that say who may share a unit or block of KV whose last token is `stop` - 1."""
    if len(root) == HASH_BYTES:
        return root
    return root[:HASH_BYTES] if stop <= public_tokens(root) else root[HASH_BYTES : 2 * HASH_BYTES]


def extend_chain(root: bytes, hashes: list[bytes], tokens: Sequence[int], unit: int = HASH_UNIT) -> None:
    """Append to `hashes` (a chain over the first tokens) the hashes of all further full units."""
    layout = f"<{unit}I"
    parent = hashes[-1] if hashes else namespace_at(root, unit)
    border = public_tokens(root) // unit * unit
    for start in range(len(hashes) * unit, len(tokens) - unit + 1, unit):
        if start == border and start > 0:
            parent += namespace_at(root, start + unit)
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
