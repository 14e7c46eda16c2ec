"""`RunView`: the figures and the JSON of a run, gathered from its events, and what of it is explained."""

from __future__ import annotations

import json
import math
import statistics
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudash.telemetry.explanation import Evidence, Explanation, Findings, Part, Remedy, StackLine, Where
from gpudash.telemetry.explanation import Owner as CallSite
from gpudash.telemetry.records import (
    Event,
    MemoryExplained,
    Note,
    RemediesFound,
    RunEnd,
    RunStarted,
    StageFinished,
    StepFinished,
    Topic,
    Warning,
    event_from_json,
)
from gpudash.telemetry.runs import EXACT_VALUES, MetricView, RunView
from tests.unit.telemetry.run_ends import FAILED, RAN_OUT

STARTED = RunStarted(time_s=10.0, run_id=1, workload="training", device="cpu", spec={"steps": 4})

EXPLAINED = Explanation(
    device="sim:0",
    product="Simulated GPU",
    simulated=True,
    time_s=1.0,
    step=3,
    headline="Memory was full of activations.",
    request_words="7 B were asked for.",
    verdict="real capacity",
    requested_bytes=7,
    segment_bytes=8,
    missing_bytes=2,
    where=Where(stage="train", step=3, file="/home/me/train.py", line=41, name="step"),
    capacity_bytes=100,
    parts=(Part("category", "activations", 99), Part("free", "free", 1)),
    beyond_bytes=0,
    largest_free_block_bytes=0,
    by_category={"activations": 99},
    owners=(
        CallSite(
            "/home/me/train.py", 41, "step", "Net", "activations", 99, 3, 99, stack=(StackLine("train.py", 41, "step"),)
        ),
    ),
    rest_owners=0,
    rest_bytes=0,
    growing=(),
    evidence=Evidence(events=5, of_events=5, began_s=0.5, live_bytes=99),
)

SMALLER = Remedy("batch 8", {"batch": 8}, flags="--batch 8", predicted_peak_bytes=60, fits=True, verified_by="dry run")


def view(*events: Event) -> RunView:
    run = RunView.of(STARTED)
    for event in events:
        run.apply(event)
    return run


def step(number: int, loss: float | None, t: float | None = None) -> StepFinished:
    return StepFinished(
        time_s=10.0 + number if t is None else t, run_id=1, step=number, steps=4, seconds=1.0, loss=loss
    )


def stage(seconds: float, bytes: int | None = 100, copied: bool | None = True) -> StageFinished:
    return StageFinished(
        time_s=11.0, run_id=1, name="move", seconds=seconds, bytes=bytes, copied=copied, shape=(3, 3), dtype="float32"
    )


def test_the_summary_has_exactly_the_keys_of_the_contract() -> None:
    summary = view(stage(1.0), step(1, 2.0)).summary("a.gpudash")
    assert list(summary) == [
        *("workload", "device", "simulated", "spec", "status", "seconds", "steps", "stages", "step_parts", "metrics"),
        *("memory", "result", "warnings", "error", "recording"),
    ]
    assert list(summary["stages"][0]) == [
        *("name", "count", "seconds", "bytes", "bytes_per_second", "from", "to", "shape", "dtype", "copied"),
        *("device", "is_cuda", "same_object", "is_leaf", "first_values", "remark"),
    ]
    assert list(summary["metrics"]["loss"]) == ["first", "last", "min", "max", "median", "last_20_median"]
    assert list(summary["memory"]) == [
        *("peak_allocated_bytes", "peak_reserved_bytes", "peak_used_bytes", "capacity_bytes"),
    ]
    assert summary["recording"] == "a.gpudash"


def test_a_capacity_that_nobody_reads_is_as_the_run_itself_tells_it() -> None:
    memory = {"peak_reserved_bytes": 700, "beside_bytes": 300, "capacity_bytes": 2000}
    end = RunEnd(time_s=12, run_id=1, status="finished", seconds=2, steps=1, result={"memory": memory})
    assert view(end).summary()["memory"]["capacity_bytes"] == 2000


