import pytest
from PySide6.QtCore import QEvent, QPoint, QPointF, Qt
from PySide6.QtGui import QContextMenuEvent, QMouseEvent, QWheelEvent
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from gpudash.ui.plots.menu import PlotMenu
from gpudash.ui.plots.plot import TimePlot
from gpudash.ui.plots.stack import PlotStack
from gpudash.ui.plots.view import TimeView
from tests.ui.plots.conftest import Feed, refresh

LEFT, MIDDLE, NONE = Qt.MouseButton.LeftButton, Qt.MouseButton.MiddleButton, Qt.MouseButton.NoButton
PLAIN, SHIFT = Qt.KeyboardModifier.NoModifier, Qt.KeyboardModifier.ShiftModifier
CTRL = Qt.KeyboardModifier.ControlModifier


def _send(plot: TimePlot, kind: QEvent.Type, x: float, button: Qt.MouseButton, modifiers: Qt.KeyboardModifier) -> None:
    place = QPointF(x, plot.canvas.area.center().y())
    buttons = NONE if kind is QEvent.Type.MouseButtonRelease else button
    sent = NONE if kind is QEvent.Type.MouseMove else button
    glob = QPointF(plot.canvas.viewport().mapToGlobal(place.toPoint()))
    event = QMouseEvent(kind, place, glob, sent, buttons, modifiers)
    QApplication.sendEvent(plot.canvas.viewport(), event)


def _drag(
    plot: TimePlot, start: float, end: float, button: Qt.MouseButton = LEFT, modifiers: Qt.KeyboardModifier = PLAIN
) -> None:
    geometry = plot.geometry_now
    assert geometry is not None
    a, b = geometry.x_of(start), geometry.x_of(end)
    _send(plot, QEvent.Type.MouseButtonPress, a, button, modifiers)
    for share in (0.3, 0.7, 1.0):
        _send(plot, QEvent.Type.MouseMove, a + (b - a) * share, button, modifiers)
    _send(plot, QEvent.Type.MouseButtonRelease, b, button, modifiers)


def _wheel(plot: TimePlot, time_s: float, notches: float, modifiers: Qt.KeyboardModifier = PLAIN) -> None:
    geometry = plot.geometry_now
    assert geometry is not None
    place = QPointF(geometry.x_of(time_s), geometry.area.center().y())
    glob = QPointF(plot.canvas.viewport().mapToGlobal(place.toPoint()))
    delta = QPoint(0, round(notches * 120))
    event = QWheelEvent(place, glob, QPoint(), delta, NONE, modifiers, Qt.ScrollPhase.NoScrollPhase, False)
    QApplication.sendEvent(plot.canvas.viewport(), event)


def test_dragging_selects_on_all_plots_and_keeps_following(drawn: PlotStack, view: TimeView) -> None:
    _drag(drawn.plots[1], 12.0, 15.0)
    assert view.selection == pytest.approx((12.0, 15.0), abs=0.05)
    assert view.following
    refresh(drawn)
    assert all(plot.canvas.overlay._content.selection == view.selection for plot in drawn.plots)
    assert drawn.strip.chip == "0:12.0 to 0:15.0 ×"


def test_dragging_backwards_selects_the_same(drawn: PlotStack, view: TimeView) -> None:
    _drag(drawn.plots[1], 15.0, 12.0)
    assert view.selection == pytest.approx((12.0, 15.0), abs=0.05)


def test_a_selection_stays_in_the_plot_when_the_pointer_leaves_it(drawn: PlotStack, view: TimeView) -> None:
    _drag(drawn.plots[1], 18.0, 40.0)
    assert view.selection is not None and view.selection[1] == pytest.approx(20.0, abs=0.05)


def test_an_edge_of_the_selection_can_be_dragged(drawn: PlotStack, view: TimeView) -> None:
    view.select(12.0, 15.0)
    _drag(drawn.plots[0], 15.0, 17.0)
    assert view.selection == pytest.approx((12.0, 17.0), abs=0.05)
    _drag(drawn.plots[0], 12.02, 11.0)
    assert view.selection == pytest.approx((11.0, 17.0), abs=0.05)


def test_a_click_is_no_selection(drawn: PlotStack, view: TimeView) -> None:
    _drag(drawn.plots[1], 12.0, 12.01)
    assert view.selection is None


def test_double_click_zooms_to_the_selection(drawn: PlotStack, view: TimeView) -> None:
    view.select(12.0, 15.0)
    _send(drawn.plots[0], QEvent.Type.MouseButtonDblClick, 300.0, LEFT, PLAIN)
    assert view.range() == (12.0, 15.0)


