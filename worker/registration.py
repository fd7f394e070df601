"""How a worker is found, and how it finds the routers of its cell."""

import asyncio
import random
from typing import Protocol

from capacity.quantities import Lost
from capacity.store import CapacityStore
from core.membership import Joined, Left, Member, MemberKind, Membership
from rpc.clock import now_us
from rpc.logs import Log
from rpc.reach import warn_of_loopback
from worker.config import WorkerConfig

TTL_US = 5_000_000
ANNOUNCE_S = 1.5
FAST_S = 0.2
"""Between looks while no router is known yet."""


class Links(Protocol):
    """The streams to the routers."""

    @property
    def addresses(self) -> tuple[str, ...]: ...
    def add(self, address: str) -> None: ...
    async def remove(self, address: str) -> None: ...


class Registration:
    """Announces one member with a term and follows the announced routers.

    While the store is lost the last membership stands (core/membership.py), and the streams live on.
    """

    def __init__(self, config: WorkerConfig, member: Member, links: Links, log: Log) -> None:
        self._config = config
        self._member = member
        self._links = links
        self._log = log
        self._membership = Membership()
        self._task: asyncio.Task[None] | None = None
        self._store = (
            CapacityStore(
                config.redis_url,
                f"{member.id}.{member.incarnation}",
                random=random.Random(member.incarnation),
                on_lost=lambda lost: log.warning("store_lost", reason=lost.reason),
                on_returned=lambda: log.info("store_returned"),
            )
            if config.redis_url
            else None
        )

    async def start(self) -> None:
        """Announced once when this returns, if the store can be asked."""
        for address in self._config.routers:
            self._links.add(address)
        if self._store is not None:
            warn_of_loopback(self._log, self._member.address, self._config.redis_url)
            await self._round(self._store)
            self._task = asyncio.create_task(self._follow(self._store))

    async def close(self) -> None:
        """Takes the announcement back."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])  # or it might announce again what is withdrawn here
        if self._store is not None:
            await self._store.withdraw(self._member)
            await self._store.close()

    async def _follow(self, store: CapacityStore) -> None:
        while True:
            await asyncio.sleep(ANNOUNCE_S if self._links.addresses else FAST_S)
            await self._round(store)

    async def _round(self, store: CapacityStore) -> None:
        if await store.announce(self._member, TTL_US) is False:
            self._log.error("id_taken", id=self._member.id)
        found = await store.members(MemberKind.ROUTER)
        if isinstance(found, Lost):
            self._membership.source_lost(now_us())
            return
        for change in self._membership.announced(found, TTL_US, now_us()):
            match change:
                case Joined(member):
                    self._links.add(member.address)
                case Left(member):
                    if member.address not in [
                        known.address for known in self._membership.members(member.kind)
                    ]:
                        await self._links.remove(member.address)
