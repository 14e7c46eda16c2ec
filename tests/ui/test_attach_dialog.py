"""Choosing a running process to watch."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QDialogButtonBox, QMessageBox
from pytestqt.qtbot import QtBot

from gpudash.session.watching.attaching.candidates import Candidate
from gpudash.ui.features import run
from gpudash.ui.features.run import NONE, SEARCHING, AttachDialog
from gpudash.units import GIB, MIB
from tests.ui.conftest import OpenWindow
from tests.ui.fake_session import FakeSession

FOUND = (Candidate(4711, "python train.py", 2 * GIB, 11 * GIB), Candidate(815, "python serve.py", 300 * MIB, None))


class Asked:
    """What the dialog asked to attach to; refuses while ``refusing``."""

    def __init__(self) -> None:
        self.pids: list[int] = []
        self.refusing = False

    def __call__(self, pid: int) -> bool:
        self.pids.append(pid)
        return not self.refusing


@pytest.fixture
def asked() -> Asked:
    return Asked()


def opened(qtbot: QtBot, asked: Asked, found: Sequence[Candidate] = FOUND) -> AttachDialog:
    dialog = AttachDialog(lambda: found, asked)
    qtbot.addWidget(dialog)
    dialog.show()
    qtbot.waitUntil(lambda: not dialog._timer.isActive())
    return dialog


def press(dialog: AttachDialog, key: Qt.Key) -> None:
    QTest.keyClick(dialog.focusWidget() or dialog, key)


def test_a_command_of_several_lines_is_read_in_one(qtbot: QtBot, asked: Asked) -> None:
    dialog = opened(qtbot, asked, (Candidate(7, "python -c 'import time\n\ntime.sleep(9)'", MIB, None),))
    assert dialog.table.model.rows == [("7", "", "1 MiB", "python -c 'import time time.sleep(9)'")]
    dialog.reject()


def test_processes_are_listed_with_what_they_hold(qtbot: QtBot, asked: Asked) -> None:
    dialog = opened(qtbot, asked)
    assert dialog.table.model.rows == [
        ("4711", "11.0 GiB", "2.00 GiB", "python train.py"),
        ("815", "", "300 MiB", "python serve.py"),
    ]
    dialog.reject()


def test_the_chosen_process_is_attached_to(qtbot: QtBot, asked: Asked) -> None:
    dialog = opened(qtbot, asked)
    button = next(b for b in dialog.buttons.buttons() if b.text() == "Attach")
    assert not button.isEnabled() and "Choose a process" in button.toolTip()
    dialog.table.view.selectRow(1)
    assert dialog.pid.text() == "815" and button.isEnabled()
    button.click()
    assert asked.pids == [815] and not dialog.isVisible()


def test_enter_in_the_field_attaches(qtbot: QtBot, asked: Asked) -> None:
    dialog = opened(qtbot, asked)
    QTest.keyClicks(dialog.pid, "123")
    QTest.keyClick(dialog.pid, Qt.Key.Key_Return)
    assert asked.pids == [123] and not dialog.isVisible()


def test_enter_on_a_row_attaches(qtbot: QtBot, asked: Asked) -> None:
    dialog = opened(qtbot, asked)
    dialog.table.view.activated.emit(dialog.table.model.index(0, 0))
    assert asked.pids == [4711] and not dialog.isVisible()


def test_a_number_can_be_typed_and_nothing_else(qtbot: QtBot, asked: Asked) -> None:
    dialog = opened(qtbot, asked)
    QTest.keyClicks(dialog.pid, "12x3")
    assert dialog.pid.text() == "123"
    dialog.accept()
    assert asked.pids == [123]


def test_a_refusal_keeps_the_dialog_open(qtbot: QtBot, asked: Asked) -> None:
    asked.refusing = True
    dialog = opened(qtbot, asked)
    dialog.pid.setText("1")
    dialog.accept()
    assert asked.pids == [1] and dialog.isVisible()
    press(dialog, Qt.Key.Key_Escape)
    assert not dialog.isVisible()


def test_an_empty_list_says_what_to_do(qtbot: QtBot, asked: Asked) -> None:
    dialog = opened(qtbot, asked, ())
    assert dialog.table._empty.text() == NONE and dialog.table._empty.isVisible()
    dialog.reject()


def test_processes_that_cannot_be_listed_are_told_and_a_number_still_works(qtbot: QtBot, asked: Asked) -> None:
    def fail() -> Sequence[Candidate]:
        raise OSError("no /proc")

    dialog = AttachDialog(fail, asked)
    qtbot.addWidget(dialog)
    dialog.show()
    qtbot.waitUntil(lambda: not dialog._timer.isActive())
    assert "could not be listed (OSError: no /proc)" in dialog.table._empty.text()
    dialog.pid.setText("7")
    dialog.accept()
    assert asked.pids == [7]


def test_the_dialog_is_there_before_the_processes_are(qtbot: QtBot, asked: Asked) -> None:
    going_on = threading.Event()

    def slow() -> Sequence[Candidate]:
        going_on.wait(10)
        return FOUND

    dialog = AttachDialog(slow, asked)
    qtbot.addWidget(dialog)
    dialog.show()
    dialog.poll()
    assert dialog.table._empty.text() == SEARCHING and dialog._timer.isActive()
    going_on.set()
    qtbot.waitUntil(lambda: len(dialog.table.model.rows) == 2)
    dialog.reject()


def test_the_window_asks_the_session_and_tells_its_refusal(
    open_window: OpenWindow, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts: list[str] = []
    monkeypatch.setattr(QMessageBox, "exec", lambda box: texts.append(box.text()))
    monkeypatch.setattr(run, "candidates", lambda _store: FOUND)
    session = FakeSession()
    window = open_window(session)
    window.menus.actions["run.attach"].trigger()
    dialog = window.findChild(AttachDialog)
    qtbot.waitUntil(lambda: len(dialog.table.model.rows) == 2)
    session.refusal = "Process 815 belongs to mia, not to you; only your own can be watched."
    dialog.table.view.selectRow(1)
    dialog.accept()
    assert texts == [session.refusal] and dialog.isVisible()
    session.refusal = None
    dialog.accept()
    assert session.requested[-1] == ("attach", 815) and not dialog.isVisible()


def test_a_run_must_end_before_a_process_can_be_attached_to(open_window: OpenWindow) -> None:
    session = FakeSession()
    session.start()
    action = open_window(session).menus.actions["run.attach"]
    assert not action.isEnabled() and "A run is in progress" in action.toolTip()


def test_every_control_is_named(qtbot: QtBot, asked: Asked) -> None:
    dialog = opened(qtbot, asked)
    assert dialog.pid.accessibleName() and dialog.table.view.accessibleName()
    assert dialog.buttons.button(QDialogButtonBox.StandardButton.Cancel) is not None
    dialog.reject()
