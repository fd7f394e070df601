"""Prefix hashes: who shares, and that a chain can be continued and cut at any unit."""

import pytest

from core.prefix_hashes import (
    HASH_BYTES,
    HASH_UNIT,
    ROOT_LENGTHS,
    chain,
    extend_chain,
    hash_root,
    namespace_at,
    pack,
    root_with_public,
    unpack,
)
from core.request import ModelIdentity

MODEL = ModelIdentity("model", "revision", "adapter")
ROOT = hash_root(b"salt", MODEL, "float32")
TOKENS = list(range(5 * HASH_UNIT + 3))


@pytest.mark.parametrize(
    ("salt", "model", "dtype"),
    [
        (b"other", MODEL, "float32"),
        (b"", MODEL, "float32"),
        (b"salt", ModelIdentity("model2", "revision", "adapter"), "float32"),
        (b"salt", ModelIdentity("model", "revision2", "adapter"), "float32"),
        (b"salt", ModelIdentity("model", "revision", ""), "float32"),
        (b"salt", ModelIdentity("modelr", "evision", "adapter"), "float32"),
        (b"saltm", ModelIdentity("odel", "revision", "adapter"), "float32"),
        (b"salt", MODEL, "bfloat16"),
    ],
)
def test_any_difference_gives_another_root(salt: bytes, model: ModelIdentity, dtype: str) -> None:
    assert len(ROOT) == HASH_BYTES
    assert hash_root(salt, model, dtype) != ROOT


def test_root_is_the_same_in_every_process() -> None:
    assert ROOT.hex() == "eef1ac21acf54395"
    assert chain(ROOT, TOKENS)[1].hex() == "3d7804c3c53f7504"


def test_only_full_units_are_hashed() -> None:
    assert [len(chain(ROOT, TOKENS[:count])) for count in (0, 15, 16, 31, 32)] == [0, 0, 1, 1, 2]


def test_each_hash_covers_all_before_it() -> None:
    hashes = chain(ROOT, TOKENS)
    changed = chain(ROOT, [TOKENS[0] + 1, *TOKENS[1:]])
    assert all(one != other for one, other in zip(hashes, changed, strict=True))
    assert chain(ROOT, TOKENS[: 3 * HASH_UNIT]) == hashes[:3]
    assert chain(b"another!", TOKENS)[-1] != hashes[-1]


@pytest.mark.parametrize("unit", [1, 4, 16, 32])
def test_a_chain_can_be_continued(unit: int) -> None:
    hashes: list[bytes] = []
    for count in (0, 7, 40, 41, len(TOKENS)):
        extend_chain(ROOT, hashes, TOKENS[:count], unit)
    assert hashes == chain(ROOT, TOKENS, unit)


@pytest.mark.parametrize("unit", [4, HASH_UNIT, 2 * HASH_UNIT])
@pytest.mark.parametrize("public", [0, 3, HASH_UNIT, 2 * HASH_UNIT, 2 * HASH_UNIT + 5])
def test_a_public_beginning_is_shared_and_what_follows_is_not(unit: int, public: int) -> None:
    shared, other = hash_root(b"public", MODEL, "float32"), hash_root(b"other", MODEL, "float32")
    mine = chain(root_with_public(shared, public, ROOT), TOKENS, unit)
    theirs = chain(root_with_public(shared, public, other), TOKENS, unit)
    units = public // unit
    assert mine[:units] == theirs[:units] == chain(shared, TOKENS, unit)[:units]
    assert not [one for one in mine[units:] if one in theirs or one in chain(shared, TOKENS, unit)]
    hashes: list[bytes] = []
    for count in (0, 7, 40, 41, len(TOKENS)):
        extend_chain(root_with_public(shared, public, ROOT), hashes, TOKENS[:count], unit)
    assert hashes == mine, "it can be continued anywhere"


def test_each_block_has_one_namespace() -> None:
    root = root_with_public(b"publicpu", 20, ROOT)
    assert [namespace_at(root, stop) for stop in (16, 20, 21, 32)] == [b"publicpu"] * 2 + [ROOT] * 2
    assert namespace_at(ROOT, 16) == ROOT and len(root) in ROOT_LENGTHS


def test_pack_and_unpack() -> None:
    hashes = chain(ROOT, TOKENS)
    assert unpack(pack(hashes)) == hashes
    with pytest.raises(ValueError, match="hashes: 9 bytes"):
        unpack(b"123456789")
