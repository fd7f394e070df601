"""Where cancels go."""

import asyncio

import pytest

from core.outcomes import Outcome
from rpc.channels import Channels
from services.gateway.cancels import Cancels
from services.gateway.request_names import RequestNames, made_id


class Peers:
    """gw-c has begun anew since it was last heard of, and gw-d has come; both may still be asked for."""

    def __init__(self) -> None:
        self.heard = 0

    def peers(self) -> dict[str, str]:
        old = {"gw-b": "b:1", "gw-c": "c:0"}
        return {**old, "gw-c": "c:1", "gw-d": "d:1"} if self.heard else old

    async def peers_now(self) -> dict[str, str]:
        self.heard += 1
        return self.peers()


GONE = ("c:0",)


class Here(Cancels):
    """A gateway whose peers are written down instead of asked."""

    def __init__(self, names: RequestNames, found_at: str = "") -> None:
        self.cancelled: list[str] = []
        self.asked: list[str] = []
        self._found_at = found_at
        self.peers = Peers()
        super().__init__("gw-a", names, self._note, self.peers, Channels())

    def _note(self, request: str, outcome: Outcome, message: str) -> None:
        self.cancelled.append(request)

    async def _forward(self, address: str, tenant: str, name: str) -> bool | None:
        self.asked.append(address)
        return None if address in GONE else address == self._found_at


def cancel(here: Here, name: str) -> bool:
    return asyncio.run(here.cancel("tenant", name))


def test_a_name_of_the_clients_own_is_cancelled_wherever_it_lives() -> None:
    """Two gateways may each have a live request of that name: one cancel ends both."""
    names = RequestNames()
    names.claim("tenant", ("mine",), ("r1",))
    here = Here(names)
    assert cancel(here, "mine")
    assert here.cancelled == ["r1"] and here.asked == ["b:1", "c:1", "d:1"]
    assert not cancel(Here(RequestNames()), "mine")
    assert cancel(Here(RequestNames(), found_at="c:1"), "mine")


@pytest.mark.parametrize(
    ("owner", "asked", "heard"),
    [
        ("gw-a", [], 0),
        ("gw-b", ["b:1"], 0),
        ("gw-c", ["c:0", "c:1"], 1),
        ("gw-d", ["d:1"], 1),
        ("gone", [], 1),
    ],
)
def test_an_id_of_ours_is_asked_of_its_owner_alone(owner: str, asked: list[str], heard: int) -> None:
    """Whether it is live there or has ended: late cancels are no news to the others, nor to the store."""
    name = made_id("gen-", owner, "1")
    ended = Here(RequestNames(), found_at="elsewhere")
    assert not cancel(ended, name) and (ended.asked, ended.peers.heard) == (asked, heard)
    if owner == "gone":
        return
    names = RequestNames()
    if owner == "gw-a":
        names.claim("tenant", (name,), ("r1",))
    here = Here(names, found_at=asked[-1] if asked else "")
    assert cancel(here, name) and (here.asked, here.peers.heard) == (asked, heard)


def test_all_gateways_are_asked_at_once() -> None:
    class Together(Here):
        """Answers once all peers are asked."""

        all: asyncio.Barrier

        async def _forward(self, address: str, tenant: str, name: str) -> bool:
            await self.all.wait()
            return False

    async def run() -> bool:
        here = Together(RequestNames())
        here.all = asyncio.Barrier(3)
        async with asyncio.timeout(10):
            return await here.cancel("tenant", "mine")

    assert not asyncio.run(run())
