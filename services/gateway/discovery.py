"""How this process tells the fleet that it is there, and hears who else is."""

import asyncio
import contextlib

from capacity.quantities import Lost
from capacity.store import CapacityStore
from core.membership import Change, Left, Member, MemberKind, Membership
from rpc.channels import Channels
from rpc.clock import now_us
from services.gateway.fleet import Fleet

TTL_US = 5_000_000
ANNOUNCE_EVERY_S = 1.5
READ_EVERY_S = 0.5


class Discovery:
    """Announces one member and feeds the membership, until it is closed."""

    def __init__(
        self, store: CapacityStore, member: Member, membership: Membership, fleet: Fleet, channels: Channels
    ) -> None:
        self._store = store
        self._member = member
        self._membership = membership
        self._fleet = fleet
        self._channels = channels
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._announce()), loop.create_task(self._read())]

    async def close(self) -> None:
        """Leaves the fleet: others hear of it at once."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._store.withdraw(self._member)
        await self._store.close()

    async def _announce(self) -> None:
        while True:
            await self._store.announce(self._member, TTL_US)
            await asyncio.sleep(ANNOUNCE_EVERY_S)

    async def _read(self) -> None:
        while True:
            found = await self._store.members()
            now = now_us()
            if isinstance(found, Lost):
                changes = self._membership.source_lost(now)
            else:
                changes = self._membership.announced(found, TTL_US, now)
            self._fleet.apply(changes)
            await self._forget(changes)
            await asyncio.sleep(READ_EVERY_S)

    async def _forget(self, changes: list[Change]) -> None:
        """Closes what questions were asked over, of those who have left."""
        for change in changes:
            if isinstance(change, Left) and change.member.kind is not MemberKind.ROUTER:
                with contextlib.suppress(OSError):
                    await self._channels.drop(change.member.address)
