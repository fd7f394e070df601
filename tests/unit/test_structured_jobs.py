"""What engines and workers do with a grammar: carry it to the sampler, refuse it, or end its job alone."""

import msgspec
import pytest

from core.cost_model import StepCost
from core.outcomes import Outcome
from core.request import AttemptKey, Choice, InstanceKey, Leg, ModelIdentity, Role, TenantClass
from core.sampling import SamplingParams
from decode_worker.actions import RunStep as RunDecodeStep
from decode_worker.attempts import GatewayKey, StartRequest
from decode_worker.config import DecodeConfig
from decode_worker.decode_worker import build as build_home
from decode_worker.mailboxes import SendFrame
from engine.config import EngineConfig
from engine.engine import Engine
from engine.grammar_masks import GrammarMasks, no_vocabulary
from engine.job import Failed, Job, Stage, refused_because
from engine.plan import Row, SampleSpec, StepPlan, StepResult
from engine.timed_backend import TimedBackend, digest_layout
from kv_transfer.types import Peer, TransferKey
from prefill_worker.actions import PrefillRequest, SendFailed
from prefill_worker.actions import RunStep as RunPrefillStep
from prefill_worker.config import PrefillConfig
from prefill_worker.prefill_worker import build as build_prefill
from text.grammar import GrammarError

COST = StepCost(base_ns=1_000_000, token_ns=10_000, context_ns=100)


def job(name: str, grammar: str, choices: int = 1, **params: object) -> Job:
    return Job(
        key=AttemptKey(name, 0),
        prompt=(1, 2, 3),
        choices=tuple(Choice(index) for index in range(choices)),
        params=msgspec.structs.replace(SamplingParams(temperature=0.0, max_tokens=8), **params),
        seed=1,
        hash_root=b"rootroot",
        tenant="tenant",
        tenant_class=TenantClass.STANDARD,
        grammar=grammar,
    )


def engine(*, grammars: bool = True) -> Engine:
    return Engine(EngineConfig(blocks=32, grammars=grammars), COST)


def planned(found: Engine) -> StepPlan:
    plan = found.plan(0)
    assert plan is not None
    return plan


def with_failures(plan: StepPlan, result: StepResult) -> StepResult:
    """As if no token of any row with a grammar could be drawn."""
    failing = [number for number, row in enumerate(plan.rows) if any(spec.grammar for spec in row.samples)]
    sampled = tuple(() if number in failing else drawn for number, drawn in enumerate(result.sampled))
    return StepResult(result.step, sampled, result.elapsed_us, tuple((number, "why") for number in failing))


@pytest.mark.parametrize("stage", list(Stage))
def test_an_engine_without_grammars_refuses(stage: Stage) -> None:
    held = job("a", "{}")
    assert engine(grammars=False).add(held, stage, 0) is Outcome.INVALID_ARGUMENT
    assert "grammar" in refused_because(held, Outcome.INVALID_ARGUMENT)
    assert "grammar" not in refused_because(held, Outcome.PROMPT_TOO_LONG)
    assert engine(grammars=False).add(job("a", ""), stage, 0) is None


def test_the_sampler_sees_grammar_and_output_and_no_prompt() -> None:
    found, backend = engine(), TimedBackend(COST, digest_layout(16, 32))
    assert found.add(job("a", "{}"), Stage.FULL, 0) is None
    seen: list[int] = []
    for _ in range(3):
        plan = planned(found)
        (spec,) = plan.rows[0].samples
        assert (spec.grammar, spec.prompt_tokens) == ("{}", ())
        assert spec.output_tokens == tuple(seen)
        seen += [token.sampled.token for token in found.step_done(backend.execute(plan), 0).tokens]


@pytest.mark.parametrize("stage", [Stage.FULL, Stage.PREFILL])
@pytest.mark.parametrize("choices", [1, 3])
def test_a_failing_grammar_ends_its_job_and_frees_its_blocks(stage: Stage, choices: int) -> None:
    found, backend = engine(), TimedBackend(COST, digest_layout(16, 32))
    held, free = job("held", "{}", choices), job("free", "")
    assert found.add(held, stage, 0) is None
    assert found.add(free, Stage.FULL, 0) is None
    plan = planned(found)
    outcome = found.step_done(with_failures(plan, backend.execute(plan)), 0)
    found.check()
    assert outcome.failed == (Failed(held.key, "why"),)
    assert [token.key for token in outcome.tokens] == [free.key]
    assert not outcome.computed
    assert held.key not in found and free.key in found
    assert found.counts().held == 1


