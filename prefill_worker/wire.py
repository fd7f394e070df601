"""The prefill worker's contract as messages."""

from core.ends import End
from core.prefix_hashes import ROOT_LENGTHS
from core.request import AttemptKey
from engine.job import Job
from kv_transfer.lanes import LaneOffer
from kv_transfer.types import ChunkHeader, Fingerprint, Peer, TransferKey
from prefill_worker.actions import Drawn, PrefillRequest, SendFirst
from proto import common_pb2, prefill_pb2
from rpc.convert import (
    choice_from_wire,
    end_to_wire,
    finish_to_wire,
    model_from_wire,
    model_to_wire,
    sampling_from_wire,
    tenant_class_from_wire,
    weight_from_wire,
)
from rpc.errors import FieldError

Message = prefill_pb2.PrefillMessage


def home_from_wire(message: prefill_pb2.HomeAttach) -> tuple[Peer, Fingerprint]:
    """Raises FieldError where the home is not named."""
    if not message.worker or not message.incarnation:
        raise FieldError("attach.worker", "worker and incarnation must not be empty")
    theirs = message.fingerprint
    model = model_from_wire(theirs.model, "attach.fingerprint.model")
    fingerprint = Fingerprint(model, theirs.dtype, theirs.layers, theirs.kv_heads, theirs.head_dim)
    return Peer(message.worker, message.incarnation), fingerprint


def attached_to_wire(own: Peer, fingerprint: Fingerprint, refused: End | None) -> Message:
    wire = prefill_pb2.Fingerprint(
        model=model_to_wire(fingerprint.model),
        dtype=fingerprint.dtype,
        layers=fingerprint.layers,
        kv_heads=fingerprint.kv_heads,
        head_dim=fingerprint.head_dim,
    )
    attached = prefill_pb2.PrefillAttached(worker=own.worker, incarnation=own.incarnation, fingerprint=wire)
    if refused is not None:
        attached.refused.CopyFrom(end_to_wire(refused))
    return Message(attached=attached)


def start_from_wire(message: prefill_pb2.PrefillStart) -> PrefillRequest:
    """Raises FieldError naming the first field that no home of ours would send."""
    if not message.prompt:
        raise FieldError("start.prompt", "must not be empty")
    if not message.choices:
        raise FieldError("start.choices", "must not be empty")
    if len(message.hash_root) not in ROOT_LENGTHS:
        raise FieldError("start.hash_root", f"must be {' or '.join(map(str, ROOT_LENGTHS))} bytes")
    job = Job(
        key=AttemptKey(message.request, message.attempt),
        prompt=tuple(message.prompt),
        choices=tuple(choice_from_wire(choice) for choice in message.choices),
        params=sampling_from_wire(message.sampling, "start.sampling"),
        seed=message.seed,
        hash_root=message.hash_root,
        tenant=message.tenant,
        tenant_class=tenant_class_from_wire(message.tenant_class, "start.tenant_class"),
        grammar=message.grammar,
        tenant_weight=weight_from_wire(message.tenant_weight, "start.tenant_weight"),
    )
    return PrefillRequest(
        TransferKey(message.transfer, message.epoch),
        job,
        message.transfer_wanted,
        message.deadline_remaining_us,
        message.router,
        message.reservation,
    )


def offer_from_wire(message: prefill_pb2.LaneOffer) -> LaneOffer:
    return LaneOffer(message.lane_epoch, message.store_address, message.store_prefix)


def bind_to_wire(transfer: TransferKey) -> Message:
    return Message(bind=prefill_pb2.BindRequest(transfer=transfer.transfer, epoch=transfer.epoch))


def first_to_wire(first: SendFirst) -> Message:
    return Message(
        first=prefill_pb2.FirstTokens(
            transfer=first.transfer.transfer,
            epoch=first.transfer.epoch,
            tokens=[_drawn_to_wire(drawn) for drawn in first.drawn],
            cached_tokens=first.cached_tokens,
            chunks=first.chunks,
            compute_us=first.compute_us,
        )
    )


def _drawn_to_wire(drawn: Drawn) -> prefill_pb2.FirstDrawn:
    sampled = drawn.sampled
    wire = prefill_pb2.FirstDrawn(
        choice=drawn.choice, token=sampled.token, finish_reason=finish_to_wire(drawn.finish)
    )
    if sampled.logprob is not None:
        top = common_pb2.Logprobs(
            logprob=sampled.logprob,
            top_tokens=[token for token, _ in sampled.top],
            top_logprobs=[logprob for _, logprob in sampled.top],
        )
        wire.logprobs.CopyFrom(top)
    return wire


def sent_to_wire(header: ChunkHeader, lane_epoch: int) -> Message:
    return Message(
        sent=prefill_pb2.ChunkSent(
            transfer=header.transfer,
            epoch=header.epoch,
            chunk=header.chunk,
            start=header.start,
            stop=header.stop,
            bytes=header.bytes,
            checksum=header.checksum,
            lane_epoch=lane_epoch,
        )
    )


def failed_to_wire(transfer: TransferKey, end: End) -> Message:
    failed = prefill_pb2.TransferFailed(
        transfer=transfer.transfer, epoch=transfer.epoch, end=end_to_wire(end)
    )
    return Message(failed=failed)
