"""One event is one line, with its fields, from its level on."""

import io
import json

import pytest

from rpc.errors import ServiceError
from rpc.logs import Level, Log, LogSettings, level_of


def test_json_lines_carry_bound_and_own_fields() -> None:
    out = io.StringIO()
    log = Log(LogSettings(), out=out, clock=lambda: 7, role="router").bind(id="r1")
    log.info("worker_lost", worker="d1", reason=ValueError("gone"))
    log.debug("not shown")
    (line,) = out.getvalue().splitlines()
    assert json.loads(line) == {
        "time_us": 7,
        "level": "info",
        "event": "worker_lost",
        "role": "router",
        "id": "r1",
        "worker": "d1",
        "reason": "gone",
    }


def test_plain_lines_stay_one_line() -> None:
    out = io.StringIO()
    log = Log(LogSettings(level=Level.DEBUG, as_json=False), out=out, clock=lambda: 7)
    log.warning("odd", text="two\nlines")
    log.error("bad")
    log.debug("shown")
    assert out.getvalue() == "warning odd text=two\\nlines\nerror   bad\ndebug   shown\n"


def test_a_wrong_level_is_named() -> None:
    assert level_of("WARNING") is Level.WARNING
    with pytest.raises(ServiceError, match="log level: 'loud' is none of debug, info, warning, error"):
        level_of("loud")
