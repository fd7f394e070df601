"""Which status every outcome has, in HTTP and in gRPC, and back."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NoReturn

import grpc
import grpc.aio

from core.ends import End
from core.outcomes import Outcome

Code = grpc.StatusCode

OUTCOME_KEY = "baton-outcome"
FIELD_KEY = "baton-field"
RETRY_AFTER_KEY = "baton-retry-after-us"
PUSHBACK_KEY = "grpc-retry-pushback-ms"

RETRY_AFTER_DEFAULT_US = 1_000_000
"""What a 429 or 503 says where nobody had an estimate."""


@dataclass(frozen=True, slots=True)
class Status:
    """What a client is told."""

    http: int
    code: grpc.StatusCode
    error_type: str
    """OpenAI's `error.type`; the reason itself goes into `error.code`."""


_INVALID = "invalid_request_error"
_CONTENDED = Status(429, Code.RESOURCE_EXHAUSTED, "rate_limit_error")
_UNAVAILABLE = Status(503, Code.UNAVAILABLE, "service_unavailable_error")

STATUS: dict[Outcome, Status] = {
    Outcome.COMPLETED: Status(200, Code.OK, ""),
    Outcome.CANCELLED: Status(499, Code.CANCELLED, "request_cancelled_error"),
    Outcome.DEADLINE_EXCEEDED: Status(504, Code.DEADLINE_EXCEEDED, "timeout_error"),
    Outcome.INVALID_ARGUMENT: Status(400, Code.INVALID_ARGUMENT, _INVALID),
    Outcome.PROMPT_TOO_LONG: Status(400, Code.INVALID_ARGUMENT, _INVALID),
    Outcome.BODY_TOO_LARGE: Status(413, Code.INVALID_ARGUMENT, _INVALID),
    Outcome.UNAUTHENTICATED: Status(401, Code.UNAUTHENTICATED, "authentication_error"),
    Outcome.FORBIDDEN: Status(403, Code.PERMISSION_DENIED, "permission_error"),
    Outcome.MODEL_NOT_FOUND: Status(404, Code.NOT_FOUND, "not_found_error"),
    Outcome.REQUEST_NOT_FOUND: Status(404, Code.NOT_FOUND, "not_found_error"),
    Outcome.DUPLICATE_REQUEST: Status(409, Code.ALREADY_EXISTS, _INVALID),
    Outcome.RATE_LIMITED: _CONTENDED,
    Outcome.CONCURRENCY_LIMITED: _CONTENDED,
    Outcome.QUEUE_FULL: _CONTENDED,
    Outcome.SHED: _CONTENDED,
    Outcome.WORKER_FULL: _CONTENDED,
    Outcome.SLOW_CLIENT: Status(408, Code.ABORTED, "timeout_error"),
    Outcome.NO_WORKER: _UNAVAILABLE,
    Outcome.DRAINING: _UNAVAILABLE,
    Outcome.WORKER_LOST: _UNAVAILABLE,
    Outcome.MOVED: _UNAVAILABLE,
    Outcome.INCOMPATIBLE: _UNAVAILABLE,
    Outcome.TRANSFER_FAILED: _UNAVAILABLE,
    Outcome.INTERNAL: Status(500, Code.INTERNAL, "server_error"),
}

