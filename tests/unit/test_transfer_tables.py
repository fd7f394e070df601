"""Single transitions of both transfer tables, and the reported faults that they answer."""

from collections.abc import Callable

import pytest

from kv_transfer.actions import (
    Aborted,
    Acknowledge,
    Committed,
    Delivered,
    Discard,
    Drain,
    DropPacked,
    Failed,
    Pack,
    Planned,
    Receive,
    ReleaseBlocks,
    Scatter,
    Send,
)
from kv_transfer.geometry import OutgoingConfig
from kv_transfer.incoming import Incoming, IncomingConfig
from kv_transfer.incoming_record import IncomingState
from kv_transfer.lane import Arrived, LaneError
from kv_transfer.layout import header_of
from kv_transfer.memory_lane import memory_lane_pair
from kv_transfer.outgoing import Outgoing
from kv_transfer.outgoing_record import OutgoingState
from kv_transfer.reasons import EndReason, Ignored
from kv_transfer.types import ChunkHeader, Peer, TransferKey

PEER = Peer("peer", "1")
OTHER = Peer("peer", "2")
KEY = TransferKey(1, 1)
LEASE_US, DEADLINE_US = 1_000, 10_000


def header(chunk: int, start: int, stop: int, *, key: TransferKey = KEY, extra: int = 0) -> ChunkHeader:
    return ChunkHeader(key.transfer, key.epoch, chunk, start, stop, (stop - start) * 2 + extra, 7)


def incoming(*, bound: bool = True, first: int = 0) -> Incoming:
    table = Incoming(IncomingConfig(bytes_per_token=2))
    table.reserve(KEY, PEER, 8, LEASE_US, DEADLINE_US, 0)
    if bound:
        table.bind(KEY, first, 0)
    return table


def outgoing(*, bound: bool = True, computed: int = 0, **config: int) -> Outgoing:
    settings = {"chunk_tokens": 4, "whole_prompt_tokens": 0, **config}
    table = Outgoing(OutgoingConfig(bytes_per_token=2, **settings))
    table.open(PEER, KEY, 8, LEASE_US, DEADLINE_US, 0)
    if bound:
        table.bound(PEER, KEY, 0, LEASE_US, 0)
    table.computed(PEER, KEY, computed, 0)
    return table


def pack(chunk: int) -> Pack:
    return Pack(PEER, KEY, chunk, chunk * 4, chunk * 4 + 4, 8)


# ---- Incoming ----
def test_a_transfer_from_reservation_to_commit() -> None:
    table = incoming()
    first, second = header(0, 0, 4), header(1, 4, 8)
    assert table.chunk_sent(PEER, first, 1) == [Receive(PEER, first)]
    assert table.chunk_sent(PEER, second, 1) == [Receive(PEER, second)]
    assert table.state(KEY) is IncomingState.RECEIVING
    assert table.chunk_arrived(PEER, first, True, 2) == [Scatter(KEY, first)]
    assert table.chunk_arrived(PEER, second, True, 2) == [Scatter(KEY, second)]
    assert table.scattered(KEY, 1, 3) == [Acknowledge(PEER, KEY, 1)]
    assert table.total(PEER, KEY, 2, 3) == []
    assert table.scattered(KEY, 0, 4) == [Acknowledge(PEER, KEY, 0), Committed(PEER, KEY)]
    assert table.state(KEY) is IncomingState.COMMITTED and len(table) == 0
    assert table.abort(KEY, EndReason.CANCELLED, 5) == [] and table.next_deadline_us is None


def test_the_total_commits_where_it_comes_last() -> None:
    table = incoming(first=4)
    table.chunk_sent(PEER, header(0, 4, 8), 1)
    table.chunk_arrived(PEER, header(0, 4, 8), True, 2)
    assert table.scattered(KEY, 0, 3) == [Acknowledge(PEER, KEY, 0)]
    assert table.total(PEER, KEY, 1, 4) == [Committed(PEER, KEY)]


def test_a_fully_cached_prompt_commits_at_once() -> None:
    table = incoming(bound=False)
    assert table.bind(KEY, 8, 1) == [Committed(PEER, KEY)]
    assert table.total(PEER, KEY, 0, 2) == [] and table.ignored[Ignored.LATE] == 1


