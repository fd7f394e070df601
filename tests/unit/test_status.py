"""Every outcome has a status, both ways, and every 429 and 503 says when to come back."""

import grpc
import pytest

from core.ends import End
from core.outcomes import Outcome
from rpc.status import (
    OUTCOME_OF_CODE,
    STATUS,
    code_number,
    end_metadata,
    end_of,
    outcome_of_http,
    retry_headers,
    status_of,
)

Code = grpc.StatusCode


def test_the_table_is_total_both_ways() -> None:
    assert list(STATUS) == [outcome for outcome in Outcome if outcome in STATUS]
    assert len(STATUS) == len(Outcome)
    assert set(OUTCOME_OF_CODE) == set(grpc.StatusCode)


@pytest.mark.parametrize("code", list(grpc.StatusCode))
def test_a_code_and_its_outcome_are_of_one_kind(code: grpc.StatusCode) -> None:
    outcome = OUTCOME_OF_CODE[code]
    if code not in (
        Code.UNKNOWN,
        Code.FAILED_PRECONDITION,
        Code.DATA_LOSS,
        Code.OUT_OF_RANGE,
        Code.UNIMPLEMENTED,
    ):
        assert status_of(outcome).code is code


@pytest.mark.parametrize("outcome", list(Outcome))
def test_an_end_survives_the_wire(outcome: Outcome) -> None:
    end = End(outcome, "why", "field.näme", 1_234_567)
    back = end_of(status_of(outcome).code, end.message, end_metadata(end))
    assert (back.outcome, back.message, back.retry_after_us) == (outcome, "why", 1_234_567)
    assert back.field == "field.n?me"


@pytest.mark.parametrize("outcome", list(Outcome))
def test_retries_are_told_when_and_only_where_they_help(outcome: Outcome) -> None:
    headers = dict(retry_headers(End(outcome, retry_after_us=2_000_001)))
    pushback = dict(end_metadata(End(outcome, retry_after_us=2_000_001)))["grpc-retry-pushback-ms"]
    if status_of(outcome).http in (429, 503):
        assert headers == {"retry-after": "3", "retry-after-ms": "2001"} and pushback == "2001"
        assert dict(retry_headers(End(outcome)))["retry-after"] == "1"
    else:
        assert headers == {} and pushback == "-1"


@pytest.mark.parametrize(
    ("outcome", "http", "code"),
    [
        (Outcome.RATE_LIMITED, 429, Code.RESOURCE_EXHAUSTED),
        (Outcome.NO_WORKER, 503, Code.UNAVAILABLE),
        (Outcome.DEADLINE_EXCEEDED, 504, Code.DEADLINE_EXCEEDED),
        (Outcome.CANCELLED, 499, Code.CANCELLED),
        (Outcome.PROMPT_TOO_LONG, 400, Code.INVALID_ARGUMENT),
        (Outcome.UNAUTHENTICATED, 401, Code.UNAUTHENTICATED),
        (Outcome.FORBIDDEN, 403, Code.PERMISSION_DENIED),
        (Outcome.MODEL_NOT_FOUND, 404, Code.NOT_FOUND),
    ],
)
def test_the_doctrine(outcome: Outcome, http: int, code: grpc.StatusCode) -> None:
    assert (status_of(outcome).http, status_of(outcome).code) == (http, code)
    assert status_of(outcome_of_http(http)).http == http


def test_a_strangers_status_still_means_something() -> None:
    assert end_of(Code.UNAVAILABLE, None, None) == End(Outcome.NO_WORKER)
    assert end_of(Code.UNKNOWN, "x", [("baton-outcome", "from the future")]) == End(Outcome.INTERNAL, "x")
    assert outcome_of_http(418) is Outcome.INVALID_ARGUMENT and outcome_of_http(502) is Outcome.INTERNAL
    assert outcome_of_http(204) is Outcome.COMPLETED
    assert code_number(Code.UNAVAILABLE) == 14
