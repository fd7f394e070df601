"""When drafts are worth their time, and what becomes of them, by example."""

from dataclasses import replace

import msgspec
import pytest

from core.cost_model import StepCost
from core.outcomes import FinishReason
from core.prefix_hashes import chain
from core.request import AttemptKey, Choice, TenantClass
from core.sampling import SamplingParams
from engine.accounts import Account
from engine.config import EngineConfig
from engine.engine import Engine
from engine.job import Job, Stage, Token
from engine.plan import Row, Sampled, SampleSpec, StepPlan, StepResult
from engine.speculation import accepted

COST = StepCost(base_ns=10_000_000, token_ns=100_000, context_ns=0)
DRAFTS = 4
PROMPT = (1, 2, 3, 4, 5, 6, 7, 8) * 3


def job(number: int, prompt: tuple[int, ...] = PROMPT, **params: int | tuple[int, ...]) -> Job:
    fields = {"max_tokens": 100, "temperature": 0.0, **params}
    return Job(
        key=AttemptKey(f"request-{number}", 0),
        prompt=prompt,
        choices=(Choice(0),),
        params=SamplingParams(**fields),  # type: ignore[arg-type]
        seed=1,
        hash_root=b"rootroot",
        tenant="tenant",
        tenant_class=TenantClass.STANDARD,
    )


class Echo:
    """An engine whose model always goes on counting 1..8 round, except where told otherwise."""

    def __init__(self, cost: StepCost = COST, **changes: int) -> None:
        fields = {"blocks": 400, "speculation": DRAFTS, "prefix_cache": True, **changes}
        self.engine = Engine(EngineConfig(**fields), cost)  # type: ignore[arg-type]
        self.cost = cost
        self.now_us = 0
        self.tokens: list[Token] = []
        self.instead: dict[int, int] = {}
        """By position: another token."""

    def plan(self) -> StepPlan:
        plan = self.engine.plan(self.now_us)
        assert plan is not None
        return plan

    def finish(self, plan: StepPlan) -> None:
        sampled = tuple(tuple(self._draw(spec) for spec in row.samples) for row in plan.rows)
        elapsed_us = self.cost.step_us(plan.tokens, 0)
        self.now_us += elapsed_us
        self.tokens += self.engine.step_done(StepResult(plan.step, sampled, elapsed_us), self.now_us).tokens
        self.engine.check()

    def step(self) -> StepPlan:
        plan = self.plan()
        self.finish(plan)
        return plan

    def _draw(self, spec: SampleSpec) -> Sampled:
        return Sampled(spec.choice, self.instead.get(spec.position, spec.position % 8 + 1))


def test_a_copy_takes_several_tokens_a_step() -> None:
    echo = Echo()
    assert echo.engine.add(job(1), Stage.FULL, 0) is None
    echo.step()
    (row,) = echo.step().rows
    assert row.tokens == (1, 2, 3, 4, 5)[: len(row.tokens)] and row.drafts == len(row.tokens) - 1 > 0
    assert [spec.position for spec in row.samples] == [25 + index for index in range(len(row.tokens))]
    assert len(echo.tokens) == 1 + len(row.tokens)
    assert [token.index for token in echo.tokens] == list(range(len(echo.tokens)))
    for _ in range(6):
        row = echo.step().rows[0]
    assert row.drafts == DRAFTS, "it has learned to believe"


def test_a_wrong_draft_is_left_out_and_computed_over() -> None:
    echo = Echo()
    assert echo.engine.add(job(1), Stage.FULL, 0) is None
    echo.step()
    echo.instead = {26: 77}
    (row,) = echo.step().rows
    assert row.drafts >= 2 and [token.sampled.token for token in echo.tokens] == [1, 2, 77]
    (row,) = echo.step().rows
    assert row.start == 26 and row.tokens == (77,)


def test_penalties_at_each_position_see_the_drafts_before_it() -> None:
    echo = Echo()
    penalised = msgspec.structs.replace(job(1).params, frequency_penalty=0.5)
    assert echo.engine.add(replace(job(1), params=penalised), Stage.FULL, 0) is None
    echo.step()
    (row,) = echo.step().rows
    assert row.drafts >= 2
    for count, spec in enumerate(row.samples):
        assert spec.prompt_tokens == PROMPT and spec.output_tokens == (1, *row.draft_tokens[:count])
        assert spec.output_count == 1 + count


def test_a_stop_token_among_the_drafts_ends_the_choice() -> None:
    echo = Echo()
    assert echo.engine.add(job(1, stop_token_ids=(3,)), Stage.FULL, 0) is None
    echo.step()
    (row,) = echo.step().rows
    assert row.drafts >= 3
    assert [token.sampled.token for token in echo.tokens] == [1, 2, 3]
    assert [token.finish for token in echo.tokens] == [None, None, FinishReason.STOP]
    counts = echo.engine.counts()
    assert counts.free + counts.cached == counts.total


@pytest.mark.parametrize("max_tokens", range(2, 9))
def test_max_tokens_is_met_and_nothing_drafted_beyond(max_tokens: int) -> None:
    echo = Echo()
    assert echo.engine.add(job(1, max_tokens=max_tokens), Stage.FULL, 0) is None
    while not echo.tokens or echo.tokens[-1].finish is None:
        row = echo.step().rows[0]
        assert row.start + len(row.tokens) < len(PROMPT) + max_tokens
    assert len(echo.tokens) == max_tokens and echo.tokens[-1].finish is FinishReason.LENGTH


