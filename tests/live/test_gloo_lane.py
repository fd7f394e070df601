"""Lanes between real processes: exact payloads, dead and silent peers, new epochs, nothing left behind."""

import json
import os
import queue
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kv_transfer.gloo_lane import LaneConfig
from kv_transfer.lane import Arrived, LaneError
from kv_transfer.lanes import Lanes
from kv_transfer.layout import header_of
from kv_transfer.types import ChunkHeader, LaneOffer, Peer, TransferKey

ROOT = Path(__file__).resolve().parents[2]
PARENT = Peer("parent", "1")
CHILD = Peer("child", "1")
MIB = 1 << 20
PATIENCE_S = 30.0

CHILD_PROGRAM = """
import json, queue, random, sys
from kv_transfer.gloo_lane import LaneConfig
from kv_transfer.lane import Arrived
from kv_transfer.lanes import Lanes
from kv_transfer.layout import header_of
from kv_transfer.types import LaneOffer, Peer, TransferKey

def chunk(number, size):
    payload = random.Random(number).randbytes(size)
    return header_of(TransferKey(1, 1), number, number, number + 1, payload), payload

say = lambda *words: print(json.dumps(words), flush=True)
calls = queue.SimpleQueue()
parent = Peer("parent", "1")
lanes = Lanes(Peer("child", "1"), LaneConfig(timeout_s=60, staging_bytes=8 << 20), 64 << 20, calls.put,
    ready=lambda peer, epoch, error: say("ready", str(error)),
    failed=lambda peer, epoch, error: say("failed", str(error)))
role, sizes, offer = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])
if role == "sender":
    lanes.accept(parent, LaneOffer(*offer))
    for number, size in enumerate(sizes):
        header, payload = chunk(number, size)
        lanes.lane(parent).send(header, payload, lambda error, number=number: say("sent", number, str(error)))
else:
    offer = lanes.offer(parent)
    say("offer", offer.lane_epoch, offer.store_address, offer.store_prefix)
    for number, size in enumerate(sizes):
        header, payload = chunk(number, size)
        def got(answer, number=number, payload=payload):
            exact = isinstance(answer, Arrived) and answer.checksum_ok and answer.payload == payload
            if isinstance(answer, Arrived):
                answer.release()
            say("got", number, exact)
        lanes.lane(parent).receive(header, got)
while True:
    calls.get()()
"""


