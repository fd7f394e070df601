"""Where an engine's time went, and what it teaches about the next step."""

from dataclasses import dataclass

from core.cost_model import StepCost
from engine.accounts import Accounts, Share
from engine.millisecond_ledger import MillisecondLedger
from engine.plan import StepPlan
from engine.sequence import Phase, Sequence
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

    def __init__(self, cost: StepCost, prediction: StepPrediction, swap_block_us: int) -> None:
        self.accounts = Accounts(cost)
        self.ledger = MillisecondLedger()
        self._prediction = prediction
        self._swap_block_us = swap_block_us
        self.computed = ComputedSoFar(0, 0, 0)

    def step(self, plan: StepPlan, sequences: list[Sequence], elapsed_us: int, now_us: int) -> None:
        """The step of these sequences' rows is done; those ended meanwhile were cancelled."""
        shares = [
            Share(
                sequence.job.tenant,
                row.start,
                row.start + len(row.tokens),
                sequence.computed_most,
                sequence.phase is Phase.ENDED,
            )
            for sequence, row in zip(sequences, plan.rows, strict=True)
        ]
        parts = self.accounts.parts(shares)
        self.accounts.charge(elapsed_us, parts)
        self.ledger.step(now_us, parts)
        if plan.rows:
            load = StepLoad.of((row.start, row.start + len(row.tokens)) for row in plan.rows)
            swap_us = (len(plan.swap_out) + len(plan.swap_in)) * self._swap_block_us
            self._prediction.measured(load, max(0, elapsed_us - swap_us))
            past = self.computed
            tokens = past.tokens + load.decodes + load.chunk_tokens
            pairs = past.pairs + load.decode_context + load.chunk_context
            self.computed = ComputedSoFar(past.steps + 1, tokens, pairs)

    def check(self) -> None:
        self.accounts.check()
        self.ledger.check()
