"""The capacity store over real servers: Valkey from its wheel, and Redis 7 where it is installed."""

import asyncio
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from capacity.embedded import (
    LOCKED_WITHIN_SECONDS,
    EmbeddedServer,
    EmbeddedServerError,
    check_store,
    find_binary,
    given_url,
    remove_abandoned,
    start_embedded,
)
from capacity.leases import Held, LeaseBook, Limits, Wanted
from capacity.quantities import Answer, Ask, GiveBack, LeaseConfig, Lost, Quantity, QuantityKind
from capacity.store import CapacityStore, StoreSettings
from core.membership import Member, MemberKind
from core.request import ModelIdentity

PERMITS = Quantity("tenant", QuantityKind.CONCURRENCY)
TOKENS = Quantity("tenant", QuantityKind.RATE)
SHORT = LeaseConfig(term_us=400_000, renew_us=100_000, retry_us=20_000)
QUICK = StoreSettings(backoff_min_s=0.01, backoff_max_s=0.05)


def redis_7() -> Path | None:
    found = shutil.which("redis-server")
    return None if found is None else Path(found)


@pytest.fixture(params=["valkey", "redis"])
def binary(request: pytest.FixtureRequest) -> Path:
    if request.param == "valkey":
        return find_binary()
    found = redis_7()
    if found is None:
        pytest.skip("no redis-server on PATH")
    return found


@pytest.fixture
def server(binary: Path) -> Iterator[EmbeddedServer]:
    started = start_embedded(binary)
    yield started
    started.stop()


@asynccontextmanager
async def store(url: str, holder: str, **options: object) -> AsyncIterator[CapacityStore]:
    opened = CapacityStore(url, holder, random=random.Random(holder), **{"settings": QUICK, **options})  # type: ignore[arg-type]
    try:
        yield opened
    finally:
        await opened.close()


async def eventually(holds: Callable[[], bool], what: str) -> None:
    deadline = asyncio.get_running_loop().time() + 20.0
    while not holds():
        assert asyncio.get_running_loop().time() < deadline, f"never: {what}"
        await asyncio.sleep(0.005)


async def until_it_answers(asked: CapacityStore, ask: Ask) -> Answer:
    await eventually(lambda: asked.lost is None, "the store is back")
    answer = await asked.ask(ask)
    assert isinstance(answer, Answer)
    return answer


async def test_a_cancel_ends_whoever_asks_at_whatever_moment(server: EmbeddedServer) -> None:
    """asyncio.wait_for, through which the client sends, swallows one in some moments up to Python 3.11."""

    async def ask_on(asked: CapacityStore) -> None:
        while not isinstance(await asked.members(), Lost):
            pass

    async with store(server.url, "a") as asked:
        for moments in range(60):
            asking = asyncio.create_task(ask_on(asked))
            for _ in range(moments):
                await asyncio.sleep(0)
            asking.cancel()
            ended, _ = await asyncio.wait([asking], timeout=2)
            asking.cancel()
            assert ended, f"cancelled after {moments} rounds of the loop, it asks on"
            assert asking.cancelled()


async def test_permits_over_all_holders_never_exceed_the_limit(server: EmbeddedServer) -> None:
    async with store(server.url, "a") as a, store(server.url, "b") as b:
        assert await a.ask(Ask(1, PERMITS, 60, 0, 100)) == Answer(60, 40)
        assert await b.ask(Ask(1, PERMITS, 60, 0, 100)) == Answer(40, 0)
        assert await a.ask(Ask(2, PERMITS, 10, 10, 100)) == Answer(10, 50)
        # An older question that arrives late changes nothing.
        assert await a.ask(Ask(1, PERMITS, 60, 0, 100)) == Answer(10, 50)
        assert await b.ask(Ask(2, PERMITS, 100, 40, 100)) == Answer(90, 0)
        assert await b.ask(Ask(3, PERMITS, 0, 0, 100)) == Answer(0, 90)


async def test_an_expired_holder_is_reclaimed(server: EmbeddedServer) -> None:
    async with store(server.url, "a", leases=SHORT) as a, store(server.url, "b", leases=SHORT) as b:
        assert await a.ask(Ask(1, PERMITS, 10, 0, 10)) == Answer(10, 0)
        number, answer = 0, Answer(0, 0)
        deadline = asyncio.get_running_loop().time() + 20
        while answer != Answer(10, 0):
            assert asyncio.get_running_loop().time() < deadline, "never reclaimed"
            number += 1
            found = await b.ask(Ask(number, PERMITS, 10, 0, 10))
            assert isinstance(found, Answer) and found.granted in (0, 10)
            answer = found
            await asyncio.sleep(0.01)


