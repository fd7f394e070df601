"""Where an attempt runs, table by table."""

from typing import Any

import pytest

from core.request import AttemptKey, InstanceKey, ModelIdentity, Role, TenantClass
from router.fleet_view import FleetView
from router.messages import InstanceInfo, LoadReport, PrefixEvents, Submission, WorkerHello
from router.placement import Blocked, Placement, place
from router.policy import RouterPolicy
from router.prefix_index import PrefixIndex
from router.reservation import Claim

MODEL = ModelIdentity("model", "r1")
POLICY = RouterPolicy()
KV_BYTES = 1000


class Fleet:
    """A view with workers in it."""

    def __init__(self, policy: RouterPolicy = POLICY) -> None:
        self.policy = policy
        self.prefixes = PrefixIndex(10_000)
        self.view = FleetView("r", policy, self.prefixes, 1)
        self.numbers = 0

    def add(
        self, name: str, role: Role = Role.DECODE, model: ModelIdentity = MODEL, dtype: str = "float32",
        max_running: int = 8, blocks: int = 100,
    ) -> InstanceKey:  # fmt: skip
        info = InstanceInfo(
            model=model, dtype=dtype, block_size=16, blocks_total=blocks, max_positions=4096,
            max_running=max_running, cost_base_ns=1_000_000, cost_token_ns=100_000, cost_context_ns=0,
            kv_bytes_per_token=KV_BYTES,
        )  # fmt: skip
        self.view.hello(WorkerHello(name, "i", role, f"{name}:1", 1, (info,)), 0)
        return InstanceKey(name, "i", model)

    def load(self, key: InstanceKey, **counts: int) -> None:
        self.numbers += 1
        given: dict[str, Any] = dict.fromkeys(
            ("blocks_free", "blocks_cached", "blocks_held", "blocks_in_flight", "running", "waiting",
             "transferring", "queued_prefill_us"), 0,
        )  # fmt: skip
        draining = bool(counts.pop("draining", 0))
        report = LoadReport(sequence=self.numbers, model=key.model, draining=draining, **{**given, **counts})
        self.view.report(key, report, 0)

    def reserve(self, key: InstanceKey, **claim: int) -> None:
        self.numbers += 1
        given: dict[str, Any] = {"prefill_us": 0, "short": True, "blocks": 0, "sequences": 0, **claim}
        self.view.reserve(self.numbers, AttemptKey(f"q{self.numbers}", 1), key, Claim(**given), 0)

    def cache(self, key: InstanceKey, hashes: bytes) -> None:
        instance = self.view.instance(key)
        assert instance is not None
        self.prefixes.apply(instance.slot, PrefixEvents(0, key.model, True, hashes))

    def place(self, submission: Submission, expected: int = 16, now_us: int = 0) -> Placement | Blocked:
        matches = self.prefixes.match(submission.prefix_hashes) * 16
        return place(submission, expected, matches, self.view, self.policy, now_us)


def submission(prompt_tokens: int = 160, **more: Any) -> Submission:
    return Submission(key=AttemptKey("q", 1), tenant="a", model=MODEL, prompt_tokens=prompt_tokens, **more)


def homes(placement: Placement | Blocked) -> list[str]:
    assert isinstance(placement, Placement), placement
    return [leg.instance.worker for leg in placement.legs]


def chain(units: int) -> bytes:
    return b"".join(number.to_bytes(8, "little") for number in range(1, units + 1))


def test_prefill_and_decode_where_both_are_there() -> None:
    fleet = Fleet()
    fleet.add("p", Role.PREFILL)
    assert fleet.place(submission()) is Blocked.NO_WORKER
    fleet.add("d")
    placement = fleet.place(submission(), expected=20)
    assert homes(placement) == ["p", "d"] and isinstance(placement, Placement)
    prefill, decode = (leg.claim for leg in placement.legs)
    assert (prefill.prefill_us, prefill.blocks) == (17_000, 10)
    assert (decode.prefill_us, decode.blocks, decode.sequences) == (0, 12, 1), "prompt and growth"


