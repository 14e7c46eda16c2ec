"""The report of a run with ranks has their curves and a table; that of any other has neither."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpudash.session.recordings.joining import JoinedRecording
from gpudash.session.report import write_report
from gpudash.session.report.page import rank_table
from gpudash.telemetry.recording.recorder import Recorder
from gpudash.telemetry.records import RunFinished, RunStarted
from tests.unit.session.node_recordings import recorded


def written(recording: Path, out: Path) -> str:
    write_report(recording, out)
    return out.read_text()


def test_each_rank_has_a_curve_and_a_row(tmp_path: Path) -> None:
    page = written(recorded(tmp_path / "one.gpudash", (0, 1)), tmp_path / "report.html")
    for words in ("Memory by rank", "Step time by rank", "Loss by rank", "<h3>Ranks</h3>", "rank 1 at most"):
        assert words in page
    assert "of the ranks" not in page


@pytest.mark.parametrize("nodes", [((0, 1, 2), (3, 4))])
def test_many_ranks_have_an_envelope(tmp_path: Path, nodes: tuple[tuple[int, ...], ...]) -> None:
    paths = [recorded(tmp_path / f"{ranks[0]}.gpudash", ranks, world_size=5) for ranks in nodes]
    joined = JoinedRecording(paths)
    page = written(joined.path, tmp_path / "report.html")
    joined.remove()
    assert "highest of the ranks" in page and "rank 4 at most" not in page


def test_a_run_without_ranks_has_neither(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "a.gpudash", meta={})
    recorder.add(RunStarted(time_s=1.0, run_id=1, workload="watch", device="cpu", spec={}))
    recorder.add(RunFinished(time_s=2.0, run_id=1, status="finished", seconds=1.0, steps=0, result={}))
    recorder.close()
    page = written(recorder.path, tmp_path / "report.html")
    assert "by rank" not in page and "<h3>Ranks</h3>" not in page


def test_what_a_foreign_recording_says_of_ranks_is_text_and_nothing_else() -> None:
    row = {"rank": "<b>", "host": "<script>", "device": None, "step_seconds_median": "1", "peak_used_bytes": True}
    (_title, found, equal) = rank_table({"ranks": [row, "x"], "parameters_equal": False})
    assert "<script>" not in found and "&lt;script&gt;" in found and "<b>" not in found
    assert equal == "<p>The parameters are NOT equal across the ranks.</p>"
    assert rank_table({"ranks": "x"}) == [] == rank_table(None)
