"""What happened to a plain object, kept so that its every decision can be repeated.

A recording is a sequence of frames, each `length, crc32, payload`, so that a file cut short by a
crash is readable up to its last whole record. A payload is a msgpack array that begins with its kind:

    [OBJECT, object, class path, constructor arguments]
    [SHAPE, object, number, method, names of the arguments' types]     before the first event of this shape
    [EVENT, object, number of its shape, arguments, digest of what was returned]

Arguments are kept whole; of what was returned only the digest is, for a replay has the rest.
"""

import hashlib
import inspect
import struct
import zlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, cast

import msgspec

from core.events import event_methods

OBJECT, SHAPE, EVENT = range(3)
FRAME = struct.Struct("<II")
DIGEST_BYTES = 8
FRAME_BYTES_MAX = 1 << 30

Plain = TypeVar("Plain")
Write = Callable[[bytes], None]


def class_path(kind: type) -> str:
    """How a recording names a class, e.g. "router.router.Router"."""
    return f"{kind.__module__}.{kind.__qualname__}"


def frame(payload: bytes) -> bytes:
    return FRAME.pack(len(payload), zlib.crc32(payload)) + payload


def frames(data: bytes) -> Iterator[bytes]:
    """The payloads of a recording, up to the first frame that is cut short or damaged."""
    view, offset = memoryview(data), 0
    while offset + FRAME.size <= len(data):
        length, checksum = FRAME.unpack_from(data, offset)
        start = offset + FRAME.size
        if length > FRAME_BYTES_MAX or start + length > len(data):
            return
        payload = bytes(view[start : start + length])
        if zlib.crc32(payload) != checksum:
            return
        yield payload
        offset = start + length


class _Names(dict[type, bytes]):
    """How a digest names a type; as many entries as there are types of actions."""

    def __missing__(self, kind: type) -> bytes:
        name = self[kind] = kind.__name__.encode() + b" "
        return name


_names = _Names()


def digest(returned: object) -> bytes:
    """8 bytes of blake2b over what an event returned: the type of every action, then all in msgpack."""
    if type(returned) is list and not returned:
        return _NOTHING
    actions = returned if isinstance(returned, (list, tuple)) else (returned,)
    names = b"".join([_names[type(action)] for action in actions])
    return hashlib.blake2b(
        _names[type(returned)] + names + _encode(returned), digest_size=DIGEST_BYTES
    ).digest()


def digest_raised(error: BaseException) -> bytes:
    """What stands for the actions of an event that raised: a broken law replays as that law."""
    return hashlib.blake2b(type(error).__name__.encode(), digest_size=DIGEST_BYTES, person=b"raised").digest()


def recorded(obj: Plain, name: str, write: Write, config: tuple[object, ...] = ()) -> Plain:
    """`Recorded`, typed as the object it stands for."""
    return cast(Plain, Recorded(obj, name, write, config))


class Recorded:
    """Stands for a plain object, writes down every @event and passes everything else through.

    `config` holds the arguments from which a replay's factory rebuilds the object as it is now.
    An event an object calls on itself is part of its cause and is not written a second time.
    Raises TypeError, naming object and method, where an argument or an action cannot be encoded.
    """

    def __init__(self, obj: object, name: str, write: Write, config: tuple[object, ...] = ()) -> None:
        state = self.__dict__
        state["_recorded_object"] = obj
        write(frame(_encode((OBJECT, name, class_path(type(obj)), config))))
        shapes = _Shapes(name, write)
        for method in event_methods(type(obj)):
            state[method] = _recording(getattr(obj, method), f"{name}.{method}", method, shapes, write)

    def __getattr__(self, attribute: str) -> Any:
        return getattr(self.__dict__["_recorded_object"], attribute)

    def __setattr__(self, attribute: str, value: object) -> None:
        setattr(self.__dict__["_recorded_object"], attribute, value)


class _Shapes:
    """The shapes of one object's events so far: what they have in common is written once."""

    def __init__(self, name: str, write: Write) -> None:
        self._name = name
        self._write = write
        self._count = 0

    def define(self, method: str, types: tuple[type, ...]) -> bytes:
        """Writes a new shape; how the payloads of its events begin."""
        number, self._count = self._count, self._count + 1
        names = [kind.__name__ for kind in types]
        self._write(frame(_encode((SHAPE, self._name, number, method, names))))
        return _ARRAY_OF_5 + _encode(EVENT) + _encode(self._name) + _encode(number)


def _recording(
    call: Callable[..., Any], where: str, method: str, shapes: _Shapes, write: Write
) -> Callable[..., Any]:
    """`call`, with a record written after each run of it."""
    signature = inspect.signature(call)
    beginnings: dict[tuple[type, ...], bytes] = {}
    """By the types of the arguments: as many as its annotations allow."""

    def run(*args: Any, **kwargs: Any) -> Any:
        values = args if not kwargs else _positional(signature, args, kwargs)
        # Encoded before the call: a list handed in may be the object's to change.
        types = tuple(map(type, values))
        try:
            arguments = _encode(values)
        except TypeError as error:
            raise TypeError(f"{where}: an argument cannot be recorded: {error}") from None
        beginning = beginnings.get(types)
        if beginning is None:
            beginning = beginnings[types] = shapes.define(method, types)
        try:
            returned = call(*args, **kwargs)
        except BaseException as error:
            write(frame(beginning + arguments + _BYTES_OF_8 + digest_raised(error)))
            raise
        try:
            answer = digest(returned)
        except TypeError as error:
            raise TypeError(f"{where}: what it returned cannot be recorded: {error}") from None
        write(frame(beginning + arguments + _BYTES_OF_8 + answer))
        return returned

    return run


def _positional(signature: inspect.Signature, args: Any, kwargs: Any) -> tuple[Any, ...]:
    """The arguments in the order of the parameters, defaults filled in."""
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    return tuple(bound.arguments.values())


_encode = msgspec.msgpack.Encoder().encode
_ARRAY_OF_5, _BYTES_OF_8 = b"\x95", b"\xc4\x08"
"""How msgpack begins an array of 5 and 8 bytes: an event is put together from parts encoded before."""
_NOTHING = hashlib.blake2b(b"list " + _encode([]), digest_size=DIGEST_BYTES).digest()
