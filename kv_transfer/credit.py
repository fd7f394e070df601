"""How many bytes one peer may have packed, on the lane or unacknowledged at once."""

from kv_transfer.types import Peer


class Credit:
    """Bytes per peer, within one bound for each; peers without any are not remembered."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._used: dict[Peer, int] = {}

    def take(self, peer: Peer, size_bytes: int) -> bool:
        """All of it, or none: False."""
        used = self._used.get(peer, 0)
        if used + size_bytes > self._bytes_max:
            return False
        self._used[peer] = used + size_bytes
        return True

    def give_back(self, peer: Peer, size_bytes: int) -> None:
        left = self._used[peer] - size_bytes
        assert left >= 0
        if left:
            self._used[peer] = left
        else:
            del self._used[peer]

    def used_bytes(self, peer: Peer) -> int:
        return self._used.get(peer, 0)

    def check(self, counted: dict[Peer, int]) -> None:
        """`counted`: what the transfers themselves add up to."""
        assert counted == self._used
        assert all(0 < used <= self._bytes_max for used in self._used.values())