def test_blocks_stay_while_a_scatter_writes() -> None:
    table = incoming()
    for chunk, (start, stop) in enumerate([(0, 2), (2, 4), (4, 8)]):
        table.chunk_sent(PEER, header(chunk, start, stop), 1)
    table.chunk_arrived(PEER, header(0, 0, 2), True, 2)
    table.chunk_arrived(PEER, header(1, 2, 4), True, 2)
    assert table.abort(KEY, EndReason.CANCELLED, 3) == [Aborted(PEER, KEY, EndReason.CANCELLED, True)]
    assert table.state(KEY) is IncomingState.ABORTING
    late = header(2, 4, 8)
    assert table.chunk_arrived(PEER, late, True, 4) == [Discard(late, Ignored.LATE)]
    assert table.scattered(KEY, 0, 5) == []
    assert table.scatter_failed(KEY, 1, 6) == [ReleaseBlocks(PEER, KEY)]
    assert table.abort(KEY, EndReason.CANCELLED, 7) == [] and len(table) == 0


def test_an_unbound_transfer_has_no_blocks_to_release() -> None:
    table = incoming(bound=False)
    assert table.abort(KEY, EndReason.CANCELLED, 1) == [Aborted(PEER, KEY, EndReason.CANCELLED, True)]
    assert table.bind(KEY, 0, 2) == [ReleaseBlocks(PEER, KEY)]
    assert table.bind(KEY, 0, 3) == []


@pytest.mark.parametrize(
    ("event", "reason", "tell_peer"),
    [
        (lambda t: t.chunk_sent(PEER, header(1, 8, 9), 2), EndReason.WRONG_RANGE, True),
        (lambda t: t.chunk_sent(PEER, header(1, 3, 5), 2), EndReason.WRONG_RANGE, True),
        (lambda t: t.chunk_sent(PEER, header(1, 6, 8), 2), EndReason.WRONG_RANGE, True),
        (lambda t: t.chunk_sent(PEER, header(1, 5, 5), 2), EndReason.WRONG_RANGE, True),
        (lambda t: t.chunk_sent(PEER, header(1, 4, 5, extra=1), 2), EndReason.WRONG_LENGTH, True),
        (lambda t: t.chunk_sent(PEER, header(0, 5, 6), 2), EndReason.WRONG_HEADER, True),
        (lambda t: t.chunk_arrived(PEER, header(0, 5, 8), False, 2), EndReason.BAD_CHECKSUM, True),
        (lambda t: t.chunk_arrived(PEER, header(0, 5, 7), True, 2), EndReason.WRONG_HEADER, True),
        (lambda t: t.total(PEER, KEY, 0, 2), EndReason.WRONG_TOTAL, True),
        (lambda t: t.total(PEER, KEY, 9, 2), EndReason.WRONG_TOTAL, True),
        (lambda t: t.lane_failed(PEER, 2), EndReason.LANE_FAILED, True),
        (lambda t: t.lost_peer(PEER, 2), EndReason.PEER_LOST, False),
        (lambda t: t.peer_failed(PEER, KEY, 2), EndReason.PEER_ABORTED, False),
        (lambda t: t.tick(1 + LEASE_US), EndReason.LEASE_EXPIRED, True),
        (lambda t: t.tick(DEADLINE_US), EndReason.DEADLINE_EXCEEDED, True),
    ],
)
def test_what_aborts_a_transfer(
    event: Callable[[Incoming], list[object]], reason: EndReason, tell_peer: bool
) -> None:
    table = incoming(first=4)
    table.chunk_sent(PEER, header(0, 5, 8), 1)
    actions = event(table)
    assert actions[-2:] == [Aborted(PEER, KEY, reason, tell_peer), ReleaseBlocks(PEER, KEY)]
    assert all(isinstance(action, Drain | Discard) for action in actions[:-2])
    assert all(isinstance(action, Drain | Discard) for action in event(table)), "idempotent"
    table.check()
    assert len(table) == 0 and table.aborted[reason] == 1


