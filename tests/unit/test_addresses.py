"""Where others reach a process."""

from typing import Any

import pytest

from core.addresses import advertise_problem, advertised, host_of
from router.config import RouterConfig
from services.gateway.config import GatewayConfig, ModelConfig
from worker.config import WorkerConfig


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
    with pytest.raises(ValueError, match="address must be host:port, is 'here'"):
        WorkerConfig(address="here")
    WorkerConfig(address="0.0.0.0:0", advertise_host="10.0.0.5")
    RouterConfig(id="r", address="0.0.0.0:0", advertise_host="10.0.0.5")
    gateway(host="0.0.0.0", peer_host="0.0.0.0", advertise_host="10.0.0.5")
