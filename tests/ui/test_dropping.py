"""Files dropped on the window."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
from PySide6.QtCore import QMimeData, QPointF, Qt, QUrl
from PySide6.QtGui import QDragEnterEvent, QDragLeaveEvent, QDropEvent
from PySide6.QtWidgets import QApplication, QLineEdit, QWidget

from gpudash.ui.window.dropping import TRUST
from gpudash.ui.window.main_window import MainWindow
from tests.ui.conftest import OpenWindow
from tests.ui.fake_document import front, opened, snapshot, with_fakes
from tests.ui.fake_session import FakeSession


@pytest.fixture
def window(open_window: OpenWindow) -> MainWindow:
    return with_fakes(open_window(FakeSession()))


def files(paths: Iterable[Path | str]) -> QMimeData:
    data = QMimeData()
    data.setUrls([QUrl.fromLocalFile(path) if isinstance(path, Path) else QUrl(path) for path in paths])
    return data


def send(target: QWidget, window: MainWindow, data: QMimeData, *, drop: bool) -> bool:
    """Drag ``data`` over ``target`` and drop it there, or take it away again; whether it was accepted."""
    action, buttons, none = Qt.DropAction.CopyAction, Qt.MouseButton.LeftButton, Qt.KeyboardModifier.NoModifier
    place = target.rect().center()
    enter = QDragEnterEvent(place, action, data, buttons, none)
    enter.ignore()
    QApplication.sendEvent(receiver(target), enter)
    if not enter.isAccepted():
        return False
    assert window.dropping.hint.isVisible() and window.dropping.hint.geometry() == window.rect()
    if drop:
        QApplication.sendEvent(receiver(target), QDropEvent(QPointF(place), action, data, buttons, none))
    else:
        QApplication.sendEvent(receiver(target), QDragLeaveEvent())
    assert not window.dropping.hint.isVisible()
    return True


def receiver(target: QWidget) -> QWidget:
    """The widget that a platform gives a drag over ``target``: the nearest that takes any."""
    found = target
    while not found.acceptDrops() and not found.isWindow():
        parent = found.parentWidget()
        assert parent is not None
        found = parent
    return found


def test_files_can_be_dropped_anywhere_on_the_window(window: MainWindow, tmp_path: Path) -> None:
    places = [
        window.workspace.dashboard.panel.form.control("steps"),
        window.workspace.dashboard.panel.script.file,
        window.workspace.dashboard.panel.script.environment,
        window.workspace.dashboard.tabs.output.text,
        window.workspace.dashboard.tabs.output.search,
        window.workspace.dashboard.cards,
        window.workspace.dashboard.status_line,
    ]
    for number, place in enumerate(places):
        path = snapshot(tmp_path, f"{number}.pickle")
        assert isinstance(place, QWidget) and receiver(place) is window
        assert send(place, window, files([path]), drop=True)
        assert front(window).path == path
        window.workspace.show_dashboard()


def test_every_line_of_text_leaves_drops_to_the_window(window: MainWindow) -> None:
    for name in ("training", "pipeline", "pressure"):
        window.workspace.dashboard.panel.workload.setCurrentIndex(
            window.workspace.dashboard.panel.workload.findData(name)
        )
    assert [line.accessibleName() for line in window.findChildren(QLineEdit) if line.acceptDrops()] == []


def test_several_files_dropped_together_all_open(window: MainWindow, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("notes")
    dropped = [snapshot(tmp_path), tmp_path / "notes.txt", snapshot(tmp_path, "b.pickle")]
    send(window, window, files(dropped), drop=True)
    assert opened(window) == ["Dashboard", "a.pickle", "b.pickle"]


def test_a_drag_that_leaves_opens_nothing(window: MainWindow, tmp_path: Path) -> None:
    assert send(window, window, files([snapshot(tmp_path)]), drop=False)
    assert window.workspace.count == 0


def test_what_is_no_local_file_is_not_taken(window: MainWindow) -> None:
    text = QMimeData()
    text.setText("hello")
    for data in (text, files(["https://example.org/a.pickle"])):
        assert not send(window, window, data, drop=True)
    assert not window.dropping.hint.isVisible()


def test_the_hint_says_that_no_data_leaves_the_computer(window: MainWindow) -> None:
    assert TRUST == "No data leaves this computer." and TRUST in window.dropping.hint.accessibleName()


def test_a_dropped_python_file_becomes_the_script_to_run(window: MainWindow, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("print(1)")
    send(window, window, files([script]), drop=True)
    assert window.workspace.dashboard.panel.watching and window.workspace.dashboard.panel.script.file.text() == str(
        script
    )
