"""What a home remembers of one attempt: where it is, and what was said of it."""

from dataclasses import dataclass, field, replace
from enum import StrEnum

import msgspec

from core.ends import End
from core.outcomes import FinishReason
from core.request import AttemptKey, Choice, Leg, Role
from engine.job import FirstToken, Job
from engine.plan import Sampled
from kv_transfer.types import Peer, TransferKey


class Phase(StrEnum):
    """An attempt moves down this list only, skipping what does not apply; ENDED is last."""

    ASKED = "asked"
    """The prefill worker has it; no block is bound here."""
    BINDING = "binding"
    """The prefill worker wants to begin; blocks are not free yet."""
    RECEIVING = "receiving"
    """Blocks are bound, KV is on its way."""
    RUNNING = "running"
    """In the engine: decoding, or prefilling here."""
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class GatewayKey:
    """One start of one gateway; its requests are cancelled with it."""

    gateway: str
    incarnation: str


@dataclass(frozen=True, slots=True)
class StartRequest:
    """A placed request, as its gateway hands it over."""

    job: Job
    legs: tuple[Leg, ...]
    fallback: str
    """"prefer": this worker may prefill if its prefill worker fails; "require" and "never": it may not."""
    deadline_remaining_us: int
    router: str

    @property
    def prefill_leg(self) -> Leg | None:
        return next((leg for leg in self.legs if leg.role is Role.PREFILL), None)

    @property
    def decode_leg(self) -> Leg | None:
        return next((leg for leg in self.legs if leg.role is Role.DECODE), None)


class Run(msgspec.Struct, frozen=True, array_like=True):
    """Consecutive tokens of one choice, as a frame carries them."""

    key: AttemptKey
    choice: int
    first_index: int
    """Output index of the first token, over all attempts."""
    sampled: tuple[Sampled, ...]
    finish: FinishReason | None = None
    cached_tokens: int = 0

    def joined(self, later: "Run") -> "Run | None":
        """One run of both, where the later one goes straight on: a step may give a choice many tokens."""
        is_same_choice = (self.key, self.choice) == (later.key, later.choice)
        stop = self.first_index + len(self.sampled)
        if not is_same_choice or self.finish is not None or later.first_index != stop:
            return None
        whole = self.sampled + later.sampled
        return msgspec.structs.replace(later, first_index=self.first_index, sampled=whole)


@dataclass(frozen=True, slots=True)
class AttemptEnd:
    key: AttemptKey
    end: End


@dataclass(frozen=True, slots=True)
class DrawnToken:
    choice: int
    sampled: Sampled
    finish: FinishReason | None


@dataclass(frozen=True, slots=True)
class PrefillDrawn:
    """What a prefill worker says when the prompt is computed."""

    tokens: tuple[DrawnToken, ...]
    """One per choice, in the order of the job's."""
    cached_tokens: int
    chunks: int
    """Of the whole transfer."""


@dataclass(frozen=True, slots=True)
class Pin:
    """Whose blocks a transfer may write, and which."""

    attempt: AttemptKey
    block_table: tuple[int, ...]


@dataclass(slots=True)
class ChoiceLog:
    """All tokens of a choice since the attempt began, kept so that a gateway can resume after a break."""

    choice: int
    first_index: int
    sampled: list[Sampled] = field(default_factory=list)
    finish: FinishReason | None = None

    @property
    def next_index(self) -> int:
        return self.first_index + len(self.sampled)


@dataclass(slots=True)
class Attempt:
    """One attempt at its home."""

    key: AttemptKey
    gateway: GatewayKey
    request: StartRequest
    deadline_us: int
    phase: Phase
    logs: list[ChoiceLog]
    prefill: Peer | None = None
    """Whom we asked; None where this worker prefills."""
    transfer: TransferKey | None = None
    drawn: bool = False
    """The first token of every choice is known."""
    committed: bool = False
    """The prompt's KV is proven here."""
    cached_tokens: int = 0
    end: End | None = None
    ended_us: int = 0

    @classmethod
    def begin(cls, gateway: GatewayKey, request: StartRequest, now_us: int) -> "Attempt":
        logs = [ChoiceLog(choice.index, len(choice.output)) for choice in request.job.choices]
        deadline_us = now_us + request.deadline_remaining_us
        return cls(request.job.key, gateway, request, deadline_us, Phase.ASKED, logs)

    @property
    def finished(self) -> bool:
        """Every choice is done; the end has still to be said."""
        return all(log.finish is not None for log in self.logs)

    @property
    def firsts(self) -> tuple[FirstToken, ...]:
        """What the prefill worker drew, if it did; decode starts from it."""
        return tuple(FirstToken(log.choice, log.sampled[0]) for log in self.logs) if self.drawn else ()

    def remaining_job(self) -> Job:
        """The job as it stands: what was said is output so far, and finished choices are left out."""
        job = self.request.job
        said = {
            log.choice: tuple(one.token for one in log.sampled) for log in self.logs if log.finish is None
        }
        choices = tuple(
            Choice(choice.index, choice.output + said[choice.index])
            for choice in job.choices
            if choice.index in said
        )
        return replace(job, choices=choices)

    def log(self, choice: int) -> ChoiceLog:
        return next(log for log in self.logs if log.choice == choice)

    def within_limits(self, first: DrawnToken, positions_max: int) -> DrawnToken:
        """Ends the choice where nothing may follow its token here, whatever the prefill worker's pool allows.

        Here, and not when the KV has come: it may never come, and nothing is left to compute then.
        """
        job, index = self.request.job, self.log(first.choice).next_index
        is_last = index + 1 >= job.params.max_tokens or len(job.prompt) + index + 1 >= positions_max
        return replace(first, finish=FinishReason.LENGTH) if first.finish is None and is_last else first

    def record(self, choice: int, sampled: Sampled, finish: FinishReason | None) -> Run:
        """Remember one token, and say it."""
        log = self.log(choice)
        assert log.finish is None
        run = Run(self.key, choice, log.next_index, (sampled,), finish, self.cached_tokens)
        log.sampled.append(sampled)
        log.finish = finish
        return run

    def can_resume(self, next_index: tuple[int, ...]) -> bool:
        """Whether these are indexes that a gateway of this attempt can have come to, one per choice."""
        return len(next_index) == len(self.logs) and all(
            log.first_index <= index <= log.next_index
            for log, index in zip(self.logs, next_index, strict=True)
        )

    def since(self, next_index: tuple[int, ...]) -> list[Run]:
        """What a gateway has not seen, given its next index per choice."""
        runs = []
        for log, index in zip(self.logs, next_index, strict=True):
            missed = tuple(log.sampled[index - log.first_index :])
            if missed or log.finish is not None:
                runs.append(Run(self.key, log.choice, index, missed, log.finish, self.cached_tokens))
        return runs
