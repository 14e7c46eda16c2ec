"""Cells of CSV files that a program which calculates with tables would run."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from gpudash.telemetry.export.csv_table import harmless
from gpudash.telemetry.export.writing import export
from gpudash.telemetry.recording.reading import open_recording
from gpudash.telemetry.recording.recorder import Recorder
from gpudash.telemetry.records import Sample


@pytest.mark.parametrize(
    "text",
    ["=1+1", "+A1", "-A1", "@SUM(A1)", "\t=1", "\r=1", "=HYPERLINK(0)", "-1+cmd|' /C calc'!A0", "+1*2", "'=1"],
)
def test_what_begins_as_a_formula_is_marked_as_text(text: str) -> None:
    assert harmless(text) == f"'{text}"


@pytest.mark.parametrize("text", ["", "-3", "+4.00 MiB", "-1e-05", "-inf", "+12 %", "-3 GB/s", "train.py", "a=b"])
def test_numbers_and_other_texts_stay_as_they_are(text: str) -> None:
    assert harmless(text) == text


def test_names_in_an_exported_recording_are_no_formulas(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "run.gpudash", meta={})
    values = {"pid": 7, "name": "=HYPERLINK(0)", "user": "@mia", "memory_bytes": -5}
    recorder.add(Sample(1.0, "process", "+GPU", values))
    recorder.close("closed")
    with open_recording(tmp_path / "run.gpudash") as recording:
        export(recording, "csv", tmp_path / "out.csv")
    with (tmp_path / "out.csv").open(encoding="utf-8", newline="") as file:
        told = {row["metric"]: row for row in csv.DictReader(file)}
    assert told["name"]["value"] == "'=HYPERLINK(0)" and told["user"]["value"] == "'@mia"
    assert {row["device"] for row in told.values()} == {"'+GPU"}
    assert told["memory_bytes"]["value"] == "-5"
