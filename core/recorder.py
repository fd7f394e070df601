"""What happened to a plain object, kept so that its every decision can be repeated.

A recording is a sequence of frames, each `length, crc32, payload`, so that a file cut short by a
crash is readable up to its last whole record. A payload is msgpack, either the header of an object

    ["object", name, class path, constructor arguments]

or one event of it

    [name, method, names of the arguments' types, arguments, digest of what was returned]
"""

import hashlib
import inspect
import struct
import zlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, cast

import msgspec

from core.events import event_methods

HEADER_WORD = "object"
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


def digest(returned: object) -> bytes:
    """8 bytes of blake2b over msgpack of what an event returned, with the type of every action."""
    actions = returned if isinstance(returned, list | tuple) else (returned,)
    named = [type(returned).__name__, [(type(action).__name__, action) for action in actions]]
    return hashlib.blake2b(_encode(named), digest_size=DIGEST_BYTES).digest()


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
        write(frame(_encode((HEADER_WORD, name, class_path(type(obj)), config))))
        for method in event_methods(type(obj)):
            state[method] = _recording(getattr(obj, method), name, method, write)

    def __getattr__(self, attribute: str) -> Any:
        return getattr(self.__dict__["_recorded_object"], attribute)

    def __setattr__(self, attribute: str, value: object) -> None:
        setattr(self.__dict__["_recorded_object"], attribute, value)


def _recording(call: Callable[..., Any], name: str, method: str, write: Write) -> Callable[..., Any]:
    """`call`, with a record written after each run of it."""
    signature = inspect.signature(call)

    def run(*args: Any, **kwargs: Any) -> Any:
        values = args if not kwargs else _positional(signature, args, kwargs)
        # Encoded before the call: a list handed in may be the object's to change.
        types = [type(value).__name__ for value in values]
        try:
            arguments = msgspec.Raw(_encode(values))
        except TypeError as error:
            raise TypeError(f"{name}.{method}: an argument cannot be recorded: {error}") from None
        try:
            returned = call(*args, **kwargs)
        except BaseException as error:
            write(frame(_encode((name, method, types, arguments, digest_raised(error)))))
            raise
        try:
            answer = digest(returned)
        except TypeError as error:
            raise TypeError(f"{name}.{method}: what it returned cannot be recorded: {error}") from None
        write(frame(_encode((name, method, types, arguments, answer))))
        return returned

    return run


def _positional(signature: inspect.Signature, args: Any, kwargs: Any) -> tuple[Any, ...]:
    """The arguments in the order of the parameters, defaults filled in."""
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    return tuple(bound.arguments.values())


_encode = msgspec.msgpack.Encoder().encode
