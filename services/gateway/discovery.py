"""How this process tells the fleet that it is there, and hears who else is."""

import asyncio
import contextlib

from capacity.quantities import Lost
from capacity.store import CapacityStore
from core.membership import Change, Left, Member, MemberKind, Membership
from rpc.channels import Channels
from rpc.clock import now_us
from services.gateway.fleet import Fleet, nothing_to_hear

TTL_US = 5_000_000
READ_EVERY_S = 0.5
READS_PER_ANNOUNCEMENT = 3


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
        self._reading = asyncio.Lock()
        """Readings are applied in the order in which they were taken."""
        fleet.hear = self.hear

    def start(self) -> None:
        self._tasks = [asyncio.get_running_loop().create_task(self._announce_and_read())]

    async def close(self) -> None:
        """Leaves the fleet: others hear of it at once."""
        self._fleet.hear = nothing_to_hear
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        async with self._reading:
            await self._store.withdraw(self._member)
            await self._store.close()

    async def hear(self, *kinds: MemberKind) -> None:
        """Reads who is announced, of these kinds (none: of all), and applies what has changed."""
        async with self._reading:
            found = await self._store.members(*kinds)
            now = now_us()
            if isinstance(found, Lost):
                changes = self._membership.source_lost(now)
            else:
                changes = self._membership.announced(found, TTL_US, now)
            self._fleet.apply(changes)
            await self._forget(changes)

    async def _announce_and_read(self) -> None:
        # Announced first: who serves requests can be found by those who are asked to cancel them.
        while True:
            await self._store.announce(self._member, TTL_US)
            for _ in range(READS_PER_ANNOUNCEMENT):
                await self.hear()
                await asyncio.sleep(READ_EVERY_S)

    async def _forget(self, changes: list[Change]) -> None:
        """Closes what questions were asked over, of those who have left."""
        for change in changes:
            if isinstance(change, Left) and change.member.kind is not MemberKind.ROUTER:
                with contextlib.suppress(OSError):
                    await self._channels.drop(change.member.address)
