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
        self._announced = asyncio.Event()
        self._reading = asyncio.Lock()
        """Readings are applied in the order in which they were taken."""
        self._next_reading: asyncio.Task[None] | None = None
        """Of the gateways, not yet begun: all who ask until then share it."""
        fleet.hear = self.hear_gateways

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._announce()), loop.create_task(self._read())]

    async def close(self) -> None:
        """Leaves the fleet: others hear of it at once."""
        self._fleet.hear = nothing_to_hear
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        async with self._reading:
            await self._store.withdraw(self._member)
            await self._store.close()

    async def hear_gateways(self) -> None:
        """Returns once a reading begun after the call is applied. However many ask, one runs at a time."""
        if self._next_reading is None:
            self._next_reading = asyncio.get_running_loop().create_task(self._read_gateways())
        await asyncio.shield(self._next_reading)

    async def _read_gateways(self) -> None:
        async with self._reading:
            self._next_reading = None
            found = await self._store.members(MemberKind.GATEWAY)
            if not isinstance(found, Lost):
                await self._apply(self._membership.heard_of(found, TTL_US, now_us()))

    async def _announce(self) -> None:
        while True:
            await self._store.announce(self._member, TTL_US)
            self._announced.set()
            await asyncio.sleep(ANNOUNCE_EVERY_S)

    async def _read(self) -> None:
        # Announced first: who serves requests can be found by those who are asked to cancel them.
        await self._announced.wait()
        while True:
            async with self._reading:
                found = await self._store.members()
                now = now_us()
                if isinstance(found, Lost):
                    changes = self._membership.source_lost(now)
                else:
                    changes = self._membership.announced(found, TTL_US, now)
                await self._apply(changes)
            await asyncio.sleep(READ_EVERY_S)

    async def _apply(self, changes: list[Change]) -> None:
        self._fleet.apply(changes)
        await self._forget(changes)

    async def _forget(self, changes: list[Change]) -> None:
        """Closes what questions were asked over, of those who have left."""
        for change in changes:
            if isinstance(change, Left) and change.member.kind is not MemberKind.ROUTER:
                with contextlib.suppress(OSError):
                    await self._channels.drop(change.member.address)
