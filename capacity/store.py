"""The global capacity state, as far as it can be asked: announcements, leases and rates in Redis.

No call raises and none takes longer than its bound: a store that does not answer is `Lost`, and from
then on every call says so at once until a connection in the background has succeeded.
"""

import asyncio
import hashlib
import random as random_module
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError

from capacity import scripts
from capacity.quantities import Answer, Ask, GiveBack, LeaseConfig, Lost, Quantity, QuantityKind
from core.membership import Member, MemberKind


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings:
    call_timeout_s: float = 0.2
    """Every call's bound."""
    backoff_min_s: float = 0.05
    backoff_max_s: float = 0.5
    """Waits between attempts to reconnect; together with the lease's renewal well below its term."""
    connections_max: int = 4
    fleet: str = "baton"
    """Part of every key: fleets that share a Redis do not see each other."""


class _Script:
    def __init__(self, text: str) -> None:
        self.text = text
        self.sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


_LEASE, _RATE = _Script(scripts.LEASE), _Script(scripts.RATE)
_ANNOUNCE, _WITHDRAW = _Script(scripts.ANNOUNCE), _Script(scripts.WITHDRAW)
_MEMBERS = _Script(scripts.MEMBERS)


class CapacityStore:
    """One process's connection to the store.

    `holder` names this process in leases: its id and incarnation, so that a restart waits out the
    leases of its earlier life. `on_lost` and `on_returned` are told of each change, once.
    """

    def __init__(
        self,
        url: str,
        holder: str,
        *,
        random: random_module.Random,
        settings: StoreSettings | None = None,
        leases: LeaseConfig | None = None,
        on_lost: Callable[[Lost], None] | None = None,
        on_returned: Callable[[], None] | None = None,
    ) -> None:
        """Connects when first asked. Raises ValueError for a URL that is not Redis's."""
        self._settings = settings or StoreSettings()
        self._term_ms = (leases or LeaseConfig()).term_us // 1000
        self._holder = holder
        self._random = random
        self._on_lost, self._on_returned = on_lost, on_returned
        self._lost: Lost | None = None
        self._epoch = ""
        self._reconnecting: asyncio.Task[None] | None = None
        self._redis = _client(url, self._settings)

    @property
    def lost(self) -> Lost | None:
        """Why the store cannot be asked now; None where it can."""
        return self._lost

    async def close(self) -> None:
        if self._reconnecting is not None:
            self._reconnecting.cancel()
            await asyncio.wait([self._reconnecting])
        await self._redis.aclose()

    async def announce(self, member: Member, ttl_us: int) -> bool | Lost:
        """False where a later incarnation has this id."""
        key = self._members_key(member.kind)
        words = (member.id, member.started_us, member.incarnation, ttl_us // 1000)
        return _as_bool(await self._call(_ANNOUNCE, [key], *words, msgspec.json.encode(member)))

    async def withdraw(self, member: Member) -> bool | Lost:
        """False where this incarnation was not announced (any more)."""
        key = self._members_key(member.kind)
        return _as_bool(await self._call(_WITHDRAW, [key], member.id, member.incarnation))

    async def members(self, *kinds: MemberKind) -> tuple[Member, ...] | Lost:
        """Everyone announced now, of these kinds (none: of all), by kind and id.

        An announcement this version cannot read is passed over: its sender is of another version.
        """
        keys = [self._members_key(kind) for kind in kinds or tuple(MemberKind)]
        found = await self._call(_MEMBERS, keys)
        if isinstance(found, Lost):
            return found
        members = [member for member in map(_member, found) if member is not None]
        return tuple(sorted(members, key=lambda member: (member.kind, member.id)))

    async def ask(self, ask: Ask) -> Answer | Lost:
        """Puts a LeaseBook's question."""
        if ask.quantity.kind is QuantityKind.CONCURRENCY:
            found = await self._ask_lease(ask)
        else:
            found = await self._ask_rate(ask.quantity, ask.want, ask.limit)
        return found if isinstance(found, Lost) else self._answer(found)

    async def give_back(self, back: GiveBack) -> Lost | None:
        found = await self._ask_rate(back.quantity, -back.tokens, back.limit)
        return found if isinstance(found, Lost) else None

    async def _ask_lease(self, ask: Ask) -> Any | Lost:
        keys = [self._key(f"lease:{ask.quantity.tenant}"), self._key("epoch")]
        arguments = (self._epoch, self._term_ms, self._holder, ask.number, ask.want, ask.claim, ask.limit)
        return await self._call(_LEASE, keys, *arguments)

    async def _ask_rate(self, quantity: Quantity, want: int, limit: int) -> Any | Lost:
        keys = [self._key(f"rate:{quantity.tenant}"), self._key("epoch")]
        return await self._call(_RATE, keys, self._epoch, self._term_ms, want, limit)

    def _answer(self, found: Sequence[Any]) -> Answer:
        granted, free, quarantined, epoch = found
        self._epoch = epoch.decode()
        return Answer(int(granted), int(free), bool(quarantined))

    def _key(self, name: str) -> str:
        # The braces keep a fleet's keys on one node of a Redis cluster: scripts span several.
        return f"{{{self._settings.fleet}}}:{name}"

    def _members_key(self, kind: MemberKind) -> str:
        return self._key(f"members:{kind.value}")

    async def _call(self, script: _Script, keys: list[str], *arguments: Any) -> Any | Lost:
        if self._lost is not None:
            return self._lost
        try:
            return await self._bounded(self._evaluate(script, keys, arguments))
        except (RedisError, OSError, TimeoutError) as error:
            return self._lose(error)

    async def _bounded(self, work: Awaitable[Any]) -> Any:
        """Raises TimeoutError after a call's bound, CancelledError where the caller was cancelled meanwhile.

        The client sends through asyncio.wait_for, which up to Python 3.11 swallows a cancel that comes when
        the command has just left: its caller would go on, and whoever waits for its end would wait for ever.
        """
        caller = asyncio.current_task()
        assert caller is not None
        cancels = caller.cancelling()
        try:
            async with asyncio.timeout(self._settings.call_timeout_s):
                return await work
        finally:
            if caller.cancelling() > cancels:
                raise asyncio.CancelledError

    async def _evaluate(self, script: _Script, keys: list[str], arguments: tuple[Any, ...]) -> Any:
        call = self._redis.evalsha
        try:
            return await call(script.sha, len(keys), *keys, *arguments)
        except NoScriptError:
            # A restarted store has forgotten its scripts, too.
            await self._redis.script_load(script.text)
            return await call(script.sha, len(keys), *keys, *arguments)

    def _lose(self, error: Exception) -> Lost:
        if self._lost is not None:
            return self._lost
        self._lost = Lost(f"{type(error).__name__}: {error}")
        self._reconnecting = asyncio.get_running_loop().create_task(self._reconnect())
        if self._on_lost is not None:
            self._on_lost(self._lost)
        return self._lost

    async def _reconnect(self) -> None:
        longest_s = self._settings.backoff_min_s
        while not await self._answers():
            await asyncio.sleep(longest_s * self._random.uniform(0.5, 1.0))
            longest_s = min(2 * longest_s, self._settings.backoff_max_s)
        self._lost = None
        if self._on_returned is not None:
            self._on_returned()

    async def _answers(self) -> bool:
        try:
            await self._bounded(self._redis.echo("baton"))
        except (RedisError, OSError, TimeoutError):
            return False
        return True


def _client(url: str, settings: StoreSettings) -> Any:
    pool = redis.asyncio.BlockingConnectionPool.from_url(
        url,
        max_connections=settings.connections_max,
        timeout=settings.call_timeout_s,
        socket_timeout=settings.call_timeout_s,
        socket_connect_timeout=settings.call_timeout_s,
        retry=Retry(NoBackoff(), 0),
        protocol=2,
    )
    return redis.asyncio.Redis.from_pool(pool)


def _as_bool(found: Any) -> bool | Lost:
    return found if isinstance(found, Lost) else bool(found)


def _member(announcement: bytes) -> Member | None:
    try:
        return msgspec.json.decode(announcement, type=Member)
    except msgspec.DecodeError:
        return None