@pytest.mark.parametrize(
    ("peer", "key", "reason"),
    [
        (OTHER, KEY, Ignored.WRONG_PEER),
        (PEER, TransferKey(1, 2), Ignored.WRONG_EPOCH),
        (PEER, TransferKey(5, 1), Ignored.UNKNOWN),
    ],
)
def test_forged_messages_change_nothing_and_are_counted(
    peer: Peer, key: TransferKey, reason: Ignored
) -> None:
    table = incoming()
    forged = header(0, 0, 8, key=key)
    assert table.chunk_sent(peer, forged, 1) == [Drain(peer, forged, reason)]
    assert table.chunk_arrived(peer, forged, True, 1) == [Discard(forged, reason)]
    assert table.total(peer, key, 0, 1) == table.peer_failed(peer, key, 1) == []
    assert table.ignored[reason] == 4 and table.state(KEY) is IncomingState.BOUND


def test_doubled_messages_are_harmless() -> None:
    table = incoming()
    table.reserve(KEY, PEER, 8, LEASE_US, DEADLINE_US, 0)
    table.bind(KEY, 0, 0)
    table.chunk_sent(PEER, header(0, 0, 8), 1)
    assert table.chunk_sent(PEER, header(0, 0, 8), 1) == []
    table.chunk_arrived(PEER, header(0, 0, 8), True, 1)
    doubled = [Discard(header(0, 0, 8), Ignored.DOUBLED)]
    assert table.chunk_arrived(PEER, header(0, 0, 8), True, 1) == doubled
    table.scattered(KEY, 0, 2)
    assert table.scattered(KEY, 0, 2) == []
    assert table.ignored[Ignored.DOUBLED] == 5


def test_no_chunk_before_the_grant() -> None:
    table = incoming(bound=False)
    early = header(0, 0, 8)
    expected = [Drain(PEER, early, EndReason.NOT_BOUND), Aborted(PEER, KEY, EndReason.NOT_BOUND, True)]
    assert table.chunk_sent(PEER, early, 1) == expected


def test_a_lane_takes_down_only_what_was_on_it() -> None:
    table = incoming()
    waiting = TransferKey(2, 1)
    table.reserve(waiting, PEER, 8, LEASE_US, DEADLINE_US, 0)
    table.bind(waiting, 0, 0)
    table.chunk_sent(PEER, header(0, 0, 8), 1)
    table.lane_failed(PEER, 2)
    assert table.state(KEY) is IncomingState.ABORTED and table.state(waiting) is IncomingState.BOUND


def test_a_burst_behind_a_slow_worker_outlives_every_lease() -> None:
    """128 transfers on one lane, each taking most of a lease: none expires while any progresses."""
    table = Incoming(IncomingConfig(bytes_per_token=2))
    keys = [TransferKey(number, 1) for number in range(128)]
    for key in keys:
        table.reserve(key, PEER, 8, LEASE_US, 10**9, 0)
        table.bind(key, 0, 0)
    now_us = 0
    for key in keys:
        now_us += LEASE_US - 1
        assert table.tick(now_us) == []
        table.total(PEER, key, 1, now_us)
        table.chunk_sent(PEER, header(0, 0, 8, key=key), now_us)
        table.chunk_arrived(PEER, header(0, 0, 8, key=key), True, now_us)
        table.scattered(key, 0, now_us)
    assert table.committed == 128
    table.check()


def test_the_memory_of_the_ended_is_bounded() -> None:
    table = Incoming(IncomingConfig(bytes_per_token=2, ended_max=4))
    for number in range(20):
        table.reserve(TransferKey(number, 1), PEER, 8, LEASE_US, DEADLINE_US, 0)
        table.abort(TransferKey(number, 1), EndReason.CANCELLED, 0)
        table.check()
    assert table.state(TransferKey(19, 1)) is IncomingState.ABORTED and table.state(TransferKey(1, 1)) is None


