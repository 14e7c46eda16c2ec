from __future__ import annotations

from typing import Any

from gpudash.telemetry.records import EXPLANATION, Note, OutOfMemory, RunStarted, Warning, event_from_json
from gpudash.telemetry.runs import RunView

EXPLAINED = {"headline": "Memory was full of activations.", "parts": [{"name": "free", "bytes": 1}], "remedies": []}


def run(explanation: dict[str, Any] | None) -> RunView:
    view = RunView.of(RunStarted(time_s=0.0, run_id=1, workload="pressure", device="sim:0", spec={}))
    view.apply(
        OutOfMemory(
            time_s=1.0, run_id=1, error="sim", message="Full.", remedy="", seconds=1.0, steps=3, explanation=explanation
        )
    )
    return view


def remedies(*found: dict[str, Any]) -> Note:
    return Note(time_s=2.0, run_id=1, topic=EXPLANATION, text="Found.", details={"remedies": list(found)})


def test_an_explanation_is_recorded_and_read_again() -> None:
    event = OutOfMemory(
        time_s=1.0, run_id=1, error="sim", message="m", remedy="r", seconds=1.0, steps=3, explanation=EXPLAINED
    )
    assert event_from_json(event.to_json()) == event


def test_a_warnings_cause_is_recorded_and_read_again() -> None:
    warning = Warning(time_s=1.0, level="note", device="SIM-0", text="It grows.", cause="train.py:41", actions=[])
    assert event_from_json(warning.to_json()) == warning


def test_the_summary_carries_the_explanation_with_the_remedies_that_came_later() -> None:
    view = run(EXPLAINED)
    assert view.summary()["error"]["explanation"]["remedies"] == []
    view.apply(remedies({"change": "batch 8"}))
    told = view.summary()["error"]["explanation"]
    assert told["remedies"] == [{"change": "batch 8"}] and told["headline"] == EXPLAINED["headline"]
    assert view.notes == []


def test_an_error_without_an_explanation_has_none_in_the_summary() -> None:
    view = run(None)
    view.apply(remedies({"change": "batch 8"}))
    assert view.summary()["error"] == {"kind": "sim", "message": "Full.", "remedy": ""}
    assert [note.topic for note in view.notes] == [EXPLANATION]
