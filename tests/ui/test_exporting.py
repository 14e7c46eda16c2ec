"""File > Export: written in the background, told with the path, cancelled without a trace."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest
from PySide6.QtGui import QDesktopServices, QImage
from PySide6.QtWidgets import QMessageBox, QProgressDialog, QPushButton
from pytestqt.qtbot import QtBot

from gpudash.session import Replay
from gpudash.telemetry.export.trackers import TrackerFormat
from gpudash.telemetry.export.writing import OnProgress
from gpudash.ui.features import export
from gpudash.ui.features.export import NO_GRAPH, NO_RECORDING, WORDING, Exporting, ExportJob, Kind
from gpudash.ui.features.recordings import open_comparison
from gpudash.ui.widgets.file_dialog import FileDialog
from gpudash.ui.window.main_window import MainWindow
from tests.ui.conftest import OpenWindow
from tests.ui.fake_document import FakeDocument
from tests.ui.fake_session import FakeSession
from tests.ui.parts import part
from tests.ui.test_picture import recorded

Choose = Callable[[Path | None], None]


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    (tmp_path / "kept").mkdir()
    return recorded(tmp_path / "kept" / "run.gpudash", 2.0)


@pytest.fixture
def window(open_window: OpenWindow, recording: Path) -> MainWindow:
    return open_window(Replay(recording))


@pytest.fixture
def choose(monkeypatch: pytest.MonkeyPatch) -> Choose:
    """What the user picks in the dialog that asks for a file."""

    def pick(path: Path | None) -> None:
        monkeypatch.setattr(FileDialog, "ask_to_save", lambda *_: "" if path is None else str(path))

    return pick


def wait(window: MainWindow, qtbot: QtBot) -> None:
    qtbot.waitUntil(lambda: not part(window, Exporting).busy, timeout=20_000)


def test_every_kind_of_file_is_written_and_told_with_its_path(
    window: MainWindow, choose: Choose, tmp_path: Path, qtbot: QtBot
) -> None:
    beginnings: dict[Kind, bytes] = {
        "csv": b"time_s,",
        "parquet": b"PAR1",
        "json": b'{"meta"',
        "trace": b'{"displayTimeUnit"',
        "html": b"<!doctype html>",
    }
    for kind, beginning in beginnings.items():
        out = tmp_path / f"out{WORDING[kind].suffix}"
        choose(out)
        window.menus.actions[f"file.export.{kind}"].trigger()
        wait(window, qtbot)
        assert out.read_bytes().startswith(beginning)
        assert window.workspace.notice.text == f"Wrote {out}."
    assert not [thread for thread in threading.enumerate() if thread.name == "gpudash-export"]


def test_folders_for_trackers_are_those_of_the_command_and_one_that_holds_something_is_left_alone(
    window: MainWindow, choose: Choose, tmp_path: Path, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert set(get_args(TrackerFormat)) <= set(WORDING)
    monkeypatch.setitem(sys.modules, "mlflow", None)
    said = {}
    for kind, name in (("tensorboard", "logs"), ("mlflow", "mlruns"), ("wandb", "kept")):
        choose(tmp_path / name)
        window.menus.actions[f"file.export.{kind}"].trigger()
        wait(window, qtbot)
        said[name] = window.workspace.notice.text
    logs = tmp_path / "logs"
    assert said["logs"] == f"Wrote {logs}. tensorboard --logdir {logs} shows it." and (logs / "machine").is_dir()
    assert said["mlruns"].endswith('run: pip install "gpudash[trackers]".') and not (tmp_path / "mlruns").exists()
    assert said["kept"] == f"{tmp_path / 'kept'} exists already; name a folder that is new or empty."


def test_the_recording_in_front_is_meant_and_not_that_of_the_session(
    open_window: OpenWindow, recording: Path, choose: Choose, tmp_path: Path, qtbot: QtBot
) -> None:
    window = open_window(FakeSession(recording=tmp_path / "session.gpudash"))
    window.workspace.open(recording)
    qtbot.waitUntil(lambda: _shown(window) == recording, timeout=20_000)
    choose(tmp_path / "out.html")
    window.menus.actions["file.export.html"].trigger()
    wait(window, qtbot)
    assert "run.gpudash" in (tmp_path / "out.html").read_text(encoding="utf-8")


def _shown(window: MainWindow) -> Path | None:
    """The recording in front, once it has been read."""
    window.workspace.refresh()
    dashboard = window.workspace.front_dashboard
    return None if dashboard is None else dashboard.session.recording_path


def test_a_document_that_is_no_recording_has_nothing_to_export(
    window: MainWindow, choose: Choose, tmp_path: Path
) -> None:
    window.workspace.add(FakeDocument(tmp_path / "fake", window.workspace.colours), "fake", "fake")
    choose(tmp_path / "out")
    for kind in ("html", "png", "svg", "range"):
        action = window.menus.actions[f"file.export.{kind}"]
        window.menus.refresh()
        assert not action.isEnabled()
        reason = NO_RECORDING if kind == "html" else NO_GRAPH
        assert reason in action.toolTip()
    assert not (tmp_path / "out").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_the_graph_of_a_comparison_is_written_and_what_is_of_one_recording_is_not_offered(
    window: MainWindow, choose: Choose, recording: Path, tmp_path: Path, qtbot: QtBot
) -> None:
    open_comparison(window.workspace, [recording, recorded(tmp_path / "other.gpudash", 2.0)])
    document = window.workspace.front
    assert document is not None

    def ready() -> bool:
        window.workspace.refresh()
        return document.save_picture is not None

    qtbot.waitUntil(ready)
    window.menus.refresh()
    actions = window.menus.actions
    assert not any(actions[f"file.export.{kind}"].isEnabled() for kind in ("html", "csv", "range"))
    choose(tmp_path / "graph.png")
    actions["file.export.png"].trigger()
    image = QImage(str(tmp_path / "graph.png"))
    assert image.width() > 300 and image.height() > 300 and document.title in image.text("Title")
    choose(tmp_path / "graph.svg")
    actions["file.export.svg"].trigger()
    assert "2 runs, compared with A" in (tmp_path / "graph.svg").read_text(encoding="utf-8")


def test_a_picture_has_the_name_of_the_run_that_it_shows(
    window: MainWindow, choose: Choose, tmp_path: Path, qtbot: QtBot
) -> None:
    choose(tmp_path / "graph.png")
    window.workspace.refresh()
    window.menus.actions["file.export.png"].trigger()
    dashboard = window.workspace.dashboard
    with dashboard.session.store.lock:
        run = dashboard.session.store.run
        assert run is not None
        name = dashboard.runs.name(run)
    assert name and QImage(str(tmp_path / "graph.png")).text("Title").startswith(f"{name}, ")


def test_the_graph_is_written_as_svg(window: MainWindow, choose: Choose, tmp_path: Path) -> None:
    choose(tmp_path / "graph")
    window.menus.actions["file.export.svg"].trigger()
    assert "recorded with gpudash" in (tmp_path / "graph.svg").read_text(encoding="utf-8")
    assert window.workspace.notice.text == f"Wrote {tmp_path / 'graph.svg'}."


def test_what_is_seen_of_the_recording_in_front_is_written_and_told(
    window: MainWindow, choose: Choose, recording: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(QMessageBox, "exec", lambda _box: QMessageBox.StandardButton.No)
    before = recording.read_bytes()
    for kind, suffix in (("png", ".png"), ("range", ".csv")):
        out = tmp_path / f"seen{suffix}"
        choose(tmp_path / "seen")
        window.menus.actions[f"file.export.{kind}"].trigger()
        assert out.stat().st_size > 100
        assert window.workspace.notice.text == f"Wrote {out}."
        out.write_text("mine")
        window.menus.actions[f"file.export.{kind}"].trigger()
        assert out.read_text() == "mine"
        choose(recording)
        window.menus.actions[f"file.export.{kind}"].trigger()
        assert window.workspace.notice.text == f"{recording} is the recording itself; choose another name."
        assert recording.read_bytes() == before


def test_leaving_the_dialog_writes_nothing(window: MainWindow, choose: Choose, tmp_path: Path) -> None:
    choose(None)
    for kind in WORDING:
        window.menus.actions[f"file.export.{kind}"].trigger()
    window.menus.actions["file.export.svg"].trigger()
    assert not part(window, Exporting).busy
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_a_file_whose_name_was_completed_here_is_asked_for(
    window: MainWindow, choose: Choose, tmp_path: Path, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    answers = iter((QMessageBox.StandardButton.No, QMessageBox.StandardButton.Yes))

    def answer(box: QMessageBox) -> QMessageBox.StandardButton:
        asked.append(box.text())
        return next(answers)

    monkeypatch.setattr(QMessageBox, "exec", answer)
    (tmp_path / "out.csv").write_text("mine")
    choose(tmp_path / "out")
    for replaced in (False, True):
        window.menus.actions["file.export.csv"].trigger()
        wait(window, qtbot)
        assert ((tmp_path / "out.csv").read_text() == "mine") is not replaced
    assert asked == [f"{tmp_path / 'out.csv'} already exists. Replace it?"] * 2


def test_a_session_that_is_not_recorded_has_nothing_to_export(open_window: OpenWindow, choose: Choose) -> None:
    window = open_window(FakeSession(recording=None))
    window.menus.actions["file.export.html"].trigger()
    assert window.workspace.notice.text == "This session is not recorded, so there is nothing to export."


def test_a_target_that_cannot_be_written_is_told_in_one_sentence_and_the_recording_stays(
    window: MainWindow, choose: Choose, recording: Path, tmp_path: Path, qtbot: QtBot
) -> None:
    before = recording.read_bytes()
    for target, words in ((recording, "is the recording itself"), (tmp_path / "absent" / "out.csv", "does not exist")):
        choose(target)
        window.menus.actions["file.export.csv"].trigger()
        wait(window, qtbot)
        assert words in window.workspace.notice.text
        assert window.workspace.notice.text.endswith(".")
    assert recording.read_bytes() == before


def test_a_folder_as_a_target_is_told(recording: Path) -> None:
    folder = recording.parent
    job = ExportJob(folder, lambda heed: export.write_data(recording, "csv", folder, heed))
    job.run()
    assert (job.message, job.problem) == (f"{folder} is a folder; name a file.", True)


def test_a_recording_that_has_vanished_is_told(
    window: MainWindow, choose: Choose, recording: Path, tmp_path: Path, qtbot: QtBot
) -> None:
    recording.unlink()
    choose(tmp_path / "out.json")
    window.menus.actions["file.export.json"].trigger()
    wait(window, qtbot)
    assert window.workspace.notice.text == f"{recording} does not exist."
    assert not (tmp_path / "out.json").exists()


class Slow:
    """Writes until it is told to stop."""

    def __init__(self) -> None:
        self.begun = threading.Event()

    def __call__(self, heed: OnProgress) -> list[str]:
        rows = 0
        while True:
            rows += 1000
            heed(rows)
            self.begun.set()


def test_a_long_export_shows_its_rows_and_can_be_cancelled(
    window: MainWindow, choose: Choose, tmp_path: Path, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Slow()
    told: list[str] = []
    monkeypatch.setattr(export, "write_data", lambda *arguments: slow(arguments[-1]))
    monkeypatch.setattr(window.workspace.dashboard.status_line, "report", told.append)
    choose(tmp_path / "out.csv")
    window.menus.actions["file.export.csv"].trigger()
    assert slow.begun.wait(20)
    dialog = window.findChild(QProgressDialog)
    assert dialog is not None
    monkeypatch.setattr(export, "PATIENCE_S", 0.0)
    part(window, Exporting).refresh()
    assert dialog.isVisible()
    assert dialog.labelText().startswith("Writing out.csv: ")
    assert dialog.labelText().endswith(" rows")
    window.menus.actions["file.export.json"].trigger()  # to the same file
    assert window.workspace.notice.text == f"{tmp_path / 'out.csv'} is already being written."
    dialog.findChild(QPushButton).click()  # type: ignore[union-attr]  # its only button is Cancel
    wait(window, qtbot)
    assert not [shown for shown in window.findChildren(QProgressDialog) if shown.isVisible()]
    assert told == ["out.csv was not written: cancelled."]


def test_closing_the_window_ends_what_is_being_written(
    window: MainWindow, choose: Choose, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Slow()
    monkeypatch.setattr(export, "write_data", lambda *arguments: slow(arguments[-1]))
    choose(tmp_path / "out.csv")
    window.menus.actions["file.export.csv"].trigger()
    assert slow.begun.wait(20)
    window.close()
    assert window.joined
    assert not part(window, Exporting).busy


def test_a_cancelled_export_leaves_no_file(recording: Path, tmp_path: Path) -> None:
    job = ExportJob(tmp_path / "out.csv", lambda heed: export.write_data(recording, "csv", tmp_path / "out.csv", heed))
    job.cancel()
    job.run()
    assert job.message == ""
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_a_fault_in_writing_is_told_and_not_thrown(
    window: MainWindow, choose: Choose, tmp_path: Path, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> list[str]:
        raise KeyError("odd")

    monkeypatch.setattr(export, "write_data", broken)
    choose(tmp_path / "out.csv")
    window.menus.actions["file.export.csv"].trigger()
    wait(window, qtbot)
    assert window.workspace.notice.text == "out.csv was not written (KeyError: 'odd')."


def test_the_report_can_be_opened_from_the_notice(
    window: MainWindow, choose: Choose, tmp_path: Path, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(QDesktopServices, "openUrl", lambda url: opened.append(url.toLocalFile()))
    choose(tmp_path / "out.html")
    window.menus.actions["file.export.html"].trigger()
    wait(window, qtbot)
    button = next(b for b in window.workspace.notice.findChildren(QPushButton) if b.text() == "Open")
    button.click()
    assert opened == [str(tmp_path / "out.html")]
