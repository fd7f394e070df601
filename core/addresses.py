"""Where others reach a process, given where it listens."""

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


def advertise_problem(listen_host: str, advertise_host: str) -> str | None:
    """Why others could not reach it by what it says; None: they could."""
    if advertise_host in ANY[:3]:
        return f"advertise_host: {advertise_host} is where to listen, not where to be reached"
    if any(letter.isspace() or letter in "/@" for letter in advertise_host):
        return f"advertise_host: {advertise_host!r} is not the name or address of a host"
    if not advertise_host and listen_host in ANY:
        return f"advertise_host: must be set where the host to listen on is {listen_host!r}"
    return None
