"""Which decode workers this gateway has a stream to, and what runs over each."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from services.gateway.actions import CancelAttempt


@dataclass(slots=True)
class WorkerLink:
    """The stream to one decode worker."""

    worker: str
    address: str
    up: bool = False
    incarnation: str = ""
    """Of the worker last attached; empty before."""
    requests: dict[str, None] = field(default_factory=dict)
    """Placed or started there, in order of placement."""
    owed_cancels: list[CancelAttempt] = field(default_factory=list)
    """Decided while the stream was down."""


class WorkerLinks:
    """All streams by worker."""

    def __init__(self) -> None:
        self._links: dict[str, WorkerLink] = {}

    def get(self, worker: str) -> WorkerLink | None:
        return self._links.get(worker)

    def add(self, worker: str, address: str) -> WorkerLink:
        assert worker not in self._links
        link = self._links[worker] = WorkerLink(worker, address)
        return link

    def remove(self, worker: str) -> None:
        link = self._links.pop(worker)
        assert not link.requests, f"the link to {worker} is removed under {len(link.requests)} requests"

    def release(self, worker: str, request: str) -> None:
        """The request runs there no more."""
        if (link := self._links.get(worker)) is not None:
            link.requests.pop(request, None)

    def __iter__(self) -> Iterator[WorkerLink]:
        return iter(self._links.values())