async def test_tokens_come_out_of_one_bucket_and_go_back_into_it(server: EmbeddedServer) -> None:
    async with store(server.url, "a") as a, store(server.url, "b") as b:
        # One a minute: nothing flows in while this runs.
        assert await a.ask(Ask(1, TOKENS, 1, 0, 1)) == Answer(1, 0)
        assert await b.ask(Ask(1, TOKENS, 1, 0, 1)) == Answer(0, 0)
        assert await a.give_back(GiveBack(TOKENS, 5, 1)) is None
        assert await b.ask(Ask(2, TOKENS, 5, 0, 1)) == Answer(1, 0)


async def test_members_are_found_until_they_withdraw_or_expire(server: EmbeddedServer) -> None:
    member = Member(
        MemberKind.DECODE, "d", "127.0.0.1:1", "first", started_us=5, models=(ModelIdentity("m", "r", "a"),)
    )
    later = Member(MemberKind.DECODE, "d", "127.0.0.1:2", "second", started_us=6)
    router = Member(MemberKind.ROUTER, "r", "127.0.0.1:3", "x")
    async with store(server.url, "a") as a, store(server.url, "b") as b:
        assert await b.members() == ()
        assert await a.announce(member, 60_000_000) is True and await a.announce(router, 60_000_000) is True
        assert await b.members() == (member, router)
        assert await b.members(MemberKind.ROUTER) == (router,)
        assert await b.announce(later, 60_000_000) is True
        assert await a.announce(member, 60_000_000) is False
        assert await a.withdraw(member) is False
        assert await a.members(MemberKind.DECODE) == (later,)
        assert await b.withdraw(later) is True and await b.members(MemberKind.DECODE) == ()
        assert await a.announce(member, 20_000) is True
        found: list[object] = [()]
        while found[-1] != (router,):
            found.append(await a.members())
        # A fleet of another name sees none of it.
        async with store(server.url, "c", settings=StoreSettings(fleet="other")) as other:
            assert await other.members() == ()


async def test_a_killed_store_is_lost_at_once_and_found_again_without_its_scripts(
    binary: Path, tmp_path: Path
) -> None:
    changes: list[str] = []
    server = start_embedded(binary, tmp_path)
    async with store(
        server.url,
        "a",
        on_lost=lambda lost: changes.append("lost"),
        on_returned=lambda: changes.append("back"),
    ) as a:
        assert await a.ask(Ask(1, PERMITS, 5, 0, 10)) == Answer(5, 5)
        os.kill(server.pid, signal.SIGKILL)
        server.wait()
        answers = [await a.ask(Ask(number, PERMITS, 5, 5, 10)) for number in range(2, 12)]
        assert all(isinstance(answer, Lost) for answer in answers)
        assert isinstance(await a.members(), Lost) and changes == ["lost"]
        (tmp_path / "socket").unlink()
        again = start_embedded(binary, tmp_path)
        # It has no memory: what was held is confirmed, and nothing is added in the quarantine.
        assert await until_it_answers(a, Ask(20, PERMITS, 9, 5, 10)) == Answer(5, 5, quarantined=True)
        assert changes == ["lost", "back"]
        found = await a.ask(Ask(21, TOKENS, 1000, 0, 1000))
        assert isinstance(found, Answer) and found.granted < 100, "the bucket is not full again"
        async with store(server.url, "new") as new:
            assert await new.ask(Ask(1, PERMITS, 9, 0, 10)) == Answer(0, 5, quarantined=True)
        again.stop()


async def test_a_silent_store_costs_one_bound_and_then_nothing(server: EmbeddedServer) -> None:
    async with store(server.url, "a") as a:
        assert await a.ask(Ask(1, PERMITS, 5, 0, 10)) == Answer(5, 5)
        os.kill(server.pid, signal.SIGSTOP)
        try:
            found = await asyncio.wait_for(a.ask(Ask(2, PERMITS, 5, 5, 10)), timeout=10)
            assert isinstance(found, Lost) and "Timeout" in found.reason
            # No call reaches the network now: a thousand of them fit into one call's bound.
            async with asyncio.timeout(QUICK.call_timeout_s * 10):
                for number in range(1000):
                    assert isinstance(await a.ask(Ask(number, PERMITS, 5, 5, 10)), Lost)
        finally:
            os.kill(server.pid, signal.SIGCONT)
        answer = await until_it_answers(a, Ask(5000, PERMITS, 6, 5, 10))
        assert answer == Answer(6, 4), "its memory is whole: no quarantine"


