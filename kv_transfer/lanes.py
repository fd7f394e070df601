"""Which lane joins this process to which peer, and what memory all of them hold."""

from collections.abc import Callable
from dataclasses import dataclass

from kv_transfer.gloo_lane import GlooLane, LaneConfig, LaneEnd, Post, Rendezvous
from kv_transfer.gloo_pair import RendezvousStore, listen_on
from kv_transfer.lane import LaneError
from kv_transfer.types import LaneOffer as LaneOffer
from kv_transfer.types import Peer


@dataclass(slots=True)
class _Entry:
    epoch: int
    lane: GlooLane
    up: bool = False


class Lanes:
    """One lane per peer; a new epoch replaces the old one.

    Every method returns at once and belongs to the event loop. `ready(peer, epoch, error)` says that a lane
    is up or never will be; `failed(peer, epoch, error)` that one that was up broke. Neither is said of a lane
    that was closed or replaced here.
    """

    def __init__(
        self,
        own: Peer,
        config: LaneConfig,
        budget_bytes: int,
        post: Post,
        *,
        ready: Callable[[Peer, int, LaneError | None], None],
        failed: Callable[[Peer, int, LaneError], None],
    ) -> None:
        """`budget_bytes` bounds the staging of all receiving lanes together."""
        self._own = own
        self._config = config
        self._budget_bytes = budget_bytes
        self._post = post
        self._ready = ready
        self._failed = failed
        self._entries: dict[Peer, _Entry] = {}
        self._ending: list[GlooLane] = []
        """Closed or broken, not yet gone."""
        self._epoch = 0
        self._store: RendezvousStore | None = None

    def check_host(self) -> None:
        """Raises OSError where the address that lanes bind is not this machine's."""
        listen_on(self._config.hostname).close()

    # ---- opening ----
    def offer(self, peer: Peer) -> LaneOffer:
        """The receiver's first step: a new epoch's rendezvous, replacing the peer's lane if there is one.

        Raises LaneError where the budget has no room for another lane's staging.
        """
        self.close_peer(peer)
        if self.staging_bytes + self._config.staging_bytes > self._budget_bytes:
            raise LaneError(f"staging: {self.staging_bytes} of {self._budget_bytes} bytes are taken")
        store = self._store = self._store or RendezvousStore(self._config.hostname)
        self._epoch += 1
        prefix = f"kv/{_name(peer)}/{_name(self._own)}/{self._epoch}"
        where = Rendezvous(self._config.hostname, store.port, prefix)
        self._open(peer, self._epoch, LaneEnd.RECEIVER, where)
        return LaneOffer(self._epoch, f"{where.store_host}:{where.store_port}", prefix)

    def accept(self, peer: Peer, offer: LaneOffer) -> None:
        """The sender's step. Raises ValueError naming a bad store_address."""
        host, _, port = offer.store_address.rpartition(":")
        if not host or not port.isdecimal():
            raise ValueError(f"store_address: {offer.store_address!r}, must be host:port")
        self.close_peer(peer)
        where = Rendezvous(host, int(port), offer.store_prefix)
        self._open(peer, offer.lane_epoch, LaneEnd.SENDER, where)

    def _open(self, peer: Peer, epoch: int, end: LaneEnd, where: Rendezvous) -> None:
        lane = GlooLane(
            end,
            where,
            self._config,
            self._post,
            ready=lambda error: self._on_ready(peer, epoch, error),
            failed=lambda error: self._on_failed(peer, epoch, error),
        )
        self._entries[peer] = _Entry(epoch, lane)

    def _on_ready(self, peer: Peer, epoch: int, error: LaneError | None) -> None:
        entry = self._current(peer, epoch)
        if entry is None:
            return
        if error is None:
            entry.up = True
        else:
            self._forget(peer)
        self._ready(peer, epoch, error)

    def _on_failed(self, peer: Peer, epoch: int, error: LaneError) -> None:
        if self._current(peer, epoch) is not None:
            self._forget(peer)
            self._failed(peer, epoch, error)

    def _current(self, peer: Peer, epoch: int) -> _Entry | None:
        entry = self._entries.get(peer)
        return entry if entry is not None and entry.epoch == epoch else None

    # ---- handing out ----
    def lane(self, peer: Peer, epoch: int | None = None) -> GlooLane | None:
        """The peer's lane, up or being built (it queues); None if there is none, or not of that epoch."""
        entry = self._entries.get(peer)
        if entry is None or epoch not in (None, entry.epoch):
            return None
        return entry.lane

    def epoch(self, peer: Peer) -> int | None:
        entry = self._entries.get(peer)
        return None if entry is None else entry.epoch

    def is_up(self, peer: Peer) -> bool:
        entry = self._entries.get(peer)
        return entry is not None and entry.up

    @property
    def staging_bytes(self) -> int:
        """What L9 counts: of live lanes and of those whose threads or payloads are not yet gone."""
        self._ending = [lane for lane in self._ending if lane.staging_bytes or not lane.join(0)]
        live = sum(entry.lane.staging_bytes for entry in self._entries.values())
        return live + sum(lane.staging_bytes for lane in self._ending)

    def __len__(self) -> int:
        return len(self._entries)

    # ---- closing ----
    def close_peer(self, peer: Peer) -> None:
        """The peer is lost, or its lane is to be replaced. Idempotent."""
        if peer in self._entries:
            self._forget(peer)

    def _forget(self, peer: Peer) -> None:
        lane = self._entries.pop(peer).lane
        lane.close()
        self._ending.append(lane)

    def close(self) -> None:
        """Closes every lane and the rendezvous store."""
        for peer in list(self._entries):
            self._forget(peer)
        self._store = None

    def join(self, timeout_s: float) -> bool:
        """Waits for the closed lanes' threads, so long for each; whether all are gone. Off the event loop."""
        return all([lane.join(timeout_s) for lane in self._ending])


def _name(peer: Peer) -> str:
    return f"{peer.worker}.{peer.incarnation}"
