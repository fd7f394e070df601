"""How everything that was opened ended, exactly once."""

from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

from core.outcomes import Outcome

Key = TypeVar("Key", bound=Hashable)


class Ledger(Generic[Key]):
    """Opens and ends of requests (or attempts, or transfers), counted per outcome.

    `end` is idempotent: cancel, completion and loss may race, and the first one is the end. Only
    live keys are remembered, so memory does not grow with what is over.
    """

    def __init__(self) -> None:
        self._opened_us: dict[Key, int] = {}
        self._opened = 0
        self._ended: dict[Outcome, int] = dict.fromkeys(Outcome, 0)

    def open(self, key: Key, now_us: int) -> None:
        assert key not in self._opened_us, f"{key} is live already"
        self._opened_us[key] = now_us
        self._opened += 1

    def end(self, key: Key, outcome: Outcome) -> bool:
        """Whether this is the end: False where it had ended before, or was never opened."""
        if self._opened_us.pop(key, None) is None:
            return False
        self._ended[outcome] += 1
        return True

    def __contains__(self, key: Key) -> bool:
        return key in self._opened_us

    def __iter__(self) -> Iterator[Key]:
        """Live keys, oldest first."""
        return iter(tuple(self._opened_us))

    @property
    def live(self) -> int:
        return len(self._opened_us)

    @property
    def opened(self) -> int:
        return self._opened

    def opened_us(self, key: Key) -> int | None:
        """When a live key was opened; None once it has ended."""
        return self._opened_us.get(key)

    def count(self, outcome: Outcome) -> int:
        return self._ended[outcome]

    def counts(self) -> dict[Outcome, int]:
        """Ends per outcome, those that happened."""
        return {outcome: count for outcome, count in self._ended.items() if count}

    def check(self) -> None:
        assert self._opened == len(self._opened_us) + sum(self._ended.values()), (
            "an end is missing or doubled"
        )
        assert all(count >= 0 for count in self._ended.values())