def test_the_pools_last_position_is_never_drafted_over() -> None:
    echo = Echo(blocks=2)
    assert echo.engine.add(job(1), Stage.FULL, 0) is None
    while not echo.tokens or echo.tokens[-1].finish is None:
        echo.step()
    assert len(PROMPT) + len(echo.tokens) == 32


@pytest.mark.parametrize("prompt", [PROMPT, tuple(range(100, 124))])
def test_off_is_off(prompt: tuple[int, ...]) -> None:
    echo = Echo(speculation=0)
    assert echo.engine.add(job(1, prompt), Stage.FULL, 0) is None
    for _ in range(20):
        assert not echo.step().rows[0].drafts
    assert echo.engine.drafted == 0


def test_who_has_a_grammar_or_nothing_to_copy_drafts_nothing() -> None:
    echo = Echo(grammars=True)
    odd = tuple(range(100, 124))
    for one in (replace(job(1), grammar="{}"), job(2, odd)):
        assert echo.engine.add(one, Stage.FULL, 0) is None
    echo.instead = {position: 1000 + position for position in range(200)}
    for _ in range(20):
        assert not any(row.drafts for row in echo.step().rows)


def test_the_more_there_are_the_less_is_drafted() -> None:
    """One step's fixed time shared by many: a draft must be ever likelier to be worth its own."""
    cost = StepCost(base_ns=5_000_000, token_ns=500_000, context_ns=0)
    drafted = []
    for count in (1, 4, 16, 48):
        echo = Echo(cost, max_step_tokens=4096)
        for number in range(count):
            assert echo.engine.add(job(number), Stage.FULL, 0) is None
        for _ in range(12):
            rows = echo.step().rows
        drafted.append(sum(row.drafts for row in rows) / count)
    assert drafted[0] == DRAFTS and drafted[-1] == 0, drafted
    assert drafted == sorted(drafted, reverse=True)


def test_it_never_pays_where_a_step_has_no_fixed_time() -> None:
    echo = Echo(StepCost(base_ns=0, token_ns=1_000_000, context_ns=0))
    assert echo.engine.add(job(1), Stage.FULL, 0) is None
    for _ in range(20):
        echo.step()
    assert echo.engine.drafted == 0


def test_rejected_drafts_are_charged_as_such() -> None:
    echo = Echo()
    assert echo.engine.add(job(1), Stage.FULL, 0) is None
    echo.step()
    echo.instead = {position: 1000 + position for position in range(25, 200)}
    row = echo.step().rows[0]
    assert row.drafts and echo.engine.accepted == 0 and echo.engine.drafted == row.drafts
    accounts, time = echo.engine.accounts, echo.engine.wall_time(echo.now_us)
    assert accounts.rejected_us > 0 and time.total_us(Account.REJECTED) == accounts.rejected_us
    step_us = echo.cost.step_us(len(row.tokens), 0)
    assert accounts.rejected_us == pytest.approx(step_us * row.drafts / len(row.tokens), abs=2)


def test_a_tight_pool_has_no_blocks_for_drafts() -> None:
    """Nobody is preempted, and nothing is refused, for a guess: the last block is left to real tokens."""
    echo = Echo(blocks=3, watermark_blocks=1)
    prompt = (PROMPT * 2)[:31]
    assert echo.engine.add(job(1, prompt), Stage.FULL, 0) is None
    echo.step()
    for _ in range(3):
        row = echo.step().rows[0]
        assert row.start + len(row.tokens) <= 16 * len(row.block_table)
    assert echo.engine.preemptions == 0


def test_only_accepted_tokens_reach_the_prefix_cache() -> None:
    """A block that drafts filled is known by the tokens that were drawn, once they are computed."""
    echo = Echo(speculation=16, block_size=4)
    assert echo.engine.add(job(1, PROMPT[:22]), Stage.FULL, 0) is None
    for _ in range(4):
        echo.step()
    echo.instead = {position: 1000 + position for position in range(200)}
    known = echo.tokens[-1].index + 1 + 22
    row = echo.step().rows[0]
    assert row.drafts >= 4 and echo.engine.accepted < echo.engine.drafted
    tokens = (*PROMPT[:22], *(token.sampled.token for token in echo.tokens))
    assert len(tokens) == known + 1
    assert echo.engine.prefix_hashes() == tuple(chain(b"rootroot", tokens[: known // 16 * 16]))


def test_a_cancel_while_drafts_are_verified_frees_all() -> None:
    echo = Echo()
    assert echo.engine.add(job(1), Stage.FULL, 0) is None
    echo.step()
    plan = echo.plan()
    assert plan.rows[0].drafts
    echo.engine.cancel(job(1).key, echo.now_us)
    echo.finish(plan)
    counts = echo.engine.counts()
    assert counts.held == 0 and counts.free + counts.cached == counts.total
    assert echo.engine.accounts.cancelled_us > 0 and echo.engine.accounts.rejected_us == 0


@pytest.mark.parametrize(
    ("drawn", "count"),
    [((5, 6, 7), 2), ((5, 9, 7), 1), ((9, 6, 7), 0), ((9,), 0), ((5, 9), 1), ((2, 6, 7), 0)],
)
def test_accepted(drawn: tuple[int, ...], count: int) -> None:
    """Up to the first draw that differs, behind which there may be none; 2 ends the choice."""
    params = SamplingParams(stop_token_ids=(2,))
    drafts = (2, 6) if drawn[0] == 2 else (5, 6)
    row = Row(1, (4, *drafts), 10, (0,), tuple(SampleSpec(0, params, 1, 11 + i, i) for i in range(3)), 2)
    assert accepted(row, tuple(Sampled(0, token) for token in drawn)) == count
