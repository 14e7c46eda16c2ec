"""What an out-of-memory of a watched program leaves behind, whole or in part."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gpudash.agent.server import MOST_CONNECTIONS
from gpudash.agent.wire import Message
from gpudash.session.watching import out_of_memory
from gpudash.session.watching.memory import WatchedMemory
from gpudash.session.watching.messages.program_news import ProgramNews
from gpudash.session.watching.out_of_memory import FlightRecorder, OutOfMemoryReports, Refused, new_report
from gpudash.session.watching.output.log import OutputLine
from gpudash.system.settings import Settings, reports_folder
from gpudash.telemetry.records import Note, RunEnd, Sample, StepFinished
from gpudash.units import GIB, MIB
from tests.unit.session.test_program_news import peer
from tests.unit.session.watched import Surrounded

FACTS = {"command": ["python", "train.py"], "torch_version": "2.5.0"}


@pytest.fixture
def around() -> Surrounded:
    """A session that has read for a while."""
    found = Surrounded(GIB)
    for tick in range(1000):
        time_s = tick / 10
        found.emit(Sample(time_s, "gpu", "SIM-0", {"used_bytes": tick * MIB, "gpu_utilisation": 0.5}))
        found.emit(StepFinished(time_s=time_s, run_id=1, step=tick, steps=0, seconds=0.1, loss=1 / (tick + 1)))
    found.emit(Sample(99.9, "process", "SIM-0", {"pid": 7, "name": "python", "memory_bytes": MIB}))
    found.output.add([OutputLine("stdout", str(number)) for number in range(2000)])
    found.now_s = 100.0
    return found


def recorder(around: Surrounded, folder: Path) -> FlightRecorder:
    return FlightRecorder(folder, "train.py", around.store, around.output, lambda: FACTS)


def test_the_report_holds_the_last_minute_the_settings_the_processes_and_the_output(
    around: Surrounded, tmp_path: Path
) -> None:
    found = recorder(around, tmp_path / "reports")
    with pytest.raises(ValueError, match="left no memory snapshot"):
        found.record(Refused("sim:0", None, 99.9, GIB, 2 * MIB, step=999), lambda: False)
    folder = found.folder
    assert folder is not None and folder.name.endswith("-train")
    assert folder.stat().st_mode & 0o077 == 0
    with (folder / "curves.csv").open() as file:
        rows = list(csv.DictReader(file))
    times = [float(row["time_s"]) for row in rows]
    assert min(times) >= 39.9 and max(times) == 99.9
    used = [row for row in rows if row["metric"] == "used_bytes"]
    assert (used[-1]["table"], used[-1]["device"], int(used[-1]["value"])) == ("gpu", "SIM-0", 999 * MIB)
    assert {row["metric"] for row in rows} >= {"used_bytes", "loss", "gpu_utilisation"}
    settings = json.loads((folder / "settings.json").read_text())
    assert settings["torch_version"] == "2.5.0"
    assert settings["out_of_memory"]["requested_bytes"] == 2 * MIB
    assert json.loads((folder / "processes.json").read_text())[0]["pid"] == 7
    output = (folder / "output.txt").read_text().splitlines()
    assert (len(output), output[-1]) == (1000, "1999")


def test_two_reports_of_one_second_have_two_folders(tmp_path: Path) -> None:
    folders = {new_report(tmp_path, "a b/../train.py") for _ in range(3)}
    assert len(folders) == 3
    assert {folder.parent for folder in folders} == {tmp_path}


class Explaining:
    """Stands in for reading a snapshot: says what it is told to."""

    def __init__(self, error: Exception | None = None) -> None:
        self.requested: list[Refused] = []
        self.error = error

    def __call__(self, snapshot: Path, refused: Refused, ended: Any) -> None:
        assert snapshot.read_bytes() == b"a snapshot"
        self.requested.append(refused)
        if self.error is not None:
            raise self.error


def reports(around: Surrounded) -> tuple[OutOfMemoryReports, ProgramNews, WatchedMemory]:
    wiring = around.wiring
    around.now_s = 50.0
    news = ProgramNews(1, 7, around.emit, lambda: around.now_s, 1_000.0)
    around.now_s = 100.0
    memory = WatchedMemory(1, wiring.machine, wiring.probe, wiring.emit, wiring.clock)
    return OutOfMemoryReports(1, "train.py", wiring, lambda: FACTS), news, memory


def oom(snapshot: str | None, **facts: Any) -> Message:
    figures = {"device": "sim:0", "requested_bytes": 2 * MIB, "capacity_bytes": GIB, "free_bytes": MIB, "step": 5}
    return {"type": "oom", **figures, "snapshot": snapshot, "time_us": 1_099_000_000, **facts}


def staged(found: OutOfMemoryReports) -> str:
    path = Path(found.staging) / "7-1.pickle"
    path.write_bytes(b"a snapshot")
    return str(path)


def test_an_out_of_memory_becomes_one_folder_however_often_it_comes(
    around: Surrounded, monkeypatch: pytest.MonkeyPatch
) -> None:
    explaining = Explaining()
    monkeypatch.setattr(out_of_memory, "explained", explaining)
    found, news, memory = reports(around)
    found.note_steps(7, {"steps": [[4, 1_098_000_000, None, None], "x", [1]]})
    for _ in range(2):
        found.refused(news, peer(), oom(staged(found)), memory)
        found.finish()
    found.close()
    assert list(reports_folder().iterdir()) == [found.folder]
    assert explaining.requested[0].steps == ((1_098_000_000, 5),), "a step begins where the one before was told"
    assert explaining.requested[0].time_s == 99.0
    assert (
        around.texts("out of memory")[0]
        == "Memory of sim:0 ran out: a segment of 2 MiB was asked for and 1 MiB were free."
    )
    (note, _) = around.events(Note, topic="report")
    assert note.details["folder"] == str(found.folder)
    assert found.newest is not None and found.newest["who"] == ""


def test_the_context_of_a_program_that_has_told_no_figures_yet_is_known(
    around: Surrounded, monkeypatch: pytest.MonkeyPatch
) -> None:
    explaining = Explaining()
    monkeypatch.setattr(out_of_memory, "explained", explaining)
    found, news, memory = reports(around)
    for context in (300 * MIB, 0):
        found.refused(news, peer(), oom(staged(found), context_bytes=context), memory)
        found.finish()
    found.close()
    assert [(asked.around.context_bytes, asked.is_context) for asked in explaining.requested] == [
        (300 * MIB, False),
        (0, True),
    ]


def test_steps_that_are_counted_have_the_numbers_that_blocks_are_born_under(
    around: Surrounded, monkeypatch: pytest.MonkeyPatch
) -> None:
    explaining = Explaining()
    monkeypatch.setattr(out_of_memory, "explained", explaining)
    found, news, memory = reports(around)
    for pid in range(1000):
        found.note_steps(pid, {"steps": [[1, 1, None, None]]})
    found.note_steps(7, {"steps": [[4, 1_098_000_000, None, None]], "source": "optimizer"})
    found.refused(news, peer(), oom(staged(found)), memory)
    found.finish()
    found.close()
    assert explaining.requested[0].steps == ((1_098_000_000, 4),)
    assert len(found._steps) == MOST_CONNECTIONS


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ValueError("The snapshot is cut short."), "could not be explained: The snapshot is cut short."),
        (ZeroDivisionError("of ours"), "could not be explained: ZeroDivisionError: of ours."),
    ],
)
def test_a_snapshot_that_cannot_be_explained_costs_only_the_explanation(
    around: Surrounded, monkeypatch: pytest.MonkeyPatch, error: Exception, words: str
) -> None:
    monkeypatch.setattr(out_of_memory, "explained", Explaining(error))
    found, news, memory = reports(around)
    found.refused(news, peer(), oom(staged(found)), memory)
    found.finish()
    found.close()
    assert found.folder is not None and (found.folder / "snapshot.pickle").is_file()
    assert words in around.texts("report")[0]
    ending = RunEnd(
        status="out_of_memory", time_s=1, run_id=1, error="sim", message="m", remedy="r", seconds=1, steps=1
    )
    assert found.explained(ending) is ending


def test_a_program_has_no_say_in_which_other_file_is_moved(around: Surrounded, tmp_path: Path) -> None:
    found, news, memory = reports(around)
    mine = tmp_path / "mine.pickle"
    mine.write_bytes(b"mine")
    (Path(found.staging) / "link").symlink_to(mine)
    for path in (str(mine), f"{found.staging}/link", f"{found.staging}/../../mine.pickle", "", 3):
        found.refused(news, peer(), oom(path), memory)  # type: ignore[arg-type]
        found.finish()
    found.close()
    assert mine.read_bytes() == b"mine"
    assert found.folder is not None and not (found.folder / "snapshot.pickle").exists()


def test_nothing_can_be_written_and_the_run_goes_on(around: Surrounded, monkeypatch: pytest.MonkeyPatch) -> None:
    reports_folder().parent.mkdir(parents=True, exist_ok=True)
    reports_folder().write_text("a file in the way")
    found, news, memory = reports(around)
    assert found.staging == ""
    found.refused(news, peer(), oom(None), memory)
    found.finish()
    found.close()
    assert around.texts("report") == [f"Its report could not be written: File exists ({reports_folder()})."]
    with pytest.raises(OSError, match="exists"):
        found.request()


def test_old_reports_go_to_the_trash(around: Surrounded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(out_of_memory, "explained", Explaining())
    around.settings = Settings(reports_keep=1)
    old = new_report(reports_folder(), "old")
    (old / "snapshot.pickle").write_bytes(b"x")
    found, news, memory = reports(around)
    found.refused(news, peer(), oom(staged(found)), memory)
    found.finish()
    found.close()
    assert list(reports_folder().iterdir()) == [found.folder]
    assert (reports_folder().parent / "trash" / old.name / "snapshot.pickle").is_file()


def test_a_snapshot_that_was_asked_for_is_told_and_one_that_never_came_leaves_nothing(around: Surrounded) -> None:
    found, news, _ = reports(around)
    message = found.request()
    assert Path(message["path"]).parent.is_dir()
    found.saved(news, {"path": None, "problem": "no room"})
    assert not Path(message["path"]).parent.exists()
    message = found.request()
    Path(message["path"]).write_bytes(b"a snapshot")
    found.saved(news, {"path": message["path"]})
    found.request()
    found.close()
    assert list(reports_folder().iterdir()) == [Path(message["path"]).parent]
    refused, saved = around.events(Note, topic="snapshot")
    assert refused.text == "The program could not save a snapshot: no room"
    assert saved.details == {"path": message["path"]}


def test_nobody_waits_for_an_explanation_that_was_given_up(around: Surrounded, monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(_snapshot: Path, _refused: Refused, ended: Any) -> None:
        while not ended():
            found.give_up()

    monkeypatch.setattr(out_of_memory, "explained", endless)
    found, news, memory = reports(around)
    found.refused(news, peer(), oom(staged(found)), memory)
    found.finish()
    found.close()
    assert found._thread is not None and not found._thread.is_alive()


def test_the_variables_of_the_allocator_are_kept() -> None:
    environment: Mapping[str, str] = {"PYTORCH_ALLOC_CONF": "expandable_segments:True", "SECRET": "x"}
    found = out_of_memory.allocator_environment(environment)
    assert found == {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
