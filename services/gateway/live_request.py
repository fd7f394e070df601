"""Where one live request stands."""

from dataclasses import dataclass, field
from enum import StrEnum

from core.outcomes import FinishReason
from core.request import AttemptKey, Choice, Leg, ModelIdentity, Role
from services.gateway.actions import FirstTokenSeen, LiveAttempt, Resume, Start, Submit
from services.gateway.requests import NewRequest, Placement, Run


class Phase(StrEnum):
    """What the current attempt waits for."""

    WAITING = "waiting"
    """No attempt: no router, or no worker until the retry timer."""
    SUBMITTED = "submitted"
    """The router's answer."""
    PLACED = "placed"
    """The stream to its decode worker."""
    STARTED = "started"
    """Tokens."""


@dataclass(slots=True)
class LiveChoice:
    """One answer so far."""

    index: int
    output: list[int] = field(default_factory=list)
    worker_done: bool = False
    """The worker computes no more of it."""
    finish: FinishReason | None = None

    @property
    def goes_on(self) -> bool:
        return not self.worker_done and self.finish is None


@dataclass(slots=True)
class LiveRequest:
    """One request from open to its terminal event."""

    spec: NewRequest
    choices: list[LiveChoice]
    phase: Phase = Phase.WAITING
    attempt: int = 0
    router: str = ""
    placement: Placement | None = None
    home: Leg | None = None
    """The placement's decode leg."""
    first_token_seen: bool = False
    """In this attempt."""
    started: tuple[int, ...] = ()
    """The choices of this attempt's Start, in its order."""
    pinned_model: ModelIdentity | None = None
    pinned_dtype: str = ""
    avoid: list[str] = field(default_factory=list)
    """Workers that earlier attempts failed on."""
    avoid_routers: list[str] = field(default_factory=list)
    """Routers that said they are draining."""
    cached_tokens: int | None = None
    """Of the attempt that delivered first."""
    retries: int = 0
    backoffs: int = 0
    stranded_since_us: int | None = None
    """Since when nothing could serve it."""
    unsettled: tuple[str, int] | None = None
    """(router, attempt) placed and settled, but not finally: the tenant's concurrency is still held there."""

    @property
    def key(self) -> AttemptKey:
        return AttemptKey(self.spec.request, self.attempt)

    @property
    def decode_leg(self) -> Leg:
        assert self.home is not None
        return self.home

    @property
    def worker(self) -> str:
        return self.decode_leg.instance.worker

    @property
    def output_tokens(self) -> int:
        return sum(len(choice.output) for choice in self.choices)

    @property
    def remaining(self) -> list[LiveChoice]:
        """The choices that an attempt still has to compute."""
        return [choice for choice in self.choices if choice.goes_on]

    def place(self, placement: Placement, home: Leg) -> None:
        self.placement, self.home, self.unsettled, self.phase = placement, home, None, Phase.PLACED

    def awaits(self, router: str, key: AttemptKey) -> bool:
        """Whether this router's answer to this attempt is what it waits for."""
        return self.phase is Phase.SUBMITTED and self.router == router and self.key == key

    def runs_as(self, worker: str, attempt: int) -> bool:
        """Whether this is its running attempt; whatever else still comes is stale."""
        return self.phase is Phase.STARTED and self.attempt == attempt and self.worker == worker

    def submit(self) -> Submit:
        spec = self.spec
        running = self.phase is Phase.STARTED
        remaining = [self.choices[index] for index in self.started] if running else self.remaining
        return Submit(
            router=self.router,
            key=self.key,
            tenant=spec.tenant,
            model=self.pinned_model or spec.model,
            prompt_tokens=len(spec.prompt),
            output_tokens=sum(len(choice.output) for choice in remaining),
            max_tokens=spec.params.max_tokens,
            choices=len(remaining),
            prefix_hashes=spec.prefix_hashes,
            deadline_us=spec.deadline_us,
            avoid_workers=tuple(self.avoid),
            dtype=self.pinned_dtype,
        )

    def announced(self) -> LiveAttempt:
        """The placed attempt, for a router that may not know of it."""
        assert self.placement is not None
        return LiveAttempt(self.submit(), self.placement.legs, self.first_token_seen)

    def start(self) -> Start:
        assert self.placement is not None
        spec = self.spec
        choices = tuple(Choice(choice.index, tuple(choice.output)) for choice in self.remaining)
        self.started = tuple(choice.index for choice in choices)
        return Start(
            worker=self.worker,
            key=self.key,
            model=self.decode_leg.instance.model,
            tenant=spec.tenant,
            prompt=spec.prompt,
            choices=choices,
            params=spec.params,
            seed=spec.seed,
            hash_root=spec.hash_root,
            legs=self.placement.legs,
            fallback=self.placement.fallback,
            deadline_us=spec.deadline_us,
            router=self.router,
            grammar=spec.grammar,
        )

    def resume(self) -> Resume:
        return Resume(self.key, tuple(len(self.choices[index].output) for index in self.started))

    def note_tokens(self, run: Run) -> list[FirstTokenSeen]:
        """The run brought tokens; the router hears of each attempt's first."""
        self.stranded_since_us = None
        if self.first_token_seen:
            return []
        self.first_token_seen = True
        if self.cached_tokens is None:
            self.cached_tokens = run.cached_tokens
            # From the first delivered token on, only equal weights may continue.
            self.pinned_model, self.pinned_dtype = self.decode_leg.instance.model, self.decode_leg.dtype
        return [FirstTokenSeen(self.router, self.key)]

    def avoid_legs(self) -> None:
        if self.placement is not None:
            names = [leg.instance.worker for leg in self.placement.legs]
            self.avoid = list(dict.fromkeys([*self.avoid, *names]))


def decode_leg(legs: tuple[Leg, ...]) -> Leg | None:
    """The leg that is the request's home."""
    return next((leg for leg in legs if leg.role is Role.DECODE), None)
