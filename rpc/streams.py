"""How one long-lived multiplexed stream between two processes is kept, at either end.

Messages of many requests share a stream, so a stream never blocks its sender: `send` puts a message
into a bounded outbox, and an outbox that overflows ends the stream. Nothing is lost without a word.
Callbacks are plain functions on the event loop: state is read and changed with no await between.
"""

import asyncio
import contextlib
import random as random_module
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import grpc.aio

from core.ends import End
from core.outcomes import Outcome
from rpc.errors import FieldError
from rpc.status import abort, end_of, end_of_error

Sent = TypeVar("Sent")
Received = TypeVar("Received")

OVERFLOW = End(Outcome.WORKER_LOST, "the peer does not read: its outbox is full")
CLOSED = End(Outcome.CANCELLED, "closed here")
ANSWER = (("baton-stream", "1"),)
"""The initial metadata of a server's end: what tells an answer from the empty metadata of a failed call."""
PEER_CLOSED = End(Outcome.WORKER_LOST, "the peer closed the stream")


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSettings:
    outbox_messages_max: int = 10_000
    connect_timeout_s: float = 5.0
    backoff_min_s: float = 0.05
    backoff_max_s: float = 2.0
    """Waits double from min to max, each drawn between half and all of it."""


class Outbox(Generic[Sent]):
    """Messages on their way out, oldest first; bounded."""

    def __init__(self, messages_max: int) -> None:
        self._messages: deque[Sent] = deque()
        self._messages_max = messages_max
        self._changed = asyncio.Event()

    def put(self, message: Sent) -> bool:
        """False where it is full."""
        if len(self._messages) >= self._messages_max:
            return False
        self._messages.append(message)
        self._changed.set()
        return True

    def __len__(self) -> int:
        return len(self._messages)

    async def drain_into(self, write: Callable[[Sent], Any]) -> None:
        """Writes messages as they come, until cancelled or until a write fails."""
        while True:
            while self._messages:
                # Kept until written, so that `empty` means handed to gRPC.
                await write(self._messages[0])
                self._messages.popleft()
            self._changed.clear()
            await self._changed.wait()

    async def empty(self, timeout_s: float) -> None:
        """Waits until everything is handed to gRPC, at most so long."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        while self._messages and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.005)


class OutboundStream(Generic[Sent, Received]):
    """The client's end: connects, and connects again after every break, until it is closed.

    `open_call` begins the RPC, e.g. `lambda: RouterStub(channel).Route()`. `on_up` runs when the
    peer has answered, before anything is read; its first `send` is the first message of the stream.
    Every `on_up` is followed by exactly one `on_down` with the reason.
    """

    def __init__(
        self,
        open_call: Callable[[], Any],
        *,
        on_up: Callable[[], None],
        on_message: Callable[[Received], None],
        on_down: Callable[[End], None],
        random: random_module.Random,
        settings: StreamSettings | None = None,
        on_refused: Callable[[End], None] | None = None,
    ) -> None:
        """`on_refused` hears of attempts to connect that failed."""
        self._open_call = open_call
        self._on_up, self._on_message, self._on_down = on_up, on_message, on_down
        self._on_refused = on_refused
        self._random = random
        self._settings = settings or StreamSettings()
        self._outbox: Outbox[Sent] | None = None
        self._failure: asyncio.Future[End] | None = None
        self._call: Any = None
        self._closing = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def is_up(self) -> bool:
        return self._outbox is not None

    def start(self) -> None:
        assert self._task is None, "started once"
        self._task = asyncio.get_running_loop().create_task(self._run())

    def send(self, message: Sent) -> bool:
        """False: the stream is down, or fails now because its outbox is full; `on_down` says so."""
        if self._outbox is None:
            return False
        if not self._outbox.put(message):
            self.fail(OVERFLOW)
            return False
        return True

    def fail(self, why: End) -> None:
        """Breaks the stream as it is; it connects anew."""
        if self._failure is not None and not self._failure.done():
            self._failure.set_result(why)

    async def close(self, flush_s: float = 0.0) -> None:
        """Ends the stream for good, after handing out what is queued for at most `flush_s`."""
        self._closing.set()
        if self._outbox is not None and self._failure is not None and flush_s > 0:
            await self._hand_out(self._outbox, self._failure, flush_s)
        self.fail(CLOSED)
        if self._task is not None:
            await asyncio.wait([self._task])
            self._task.result()

    async def _hand_out(self, outbox: Outbox[Sent], failure: "asyncio.Future[End]", flush_s: float) -> None:
        """A cancel overtakes what the peer has not read: half-close, and wait for the peer's end."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(flush_s):
                await outbox.empty(flush_s)
                if not failure.done():
                    await self._call.done_writing()
                    await asyncio.wait([failure])

    async def _run(self) -> None:
        breaks_in_a_row = 0
        while not self._closing.is_set():
            breaks_in_a_row = 0 if await self._connect_once() else breaks_in_a_row + 1
            await self._wait_before_next(breaks_in_a_row)

    async def _wait_before_next(self, breaks_in_a_row: int) -> None:
        longest_s = min(
            self._settings.backoff_min_s * 2 ** min(breaks_in_a_row, 16), self._settings.backoff_max_s
        )
        try:
            await asyncio.wait_for(self._closing.wait(), longest_s * self._random.uniform(0.5, 1.0))
        except TimeoutError:
            return

    async def _connect_once(self) -> bool:
        """One life of the stream. Whether it came up."""
        self._failure = asyncio.get_running_loop().create_future()
        call = self._call = self._open_call()
        came_up = False
        try:
            await self._until_failure(_answered(call), self._settings.connect_timeout_s)
            if not self._failure.done():
                came_up = True
                self._outbox = Outbox(self._settings.outbox_messages_max)
                self._call_back(self._on_up)
                await self._converse(call)
        finally:
            # A call dropped without a cancel is never cancelled, and jams its channel in the end.
            call.cancel()
            self._outbox = None
            why = CLOSED if self._closing.is_set() or not self._failure.done() else self._failure.result()
            if came_up:
                self._call_back(self._on_down, why)
            elif self._on_refused is not None:
                self._call_back(self._on_refused, why)
        return came_up

    def _call_back(self, callback: Callable[..., None], *args: End) -> None:
        try:
            callback(*args)
        except Exception as error:
            self.fail(_bug(error))

    async def _until_failure(self, awaitable: Any, timeout_s: float) -> None:
        assert self._failure is not None
        task: asyncio.Future[End | None] = asyncio.ensure_future(awaitable)
        waits: list[asyncio.Future[Any]] = [task, self._failure]
        try:
            await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                self.fail(End(Outcome.NO_WORKER, f"no answer within {timeout_s} s"))
            elif (error := task.exception()) is not None:
                self.fail(_end_of(error))
            elif (end := task.result()) is not None:
                self.fail(end)
        finally:
            await _cancelled(task)

    async def _converse(self, call: Any) -> None:
        assert self._failure is not None and self._outbox is not None
        loop = asyncio.get_running_loop()
        reader = loop.create_task(_read_into(call.read, self._on_message))
        writer = loop.create_task(self._outbox.drain_into(call.write))
        waits: list[asyncio.Future[Any]] = [reader, writer, self._failure]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            if not self._failure.done():
                self.fail(await _end_of_call(call, reader, writer))
        finally:
            await _cancelled(reader, writer)


