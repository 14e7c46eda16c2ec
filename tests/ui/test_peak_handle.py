"""The handle at the peak of a predicted run: dragged, or moved by keys, it changes the batch in the form."""

from __future__ import annotations

from dataclasses import replace

import pytest
from PySide6.QtCore import QEvent, QPointF, Qt
from PySide6.QtGui import QMouseEvent
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication

from gpudash.ui.colours import Palette
from gpudash.ui.plots.prediction.peak_handle import PeakHandle
from gpudash.ui.window.main_window import MainWindow
from gpudash.units import GIB
from tests.ui.asked_form import asked_window
from tests.ui.conftest import OpenWindow, settle
from tests.ui.fake_session import FakeSession, gpu
from tests.ui.test_ghost import FITTING, ghost, memory, words
from tests.unit.clock import Clock


@pytest.fixture
def session() -> FakeSession:
    return FakeSession([gpu(0)]).feed(1)


@pytest.fixture
def window(open_window: OpenWindow, session: FakeSession, clock: Clock, palette: Palette) -> MainWindow:
    """A window over a run with 16 samples in a batch, of which each takes an eighth of a gibibyte at the peak."""
    opened = asked_window(open_window, session, clock, theme=palette.name)
    session.estimates.report(FITTING, ghost=ghost(3 * GIB))
    settle(opened)
    return opened


def handle(window: MainWindow) -> PeakHandle:
    return memory(window).handle


def send(handle: PeakHandle, kind: QEvent.Type, at: QPointF) -> None:
    button = Qt.MouseButton.LeftButton
    held = Qt.MouseButton.NoButton if kind is QEvent.Type.MouseButtonRelease else button
    local = QPointF(handle.mapFromGlobal(at.toPoint()))
    QApplication.sendEvent(handle, QMouseEvent(kind, local, at, button, held, Qt.KeyboardModifier.NoModifier))


def grip(handle: PeakHandle) -> QPointF:
    at = QPointF(handle.mapToGlobal(handle.rect().center()))
    send(handle, QEvent.Type.MouseButtonPress, at)
    return at


def batch(window: MainWindow) -> str:
    return str(window.workspace.dashboard.panel.form.values()["batch"])


def raised(window: MainWindow, by: float) -> QPointF:
    """How far the pointer has to go for the peak to be higher by so many bytes."""
    geometry = memory(window).geometry_now
    assert geometry is not None
    return QPointF(0, geometry.y_of(by) - geometry.y_of(0.0))


def test_it_lies_at_the_peak_and_can_be_hit(window: MainWindow) -> None:
    plot, found = memory(window), handle(window)
    peak = plot.canvas.ghost.peak_point
    assert peak is not None and found.isVisible()
    assert (found.geometry().center() - peak.toPoint()).manhattanLength() <= 2
    assert min(found.width(), found.height()) >= 24
    assert found.accessibleName() == "Peak of the predicted run, batch 16"


def test_a_drag_changes_the_batch_by_whole_ones_and_no_axis_moves_before_its_end(
    window: MainWindow, session: FakeSession, clock: Clock
) -> None:
    found, plot = handle(window), memory(window)
    axis, at = plot.y_range, grip(handle(window))
    send(found, QEvent.Type.MouseMove, at + raised(window, GIB / 2))
    assert batch(window) == "20" and found.size_wanted == 20
    settle(window)
    assert "asking for batch 20" in words(plot)
    send(found, QEvent.Type.MouseMove, at + raised(window, -100 * GIB))
    assert batch(window) == "1"
    send(found, QEvent.Type.MouseMove, at + raised(window, GIB))
    assert batch(window) == "24"
    clock.now_s += 1
    settle(window)
    session.estimates.report(FITTING, ghost=ghost(7 * GIB))
    settle(window)
    assert plot.y_range == axis
    send(found, QEvent.Type.MouseButtonRelease, at)
    settle(window)
    assert plot.y_range[1] > 7 * GIB
    assert session.estimates.questions[-1][0].model_dump()["batch"] == 24


def test_arrow_keys_do_the_same_and_all_of_it_is_taken_back_at_once(window: MainWindow) -> None:
    found, undo = handle(window), window.workspace.undo
    undo._clock = lambda: 0.0
    found.setFocus()
    for key in (Qt.Key.Key_Up, Qt.Key.Key_Up, Qt.Key.Key_Up, Qt.Key.Key_Down):
        QTest.keyClick(found, key)
        settle(window, 1)
    assert batch(window) == "18" and undo.undo_text == "Change of Batch"
    undo.undo()
    assert batch(window) == "16"


def test_one_drag_is_taken_back_at_once_however_long_it_takes_and_the_next_apart(window: MainWindow) -> None:
    undo, now = window.workspace.undo, [0.0]
    undo._clock = lambda: now[0]
    for moves in ((GIB / 2, GIB), (-GIB / 2,)):
        found, at = handle(window), grip(handle(window))
        for move in moves:
            send(found, QEvent.Type.MouseMove, at + raised(window, move))
            now[0] += 5.0
        send(found, QEvent.Type.MouseButtonRelease, at)
        now[0] -= 4.9
    assert batch(window) == "20"
    undo.undo()
    assert batch(window) == "24"
    undo.undo()
    assert batch(window) == "16"


def test_a_peak_that_fits_only_after_the_cache_is_released_says_that_the_batch_is_taken(
    window: MainWindow, session: FakeSession
) -> None:
    session.estimates.report(replace(FITTING, released_bytes=GIB), ghost=ghost(3 * GIB))
    settle(window)
    shown = memory(window).ghost
    assert shown is not None
    assert shown.detail == "batch 16 fits only after releasing its cache, which fills the card first"


def test_it_stays_where_it_was_let_go_until_the_answer_comes(
    window: MainWindow, session: FakeSession, clock: Clock
) -> None:
    found, at = handle(window), grip(handle(window))
    before = found.y()
    send(found, QEvent.Type.MouseMove, at + raised(window, GIB / 4))
    send(found, QEvent.Type.MouseButtonRelease, at)
    settle(window)
    assert found.y() < before and found.size_wanted == 18
    clock.now_s += 1
    settle(window)
    session.estimates.report(FITTING, ghost=ghost(3 * GIB))
    settle(window)
    assert found.y() == before


def test_without_a_batch_there_is_none(window: MainWindow, session: FakeSession, clock: Clock) -> None:
    panel = window.workspace.dashboard.panel
    panel.workload.setCurrentIndex(panel.workload.findData("matmul"))
    clock.now_s += 1
    settle(window)
    session.estimates.report(replace(FITTING, workload="matmul"), ghost=ghost(3 * GIB))
    settle(window)
    assert memory(window).ghost is not None and handle(window).isHidden()


def test_during_a_run_there_is_none(window: MainWindow, session: FakeSession) -> None:
    session.start("cuda:0")
    settle(window)
    assert handle(window).isHidden()


def test_in_a_picture_there_is_nothing_to_drag(window: MainWindow) -> None:
    plots = window.workspace.dashboard.plots
    with plots._drawn_alone([memory(window)], None):
        assert handle(window).isHidden()
    assert handle(window).isVisible()
