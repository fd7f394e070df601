"""The decode worker's contracts as messages: gateways on one side, prefill workers on the other."""

from core.ends import End
from core.prefix_hashes import ROOT_LENGTHS
from core.request import AttemptKey, InstanceKey
from decode_worker.actions import AskPrefill, SendBound
from decode_worker.attempts import (
    AttemptEnd,
    DrawnToken,
    GatewayKey,
    PrefillDrawn,
    Run,
    StartRequest,
)
from decode_worker.mailboxes import ResumePoint, SendFrame
from engine.job import Job
from engine.plan import Sampled
from kv_transfer.types import ChunkHeader, Fingerprint, Peer, TransferKey
from proto import common_pb2, decode_pb2, prefill_pb2
from rpc.convert import (
    choice_from_wire,
    choice_to_wire,
    end_to_wire,
    finish_from_wire,
    finish_to_wire,
    leg_from_wire,
    model_from_wire,
    model_to_wire,
    sampling_from_wire,
    sampling_to_wire,
    tenant_class_from_wire,
    weight_from_wire,
)
from rpc.errors import FieldError

# ---- gateways ----


def attach_from_wire(message: decode_pb2.GatewayAttach) -> tuple[GatewayKey, tuple[ResumePoint, ...]]:
    """Raises FieldError where the gateway is not named."""
    if not message.gateway or not message.incarnation:
        raise FieldError("attach.gateway", "gateway and incarnation must not be empty")
    points = (ResumePoint(AttemptKey(r.request, r.attempt), tuple(r.next_index)) for r in message.resume)
    return GatewayKey(message.gateway, message.incarnation), tuple(points)


def start_from_wire(message: decode_pb2.Start) -> StartRequest:
    """Raises FieldError naming the first field that no gateway of ours would send."""
    if not message.request:
        raise FieldError("start.request", "must not be empty")
    if not message.prompt:
        raise FieldError("start.prompt", "must not be empty")
    if not message.choices:
        raise FieldError("start.choices", "must not be empty")
    if len(message.hash_root) not in ROOT_LENGTHS:
        raise FieldError("start.hash_root", f"must be {' or '.join(map(str, ROOT_LENGTHS))} bytes")
    if message.fallback not in ("", "require", "prefer", "never"):
        raise FieldError("start.fallback", f"{message.fallback!r} is none of require, prefer, never")
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
    legs = tuple(leg_from_wire(leg, f"start.legs[{number}]") for number, leg in enumerate(message.legs))
    fallback = message.fallback or "prefer"
    return StartRequest(job, legs, fallback, message.deadline_remaining_us, message.router)


def resume_to_wire(key: AttemptKey) -> decode_pb2.Resume:
    return decode_pb2.Resume(request=key.request, attempt=key.attempt)


def frame_to_wire(frame: SendFrame) -> decode_pb2.DecodeMessage:
    runs = [_run_to_wire(run) for run in frame.runs]
    return decode_pb2.DecodeMessage(
        frame=decode_pb2.Frame(runs=runs, ends=[attempt_end_to_wire(end) for end in frame.ends])
    )


def attempt_end_to_wire(end: AttemptEnd) -> decode_pb2.AttemptEnd:
    key = end.key
    return decode_pb2.AttemptEnd(request=key.request, attempt=key.attempt, end=end_to_wire(end.end))


def refusal_to_wire(key: AttemptKey, end: End) -> decode_pb2.DecodeMessage:
    """One attempt that never became one here."""
    frame = decode_pb2.Frame(ends=[attempt_end_to_wire(AttemptEnd(key, end))])
    return decode_pb2.DecodeMessage(frame=frame)


def _run_to_wire(run: Run) -> decode_pb2.TokenRun:
    with_logprobs = any(one.logprob is not None for one in run.sampled)
    return decode_pb2.TokenRun(
        request=run.key.request,
        attempt=run.key.attempt,
        choice=run.choice,
        first_index=run.first_index,
        tokens=[one.token for one in run.sampled],
        logprobs=[_logprobs_to_wire(one) for one in run.sampled] if with_logprobs else (),
        finish_reason=finish_to_wire(run.finish),
        cached_tokens=run.cached_tokens,
    )