class InboundStream(Generic[Received, Sent]):
    """The server's end, for a handler that is a coroutine (not a generator):

        async def Route(self, request_iterator, context):
            stream = InboundStream(context)
            try:
                await stream.serve(lambda message: ...)
            finally:
                ...forget the peer

    The client's `on_up` waits for the initial metadata that `serve` sends at once.
    """

    def __init__(self, context: Any, settings: StreamSettings | None = None) -> None:
        self._context = context
        self._outbox: Outbox[Sent] = Outbox((settings or StreamSettings()).outbox_messages_max)
        self._ending: asyncio.Future[End] = asyncio.get_running_loop().create_future()

    def send(self, message: Sent) -> bool:
        """False: the stream is ending, or ends now because its outbox is full."""
        if self._ending.done():
            return False
        if not self._outbox.put(message):
            self.close(OVERFLOW)
            return False
        return True

    def close(self, end: End) -> None:
        """Ends the stream with this status; COMPLETED ends it well. Later closes change nothing."""
        if not self._ending.done():
            self._ending.set_result(end)

    @property
    def queued(self) -> int:
        return len(self._outbox)

    async def serve(self, on_message: Callable[[Received], None], flush_s: float = 1.0) -> None:
        """Until the client ends the stream or `close` does; what is queued then has `flush_s` to leave.

        A ValueError from `on_message` (a FieldError names its field) ends the stream as INVALID_ARGUMENT.
        """
        await self._context.send_initial_metadata(ANSWER)
        loop = asyncio.get_running_loop()
        reader = loop.create_task(_read_into(self._context.read, on_message))
        writer = loop.create_task(self._outbox.drain_into(self._context.write))
        waits: list[asyncio.Future[Any]] = [reader, writer, self._ending]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            end = self._end_of(reader, writer)
            self.close(end)
            if end is not OVERFLOW and not writer.done():
                await self._outbox.empty(flush_s)
        finally:
            self.close(CLOSED)
            await _cancelled(reader, writer)
        if end.outcome is not Outcome.COMPLETED:
            await abort(self._context, end)

    def _end_of(self, reader: asyncio.Task[None], writer: asyncio.Task[None]) -> End:
        if self._ending.done():
            return self._ending.result()
        for task in (reader, writer):
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                return _end_of(error)
        return End(Outcome.COMPLETED)


