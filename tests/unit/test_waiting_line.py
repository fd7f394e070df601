"""Who of those that wait is the next, where lanes, tenants and classes meet."""

from core.request import AttemptKey, Choice, TenantClass
from core.sampling import SamplingParams
from engine.class_shares import ClassShares
from engine.job import Job, Stage
from engine.sequence import Phase, Sequence
from engine.tenant_turns import TenantTurns
from engine.waiting_line import WaitingLine

STANDARD, BATCH = TenantClass.STANDARD, TenantClass.BATCH
COST_US = 1_000


class Line:
    """A waiting line whose sequences come in the order they are named."""

    def __init__(self) -> None:
        self.shares = ClassShares()
        self.turns = {tenant_class: TenantTurns() for tenant_class in TenantClass}
        self.line = WaitingLine(self.shares, self.turns)
        self._came = 0

    def come(
        self,
        tenant: str,
        tenant_class: TenantClass = STANDARD,
        *,
        is_long: bool = False,
        gave_way: bool = False,
    ) -> Sequence:
        self._came += 1
        job = Job(
            key=AttemptKey(f"{self._came}", 0),
            prompt=(1,),
            choices=(Choice(0),),
            params=SamplingParams(max_tokens=1),
            seed=0,
            hash_root=b"rootroot",
            tenant=tenant,
            tenant_class=tenant_class,
        )
        sequence = Sequence(self._came, job, Stage.FULL, [1], (0,), self._came)
        sequence.phase, sequence.was_preempted = Phase.WAITING, gave_way
        self.line.add(sequence, COST_US, is_long=is_long)
        return sequence

    def spend(self, tenant: str, cost_us: int, tenant_class: TenantClass = STANDARD) -> None:
        self.turns[tenant_class].spend(tenant, 1.0, cost_us * 1_000)

    def head(self, rank: TenantClass = STANDARD) -> Sequence | None:
        """Of the short ones and of those that stand among them."""
        return self.line.head(is_long=False, rank=rank, may_begin_long=list(TenantClass))


def test_of_a_tenants_own_place_decides() -> None:
    line = Line()
    before, long, behind = line.come("a"), line.come("a", is_long=True), line.come("a")
    assert line.head() is before
    line.line.remove(before)
    assert line.head() is long
    line.line.remove(long)
    assert line.head() is behind


def test_but_only_when_it_is_that_tenants_turn() -> None:
    line = Line()
    long = line.come("a", is_long=True)
    line.come("a")
    others = line.come("b")
    line.spend("a", 1)
    assert line.head() is others
    line.spend("b", 2)
    assert line.head() is long


def test_a_tenant_with_long_ones_alone_waits_until_all_of_it_would_put_it_no_further_than_others() -> None:
    line = Line()
    long, others = line.come("a", is_long=True), line.come("b")
    line.spend("b", COST_US - 1)
    assert line.head() is others
    line.spend("b", 1)
    line.come("b")
    assert line.head() is long


def test_who_gives_way_keeps_its_turn() -> None:
    line = Line()
    line.line.remove(line.come("a"))
    line.come("b")
    line.spend("b", 5 * COST_US)
    line.turns[STANDARD].chosen("b")
    line.come("a", is_long=True, gave_way=True)
    assert line.turns[STANDARD]["a"] == 0


def test_a_class_is_urgent_for_nobody_before_it_can_pay_for_its_oldest() -> None:
    line = Line()
    line.come("a", BATCH)
    line.shares.end_step([BATCH], 20 * COST_US * 1_000)
    assert line.head(TenantClass.INTERACTIVE) is not None
    line.shares.begin_step({BATCH: 2 * COST_US})
    assert line.head(TenantClass.INTERACTIVE) is None
    line.shares.end_step([BATCH], 20 * COST_US * 1_000)
    assert line.head(TenantClass.INTERACTIVE) is not None


def test_a_long_one_its_class_has_saved_up_for_stands_among_the_short_ones_of_more_urgent_classes() -> None:
    line = Line()
    long = line.come("a", BATCH, is_long=True)
    line.come("b", TenantClass.INTERACTIVE)
    line.spend("a", 100 * COST_US, BATCH)
    line.shares.end_step([BATCH], 20 * COST_US * 1_000)
    assert line.head(TenantClass.INTERACTIVE) is long


def test_what_is_bound_moves_the_clock_of_its_class() -> None:
    """A decode worker admits nothing: who comes anew would otherwise stand where its clock began."""
    line = Line()
    handed_over = line.come("long here")
    line.line.remove(handed_over)
    line.turns[STANDARD].spend("long here", 1.0, 120_000)
    line.line.bound(handed_over)
    line.come("new")
    assert line.turns[STANDARD]["new"] == line.turns[STANDARD]["long here"] > 0
