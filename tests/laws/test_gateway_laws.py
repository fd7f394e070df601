"""Whatever routers, workers and clients do: one end, no gap, no duplicate, every placement settled."""

from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from core.ends import End
from core.outcomes import FinishReason, Outcome
from core.request import AttemptKey, InstanceKey, Leg, ModelIdentity, Role
from core.sampling import SamplingParams
from services.gateway.actions import (
    Action,
    CancelAttempt,
    Connect,
    Deliver,
    Disconnect,
    Ended,
    FirstTokenSeen,
    Settle,
    Start,
    Submit,
    Withdraw,
)
from services.gateway.gateway import Gateway, GatewayPolicy
from services.gateway.requests import AttemptEnd, NewRequest, Placement, Run, Tenant
from services.gateway.retry_budget import RetryBudgetConfig

MODEL = ModelIdentity("m", "r1")
ENDS = [
    Outcome.COMPLETED,
    Outcome.CANCELLED,
    Outcome.WORKER_LOST,
    Outcome.MOVED,
    Outcome.WORKER_FULL,
    Outcome.PROMPT_TOO_LONG,
    Outcome.INTERNAL,
]
REFUSALS = [
    Outcome.NO_WORKER,
    Outcome.RATE_LIMITED,
    Outcome.QUEUE_FULL,
    Outcome.DRAINING,
    Outcome.WORKER_FULL,
]


def token_at(request: str, choice: int, index: int) -> int:
    """The only right token at this place: a wrong splice shows in the delivered text."""
    return hash((len(request), choice, index)) % 1000


