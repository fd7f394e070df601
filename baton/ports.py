"""Which ports the gateways of one machine share."""

import socket


class PortBusy(Exception):
    """One clear line naming the port."""


class SharedPort:
    """A port held for several processes that each listen on it with SO_REUSEPORT.

    The holder is bound but never listens, so it gets no connection; it keeps the port ours while a gateway
    restarts, and it turns port 0 into a free one before anyone must know it.
    """

    def __init__(self, host: str, port: int) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._holder = socket.socket(family, socket.SOCK_STREAM)
        if port:
            _refuse_if_busy(family, host, port)
        self._holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            self._holder.bind((host, port))
        except OSError as error:
            raise PortBusy(f"port {port} on {host}: {error.strerror}") from None
        self.port: int = self._holder.getsockname()[1]

    def close(self) -> None:
        self._holder.close()


def _refuse_if_busy(family: int, host: str, port: int) -> None:
    """Binding without SO_REUSEPORT fails even where another fleet shares the port with it."""
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise PortBusy(f"port {port} on {host} is busy: {error.strerror}") from None
