"""When KV that arrives may be decoded from, and when the blocks it was to fill may be reused."""

from dataclasses import dataclass

from core.events import event
from kv_transfer.actions import (
    Aborted,
    Acknowledge,
    Committed,
    Discard,
    Drain,
    IncomingAction,
    Receive,
    ReleaseBlocks,
    Scatter,
)
from kv_transfer.coverage import ChunkState, Coverage
from kv_transfer.ended import Ended
from kv_transfer.incoming_record import ALLOWED, IncomingRecord, IncomingState
from kv_transfer.leases import Leases
from kv_transfer.reasons import EndReason, Ignored
from kv_transfer.types import ChunkHeader, Peer, TransferKey


@dataclass(frozen=True, slots=True)
class IncomingConfig:
    bytes_per_token: int
    """Of the wire layout; a chunk's length must be exactly this times its tokens."""
    ended_max: int = 4096
    """Ended transfers remembered."""


@dataclass(frozen=True, slots=True)
class _Memory:
    peer: Peer
    state: IncomingState
    bound: bool


class Incoming:
    """The home's end of every transfer.

    Events that come from the peer carry it: another peer's word about a transfer is ignored. The shell calls
    `heard` on any message of a peer and, while its control stream is up, at least every third of a lease.
    It must report a broken lane (lane_failed) before it announces the lane's next epoch to the peer.
    """

    def __init__(self, config: IncomingConfig) -> None:
        if config.bytes_per_token < 1:
            raise ValueError(f"bytes_per_token: {config.bytes_per_token}, must be at least 1")
        self._config = config
        self._live: dict[TransferKey, IncomingRecord] = {}
        self._leases: Leases[TransferKey] = Leases()
        self._ended: Ended[TransferKey, _Memory] = Ended(config.ended_max)
        self._epochs: Ended[int, int] = Ended(config.ended_max)
        """Newest epoch of a transfer, to tell a wrong epoch from an unknown transfer."""
        self.ignored: dict[Ignored, int] = dict.fromkeys(Ignored, 0)
        self.committed = 0
        self.aborted: dict[EndReason, int] = dict.fromkeys(EndReason, 0)

    # ---- our own end ----
    @event
    def reserve(
        self, key: TransferKey, peer: Peer, tokens: int, lease_us: int, deadline_us: int, now_us: int
    ) -> list[IncomingAction]:
        """A transfer of a prompt of `tokens` begins; `deadline_us` is absolute on now_us's clock.

        Idempotent. Raises ValueError naming a bad field.
        """
        if tokens < 1:
            raise ValueError(f"tokens: {tokens}, must be at least 1")
        if key in self._live or self._ended.get(key) is not None:
            return self._ignore(Ignored.DOUBLED)
        self._leases.open(key, peer, lease_us, deadline_us, now_us)
        self._live[key] = IncomingRecord(key, peer, tokens)
        self._epochs.add(key.transfer, key.epoch)
        return []

    @event
    def bind(self, key: TransferKey, first_token: int, now_us: int) -> list[IncomingAction]:
        """Blocks for the whole prompt are held for it; KV before first_token is already in them.

        Answers ReleaseBlocks where the transfer ended while the blocks were being found, and Committed
        where nothing is missing.
        """
        record = self._live.get(key)
        if record is None:
            return self._bind_ended(key)
        if record.state is not IncomingState.RESERVED:
            return self._ignore(Ignored.DOUBLED)
        if not 0 <= first_token <= record.tokens:
            raise ValueError(f"first_token: {first_token}, the prompt has {record.tokens} tokens")
        record.coverage = Coverage(first_token, record.tokens, self._config.bytes_per_token)
        self._leases.progressed(key, now_us)
        self._move(record, IncomingState.BOUND)
        if first_token == record.tokens:
            record.coverage.set_total(0)
        return self._commit_if_complete(record)

    def _bind_ended(self, key: TransferKey) -> list[IncomingAction]:
        memory = self._ended.get(key)
        if memory is None or memory.bound:
            return self._ignore(Ignored.UNKNOWN if memory is None else Ignored.LATE)
        self._ended.add(key, _Memory(memory.peer, memory.state, bound=True))
        return [ReleaseBlocks(memory.peer, key)]

    @event
    def abort(self, key: TransferKey, reason: EndReason, now_us: int) -> list[IncomingAction]:
        """This end gives up. Idempotent; nothing where the transfer has ended or is unknown."""
        record = self._live.get(key)
        if record is None or record.state is IncomingState.ABORTING:
            return self._ignore(self._why_not_live(key) if record is None else Ignored.LATE)
        return self._abort(record, reason, tell_peer=True)

    @event
    def scattered(self, key: TransferKey, chunk: int, now_us: int) -> list[IncomingAction]:
        """A Scatter has been carried out."""
        return self._scatter_ended(key, chunk, True, now_us)

    @event
    def scatter_failed(self, key: TransferKey, chunk: int, now_us: int) -> list[IncomingAction]:
        """A Scatter raised: the write is over, and the tokens are not there."""
        return self._scatter_ended(key, chunk, False, now_us)

    def _scatter_ended(
        self, key: TransferKey, chunk: int, written: bool, now_us: int
    ) -> list[IncomingAction]:
        record = self._live.get(key)
        if record is None or record.coverage is None:
            return self._ignore(self._why_not_live(key) if record is None else Ignored.UNANNOUNCED)
        state = record.coverage.states.get(chunk)
        if state is not ChunkState.SCATTERING:
            return self._ignore(Ignored.UNANNOUNCED if state is not ChunkState.SCATTERED else Ignored.DOUBLED)
        record.coverage.end_scatter(chunk, written=written)
        if record.state is IncomingState.ABORTING:
            return self._release_if_quiet(record)
        if not written:
            return self._abort(record, EndReason.SCATTER_FAILED, tell_peer=True)
        self._leases.progressed(key, now_us)
        acknowledged: list[IncomingAction] = [Acknowledge(record.peer, key, chunk)]
        return acknowledged + self._commit_if_complete(record)

    # ---- the peer's word ----
    @event
    def chunk_sent(self, peer: Peer, header: ChunkHeader, now_us: int) -> list[IncomingAction]:
        """The control stream announced a payload: Receive it, Drain it, or nothing if it was said before."""
        self._leases.heard(peer, now_us)
        record = self._live.get(header.key)
        if record is None or record.peer != peer:
            reason = self._why_not_live(header.key) if record is None else Ignored.WRONG_PEER
            return self._drain(peer, header, reason)
        if record.state is IncomingState.ABORTING:
            return self._drain(peer, header, Ignored.LATE)
        if record.coverage is None:
            return self._refuse(record, header, EndReason.NOT_BOUND)
        if (known := record.coverage.headers.get(header.chunk)) is not None:
            if known == header:
                return self._ignore(Ignored.DOUBLED)
            return self._refuse(record, header, EndReason.WRONG_HEADER)
        if (wrong := record.coverage.announce(header)) is not None:
            return self._refuse(record, header, wrong)
        if record.state is IncomingState.BOUND:
            self._move(record, IncomingState.RECEIVING)
        return [Receive(peer, header)]

    @event
    def chunk_arrived(
        self, peer: Peer, header: ChunkHeader, checksum_ok: bool, now_us: int
    ) -> list[IncomingAction]:
        """A payload is in staging: Scatter or Discard it. Always answers with what becomes of the staging."""
        self._leases.heard(peer, now_us)
        record = self._live.get(header.key)
        if record is None or record.peer != peer:
            reason = self._why_not_live(header.key) if record is None else Ignored.WRONG_PEER
            return self._discard(header, reason)
        if record.state is IncomingState.ABORTING:
            return self._discard(header, Ignored.LATE)
        known = record.coverage.headers.get(header.chunk) if record.coverage is not None else None
        if record.coverage is None or known is None:
            return self._discard(header, Ignored.UNANNOUNCED)
        if record.coverage.states.get(header.chunk) is not ChunkState.ANNOUNCED:
            return self._discard(header, Ignored.DOUBLED)
        if known != header or not checksum_ok:
            wrong = EndReason.WRONG_HEADER if known != header else EndReason.BAD_CHECKSUM
            return [Discard(header, wrong), *self._abort(record, wrong, tell_peer=True)]
        record.coverage.begin_scatter(header.chunk)
        return [Scatter(record.key, header)]

    @event
    def total(self, peer: Peer, key: TransferKey, chunks: int, now_us: int) -> list[IncomingAction]:
        """The sender's number of chunks, from FirstTokens or before them."""
        self._leases.heard(peer, now_us)
        record = self._live.get(key)
        if record is None or record.peer != peer or record.state is IncomingState.ABORTING:
            late = Ignored.LATE if record is not None and record.peer == peer else Ignored.WRONG_PEER
            return self._ignore(self._why_not_live(key) if record is None else late)
        if record.coverage is None:
            return self._abort(record, EndReason.NOT_BOUND, tell_peer=True)
        if (wrong := record.coverage.set_total(chunks)) is not None:
            return self._abort(record, wrong, tell_peer=True)
        return self._commit_if_complete(record)

    @event
    def peer_failed(self, peer: Peer, key: TransferKey, now_us: int) -> list[IncomingAction]:
        """The sender gave the transfer up."""
        self._leases.heard(peer, now_us)
        record = self._live.get(key)
        if record is None or record.peer != peer:
            return self._ignore(self._why_not_live(key) if record is None else Ignored.WRONG_PEER)
        if record.state is IncomingState.ABORTING:
            return self._ignore(Ignored.LATE)
        return self._abort(record, EndReason.PEER_ABORTED, tell_peer=False)

    @event
    def heard(self, peer: Peer, now_us: int) -> None:
        """Any sign of life of the peer."""
        self._leases.heard(peer, now_us)

    # ---- losses and time ----
    @event
    def lost_peer(self, peer: Peer, now_us: int) -> list[IncomingAction]:
        """This incarnation of the worker is gone; a new one is another peer."""
        lost = [record for record in self._unended() if record.peer == peer]
        return [
            action for record in lost for action in self._abort(record, EndReason.PEER_LOST, tell_peer=False)
        ]

    @event
    def lane_failed(self, peer: Peer, now_us: int) -> list[IncomingAction]:
        """What was on the lane is lost with it; transfers with nothing on it go on, on the next epoch."""
        lost = [
            r for r in self._unended() if r.peer == peer and r.coverage is not None and r.coverage.on_lane
        ]
        return [
            action for record in lost for action in self._abort(record, EndReason.LANE_FAILED, tell_peer=True)
        ]

    @event
    def tick(self, now_us: int) -> list[IncomingAction]:
        """Ends what has waited too long."""
        return [
            action
            for key, reason in self._leases.expired(now_us)
            for action in self._abort(self._live[key], reason, tell_peer=True)
        ]

    @property
    def next_deadline_us(self) -> int | None:
        return self._leases.next_deadline_us

    # ---- views ----
    def state(self, key: TransferKey) -> IncomingState | None:
        """None: never heard of, or forgotten."""
        if (record := self._live.get(key)) is not None:
            return record.state
        memory = self._ended.get(key)
        return None if memory is None else memory.state

    @property
    def transferring(self) -> int:
        """Transfers that hold blocks."""
        return sum(1 for record in self._live.values() if record.coverage is not None)

    def __len__(self) -> int:
        """Transfers that are not over, blocks included."""
        return len(self._live)

    # ---- transitions ----
    def _unended(self) -> list[IncomingRecord]:
        return [record for record in self._live.values() if record.state is not IncomingState.ABORTING]

    def _move(self, record: IncomingRecord, state: IncomingState) -> None:
        assert state in ALLOWED[record.state], f"{record.key}: {record.state} -> {state}"
        record.state = state
        if not ALLOWED[state]:
            self._ended.add(record.key, _Memory(record.peer, state, bound=record.coverage is not None))
            del self._live[record.key]

    def _commit_if_complete(self, record: IncomingRecord) -> list[IncomingAction]:
        assert record.coverage is not None
        if not record.coverage.complete:
            return []
        assert record.coverage.scattering == 0
        self._leases.close(record.key)
        self._move(record, IncomingState.COMMITTED)
        self.committed += 1
        return [Committed(record.peer, record.key)]

    def _abort(self, record: IncomingRecord, reason: EndReason, *, tell_peer: bool) -> list[IncomingAction]:
        self._leases.close(record.key)
        self.aborted[reason] += 1
        ended: list[IncomingAction] = [Aborted(record.peer, record.key, reason, tell_peer)]
        if record.scattering:
            self._move(record, IncomingState.ABORTING)
            return ended
        return ended + self._release_if_quiet(record)

    def _release_if_quiet(self, record: IncomingRecord) -> list[IncomingAction]:
        if record.scattering:
            return []
        self._move(record, IncomingState.ABORTED)
        return [ReleaseBlocks(record.peer, record.key)] if record.coverage is not None else []

    # ---- refusals ----
    def _why_not_live(self, key: TransferKey) -> Ignored:
        if self._ended.get(key) is not None:
            return Ignored.LATE
        return Ignored.UNKNOWN if self._epochs.get(key.transfer) is None else Ignored.WRONG_EPOCH

    def _ignore(self, reason: Ignored) -> list[IncomingAction]:
        self.ignored[reason] += 1
        return []

    def _drain(self, peer: Peer, header: ChunkHeader, reason: Ignored) -> list[IncomingAction]:
        self.ignored[reason] += 1
        return [Drain(peer, header, reason)]

    def _discard(self, header: ChunkHeader, reason: Ignored) -> list[IncomingAction]:
        self.ignored[reason] += 1
        return [Discard(header, reason)]

    def _refuse(self, record: IncomingRecord, header: ChunkHeader, reason: EndReason) -> list[IncomingAction]:
        drained: list[IncomingAction] = [Drain(record.peer, header, reason)]
        return drained + self._abort(record, reason, tell_peer=True)

    def check(self) -> None:
        """L2: blocks stay while a scatter runs. L3: nothing live is complete. L4: waits end."""
        for key, record in self._live.items():
            assert key == record.key and ALLOWED[record.state]
            assert self._ended.get(key) is None
            assert (record.coverage is None) == (record.state is IncomingState.RESERVED)
            if record.coverage is not None:
                record.coverage.check()
                assert not record.coverage.complete or record.state is IncomingState.ABORTING
            assert record.scattering == 0 or record.state in (IncomingState.RECEIVING, IncomingState.ABORTING)
            assert record.scattering > 0 or record.state is not IncomingState.ABORTING
        self._leases.check(lambda key: self._live[key].state is not IncomingState.ABORTING)
        assert len(self._leases) == len(self._unended())
        self._ended.check()