@pytest.mark.parametrize(
    ("memory", "used"),
    [
        ({"peak_reserved_bytes": 700, "beside_bytes": 300}, 1000),
        ({"peak_reserved_bytes": 1900, "beside_bytes": 300}, 2000),
        ({"peak_reserved_bytes": 10, "beside_bytes": 300}, 320),
        ({"peak_reserved_bytes": 700}, 320),
    ],
)
def test_the_peak_in_use_is_no_less_than_what_was_reserved_beside_the_context(
    memory: dict[str, int], used: int
) -> None:
    run = view()
    run.memory.raise_to("used_bytes", 320)
    run.memory.capacity_bytes = 2000
    run.apply(replace(finished("finished"), result={"memory": memory}))
    assert run.peak_used_bytes == run.summary()["memory"]["peak_used_bytes"] == used


def test_a_finished_run_says_how_it_ended() -> None:
    run = view(step(1, 3.0), step(2, 1.0), finished("finished"))
    summary = run.summary()
    assert (summary["status"], summary["seconds"], summary["steps"]) == ("finished", 2.5, 2)
    assert summary["result"] == {"equal": True}
    assert summary["error"] is None
    assert run.ended_s == 12.5


def finished(status: str) -> RunEnd:
    return RunEnd(
        time_s=12.5,
        run_id=1,
        status=status,
        seconds=2.5,
        steps=2,
        result={"equal": True},  # type: ignore[arg-type]
    )


def test_a_stopped_run_is_cancelled() -> None:
    assert view(finished("cancelled")).summary()["status"] == "cancelled"


def test_a_guarded_run_is_out_of_memory_with_kind_guard() -> None:
    end = replace(RAN_OUT, time_s=12, error="guard", message="m", remedy="r", seconds=2, steps=1, requested_bytes=64)
    run = view(end)
    summary = run.summary()
    assert summary["status"] == "out_of_memory"
    assert summary["error"] == {"kind": "guard", "message": "m", "remedy": "r"}
    assert run.error is not None and run.error.requested_bytes == 64


def test_a_failed_run_keeps_its_traceback_out_of_the_json() -> None:
    end = replace(FAILED, time_s=12, message="m", remedy="r", seconds=2, steps=1, details="Traceback")
    run = view(end)
    assert run.summary()["error"] == {"kind": "ValueError", "message": "m", "remedy": "r"}
    assert run.error is not None and run.error.details == "Traceback"


def test_executions_of_a_stage_add_up() -> None:
    found = view(stage(1.0), stage(3.0)).summary()["stages"]
    assert [(s["name"], s["count"], s["seconds"], s["bytes"], s["bytes_per_second"]) for s in found] == [
        ("move", 2, 4.0, 200, 50.0)
    ]
    assert found[0]["shape"] == [3, 3]


def test_a_stage_that_copied_nothing_has_no_rate() -> None:
    found = view(stage(1.0, bytes=0, copied=False)).summary()["stages"][0]
    assert found["bytes_per_second"] is None
    assert found["copied"] is False


def test_warnings_of_the_summary_leave_out_those_that_passed() -> None:
    run = view(
        Warning(time_s=1, level="warning", device="host", text="full"),
        Warning(time_s=2, level="passed", device="host", text="over"),
        Note(time_s=3, topic="audit", text="fine"),
    )
    assert run.summary()["warnings"] == ["full"]
    assert [note.text for note in run.notes] == ["fine"]


def test_a_nan_loss_is_shown_as_such_and_spoils_no_median() -> None:
    run = view(step(1, 2.0), step(2, math.nan), step(3, 4.0), step(4, math.inf))
    loss = run.metrics["loss"]
    assert math.isinf(loss.last)
    assert (loss.min, loss.max, loss.median) == (2.0, 4.0, 3.0)
    assert json.loads(json.dumps(run.summary(), allow_nan=False))["metrics"]["loss"]["last"] == "inf"


def test_a_metric_without_one_finite_value_has_no_median() -> None:
    run = view(step(1, math.nan))
    assert run.summary()["metrics"]["loss"] == {
        "first": "nan",
        "last": "nan",
        **dict.fromkeys(("min", "max", "median", "last_20_median")),
    }


