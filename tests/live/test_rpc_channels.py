"""What becomes of a call whose channel is closed while it waits."""

import asyncio

import pytest

from proto import worker_pb2
from proto.worker_pb2_grpc import WorkerStub
from rpc.channels import Channels, answered


async def silent(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A peer that takes the connection and says nothing."""
    await asyncio.get_running_loop().create_future()


async def asked_of_nobody(channels: Channels) -> tuple[asyncio.Server, str, "asyncio.Task[object]"]:
    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    call = WorkerStub(channels.get(address)).GetState(worker_pb2.GetWorkerStateRequest(), timeout=60)
    task = asyncio.create_task(answered(call))
    await asyncio.sleep(0)
    return server, address, task


async def test_who_asks_gets_nothing_where_the_peer_is_given_up_meanwhile() -> None:
    channels = Channels()
    server, address, task = await asked_of_nobody(channels)
    await channels.drop(address)
    assert await asyncio.wait_for(task, 5) is None
    server.close()


async def test_who_is_cancelled_while_asking_is_cancelled() -> None:
    channels = Channels()
    server, _, task = await asked_of_nobody(channels)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await channels.close()
    server.close()
