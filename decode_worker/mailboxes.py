"""What each gateway has still to be told, and when a silent one is given up."""

from dataclasses import dataclass, field

from core.request import AttemptKey
from decode_worker.attempts import Attempt, AttemptEnd, GatewayKey, Run


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """An attempt that a reattaching gateway still wants, from these output indexes on (one per choice)."""

    key: AttemptKey
    next_index: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SendFrame:
    """All that one event gave to one gateway's requests."""

    gateway: GatewayKey
    runs: tuple[Run, ...]
    ends: tuple[AttemptEnd, ...]


@dataclass(slots=True)
class Mailbox:
    """One gateway: connected, or silent since a moment."""

    silent_since_us: int | None = None
    attempts: dict[AttemptKey, Attempt] = field(default_factory=dict)
    runs: list[Run] = field(default_factory=list)
    ends: list[AttemptEnd] = field(default_factory=list)


class Mailboxes:
    """Frames are collected while an event is handled and sent once at its end.

    Nothing is collected for a silent gateway: the attempts' own logs hold what it will have missed.
    """

    def __init__(self, reattach_us: int) -> None:
        self._reattach_us = reattach_us
        self._boxes: dict[GatewayKey, Mailbox] = {}

    def attach(self, gateway: GatewayKey, resume: tuple[ResumePoint, ...]) -> tuple[AttemptKey, ...]:
        """The gateway is (again) there; queues all it missed.

        Answers with attempts that are not here, or not as the gateway remembers them.
        """
        box = self._boxes.setdefault(gateway, Mailbox())
        box.silent_since_us = None
        box.runs.clear()
        box.ends.clear()
        unknown = []
        for point in resume:
            attempt = box.attempts.get(point.key)
            if attempt is None or not attempt.can_resume(point.next_index):
                unknown.append(point.key)
                continue
            box.runs += attempt.since(point.next_index)
            if attempt.end is not None:
                box.ends.append(AttemptEnd(attempt.key, attempt.end))
        return tuple(unknown)

    def silent(self, gateway: GatewayKey, now_us: int) -> None:
        box = self._boxes.get(gateway)
        if box is not None and box.silent_since_us is None:
            box.silent_since_us = now_us

    def others(self, gateway: GatewayKey) -> list[GatewayKey]:
        """Earlier starts of the same gateway: it is gone, and theirs with it."""
        return [key for key in self._boxes if key.gateway == gateway.gateway and key != gateway]

    def open(self, attempt: Attempt) -> None:
        self._boxes.setdefault(attempt.gateway, Mailbox()).attempts[attempt.key] = attempt

    def forget(self, attempt: Attempt) -> None:
        box = self._boxes.get(attempt.gateway)
        if box is not None:
            box.attempts.pop(attempt.key, None)

    def close(self, gateway: GatewayKey) -> list[Attempt]:
        """The gateway will not come back; answers with all its attempts."""
        box = self._boxes.pop(gateway, None)
        return list(box.attempts.values()) if box is not None else []

    def attempts(self, gateway: GatewayKey) -> list[Attempt]:
        return list(self._boxes[gateway].attempts.values())

    def say(self, gateway: GatewayKey, run: Run) -> None:
        box = self._boxes.get(gateway)
        if box is None or box.silent_since_us is not None:
            return
        if box.runs and (joined := box.runs[-1].joined(run)) is not None:
            box.runs[-1] = joined
        else:
            box.runs.append(run)

    def say_end(self, gateway: GatewayKey, end: AttemptEnd) -> None:
        box = self._boxes.get(gateway)
        if box is not None and box.silent_since_us is None:
            box.ends.append(end)

    def flush(self) -> list[SendFrame]:
        frames = []
        for gateway, box in self._boxes.items():
            if box.runs or box.ends:
                frames.append(SendFrame(gateway, tuple(box.runs), tuple(box.ends)))
                box.runs.clear()
                box.ends.clear()
        return frames

    def overdue(self, now_us: int) -> list[GatewayKey]:
        """Gateways silent for longer than they may be."""
        return [
            gateway
            for gateway, box in self._boxes.items()
            if box.silent_since_us is not None and now_us - box.silent_since_us >= self._reattach_us
        ]

    @property
    def next_deadline_us(self) -> int | None:
        silences = [box.silent_since_us for box in self._boxes.values() if box.silent_since_us is not None]
        return min(silences) + self._reattach_us if silences else None

    def check(self) -> None:
        for gateway, box in self._boxes.items():
            assert not (box.runs or box.ends), f"unsent frame for {gateway}"
            assert all(attempt.gateway == gateway for attempt in box.attempts.values())