async def _read_into(read: Callable[[], Any], on_message: Callable[[Any], None]) -> None:
    while (message := await read()) is not grpc.aio.EOF:
        on_message(message)


async def _answered(call: Any) -> End | None:
    """None when the server's end has taken the call, else how the call failed."""
    metadata = await call.initial_metadata()
    if metadata is not None and any(key == ANSWER[0][0] for key, _ in metadata):
        return None
    return await _end_of_status(call)


async def _end_of_call(call: Any, reader: "asyncio.Task[None]", writer: "asyncio.Task[None]") -> End:
    """Why a client's stream stopped; the server's status says it best."""
    for task in (reader, writer):
        error = task.exception() if task.done() else None
        # A write after the end is an InvalidStateError: the status is what matters.
        if error is not None and not isinstance(error, asyncio.InvalidStateError):
            return _end_of(error)
    return await _end_of_status(call)


async def _end_of_status(call: Any) -> End:
    code = await call.code()
    if code is grpc.StatusCode.OK:
        return PEER_CLOSED
    return end_of(code, await call.details(), await call.trailing_metadata())


def _end_of(error: BaseException) -> End:
    if isinstance(error, grpc.aio.AioRpcError):
        return end_of_error(error)
    if isinstance(error, FieldError):
        return End(Outcome.INVALID_ARGUMENT, str(error), error.field)
    if isinstance(error, ValueError):
        return End(Outcome.INVALID_ARGUMENT, str(error))
    if isinstance(error, asyncio.CancelledError):
        return CLOSED
    return _bug(error)


def _bug(error: BaseException) -> End:
    """One stream's bug ends that stream; the loop's handler, which logs it, decides about the process."""
    context = {"message": "a stream's callback failed", "exception": error}
    asyncio.get_running_loop().call_exception_handler(context)
    return End(Outcome.INTERNAL, f"{type(error).__name__}: {error}")


async def _cancelled(*tasks: "asyncio.Future[Any]") -> None:
    """Cancels and waits for tasks whose answers are no longer wanted."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
