"""Where an attempt runs: filter, score in milliseconds, pick."""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from core.request import InstanceKey, Role, TenantClass
from router.fleet_view import FleetView, Group
from router.messages import Submission
from router.policy import RouterPolicy
from router.pool import Bools, Floats, Pool
from router.prefix_index import Units
from router.reservation import Claim

Matches = Units
"""[slots]: tokens of the prompt cached at the instance of that slot; may be shorter than all slots."""


class Blocked(StrEnum):
    """Why nothing can take an attempt right now."""

    NO_WORKER = "no usable decode worker"
    NEVER_FITS = "no usable worker is large enough"
    DECODE_FULL = "every decode worker is full"
    BATCH_HEADROOM = "what is left is kept for more urgent classes"
    PREFILL_BUSY = "every prefill worker has its 100 ms of work"
    LONG_PREFILL_BUSY = "no prefill worker takes another long prompt yet"


@dataclass(frozen=True, slots=True)
class Assignment:
    """One leg before it is reserved."""

    role: Role
    instance: InstanceKey
    claim: Claim


@dataclass(frozen=True, slots=True)
class Placement:
    """Legs in order of work, and what they are predicted to take."""

    legs: tuple[Assignment, ...]
    predicted_us: int
    """To the first token, as decided on."""
    reason: str


@dataclass(frozen=True, slots=True)
class _Candidate:
    row: int
    cost_us: float
    prefill_us: float
    cached: int


def place(
    submission: Submission,
    expected_output: int,
    matches: Matches,
    fleet: FleetView,
    policy: RouterPolicy,
    now_us: int,
) -> Placement | Blocked:
    """The cheapest placement over every group that may serve this, or why there is none.

    `expected_output` is per choice. Nothing is reserved here.
    """
    serving = [group for group in fleet.groups(submission.model, submission.dtype) if group.serving()]
    blocked = Blocked.NO_WORKER
    best: Placement | None = None
    for group in serving:
        if group.model != serving[0].model:
            continue  # an older revision
        found = _place_in_group(submission, expected_output, matches, group, policy, now_us)
        if isinstance(found, Blocked):
            blocked = found
        elif best is None or found.predicted_us < best.predicted_us:
            best = found
    return best or blocked


