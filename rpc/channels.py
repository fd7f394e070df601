"""Which connection leads to a peer: one channel per address, closed when nobody needs it."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

import grpc.aio

from rpc.settings import ConnectionSettings, channel_options


def channel(address: str, settings: ConnectionSettings | None = None) -> grpc.aio.Channel:
    """A new channel to host:port; connects when first used. The caller closes it."""
    return grpc.aio.insecure_channel(address, options=channel_options(settings or ConnectionSettings()))


Answer = TypeVar("Answer")


async def answered(call: Awaitable[Answer]) -> Answer | None:
    """What a peer answers; None where it fails to, or its channel is closed meanwhile."""
    try:
        return await call
    except grpc.aio.AioRpcError:
        return None
    except asyncio.CancelledError:
        # Closing a channel cancels its calls, but nobody has cancelled the task that waits for one.
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        return None


class Channels:
    """The channels of one process by address."""

    def __init__(self, settings: ConnectionSettings | None = None) -> None:
        self._settings = settings or ConnectionSettings()
        self._channels: dict[str, grpc.aio.Channel] = {}

    def get(self, address: str) -> grpc.aio.Channel:
        if address not in self._channels:
            self._channels[address] = channel(address, self._settings)
        return self._channels[address]

    async def drop(self, address: str) -> None:
        """Closes one channel; its calls end as cancelled."""
        found = self._channels.pop(address, None)
        if found is not None:
            await found.close()

    async def close(self) -> None:
        channels, self._channels = list(self._channels.values()), {}
        await asyncio.gather(*(found.close() for found in channels))
