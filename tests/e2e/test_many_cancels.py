"""20,000 streams that are cancelled, one after another: nothing stays behind, in no process."""

import asyncio

import grpc.aio
import psutil
import pytest

from proto import inference_pb2 as api
from proto import inference_pb2_grpc
from tests.e2e.live_fleet import MODEL, LiveFleet, eventually, running

WARM, STREAMS, AT_ONCE = 8_000, 12_000, 64
"""Warming up fills what is bounded: the ended transfers and answers that are remembered, 4,096 and 8,192."""
GROWTH_BYTES_MAX = 8 << 20
"""Of one process over STREAMS streams; a leak of one small object per stream (500 bytes) is over it."""


async def cancel_streams(address: str, count: int) -> None:
    """Each opens a stream of its own, starts a request, hears that it is accepted, and cancels the call."""
    begin = api.StartGeneration(
        model=api.ModelIdentity(name=MODEL),
        tokens=api.TokenIds(ids=range(10, 40)),
        sampling=api.SamplingOptions(max_tokens=1_000, ignore_eos=True),
    )
    left = iter(range(count))

    async def one_after_another(stub: inference_pb2_grpc.InferenceStub) -> None:
        for _ in left:
            call = stub.Generate()
            try:
                await call.write(api.GenerateRequest(start=begin))
                response = await call.read()
                assert response.WhichOneof("message") == "accepted", response
            finally:
                call.cancel()

    async with grpc.aio.insecure_channel(address.removeprefix("grpc://")) as channel:
        stub = inference_pb2_grpc.InferenceStub(channel)
        await asyncio.gather(*(one_after_another(stub) for _ in range(AT_ONCE)))


def resident(fleet: LiveFleet) -> dict[str, int]:
    """Bytes of every process of the fleet by its role."""
    children = psutil.Process(fleet.process.pid).children()
    return {" ".join(child.cmdline()[-1:]) + f"-{child.pid}": child.memory_info().rss for child in children}


@pytest.mark.parametrize("streams", [STREAMS, pytest.param(1_000_000, marks=pytest.mark.soak)])
def test_cancelled_streams_leave_nothing(streams: int) -> None:
    with running("--no-sample", "--timed") as fleet:
        asyncio.run(cancel_streams(fleet.grpc, WARM))
        eventually(fleet.nothing_held, 5, "nothing is held after warming up")
        before = resident(fleet)
        asyncio.run(cancel_streams(fleet.grpc, streams))
        eventually(fleet.nothing_held, 5, "nothing is held")
        after = resident(fleet)
        grown = {name: after[name] - before[name] for name in before}
        allowed = max(GROWTH_BYTES_MAX, streams * 50)
        assert max(grown.values()) < allowed, grown