class Router:
    """A LeaseBook, its store, and requests that acquire as a router would let them."""

    def __init__(self, opened: CapacityStore, routers: int) -> None:
        self.book = LeaseBook(SHORT, routers)
        self.store = opened

    def now_us(self) -> int:
        return int(asyncio.get_running_loop().time() * 1e6)

    async def perform(self, asks: tuple[Ask, ...]) -> None:
        for ask in asks:
            answer = await self.store.ask(ask)
            if isinstance(answer, Lost):
                self.book.store_lost(self.now_us())
            else:
                self.book.answered(ask, answer, self.now_us())

    async def request(self, name: str, limits: Limits, highest: list[int], fleet: "list[Router]") -> bool:
        """Acquires, works, releases. Whether it was admitted in the end."""
        for _ in range(1000):
            answer = self.book.acquire("tenant", name, limits, 1, self.now_us())
            if isinstance(answer, Held):
                highest[0] = max(highest[0], sum(router.book.in_use("tenant") for router in fleet))
                await asyncio.sleep(0.001)
                return self.book.release(name, 1, self.now_us())
            if isinstance(answer, Wanted) and answer.asks:
                await self.perform(answer.asks)
            else:
                await asyncio.sleep(0.005)
        return False

    async def renew(self) -> None:
        while True:
            actions = self.book.tick(self.now_us())
            await self.perform(tuple(action for action in actions if isinstance(action, Ask)))
            await asyncio.sleep(0.02)


async def test_a_thousand_requests_on_eight_routers_never_exceed_the_limit(server: EmbeddedServer) -> None:
    limits, highest = Limits(concurrency=20), [0]
    stores = [
        CapacityStore(
            server.url,
            f"r{n}",
            random=random.Random(n),
            settings=StoreSettings(call_timeout_s=10),
            leases=SHORT,
        )
        for n in range(8)
    ]
    fleet = [Router(opened, 8) for opened in stores]
    renewals = [asyncio.ensure_future(router.renew()) for router in fleet]
    try:
        admitted = await asyncio.gather(
            *(fleet[n % 8].request(f"q{n}", limits, highest, fleet) for n in range(1000))
        )
        assert all(admitted)
        assert 0 < highest[0] <= 20
        assert [router.book.in_use("tenant") for router in fleet] == [0] * 8
    finally:
        for renewal in renewals:
            renewal.cancel()
        await asyncio.gather(*renewals, return_exceptions=True)
        for opened in stores:
            await opened.close()


def test_a_killed_launcher_leaves_no_server() -> None:
    program = (
        "import sys, time; from capacity.embedded import start_embedded\n"
        "print(start_embedded().pid, flush=True); time.sleep(600)"
    )
    launcher = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]
    )
    assert launcher.stdout is not None
    pid = int(launcher.stdout.readline())
    handle = os.pidfd_open(pid)
    launcher.kill()
    launcher.communicate()
    ended = selected(handle)
    os.close(handle)
    assert ended, "the server outlived its launcher"


def selected(handle: int) -> bool:
    """Whether the process of this pidfd ended within the deadline."""
    return bool(select.select([handle], [], [], 20)[0])


def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(EmbeddedServerError, match="did not start"):
        start_embedded(Path(shutil.which("false") or "/bin/false"), tmp_path)


def test_a_given_url_comes_first() -> None:
    assert given_url({"REDIS_URL": "redis://elsewhere:6379"}) == "redis://elsewhere:6379"
    assert given_url({"REDIS_URL": ""}) is None and given_url({}) is None


def aged(folder: Path) -> Path:
    """As if made before anyone could still be about to own it."""
    old = folder.stat().st_mtime - 2 * LOCKED_WITHIN_SECONDS
    os.utime(folder, (old, old))
    return folder


def test_only_what_nobody_owns_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    dead, fresh, other = (tmp_path / name for name in ("baton-store-b", "baton-store-c", "x"))
    for folder in (dead, fresh, other):
        folder.mkdir()
    (dead / "owner").write_text("")
    server = start_embedded()
    owned = Path(server.url.removeprefix("unix://")).parent
    try:
        for folder in (owned, dead, other):
            aged(folder)
        remove_abandoned(tmp_path)
        assert [folder.exists() for folder in (owned, dead, fresh, other)] == [True, False, True, True]
        os.kill(server.pid, signal.SIGKILL)
        server.wait()
        aged(owned)
        remove_abandoned(tmp_path)
        assert owned.exists(), "its owner lives, whatever became of the server"
    finally:
        server.stop()
    assert not owned.exists()


def test_a_given_store_that_cannot_be_asked_is_one_line() -> None:
    for url in ("nonsense", "redis://127.0.0.1:1"):
        with pytest.raises(EmbeddedServerError, match="redis_url: "):
            check_store(url)