def claim(
    submission: Submission, expected_output: int, role: Role, pool: Pool, row: int, prefill_us: float,
    policy: RouterPolicy,
) -> Claim:  # fmt: skip
    """What a leg needs at one instance: blocks for the prompt and, where it decodes, expected growth."""
    block = int(pool.column("block_size")[row])
    prompt_blocks = -(-submission.prefill_tokens // block)
    growth = -(-expected_output // block) * submission.choices if role is Role.DECODE else 0
    return Claim(
        prefill_us=max(0, round(prefill_us)),
        short=prefill_us <= policy.short_prefill_us,
        blocks=min(prompt_blocks + growth, int(pool.column("blocks_total")[row])),
        sequences=submission.choices,
    )


def restored_claim(
    submission: Submission, expected_output: int, role: Role, pool: Pool, instance: InstanceKey, *,
    computes: bool, policy: RouterPolicy,
) -> Claim:  # fmt: skip
    """The claim of a leg that was placed before this router began; what is cached is not known."""
    row = pool.row(instance)
    assert row is not None
    uncached = prefill_us(pool, submission.prefill_tokens, np.zeros(len(pool.instances)))
    return claim(
        submission, expected_output, role, pool, row, float(uncached[row]) if computes else 0.0, policy
    )


def prefill_us(pool: Pool, tokens: int, cached: Floats) -> Floats:
    """[instances]: time to compute a prompt of which `cached` tokens are there (StepCost.prefill_us)."""
    pairs = (tokens * (tokens + 1.0) - cached * (cached + 1.0)) / 2.0
    fed = tokens - cached
    cost: Floats = pool.column("base_us") + fed * pool.column("token_us") + pairs * pool.column("context_us")
    return cost


def _place_in_group(
    submission: Submission, expected: int, matches: Matches, group: Group, policy: RouterPolicy, now_us: int
) -> Placement | Blocked:
    pool = group.decode
    able, blocked = _able_to_decode(submission, expected, pool, policy, now_us)
    if blocked is not None:
        return blocked
    cached = _cached(pool, matches, submission)
    decode_us = _decode_us(submission, expected, pool)
    local = _local(submission, pool, able, cached, decode_us, policy, now_us)
    if not group.prefill.any_usable():
        # Nobody else computes prompts: the decode workers' own queues carry the bound.
        if local is None:
            return _busy(_own_prefill_us(pool, submission, cached, able), policy)
        return _local_placement(submission, expected, pool, local, policy, "no prefill worker is usable")
    if submission.choices > 1 and submission.output_tokens:
        # A prefill worker draws every choice's token from one prompt; these have outputs of their own.
        if local is None:
            return Blocked.PREFILL_BUSY
        return _local_placement(submission, expected, pool, local, policy, "choices have outputs already")
    if local is not None and _mostly_cached(submission, local, policy):
        return _local_placement(
            submission, expected, pool, local, policy, "mostly cached at the decode worker"
        )
    remote = _prefill(submission, group.prefill, matches, policy, now_us)
    if remote is Blocked.NEVER_FITS:
        # No wait mends that, and the home is large enough.
        if local is None:
            return _busy(_own_prefill_us(pool, submission, cached, able), policy)
        reason = "no prefill worker is large enough"
        return _local_placement(submission, expected, pool, local, policy, reason)
    if isinstance(remote, Blocked):
        idle = _local(submission, pool, able & _idle(pool), cached, decode_us, policy, now_us)
        if idle is not None:
            reason = "prefill workers are busy, a decode worker is idle"
            return _local_placement(submission, expected, pool, idle, policy, reason)
        return remote
    home = _home(submission, pool, able, cached, decode_us, policy)
    transfer_us = _transfer_us(submission, pool, cached, policy)[home.row]
    if local is not None:
        local_us = local.cost_us + (policy.local_penalty - 1) * local.prefill_us
        if local_us < remote.cost_us + transfer_us + float(decode_us[home.row]):
            return _local_placement(submission, expected, pool, local, policy, "cheaper than handing over")
    legs = (
        Assignment(
            Role.PREFILL,
            group.prefill.instances[remote.row],
            claim(submission, expected, Role.PREFILL, group.prefill, remote.row, remote.prefill_us, policy),
        ),
        Assignment(
            Role.DECODE,
            pool.instances[home.row],
            claim(submission, expected, Role.DECODE, pool, home.row, 0.0, policy),
        ),
    )
    return Placement(legs, round(remote.cost_us + transfer_us), "least predicted cost")


# Filter.


def _able_to_decode(
    submission: Submission, expected: int, pool: Pool, policy: RouterPolicy, now_us: int
) -> tuple[Bools, Blocked | None]:
    """[instances]: who has the blocks and sequences; and why nobody has."""
    usable = _usable(pool, submission)
    tokens = submission.prompt_tokens + submission.max_tokens
    block, total = pool.column("block_size"), pool.column("blocks_total")
    fits = usable & (pool.column("max_positions") >= tokens) & (total * block >= tokens)
    if not fits.any():
        return fits, Blocked.NEVER_FITS if usable.any() else Blocked.NO_WORKER
    fresh = _fresh(pool, policy, now_us)
    own = pool.column("sequences_own")
    sequences = np.where(fresh, np.maximum(pool.column("sequences_reported"), own), own)
    own = pool.column("blocks_own")
    blocks = np.where(fresh, np.maximum(pool.column("blocks_reported"), own), own)
    growth = np.ceil(expected / block) * submission.choices
    need = np.minimum(np.ceil(submission.prefill_tokens / block) + growth, total)
    # An idle instance takes even what is larger than its bounds: otherwise nobody ever would.
    idle = sequences == 0
    able = fits & ((blocks + need <= total) | idle)
    able &= (sequences + submission.choices <= pool.column("max_running")) | idle
    if not able.any():
        return able, Blocked.DECODE_FULL
    if submission.tenant_class is TenantClass.BATCH:
        able &= sequences + submission.choices <= pool.column("max_running") - headroom(pool, policy)
        if not able.any():
            return able, Blocked.BATCH_HEADROOM
    return able, None


def headroom(pool: Pool, policy: RouterPolicy) -> Floats:
    """[instances]: sequences that class batch leaves free; none on instances of fewer than four."""
    running = pool.column("max_running")
    left: Floats = np.where(running >= 4, np.ceil(running * policy.batch_headroom), 0.0)
    return left


def _usable(pool: Pool, submission: Submission) -> Bools:
    """Usable ones, without the workers to avoid as long as there are others."""
    usable = pool.column("usable") > 0
    if not submission.avoid_workers:
        return usable
    kept = usable.copy()
    for row, instance in enumerate(pool.instances):
        if instance.worker in submission.avoid_workers:
            kept[row] = False
    return kept if kept.any() else usable


def _fresh(pool: Pool, policy: RouterPolicy, now_us: int) -> Bools:
    return pool.column("report_us") >= now_us - policy.report_stale_us


def _takes_prefill(pool: Pool, cost_us: Floats, policy: RouterPolicy, now_us: int) -> tuple[Bools, Floats]:
    """[instances]: who has room in its bound for a prompt of this cost, and how long it would wait there.

    A short prompt waits for short ones and shares steps with at most one long one, so it counts
    short work in full and anyone else's at most as its own again.
    """
    own = pool.column("prefill_own_us")
    waiting = np.where(_fresh(pool, policy, now_us), pool.column("prefill_reported_us"), own)
    shorts = np.minimum(pool.column("short_own_us"), waiting)
    short = cost_us <= policy.short_prefill_us
    ahead = np.where(
        short, shorts + np.minimum(waiting - shorts, np.maximum(cost_us, policy.short_prefill_us)), waiting
    )
    bound = np.where(short, shorts, waiting)
    return bound <= policy.worker_queue_us, ahead


# Score.


def _cached(pool: Pool, matches: Matches, submission: Submission) -> Floats:
    """[instances]: prompt tokens cached there; the last token is always computed."""
    if not matches.any():
        return np.zeros(len(pool.instances))
    slots = pool.column("slot").astype(np.int64)
    known = np.append(matches, 0)[np.minimum(slots, len(matches))]
    return np.minimum(known.astype(np.float64), submission.prefill_tokens - 1)


def _decode_us(submission: Submission, expected: int, pool: Pool) -> Floats:
    """[instances]: what its running batch makes of the expected output's time."""
    sequences = np.maximum(pool.column("sequences_reported"), pool.column("sequences_own"))
    held = np.maximum(pool.column("blocks_reported"), pool.column("blocks_own")) * pool.column("block_size")
    step = (
        pool.column("base_us")
        + (sequences + submission.choices) * pool.column("token_us")
        + (held + submission.prefill_tokens) * pool.column("context_us")
    )
    return np.asarray(step * expected)


def _transfer_us(submission: Submission, pool: Pool, cached: Floats, policy: RouterPolicy) -> Floats:
    """[instances]: moving the KV that is not there."""
    missing = submission.prefill_tokens - cached
    return np.asarray(missing * pool.column("kv_bytes") * 1e6 / policy.transfer_bytes_per_second)


def _own_prefill_us(pool: Pool, submission: Submission, cached: Floats, able: Bools) -> float:
    return float(prefill_us(pool, submission.prefill_tokens, cached)[able].min())


def _mostly_cached(submission: Submission, local: _Candidate, policy: RouterPolicy) -> bool:
    share = local.cached / submission.prefill_tokens
    return share >= policy.local_cached_share and local.prefill_us <= policy.local_uncached_us


def _idle(pool: Pool) -> Bools:
    """[instances]: nothing decodes there, so that a prefill delays nobody."""
    idle: Bools = np.maximum(pool.column("sequences_reported"), pool.column("sequences_own")) == 0
    return idle


# Pick.


def _prefill(
    submission: Submission, pool: Pool, matches: Matches, policy: RouterPolicy, now_us: int
) -> _Candidate | Blocked:
    tokens = submission.prefill_tokens
    block, total = pool.column("block_size"), pool.column("blocks_total")
    able = _usable(pool, submission) & (total * block >= tokens) & (pool.column("max_positions") >= tokens)
    if not able.any():
        return Blocked.NEVER_FITS
    cached = _cached(pool, matches, submission)
    cost = prefill_us(pool, tokens, cached)
    room, wait = _takes_prefill(pool, cost, policy, now_us)
    if not (able & room).any():
        return _busy(float(cost[able].min()), policy)
    return _pick(pool, able & room, wait + cost, cost, cached, policy)


def _local(
    submission: Submission, pool: Pool, able: Bools, cached: Floats, decode_us: Floats, policy: RouterPolicy,
    now_us: int,
) -> _Candidate | None:  # fmt: skip
    cost = prefill_us(pool, submission.prefill_tokens, cached)
    room, wait = _takes_prefill(pool, cost, policy, now_us)
    if not (able & room).any():
        return None
    return _pick(pool, able & room, wait + cost + decode_us, cost, cached, policy)


def _home(
    submission: Submission, pool: Pool, able: Bools, cached: Floats, decode_us: Floats, policy: RouterPolicy
) -> _Candidate:
    cost = decode_us + _transfer_us(submission, pool, cached, policy)
    return _pick(pool, able, cost, np.zeros_like(cost), cached, policy)


def _pick(
    pool: Pool, able: Bools, cost: Floats, prefill: Floats, cached: Floats, policy: RouterPolicy
) -> _Candidate:
    """The cheapest; of near ties that have as much cached, the one whose turn is longest ago."""
    priced = np.where(able, cost, np.inf)
    cheapest = int(priced.argmin())
    slack = max(policy.near_tie_us, policy.near_tie_share * float(priced[cheapest]))
    rows = np.flatnonzero((priced <= priced[cheapest] + slack) & (cached >= cached[cheapest]))
    order = np.lexsort((pool.column("rank")[rows], pool.column("last_pick")[rows]))
    row = int(rows[order[0]])
    return _Candidate(row, float(priced[row]), float(prefill[row]), int(cached[row]))


def _busy(cost_us: float, policy: RouterPolicy) -> Blocked:
    return Blocked.PREFILL_BUSY if cost_us <= policy.short_prefill_us else Blocked.LONG_PREFILL_BUSY


def _local_placement(
    submission: Submission, expected: int, pool: Pool, local: _Candidate, policy: RouterPolicy, reason: str
) -> Placement:
    leg = claim(submission, expected, Role.DECODE, pool, local.row, local.prefill_us, policy)
    return Placement((Assignment(Role.DECODE, pool.instances[local.row], leg),), round(local.cost_us), reason)