def _logprobs_to_wire(sampled: Sampled) -> common_pb2.Logprobs:
    return common_pb2.Logprobs(
        logprob=sampled.logprob or 0.0,
        top_tokens=[token for token, _ in sampled.top],
        top_logprobs=[logprob for _, logprob in sampled.top],
    )


# ---- prefill workers ----


def home_attach_to_wire(own: Peer, fingerprint: Fingerprint) -> prefill_pb2.HomeMessage:
    attach = prefill_pb2.HomeAttach(
        worker=own.worker, incarnation=own.incarnation, fingerprint=fingerprint_to_wire(fingerprint)
    )
    return prefill_pb2.HomeMessage(attach=attach)


def fingerprint_to_wire(fingerprint: Fingerprint) -> prefill_pb2.Fingerprint:
    return prefill_pb2.Fingerprint(
        model=model_to_wire(fingerprint.model),
        dtype=fingerprint.dtype,
        layers=fingerprint.layers,
        kv_heads=fingerprint.kv_heads,
        head_dim=fingerprint.head_dim,
    )


def fingerprint_from_wire(message: prefill_pb2.Fingerprint) -> Fingerprint:
    model = model_from_wire(message.model, "fingerprint.model")
    return Fingerprint(model, message.dtype, message.layers, message.kv_heads, message.head_dim)


def ask_to_wire(ask: AskPrefill) -> prefill_pb2.HomeMessage:
    job = ask.job
    start = prefill_pb2.PrefillStart(
        transfer=ask.transfer.transfer,
        epoch=ask.transfer.epoch,
        request=job.key.request,
        attempt=job.key.attempt,
        tenant=job.tenant,
        tenant_class=int(job.tenant_class),
        prompt=job.prompt,
        choices=[choice_to_wire(choice) for choice in job.choices],
        sampling=sampling_to_wire(job.params),
        seed=job.seed,
        hash_root=job.hash_root,
        deadline_remaining_us=ask.deadline_remaining_us,
        router=ask.router,
        reservation=ask.reservation,
        transfer_wanted=ask.transfer_wanted,
        grammar=job.grammar,
        tenant_weight=job.tenant_weight,
    )
    return prefill_pb2.HomeMessage(start=start)


def bound_to_wire(bound: SendBound) -> prefill_pb2.HomeMessage:
    return prefill_pb2.HomeMessage(
        bound=prefill_pb2.Bound(
            transfer=bound.transfer.transfer,
            epoch=bound.transfer.epoch,
            first_token=bound.first_token,
            lease_us=bound.lease_us,
        )
    )


def abort_to_wire(transfer: TransferKey, reason: str) -> prefill_pb2.HomeMessage:
    abort = prefill_pb2.AbortTransfer(transfer=transfer.transfer, epoch=transfer.epoch, reason=reason)
    return prefill_pb2.HomeMessage(abort=abort)


def received_to_wire(transfer: TransferKey, chunk: int) -> prefill_pb2.HomeMessage:
    received = prefill_pb2.ChunkReceived(transfer=transfer.transfer, epoch=transfer.epoch, chunk=chunk)
    return prefill_pb2.HomeMessage(received=received)


def first_from_wire(message: prefill_pb2.FirstTokens) -> PrefillDrawn:
    tokens = tuple(
        DrawnToken(one.choice, _sampled_from_wire(one), finish_from_wire(one.finish_reason))
        for one in message.tokens
    )
    return PrefillDrawn(tokens, message.cached_tokens, message.chunks)


def _sampled_from_wire(drawn: prefill_pb2.FirstDrawn) -> Sampled:
    if not drawn.HasField("logprobs"):
        return Sampled(drawn.choice, drawn.token)
    found = drawn.logprobs
    top = tuple(zip(found.top_tokens, found.top_logprobs, strict=True))
    return Sampled(drawn.choice, drawn.token, found.logprob, top)


def header_from_wire(message: prefill_pb2.ChunkSent) -> ChunkHeader:
    return ChunkHeader(
        message.transfer,
        message.epoch,
        message.chunk,
        message.start,
        message.stop,
        message.bytes,
        message.checksum,
    )


def peer_of(instance: InstanceKey) -> Peer:
    return Peer(instance.worker, instance.incarnation)
