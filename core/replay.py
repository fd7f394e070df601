"""Whether a recorded object, given the same events, decides the same again."""

import inspect
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from core.recorder import EVENT, FRAME, OBJECT, SHAPE, digest, digest_raised, frames

Registry = Mapping[str, Callable[..., object]]
"""Class path to what rebuilds the object from its recorded constructor arguments."""

SHOWN_CHARACTERS_MAX = 2000
_RECORDS: Mapping[int, Any] = {
    OBJECT: tuple[int, str, str, msgspec.Raw],
    SHAPE: tuple[int, str, int, str, list[str]],
    EVENT: tuple[int, str, int, msgspec.Raw, bytes],
}
"""What a record of each kind holds: see core/recorder.py."""


class ReplayError(Exception):
    """The recording cannot be replayed here: its message says which object, method and argument."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One event that was decided differently."""

    object_name: str
    record: int
    """Number of the record in the file, from 0, headers counted."""
    method: str
    arguments: str
    recorded_digest: str
    replayed_digest: str
    returned: str
    """What the replay answered, or raised."""

    def __str__(self) -> str:
        return (
            f"record {self.record}: {self.object_name}.{self.method}({self.arguments}) "
            f"was {self.recorded_digest}, is now {self.replayed_digest}: {self.returned}"
        )


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a replay found; `mismatches` is empty when every decision was reproduced."""

    events: int
    objects: tuple[str, ...]
    mismatches: tuple[Mismatch, ...]
    """In the file's order; those after an object's first are usually its consequences."""
    bytes_unread: int
    """Bytes after the last whole record: more than 0 where the recording was cut short."""


def replay(data: bytes, registry: Registry, mismatches_max: int = 100) -> Replayed:
    """Rebuilds every object of a recording and repeats its events.

    Raises ReplayError where a record is of another version, a class is not in the registry or an argument
    does not fit its annotation.
    """
    objects: dict[str, object] = {}
    shapes: dict[tuple[str, int], _Shape] = {}
    mismatches: list[Mismatch] = []
    events, bytes_read = 0, 0
    for record, payload in enumerate(frames(data)):
        bytes_read += len(payload) + FRAME.size
        kind, name, *fields = _fields(record, payload)
        if kind == OBJECT:
            path, config = fields
            objects[name] = _rebuild(path, config, registry)
            continue
        number, *rest = fields
        if kind == SHAPE:
            shapes[name, number] = _shape(objects, record, name, *rest)
            continue
        events += 1
        if (name, number) not in shapes:
            raise ReplayError(f"record {record}: an event of {name!r} before its shape")
        mismatch = _repeat(shapes[name, number], record, *rest)
        if mismatch is not None and len(mismatches) < mismatches_max:
            mismatches.append(mismatch)
    return Replayed(events, tuple(objects), tuple(mismatches), len(data) - bytes_read)


def _fields(record: int, payload: bytes) -> tuple[Any, ...]:
    """Kind, object and what else a record of this kind holds."""
    try:
        kind = msgspec.msgpack.decode(msgspec.msgpack.decode(payload, type=list[msgspec.Raw])[0], type=int)
        fields: tuple[Any, ...] = msgspec.msgpack.decode(payload, type=_RECORDS[kind])
    except (msgspec.DecodeError, LookupError) as error:
        raise ReplayError(f"record {record}: not a record of this version") from error
    return fields


def _rebuild(path: str, config: msgspec.Raw, registry: Registry) -> object:
    factory = registry.get(path)
    if factory is None:
        raise ReplayError(f"no factory for {path}; known: {', '.join(sorted(registry)) or 'none'}")
    positional, named = _arguments(factory, path, [], config)
    try:
        return factory(*positional, **named)
    except (TypeError, ValueError) as error:
        raise ReplayError(f"{path}: {error}") from error


@dataclass(frozen=True, slots=True)
class _Shape:
    """What many events have in common."""

    object_name: str
    method: str
    call: Callable[..., object]
    type_names: list[str]


def _shape(objects: dict[str, object], record: int, name: str, method: str, type_names: list[str]) -> _Shape:
    if name not in objects:
        raise ReplayError(f"record {record}: an event of {name!r} before its header")
    call = getattr(objects[name], method, None)
    if call is None:
        raise ReplayError(f"record {record}: {name!r} has no method {method!r} any more")
    return _Shape(name, method, call, type_names)


def _repeat(shape: _Shape, record: int, raw: msgspec.Raw, recorded: bytes) -> Mismatch | None:
    name, method = shape.object_name, shape.method
    positional, named = _arguments(shape.call, f"{name}.{method}", shape.type_names, raw)
    try:
        returned = shape.call(*positional, **named)
        replayed, shown = digest(returned), repr(returned)
    except Exception as error:
        replayed, shown = digest_raised(error), f"raised {error!r}"
    if replayed == recorded:
        return None
    arguments = ", ".join([*map(repr, positional), *(f"{key}={value!r}" for key, value in named.items())])
    return Mismatch(name, record, method, _short(arguments), recorded.hex(), replayed.hex(), _short(shown))


def _arguments(
    call: Callable[..., object], where: str, type_names: list[str], raw: msgspec.Raw
) -> tuple[list[Any], dict[str, Any]]:
    """Recorded arguments as the call's annotations want them: (positional, keyword-only)."""
    values = _decode(raw, list[msgspec.Raw], "", where)
    annotated = call.__init__ if isinstance(call, type) else call  # type: ignore[misc]
    try:
        hints = typing.get_type_hints(annotated)
    except NameError as error:
        raise ReplayError(f"{where}: an annotation cannot be resolved: {error}") from error
    positional: list[Any] = []
    named: dict[str, Any] = {}
    slots = _slots(call)
    if len(values) > len(slots) and not any(slot.kind is slot.VAR_POSITIONAL for slot in slots):
        raise ReplayError(f"{where}: {len(values)} arguments were recorded, {len(slots)} are taken")
    for index, (value, slot) in enumerate(zip(values, slots, strict=False)):
        type_name = type_names[index] if index < len(type_names) else ""
        decoded = _decode(value, hints.get(slot.name, Any), type_name, f"{where}({slot.name})")
        if slot.kind is slot.KEYWORD_ONLY:
            named[slot.name] = decoded
        else:
            positional.append(decoded)
    return positional, named


def _slots(call: Callable[..., object]) -> list[inspect.Parameter]:
    return list(inspect.signature(call).parameters.values())


def _decode(raw: msgspec.Raw, hint: Any, type_name: str, where: str) -> Any:
    try:
        return msgspec.msgpack.decode(raw, type=_member(hint, type_name))
    except (msgspec.DecodeError, TypeError) as error:
        raise ReplayError(f"{where}: {error}") from error


def _member(hint: Any, type_name: str) -> Any:
    """The member of a union that was recorded: msgspec decodes no union of several dataclasses."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        for member in typing.get_args(hint):
            if getattr(member, "__name__", "") == type_name:
                return member
    return hint


def _short(text: str) -> str:
    return (
        text
        if len(text) <= SHOWN_CHARACTERS_MAX
        else f"{text[:SHOWN_CHARACTERS_MAX]}... ({len(text)} characters)"
    )
