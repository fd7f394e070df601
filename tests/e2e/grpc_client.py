"""The public gRPC API, as a client would use it: many requests on one stream."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc.aio

from proto import inference_pb2 as api
from proto import inference_pb2_grpc
from tests.e2e.live_fleet import MODEL


@dataclass(slots=True)
class Answer:
    """All that one request got."""

    request_id: str = ""
    tokens: list[int] = field(default_factory=list)
    text: str = ""
    finished: api.Finished | None = None
    error: api.Error | None = None
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    began: asyncio.Event = field(default_factory=asyncio.Event)

    def take(self, response: api.GenerateResponse) -> None:
        self.request_id = response.request_id or self.request_id
        match response.WhichOneof("message"):
            case "tokens":
                tokens = response.tokens
                assert tokens.first_index == len(self.tokens), "a gap or a duplicate"
                self.tokens += tokens.ids
                self.text += tokens.text
                self.began.set()
            case "finished":
                assert not self.ended.is_set(), "a second end"
                self.finished = response.finished
                self.ended.set()
            case "error":
                assert not self.ended.is_set(), "a second end"
                self.error = response.error
                self.ended.set()


class Conversation:
    """One bidirectional stream to a gateway."""

    def __init__(self, address: str) -> None:
        # A pool of its own: two conversations are two connections, and may meet two gateway processes.
        options = [("grpc.use_local_subchannel_pool", 1)]
        self._channel = grpc.aio.insecure_channel(address.removeprefix("grpc://"), options=options)
        self.stub = inference_pb2_grpc.InferenceStub(self._channel)
        self.answers: dict[str, Answer] = {}
        self._call: Any = None
        self._reader: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "Conversation":
        self._call = self.stub.Generate()
        self._reader = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._reader is not None
        self._call.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)
        await self._channel.close()

    async def start(self, client_id: str, tokens: Sequence[int], **options: Any) -> Answer:
        answer = self.answers[client_id] = Answer()
        sampling = api.SamplingOptions(**{"temperature": 0.0, "max_tokens": 48, **options})
        begin = api.StartGeneration(
            client_id=client_id,
            model=api.ModelIdentity(name=MODEL),
            tokens=api.TokenIds(ids=tokens),
            sampling=sampling,
        )
        await self._call.write(api.GenerateRequest(start=begin))
        return answer

    async def cancel_in_stream(self, client_id: str) -> None:
        await self._call.write(api.GenerateRequest(cancel=api.CancelGeneration(client_id=client_id)))

    async def _read(self) -> None:
        while (response := await self._call.read()) is not grpc.aio.EOF:
            self.answers[response.client_id].take(response)


async def until(holds: Callable[[], bool], within_s: float, what: str) -> None:
    async with asyncio.timeout(within_s):
        while not holds():
            await asyncio.sleep(0.01)
    assert holds(), what