def test_decode_alone_where_prefill_is_gone_or_draining() -> None:
    fleet = Fleet()
    fleet.add("d")
    assert homes(fleet.place(submission())) == ["d"]
    prefill = fleet.add("p", Role.PREFILL)
    fleet.load(prefill, draining=1)
    assert homes(fleet.place(submission())) == ["d"]
    fleet.load(prefill)
    assert homes(fleet.place(submission())) == ["p", "d"]
    fleet.view.lost("p", "i", 0)
    assert homes(fleet.place(submission())) == ["d"]


def test_decode_alone_where_the_prompt_is_mostly_there() -> None:
    fleet = Fleet()
    fleet.add("p", Role.PREFILL)
    fleet.cache(fleet.add("d"), chain(9))
    assert homes(fleet.place(submission(prefix_hashes=chain(10)))) == ["d"]
    assert homes(fleet.place(submission(320, prefix_hashes=chain(20)))) == ["p", "d"]


def test_decode_alone_for_choices_with_outputs_of_their_own() -> None:
    fleet = Fleet()
    fleet.add("p", Role.PREFILL)
    fleet.add("d")
    assert homes(fleet.place(submission(choices=2))) == ["p", "d"]
    assert homes(fleet.place(submission(choices=2, output_tokens=10))) == ["d"]
    assert homes(fleet.place(submission(choices=1, output_tokens=10))) == ["p", "d"]


def test_decode_alone_where_waiting_would_cost_more() -> None:
    fleet = Fleet()
    prefill = fleet.add("p", Role.PREFILL)
    fleet.add("d")
    fleet.reserve(prefill, prefill_us=90_000)
    placement = fleet.place(submission())
    assert homes(placement) == ["d"]


def test_a_cached_prefix_outweighs_a_shorter_queue_only_by_its_worth() -> None:
    fleet = Fleet(RouterPolicy(worker_queue_us=1_000_000, local_penalty=1000.0))
    warm, cold = fleet.add("warm", Role.PREFILL), fleet.add("cold", Role.PREFILL)
    fleet.add("d")
    fleet.cache(warm, chain(50))
    ask = submission(800, prefix_hashes=chain(50))
    assert homes(fleet.place(ask))[0] == "warm"
    fleet.reserve(warm, prefill_us=60_000)
    assert homes(fleet.place(ask))[0] == "warm"
    fleet.reserve(warm, prefill_us=60_000)
    assert homes(fleet.place(ask))[0] == "cold"
    fleet.reserve(cold, prefill_us=200_000)
    assert homes(fleet.place(ask))[0] == "warm"


@pytest.mark.parametrize(
    ("load", "blocked"),
    [
        ({"running": 8}, Blocked.DECODE_FULL),
        ({"running": 5, "waiting": 2, "transferring": 1}, Blocked.DECODE_FULL),
        ({"running": 1, "blocks_held": 95}, Blocked.DECODE_FULL),
        ({"running": 1, "blocks_in_flight": 95}, Blocked.DECODE_FULL),
        ({"running": 1, "blocks_cached": 95}, None),
        ({"running": 7}, None),
    ],
)
def test_a_decode_worker_takes_what_it_has_room_for(load: dict[str, int], blocked: Blocked | None) -> None:
    fleet = Fleet()
    fleet.load(fleet.add("d"), **load)
    placement = fleet.place(submission())
    assert placement is blocked if blocked else homes(placement) == ["d"]


def test_reservations_count_before_reports_do() -> None:
    fleet = Fleet()
    decode = fleet.add("d")
    for _ in range(7):
        fleet.reserve(decode, sequences=1)
    assert homes(fleet.place(submission())) == ["d"]
    fleet.reserve(decode, sequences=1)
    assert fleet.place(submission()) is Blocked.DECODE_FULL
    fleet.load(decode)
    assert fleet.place(submission()) is Blocked.DECODE_FULL, "the report does not know of them yet"


