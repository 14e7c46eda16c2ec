"""What closing the window asks, and what it does not: one wrong click does not end a long run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QMessageBox, QPushButton
from pytestqt.qtbot import QtBot

from gpudash.telemetry.records import RunStarted
from gpudash.ui.window.main_window import MainWindow
from tests.ui.conftest import OpenWindow, settle
from tests.ui.fake_session import FakeSession

LONG_S, SHORT_S = 125.0, 9.0


def running(seconds: float, session: FakeSession | None = None) -> FakeSession:
    """A training has run on sim:0 for so long."""
    session = (session or FakeSession()).feed(1)
    session.start("sim:0")
    session.now_s += seconds
    return session


def question(window: MainWindow) -> QMessageBox | None:
    """What is asked before the window closes."""
    return next((box for box in window.findChildren(QMessageBox) if box.isVisible()), None)


def asked(window: MainWindow) -> QMessageBox:
    """What closing the window asks, once the time of a double click is over."""
    window.close()
    box = question(window)
    assert box is not None and window.isVisible()
    return box


def button(box: QMessageBox, words: str) -> QPushButton:
    return next(found for found in box.findChildren(QPushButton) if found.text() == words)


@pytest.fixture
def close_again(qtbot: QtBot) -> Callable[[MainWindow], None]:
    """Ask a window to close once more, later than a double click would."""

    def again(window: MainWindow) -> None:
        def closed() -> bool:
            window.close()
            return not window.isVisible()

        qtbot.waitUntil(closed, timeout=20_000)

    return again


def test_closing_a_window_with_a_long_run_names_the_run_and_keeps_it_unless_told(open_window: OpenWindow) -> None:
    session = running(LONG_S)
    window = open_window(session)
    box = asked(window)
    assert (
        box.text()
        == "Training on sim:0 has been running for 2 min. Closing the window stops it. Its recording is kept."
    )
    assert box.textFormat() is Qt.TextFormat.PlainText
    keep = button(box, "Keep running")
    assert keep.isDefault() and box.escapeButton() is keep
    QTest.keyClick(box, Qt.Key.Key_Escape)
    assert question(window) is None and window.isVisible()
    assert session.requested == []
    button(asked(window), "Stop and close").click()
    assert not window.isVisible() and session.requested == [("close",)]


def test_enter_keeps_the_run_and_exit_asks_as_closing_does(open_window: OpenWindow) -> None:
    window = open_window(running(LONG_S))
    window.menus.actions["file.exit"].trigger()
    box = question(window)
    assert box is not None
    QTest.keyClick(box, Qt.Key.Key_Return)
    assert question(window) is None and window.isVisible()


def test_the_question_tells_the_time_that_has_gone_by_now_and_whether_it_is_recorded(open_window: OpenWindow) -> None:
    session = running(14.0, FakeSession(recording=None))
    window = open_window(session)
    box = asked(window)
    assert (
        box.text()
        == "Training on sim:0 has been running for 14 s. Closing the window stops it. It is not being recorded."
    )
    session.now_s += 2 * 3600
    settle(window)
    assert "has been running for 2 h 00 min." in box.text()


def test_a_second_request_to_close_closes_but_not_that_of_a_double_click(
    open_window: OpenWindow, close_again: Callable[[MainWindow], None]
) -> None:
    session = running(LONG_S)
    window = open_window(session)
    asked(window)
    window.close()
    assert window.isVisible() and session.requested == []
    close_again(window)
    assert question(window) is None and session.requested == [("close",)]


def test_exits_key_means_the_same_in_the_question(open_window: OpenWindow) -> None:
    window = open_window(running(LONG_S))
    assert window.menus.actions["file.exit"] in asked(window).actions()


def test_a_run_that_ends_while_the_question_stands_takes_it_along_and_leaves_the_window(
    open_window: OpenWindow,
) -> None:
    session = running(LONG_S)
    window = open_window(session)
    asked(window)
    session.end()
    settle(window)
    assert question(window) is None and window.isVisible() and session.requested == []
    told = window.workspace.dashboard.status_line._left.text()
    assert "Training on sim:0 has ended; the window stays open." in told
    window.close()
    assert not window.isVisible()


def short(session: FakeSession) -> None:
    running(SHORT_S, session)


def attached(session: FakeSession) -> None:
    session.watched("cuda:0", {"pid": 4711, "command": ["python", "train.py"]})
    session.now_s += LONG_S


def only_beginning(session: FakeSession) -> None:
    """The run before has ended; of the one that was asked for nothing is known yet."""
    running(LONG_S, session).end()
    session.now_s += LONG_S
    session.running = True


@pytest.mark.parametrize("begin", [lambda _session: None, short, attached, only_beginning])
def test_nothing_is_asked_where_little_or_nothing_ends(
    open_window: OpenWindow, begin: Callable[[FakeSession], Any]
) -> None:
    session = FakeSession().feed(1)
    begin(session)
    window = open_window(session)
    window.close()
    assert question(window) is None and not window.isVisible()


def test_a_run_that_was_asked_to_stop_holds_nobody_up(open_window: OpenWindow) -> None:
    window = open_window(running(LONG_S))
    window.workspace.dashboard.panel.toggle()
    window.close()
    assert question(window) is None and not window.isVisible()


PROGRAM = {"command": ["python", "train.py"]}


def test_a_program_that_has_just_begun_is_asked_about_as_an_old_one_is(open_window: OpenWindow) -> None:
    session = FakeSession().feed(1)
    session.watched("cpu", {"command": ["python", "train_cnn.py"]})
    session.now_s += SHORT_S
    window = open_window(session)
    window.menus.actions["file.exit"].trigger()
    box = question(window)
    assert box is not None and window.isVisible() and session.signals == []
    assert box.text().startswith("train_cnn.py on cpu is running. Closing the window interrupts it")
    assert button(box, "Keep running").isDefault()
    session.now_s += LONG_S
    settle(window)
    assert "has been running for 2 min." in box.text()


def test_closing_a_window_says_what_deadline_a_program_has(open_window: OpenWindow) -> None:
    session = FakeSession().feed(1)
    session.watched("cpu", PROGRAM)
    session.now_s += LONG_S
    window = open_window(session)
    box = asked(window)
    assert box.text().endswith(
        "has been running for 2 min. Closing the window interrupts it, as Ctrl+C does (SIGINT). If it is still running "
        "10 s later it is terminated (SIGTERM), and after another 3 s killed (SIGKILL). Its recording is kept."
    )
    button(box, "Stop and close").click()
    assert not window.isVisible()
    assert [one.when for one in session.signals] == ["after the window was closed"]


def test_a_program_that_was_asked_to_stop_may_be_saving_and_closing_asks(open_window: OpenWindow) -> None:
    session = FakeSession().feed(1)
    session.watched("cpu", PROGRAM)
    session.now_s += LONG_S
    window = open_window(session)
    window.workspace.dashboard.panel.toggle()
    box = asked(window)
    assert (
        "It has been asked to stop. If it is still running 10 s after the window closes, it is terminated" in box.text()
    )
    assert [one.name for one in session.signals] == ["SIGINT"]


def test_the_demo_s_run_holds_nobody_up(open_window: OpenWindow) -> None:
    window = open_window(running(LONG_S))
    window.workspace.playing_demo = True
    window.close()
    assert question(window) is None and not window.isVisible()


def test_where_nobody_can_answer_nothing_is_asked(open_window: OpenWindow) -> None:
    signalled, logged_out = open_window(running(LONG_S)), open_window(running(LONG_S))
    asked(signalled)
    signalled.leave()
    logged_out.never_ask()
    logged_out.close()
    for window in (signalled, logged_out):
        assert question(window) is None and not window.isVisible()


def test_a_program_s_name_is_shown_as_it_is(open_window: OpenWindow) -> None:
    session = FakeSession().feed(1)
    spec = {"command": ["python", "<b>train.py", "--lr", "0.1"]}
    session.running = True
    session.apply(RunStarted(time_s=session.now_s, run_id=1, workload="watch", device="cpu", spec=spec))
    session.now_s += LONG_S
    box = asked(open_window(session))
    assert box.text().startswith("<b>train.py --lr 0.1 on cpu has been running for 2 min.")
