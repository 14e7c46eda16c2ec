from __future__ import annotations

import json

from gpudash.telemetry.explanation import Evidence, Explanation, Findings, Part, Remedy, StackLine, Where
from gpudash.telemetry.explanation import Owner as CallSite
from gpudash.telemetry.records import (
    MemoryExplained,
    Note,
    OutOfMemory,
    RemediesFound,
    RunStarted,
    Topic,
    Warning,
    event_from_json,
)
from gpudash.telemetry.runs import RunView

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


def ran_out(explanation: Explanation | None) -> OutOfMemory:
    return OutOfMemory(
        time_s=1.0, run_id=1, error="sim", message="Full.", remedy="", seconds=1.0, steps=3, explanation=explanation
    )


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
    assert again == event and isinstance(again, OutOfMemory) and again.explanation == EXPLAINED


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
        {"kind": "category", "name": "activations", "bytes": 99, "pid": None, "user": ""},
        {"kind": "free", "name": "free", "bytes": 1, "pid": None, "user": ""},
    ]
    assert view.notes == []


def test_an_error_without_an_explanation_has_none_in_the_summary() -> None:
    view = run(None)
    view.apply(remedies(SMALLER))
    assert view.summary()["error"] == {"kind": "sim", "message": "Full.", "remedy": ""}
    assert [note.topic for note in view.notes] == [Topic.REMEDIES]
