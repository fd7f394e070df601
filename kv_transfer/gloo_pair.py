"""Bytes between two processes over torch's gloo, outside any global group."""

import ctypes
import socket
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed

Buffer = bytes | bytearray | memoryview
_INTERRUPT_TAG = 1
_distributed: Any = torch.distributed
"""Its C++ classes carry no usable types."""


def listen_on(hostname: str) -> socket.socket:
    """A listening socket on a free port of one address. Raises OSError where that is not this machine's."""
    family, kind, _, _, address = socket.getaddrinfo(hostname, 0, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind)
    try:
        listener.bind(address)
        listener.listen(128)
    except OSError:
        listener.close()
        raise
    return listener


class RendezvousStore:
    """Where pairs find each other; hosted by a receiver, on a free port of one address.

    A bare TCPStore listens on every interface.
    """

    def __init__(self, hostname: str) -> None:
        """Raises OSError where the address is not this machine's."""
        with listen_on(hostname) as listener:
            self.port: int = listener.getsockname()[1]
            wait = timedelta(seconds=5)
            self._store = _distributed.TCPStore(
                hostname,
                self.port,
                None,
                True,
                wait,
                wait_for_workers=False,
                master_listen_fd=listener.detach(),
            )


class GlooPair:
    """A two-rank group of its own. Operations block the calling thread, with the GIL released.

    Any error, a time-out included, is final: gloo closes the pair, and only a new one (another prefix) helps.
    A killed peer raises RuntimeError within milliseconds, a silent one at the time-out.
    """

    def __init__(
        self,
        store_host: str,
        store_port: int,
        prefix: str,
        rank: int,
        *,
        hostname: str,
        build_timeout_s: float,
        timeout_s: float,
    ) -> None:
        """Blocks until the other rank is there. `hostname` is the address this side binds.

        Raises RuntimeError (torch's DistError) when the store or the peer does not answer in time.
        """
        gloo = _distributed.ProcessGroupGloo
        wait = timedelta(seconds=build_timeout_s)
        store = _distributed.TCPStore(store_host, store_port, None, False, wait, wait_for_workers=False)
        options = gloo._Options()
        options._timeout = wait
        options._devices = [gloo.create_device(hostname=hostname)]
        options._threads = 1
        self._group: Any = gloo(_distributed.PrefixStore(prefix, store), rank, 2, options)
        self._peer = 1 - rank
        self._timeout = timedelta(seconds=timeout_s)

    def send(self, payload: Buffer) -> None:
        self._group.send([_tensor_over(payload)], self._peer, 0).wait(self._timeout)

    def receive(self, into: torch.Tensor) -> None:
        """Fills `into`, [bytes] of uint8; the peer must send exactly so many."""
        self._group.recv([into], self._peer, 0).wait(self._timeout)

    def interrupt(self) -> None:
        """From another thread: ends a blocked send or receive with an error.

        gloo closes the pair when any operation on it times out; its own abort() and shutdown() leave a
        waiting thread waiting (torch 2.13).
        """
        try:
            nothing = torch.empty(1, dtype=torch.uint8)
            self._group.recv([nothing], self._peer, _INTERRUPT_TAG).wait(timedelta(milliseconds=1))
        except RuntimeError:
            return  # What was wanted, or the pair was closed already.


def _tensor_over(payload: Buffer) -> torch.Tensor:
    """A tensor on the payload's own memory, [bytes] of uint8, valid while the caller holds the payload.

    torch warns of read-only buffers, and gloo only reads what it sends: hence by address.
    """
    array = np.frombuffer(payload, dtype=np.uint8)
    memory = (ctypes.c_ubyte * array.nbytes).from_address(array.ctypes.data)
    return torch.frombuffer(memory, dtype=torch.uint8)
