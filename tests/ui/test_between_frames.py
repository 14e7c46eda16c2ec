"""What does not wait for the window's next frame."""

from __future__ import annotations

import threading

import shiboken6
from PySide6.QtCore import QObject
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from gpudash.ui.forms.between_frames import BetweenFrames

ENDLESS_S = 1e9


class Calls:
    def __init__(self, frame_s: float) -> None:
        self.parent = QObject()
        self.asked, self.shown = 0, list[threading.Thread]()
        self.between = BetweenFrames(self._ask, self._show, lambda: frame_s, self.parent)

    def _ask(self) -> None:
        self.asked += 1

    def _show(self) -> None:
        self.shown.append(threading.current_thread())


def test_two_changes_in_one_event_are_asked_about_once_when_it_is_over(qapp: QApplication) -> None:
    calls = Calls(frame_s=0.0)
    calls.between.changed()
    calls.between.changed()
    assert calls.asked == 0
    qapp.processEvents()
    assert calls.asked == 1
    calls.between.changed()
    qapp.processEvents()
    assert calls.asked == 2


def test_what_changes_faster_than_frames_waits_for_the_frame(qapp: QApplication) -> None:
    calls = Calls(frame_s=ENDLESS_S)
    for _ in range(3):
        calls.between.changed()
        qapp.processEvents()
    assert calls.asked == 1


def test_an_answer_from_another_thread_is_shown_on_that_of_the_window(qtbot: QtBot) -> None:
    calls = Calls(frame_s=ENDLESS_S)
    answering = threading.Thread(target=calls.between.answered)
    answering.start()
    answering.join()
    qtbot.waitUntil(lambda: calls.shown != [])
    assert calls.shown == [threading.current_thread()]


def test_an_answer_to_a_window_that_has_gone_is_dropped(qapp: QApplication) -> None:
    calls = Calls(frame_s=ENDLESS_S)
    shiboken6.delete(calls.parent)
    calls.between.answered()
    qapp.processEvents()
    assert calls.shown == []
