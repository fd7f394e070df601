"""Where an engine's time went, and what it teaches about the next step."""

from dataclasses import dataclass

from core.cost_model import StepCost
from engine.accounts import Accounts, Share
from engine.millisecond_ledger import MillisecondLedger
from engine.plan import StepPlan, StepResult
from engine.sequence import Phase, Sequence
from engine.speculation import Speculation, accepted
from engine.step_prediction import StepLoad, StepPrediction


@dataclass(frozen=True, slots=True)
class ComputedSoFar:
    """What an engine has computed since its start; its utilisation follows from that.

    Model FLOPs are 2 * parameters * tokens + 4 * layers * heads * head_dim * pairs (MFU; Chowdhery et
    al. 2022, appendix B); every step reads the weights once, and pairs of decode rows their KV.
    """

    steps: int
    tokens: int
    pairs: int
    """(token, earlier-or-own position) pairs attended to."""


class StepTimes:
    """Elapsed time goes to the accounts and to the prediction, wall time to the ledger."""

    def __init__(
        self, cost: StepCost, prediction: StepPrediction, speculation: Speculation, swap_block_us: int
    ) -> None:
        self.accounts = Accounts(cost)
        self.ledger = MillisecondLedger()
        self._prediction = prediction
        self._speculation = speculation
        self._swap_block_us = swap_block_us
        self.computed = ComputedSoFar(0, 0, 0)

    def step(self, plan: StepPlan, sequences: list[Sequence], result: StepResult, now_us: int) -> None:
        """The step of these sequences' rows is done; those ended meanwhile were cancelled."""
        shares = []
        for sequence, row, drawn in zip(sequences, plan.rows, result.sampled, strict=True):
            stop = row.start + len(row.tokens)
            is_cancelled = sequence.phase is Phase.ENDED
            kept = 0 if is_cancelled else accepted(row, drawn)
            self._speculation.verified(row.drafts, kept)
            rejected_from = stop - row.drafts + kept
            tenant, recomputed_to = sequence.job.tenant, sequence.computed_most
            shares.append(Share(tenant, row.start, stop, recomputed_to, is_cancelled, rejected_from))
        parts = self.accounts.parts(shares)
        self.accounts.charge(result.elapsed_us, parts)
        self.ledger.step(now_us, parts)
        if plan.rows:
            self._learn(plan, result.elapsed_us)

    def _learn(self, plan: StepPlan, elapsed_us: int) -> None:
        """What drafts took is told apart from what the step would have taken without them."""
        load = StepLoad.of((row.start, row.start + len(row.tokens) - row.drafts) for row in plan.rows)
        swap_us = (len(plan.swap_out) + len(plan.swap_in)) * self._swap_block_us
        drafts_us = self._speculation.predicted_ns(plan.rows) // 1000
        if not load.chunk_tokens:
            without_ns = self._prediction.step_ns(load)
            self._speculation.measured(plan.rows, (elapsed_us - swap_us) * 1000, without_ns)
        self._prediction.measured(load, max(0, elapsed_us - swap_us - drafts_us))
        self._count(plan)

    def _count(self, plan: StepPlan) -> None:
        """Drafts are computed like all else, whatever becomes of them."""
        load = StepLoad.of((row.start, row.start + len(row.tokens)) for row in plan.rows)
        past = self.computed
        tokens = past.tokens + load.decodes + load.chunk_tokens
        pairs = past.pairs + load.decode_context + load.chunk_context
        self.computed = ComputedSoFar(past.steps + 1, tokens, pairs)

    def check(self) -> None:
        self.accounts.check()
        self.ledger.check()