class Child:
    """A process at the other end of the lane."""

    def __init__(self, role: str, sizes: list[int], offer: LaneOffer | None = None) -> None:
        fields = [offer.lane_epoch, offer.store_address, offer.store_prefix] if offer is not None else []
        self.process = subprocess.Popen(
            [sys.executable, "-c", CHILD_PROGRAM, role, json.dumps(sizes), json.dumps(fields)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            text=True,
        )
        self.lines: queue.SimpleQueue[list[object]] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(json.loads(line))

    def hear(self) -> list[object]:
        return self.lines.get(timeout=PATIENCE_S)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join(PATIENCE_S)
        assert self.process.stdout is not None
        self.process.stdout.close()


class Home:
    """This process's lanes, with an event loop as plain as can be."""

    def __init__(
        self, own: Peer = PARENT, *, timeout_s: float = 60.0, build_timeout_s: float = PATIENCE_S
    ) -> None:
        self.calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.ready: list[tuple[int, str]] = []
        self.failed: list[tuple[int, str]] = []
        self.answers: list[Arrived | LaneError | None] = []
        config = LaneConfig(timeout_s=timeout_s, build_timeout_s=build_timeout_s, staging_bytes=8 * MIB)
        self.lanes = Lanes(
            own,
            config,
            16 * MIB,
            self.calls.put,
            ready=lambda peer, epoch, error: self.ready.append((epoch, str(error))),
            failed=lambda peer, epoch, error: self.failed.append((epoch, str(error))),
        )

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            self.calls.get(timeout=max(0.001, deadline - time.monotonic()))()

    def receive(self, header: ChunkHeader, *, drain: bool = False) -> None:
        lane = self.lanes.lane(CHILD)
        assert lane is not None
        lane.receive(header, self.answers.append, drain=drain)

    def send(self, header: ChunkHeader, payload: bytes) -> None:
        lane = self.lanes.lane(CHILD)
        assert lane is not None
        lane.send(header, payload, self.answers.append)

    def end(self) -> None:
        self.lanes.close()
        assert self.lanes.join(PATIENCE_S)


def chunk(number: int, size: int) -> tuple[ChunkHeader, bytes]:
    payload = random.Random(number).randbytes(size)
    return header_of(TransferKey(1, 1), number, number, number + 1, payload), payload


@pytest.fixture
def started() -> Iterator[Callable[..., Child]]:
    children: list[Child] = []

    def start(role: str, sizes: list[int], offer: LaneOffer | None = None) -> Child:
        children.append(Child(role, sizes, offer))
        return children[-1]

    yield start
    for child in children:
        child.end()


@pytest.fixture
def home() -> Iterator[Home]:
    value = Home()
    yield value
    value.end()


def expect_exact(home: Home, sizes: list[int]) -> None:
    for number, size in enumerate(sizes):
        header, payload = chunk(number, size)
        home.receive(header)
        home.until(lambda: bool(home.answers))
        answer = home.answers.pop()
        assert isinstance(answer, Arrived), answer
        assert answer.header == header and answer.checksum_ok
        assert answer.payload == payload
        answer.release()
        answer.release()


def test_payloads_arrive_exactly_and_drained_ones_hold_nothing(
    home: Home, started: Callable[..., Child]
) -> None:
    sizes = [random.Random(7).randrange(1, 3 * MIB) for _ in range(12)] + [1, 8 * MIB, 5]
    started("sender", [*sizes, 8 * MIB, 4], home.lanes.offer(CHILD))
    expect_exact(home, sizes)
    home.receive(chunk(15, 8 * MIB)[0], drain=True)
    home.receive(chunk(16, 4)[0])
    home.until(lambda: len(home.answers) == 2)
    drained, last = home.answers
    assert isinstance(drained, Arrived) and drained.payload.nbytes == 0
    assert isinstance(last, Arrived) and last.payload == chunk(16, 4)[1]
    last.release()
    assert home.lanes.is_up(CHILD) and not home.failed


def test_unreleased_staging_holds_the_next_chunk_back_and_is_not_overwritten(
    home: Home, started: Callable[..., Child]
) -> None:
    sizes = [5 * MIB, 5 * MIB]
    started("sender", sizes, home.lanes.offer(CHILD))
    for number, size in enumerate(sizes):
        home.receive(chunk(number, size)[0])
    home.until(lambda: bool(home.answers))
    first = home.answers.pop()
    assert isinstance(first, Arrived) and home.calls.empty()
    assert first.payload == chunk(0, 5 * MIB)[1]
    first.release()
    home.until(lambda: bool(home.answers))
    second = home.answers.pop()
    assert isinstance(second, Arrived) and second.payload == chunk(1, 5 * MIB)[1]


def test_a_killed_sender_fails_the_lane_and_a_new_epoch_works(
    home: Home, started: Callable[..., Child]
) -> None:
    child = started("sender", [100], home.lanes.offer(CHILD))
    expect_exact(home, [100])
    home.receive(chunk(1, MIB)[0])
    home.receive(chunk(2, MIB)[0])
    child.process.send_signal(signal.SIGKILL)
    home.until(lambda: len(home.answers) == 2 and bool(home.failed))
    assert all(isinstance(answer, LaneError) for answer in home.answers)
    assert home.lanes.lane(CHILD) is None
    home.answers.clear()
    started("sender", [MIB], home.lanes.offer(CHILD))
    expect_exact(home, [MIB])
    assert [epoch for epoch, _ in home.ready] == [1, 2]


def test_a_killed_receiver_fails_the_send_in_the_middle(home: Home, started: Callable[..., Child]) -> None:
    child = started("receiver", [MIB])
    _, epoch, address, prefix = child.hear()
    home.lanes.accept(CHILD, LaneOffer(int(str(epoch)), str(address), str(prefix)))
    home.send(*chunk(0, MIB))
    home.until(lambda: bool(home.answers))
    assert home.answers == [None]
    assert child.hear()[0] == "ready" and child.hear() == ["got", 0, True]
    home.answers.clear()
    for number in range(1, 5):  # Nobody receives these: the first fills the socket and blocks.
        home.send(*chunk(number, 32 * MIB))
    child.process.send_signal(signal.SIGKILL)
    home.until(lambda: len(home.answers) == 4 and bool(home.failed))
    assert all(isinstance(answer, LaneError) for answer in home.answers[1:])


def test_a_silent_sender_times_out_and_a_new_epoch_works(started: Callable[..., Child]) -> None:
    home = Home(timeout_s=1.0)
    child = started("sender", [100], home.lanes.offer(CHILD))
    expect_exact(home, [100])
    child.process.send_signal(signal.SIGSTOP)
    home.receive(chunk(1, MIB)[0])
    home.until(lambda: bool(home.failed))
    assert isinstance(home.answers.pop(), LaneError)
    child.process.send_signal(signal.SIGCONT)
    started("sender", [MIB], home.lanes.offer(CHILD))
    expect_exact(home, [MIB])
    home.end()


def test_an_idle_lane_outlives_its_time_out(started: Callable[..., Child]) -> None:
    home = Home(timeout_s=0.3)
    started("sender", [100], home.lanes.offer(CHILD))
    home.until(lambda: bool(home.ready))
    idle = threading.Event()
    timer = threading.Timer(1.0, lambda: home.calls.put(idle.set))
    timer.start()
    home.until(idle.is_set)
    timer.join()
    # The child's send has waited all this while, under its own, longer time-out.
    expect_exact(home, [100])
    assert not home.failed
    home.end()


def test_another_chunk_than_announced_fails_the_lane(home: Home, started: Callable[..., Child]) -> None:
    started("sender", [100, 100], home.lanes.offer(CHILD))
    home.receive(chunk(1, 100)[0])
    home.until(lambda: bool(home.failed))
    (answer,) = home.answers
    assert isinstance(answer, LaneError) and "header" in str(answer)


def test_a_chunk_beyond_the_staging_fails_only_the_lane(home: Home, started: Callable[..., Child]) -> None:
    started("sender", [9 * MIB], home.lanes.offer(CHILD))
    home.receive(chunk(0, 9 * MIB)[0])
    home.until(lambda: bool(home.failed))
    (answer,) = home.answers
    assert isinstance(answer, LaneError) and "staging" in str(answer)


def test_closing_answers_a_blocked_receive_and_never_hangs(home: Home, started: Callable[..., Child]) -> None:
    started("sender", [], home.lanes.offer(CHILD))
    home.until(lambda: bool(home.ready))
    home.receive(chunk(0, MIB)[0])
    home.receive(chunk(1, MIB)[0])
    home.lanes.close_peer(CHILD)
    home.until(lambda: len(home.answers) == 2)
    assert all(isinstance(answer, LaneError) for answer in home.answers)
    assert home.lanes.join(PATIENCE_S) and home.lanes.staging_bytes == 0 and not home.failed


def test_a_peer_that_never_comes_is_an_error_not_a_wait() -> None:
    home = Home(build_timeout_s=0.5)
    home.lanes.offer(CHILD)
    home.receive(chunk(0, 100)[0])
    home.until(lambda: bool(home.answers) and bool(home.ready))
    assert isinstance(home.answers.pop(), LaneError)
    assert "rendezvous" in home.ready[0][1] and len(home.lanes) == 0
    home.end()


def test_the_staging_of_all_lanes_stays_within_the_budget() -> None:
    home = Home(build_timeout_s=0.5)
    home.lanes.offer(Peer("a", "1"))
    home.lanes.offer(Peer("b", "1"))
    with pytest.raises(LaneError, match="staging"):
        home.lanes.offer(Peer("c", "1"))
    assert home.lanes.staging_bytes == 16 * MIB
    home.end()
    assert home.lanes.staging_bytes == 0
    home.lanes.offer(Peer("c", "1"))
    home.end()


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_twenty_lanes_leave_no_thread_and_no_descriptor() -> None:
    receiver, sender = Home(PARENT), Home(CHILD)

    def one_lane(number: int) -> None:
        sender.lanes.accept(PARENT, receiver.lanes.offer(CHILD))
        header, payload = chunk(number, 10_000)
        lane = sender.lanes.lane(PARENT)
        assert lane is not None
        lane.send(header, payload, sender.answers.append)
        receiver.receive(header)
        receiver.until(lambda: bool(receiver.answers))
        sender.until(lambda: bool(sender.answers))
        arrived = receiver.answers.pop()
        assert isinstance(arrived, Arrived) and arrived.payload == payload
        arrived.release()
        assert sender.answers.pop() is None
        receiver.lanes.close_peer(CHILD)
        sender.lanes.close_peer(PARENT)
        assert receiver.lanes.join(PATIENCE_S) and sender.lanes.join(PATIENCE_S)
        assert receiver.lanes.staging_bytes == sender.lanes.staging_bytes == 0

    def settled(value: Callable[[], int], target: int) -> bool:
        deadline = time.monotonic() + PATIENCE_S
        while value() > target and time.monotonic() < deadline:
            threading.Event().wait(0.01)
        return value() <= target

    one_lane(0)  # The store, and whatever torch starts once.
    threads, descriptors = threading.active_count(), open_descriptors()
    tasks = len(os.listdir("/proc/self/task"))
    for number in range(1, 21):
        one_lane(number)
    assert settled(threading.active_count, threads)
    assert settled(lambda: len(os.listdir("/proc/self/task")), tasks)
    assert settled(open_descriptors, descriptors)
    receiver.end()
    sender.end()
