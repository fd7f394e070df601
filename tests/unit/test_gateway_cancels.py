"""Where cancels go."""

import asyncio

import pytest

from core.outcomes import Outcome
from rpc.channels import Channels
from services.gateway.cancels import Cancels
from services.gateway.request_names import RequestNames, made_id


class Peers:
    def peers(self) -> dict[str, str]:
        return {"gw-b": "b:1", "gw-c": "c:1"}


class Here(Cancels):
    """A gateway whose peers are written down instead of asked."""

    def __init__(self, names: RequestNames, found_at: str = "") -> None:
        self.cancelled: list[str] = []
        self.asked: list[str] = []
        self._found_at = found_at
        super().__init__("gw-a", names, self._note, Peers(), Channels())

    def _note(self, request: str, outcome: Outcome, message: str) -> None:
        self.cancelled.append(request)

    async def _forward(self, address: str, tenant: str, name: str) -> bool:
        self.asked.append(address)
        return address == self._found_at


def cancel(here: Here, name: str) -> bool:
    return asyncio.run(here.cancel("tenant", name))


def test_a_name_of_the_clients_own_is_cancelled_wherever_it_lives() -> None:
    """Two gateways may each have a live request of that name: one cancel ends both."""
    names = RequestNames()
    names.claim("tenant", ("mine",), ("r1",))
    here = Here(names)
    assert cancel(here, "mine")
    assert here.cancelled == ["r1"] and here.asked == ["b:1", "c:1"]
    assert not cancel(Here(RequestNames()), "mine")
    assert cancel(Here(RequestNames(), found_at="c:1"), "mine")


@pytest.mark.parametrize("owner", ["gw-a", "gw-b", "gone"])
def test_a_name_that_only_looks_like_ours_is_found_wherever_it_lives(owner: str) -> None:
    name = made_id("cmpl-", owner, "1")
    assert cancel(Here(RequestNames(), found_at="c:1"), name)
    nowhere = Here(RequestNames())
    assert not cancel(nowhere, name) and nowhere.asked == ["b:1", "c:1"]
    names = RequestNames()
    names.claim("tenant", (name,), ("r1",))
    assert cancel(Here(names), name)


@pytest.mark.parametrize(("owner", "asked"), [("gw-a", []), ("gw-b", ["b:1"])])
def test_an_id_of_ours_is_asked_of_its_owner_alone(owner: str, asked: list[str]) -> None:
    names, name = RequestNames(), made_id("cmpl-", owner, "1")
    if owner == "gw-a":
        names.claim("tenant", (name,), ("r1",))
    here = Here(names, found_at="b:1")
    assert cancel(here, name)
    assert here.asked == asked