OUTCOME_OF_CODE: dict[grpc.StatusCode, Outcome] = {
    Code.OK: Outcome.COMPLETED,
    Code.CANCELLED: Outcome.CANCELLED,
    Code.UNKNOWN: Outcome.INTERNAL,
    Code.INVALID_ARGUMENT: Outcome.INVALID_ARGUMENT,
    Code.DEADLINE_EXCEEDED: Outcome.DEADLINE_EXCEEDED,
    Code.NOT_FOUND: Outcome.REQUEST_NOT_FOUND,
    Code.ALREADY_EXISTS: Outcome.DUPLICATE_REQUEST,
    Code.PERMISSION_DENIED: Outcome.FORBIDDEN,
    Code.RESOURCE_EXHAUSTED: Outcome.QUEUE_FULL,
    Code.FAILED_PRECONDITION: Outcome.INTERNAL,
    Code.ABORTED: Outcome.SLOW_CLIENT,
    Code.OUT_OF_RANGE: Outcome.INVALID_ARGUMENT,
    Code.UNIMPLEMENTED: Outcome.INCOMPATIBLE,
    Code.INTERNAL: Outcome.INTERNAL,
    Code.UNAVAILABLE: Outcome.NO_WORKER,
    Code.DATA_LOSS: Outcome.INTERNAL,
    Code.UNAUTHENTICATED: Outcome.UNAUTHENTICATED,
}
"""What a code means where the peer did not name its outcome: a proxy, or gRPC itself, spoke."""


OUTCOME_OF_WORD = {outcome.value: outcome for outcome in Outcome}


def status_of(outcome: Outcome) -> Status:
    return STATUS[outcome]


def code_number(code: grpc.StatusCode) -> int:
    """The google.rpc.Code number."""
    number: int = code.value[0]
    return number


def outcome_of_http(status: int) -> Outcome:
    """The general outcome of an HTTP status: the first of the table that has it."""
    known = next((outcome for outcome, row in STATUS.items() if row.http == status), None)
    if known is not None:
        return Outcome.QUEUE_FULL if status == 429 else known
    if 200 <= status < 300:
        return Outcome.COMPLETED
    return Outcome.INVALID_ARGUMENT if 400 <= status < 500 else Outcome.INTERNAL


def retry_after_us(end: End) -> int | None:
    """When to try again; never None for a 429 or a 503, always None where a retry cannot help."""
    if STATUS[end.outcome].http not in (429, 503):
        return None
    return end.retry_after_us or RETRY_AFTER_DEFAULT_US


def retry_headers(end: End) -> list[tuple[str, str]]:
    """`Retry-After` in whole seconds, rounded up, and the milliseconds that OpenAI's clients prefer."""
    wait_us = retry_after_us(end)
    if wait_us is None:
        return []
    return [("retry-after", str(-(-wait_us // 1_000_000))), ("retry-after-ms", str(-(-wait_us // 1000)))]


def end_metadata(end: End) -> tuple[tuple[str, str], ...]:
    """Trailing metadata that carries an end whole; pushback -1 tells a gRPC client not to retry."""
    wait_us = retry_after_us(end)
    pushback_ms = -1 if wait_us is None else -(-wait_us // 1000)
    found = [(OUTCOME_KEY, end.outcome.value), (PUSHBACK_KEY, str(pushback_ms))]
    if end.field:
        found.append((FIELD_KEY, end.field.encode("ascii", "replace").decode()))
    if end.retry_after_us:
        found.append((RETRY_AFTER_KEY, str(end.retry_after_us)))
    return tuple(found)


def end_of(code: grpc.StatusCode, details: str | None, trailing: Iterable[tuple[str, Any]] | None) -> End:
    """The end a finished call stands for: what the peer named, else what its code means."""
    named = {key: value for key, value in (trailing or ()) if isinstance(value, str)}
    word = named.get(OUTCOME_KEY, "")
    outcome = OUTCOME_OF_WORD.get(word) or OUTCOME_OF_CODE.get(code, Outcome.INTERNAL)
    wait_us = named.get(RETRY_AFTER_KEY, "")
    return End(outcome, details or "", named.get(FIELD_KEY, ""), int(wait_us) if wait_us.isdecimal() else 0)


def end_of_error(error: grpc.aio.AioRpcError) -> End:
    return end_of(error.code(), error.details(), error.trailing_metadata())


async def abort(context: Any, end: End) -> NoReturn:
    """Ends a server's call with this end. Raises the abort that gRPC wants; write nothing after it."""
    assert end.outcome is not Outcome.COMPLETED, "a completed call returns"
    await context.abort(STATUS[end.outcome].code, end.message, end_metadata(end))
    raise AssertionError("abort returned")
