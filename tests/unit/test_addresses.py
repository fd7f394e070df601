"""Where others reach a process."""

import asyncio
import io
import json
from typing import Any

import pytest

from core.addresses import advertise_problem, advertised, host_of, is_out_of_reach
from core.membership import Member, MemberKind
from router.config import RouterConfig
from rpc.logs import Log, LogSettings
from rpc.reach import warn_of_loopback
from services.gateway.config import GatewayConfig, ModelConfig
from worker.config import WorkerConfig
from worker.registration import Registration


@pytest.mark.parametrize(
    ("listening", "advertise_host", "announced"),
    [
        ("127.0.0.1:7", "", "127.0.0.1:7"),
        ("0.0.0.0:7", "10.0.0.5", "10.0.0.5:7"),
        ("0.0.0.0:7", "decode-0.decode.svc", "decode-0.decode.svc:7"),
        ("[::]:7", "fd00::5", "[fd00::5]:7"),
        ("[::]:7", "[fd00::5]", "[fd00::5]:7"),
    ],
)
def test_the_port_is_where_it_listens_and_the_host_what_it_was_told(
    listening: str, advertise_host: str, announced: str
) -> None:
    assert advertised(listening, advertise_host) == announced
    assert host_of(announced) == (advertise_host or "127.0.0.1").strip("[]")


@pytest.mark.parametrize(
    ("listen_host", "advertise_host", "problem"),
    [
        ("127.0.0.1", "", None),
        ("0.0.0.0", "10.0.0.5", None),
        ("0.0.0.0", "", "must be set where the host to listen on is '0.0.0.0'"),
        ("[::]", "", "must be set where the host to listen on is '[::]'"),
        ("10.0.0.5", "0.0.0.0", "0.0.0.0 is where to listen"),
        ("127.0.0.3", "127.0.0.2", None),
        ("localhost", "127.0.0.1", None),
        ("10.0.0.5", "decode-0.decode.svc", None),
        ("127.0.0.1", "10.0.0.5", "nobody reaches 10.0.0.5 where the host to listen on is '127.0.0.1'"),
        ("[::1]", "fd00::5", "nobody reaches fd00::5 where the host to listen on is '[::1]'"),
        ("localhost", "decode-0", "nobody reaches decode-0 where the host to listen on is 'localhost'"),
        ("10.0.0.5", "http://here", "'http://here' is not the name or address of a host"),
    ],
)
def test_what_nobody_could_reach_is_refused(
    listen_host: str, advertise_host: str, problem: str | None
) -> None:
    found = advertise_problem(listen_host, advertise_host)
    assert found is None if problem is None else found is not None and problem in found


def gateway(**told: Any) -> GatewayConfig:
    return GatewayConfig(id="g", models=(ModelConfig(name="m", folder="", max_positions=2),), **told)


def test_every_service_says_so_at_its_start() -> None:
    for make in (
        lambda: WorkerConfig(address="0.0.0.0:0"),
        lambda: RouterConfig(id="r", address="0.0.0.0:0"),
        lambda: gateway(peer_host="0.0.0.0"),
    ):
        with pytest.raises(ValueError, match="advertise_host: must be set"):
            make()
    for make in (
        lambda: WorkerConfig(advertise_host="10.0.0.5"),
        lambda: RouterConfig(id="r", advertise_host="10.0.0.5"),
        lambda: gateway(advertise_host="10.0.0.5"),
    ):
        with pytest.raises(ValueError, match=r"advertise_host: nobody reaches 10\.0\.0\.5 where"):
            make()
    with pytest.raises(ValueError, match="address must be host:port, is 'here'"):
        WorkerConfig(address="here")
    WorkerConfig(address="0.0.0.0:0", advertise_host="10.0.0.5")
    RouterConfig(id="r", address="0.0.0.0:0", advertise_host="10.0.0.5")
    gateway(host="0.0.0.0", peer_host="0.0.0.0", advertise_host="10.0.0.5")


@pytest.mark.parametrize(
    ("address", "store_url", "out_of_reach"),
    [
        ("127.0.0.1:7", "redis://10.0.0.1:6379", True),
        ("[::1]:7", "rediss://:secret@store/0", True),
        ("10.0.0.5:7", "redis://10.0.0.1:6379", False),
        ("127.0.0.1:7", "redis://127.0.0.1:6379", False),
        ("127.0.0.1:7", "redis://[::1]:6379", False),
        ("127.0.0.1:7", "redis://localhost", False),
        ("127.0.0.1:7", "redis://", False),
        ("127.0.0.1:7", "unix:///run/store", False),
    ],
)
def test_loopback_is_out_of_reach_where_the_store_is_elsewhere(
    address: str, store_url: str, out_of_reach: bool
) -> None:
    assert is_out_of_reach(address, store_url) is out_of_reach
    out = io.StringIO()
    warn_of_loopback(Log(LogSettings(), out=out), address, store_url)
    lines = out.getvalue().splitlines()
    assert len(lines) == out_of_reach and not any("secret" in line for line in lines)


ELSEWHERE = "redis://0.0.0.0:1"
"""By its name not this machine's, and refuses at once."""


class NoRouters:
    addresses: tuple[str, ...] = ()

    def add(self, address: str) -> None: ...
    async def remove(self, address: str) -> None: ...


def test_a_worker_that_announces_loopback_elsewhere_says_so_once() -> None:
    out = io.StringIO()

    async def run() -> None:
        member = Member(MemberKind.DECODE, "d", "127.0.0.1:7", "1")
        config = WorkerConfig(redis_url=ELSEWHERE)
        registration = Registration(config, member, NoRouters(), Log(LogSettings(), out=out))
        await registration.start()
        await registration.close()

    asyncio.run(run())
    said = [json.loads(line) for line in out.getvalue().splitlines()]
    (warning,) = (line for line in said if line["event"] == "loopback_announced")
    assert warning["level"] == "warning" and warning["address"] == "127.0.0.1:7"
    assert "set advertise_host" in warning["reason"]
