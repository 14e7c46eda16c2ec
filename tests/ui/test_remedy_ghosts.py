"""A change that would fit, looked at in the fit panel: its outline over the ghost, what it would take, and the way back
once it is applied."""

from __future__ import annotations

import pytest
from PySide6.QtCore import QEvent, QPointF, Qt
from PySide6.QtGui import QColor, QEnterEvent
from PySide6.QtWidgets import QApplication, QPushButton

from gpudash.ui.colours import Palette
from gpudash.ui.forms.fit_panel import AlternativeRow
from gpudash.ui.plots.plot import TimePlot
from gpudash.ui.plots.readout import SIDE_PX, THEN_PX
from gpudash.ui.widgets.text_size import scaled
from gpudash.ui.window.main_window import MainWindow
from gpudash.units import GIB
from tests.ui.asked_form import asked_window
from tests.ui.conftest import IN_BOTH_THEMES, OpenWindow, settle
from tests.ui.estimates import CHECKPOINTING, SHORT
from tests.ui.fake_session import FakeSession, gpu
from tests.ui.test_ghost import ghost, memory, picture
from tests.unit.clock import Clock


@pytest.fixture
def session() -> FakeSession:
    return FakeSession([gpu(0)]).feed(1)


@pytest.fixture
def window(open_window: OpenWindow, session: FakeSession, clock: Clock, palette: Palette) -> MainWindow:
    """A window with a run that does not fit, and two changes of it of which the run is known."""
    opened = asked_window(open_window, session, clock, theme=palette.name)
    session.estimates.report(SHORT, ghost=ghost(11 * GIB), remedies={0: ghost(10 * GIB), 1: ghost(6 * GIB)})
    opened.workspace.dashboard.panel.fit.open_details()
    settle(opened)
    return opened


def row(window: MainWindow, change: str) -> AlternativeRow:
    return next(row for row in window.workspace.dashboard.panel.fit.alternatives if row.way.change == change)


def point_at(row: AlternativeRow) -> None:
    middle = QPointF(row.rect().center())
    QApplication.sendEvent(row, QEnterEvent(middle, middle, QPointF(row.mapToGlobal(row.rect().center()))))


def outlined(plot: TimePlot) -> list[str]:
    return [label.text for label in plot.canvas.remedy.labels]


def test_a_change_under_the_pointer_is_outlined_with_its_peak_and_goes_with_the_pointer(window: MainWindow) -> None:
    plot, looked_at = memory(window), row(window, "batch 8")
    before = picture(plot)
    point_at(looked_at)
    layer, geometry = plot.canvas.remedy, plot.geometry_now
    layer.motion.settle()
    assert outlined(plot) == ["with batch 8: 6.00 GiB", "2.00 GiB spare"]
    assert geometry is not None and layer.peak is not None
    assert layer.peak.y() == geometry.y_of(6 * GIB)
    assert [round(point.y(), 6) for point in layer.run_peaks] == [round(geometry.y_of(6 * GIB), 6)] * 2
    assert picture(plot) != before
    QApplication.sendEvent(looked_at, QEvent(QEvent.Type.Leave))
    assert outlined(plot) == [] and not layer.isVisible()
    assert picture(plot) == before


@IN_BOTH_THEMES
def test_the_outline_is_drawn_in_the_colour_of_words(window: MainWindow, palette: Palette) -> None:
    plot = memory(window)
    point_at(row(window, "batch 8"))
    plot.canvas.remedy.motion.settle()
    image, peak = picture(plot), plot.canvas.remedy.run_peaks[0]
    assert image.pixelColor(round(peak.x()), round(peak.y() - 0.5)).name() == QColor(palette.text).name()


def test_it_comes_in_within_80_milliseconds_and_is_there_at_once_for_the_next(window: MainWindow) -> None:
    layer = memory(window).canvas.remedy
    point_at(row(window, "batch 8"))
    assert layer.motion.duration() == 80 and layer.motion.moving
    layer.motion.setCurrentTime(40)
    assert 0 < layer.opacity() < 1
    layer.motion.setCurrentTime(80)
    assert layer.opacity() == 1


