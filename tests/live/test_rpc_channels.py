"""What becomes of a call whose channel is closed while it waits."""

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest

from proto import worker_pb2
from proto.worker_pb2_grpc import WorkerStub
from rpc.channels import Channels, answered


@pytest.fixture
async def channels() -> AsyncIterator[Channels]:
    made = Channels()
    yield made
    await made.close()


def asked(channels: Channels, silent: socket.socket) -> "asyncio.Task[object]":
    """A question to a peer that takes the connection and says nothing."""
    address = f"127.0.0.1:{silent.getsockname()[1]}"
    call = WorkerStub(channels.get(address)).GetState(worker_pb2.GetWorkerStateRequest(), timeout=60)
    return asyncio.create_task(answered(call))


async def test_who_asks_gets_nothing_where_the_peer_is_given_up_meanwhile(channels: Channels) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        task = asked(channels, silent)
        await asyncio.sleep(0)
        await channels.drop(f"127.0.0.1:{silent.getsockname()[1]}")
        assert await asyncio.wait_for(task, 5) is None


async def test_who_is_cancelled_while_asking_is_cancelled(channels: Channels) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        task = asked(channels, silent)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
