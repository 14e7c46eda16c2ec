"""Commands that write files, and the pages behind the Help menu."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QColor, QGuiApplication, QImage
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QDialog, QMessageBox, QTextBrowser, QWidget

from gpudash.ui.colours import DARK
from gpudash.ui.widgets.file_dialog import FileDialog
from gpudash.ui.window.main_window import MainWindow
from tests.ui.conftest import OpenWindow, settle
from tests.ui.fake_session import FakeSession


@pytest.fixture
def window(open_window: OpenWindow) -> MainWindow:
    session = FakeSession().feed(5)
    session.start()
    session.train(5)
    return open_window(session)


def answer(monkeypatch: pytest.MonkeyPatch, path: Path | None) -> None:
    """What the user picks in the dialog that asks for a file."""
    monkeypatch.setattr(FileDialog, "ask_to_save", lambda *_args: "" if path is None else str(path))


def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    texts: list[str] = []
    monkeypatch.setattr(QMessageBox, "exec", lambda box: texts.append(box.text()))
    return texts


def test_the_graph_is_written_as_a_picture_in_the_colours_shown(
    window: MainWindow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer(monkeypatch, tmp_path / "graph")
    window.menus.actions["file.export.png"].trigger()
    image = QImage(str(tmp_path / "graph.png"))
    assert image.width() > 600
    assert image.pixelColor(2, 2) == QColor(DARK.panel)
    assert "cpu · AMD EPYC 9554" in image.text("Title")


def test_the_selected_range_is_written_as_csv_from_raw_samples(
    window: MainWindow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    window.workspace.dashboard.view.select(6.0, 6.5)
    answer(monkeypatch, tmp_path / "range.csv")
    window.menus.actions["file.export.range"].trigger()
    header, *rows = list(csv.reader((tmp_path / "range.csv").read_text(encoding="utf-8").splitlines()))
    assert header[0] == "time (s)" and "loss (nats)" in header
    assert [float(row[0]) for row in rows] == pytest.approx([6.0, 6.1, 6.2, 6.3, 6.4, 6.5])


def test_leaving_the_dialog_writes_nothing(window: MainWindow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer(monkeypatch, None)
    for name in ("file.export.png", "file.export.range", "file.save_recording"):
        window.menus.actions[name].trigger()
    assert not list(tmp_path.glob("*.*"))


@pytest.mark.parametrize("name", ["file.export.png", "file.export.range"])
def test_a_target_that_cannot_be_written_is_told_in_a_sentence(
    window: MainWindow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    texts = told(monkeypatch)
    answer(monkeypatch, tmp_path / "missing" / "file.out")
    window.menus.actions[name].trigger()
    assert len(texts) == 1 and "missing" in texts[0]


def test_a_run_that_cannot_start_is_told_in_a_sentence(window: MainWindow, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = told(monkeypatch)
    session = window.workspace.session
    session.end()  # type: ignore[union-attr]
    settle(window)

    def refuse(*_args: object, **_options: object) -> int:
        raise ValueError("There is no device 'cuda:7'; there is: cpu.")

    monkeypatch.setattr(session, "start_run", refuse)
    window.menus.actions["run.start"].trigger()
    assert texts == ["There is no device 'cuda:7'; there is: cpu."]
    assert "Start run" in window.workspace.dashboard.panel.button.text()


def test_a_copy_of_the_recording_is_asked_of_the_session(
    window: MainWindow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer(monkeypatch, tmp_path / "copy")
    window.menus.actions["file.save_recording"].trigger()
    assert window.workspace.session.requested[-1] == ("save", tmp_path / "copy.gpudash")  # type: ignore[union-attr]


def test_the_picture_of_the_graph_goes_to_the_clipboard(window: MainWindow) -> None:
    window.menus.actions["edit.copy_graph"].trigger()
    assert QGuiApplication.clipboard().image().width() > 600


def test_diagnostics_are_json_that_names_the_parts(window: MainWindow) -> None:
    window.menus.actions["help.copy_diagnostics"].trigger()
    facts = json.loads(QGuiApplication.clipboard().text())
    assert facts["torch"] == "torch 2.13.0+cpu" and facts["devices"][0].startswith("cpu ")


@pytest.mark.parametrize("name", ["help.keys", "help.guide"])
def test_a_page_can_be_read_and_leaves_nothing_behind(window: MainWindow, name: str) -> None:
    before = window.workspace.findChildren(QWidget)
    window.menus.actions[name].trigger()
    QApplication.processEvents()
    dialog = window.findChild(QDialog)
    page = dialog.findChild(QTextBrowser)
    assert page.isVisible() and page.toPlainText().count("\n") > 6
    assert not page.horizontalScrollBar().isVisible()
    QTest.keyClick(dialog, Qt.Key.Key_Escape)
    settle(window)
    assert window.workspace.findChildren(QWidget) == before


def test_the_sheet_of_keys_names_every_key_that_works(window: MainWindow) -> None:
    window.menus.actions["help.keys"].trigger()
    dialog = window.findChild(QDialog)
    text = dialog.findChild(QTextBrowser).toPlainText()
    dialog.reject()
    for action in window.menus.actions.values():
        for key in action.shortcuts():
            assert key.toString() in text, action.text()
    assert "Select a range" in text


def test_a_window_width_from_the_menu_is_shown_as_chosen(window: MainWindow) -> None:
    window.menus.actions["view.window.300"].trigger()
    chosen = [button.text() for button in window.workspace.dashboard.view_bar._windows.buttons() if button.isChecked()]
    assert window.workspace.dashboard.view.window_s == 300 and chosen == ["5 min"]
