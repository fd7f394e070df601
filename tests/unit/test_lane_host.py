"""Which address a worker's lanes bind: resolved once, and never loopback by mistake."""

import asyncio
import errno
import io
import ipaddress
import socket

import pytest

from rpc.errors import ServiceError
from rpc.logs import Log, LogSettings
from tests.unit.test_worker_shell import made_shell
from worker.lane_host import lane_address

OWN = ("10.0.0.5", "127.0.0.1", "127.0.1.1", "fd00::5")


class Machine:
    """Its addresses, and what its resolver says, one answer after another; the last one stays."""

    def __init__(self, *answers: list[str] | OSError) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []
        self.said = io.StringIO()

    def bind(self, address: str) -> None:
        if address not in OWN:
            raise OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")

    async def look_up(self, host: str) -> list[str]:
        self.asked.append(host)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, OSError):
            raise answer
        return answer

    def lane_address(self, host: str, wait_s: float = 10.0) -> str:
        log = Log(LogSettings(), out=self.said)
        return asyncio.run(
            lane_address(host, self.bind, log, look_up=self.look_up, wait_s=wait_s, retry_s=0.001)
        )


UNKNOWN = socket.gaierror(socket.EAI_NONAME, "Name or service not known")


@pytest.mark.parametrize(
    ("found", "address"),
    [
        (["10.0.0.5"], "10.0.0.5"),
        (["fd00::5", "10.0.0.5"], "fd00::5"),
        (["127.0.1.1", "10.0.0.5"], "10.0.0.5"),
        (["10.0.0.9", "10.0.0.5"], "10.0.0.5"),
    ],
)
def test_a_name_is_the_first_of_its_addresses_that_others_reach_here(found: list[str], address: str) -> None:
    assert Machine(found).lane_address("decode-0") == address


def test_a_name_that_is_loopback_on_this_machine_is_refused_at_once() -> None:
    """Debian writes the own host name so into /etc/hosts."""
    machine = Machine(["127.0.1.1"])
    with pytest.raises(ServiceError) as refused:
        machine.lane_address("decode-0")
    assert str(refused.value) == (
        "advertise_host: decode-0 is 127.0.1.1 on this machine, which no other reaches"
    )
    assert machine.asked == ["decode-0"] and not machine.said.getvalue()


def test_loopback_by_its_own_name_is_meant() -> None:
    assert Machine(["127.0.0.1"]).lane_address("localhost") == "127.0.0.1"


def test_a_name_that_is_published_later_is_waited_for() -> None:
    machine = Machine(UNKNOWN, UNKNOWN, ["10.0.0.9"], ["10.0.0.5"])
    assert machine.lane_address("decode-0.decode") == "10.0.0.5"
    assert len(machine.asked) == 4
    assert machine.said.getvalue().count("lane_host_unknown") == 1


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (UNKNOWN, "Name or service not known"),
        (["10.0.0.9"], "Cannot assign requested address"),
        ([], "it has no address"),
    ],
)
def test_a_name_that_never_means_this_machine_is_one_clear_line(
    answer: list[str] | OSError, reason: str
) -> None:
    with pytest.raises(ServiceError, match=f"^advertise_host: cannot bind decode-0: {reason}$"):
        Machine(answer).lane_address("decode-0", wait_s=0.01)


def test_a_resolver_that_never_answers_is_one_clear_line() -> None:
    class Silent(Machine):
        async def look_up(self, host: str) -> list[str]:
            return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]

    with pytest.raises(ServiceError, match=r"^advertise_host: cannot bind decode-0: no answer$"):
        Silent().lane_address("decode-0", wait_s=0.01)


def test_a_literal_is_not_looked_up_and_not_waited_for() -> None:
    machine = Machine(UNKNOWN)
    assert machine.lane_address("127.0.0.1") == "127.0.0.1"
    with pytest.raises(ServiceError, match=r"cannot bind 10\.0\.0\.9: Cannot assign requested address"):
        machine.lane_address("10.0.0.9")
    assert machine.asked == []


def test_a_workers_lanes_bind_the_literal_of_its_name() -> None:
    async def run() -> str:
        shell, _ = made_shell(advertise_host="localhost")
        try:
            await shell.bind_lanes()
        finally:
            shell.steps.close()
        return shell.lanes.hostname

    assert ipaddress.ip_address(asyncio.run(run())).is_loopback


def test_a_worker_names_the_field_that_is_wrong() -> None:
    async def run(**told: str) -> None:
        shell, _ = made_shell(**told)
        try:
            await shell.bind_lanes()
        finally:
            shell.steps.close()

    # For documentation: no machine's (RFC 5737).
    with pytest.raises(ServiceError, match=r"^address: cannot bind 192\.0\.2\.1: "):
        asyncio.run(run(address="192.0.2.1:0"))
    with pytest.raises(ServiceError, match=r"^advertise_host: cannot bind 192\.0\.2\.1: "):
        asyncio.run(run(address="0.0.0.0:0", advertise_host="192.0.2.1"))