@pytest.mark.parametrize(("button", "modifiers"), [(MIDDLE, PLAIN), (LEFT, SHIFT)])
def test_middle_or_shift_drag_pans_back_and_pauses(
    drawn: PlotStack, view: TimeView, feed: Feed, button: Qt.MouseButton, modifiers: Qt.KeyboardModifier
) -> None:
    _drag(drawn.plots[1], 12.0, 15.0, button, modifiers)
    assert not view.following and view.selection is None
    assert view.range() == pytest.approx((7.0, 17.0), abs=0.1)
    before = view.range()
    feed.ticks(20)
    refresh(drawn)
    assert view.range() == before


def test_the_wheel_zooms_while_readings_arrive_and_goes_on_following(
    drawn: PlotStack, view: TimeView, feed: Feed
) -> None:
    _wheel(drawn.plots[0], 12.0, 2)
    assert view.following and view.window_s == pytest.approx(6.4)
    feed.ticks(5)
    refresh(drawn)
    assert view.range()[1] == pytest.approx(20.5)


def test_the_wheel_zooms_at_the_pointer_when_paused(drawn: PlotStack, view: TimeView) -> None:
    view.pause()
    refresh(drawn)
    _wheel(drawn.plots[0], 12.0, 3)
    refresh(drawn)
    geometry = drawn.plots[0].geometry_now
    assert geometry is not None
    share = (12.0 - view.range()[0]) / view.window_s
    assert share == pytest.approx(0.2, abs=0.01)


def test_ctrl_wheel_zooms_the_value_axis_of_one_plot(drawn: PlotStack, view: TimeView) -> None:
    before = [plot.y_range for plot in drawn.plots]
    _wheel(drawn.plots[0], 12.0, 2, CTRL)
    refresh(drawn)
    after = [plot.y_range for plot in drawn.plots]
    assert after[0][1] == pytest.approx(before[0][1] * 0.64) and after[0][0] == 0.0
    assert after[1:] == before[1:] and view.window_s == 10.0


def test_shift_wheel_pans(drawn: PlotStack, view: TimeView) -> None:
    _wheel(drawn.plots[0], 12.0, 1, SHIFT)
    assert not view.following and view.range()[1] == pytest.approx(19.0)


def test_a_resting_mouse_reads_new_values_as_they_pass_under_it(drawn: PlotStack, view: TimeView, feed: Feed) -> None:
    geometry = drawn.plots[2].geometry_now
    assert geometry is not None
    _send(drawn.plots[2], QEvent.Type.MouseMove, geometry.x_of(15.0), NONE, PLAIN)
    refresh(drawn)
    first = dict(drawn.readout.rows())
    assert all(plot.canvas.overlay._content.cursor_s == view.cursor_s for plot in drawn.plots)
    feed.ticks(30)
    refresh(drawn)
    second = dict(drawn.readout.rows())
    assert first["accuracy"] == "75 %" and second["accuracy"] == "90 %"
    assert drawn.readout.title == "at 0:18.0 (-5.0 s)"


def test_leaving_the_plot_takes_the_cursor_away(drawn: PlotStack, view: TimeView) -> None:
    _send(drawn.plots[0], QEvent.Type.MouseMove, 300.0, NONE, PLAIN)
    assert view.cursor_s is not None
    QApplication.sendEvent(drawn.plots[0].canvas, QEvent(QEvent.Type.Leave))
    assert view.cursor_s is None


def test_right_click_opens_our_menu(drawn: PlotStack, view: TimeView, qtbot: QtBot) -> None:
    plot, opened = drawn.plots[2], PlotMenu(drawn)
    view.select(12.0, 15.0)
    place = QPoint(300, 50)
    event = QContextMenuEvent(QContextMenuEvent.Reason.Mouse, place, plot.canvas.mapToGlobal(place))
    QApplication.sendEvent(plot.canvas.viewport(), event)
    menu = QApplication.activePopupWidget()
    assert menu is not None and opened  # who listens must live
    words = [action.text() for action in menu.actions() if action.text()]
    assert words[:7] == [
        "Copy values",
        "Copy graph as image",
        "Save picture as PNG…",
        "Save picture as SVG…",
        "Export range as CSV…",
        "Zoom to selection",
        "Clear selection",
    ]
    assert {"Hide loss", "Hide accuracy", "Logarithmic axis"} <= set(words)
    menu.close()


def test_the_menu_hides_a_curve_and_offers_to_bring_it_back(drawn: PlotStack) -> None:
    plot = drawn.plots[1]
    menu = PlotMenu(drawn).build(plot)
    next(action for action in menu.actions() if action.text() == "Hide CPU").trigger()
    assert plot.hidden == {"CPU"}
    menu = PlotMenu(drawn).build(plot)
    next(action for action in menu.actions() if action.text() == "Show all curves").trigger()
    assert plot.hidden == frozenset()