def test_a_step_without_a_loss_makes_no_metric() -> None:
    assert view(step(1, None)).summary()["metrics"] == {}


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=200))
def test_medians_are_exact(values: list[float]) -> None:
    metric = MetricView()
    for value in values:
        metric.add(value)
    assert metric.median == statistics.median(values)
    assert metric.last_20_median == statistics.median(values[-20:])
    assert (metric.first, metric.last, metric.min, metric.max) == (values[0], values[-1], min(values), max(values))


def test_a_very_long_run_keeps_a_fair_sample_for_its_median() -> None:
    metric = MetricView()
    for i in range(3 * EXACT_VALUES):
        metric.add(float(i))
    assert metric.median is not None
    assert abs(metric.median / (3 * EXACT_VALUES) - 0.5) < 0.02
    assert (metric.min, metric.max, metric.count) == (0.0, 3.0 * EXACT_VALUES - 1, 3 * EXACT_VALUES)


def test_time_left_follows_the_pace_between_steps_and_not_the_start_before_them() -> None:
    assert view(step(1, 1.0)).seconds_left is None
    assert view(step(1, 1.0, t=40.0), step(2, 1.0, t=41.5)).seconds_left == 3.0
    assert view(step(1, 1.0), step(2, 1.0), finished("finished")).seconds_left is None


def test_time_left_follows_the_newest_steps_of_a_run_that_has_become_slower() -> None:
    run = view(*(replace(step(number, 1.0), steps=1_000) for number in range(1, 501)))
    assert run.seconds_left == pytest.approx(500.0)
    for number in range(501, 521):
        run.apply(replace(step(number, 1.0, t=510.0 + 4 * (number - 500)), steps=1_000))
    assert run.seconds_left == pytest.approx(480 * 4.0, rel=0.05)


def test_ranks_that_begin_again_do_not_make_time_left_longer() -> None:
    run = view(step(1, 1.0), step(2, 1.0), step(3, 1.0))
    run.apply(step(1, 1.0, t=60.0))
    assert run.seconds_left == 3.0
    run.apply(step(2, 1.0, t=61.0))
    assert run.seconds_left == 2.0


def test_a_watched_run_turns_to_the_device_it_turns_out_to_use() -> None:
    run = view()
    run.memory.capacity_bytes = 5
    run.apply(Note(time_s=11, run_id=1, topic=Topic.DEVICE, text="", details={"device": "cuda:1", "simulated": False}))
    assert (run.device, run.simulated, run.memory.capacity_bytes) == ("cuda:1", False, None)
    run.apply(Note(time_s=12, run_id=1, topic=Topic.DEVICE, text="", details={}))
    assert run.device == "cuda:1"


def ran_out(explanation: Explanation | None) -> RunEnd:
    return replace(RAN_OUT, explanation=explanation)


def run(explanation: Explanation | None) -> RunView:
    view = RunView.of(RunStarted(time_s=0.0, run_id=1, workload="pressure", device="sim:0", spec={}))
    view.apply(ran_out(explanation))
    return view


def remedies(*found: Remedy) -> RemediesFound:
    findings = Findings("leak", "A line keeps memory.", found, "Not enough is known.")
    return RemediesFound(time_s=2.0, run_id=1, text="Found.", found=findings)


def test_an_explanation_is_recorded_and_read_again() -> None:
    event = ran_out(EXPLAINED)
    again = event_from_json(event.to_json())
    assert (
        again == event
        and isinstance(again, RunEnd)
        and again.status == "out_of_memory"
        and again.explanation == EXPLAINED
    )


def test_that_memory_ran_out_is_read_though_its_explanation_is_damaged() -> None:
    text = ran_out(EXPLAINED).to_json()
    for damaged in ("{}", '{"verdict": "of a later version"}'):
        data = {**json.loads(text), "explanation": json.loads(damaged)}
        assert event_from_json(json.dumps(data)) == ran_out(None)


def test_what_memory_holds_during_a_run_is_a_note_that_is_read_again() -> None:
    note = MemoryExplained(time_s=2.0, run_id=1, text="Now.", explanation=EXPLAINED)
    data = json.loads(note.to_json())
    assert (data["kind"], data["topic"]) == ("Note", Topic.EXPLANATION)
    assert data["details"] == json.loads(json.dumps(EXPLAINED.to_json()))
    assert event_from_json(note.to_json()) == note


