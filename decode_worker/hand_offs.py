"""Whose KV is on its way here, into which blocks, and who still waits for blocks to be bound."""

from abc import ABC, abstractmethod

from core.events import event
from core.request import AttemptKey, Leg
from decode_worker.actions import (
    Action,
    AskPrefill,
    DiscardChunk,
    DrainChunk,
    ReceiveChunk,
    ScatterChunk,
    SendAbort,
    SendBound,
    SendReceived,
)
from decode_worker.attempts import Attempt, Phase, Pin
from engine.engine import Engine
from engine.job import Bound
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
from kv_transfer.incoming import Incoming
from kv_transfer.reasons import EndReason
from kv_transfer.types import ChunkHeader, Peer, TransferKey


class HandOffs(ABC):
    """The part of a home that deals with prefill workers; what it means for an attempt is the subclass's."""

    def __init__(self, engine: Engine, incoming: Incoming, lease_us: int) -> None:
        self._engine = engine
        self._incoming = incoming
        self._lease_us = lease_us
        self._transfers: dict[TransferKey, Attempt] = {}
        """Of attempts that have not begun to decode or prefill here."""
        self._binding: dict[AttemptKey, Attempt] = {}
        """Wait for blocks, in the order of their places in the engine."""
        self._pinned: dict[TransferKey, Pin] = {}
        """Blocks a transfer may still write, from bind until the table lets them go."""
        self._transfers_begun = 0

    @abstractmethod
    def _decode_if_ready(self, attempt: Attempt, now_us: int) -> list[Action]:
        """Its KV is proven here."""

    @abstractmethod
    def _hand_off_failed(self, attempt: Attempt, reason: EndReason, now_us: int) -> list[Action]:
        """Its KV will never come by this transfer."""

    @abstractmethod
    def _count(self, attempt: Attempt) -> None:
        """It holds blocks from now on."""

    @abstractmethod
    def _answer(self, actions: list[Action], now_us: int) -> list[Action]:
        """What every event ends with."""

    @event
    def chunk_sent(self, peer: Peer, header: ChunkHeader, now_us: int) -> list[Action]:
        return self._answer(
            self._transfer_actions(self._incoming.chunk_sent(peer, header, now_us), now_us), now_us
        )

    @event
    def chunk_arrived(self, peer: Peer, header: ChunkHeader, checksum_ok: bool, now_us: int) -> list[Action]:
        """The payload is in staging."""
        answers = self._incoming.chunk_arrived(peer, header, checksum_ok, now_us)
        return self._answer(self._transfer_actions(answers, now_us), now_us)

    @event
    def scattered(self, header: ChunkHeader, written: bool, now_us: int) -> list[Action]:
        """A ScatterChunk is over."""
        over = self._incoming.scattered if written else self._incoming.scatter_failed
        return self._answer(self._transfer_actions(over(header.key, header.chunk, now_us), now_us), now_us)

    @event
    def lane_failed(self, peer: Peer, now_us: int) -> list[Action]:
        """Its chunks are lost; the shell opens the next epoch after this."""
        return self._answer(self._transfer_actions(self._incoming.lane_failed(peer, now_us), now_us), now_us)

    def _ask(self, attempt: Attempt, leg: Leg, now_us: int) -> AskPrefill:
        """A transfer begins; one token alone is drawn elsewhere without any."""
        job = attempt.request.job
        self._transfers_begun += 1
        transfer = TransferKey(self._transfers_begun, 1)
        attempt.prefill = Peer(leg.instance.worker, leg.instance.incarnation)
        attempt.transfer = transfer
        self._transfers[transfer] = attempt
        wanted = job.params.max_tokens - max(len(choice.output) for choice in job.choices) > 1
        tokens = len(job.prompt) + len(job.choices[0].output)
        if wanted:
            lease_us, deadline_us = self._lease_us, attempt.deadline_us
            self._incoming.reserve(transfer, attempt.prefill, tokens, lease_us, deadline_us, now_us)
        remaining_us = attempt.deadline_us - now_us
        router, reservation = attempt.request.router, leg.reservation
        return AskPrefill(leg.instance, leg.address, transfer, job, wanted, remaining_us, router, reservation)

    def _wait_to_bind(self, attempt: Attempt) -> None:
        attempt.phase = Phase.BINDING
        self._binding[attempt.key] = attempt
        self._binding = dict(sorted(self._binding.items(), key=lambda item: self._engine.place(item[0])))

    def _bind_waiting(self, now_us: int) -> list[Action]:
        """By place, and nobody overtakes: neither small ones a large prompt, nor patient ones an urgent."""
        actions: list[Action] = []
        for attempt in list(self._binding.values()):
            bound = self._engine.bind(attempt.key, now_us)
            if bound is None:
                break
            del self._binding[attempt.key]
            actions += self._receive(attempt, bound, now_us)
        return actions

    def _receive(self, attempt: Attempt, bound: Bound, now_us: int) -> list[Action]:
        transfer, peer = attempt.transfer, attempt.prefill
        assert transfer is not None
        assert peer is not None
        attempt.phase = Phase.RECEIVING
        self._count(attempt)
        self._engine.pin(attempt.key)
        self._pinned[transfer] = Pin(attempt.key, bound.block_table)
        answers = self._incoming.bind(transfer, bound.cached_tokens, now_us)
        send = SendBound(peer, transfer, bound.cached_tokens, self._lease_us)
        return [send, *self._transfer_actions(answers, now_us)]

    def _drop_transfer(self, attempt: Attempt, reason: EndReason, now_us: int) -> list[Action]:
        """Nothing of it is wanted any more; blocks under a running scatter stay pinned until it is over."""
        transfer, attempt.transfer = attempt.transfer, None
        if transfer is None:
            return []
        assert attempt.prefill is not None
        self._binding.pop(attempt.key, None)
        del self._transfers[transfer]
        answers = self._incoming.abort(transfer, reason, now_us)
        return [SendAbort(attempt.prefill, transfer, reason), *self._transfer_actions(answers, now_us)]

    def _transfer_actions(self, answers: list[IncomingAction], now_us: int) -> list[Action]:
        """What the transfer table decided, in this worker's terms."""
        actions: list[Action] = []
        for answer in answers:
            match answer:
                case Receive(peer, header):
                    actions.append(ReceiveChunk(peer, header))
                case Drain(peer, header, _):
                    actions.append(DrainChunk(peer, header))
                case Discard(header, _):
                    actions.append(DiscardChunk(header))
                case Scatter(key, header):
                    actions.append(ScatterChunk(header, self._pinned[key].block_table))
                case Acknowledge(peer, key, chunk):
                    actions.append(SendReceived(peer, key, chunk))
                case ReleaseBlocks(_, key):
                    self._unpin(key)
                case Committed(_, key):
                    self._unpin(key)
                    attempt = self._transfers[key]
                    attempt.committed = True
                    actions += self._decode_if_ready(attempt, now_us)
                case Aborted(_, key, reason, _):
                    # One that is not here was dropped by us, and the peer was told then.
                    if (dropped := self._transfers.get(key)) is not None:
                        actions += self._hand_off_failed(dropped, reason, now_us)
        return actions

    def _unpin(self, key: TransferKey) -> None:
        self._engine.unpin(self._pinned.pop(key).attempt)

    def _of(self, peer: Peer, transfer: TransferKey) -> Attempt | None:
        """The attempt a prefill worker speaks of, if it is its business."""
        attempt = self._transfers.get(transfer)
        return attempt if attempt is not None and attempt.prefill == peer else None

    def check_hand_offs(self) -> None:
        self._incoming.check()
        for transfer, attempt in self._transfers.items():
            assert attempt.transfer == transfer and attempt.end is None
        assert all(attempt.phase is Phase.BINDING for attempt in self._binding.values())
        assert len(self._pinned) == self._incoming.transferring, "pinned for no transfer, or not for one"
