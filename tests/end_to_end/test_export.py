"""`gpudash export` as a command, and its report in a real browser without a network."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest
from PySide6.QtGui import QImage

from gpudash.cli import run
from gpudash.telemetry.recording.recorder import Recorder
from gpudash.telemetry.records import RunEnd, RunStarted, Sample, StepFinished
from gpudash.units import GIB, MIB
from tests.end_to_end.conftest import Command, Outcome
from tests.programs import program
from tests.unit.telemetry.trace_format import validate

SKY, ORANGE, CAPACITY = (0x0B, 0x78, 0xB5), (0xB3, 0x62, 0x00), (0xB4, 0x23, 0x18)
"""Colours of the report's memory and loss curves and of the capacity, on a light ground."""

DRAWN = ("png", "svg")
"""Formats that need a process of their own, without a display."""


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    """Thirty seconds of a training run that fills the memory."""
    recorder = Recorder(tmp_path / "run.gpudash", meta={"wall_clock_origin": "2026-11-21T10:15:00+00:00"})
    recorder.add(RunStarted(time_s=0.5, run_id=1, workload="training", device="cpu", spec={"steps": 300}))
    for step in range(1, 301):
        time_s = 0.5 + step / 10
        memory = {"used_bytes": 6 * GIB + step * 10 * MIB, "total_bytes": 10 * GIB, "process_bytes": step * 10 * MIB}
        recorder.add(Sample(time_s, "host", None, {**memory, "cpu_utilisation": 0.5}))
        recorder.add(
            StepFinished(time_s=time_s, run_id=1, step=step, steps=300, seconds=0.1, loss=5 / step, throughput=320.0)
        )
    recorder.add(RunEnd(time_s=30.6, run_id=1, status="finished", seconds=30.1, steps=300, result={}))
    recorder.close()
    return recorder.path


def test_every_format_is_written_and_the_recording_stays_as_it_was(
    gpudash: Command, recording: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = recording.read_bytes()
    beginnings = {
        "csv": b"time_s,table,",
        "parquet": b"PAR1",
        "json": b'{"meta"',
        "png": b"\x89PNG",
        "svg": b"<?xml",
        "trace": b'{"displayTimeUnit"',
        "html": b"<!doctype html>",
    }
    for to, beginning in beginnings.items():
        out = tmp_path / f"out.{to}"
        asked = ("export", str(recording), "--to", to, "-o", str(out))
        outcome = gpudash(*asked) if to in DRAWN else Outcome(run(list(asked)), *capfd.readouterr())
        assert (outcome.code, outcome.stdout, outcome.stderr) == (0, "", f"Wrote {out}\n")
        assert out.read_bytes().startswith(beginning)
    validate(json.loads((tmp_path / "out.trace").read_text(encoding="utf-8")))
    image = QImage(str(tmp_path / "out.png"))
    assert (image.width(), image.height()) == (1280, 900)
    assert recording.read_bytes() == before
    written = {path.name for path in tmp_path.iterdir()} - {"home", recording.name}
    assert written == {f"out.{to}" for to in beginnings}


@pytest.fixture
def browser() -> str:
    """A Chromium; where there is none and none is demanded, what it would show stays unseen."""
    return program("chromium", "chromium-browser", "google-chrome")


def near(image: np.ndarray, colour: tuple[int, int, int]) -> int:
    """How many pixels have a colour."""
    return int(np.count_nonzero(np.abs(image[:, :, ::-1].astype(int) - colour).max(axis=2) < 12))


def test_the_report_shows_its_plots_in_a_browser_without_a_network(
    gpudash: Command, recording: Path, tmp_path: Path, browser: str
) -> None:
    page = tmp_path / "report.html"
    assert gpudash("export", str(recording), "--to", "html", "-o", str(page)).code == 0
    shot = tmp_path / "shot.png"
    common = (
        browser,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--proxy-server=127.0.0.1:9",  # nobody answers there
        f"--user-data-dir={tmp_path / 'profile'}",
        "--window-size=1280,1600",
    )
    url = page.as_uri()
    subprocess.run([*common, f"--screenshot={shot}", url], capture_output=True, timeout=120, check=True)
    hostile = tmp_path / "hostile.html"
    script = "<script>document.title = 'executed'</script>"
    hostile.write_text(page.read_text(encoding="utf-8").replace("</body>", f"{script}</body>"), encoding="utf-8")

    def shown(url: str) -> str:
        """What the browser made of a page."""
        command = [*common, "--dump-dom", url]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout

    dom, with_script = shown(url), shown(hostile.as_uri())
    assert script in with_script and "<title>executed" not in with_script
    assert dom.count('role="img"') == 4
    assert "Finished after 30.1 s, 300 steps." in dom
    image = QImage(str(shot)).convertToFormat(QImage.Format.Format_RGB32)
    rows = np.frombuffer(image.constBits(), np.uint8).reshape(image.height(), image.width(), 4)[:, :, :3]
    assert near(rows, SKY) > 500  # the curve of memory, and of throughput
    assert near(rows, ORANGE) > 300  # the curve of the loss
    assert near(rows, CAPACITY) > 200  # the dashed line of the capacity
