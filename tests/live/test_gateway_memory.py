"""What a gateway process's own objects hold of cancelled streams: as much after many as after few."""

from pathlib import Path

import grpc.aio

from proto import inference_pb2 as api
from proto.inference_pb2_grpc import InferenceStub
from tests.held import held
from tests.live.gateway_fleet import FakeFleet, fake_fleet

FEW, MANY = 100, 300
SLACK = 64
"""Stale deadlines that may wait to be swept."""


async def cancel_streams(fleet: FakeFleet, count: int) -> None:
    """Each has a stream of its own, is accepted, and cancels its call."""
    start = api.StartGeneration(
        model=api.ModelIdentity(name="tiny"),
        text="SAY LONG a",
        sampling=api.SamplingOptions(max_tokens=1_000, ignore_eos=True),
    )
    async with grpc.aio.insecure_channel(fleet.grpc_of(0)) as channel:
        for _ in range(count):
            call = InferenceStub(channel).Generate()
            await call.write(api.GenerateRequest(start=start))
            assert (await call.read()).WhichOneof("message") == "accepted"
            call.cancel()
    await fleet.idle()


async def test_the_objects_of_a_gateway_do_not_grow_with_cancelled_streams(tmp_path: Path) -> None:
    async with fake_fleet(tmp_path) as fleet:
        await cancel_streams(fleet, FEW)
        few = held(fleet.gateways[0])
        for known in ("._claims", "._answers", "._watched", "._opened_us"):
            assert any(path.endswith(known) for path in few), f"the walk does not see {known}"
        await cancel_streams(fleet, MANY)
        many = held(fleet.gateways[0])
        grown = {path: many[path] - few.get(path, 0) for path in many}
        assert {path: by for path, by in grown.items() if by > SLACK} == {}
