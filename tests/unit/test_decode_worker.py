"""What a home does in the corners of its events, one by one."""

from typing import Any

import pytest

from core.cost_model import StepCost
from core.ends import End
from core.outcomes import FinishReason, Outcome
from core.request import AttemptKey, Choice, InstanceKey, Leg, ModelIdentity, Role, TenantClass
from core.sampling import SamplingParams
from decode_worker.actions import AskPrefill, RunStep, SendAttached, SendBound
from decode_worker.attempts import DrawnToken, GatewayKey, PrefillDrawn, StartRequest
from decode_worker.config import DecodeConfig
from decode_worker.decode_worker import DecodeWorker, build
from decode_worker.mailboxes import ResumePoint, SendFrame
from engine.config import EngineConfig
from engine.job import Job
from engine.plan import Sampled
from engine.timed_backend import TimedBackend, digest_layout
from kv_transfer.types import Peer

COST = StepCost(base_ns=1_000_000, token_ns=20_000, context_ns=50)
MODEL = ModelIdentity("fake", "1")
HOME, PREFILL = InstanceKey("home", "a", MODEL), InstanceKey("prefill", "a", MODEL)
PEER = Peer("prefill", "a")
GATEWAY = GatewayKey("gateway", "a")


class Home:
    """A decode worker and the steps it asks for; frames and other actions are kept."""

    def __init__(self, blocks: int = 64) -> None:
        self.worker: DecodeWorker = build(DecodeConfig(), HOME, EngineConfig(blocks=blocks), COST, 16)
        self.backend = TimedBackend(COST, digest_layout(16, blocks))
        self.steps: list[RunStep] = []
        self.said: list[Any] = []
        self.now_us = 0
        self.do("gateway_attached", GATEWAY, ())

    def do(self, event: str, *arguments: Any) -> list[Any]:
        """One event, the laws, and what it answered but for steps."""
        self.now_us += 1
        actions = getattr(self.worker, event)(*arguments, self.now_us)
        self.worker.check()
        self.steps += [action for action in actions if isinstance(action, RunStep)]
        told = [action for action in actions if not isinstance(action, RunStep)]
        self.said += told
        return told

    def step(self, steps: int) -> None:
        for _ in range(steps):
            if self.steps:
                self.do("step_done", self.backend.execute(self.steps.pop(0).plan))

    def ask(self, request: StartRequest) -> AskPrefill:
        return next(a for a in self.do("start", GATEWAY, request) if isinstance(a, AskPrefill))

    def frames(self) -> list[SendFrame]:
        return [action for action in self.said if isinstance(action, SendFrame)]

    def ends(self) -> list[Outcome]:
        return [end.end.outcome for frame in self.frames() for end in frame.ends]


def start(
    name: str,
    *,
    prompt_tokens: int = 10,
    max_tokens: int = 20,
    output: tuple[int, ...] = (),
    handed_over: bool = False,
    tenant_class: TenantClass = TenantClass.STANDARD,
) -> StartRequest:
    job = Job(
        key=AttemptKey(name, 1),
        prompt=tuple(range(prompt_tokens)),
        choices=(Choice(0, output),),
        params=SamplingParams(max_tokens=max_tokens, temperature=0.0),
        seed=1,
        hash_root=name.encode().ljust(8),
        tenant="tenant",
        tenant_class=tenant_class,
    )
    legs = [Leg(Role.DECODE, HOME, "home:1", 1, "digest")]
    if handed_over:
        legs.insert(0, Leg(Role.PREFILL, PREFILL, "prefill:1", 2, "digest"))
    return StartRequest(job, tuple(legs), "prefer", 10**9, "router")


# ---- a gateway comes back ----


@pytest.mark.parametrize("next_index", [(), (2,), (6,), (3, 3)], ids=["none", "before", "beyond", "too many"])
def test_an_attempt_that_its_gateway_remembers_differently_is_unknown_and_ends(
    next_index: tuple[int, ...],
) -> None:
    home = Home()
    home.do("start", GATEWAY, start("a", output=(5, 6, 7)))
    home.step(2)  # output indexes 3 and 4 are said
    home.do("gateway_lost", GATEWAY)
    home.said.clear()
    key = AttemptKey("a", 1)
    told = home.do("gateway_attached", GATEWAY, (ResumePoint(key, next_index),))
    assert told[0] == SendAttached(GATEWAY, (key,))
    assert not [run for frame in home.frames() for run in frame.runs]
    assert home.ends() == [Outcome.CANCELLED]
    assert home.worker.live == 0