def test_remedies_are_a_note_of_their_own_topic_that_is_read_again() -> None:
    note = remedies(SMALLER)
    data = json.loads(note.to_json())
    assert (data["kind"], data["topic"]) == ("Note", Topic.REMEDIES)
    assert list(data["details"]) == ["verdict", "headline", "remedies", "remedies_note"]
    assert event_from_json(note.to_json()) == note


def test_remedies_of_a_recording_that_has_both_under_one_topic_are_read() -> None:
    note = remedies(SMALLER)
    early = {**json.loads(note.to_json()), "topic": Topic.EXPLANATION}
    assert event_from_json(json.dumps(early)) == note


def test_a_note_of_that_topic_with_nothing_in_it_stays_a_note() -> None:
    for details in ({}, {"parts": 1}, {"remedies": [{}]}):
        note = Note(time_s=2.0, run_id=1, topic=Topic.EXPLANATION, text="Not explained.", details=details)
        assert event_from_json(note.to_json()) == note


def test_a_warnings_cause_is_recorded_and_read_again() -> None:
    warning = Warning(time_s=1.0, level="note", device="SIM-0", text="It grows.", cause="train.py:41", actions=[])
    assert event_from_json(warning.to_json()) == warning


def test_the_summary_carries_the_explanation_with_the_remedies_that_came_later() -> None:
    view = run(EXPLAINED)
    assert view.summary()["error"]["explanation"]["remedies"] == []
    view.apply(remedies(SMALLER))
    told = view.summary()["error"]["explanation"]
    assert [remedy["change"] for remedy in told["remedies"]] == ["batch 8"]
    assert (told["verdict"], told["headline"]) == ("leak", "A line keeps memory.")
    assert told["parts"] == [
        {"kind": "category", "name": "activations", "bytes": 99, "pid": None, "user": "", "command": ""},
        {"kind": "free", "name": "free", "bytes": 1, "pid": None, "user": "", "command": ""},
    ]
    assert view.notes == []


def test_an_error_without_an_explanation_has_none_in_the_summary() -> None:
    view = run(None)
    view.apply(remedies(SMALLER))
    assert view.summary()["error"] == {"kind": "sim", "message": "Full.", "remedy": ""}
    assert [note.topic for note in view.notes] == [Topic.REMEDIES]


def part(name: str, seconds: float, time_s: float = 11.0) -> StageFinished:
    return StageFinished(time_s=time_s, run_id=1, name=name, seconds=seconds)


def test_a_step_that_has_not_ended_has_no_share_in_where_the_time_went() -> None:
    run = view(part("batch, inputs", 0.01), part("forward", 1.0))
    assert run.step_parts is None
    run.apply(part("backward", 2.0))
    run.apply(part("optimizer", 1.0))
    run.apply(step(1, 4.0))
    of_one_step = run.step_parts
    assert of_one_step is not None
    assert of_one_step.shares["backward"] == pytest.approx(2.0 / 4.01)
    run.apply(part("forward", 100.0))
    assert run.step_parts == of_one_step


def test_a_run_stopped_within_a_step_keeps_the_shares_of_those_before_in_a_digest_too() -> None:
    events = (part("forward", 1.0), part("backward", 3.0), step(1, 4.0), part("forward", 100.0))
    run = view(*events)
    run.apply(RunEnd(time_s=20.0, run_id=1, status="cancelled", seconds=10.0, steps=1))
    assert run.step_parts is not None
    assert run.step_parts.shares == {"forward": 0.25, "backward": 0.75}
    restored = view()
    restored.restore(run.digest())
    assert restored.step_parts == run.step_parts


def test_what_a_finished_run_sums_up_at_its_end_counts() -> None:
    run = view(part("forward", 1.0), part("backward", 1.0), step(1, 2.0), part("forward", 2.0), part("backward", 8.0))
    run.apply(RunEnd(time_s=20.0, run_id=1, status="finished", seconds=10.0, steps=1))
    assert run.step_parts is not None
    assert run.step_parts.shares == {"forward": 0.25, "backward": 0.75}