def test_the_read_out_has_the_figures_with_it_beside_those_without(window: MainWindow) -> None:
    readout = window.workspace.dashboard.plots.readout
    assert readout.changes() == {}
    point_at(row(window, "batch 8"))
    assert readout.changes() == {"activations": "5.00", "weights": "=", "all": "6.00", "spare": "2.00"}
    assert dict(readout.rows())["all"] == "11.00"


def test_no_figure_of_the_read_out_moves_as_a_change_is_pointed_at(window: MainWindow) -> None:
    readout = window.workspace.dashboard.plots.readout
    column = readout.rect().adjusted(0, 0, -SIDE_PX - scaled(THEN_PX), 0)
    before, whole = readout.grab(column).toImage(), readout.grab().toImage()
    point_at(row(window, "batch 8"))
    assert readout.grab(column).toImage() == before
    assert readout.grab().toImage() != whole


def test_a_column_without_figures_has_no_heading(window: MainWindow) -> None:
    readout = window.workspace.dashboard.plots.readout
    heading = readout.rect()
    heading.setLeft(heading.right() - SIDE_PX - scaled(THEN_PX) + 8)
    # the second line of text: below the time of the figures
    line = readout.fontMetrics().height()
    heading.setTop(line + 4)
    heading.setHeight(line)

    def is_empty() -> bool:
        image = readout.grab(heading).toImage()
        colours = {image.pixelColor(x, y).name() for x in range(image.width()) for y in range(image.height())}
        return len(colours) == 1

    assert is_empty()
    point_at(row(window, "batch 8"))
    assert not is_empty()


def test_the_keyboard_looks_at_a_change_as_the_pointer_does(window: MainWindow) -> None:
    button = row(window, CHECKPOINTING.change).button
    assert button is not None
    button.setFocus(Qt.FocusReason.TabFocusReason)
    settle(window)
    assert outlined(memory(window))[0] == "with activation checkpointing: 10.00 GiB"
    button.clearFocus()
    settle(window)
    assert outlined(memory(window)) == []


def test_a_change_of_which_no_run_is_known_has_none(window: MainWindow) -> None:
    point_at(row(window, "on cpu"))
    settle(window)
    assert outlined(memory(window)) == []


def test_one_that_is_applied_is_outlined_no_more_and_can_be_taken_back(window: MainWindow) -> None:
    panel, undo = window.workspace.dashboard.panel, window.workspace.undo
    looked_at = row(window, "batch 8")
    point_at(looked_at)
    assert looked_at.button is not None
    looked_at.button.click()
    settle(window)
    assert outlined(memory(window)) == []
    assert panel.form.values()["batch"] == "8" and undo.undo_text == "Apply of batch 8"
    undo.undo()
    assert panel.form.values()["batch"] == "16"
    undo.redo()
    assert panel.form.values()["batch"] == "8"


def test_what_was_applied_is_named_beside_an_undo_until_the_next_change(window: MainWindow) -> None:
    panel = window.workspace.dashboard.panel

    def apply() -> QPushButton:
        button = row(window, "batch 8").button
        assert button is not None
        button.click()
        return next(found for found in panel.fit.head.findChildren(QPushButton) if found.text() == "Undo")

    assert panel.fit.applied_text == ""
    undo = apply()
    settle(window)
    assert panel.fit.applied_text == "batch 8 applied" and undo.isVisible()
    undo.click()
    assert panel.form.values()["batch"] == "16"
    assert panel.fit.applied_text == "" and not undo.isVisible()
    window.workspace.undo.undo()
    assert panel.form.values()["batch"] == "8", "what the button did can be undone as well"
    panel.change_fields({"width": 96})
    assert not undo.isVisible()


def test_a_device_that_is_applied_can_be_taken_back_too(window: MainWindow) -> None:
    panel, undo = window.workspace.dashboard.panel, window.workspace.undo
    button = row(window, "on cpu").button
    assert button is not None
    button.click()
    assert panel.device_name == "cpu"
    undo.undo()
    assert panel.device_name == "cuda:0"


def test_while_a_run_holds_the_form_nothing_is_taken_back(window: MainWindow, session: FakeSession) -> None:
    panel, undo = window.workspace.dashboard.panel, window.workspace.undo
    button = row(window, "batch 8").button
    assert button is not None
    button.click()
    session.start("cuda:0")
    settle(window)
    undo.undo()
    assert panel.form.values()["batch"] == "8" and undo.undo_text == ""
