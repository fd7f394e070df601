"""What nodes say to each other: one object's actions, as the next object's events take them."""

from dataclasses import dataclass

from core.ends import End
from core.outcomes import Outcome
from core.request import AttemptKey
from decode_worker.actions import AskPrefill
from decode_worker.attempts import AttemptEnd as HomeEnd
from decode_worker.attempts import DrawnToken, GatewayKey, PrefillDrawn, StartRequest
from decode_worker.attempts import Run as HomeRun
from decode_worker.mailboxes import ResumePoint, SendFrame
from engine.job import Job
from kv_transfer.types import ChunkHeader, Fingerprint, Peer
from prefill_worker.actions import PrefillRequest, SendFirst
from router.messages import LiveRequest, Submission
from services.gateway.actions import LiveAttempt, Start, Submit
from services.gateway.requests import AttemptEnd, Logprobs, Run
from sim.lanes import LanePair


@dataclass(frozen=True, slots=True)
class GatewayHello:
    gateway: str
    incarnation: str
    live: tuple[LiveRequest, ...]


@dataclass(frozen=True, slots=True)
class GatewayAttach:
    gateway: GatewayKey
    resume: tuple[ResumePoint, ...]


@dataclass(frozen=True, slots=True)
class Cancel:
    key: AttemptKey
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Attached:
    worker: str
    incarnation: str
    unknown: tuple[AttemptKey, ...]


@dataclass(frozen=True, slots=True)
class Frame:
    runs: tuple[Run, ...]
    ends: tuple[AttemptEnd, ...]


@dataclass(frozen=True, slots=True)
class HomeAttach:
    peer: Peer
    fingerprint: Fingerprint


@dataclass(frozen=True, slots=True)
class PrefillAttached:
    peer: Peer
    fingerprint: Fingerprint
    refused: End | None


@dataclass(frozen=True, slots=True)
class LaneOffer:
    lane: LanePair


@dataclass(frozen=True, slots=True)
class ChunkSent:
    header: ChunkHeader
    lane_epoch: int


def submission(submit: Submit, now_us: int) -> Submission:
    tenant = submit.tenant
    return Submission(
        key=submit.key,
        tenant=tenant.name,
        tenant_class=tenant.tenant_class,
        model=submit.model,
        prompt_tokens=submit.prompt_tokens,
        output_tokens=submit.output_tokens,
        max_tokens=submit.max_tokens,
        choices=submit.choices,
        prefix_hashes=submit.prefix_hashes,
        deadline_remaining_us=max(1, submit.deadline_us - now_us),
        avoid_workers=submit.avoid_workers,
        dtype=submit.dtype,
        tenant_weight=tenant.weight,
        tenant_concurrency=tenant.concurrency,
        tenant_tokens_per_minute=tenant.tokens_per_minute,
    )


def live_request(live: LiveAttempt, now_us: int) -> LiveRequest:
    return LiveRequest(submission(live.submit, now_us), live.legs, live.first_token_seen)


def start_request(start: Start, now_us: int) -> StartRequest:
    job = Job(
        key=start.key,
        prompt=start.prompt,
        choices=start.choices,
        params=start.params,
        seed=start.seed,
        hash_root=start.hash_root,
        tenant=start.tenant.name,
        tenant_class=start.tenant.tenant_class,
        grammar=start.grammar,
        tenant_weight=start.tenant.weight,
    )
    return StartRequest(job, start.legs, start.fallback, max(1, start.deadline_us - now_us), start.router)


def prefill_request(ask: AskPrefill) -> PrefillRequest:
    return PrefillRequest(
        ask.transfer, ask.job, ask.transfer_wanted, ask.deadline_remaining_us, ask.router, ask.reservation
    )


def prefill_drawn(first: SendFirst) -> PrefillDrawn:
    tokens = tuple(DrawnToken(drawn.choice, drawn.sampled, drawn.finish) for drawn in first.drawn)
    return PrefillDrawn(tokens, first.cached_tokens, first.chunks)


def frame(sent: SendFrame) -> Frame:
    return Frame(tuple(map(_run, sent.runs)), tuple(map(_end, sent.ends)))


def _run(run: HomeRun) -> Run:
    logprobs = tuple(Logprobs(one.logprob, one.top) for one in run.sampled if one.logprob is not None)
    tokens = tuple(one.token for one in run.sampled)
    return Run(
        run.key.request,
        run.key.attempt,
        run.choice,
        run.first_index,
        tokens,
        logprobs if len(logprobs) == len(tokens) else (),
        run.finish,
        run.cached_tokens,
    )


def _end(ended: HomeEnd) -> AttemptEnd:
    return AttemptEnd(ended.key.request, ended.key.attempt, ended.end)
