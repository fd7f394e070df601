"""Which chunk of a computed prompt goes out when, and when the blocks it was read from may be reused."""

from dataclasses import dataclass

from core.events import event
from kv_transfer.actions import (
    Delivered,
    DropPacked,
    Failed,
    OutgoingAction,
    Pack,
    Planned,
    ReleaseBlocks,
    Send,
)
from kv_transfer.credit import Credit
from kv_transfer.ended import Ended
from kv_transfer.geometry import OutgoingConfig, plan
from kv_transfer.leases import Leases
from kv_transfer.outgoing_record import ALLOWED, OutgoingChunk, OutgoingRecord, OutgoingState
from kv_transfer.reasons import EndReason, Ignored
from kv_transfer.types import ChunkHeader, Peer, TransferKey


@dataclass(frozen=True, slots=True)
class _Memory:
    state: OutgoingState
    opened: bool
    """False: an abort overtook the opening."""


_Name = tuple[Peer, TransferKey]
"""Transfer numbers are unique per home only, so a sender names them with the home."""


class Outgoing:
    """The prefill's end of every transfer.

    Sends read from a packed copy, so blocks are released (ReleaseBlocks, once per opened transfer) when the
    prompt is computed and its last chunk is packed, before it is delivered. The shell calls `heard` on any
    message of a peer and, while its control stream is up, at least every third of a lease.
    """

    def __init__(self, config: OutgoingConfig) -> None:
        self._config = config
        self._live: dict[_Name, OutgoingRecord] = {}
        self._leases: Leases[_Name] = Leases()
        self._ended: Ended[_Name, _Memory] = Ended(config.ended_max)
        self._epochs: Ended[tuple[Peer, int], int] = Ended(config.ended_max)
        self._credit = Credit(config.credit_bytes_peer)
        self.ignored: dict[Ignored, int] = dict.fromkeys(Ignored, 0)
        self.delivered = 0
        self.failed: dict[EndReason, int] = dict.fromkeys(EndReason, 0)

    # ---- our own end ----
    @event
    def open(
        self, peer: Peer, key: TransferKey, prompt_tokens: int, lease_us: int, deadline_us: int, now_us: int
    ) -> list[OutgoingAction]:
        """A home asked for a prompt's KV; `deadline_us` is absolute on now_us's clock.

        Idempotent. Answers Failed(NOT_WANTED) and ReleaseBlocks where an abort was here first.
        Raises ValueError naming a bad field.
        """
        if prompt_tokens < 1:
            raise ValueError(f"prompt_tokens: {prompt_tokens}, must be at least 1")
        name = (peer, key)
        ended = self._ended.get(name)
        if name in self._live or (ended is not None and ended.opened):
            return self._ignore(Ignored.DOUBLED)
        if ended is not None:
            self._ended.add(name, _Memory(OutgoingState.FAILED, opened=True))
            self.failed[EndReason.NOT_WANTED] += 1
            return [Failed(peer, key, EndReason.NOT_WANTED, tell_peer=False), ReleaseBlocks(peer, key)]
        self._leases.open(name, peer, lease_us, deadline_us, now_us)
        self._live[name] = OutgoingRecord(peer, key, prompt_tokens)
        self._epochs.add((peer, key.transfer), key.epoch)
        return []

    @event
    def computed(self, peer: Peer, key: TransferKey, tokens: int, now_us: int) -> list[OutgoingAction]:
        """The KV of the first `tokens` prompt tokens is in the blocks; cached ones count. Never goes down."""
        record = self._live.get((peer, key))
        if record is None or record.state is OutgoingState.ENDING:
            return self._ignore(self._why_not_live(peer, key) if record is None else Ignored.LATE)
        assert 0 <= tokens <= record.prompt_tokens, f"computed: {tokens} of {record.prompt_tokens}"
        record.computed = max(record.computed, tokens)
        self._leases.progressed((peer, key), now_us)
        return self._pump(peer) + self._settle(record)

    @event
    def packed(self, peer: Peer, header: ChunkHeader, now_us: int) -> list[OutgoingAction]:
        """A Pack has been carried out: the copy is ours, the blocks are no longer read for it."""
        record, wrong = self._chunk_in(peer, header.key, header.chunk, OutgoingChunk.PACKING)
        if record is None:
            return self._ignore(wrong)
        if record.state is OutgoingState.ENDING:
            return [DropPacked(peer, header), *self._drop_chunk(record, header.chunk)]
        assert record.geometry is not None
        assert (header.start, header.stop) == record.geometry.range(header.chunk)
        record.chunks[header.chunk] = OutgoingChunk.SENDING
        sent: list[OutgoingAction] = [Send(peer, header)]
        return sent + self._settle(record)

    @event
    def pack_failed(self, peer: Peer, key: TransferKey, chunk: int, now_us: int) -> list[OutgoingAction]:
        """A Pack raised: there is no copy, and nothing reads the blocks for it."""
        return self._chunk_failed(peer, key, chunk, OutgoingChunk.PACKING, EndReason.PACK_FAILED)

    @event
    def sent(self, peer: Peer, key: TransferKey, chunk: int, now_us: int) -> list[OutgoingAction]:
        """The lane took the payload; its copy is no longer needed."""
        record, wrong = self._chunk_in(peer, key, chunk, OutgoingChunk.SENDING)
        if record is None:
            return self._ignore(wrong)
        if record.state is OutgoingState.ENDING:
            return self._drop_chunk(record, chunk)
        record.chunks[chunk] = OutgoingChunk.UNACKNOWLEDGED
        self._leases.progressed((peer, key), now_us)
        return []

    @event
    def send_failed(self, peer: Peer, key: TransferKey, chunk: int, now_us: int) -> list[OutgoingAction]:
        """A Send could not be carried out, or the lane broke under it. Report the lane by lane_failed too."""
        return self._chunk_failed(peer, key, chunk, OutgoingChunk.SENDING, EndReason.SEND_FAILED)

    @event
    def abort(self, peer: Peer, key: TransferKey, reason: EndReason, now_us: int) -> list[OutgoingAction]:
        """This end gives up. Idempotent; nothing where the transfer has ended or is unknown."""
        record = self._live.get((peer, key))
        if record is None or record.state is OutgoingState.ENDING:
            return self._ignore(self._why_not_live(peer, key) if record is None else Ignored.LATE)
        return self._fail(record, reason, tell_peer=True) + self._pump(peer)

    # ---- the peer's word ----
    @event
    def bound(
        self, peer: Peer, key: TransferKey, first_token: int, lease_us: int, now_us: int
    ) -> list[OutgoingAction]:
        """The home holds blocks, and KV of tokens before first_token. Answers Planned, and Pack if it can."""
        self._leases.heard(peer, now_us)
        record = self._live.get((peer, key))
        if record is None:
            return self._ignore(self._why_not_live(peer, key))
        if record.state is not OutgoingState.OPEN:
            late = Ignored.LATE if record.state is OutgoingState.ENDING else Ignored.DOUBLED
            return self._ignore(late)
        if not 0 <= first_token <= record.prompt_tokens:
            return self._fail(record, EndReason.WRONG_RANGE, tell_peer=True)
        record.geometry = plan(self._config, first_token, record.prompt_tokens)
        self._move(record, OutgoingState.SENDING)
        self._leases.set_lease((peer, key), lease_us)
        planned: list[OutgoingAction] = [Planned(peer, key, record.geometry.chunks)]
        return planned + self._pump(peer) + self._settle(record)

    @event
    def acknowledged(self, peer: Peer, key: TransferKey, chunk: int, now_us: int) -> list[OutgoingAction]:
        """The home has checked and scattered a chunk; it may say so before our lane reports it sent."""
        self._leases.heard(peer, now_us)
        record = self._live.get((peer, key))
        if record is None or record.state is OutgoingState.ENDING:
            return self._ignore(self._why_not_live(peer, key) if record is None else Ignored.LATE)
        state = record.chunks.get(chunk)
        if state is None or state is OutgoingChunk.PACKING:
            return self._ignore(Ignored.UNANNOUNCED)
        if state is OutgoingChunk.ACKNOWLEDGED:
            return self._ignore(Ignored.DOUBLED)
        record.chunks[chunk] = OutgoingChunk.ACKNOWLEDGED
        record.acknowledged += 1
        self._uncount(record, chunk)
        return self._pump(peer) + self._settle(record)

    @event
    def peer_aborted(self, peer: Peer, key: TransferKey, now_us: int) -> list[OutgoingAction]:
        """The home gave the transfer up. One that overtakes its opening is remembered."""
        self._leases.heard(peer, now_us)
        record = self._live.get((peer, key))
        if record is None:
            if self._ended.get((peer, key)) is None:
                self._ended.add((peer, key), _Memory(OutgoingState.FAILED, opened=False))
                return self._ignore(Ignored.UNKNOWN)
            return self._ignore(Ignored.LATE)
        if record.state is OutgoingState.ENDING:
            return self._ignore(Ignored.LATE)
        return self._fail(record, EndReason.PEER_ABORTED, tell_peer=False) + self._pump(peer)

    @event
    def heard(self, peer: Peer, now_us: int) -> None:
        """Any sign of life of the peer."""
        self._leases.heard(peer, now_us)

    # ---- losses and time ----
    @event
    def lost_peer(self, peer: Peer, now_us: int) -> list[OutgoingAction]:
        """This incarnation of the home is gone, and nobody waits for its transfers."""
        lost = [record for record in self._unended() if record.peer == peer]
        return [
            action for record in lost for action in self._fail(record, EndReason.PEER_LOST, tell_peer=False)
        ]

    @event
    def lane_failed(self, peer: Peer, now_us: int) -> list[OutgoingAction]:
        """What was handed to the lane and not acknowledged may be lost; the rest goes on."""
        lost = [r for r in self._unended() if r.peer == peer and r.on_lane]
        failed = [
            action for record in lost for action in self._fail(record, EndReason.LANE_FAILED, tell_peer=True)
        ]
        return failed + self._pump(peer)

    @event
    def tick(self, now_us: int) -> list[OutgoingAction]:
        """Ends what has waited too long; the credit it held serves the others."""
        expired = self._leases.expired(now_us)
        failed = [
            action
            for name, reason in expired
            for action in self._fail(self._live[name], reason, tell_peer=True)
        ]
        peers = dict.fromkeys(peer for (peer, _), _ in expired)
        return failed + [action for peer in peers for action in self._pump(peer)]

    @property
    def next_deadline_us(self) -> int | None:
        return self._leases.next_deadline_us

    # ---- views ----
    def state(self, peer: Peer, key: TransferKey) -> OutgoingState | None:
        """None: never heard of, or forgotten."""
        if (record := self._live.get((peer, key))) is not None:
            return record.state
        memory = self._ended.get((peer, key))
        return None if memory is None else memory.state

    def chunks(self, peer: Peer, key: TransferKey) -> int | None:
        """Chunks of the whole transfer; None before it is bound, or after it ended."""
        record = self._live.get((peer, key))
        return record.geometry.chunks if record is not None and record.geometry is not None else None

    def bytes_in_flight(self, peer: Peer) -> int:
        """Packed, on the lane or unacknowledged."""
        return self._credit.used_bytes(peer)

    @property
    def transferring(self) -> int:
        """Transfers that were bound and are not over."""
        return sum(1 for record in self._live.values() if record.geometry is not None)

    def __len__(self) -> int:
        return len(self._live)

    # ---- credit ----
    def _pump(self, peer: Peer) -> list[OutgoingAction]:
        """Asks for every chunk that is computed and has credit, the oldest transfer first."""
        packs: list[OutgoingAction] = []
        for record in self._live.values():
            if record.peer == peer and record.state is OutgoingState.SENDING:
                packs += self._pump_record(record)
        return packs

    def _pump_record(self, record: OutgoingRecord) -> list[OutgoingAction]:
        packs: list[OutgoingAction] = []
        assert record.geometry is not None
        while len(record.chunks) < record.geometry.chunks and record.in_flight < self._config.credit_chunks:
            chunk = len(record.chunks)
            start, stop = record.geometry.range(chunk)
            if stop > record.computed or not self._credit.take(record.peer, record.geometry.bytes(chunk)):
                break
            record.chunks[chunk] = OutgoingChunk.PACKING
            packs.append(Pack(record.peer, record.key, chunk, start, stop, record.geometry.bytes(chunk)))
        return packs

    def _uncount(self, record: OutgoingRecord, chunk: int) -> None:
        assert record.geometry is not None
        self._credit.give_back(record.peer, record.geometry.bytes(chunk))

    # ---- transitions ----
    def _unended(self) -> list[OutgoingRecord]:
        return [record for record in self._live.values() if record.state is not OutgoingState.ENDING]

    def _move(self, record: OutgoingRecord, state: OutgoingState) -> None:
        assert state in ALLOWED[record.state], f"{record.key}: {record.state} -> {state}"
        record.state = state
        if not ALLOWED[state]:
            self._ended.add((record.peer, record.key), _Memory(state, opened=True))
            del self._live[(record.peer, record.key)]

    def _settle(self, record: OutgoingRecord) -> list[OutgoingAction]:
        """Releases the blocks once nothing will read them, and ends the transfer once it is delivered."""
        actions: list[OutgoingAction] = []
        if record.done_reading and not record.released:
            record.released = True
            actions.append(ReleaseBlocks(record.peer, record.key))
        if record.released and record.delivered:
            self._leases.close((record.peer, record.key))
            self._move(record, OutgoingState.DELIVERED)
            self.delivered += 1
            actions.append(Delivered(record.peer, record.key))
        return actions

    def _fail(self, record: OutgoingRecord, reason: EndReason, *, tell_peer: bool) -> list[OutgoingAction]:
        self._leases.close((record.peer, record.key))
        self.failed[reason] += 1
        for chunk, state in list(record.chunks.items()):
            if state is OutgoingChunk.UNACKNOWLEDGED:
                self._forget(record, chunk)
        failed: list[OutgoingAction] = [Failed(record.peer, record.key, reason, tell_peer)]
        if record.in_flight:
            self._move(record, OutgoingState.ENDING)
        return failed + self._wind_down(record)

    def _wind_down(self, record: OutgoingRecord) -> list[OutgoingAction]:
        actions: list[OutgoingAction] = []
        if not record.released and not record.count(OutgoingChunk.PACKING):
            record.released = True
            actions.append(ReleaseBlocks(record.peer, record.key))
        if not record.in_flight:
            self._move(record, OutgoingState.FAILED)
        return actions

    def _forget(self, record: OutgoingRecord, chunk: int) -> None:
        """A failed transfer's chunk: its copy is gone, and its credit returns."""
        self._uncount(record, chunk)
        del record.chunks[chunk]

    def _drop_chunk(self, record: OutgoingRecord, chunk: int) -> list[OutgoingAction]:
        self._forget(record, chunk)
        return self._wind_down(record) + self._pump(record.peer)

    def _chunk_failed(
        self, peer: Peer, key: TransferKey, chunk: int, expected: OutgoingChunk, reason: EndReason
    ) -> list[OutgoingAction]:
        record, wrong = self._chunk_in(peer, key, chunk, expected)
        if record is None:
            return self._ignore(wrong)
        if record.state is OutgoingState.ENDING:
            return self._drop_chunk(record, chunk)
        self._forget(record, chunk)
        return self._fail(record, reason, tell_peer=True) + self._pump(peer)

    def _chunk_in(
        self, peer: Peer, key: TransferKey, chunk: int, expected: OutgoingChunk
    ) -> tuple[OutgoingRecord | None, Ignored]:
        """The record if that chunk is in that state, or why the report changes nothing."""
        record = self._live.get((peer, key))
        if record is None:
            return None, self._why_not_live(peer, key)
        state = record.chunks.get(chunk)
        if state is expected:
            return record, Ignored.DOUBLED
        return None, Ignored.UNANNOUNCED if state is None or state < expected else Ignored.DOUBLED

    # ---- refusals ----
    def _why_not_live(self, peer: Peer, key: TransferKey) -> Ignored:
        if self._ended.get((peer, key)) is not None:
            return Ignored.LATE
        return Ignored.UNKNOWN if self._epochs.get((peer, key.transfer)) is None else Ignored.WRONG_EPOCH

    def _ignore(self, reason: Ignored) -> list[OutgoingAction]:
        self.ignored[reason] += 1
        return []

    def check(self) -> None:
        """L2: blocks stay while a chunk is packed. L4: every wait has a deadline. Credit is counted twice."""
        counted: dict[Peer, int] = {}
        for name, record in self._live.items():
            assert name == (record.peer, record.key) and ALLOWED[record.state]
            assert (record.geometry is None) == (record.state is OutgoingState.OPEN)
            assert not (record.released and record.count(OutgoingChunk.PACKING))
            assert record.acknowledged == record.count(OutgoingChunk.ACKNOWLEDGED)
            assert record.in_flight <= self._config.credit_chunks
            assert record.in_flight or record.state is not OutgoingState.ENDING
            for chunk, state in record.chunks.items():
                if state is not OutgoingChunk.ACKNOWLEDGED and record.geometry is not None:
                    counted[record.peer] = counted.get(record.peer, 0) + record.geometry.bytes(chunk)
        self._credit.check(counted)
        self._leases.check(lambda name: self._live[name].state is not OutgoingState.ENDING)
        assert len(self._leases) == len(self._unended())
        self._ended.check()
