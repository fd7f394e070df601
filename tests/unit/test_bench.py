"""What the benches compute and how they take their arguments; nothing here is timed."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from bench import engine, floors, load, recording
from bench.comparison import METRICS, Turn, medians, ratio, ratios, turns
from bench.engine_report import Level, bad_lines, floor_lines, plot, table
from bench.load import LoadError, LoadShape, endpoint
from bench.load_result import Answer, LoadResult, summarize
from bench.percentiles import median, percentile
from bench.recording import Run, cost_of

RESULT = LoadResult(
    ok=8,
    bad=0,
    bad_sample=(),
    wall_s=2.0,
    prompt_tokens=1000,
    output_tokens=200,
    chunks=200,
    output_tokens_per_s=100.0,
    ttft_p50_ms=50.0,
    ttft_p95_ms=80.0,
    itl_p50_ms=10.0,
    itl_p95_ms=20.0,
    itl_max_ms=30.0,
)


@pytest.mark.parametrize(
    ("percent", "expected"), [(0, 1.0), (5, 1.0), (5.1, 2.0), (50, 10.0), (95, 19.0), (96, 20.0), (100, 20.0)]
)
def test_percentile_is_the_nearest_rank(percent: float, expected: float) -> None:
    assert percentile([float(value) for value in range(20, 0, -1)], percent) == expected


def test_percentile_of_one_and_of_none() -> None:
    assert [percentile([7.0], percent) for percent in (0, 50, 100)] == [7.0, 7.0, 7.0]
    assert percentile([], 50) is None
    with pytest.raises(ValueError, match="percent"):
        percentile([1.0], 101)


def test_median_leaves_out_what_was_not_measured() -> None:
    assert median([3.0, None, 1.0]) == 2.0
    assert median([3.0, 1.0, 2.0]) == 2.0
    assert median([None]) is None


def test_turns_go_there_and_back() -> None:
    order = turns(2, 2)
    assert [turn.contender for turn in order] == [0, 1, 1, 0, 0, 1, 1, 0]
    assert [turn.pass_number for turn in order] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert turns(1, 1) == [Turn(0, 0), Turn(0, 1)]


def test_turns_weigh_a_drift_the_same_on_each() -> None:
    places = [[place for place, turn in enumerate(turns(2, 3)) if turn.contender == each] for each in (0, 1)]
    assert sum(places[0]) == sum(places[1])


def test_ratios_are_the_first_to_the_second() -> None:
    slow = replace(RESULT, output_tokens_per_s=40.0, ttft_p50_ms=200.0, itl_p95_ms=None)
    found = ratios(medians([RESULT, RESULT]), medians([slow, slow]))
    assert found["output_tokens_per_s"] == 2.5
    assert found["ttft_p50_ms"] == 0.25
    assert found["itl_p95_ms"] is None
    assert ratio(1.0, 0.0) is None and ratio(0.0, 2.0) == 0.0


def test_medians_are_over_runs() -> None:
    runs = [replace(RESULT, output_tokens_per_s=rate) for rate in (10.0, 90.0, 20.0)]
    assert medians(runs)["output_tokens_per_s"] == 20.0


def streamed(*lines: str, start_s: float = 10.0) -> Answer:
    """One line each 100 ms."""
    answer = Answer(start_s)
    for number, line in enumerate(lines, start=1):
        answer.feed(line.encode(), start_s + number / 10)
    answer.end()
    return answer


ROLE = 'data: {"choices":[{"delta":{"role":"assistant","content":""},"finish_reason":null}]}'
TEXT = 'data: {"choices":[{"delta":{"content":"a"},"finish_reason":null}]}'
LAST = 'data: {"choices":[{"delta":{},"finish_reason":"length"}]}'
USAGE = 'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":5}}'
DONE = "data: [DONE]"


def test_an_answer_is_timed_by_its_text() -> None:
    result = summarize([streamed(ROLE, TEXT, ": comment", "", TEXT, TEXT, LAST, USAGE, DONE)], 2.0)
    assert (result.ok, result.bad, result.chunks, result.output_tokens, result.prompt_tokens) == (
        1,
        0,
        3,
        5,
        9,
    )
    assert result.output_tokens_per_s == 2.5
    assert result.ttft_p50_ms == pytest.approx(200)
    assert result.itl_p50_ms == pytest.approx(100)
    assert result.itl_max_ms == pytest.approx(300)


def test_without_usage_chunks_are_counted() -> None:
    assert summarize([streamed(TEXT, TEXT, LAST, DONE)], 1.0).output_tokens == 2


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ((TEXT, LAST), "ended without"),
        ((TEXT, DONE), "ended without"),
        ((LAST, DONE), "no text"),
        (("data: {oops", DONE), "not JSON"),
        ((TEXT, 'data: {"error":{"message":"worker lost"}}', DONE), "worker lost"),
    ],
)
def test_a_bad_answer_says_why(lines: tuple[str, ...], reason: str) -> None:
    assert reason in streamed(*lines).bad


def test_tokens_that_stand_for_no_text_are_an_answer_without_a_first_text() -> None:
    usage = 'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}'
    result = summarize([streamed(LAST, usage, DONE)], 1.0)
    assert (result.ok, result.bad, result.output_tokens, result.ttft_p50_ms) == (1, 0, 2, None)


def test_bad_answers_are_counted_sampled_and_out_of_the_figures() -> None:
    result = summarize([streamed(TEXT, LAST, DONE), *[streamed(TEXT)] * 3, streamed(LAST, DONE)], 1.0)
    assert (result.ok, result.bad, result.output_tokens) == (1, 4, 1)
    assert result.bad_sample[0].startswith("3 x ended without")


def test_nothing_good_has_no_percentiles() -> None:
    result = summarize([streamed(TEXT)], 1.0)
    assert (result.ttft_p95_ms, result.itl_p50_ms, result.output_tokens_per_s) == (None, None, 0.0)


def test_a_load_is_its_seed() -> None:
    shape = LoadShape(requests=5, words=20, shared=8, seed="s")
    bodies = list(shape.bodies("m"))
    assert bodies == list(shape.bodies("m"))
    assert bodies != list(replace(shape, seed="t").bodies("m"))
    prompts = [body["messages"][0]["content"].split() for body in bodies]
    assert len({tuple(prompt[:8]) for prompt in prompts}) == 1
    assert len({tuple(prompt[8:20]) for prompt in prompts}) == 5
    assert all(body["max_tokens"] == shape.max_tokens and body["ignore_eos"] for body in bodies)


def test_endpoints_are_taken_with_and_without_their_version() -> None:
    assert {endpoint(f"http://h:1{tail}") for tail in ("", "/", "/v1", "/v1/")} == {"http://h:1/v1"}


def test_engine_starts_what_is_asked() -> None:
    assert engine.parse([]).fleet_names() == ["baton disaggregated", "baton colocated"]
    assert engine.parse(["--colocated"]).fleet_names() == ["baton colocated"]
    assert engine.parse(["--peer-url", "http://p"]).fleet_names() == ["baton disaggregated"]
    assert engine.parse(["--peer-url", "http://p", "--colocated"]).fleet_names() == ["baton colocated"]
    assert engine.parse(["--url", "http://b", "--peer-url", "http://p"]).fleet_names() == []


def test_engine_hands_flags_to_the_fleet() -> None:
    asked = engine.parse(["--model", "folder", "--dtype", "float32", "--", "--cores", "prefill=0"])
    flags = asked.fleet_flags("baton colocated")
    assert flags[:4] == ["--model", "folder", "--dtype", "float32"]
    assert flags[-3:] == ["--colocated", "--cores", "prefill=0"]
    assert "--colocated" not in asked.fleet_flags("baton disaggregated")


def test_engine_asks_both_the_same_and_nobody_twice() -> None:
    asked = engine.parse(["--concurrency", "1,8", "--words", "30", "--shared", "10"])
    shapes = [asked.at(concurrency, number) for concurrency in (1, 8) for number in (0, 1)]
    assert len({shape.seed for shape in shapes}) == 4
    assert shapes[0] == asked.at(1, 0)
    assert [shape.requests for shape in shapes] == [20, 20, 32, 32]
    assert (shapes[0].words, shapes[0].shared) == (30, 10)
    assert engine.parse(["--requests", "3"]).requests(32) == 3


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--concurrency", "1,0"], "--concurrency"),
        (["--concurrency", "1,x"], "--concurrency"),
        (["--concurrency", ""], "--concurrency"),
        (["--words", "10", "--shared", "11"], "--shared"),
        (["--max-tokens", "0"], "--max-tokens"),
        (["--requests", "-1"], "--requests"),
        (["--rounds", "0"], "--rounds"),
        (["--dtype", "int3"], "--dtype"),
        (["--peer-model", "m"], "--peer-model"),
        (["--url", "http://b", "--colocated"], "--url"),
        (["--colo"], "--colo"),
    ],
)
def test_engine_names_the_argument_that_is_wrong(
    arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        engine.parse(arguments)
    assert ended.value.code == 2
    assert named in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("program", [load, recording])
def test_the_others_name_it_too(program: object, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        program.main(["http://h", "m", "--requests", "0"] if program is load else ["--requests", "0"])  # type: ignore[attr-defined]
    assert "--requests" in capsys.readouterr().err.splitlines()[-1]


def test_a_server_that_is_not_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert engine.main(["--url", "http://127.0.0.1:9"]) == 1
    assert capsys.readouterr().err.startswith("bench.engine: http://127.0.0.1:9: ")


def test_a_peer_that_answers_nothing_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--url", "http://127.0.0.1:9", "--peer-url", "http://127.0.0.1:9/v1", "--peer-model", "m"]
    asked = engine.parse([*arguments, "--concurrency", "2"])
    with pytest.raises(LoadError, match=r"^peer: http://127.0.0.1:9/v1: 2 x "):
        engine.measure_levels(asked, [engine.Contender("peer", asked.options.peer_url, "m")])


def test_the_table_has_each_level_with_its_ratio() -> None:
    slow = replace(RESULT, output_tokens_per_s=40.0, itl_p50_ms=None, bad=1, bad_sample=("1 x status 429",))
    levels = [Level(4, ((RESULT, RESULT), (slow, slow))), Level(16, ((RESULT,), (slow,)))]
    lines = list(table(["baton", "peer"], levels))
    assert len(lines) == 7
    assert lines[1].split()[:3] == ["4", "baton", "100.0"] and lines[1].split()[-2:] == ["16", "0"]
    assert lines[2].split()[:2] == ["peer", "40.0"] and lines[2].split()[-2:] == ["16", "2"]
    assert lines[3].split("second")[1].split() == ["2.50", "1.00", "1.00", "-", "1.00"]
    assert list(bad_lines(["baton", "peer"], levels))[-1] == "bad: c=16 peer: 1 x status 429"
    assert len(list(table(["baton"], [Level(4, ((RESULT,),))]))) == 2


def test_the_plot_is_a_picture(tmp_path: Path) -> None:
    empty = replace(RESULT, itl_p50_ms=None)
    plot(
        ["a", "b"],
        [Level(1, ((RESULT,), (empty,))), Level(4, ((RESULT,), (empty,)))],
        "t",
        tmp_path / "p.png",
    )
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


def test_floors_are_read_from_the_kernels_bench() -> None:
    step = {"name": "decode 1", "floor_milliseconds": 5.0, "milliseconds": 6.25, "fraction": 0.8}
    found = {
        "roofs": {"read_bytes_per_s": 2e10, "flops": 4e11, "vector_flops": 2e11},
        "steps": [step],
        "decode_fraction_of_memory_floor": 0.8,
        "prefill_155_fraction_of_peak_flops": 0.7,
    }
    parsed = floors.parse(json.loads(json.dumps(found)))
    alone, through = floor_lines(parsed, 10.0)
    assert "80%" in alone and "20.0 GB/s" in alone and "70%" in alone
    assert "50%" in through
    assert len(list(floor_lines(parsed, None))) == 1


def test_what_recording_costs() -> None:
    def run(rate: float, cpu: float) -> Run:
        return Run(replace(RESULT, output_tokens_per_s=rate), cpu)

    cost = cost_of([[run(97.0, 110.0), run(97.0, 110.0)], [run(90.0, 100.0), run(110.0, 100.0)]])
    assert cost.throughput_percent == pytest.approx(3.0)
    assert cost.cpu_percent == pytest.approx(10.0)
    with pytest.raises(ValueError, match="nothing"):
        cost_of([[run(0.0, 1.0)], [run(1.0, 1.0)]])


def test_metrics_are_fields_of_a_result() -> None:
    assert all(hasattr(RESULT, metric.name) for metric in METRICS)
