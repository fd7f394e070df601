"""Which prompt asks its home for blocks next."""

from bisect import bisect_left, insort
from dataclasses import dataclass

from kv_transfer.types import Peer

Order = tuple[int, int]
"""(place in µs, number), as in the engine's queue: who is asked for first is computed first."""


@dataclass(slots=True)
class _Entry:
    order: Order
    peer: Peer
    tokens: int
    """Still to be computed."""


class Intake:
    """Prompts that wait for compute, by place: urgent and short ones overtake, boundedly.

    A home whose memory is full must not hold up the others, so what was asked is counted per home. Nor is
    a prompt held up by what comes after it: a short one does not wait until a long one has ended.
    """

    def __init__(self, ahead_tokens: int) -> None:
        self._ahead_tokens = ahead_tokens
        self._waiting: dict[int, _Entry] = {}
        self._queues: dict[Peer, list[Order]] = {}
        """Of those that wait, sorted; homes without any are not remembered."""
        self._asked: dict[int, _Entry] = {}
        self._computing: dict[int, _Entry] = {}

    def wait(self, number: int, peer: Peer, place_us: int, tokens: int) -> None:
        entry = self._waiting[number] = _Entry((place_us, number), peer, tokens)
        insort(self._queues.setdefault(peer, []), entry.order)

    def next_to_ask(self) -> list[int]:
        """Takes out the prompts that are near enough to compute; they count as asked from now on."""
        chosen: list[Order] = []
        for peer, queue in list(self._queues.items()):
            while queue and self._ahead(peer, queue[0]) < self._ahead_tokens:
                order = queue[0]
                chosen.append(order)
                self._asked[order[1]] = self._take_waiting(order[1])
        return [number for _, number in sorted(chosen)]

    def compute(self, number: int) -> None:
        """Its blocks are bound, or none are needed: in the engine from now on."""
        was_asked = number in self._asked
        self._computing[number] = self._asked.pop(number) if was_asked else self._take_waiting(number)

    def computed(self, number: int, tokens_left: int) -> None:
        self._computing[number].tokens = tokens_left

    def done(self, number: int) -> None:
        """Computed or ended; idempotent."""
        self._asked.pop(number, None)
        self._computing.pop(number, None)
        if number in self._waiting:
            self._take_waiting(number)

    def _ahead(self, peer: Peer, order: Order) -> int:
        """Tokens to be computed before a prompt of this home, of those that have left the queue."""
        computing = sum(entry.tokens for entry in self._computing.values() if entry.order < order)
        asked = [entry for entry in self._asked.values() if entry.peer == peer and entry.order < order]
        return computing + sum(entry.tokens for entry in asked)

    def _take_waiting(self, number: int) -> _Entry:
        entry = self._waiting.pop(number)
        queue = self._queues[entry.peer]
        del queue[bisect_left(queue, entry.order)]
        if not queue:
            del self._queues[entry.peer]
        return entry

    @property
    def waiting(self) -> int:
        return len(self._waiting) + len(self._asked)

    @property
    def waiting_tokens(self) -> int:
        entries = [*self._waiting.values(), *self._asked.values()]
        return sum(entry.tokens for entry in entries)

    def check(self) -> None:
        queued = sorted(order for queue in self._queues.values() for order in queue)
        assert queued == sorted(entry.order for entry in self._waiting.values())
        assert all(queue == sorted(queue) for queue in self._queues.values())