def test_batch_leaves_headroom() -> None:
    fleet = Fleet()
    fleet.load(fleet.add("d"), running=7)
    assert fleet.place(submission(tenant_class=TenantClass.BATCH)) is Blocked.BATCH_HEADROOM
    assert homes(fleet.place(submission(tenant_class=TenantClass.INTERACTIVE))) == ["d"]


def test_an_idle_home_prefills_for_itself_while_prefill_workers_are_busy() -> None:
    fleet = Fleet()
    prefill = fleet.add("p", Role.PREFILL)
    busy, _ = fleet.add("d1"), fleet.add("d2")
    fleet.reserve(busy, sequences=1)
    assert homes(fleet.place(submission()))[0] == "p"
    fleet.reserve(prefill, prefill_us=400_000)
    assert homes(fleet.place(submission())) == ["d2"]


def test_a_busy_prefill_worker_still_takes_short_prompts_beside_a_long_one() -> None:
    fleet = Fleet(RouterPolicy(local_penalty=1000.0))
    prefill = fleet.add("p", Role.PREFILL, blocks=10_000)
    fleet.reserve(fleet.add("d", blocks=10_000), sequences=1)
    fleet.reserve(prefill, prefill_us=400_000, short=False)
    assert fleet.place(submission(2000)) is Blocked.LONG_PREFILL_BUSY
    assert homes(fleet.place(submission(100))) == ["p", "d"]
    for _ in range(6):
        fleet.reserve(prefill, prefill_us=20_000, short=True)
    assert fleet.place(submission(100)) is Blocked.PREFILL_BUSY


def test_what_is_avoided_is_taken_only_where_nothing_else_is() -> None:
    fleet = Fleet()
    fleet.add("d1")
    assert homes(fleet.place(submission(avoid_workers=("d1",)))) == ["d1"]
    fleet.add("d2")
    assert homes(fleet.place(submission(avoid_workers=("d1",)))) == ["d2"]


def test_the_dtype_is_pinned_and_never_mixed() -> None:
    fleet = Fleet()
    fleet.add("d32")
    fleet.add("p16", Role.PREFILL, dtype="bfloat16")
    assert homes(fleet.place(submission())) == ["d32"], "no prefill worker of its dtype"
    assert fleet.place(submission(dtype="bfloat16")) is Blocked.NO_WORKER
    fleet.add("d16", dtype="bfloat16")
    assert homes(fleet.place(submission(dtype="bfloat16"))) == ["p16", "d16"]
    assert homes(fleet.place(submission(dtype="float32"))) == ["d32"]


def test_the_newest_revision_serves_who_asks_for_none() -> None:
    fleet = Fleet()
    fleet.add("old")
    fleet.add("new", model=ModelIdentity("model", "r2"))
    anyone = Submission(key=AttemptKey("q", 1), tenant="a", model=ModelIdentity("model"), prompt_tokens=10)
    assert homes(fleet.place(anyone)) == ["new"]
    assert homes(fleet.place(submission())) == ["old"]


def test_stale_reports_are_not_believed() -> None:
    fleet = Fleet()
    fleet.load(fleet.add("d"), running=8)
    assert fleet.place(submission()) is Blocked.DECODE_FULL
    later_us = POLICY.report_stale_us + 1
    assert homes(fleet.place(submission(), now_us=later_us)) == ["d"]


def test_39_a_decision_is_a_fixed_number_of_array_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted instead of timed: columns read do not grow with the fleet."""
    from router.pool import Pool

    counts = {}
    for workers in (4, 400):
        fleet = Fleet()
        for number in range(workers):
            fleet.add(f"w{number}", Role.PREFILL if number % 2 else Role.DECODE)
        read = 0
        column = Pool.column

        def counted(self: Pool, name: str, column: object = column) -> object:
            nonlocal read
            read += 1
            return column(self, name)  # type: ignore[operator]

        with monkeypatch.context() as patch:
            patch.setattr(Pool, "column", counted)
            assert len(homes(fleet.place(submission()))) == 2
        counts[workers] = read
    assert counts[4] == counts[400] < 100
