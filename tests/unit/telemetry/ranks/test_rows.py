"""The readings of ranks in recordings: written, read back, exported; recordings from before they were are read, too."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from io import StringIO
from pathlib import Path

import pytest

from gpudash.telemetry.export import trace
from gpudash.telemetry.recording.pages import Pages
from gpudash.telemetry.recording.reading import open_recording
from gpudash.telemetry.recording.recorder import Recorder, crc32
from gpudash.telemetry.records import Sample
from gpudash.telemetry.store import Store

ROW = {"step": 3, "step_s": 0.1, "compute_s": 0.06, "communication_s": 0.01, "waiting_s": 0.03, "loss": 0.5}


def written(path: Path, count: int = 12) -> Path:
    recorder, store = Recorder(path, meta={}), Store()
    recorder.summarise(store)
    for number in range(count):
        for sample in (
            Sample(number + 0.1, "host", None, {"used_bytes": number}),
            Sample(number + 0.2, "rank", "0", {**ROW, "step": number}),
            Sample(number + 0.3, "rank", "1", {"used_bytes": 7}),
            Sample(number + 0.3, "rank", "highest", {"used_bytes": 7}),
        ):
            store.apply(sample)
            recorder.add(sample)
    recorder.close()
    return path


def without_ranks(path: Path) -> Path:
    """The same as a gpudash would have written it that knew of no ranks."""
    with closing(sqlite3.connect(path)) as database, database:
        database.row_factory = sqlite3.Row
        database.execute("DROP TABLE rank")
        pages = database.execute("SELECT * FROM page ORDER BY id").fetchall()
        names = [row[1] for row in database.execute("PRAGMA table_info(page)") if row[1] != "rank"]
        database.execute("ALTER TABLE page DROP COLUMN rank")
        for page in pages:
            facts = tuple(page[name] for name in names if name != "crc")
            database.execute("UPDATE page SET crc = ? WHERE id = ?", (crc32(facts), page["id"]))
    return path


def test_rows_of_ranks_are_read_back_as_they_were(tmp_path: Path) -> None:
    with open_recording(written(tmp_path / "a.gpudash", 1)) as recording:
        step, memory, envelope = recording.samples("rank")
        assert (step.device, step.values) == ("0", {**ROW, "step": 0})
        assert (memory.device, memory.values, envelope.device) == ("1", {"used_bytes": 7}, "highest")


def test_a_recording_without_the_table_is_read_without_a_complaint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpudash.telemetry.recording.recorder.PAGE_ROWS", 16)
    path = without_ranks(written(tmp_path / "old.gpudash"))
    with open_recording(path) as recording:
        assert [sample.values["used_bytes"] for sample in recording.samples("host")] == list(range(12))
        assert list(recording.samples("rank")) == [] and list(recording.samples_before("rank", 99)) == []
        assert len(list(recording.records())) == 12
        assert recording.last_rows()["rank"] == 0
        found = Pages(recording)
        assert len(found.pages) == 3 and not found.damaged
        assert found.pages[-1].rows["host"] == 12 and found.pages[-1].rows["rank"] == 0
        assert recording.notices == []


def test_pages_tell_where_the_ranks_stood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpudash.telemetry.recording.recorder.PAGE_ROWS", 16)
    with open_recording(written(tmp_path / "new.gpudash")) as recording:
        found = Pages(recording)
        assert found.pages[-1].rows["rank"] == 36 and ("rank", "step_s", "0") in found.keys


def test_a_trace_has_memory_and_parts_of_the_step_of_each_rank(tmp_path: Path) -> None:
    with open_recording(written(tmp_path / "a.gpudash", 1)) as recording:
        file = StringIO()
        trace.write(recording, file, iter)
    counters = [entry for entry in json.loads(file.getvalue())["traceEvents"] if entry["ph"] == "C"]
    found = {entry["name"]: entry["args"] for entry in counters}
    assert found["step of rank 0"] == {"compute_s": 0.06, "communication_s": 0.01, "waiting_s": 0.03}
    assert found["memory of rank 1"] == {"used_bytes": 7}
    assert not any("highest" in name for name in found)
