"""A lane over torch's gloo: one two-rank group and one thread per pair of processes and epoch."""

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from functools import partial

import torch

from kv_transfer.gloo_pair import GlooPair
from kv_transfer.lane import Arrived, LaneError, Payload, ReceiveDone, SendDone
from kv_transfer.lane_header import HEADER_BYTES, encode
from kv_transfer.layout import checksum
from kv_transfer.staging import Staging
from kv_transfer.types import ChunkHeader

Post = Callable[[Callable[[], None]], object]
"""Runs a callback on the shell's event loop, from any thread: loop.call_soon_threadsafe."""


class LaneEnd(IntEnum):
    """The rank in the group: the receiver hosts the rendezvous."""

    RECEIVER = 0
    SENDER = 1


@dataclass(frozen=True, slots=True)
class LaneConfig:
    timeout_s: float = 10.0
    """Of one operation: a peer that is silent in the middle of one for so long has lost the lane."""
    build_timeout_s: float = 10.0
    """Of the rendezvous."""
    staging_bytes: int = 96 << 20
    """Of a receiving lane; at least the sender's credit, or a slow scatter stalls the lane."""
    hostname: str = "127.0.0.1"
    """The address this process binds and is reached at, a literal."""

    def __post_init__(self) -> None:
        for field in ("timeout_s", "build_timeout_s", "staging_bytes"):
            if (value := getattr(self, field)) <= 0:
                raise ValueError(f"{field}: {value}, must be positive")


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Where the two ends of one lane find each other."""

    store_host: str
    store_port: int
    prefix: str
    """Unique per pair of incarnations and epoch."""


@dataclass(frozen=True, slots=True)
class _Send:
    header: ChunkHeader
    payload: Payload
    done: SendDone

    def fail(self, error: LaneError) -> None:
        self.done(error)


@dataclass(frozen=True, slots=True)
class _Receive:
    header: ChunkHeader
    done: ReceiveDone
    drain: bool

    def fail(self, error: LaneError) -> None:
        self.done(error)


class GlooLane:
    """Built in its own thread; sends and receives queue until it is up.

    `ready(None)` or `ready(LaneError)` is posted once; `failed(LaneError)` is posted once if it breaks after
    that, but not when it was closed from here.
    """

    def __init__(
        self,
        end: LaneEnd,
        rendezvous: Rendezvous,
        config: LaneConfig,
        post: Post,
        *,
        ready: Callable[[LaneError | None], None],
        failed: Callable[[LaneError], None],
    ) -> None:
        self._end = end
        self._rendezvous = rendezvous
        self._config = config
        self._loop_post = post
        self._ready = ready
        self._failed = failed
        self._jobs: queue.SimpleQueue[_Send | _Receive | None] = queue.SimpleQueue()
        self._lock = threading.Condition()
        self._error: LaneError | None = None
        self._closing = False
        self._pair: GlooPair | None = None
        self._current: _Send | _Receive | None = None
        """What the thread is carrying out: closing must interrupt it."""
        self._staging = Staging(config.staging_bytes) if end is LaneEnd.RECEIVER else None
        self._arena: torch.Tensor | None = None
        self._thread = threading.Thread(target=self._run, name=f"lane {rendezvous.prefix}", daemon=True)
        self._thread.start()

    # ---- the event loop's side ----
    def send(self, header: ChunkHeader, payload: Payload, done: SendDone) -> None:
        assert self._end is LaneEnd.SENDER
        self._submit(_Send(header, payload, done))

    def receive(self, header: ChunkHeader, done: ReceiveDone, *, drain: bool = False) -> None:
        assert self._end is LaneEnd.RECEIVER
        self._submit(_Receive(header, done, drain))

    def _submit(self, job: _Send | _Receive) -> None:
        with self._lock:
            if self._error is None:
                self._jobs.put(job)
                return
            error = self._error
        self._post(lambda: job.fail(error))

    def close(self) -> None:
        """Returns at once. The thread ends within milliseconds; one still building, at the build time-out."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
            self._error = self._error or LaneError("closed")
            blocked = self._pair if self._current is not None else None
            self._lock.notify_all()
        self._jobs.put(None)
        if blocked is not None:
            # Not here: it takes gloo's lock on the pair, which a large copy may hold for a while.
            threading.Thread(target=blocked.interrupt, daemon=True).start()

    def join(self, timeout_s: float) -> bool:
        """Waits for the thread, and says whether it is gone. Off the event loop."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    @property
    def staging_bytes(self) -> int:
        """Memory it holds until its thread is gone and every Arrived is released."""
        with self._lock:
            if self._staging is None:
                return 0
            in_use = self._thread.is_alive() or self._staging.taken_bytes > 0
            return self._staging.size_bytes if in_use else 0

    def _post(self, callback: Callable[[], None]) -> None:
        try:
            self._loop_post(callback)
        except RuntimeError:
            return  # The event loop is closed: nobody is left to be told.

    # ---- the lane thread's side ----
    def _run(self) -> None:
        try:
            pair = self._build()
        except Exception as error:
            why = f"rendezvous {self._rendezvous.prefix}: {_first_line(error)}"
            return self._over(LaneError(why), self._ready)
        with self._lock:
            self._pair = pair
            closing = self._closing
        if closing:
            return self._over(LaneError("closed"), self._ready)
        self._post(lambda: self._ready(None))
        self._over(LaneError(self._work(pair)), self._failed)

    def _build(self) -> GlooPair:
        if self._staging is not None:
            self._arena = torch.empty(self._staging.size_bytes, dtype=torch.uint8)
        return GlooPair(
            self._rendezvous.store_host,
            self._rendezvous.store_port,
            self._rendezvous.prefix,
            int(self._end),
            hostname=self._config.hostname,
            build_timeout_s=self._config.build_timeout_s,
            timeout_s=self._config.timeout_s,
        )

    def _work(self, pair: GlooPair) -> str:
        """Carries out jobs until the lane is over, and says why it is."""
        while (job := self._jobs.get()) is not None:
            with self._lock:
                self._current = None if self._closing else job
            if self._current is None:
                self._post(partial(job.fail, LaneError("closed")))
                break
            try:
                answer = self._send(pair, job) if isinstance(job, _Send) else self._receive(pair, job)
            except Exception as error:  # gloo raises RuntimeError; whatever it is, the lane's order is lost.
                self._post(partial(job.fail, LaneError(_first_line(error))))
                return _first_line(error)
            finally:
                with self._lock:
                    self._current = None
            self._post(answer)
        return "closed"

    def _send(self, pair: GlooPair, job: _Send) -> Callable[[], None]:
        pair.send(encode(job.header))
        pair.send(job.payload)
        return partial(job.done, None)

    def _receive(self, pair: GlooPair, job: _Receive) -> Callable[[], None]:
        assert self._arena is not None
        offset = self._take_staging(job.header.bytes)
        release = _Once(partial(self._give_back, offset))
        try:
            got = torch.empty(HEADER_BYTES, dtype=torch.uint8)
            pair.receive(got)
            if got.numpy().tobytes() != encode(job.header):
                raise ValueError("header: the chunk on the lane is not the one that was announced")
            part = self._arena[offset : offset + job.header.bytes]
            pair.receive(part)
        except BaseException:
            release()
            raise
        if job.drain:
            release()
            return partial(job.done, Arrived(job.header, memoryview(b""), True, release))
        payload = part.numpy().data.toreadonly()
        checksum_ok = checksum(payload) == job.header.checksum
        return partial(job.done, Arrived(job.header, payload, checksum_ok, release))

    def _take_staging(self, length_bytes: int) -> int:
        assert self._staging is not None
        if not 0 < length_bytes <= self._staging.size_bytes:
            raise ValueError(f"bytes: {length_bytes}, the staging holds {self._staging.size_bytes}")
        with self._lock:
            found: list[int] = []

            def room() -> bool:
                assert self._staging is not None
                offset = None if self._closing else self._staging.take(length_bytes)
                if offset is not None:
                    found.append(offset)
                return self._closing or offset is not None

            self._lock.wait_for(room, self._config.timeout_s)
            if not found:
                raise TimeoutError("staging: no room, earlier chunks were not released in time")
            return found[0]

    def _give_back(self, offset: int) -> None:
        with self._lock:
            assert self._staging is not None
            self._staging.give_back(offset)
            self._lock.notify_all()

    def _over(self, error: LaneError, tell: Callable[[LaneError], None]) -> None:
        """Answers everything that waits, then says that the lane is over."""
        with self._lock:
            self._error = error = self._error or error
            self._pair = None
            self._arena = None
            closed_here = self._closing
        while not self._jobs.empty():
            if (job := self._jobs.get()) is not None:
                self._post(partial(job.fail, error))
        if not closed_here or tell is self._ready:
            self._post(partial(tell, error))


class _Once:
    """Calls through the first time only."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call: Callable[[], None] | None = call
        self._lock = threading.Lock()

    def __call__(self) -> None:
        with self._lock:
            call, self._call = self._call, None
        if call is not None:
            call()


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0][:300] or type(error).__name__
