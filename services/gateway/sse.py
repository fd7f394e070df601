"""One answer as server-sent events, or whole, on one HTTP response."""

import asyncio

import orjson

from core.ends import End
from core.outcomes import Outcome
from services.gateway.actions import Ended
from services.gateway.choice_text import Piece
from services.gateway.generation import Generation
from services.gateway.http_call import HttpCall
from services.gateway.openai_format import Format, Json, error_body

KEEP_ALIVE = b": keep-alive\n\n"
DONE = b"data: [DONE]\n\n"
_STREAM_HEADERS = [("cache-control", "no-cache"), ("x-accel-buffering", "no")]


def data_event(body: Json) -> bytes:
    return b"data: " + orjson.dumps(body) + b"\n\n"


def error_event(end: End) -> bytes:
    """Clients look at the data's top-level `error`; the event's name is for people with curl."""
    return b"event: error\n" + data_event(error_body(end))


async def stream(call: HttpCall, generation: Generation, format: Format, keep_alive_s: float) -> None:
    """Until the answer's end. The status waits for the first token, at most `keep_alive_s`.

    Before that the request can still be refused properly; after it silence is filled with comments,
    and an error is an event.
    """
    loop = asyncio.get_running_loop()
    silent_until = loop.time() + keep_alive_s
    while True:
        items = await generation.mailbox.take(max(0.0, silent_until - loop.time()))
        if not items:
            await _begin(call)
            await call.write(KEEP_ALIVE, True)
            silent_until = loop.time() + keep_alive_s
            continue
        events: list[bytes] = []
        failed: End | None = None
        for number, item in items:
            if isinstance(item, Piece):
                choice = generation.note(number, item)
                events += map(data_event, format.chunks(choice, item))
            elif isinstance(item, Ended):
                generation.note(number, item)
                if item.end.outcome is not Outcome.COMPLETED:
                    failed = failed or item.end
        if failed is not None:
            await _fail(call, events, failed)
            return
        if generation.done:
            usage = format.usage_chunk()
            events += [data_event(usage)] if usage is not None else []
            await _begin(call)
            await call.write(b"".join([*events, DONE]), False)
            return
        if events:
            await _begin(call)
            await call.write(b"".join(events), True)
            silent_until = loop.time() + keep_alive_s


async def whole(call: HttpCall, generation: Generation, format: Format) -> None:
    """One JSON body when everything is done, or the refusal."""
    while not generation.done:
        for number, item in await generation.mailbox.take(None):
            if isinstance(item, Piece):
                format.gather(generation.note(number, item), item)
            elif isinstance(item, Ended):
                generation.note(number, item)
                if item.end.outcome is not Outcome.COMPLETED:
                    await call.refuse(item.end)
                    return
    await call.json(200, format.whole())


async def _begin(call: HttpCall) -> None:
    if not call.begun:
        await call.begin(200, "text/event-stream; charset=utf-8", _STREAM_HEADERS)


async def _fail(call: HttpCall, events: list[bytes], end: End) -> None:
    if not call.begun and not events:
        await call.refuse(end)
        return
    await _begin(call)
    await call.write(b"".join([*events, error_event(end)]), False)
