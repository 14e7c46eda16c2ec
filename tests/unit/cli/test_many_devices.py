"""A small recording that names 50,000 devices is read within bounds, by every command that reads one."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from gpudash.cli import run
from gpudash.telemetry.recording.reading import MOST_DEVICES, open_recording
from tests.unit.telemetry.comparing.made import MADE

DEVICES = 50_000

SENTENCE = f"more than {MOST_DEVICES:,} devices in the table gpu; those of further ones are left out"


@pytest.fixture
def crowded(tmp_path: Path) -> Path:
    path = tmp_path / "crowded.gpudash"
    MADE.record(path)
    with closing(sqlite3.connect(path)) as database, database:
        database.executemany(
            "INSERT INTO gpu (time_s, device, used_bytes) VALUES (1.0, ?, ?)",
            ((f"GPU-{number}", number) for number in range(DEVICES)),
        )
    assert path.stat().st_size < 3 * 2**20
    return path


@pytest.mark.parametrize("to", ["csv", "html"])
def test_it_is_exported_up_to_a_bound_and_that_is_said(
    crowded: Path, to: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = crowded.with_suffix(f".{to}")
    assert run(["export", str(crowded), "--to", to, "--out", str(out)]) == 0
    assert SENTENCE in capsys.readouterr().err
    assert out.stat().st_size < 3 * 2**20


def test_it_is_compared_and_the_bound_is_said(crowded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["compare", str(crowded), str(crowded)]) == 0
    assert SENTENCE in " ".join(capsys.readouterr().out.split())


def test_the_devices_that_came_first_are_taken_however_often_they_are_asked_for(crowded: Path) -> None:
    with open_recording(crowded) as recording:
        first = {sample.device for sample in recording.samples("gpu")}
        assert len(first) == MOST_DEVICES
        assert {sample.device for sample in recording.samples("gpu")} == first
        assert len(recording.notices) == 1 and recording.notices[0].endswith(SENTENCE)