# ---- Outgoing ----
def test_chunks_leave_while_later_ones_compute() -> None:
    table = outgoing(bound=False)
    assert table.computed(PEER, KEY, 3, 1) == []
    assert table.bound(PEER, KEY, 0, LEASE_US, 1) == [Planned(PEER, KEY, 2)]
    assert table.computed(PEER, KEY, 5, 2) == [pack(0)]
    assert table.packed(PEER, header(0, 0, 4), 2) == [Send(PEER, header(0, 0, 4))]
    assert table.computed(PEER, KEY, 8, 3) == [pack(1)]
    assert table.packed(PEER, header(1, 4, 8), 4) == [
        Send(PEER, header(1, 4, 8)),
        ReleaseBlocks(PEER, KEY),
    ]
    assert table.sent(PEER, KEY, 0, 5) == []
    assert table.acknowledged(PEER, KEY, 1, 6) == []
    assert table.sent(PEER, KEY, 1, 6) == []
    assert table.acknowledged(PEER, KEY, 0, 7) == [Delivered(PEER, KEY)]
    assert table.state(PEER, KEY) is OutgoingState.DELIVERED and table.bytes_in_flight(PEER) == 0


def test_nothing_to_send_keeps_the_blocks_until_the_prompt_is_computed() -> None:
    table = outgoing(bound=False)
    assert table.bound(PEER, KEY, 8, LEASE_US, 1) == [Planned(PEER, KEY, 0)]
    assert table.computed(PEER, KEY, 7, 2) == []
    assert table.computed(PEER, KEY, 8, 3) == [ReleaseBlocks(PEER, KEY), Delivered(PEER, KEY)]


def test_blocks_stay_while_a_chunk_is_packed() -> None:
    table = outgoing(computed=4)
    assert table.peer_aborted(PEER, KEY, 2) == [Failed(PEER, KEY, EndReason.PEER_ABORTED, False)]
    assert table.peer_aborted(PEER, KEY, 2) == [] and table.state(PEER, KEY) is OutgoingState.ENDING
    dropped = [DropPacked(PEER, header(0, 0, 4)), ReleaseBlocks(PEER, KEY)]
    assert table.packed(PEER, header(0, 0, 4), 3) == dropped
    assert table.state(PEER, KEY) is OutgoingState.FAILED and len(table) == 0


def test_credit_bounds_what_is_in_flight() -> None:
    table = outgoing(bound=False, computed=8, chunk_tokens=1, credit_chunks=3)
    assert len(table.bound(PEER, KEY, 0, LEASE_US, 1)) == 1 + 3
    assert table.acknowledged(PEER, KEY, 0, 2) == []
    table.packed(PEER, header(0, 0, 1), 2)
    assert table.acknowledged(PEER, KEY, 0, 3) == [Pack(PEER, KEY, 3, 3, 4, 2)]
    assert table.bytes_in_flight(PEER) == 6


def test_credit_of_a_failed_transfer_serves_the_next() -> None:
    table = outgoing(computed=8, chunk_bytes_max=8, credit_bytes_peer=16)
    waiting = TransferKey(2, 1)
    table.open(PEER, waiting, 8, LEASE_US, DEADLINE_US, 0)
    table.computed(PEER, waiting, 8, 0)
    assert table.bound(PEER, waiting, 0, LEASE_US, 0) == [Planned(PEER, waiting, 2)]
    table.packed(PEER, header(0, 0, 4), 1)
    table.sent(PEER, KEY, 0, 1)
    failed = table.pack_failed(PEER, KEY, 1, 2)
    assert failed[:2] == [Failed(PEER, KEY, EndReason.PACK_FAILED, True), ReleaseBlocks(PEER, KEY)]
    assert [type(action) for action in failed[2:]] == [Pack, Pack]


@pytest.mark.parametrize(
    ("event", "reason", "tell_peer"),
    [
        (lambda t: t.lane_failed(PEER, 2), EndReason.LANE_FAILED, True),
        (lambda t: t.lost_peer(PEER, 2), EndReason.PEER_LOST, False),
        (lambda t: t.abort(PEER, KEY, EndReason.CANCELLED, 2), EndReason.CANCELLED, True),
        (lambda t: t.tick(1 + LEASE_US), EndReason.LEASE_EXPIRED, True),
        (lambda t: t.tick(DEADLINE_US), EndReason.DEADLINE_EXCEEDED, True),
    ],
)
def test_what_fails_a_transfer_on_the_lane(
    event: Callable[[Outgoing], list[object]], reason: EndReason, tell_peer: bool
) -> None:
    table = outgoing(computed=4)
    table.packed(PEER, header(0, 0, 4), 1)
    assert event(table) == [Failed(PEER, KEY, reason, tell_peer), ReleaseBlocks(PEER, KEY)]
    assert event(table) == [] and table.state(PEER, KEY) is OutgoingState.ENDING
    assert table.send_failed(PEER, KEY, 0, DEADLINE_US) == []
    table.check()
    assert table.state(PEER, KEY) is OutgoingState.FAILED and table.bytes_in_flight(PEER) == 0


