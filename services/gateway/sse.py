"""One answer as server-sent events, or whole, on one HTTP response."""

import asyncio

import orjson

from core.ends import End
from core.outcomes import Outcome
from rpc.status import status_of
from services.gateway.actions import Ended
from services.gateway.choice_text import Piece
from services.gateway.generation import Generation
from services.gateway.http_call import HttpCall
from services.gateway.openai_format import Format, Json, error_body

KEEP_ALIVE = b": keep-alive\n\n"
DONE = b"data: [DONE]\n\n"
BLANK = b"\n"
RETRIED = (429, 500, 502, 503, 504)
"""Statuses after which clients ask again by themselves, as they do after a broken connection."""
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


async def whole(call: HttpCall, generation: Generation, format: Format, keep_alive_s: float) -> None:
    """One JSON body when everything is done, or the refusal.

    The status waits for the end, for it is all that clients understand of a refusal, but once tokens come
    no longer than `keep_alive_s`: then it is 200, and blank lines, which JSON may begin with, keep proxies
    from giving up on a long answer. What fails after that breaks the connection where a retry may help.
    """
    loop = asyncio.get_running_loop()
    silent_until, has_token = loop.time() + keep_alive_s, False
    while not generation.done:
        wait_s = max(0.0, silent_until - loop.time()) if has_token else None
        for number, item in await generation.mailbox.take(wait_s):
            if isinstance(item, Piece):
                has_token = True
                format.gather(generation.note(number, item), item)
            elif isinstance(item, Ended):
                generation.note(number, item)
                if item.end.outcome is not Outcome.COMPLETED:
                    await fail(call, item.end)
                    return
        if has_token and not generation.done and loop.time() >= silent_until:
            await _begin_whole(call)
            await call.write(BLANK, True)
            silent_until = loop.time() + keep_alive_s
    if call.begun:
        await call.write(orjson.dumps(format.whole()), False)
    else:
        await call.json(200, format.whole())


async def _begin_whole(call: HttpCall) -> None:
    if not call.begun:
        await call.begin(200, "application/json", _STREAM_HEADERS)


async def _begin(call: HttpCall) -> None:
    if not call.begun:
        await call.begin(200, "text/event-stream; charset=utf-8", _STREAM_HEADERS)


async def _fail(call: HttpCall, events: list[bytes], end: End) -> None:
    if not call.begun and not events:
        await call.refuse(end)
        return
    await _begin(call)
    await call.write(b"".join([*events, error_event(end)]), False)


async def fail(call: HttpCall, end: End) -> None:
    """By a status where none is sent, else in the body as its clients look for it.

    No client understands the status of a whole answer but where it began. One that breaks off is asked
    again; that is wrong where the status would have said so, and then the body is JSON with an `error`.
    """
    if not call.begun:
        await call.refuse(end)
    elif call.is_stream:
        await call.write(error_event(end), False)
    else:
        may_retry = status_of(end.outcome).http in RETRIED
        await call.write(orjson.dumps(error_body(end)), may_retry)
        if may_retry:
            call.abort()
