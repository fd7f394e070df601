"""Where others reach a process, given where it listens."""

import ipaddress
from urllib.parse import urlsplit

ANY = ("0.0.0.0", "::", "[::]", "")
"""Hosts to listen on that nobody can be told."""


def advertised(listening: str, advertise_host: str) -> str:
    """host:port to announce; an empty `advertise_host` means where it listens."""
    if not advertise_host:
        return listening
    port = listening.rpartition(":")[2]
    bare = advertise_host.strip("[]")
    return f"[{bare}]:{port}" if ":" in bare else f"{bare}:{port}"


def host_of(address: str) -> str:
    """The host of host:port, an IPv6 one without its brackets."""
    return address.rpartition(":")[0].strip("[]")


def is_loopback(host: str) -> bool:
    """Whether it says of itself that it means this machine alone; what a name resolves to is not asked."""
    bare = host.strip("[]")
    try:
        return ipaddress.ip_address(bare).is_loopback
    except ValueError:
        return bare.lower() == "localhost"


def is_out_of_reach(address: str, store_url: str) -> bool:
    """Whether a host:port on loopback is announced in a store that is not on this machine."""
    store = urlsplit(store_url)
    is_local = store.scheme == "unix" or is_loopback(store.hostname or "localhost")
    return is_loopback(host_of(address)) and not is_local


def advertise_problem(listen_host: str, advertise_host: str) -> str | None:
    """What in these two alone keeps others from reaching it; None: nothing, yet they may be mistaken."""
    if advertise_host in ANY[:3]:
        return f"advertise_host: {advertise_host} is where to listen, not where to be reached"
    if any(letter.isspace() or letter in "/@" for letter in advertise_host):
        return f"advertise_host: {advertise_host!r} is not the name or address of a host"
    if not advertise_host and listen_host in ANY:
        return f"advertise_host: must be set where the host to listen on is {listen_host!r}"
    if advertise_host and is_loopback(listen_host) and not is_loopback(advertise_host):
        return (
            f"advertise_host: nobody reaches {advertise_host} where the host to listen on is {listen_host!r}"
        )
    return None
