"""Which address of this machine a worker's lanes bind, given the host that others know it by."""

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable

from core.addresses import is_loopback
from rpc.errors import ServiceError
from rpc.logs import Log

WAIT_S = 30.0
"""A Kubernetes headless service publishes a pod's name some time after its start."""
RETRY_S = 0.5


async def look_up(host: str) -> list[str]:
    """Its addresses as literals, the best first. Raises OSError where there are none."""
    found = await asyncio.get_running_loop().getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]


async def lane_address(
    host: str,
    bind: Callable[[str], None],
    log: Log,
    *,
    field: str = "advertise_host",
    look_up: Callable[[str], Awaitable[list[str]]] = look_up,
    wait_s: float = WAIT_S,
    retry_s: float = RETRY_S,
) -> str:
    """The first literal of the host that `bind` takes, which raises OSError for what is not this machine's.

    A name may come to mean this machine within `wait_s`. Raises ServiceError naming the field.
    """
    loop = asyncio.get_running_loop()
    end_s = loop.time() + (0 if _is_literal(host) else wait_s)
    has_waited = False
    while True:
        try:
            async with asyncio.timeout_at(max(end_s, loop.time() + retry_s)):
                found = [host] if _is_literal(host) else await look_up(host)
            return _bound(host, found, bind, field)
        except OSError as error:
            reason = error.strerror or "no answer"
        if loop.time() + retry_s > end_s:
            raise ServiceError(f"{field}: cannot bind {host}: {reason}")
        if not has_waited:
            log.warning("lane_host_unknown", host=host, reason=reason, wait_s=wait_s)
            has_waited = True
        await asyncio.sleep(retry_s)


def _bound(host: str, found: list[str], bind: Callable[[str], None], field: str) -> str:
    if not is_loopback(host):
        beyond = [address for address in found if not is_loopback(address)]
        if found and not beyond:
            raise ServiceError(f"{field}: {host} is {found[0]} on this machine, which no other reaches")
        found = beyond
    failure = OSError(0, "it has no address")
    for address in found:
        try:
            bind(address)
        except OSError as error:
            failure = error
        else:
            return address
    raise failure


def _is_literal(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