@pytest.mark.parametrize("next_index", [3, 4, 5])
def test_a_gateway_resumes_at_every_index_it_can_have_come_to(next_index: int) -> None:
    home = Home()
    home.do("start", GATEWAY, start("a", output=(5, 6, 7)))
    home.step(2)
    said = [sampled for frame in home.frames() for run in frame.runs for sampled in run.sampled]
    home.do("gateway_lost", GATEWAY)
    home.said.clear()
    home.do("gateway_attached", GATEWAY, (ResumePoint(AttemptKey("a", 1), (next_index,)),))
    again = [run for frame in home.frames() for run in frame.runs]
    assert [(run.first_index, list(run.sampled)) for run in again] == (
        [(next_index, said[next_index - 3 :])] if next_index < 5 else []
    )
    assert home.worker.live == 1


# ---- the last position ----


def test_a_first_token_at_the_last_position_ends_its_choice_though_its_kv_never_comes() -> None:
    home = Home(blocks=2)
    ask = home.ask(start("a", prompt_tokens=31, handed_over=True))
    assert any(isinstance(action, SendBound) for action in home.do("bind_asked", PEER, ask.transfer))
    drawn = PrefillDrawn((DrawnToken(0, Sampled(0, 55), None),), 0, 1)
    home.do("first_tokens", PEER, ask.transfer, drawn)
    home.do("transfer_failed", PEER, ask.transfer, End(Outcome.TRANSFER_FAILED))
    assert [run.finish for frame in home.frames() for run in frame.runs] == [FinishReason.LENGTH]
    assert home.ends() == [Outcome.COMPLETED]


# ---- binding ----


def test_an_urgent_prompt_binds_before_a_patient_one_that_finds_no_room() -> None:
    home = Home(blocks=16)
    home.do("start", GATEWAY, start("runs", prompt_tokens=100, max_tokens=100))
    patient = home.ask(start("patient", prompt_tokens=200, handed_over=True, tenant_class=TenantClass.BATCH))
    urgent = home.ask(
        start("urgent", prompt_tokens=20, handed_over=True, tenant_class=TenantClass.INTERACTIVE)
    )
    assert not home.do("bind_asked", PEER, patient.transfer)
    told = home.do("bind_asked", PEER, urgent.transfer)
    assert [action.transfer for action in told if isinstance(action, SendBound)] == [urgent.transfer]


def test_a_large_prompt_is_not_starved_by_small_ones_of_its_class() -> None:
    home = Home(blocks=16)
    home.do("start", GATEWAY, start("runs", prompt_tokens=100, max_tokens=20))
    large = home.ask(start("large", prompt_tokens=200, handed_over=True))
    home.do("bind_asked", PEER, large.transfer)
    home.now_us += 1_000_000  # more than the places of the two are apart for their lengths
    small = home.ask(start("small", prompt_tokens=20, handed_over=True))
    assert not home.do("bind_asked", PEER, small.transfer)
    home.step(20)
    bound = [action.transfer for action in home.said if isinstance(action, SendBound)]
    assert bound == [large.transfer, small.transfer]


# ---- a prefill worker that says what it was not asked for ----


def test_blocks_are_bound_for_no_transfer_that_was_not_wanted() -> None:
    home = Home()
    ask = home.ask(start("a", max_tokens=1, handed_over=True))
    assert not ask.transfer_wanted
    home.do("bind_asked", PEER, ask.transfer)
    home.do("cancel", AttemptKey("a", 1), Outcome.CANCELLED)
    assert home.worker.engine.counts().in_flight == 0


def test_a_token_after_which_none_may_follow_ends_its_choice() -> None:
    home = Home()
    ask = home.ask(start("a", max_tokens=1, handed_over=True))
    home.do("first_tokens", PEER, ask.transfer, PrefillDrawn((DrawnToken(0, Sampled(0, 55), None),), 0, 0))
    assert [run.finish for frame in home.frames() for run in frame.runs] == [FinishReason.LENGTH]
    assert home.ends() == [Outcome.COMPLETED]
