"""Which prompt asks its home for blocks next."""

from core.request import TenantClass
from kv_transfer.types import Peer


class Intake:
    """Prompts that wait for compute, most urgent class first, then in order of arrival.

    A home whose memory is full must not hold up the others, so what was asked is counted per home.
    """

    def __init__(self, ahead_tokens: int) -> None:
        self._ahead_tokens = ahead_tokens
        self._waiting: dict[TenantClass, dict[int, tuple[Peer, int]]] = {rank: {} for rank in TenantClass}
        self._asked: dict[int, tuple[Peer, int]] = {}
        self._computing: dict[int, int] = {}

    def wait(self, number: int, peer: Peer, tenant_class: TenantClass, tokens: int) -> None:
        self._waiting[tenant_class][number] = (peer, tokens)

    def next_to_ask(self) -> list[int]:
        """Takes out the prompts that are near enough to compute; they count as asked from now on."""
        chosen = []
        computing = sum(self._computing.values())
        ahead: dict[Peer, int] = {}
        for peer, tokens in self._asked.values():
            ahead[peer] = ahead.get(peer, computing) + tokens
        for waiting in self._waiting.values():
            for number, (peer, tokens) in list(waiting.items()):
                if ahead.setdefault(peer, computing) >= self._ahead_tokens:
                    continue
                ahead[peer] += tokens
                self._asked[number] = waiting.pop(number)
                chosen.append(number)
        return chosen

    def compute(self, number: int, tokens: int) -> None:
        """Its blocks are bound, or none are needed: in the engine from now on."""
        self._drop_unstarted(number)
        self._computing[number] = tokens

    def done(self, number: int) -> None:
        """Computed or ended; idempotent."""
        self._drop_unstarted(number)
        self._computing.pop(number, None)

    def _drop_unstarted(self, number: int) -> None:
        self._asked.pop(number, None)
        for waiting in self._waiting.values():
            waiting.pop(number, None)

    @property
    def waiting(self) -> int:
        return sum(len(waiting) for waiting in self._waiting.values()) + len(self._asked)

    @property
    def waiting_tokens(self) -> int:
        queued = sum(tokens for waiting in self._waiting.values() for _, tokens in waiting.values())
        return queued + sum(tokens for _, tokens in self._asked.values())