class World:
    """An adversary's hand on one gateway, and the laws it must not be able to break."""

    def __init__(self) -> None:
        budget = RetryBudgetConfig(per_request=0.5, per_second=1.0, burst=4.0)
        self.gateway = Gateway(GatewayPolicy(retry_budget=budget))
        self.now_us = 1
        self.specs: dict[str, NewRequest] = {}
        self.delivered: dict[tuple[str, int], list[int]] = {}
        self.ended: dict[str, Ended] = {}
        self.submits: list[Submit] = []
        self.starts: list[Start] = []
        self.placed: dict[tuple[str, AttemptKey], bool] = {}
        self.final: dict[tuple[str, str], int] = {}
        self.incarnations = {"w0": 0, "w1": 0}
        self.connected: dict[str, None] = {}
        self.cancelled: list[AttemptKey] = []

    def perform(self, actions: list[Action]) -> None:
        confirm: list[Deliver] = []
        for action in actions:
            match action:
                case Submit():
                    assert action.key.request not in self.ended
                    self.submits.append(action)
                case Start():
                    self.check_start(action)
                    self.starts.append(action)
                case Deliver():
                    self.take(action)
                    if action.finish is not None and self.specs[action.request].stop_strings:
                        confirm.append(action)
                case Ended():
                    assert action.request not in self.ended, "two ends"
                    self.ended[action.request] = action
                case Settle():
                    self.placed[action.router, action.key] = True
                    if action.final:
                        self.release(action.router, action.key.request)
                case Connect():
                    assert action.worker not in self.connected
                    self.connected[action.worker] = None
                case Disconnect():
                    self.connected.pop(action.worker, None)
                case CancelAttempt():
                    self.cancelled.append(action.key)
                case Withdraw():
                    self.release(action.router, action.key.request)
                case FirstTokenSeen():
                    pass
        for deliver in confirm:
            # What the text side does at once: the choice ends where the worker said.
            count = len(self.delivered[deliver.request, deliver.choice])
            assert deliver.finish is not None
            self.tell("choice_ended", deliver.request, deliver.choice, count, deliver.finish)
        self.gateway.check()

    def tell(self, name: str, *arguments: object) -> None:
        self.perform(getattr(self.gateway, name)(*arguments, self.now_us))

    def take(self, deliver: Deliver) -> None:
        assert deliver.request not in self.ended, "tokens after the end"
        got = self.delivered[deliver.request, deliver.choice]
        assert deliver.first_index == len(got), "a gap or a duplicate"
        got.extend(deliver.tokens)
        right = [token_at(deliver.request, deliver.choice, index) for index in range(len(got))]
        assert got == right, "spliced wrongly"

    def release(self, router: str, request: str) -> None:
        self.final[router, request] = self.final.get((router, request), 0) + 1

    def check_start(self, start: Start) -> None:
        for choice in start.choices:
            assert list(choice.output) == self.delivered[start.key.request, choice.index]
        assert start.seed == self.specs[start.key.request].seed
        assert start.worker in self.connected

    # The adversary's moves; `number` picks among what there is.

    def open(self, number: int) -> None:
        request = "r" * (len(self.specs) + 1)
        choices = 1 + number % 3
        self.specs[request] = NewRequest(
            request=request,
            tenant=Tenant("t"),
            model=MODEL,
            prompt=(1, 2, 3),
            choices=choices,
            params=SamplingParams(max_tokens=1 + number % 7),
            seed=number,
            hash_root=b"12345678",
            deadline_us=self.now_us + 1_000_000 * (1 + number % 20),
            stop_strings=number % 2 == 1,
        )
        for choice in range(choices):
            self.delivered[request, choice] = []
        self.tell("open", self.specs[request])

    def answer(self, number: int) -> None:
        if not self.submits:
            return
        submit = self.submits[number % len(self.submits)]
        if number % 4 == 3:
            self.release(submit.router, submit.key.request)  # a router that refuses holds nothing
            self.tell("refused", submit.router, submit.key, End(REFUSALS[number % len(REFUSALS)]))
            return
        worker = f"w{number % 2}"
        stale = number % 11 == 5
        incarnation = str(self.incarnations[worker] - stale)
        instance = InstanceKey(worker, incarnation, MODEL)
        legs = (Leg(Role.DECODE, instance, f"{worker}:{self.incarnations[worker] // 3}", number, "float32"),)
        self.placed.setdefault((submit.router, submit.key), False)
        self.tell("placed", submit.router, submit.key, Placement(() if number % 17 == 9 else legs, "prefer"))

    def tokens(self, number: int) -> None:
        """A run that may be fresh, known, ahead of its time, of an old attempt, or from another worker."""
        if not self.starts:
            return
        start = self.starts[-1 - number % min(4, len(self.starts))]
        choice = number // 7 % self.specs[start.key.request].choices
        got = len(self.delivered[start.key.request, choice])
        first = max(0, got + (0, 0, 0, -1, -2, 1)[number % 6])
        count = number % 4
        finish = (None, None, FinishReason.STOP, FinishReason.LENGTH)[number // 5 % 4]
        tokens = tuple(token_at(start.key.request, choice, first + offset) for offset in range(count))
        run = Run(start.key.request, start.key.attempt, choice, first, tokens, (), finish)
        worker = start.worker if number % 9 else "w1"
        newest = [other for other in self.starts if other.key.request == start.key.request][-1]
        wrong = start is not newest or worker != start.worker
        self.tell("frame", worker, (run, run) if number % 5 == 0 else (run,), ())
        if wrong:
            assert len(self.delivered[start.key.request, choice]) == got, "a stale attempt was heard"

    def end_attempt(self, number: int) -> None:
        if self.starts:
            start = self.starts[-1 - number % min(4, len(self.starts))]
            end = AttemptEnd(start.key.request, start.key.attempt, End(ENDS[number % len(ENDS)]))
            self.tell("frame", start.worker, (), (end,))

    def stop_found(self, number: int) -> None:
        able = [key for key, tokens in self.delivered.items() if tokens and self.specs[key[0]].stop_strings]
        if able:
            request, choice = able[number % len(able)]
            count = len(self.delivered[request, choice])
            self.tell("choice_ended", request, choice, count, FinishReason.STOP)

    def cancel(self, number: int) -> None:
        if self.specs:
            request = list(self.specs)[number % len(self.specs)]
            outcome = (Outcome.CANCELLED, Outcome.SLOW_CLIENT)[number % 2]
            self.tell("cancel", request, outcome, "")

    def router_up(self, number: int) -> None:
        router = f"router{number % 2}"
        told = [attempt.submit.key.request for attempt in self.gateway.live_attempts(router)]
        for placed_by, key in list(self.placed):
            if placed_by == router and key.request not in told:
                self.release(router, key.request)  # what a gateway does not name, it no longer has
        self.tell("router_up", router)

    def router_down(self, number: int) -> None:
        self.tell("router_down", f"router{number % 2}")

    def worker_up(self, number: int) -> None:
        worker = f"w{number % 2}"
        if worker in self.connected:
            resumed = [resume.key for resume in self.gateway.resume_list(worker)]
            unknown = tuple(key for position, key in enumerate(resumed) if (number + position) % 4 == 0)
            self.tell("decode_up", worker, str(self.incarnations[worker]), unknown)
            left = [resume.key for resume in self.gateway.resume_list(worker)]
            assert not [key for key in unknown if key in left], "waits for what nobody computes"

    def worker_down(self, number: int) -> None:
        worker = f"w{number % 2}"
        self.incarnations[worker] += number % 3 == 0
        self.tell("decode_gone" if number % 5 == 0 else "decode_down", worker)

    def wait(self, number: int) -> None:
        self.now_us += (1_000, 60_000, 700_000, 2_100_000)[number % 4]
        self.tell("tick")

    def finish(self) -> None:
        """The deadlines of all that is left: then nothing may be held."""
        for _ in range(200):
            due_us = self.gateway.next_deadline_us
            if due_us is None:
                break
            self.now_us = max(self.now_us, due_us)
            self.tell("tick")
        assert self.gateway.in_flight == 0
        for number in (0, 1):
            if f"router{number}" not in self.gateway.routers:
                self.router_up(number)  # one that was away hears now what it missed
        assert len(self.ended) == len(self.specs)
        for (router, key), settled in self.placed.items():
            assert settled, f"{router} was never told the end of {key}"
        for router, request in {(router, key.request): None for router, key in self.placed}:
            assert self.final.get((router, request), 0) >= 1, f"{router} holds {request} for ever"
        for request, end in self.ended.items():
            self.check_usage(request, end)

    def check_usage(self, request: str, end: Ended) -> None:
        delivered = sum(len(self.delivered[request, index]) for index in range(self.specs[request].choices))
        assert end.output_tokens == delivered and end.prompt_tokens == 3


MOVES = [
    *["open"] * 3,
    *["answer"] * 4,
    *["tokens"] * 8,
    "end_attempt",
    "stop_found",
    "cancel",
    *["router_up"] * 2,
    "router_down",
    *["worker_up"] * 4,
    "worker_down",
    *["wait"] * 2,
]


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.randoms(use_true_random=False), st.integers(0, 150))
def test_adversary(random: Random, count: int) -> None:
    moves = [(random.choice(MOVES), random.randrange(10_000)) for _ in range(count)]
    world = World()
    for router in (0, 1):
        world.router_up(router)
    for name, number in moves:
        world.now_us += 1
        getattr(world, name)(number)
    world.finish()


def test_the_laws_have_teeth() -> None:
    world = World()
    world.router_up(0)
    world.open(0)
    with pytest.raises(AssertionError, match="a gap"):
        world.take(Deliver("r", 0, 1, (5,), (), None))
