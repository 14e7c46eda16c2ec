"""The guard stops a run before memory is short; what it held is back, and the session goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gpudash.telemetry.recording.reading import open_recording
from gpudash.telemetry.records import RunEnd, RunStarted, Sample, Warning
from gpudash.units import GIB, MIB
from tests.end_to_end.conftest import environment
from tests.programs import told_by


def test_memory_is_back_after_the_guard_and_the_next_run_finishes(home: Path, tmp_path: Path) -> None:
    recording = tmp_path / "guarded.gpudash"
    first, stopped, last = told_by("end_to_end.guarded", str(recording), environment=environment(home))
    assert (first["status"], stopped["status"], last["status"]) == ("finished", "out_of_memory", "finished")
    assert stopped["error"]["kind"] == "guard"
    assert first["warnings"] == last["warnings"] == []
    with open_recording(recording) as opened:
        records = list(opened.records())
    began = [record.time_s for record in records if isinstance(record, RunStarted)]
    (ended,) = (record.time_s for record in records if isinstance(record, RunEnd) and record.status == "out_of_memory")
    told = [record.time_s for record in records if isinstance(record, Warning) and record.level != "passed"]
    assert told
    assert began[1] < min(told) <= ended
    before = max(resident(records, began[1] - 0.2, began[1]))
    during = max(resident(records, began[1], ended))
    after = resident(records, ended + 0.05, began[2] + 0.05) or resident(records, ended, began[2] + 0.1)
    assert during > before + GIB / 2
    assert after[-1] < before + 64 * MIB


def resident(records: list[Any], since_s: float, until_s: float) -> list[int]:
    """This process's resident memory at the readings from ``since_s`` to ``until_s``."""
    return [
        int(record.values["process_bytes"])
        for record in records
        if isinstance(record, Sample) and record.table == "host" and since_s <= record.time_s <= until_s
    ]