def test_a_failure_of_one_choice_ends_all_of_its_job() -> None:
    found, backend = engine(), TimedBackend(COST, digest_layout(16, 32))
    held = job("held", "{}", 3)
    assert found.add(held, Stage.FULL, 0) is None
    found.step_done(backend.execute(planned(found)), 0)
    plan = planned(found)
    result = backend.execute(plan)
    sampled = ((), *result.sampled[1:])
    outcome = found.step_done(msgspec.structs.replace(result, sampled=sampled, failures=((0, "why"),)), 0)
    found.check()
    assert outcome.failed == (Failed(held.key, "why"),)
    assert held.key not in found and found.counts().held == 0


def test_a_job_cancelled_while_it_fails_is_gone_once() -> None:
    found, backend = engine(), TimedBackend(COST, digest_layout(16, 32))
    held = job("held", "{}")
    assert found.add(held, Stage.FULL, 0) is None
    plan = planned(found)
    found.cancel(held.key, 0)
    assert found.step_done(with_failures(plan, backend.execute(plan)), 0).failed == ()
    found.check()


INSTANCE = InstanceKey("home", "a", ModelIdentity("fake", "1"))
LEG = Leg(Role.DECODE, INSTANCE, "home:1", 1, "digest")
CONFIG = EngineConfig(blocks=32, grammars=True)


def test_a_home_tells_the_gateway_and_serves_on() -> None:
    home, backend = (
        build_home(DecodeConfig(), INSTANCE, CONFIG, COST, 16),
        TimedBackend(COST, digest_layout(16, 32)),
    )
    gateway = GatewayKey("gateway", "a")
    home.gateway_attached(gateway, (), 0)
    held, free = job("held", "{}", 2), job("free", "")
    (step,) = home.start(gateway, StartRequest(held, (LEG,), "prefer", 10_000_000, "router"), 0)
    assert isinstance(step, RunDecodeStep)
    assert home.start(gateway, StartRequest(free, (LEG,), "prefer", 10_000_000, "router"), 0) == []
    actions = home.step_done(with_failures(step.plan, backend.execute(step.plan)), 0)
    home.check()
    frame = next(action for action in actions if isinstance(action, SendFrame))
    assert frame.runs == ()
    ((key, end),) = [(ended.key, ended.end) for ended in frame.ends]
    assert (key, end.outcome, end.field, end.message) == (
        held.key,
        Outcome.INVALID_ARGUMENT,
        "grammar",
        "grammar: why",
    )
    assert home.live == 1 and any(isinstance(action, RunDecodeStep) for action in actions)


def test_a_prefill_worker_tells_the_home() -> None:
    worker = build_prefill(PrefillConfig(), CONFIG, COST, 16)
    backend = TimedBackend(COST, digest_layout(16, 32))
    home, transfer = Peer("home", "a"), TransferKey(1, 1)
    request = PrefillRequest(transfer, job("held", "{}"), True, 10_000_000, "router", 1)
    worker.start(home, request, 0)
    step = worker.bound(home, transfer, 0, 1_000_000, 0)[-1]
    assert isinstance(step, RunPrefillStep)
    actions = worker.step_done(with_failures(step.plan, backend.execute(step.plan)), 0)
    worker.check()
    (failed,) = [action for action in actions if isinstance(action, SendFailed)]
    assert (failed.transfer, failed.end.outcome) == (transfer, Outcome.INVALID_ARGUMENT)
    assert worker.live == 0 and worker.engine.counts().held == 0


def row(grammar: str) -> Row:
    spec = SampleSpec(0, SamplingParams(), 1, 1, 0, grammar=grammar)
    return Row(1, (5,), 0, (0,), (spec,))


def test_masks_are_only_made_where_asked() -> None:
    masks = GrammarMasks(no_vocabulary)
    assert masks.begin([row(""), msgspec.structs.replace(row("{}"), samples=())])().failures == {}
    found = masks.begin([row(""), row("{}")])()
    assert list(found.failures) == [1] and "no vocabulary" in found.failures[1]
    assert found.masks == {}
    masks.close()


def test_a_vocabulary_that_cannot_be_opened_is_tried_once() -> None:
    tried = []

    def fails() -> None:
        tried.append(1)
        raise GrammarError("broken file")

    masks = GrammarMasks(fails)  # type: ignore[arg-type]
    masks.warm()
    for _ in range(2):
        assert masks.begin([row("{}")])().failures == {0: "broken file"}
    masks.close()
    assert tried == [1]
