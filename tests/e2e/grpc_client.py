"""The public gRPC API, as a client would use it: many requests on one stream."""

import asyncio
import contextlib
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
    choices: dict[int, list[int]] = field(default_factory=lambda: {0: []})
    text: str = ""
    """Of choice 0."""
    finished: api.Finished | None = None
    error: api.Error | None = None
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    began: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def tokens(self) -> list[int]:
        return self.choices[0]

    def take(self, response: api.GenerateResponse) -> None:
        self.request_id = response.request_id or self.request_id
        match response.WhichOneof("message"):
            case "tokens":
                tokens = response.tokens
                choice = self.choices.setdefault(tokens.choice, [])
                assert tokens.first_index == len(choice), "a gap or a duplicate"
                choice += tokens.ids
                self.text += tokens.text if tokens.choice == 0 else ""
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

    def __init__(self, address: str, model: str = MODEL) -> None:
        self._model = model
        # A pool of its own: two conversations are two connections, and may meet two gateway processes.
        options = [("grpc.use_local_subchannel_pool", 1)]
        self._channel = grpc.aio.insecure_channel(address.removeprefix("grpc://"), options=options)
        self.stub = inference_pb2_grpc.InferenceStub(self._channel)
        self.answers: dict[str, Answer] = {}
        self._call: Any = None
        self._writing = asyncio.Lock()  # gRPC takes one write of a call at a time
        self._reader: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "Conversation":
        self._call = self.stub.Generate()
        self._reader = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._reader is not None
        self._call.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._reader  # an assertion of `take` is the test's failure
        await self._channel.close()

    async def start(self, client_id: str, tokens: Sequence[int], **options: Any) -> Answer:
        answer = self.answers[client_id] = Answer()
        sampling = api.SamplingOptions(**{"temperature": 0.0, "max_tokens": 48, **options})
        begin = api.StartGeneration(
            client_id=client_id,
            model=api.ModelIdentity(name=self._model),
            tokens=api.TokenIds(ids=tokens),
            sampling=sampling,
        )
        await self._write(api.GenerateRequest(start=begin))
        return answer

    async def cancel_in_stream(self, client_id: str) -> None:
        await self._write(api.GenerateRequest(cancel=api.CancelGeneration(client_id=client_id)))

    async def _write(self, request: api.GenerateRequest) -> None:
        async with self._writing:
            await self._call.write(request)

    async def _read(self) -> None:
        while (response := await self._call.read()) is not grpc.aio.EOF:
            self.answers[response.client_id].take(response)


async def until(holds: Callable[[], bool], within_s: float, what: str) -> None:
    async with asyncio.timeout(within_s):
        while not holds():
            await asyncio.sleep(0.01)
    assert holds(), what
