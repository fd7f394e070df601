"""Which prompts a prefill worker asks blocks for, and when."""

from typing import Any

from core.cost_model import StepCost
from core.request import AttemptKey, Choice, TenantClass
from core.sampling import SamplingParams
from engine.config import EngineConfig
from engine.job import Job
from engine.timed_backend import TimedBackend, digest_layout
from kv_transfer.layout import header_of
from kv_transfer.types import Peer, TransferKey
from prefill_worker.actions import AskBind, PackChunk, PrefillRequest, RunStep, SendChunk, SendFirst
from prefill_worker.config import PrefillConfig
from prefill_worker.prefill_worker import PrefillWorker, build

COST = StepCost(base_ns=0, token_ns=1_000_000, context_ns=0)
HOME, OTHER = Peer("home", "a"), Peer("other", "a")
INTERACTIVE, STANDARD, BATCH = TenantClass.INTERACTIVE, TenantClass.STANDARD, TenantClass.BATCH
AHEAD_TOKENS = 100
STEP_TOKENS = 64


class Prefill:
    """A prefill worker whose steps take a millisecond per token, and what it asked and said."""

    def __init__(self) -> None:
        engine = EngineConfig(blocks=512, max_step_tokens=STEP_TOKENS)
        self.worker: PrefillWorker = build(PrefillConfig(ahead_tokens=AHEAD_TOKENS), engine, COST, 16)
        self.backend = TimedBackend(COST, digest_layout(16, 512))
        self.steps: list[RunStep] = []
        self.asked: list[int] = []
        self.computed: list[int] = []
        self.now_us = 0

    def do(self, event: str, *arguments: Any) -> None:
        actions = getattr(self.worker, event)(*arguments, self.now_us)
        self.worker.check()
        for action in actions:
            match action:
                case RunStep():
                    self.steps.append(action)
                case AskBind(_, transfer):
                    self.asked.append(transfer.transfer)
                case SendFirst(_, transfer):
                    self.computed.append(transfer.transfer)
                case PackChunk(peer, transfer, chunk, start, stop, table):
                    payload = self.backend.read_kv(table, start, stop)
                    self.do("packed", peer, header_of(transfer, chunk, start, stop, payload))
                case SendChunk(peer, header):
                    self.do("sent", peer, header, True)
                    self.do("received", peer, header.key, header.chunk)

    def start(
        self, number: int, tokens: int, tenant_class: TenantClass = STANDARD, peer: Peer = HOME
    ) -> None:
        job = Job(
            key=AttemptKey(f"{peer.worker} {number}", 1),
            prompt=(number,) * tokens,
            choices=(Choice(0),),
            params=SamplingParams(max_tokens=8),
            seed=1,
            hash_root=b"rootroot",
            tenant="tenant",
            tenant_class=tenant_class,
        )
        key = TransferKey(number, 1)
        self.do("start", peer, PrefillRequest(key, job, True, 10**12, "router", number))

    def bind(self, number: int, peer: Peer = HOME) -> None:
        self.do("bound", peer, TransferKey(number, 1), 0, 10**9)

    def step(self) -> None:
        result = self.backend.execute(self.steps.pop(0).plan)
        self.now_us += result.elapsed_us
        self.do("step_done", result)


def test_a_short_prompt_does_not_wait_until_a_long_one_has_ended() -> None:
    prefill = Prefill()
    prefill.start(1, 2_000)
    prefill.bind(1)
    prefill.step()
    prefill.start(2, 20)
    assert prefill.asked == [1, 2]
    prefill.bind(2)
    for _ in range(2):
        prefill.step()
    assert prefill.computed == [2]


def test_the_next_is_asked_for_before_the_last_has_ended() -> None:
    prefill = Prefill()
    prefill.start(1, 256)
    prefill.start(2, 256)
    prefill.bind(1)
    assert prefill.asked == [1]
    for _ in range(3):
        prefill.step()
    assert prefill.asked == [1, 2] and prefill.computed == []


def test_an_urgent_prompt_is_asked_for_though_others_were_asked_and_not_bound() -> None:
    prefill = Prefill()
    prefill.start(1, 200, BATCH)
    prefill.start(2, 200, BATCH)
    prefill.start(3, 20, INTERACTIVE)
    assert prefill.asked == [1, 3]


def test_a_patient_class_is_passed_over_for_a_while_and_not_for_ever() -> None:
    prefill, number = Prefill(), 1
    prefill.start(1, 200, INTERACTIVE)
    prefill.start(0, 20, BATCH)
    while 0 not in prefill.computed:
        while number < len(prefill.computed) + 4:
            number += 1
            prefill.start(number, 200, INTERACTIVE)
        while prefill.asked:
            prefill.bind(prefill.asked.pop())
        prefill.step()
        assert prefill.now_us < 62_000_000
    assert len(prefill.computed) > 200


def test_a_home_without_memory_does_not_hold_up_another() -> None:
    prefill = Prefill()
    for number in range(1, 6):
        prefill.start(number, 80)
    prefill.start(9, 80, peer=OTHER)
    assert prefill.asked == [1, 2, 9]
