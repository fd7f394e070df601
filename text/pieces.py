"""What bytes a vocabulary piece stands for."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SENTENCEPIECE_SPACE = "\u2581"


class LeadingSpace(Enum):
    """What a decoder does to the space before the very first piece of a text."""

    KEEP = "keep"
    STRIP_ONE = "strip_one"
    """One space at the start of the text goes (sentencepiece models: Strip after Fuse)."""
    STRIP_FIRST_PIECE = "strip_first_piece"
    """Every space of the first piece goes (the Metaspace decoder)."""


@dataclass(frozen=True, slots=True)
class PieceRules:
    """How the `decoder` of a tokenizer.json turns pieces into text."""

    piece_bytes: Callable[[str], bytes]
    leading_space: LeadingSpace
    streams: bool
    """False where text depends on neighbouring pieces (WordPiece and other word decoders)."""


def piece_rules(decoder: Mapping[str, object] | None) -> PieceRules:
    """The rules of `decoder`, an object as tokenizer.json holds it.

    Known: ByteLevel, Metaspace, and sequences of Replace, ByteFallback, Fuse, Strip; whatever else gets
    rules that do not stream.
    """
    steps = _steps(decoder)
    kinds = [step.get("type") for step in steps]
    if "ByteLevel" in kinds:
        return PieceRules(_byte_level_bytes, LeadingSpace.KEEP, True)
    if kinds == ["Metaspace"]:
        return _metaspace_rules(steps[0])
    if kinds and all(kind in ("Replace", "ByteFallback", "Fuse", "Strip") for kind in kinds):
        return _sentencepiece_rules(steps)
    return PieceRules(str.encode, LeadingSpace.KEEP, False)


def _steps(decoder: Mapping[str, object] | None) -> list[Mapping[str, object]]:
    if decoder is None:
        return []
    steps = decoder.get("decoders") if decoder.get("type") == "Sequence" else [decoder]
    return [step for step in steps if isinstance(step, Mapping)] if isinstance(steps, list) else []


def _byte_level_alphabet() -> dict[str, int]:
    """The character that stands for each byte in a byte-level vocabulary (Radford et al. 2019, GPT-2).

    Printable Latin-1 characters stand for themselves, the other 68 bytes for U+0100 onwards in order.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet.update({chr(0x100 + position): byte for position, byte in enumerate(others)})
    return alphabet


_BYTE_OF_CHARACTER = _byte_level_alphabet()


def _byte_level_bytes(piece: str) -> bytes:
    # An added token may hold characters outside the alphabet; it then stands for itself.
    if all(character in _BYTE_OF_CHARACTER for character in piece):
        return bytes(_BYTE_OF_CHARACTER[character] for character in piece)
    return piece.encode()


def _metaspace_rules(step: Mapping[str, object]) -> PieceRules:
    space = str(step.get("replacement", _SENTENCEPIECE_SPACE))
    prepends = step.get("prepend_scheme", "always") != "never" and step.get("add_prefix_space", True)
    leading = LeadingSpace.STRIP_FIRST_PIECE if prepends else LeadingSpace.KEEP
    return PieceRules(lambda piece: piece.replace(space, " ").encode(), leading, True)


def _sentencepiece_rules(steps: list[Mapping[str, object]]) -> PieceRules:
    has_bytes = any(step.get("type") == "ByteFallback" for step in steps)
    replaced = [(_literal_pattern(step), str(step.get("content", ""))) for step in steps if "pattern" in step]
    strips = [step for step in steps if step.get("type") == "Strip"]
    streams = all(pattern for pattern, _ in replaced) and all(_is_one_leading_space(s) for s in strips)

    def piece_bytes(piece: str) -> bytes:
        if has_bytes and (match := _BYTE_PIECE.fullmatch(piece)):
            return bytes([int(match[1], 16)])
        for pattern, content in replaced:
            piece = piece.replace(pattern, content) if pattern else piece
        return piece.encode()

    return PieceRules(piece_bytes, LeadingSpace.STRIP_ONE if strips else LeadingSpace.KEEP, streams)


def _literal_pattern(step: Mapping[str, object]) -> str:
    pattern = step.get("pattern")
    return str(pattern.get("String", "")) if isinstance(pattern, Mapping) else ""


def _is_one_leading_space(step: Mapping[str, object]) -> bool:
    return (step.get("content"), step.get("start"), step.get("stop")) == (" ", 1, 0)
