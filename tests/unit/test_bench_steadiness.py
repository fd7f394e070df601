"""What the steadiness bench counts, and against what it judges; nothing here is timed."""

import pytest

from bench import stand_in, steadiness, steady_load
from bench.load_result import Answer
from bench.steadiness import COLOCATED, CONTROL, DISAGGREGATED, Bench, Run
from bench.steady_load import SteadyResult, SteadyShape
from worker.config import WorkerConfig


def streamed(*arrivals_s: float, bad: str = "") -> Answer:
    answer = Answer(0.0)
    answer.arrivals_s = list(arrivals_s)
    answer.bad = bad
    return answer


def seen(p95_ms: float | None) -> SteadyResult:
    return SteadyResult(
        window_s=10.0,
        prompts=5,
        prompt_tokens=2_000.0,
        itls=100,
        itl_p50_ms=10.0,
        itl_p95_ms=p95_ms,
        itl_max_ms=99.0,
        bad=0,
        bad_sample=(),
    )


def judged(*runs: Run) -> list[str]:
    bench = Bench(steadiness.parse(["--colocated"]))
    bench.runs = list(runs)
    return [str(each) for each in bench.judged()]


def test_only_gaps_that_begin_in_the_window_count() -> None:
    streams = [streamed(0.5, 1.0, 1.02, 1.05, 2.5), streamed(1.9, 2.1, 2.2), streamed(1.5, bad="lost")]
    found = steady_load._summarize(streams, [], 1.0, 2.0)
    assert found.itls == 4  # 20, 30, 1450 ms; 200 ms
    assert found.itl_p50_ms == pytest.approx(30)
    assert found.itl_max_ms == pytest.approx(1450)
    assert (found.bad, found.bad_sample) == (1, ("lost",))


def test_prompts_that_were_answered_are_counted() -> None:
    answers = [streamed(1.0), streamed(1.0, bad="429")]
    answers[0].prompt_tokens = 1_998
    found = steady_load._summarize([streamed(1.0, 1.1)], answers, 1.0, 2.0)
    assert (found.prompts, found.prompt_tokens, found.bad) == (1, 1_998.0, 1)


def test_streams_outlast_the_window_and_prompts_are_long() -> None:
    shape = SteadyShape()
    prompts = list(shape.prompts_shape().bodies("m"))
    assert [body["max_tokens"] for body in prompts] == [2] * shape.prompts
    assert len({body["messages"][0]["content"] for body in prompts}) == shape.prompts
    assert next(shape.streams_shape().bodies("m"))["max_tokens"] == 4_000


def test_a_median_p95_is_judged_against_its_own_measure() -> None:
    within, above = judged(
        *(Run(COLOCATED, seen(p95)) for p95 in (40.0, 60.0)),
        *(Run(DISAGGREGATED, seen(p95)) for p95 in (12.0, 14.0)),
        *(Run(CONTROL, seen(10.0), 5) for _ in range(2)),
    )
    assert "p95 ITL 50.0 ms is 1.00 of the target 50.0 ms (within 1.5)" in within
    assert "p95 ITL 13.0 ms is 1.30 of the control's 10.0 ms (ABOVE 1.15)" in above
    assert "nothing was measured" in judged(Run(COLOCATED, seen(None)))[0]


def test_the_table_has_a_line_per_run() -> None:
    lines = steadiness.table([Run(COLOCATED, seen(40.0)), Run(CONTROL, seen(None), 7)])
    assert lines[1].split()[:4] == ["baton", "colocated", "10.0", "5"]
    assert lines[2].split()[2:8] == ["10.0", "7", "2000", "100", "10.00", "-"]


def test_the_stand_in_computes_in_the_workers_chunks() -> None:
    config = WorkerConfig(max_step_tokens=512)
    rows = [plan.rows[0] for plan in stand_in._chunks(1_100, 69, config)]
    assert [(row.start, len(row.tokens), len(row.samples)) for row in rows] == [
        (0, 512, 0),
        (512, 512, 0),
        (1_024, 76, 1),
    ]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--peer-model", "m"], "--peer-model"),
        (["--url", "http://b", "--colocated"], "--url"),
        (["--colocated", "--disaggregated"], "--disaggregated"),
        (["--prompts", "0"], "--prompts"),
        (["--itl-target-ms", "-1"], "--itl-target-ms"),
    ],
)
def test_what_is_wrong_is_named(arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        steadiness.parse(arguments)
    assert named in capsys.readouterr().err.splitlines()[-1]


def test_a_server_that_is_not_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert steadiness.main(["--url", "http://127.0.0.1:9"]) == 1
    assert capsys.readouterr().err.splitlines()[-1].startswith("bench.steadiness: http://127.0.0.1:9: ")