def test_a_failed_send_is_told_at_once() -> None:
    table = outgoing(computed=4)
    table.packed(PEER, header(0, 0, 4), 1)
    failed = [Failed(PEER, KEY, EndReason.SEND_FAILED, True), ReleaseBlocks(PEER, KEY)]
    assert table.send_failed(PEER, KEY, 0, 2) == failed and len(table) == 0


def test_an_abort_that_overtakes_the_opening() -> None:
    table = Outgoing(OutgoingConfig(bytes_per_token=2))
    assert table.peer_aborted(PEER, KEY, 0) == []
    failed = [Failed(PEER, KEY, EndReason.NOT_WANTED, False), ReleaseBlocks(PEER, KEY)]
    assert table.open(PEER, KEY, 8, LEASE_US, DEADLINE_US, 1) == failed
    assert table.open(PEER, KEY, 8, LEASE_US, DEADLINE_US, 2) == []


def test_a_waiting_prompt_outlives_its_lease_while_its_home_lives() -> None:
    table = outgoing(bound=False)
    for now_us in range(LEASE_US - 1, 9 * LEASE_US, LEASE_US - 1):
        assert table.tick(now_us) == []
        table.heard(PEER, now_us)
    assert table.tick(DEADLINE_US) != []


def test_two_homes_may_use_one_transfer_number() -> None:
    table = outgoing()
    table.open(OTHER, KEY, 8, LEASE_US, DEADLINE_US, 0)
    table.lost_peer(OTHER, 1)
    assert table.state(PEER, KEY) is OutgoingState.SENDING
    assert table.state(OTHER, KEY) is OutgoingState.FAILED


def test_a_first_token_beyond_the_prompt_is_refused() -> None:
    table = outgoing(bound=False)
    failed = [Failed(PEER, KEY, EndReason.WRONG_RANGE, True), ReleaseBlocks(PEER, KEY)]
    assert table.bound(PEER, KEY, 9, LEASE_US, 1) == failed


# ---- MemoryLane ----
def test_a_memory_lane_carries_in_order_and_in_the_driver_s_time() -> None:
    crossing: list[Callable[[], None]] = []
    sender, receiver = memory_lane_pair(lambda size, arrive: crossing.append(arrive))
    sent: list[LaneError | None] = []
    got: list[Arrived | LaneError] = []
    chunks = [
        (header_of(KEY, chunk, chunk, chunk + 1, bytes([chunk] * 2)), bytes([chunk] * 2)) for chunk in (0, 1)
    ]
    for chunk_header, payload in chunks:
        sender.send(chunk_header, payload, sent.append)
        receiver.receive(chunk_header, got.append, drain=chunk_header.chunk == 1)
    assert not sent and len(crossing) == 1
    crossing.pop()()
    crossing.pop()()
    assert sent == [None, None]
    assert [arrived.payload for arrived in got if isinstance(arrived, Arrived)] == [bytes(2), b""]


def test_a_memory_lane_fails_on_a_wrong_chunk_and_answers_everyone() -> None:
    sender, receiver = memory_lane_pair()
    sent: list[LaneError | None] = []
    got: list[Arrived | LaneError] = []
    sender.send(header_of(KEY, 0, 0, 1, b"ab"), b"ab", sent.append)
    receiver.receive(header(0, 0, 1), got.append)
    sender.send(header_of(KEY, 1, 1, 2, b"ab"), b"ab", sent.append)
    receiver.close()
    assert all(isinstance(answer, LaneError) for answer in [*sent, *got]) and len(sent) == 2 and len(got) == 1
