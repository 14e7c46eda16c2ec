"""The strip of the whole session: there when the view shows less than that, and a handle on what the view shows."""

from __future__ import annotations

import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication

from gpudash.ui.plots.reading import session_shape
from gpudash.ui.plots.stack import PlotStack
from gpudash.ui.plots.view import TimeView
from tests.ui.plots.conftest import Feed, refresh


@pytest.fixture
def long(drawn: PlotStack, feed: Feed, view: TimeView) -> PlotStack:
    """A hundred seconds, of which the view shows ten."""
    feed.ticks(800)
    refresh(drawn)
    return drawn


def x_at(stack: PlotStack, time_s: float) -> int:
    area, newest = stack.overview.area, stack.store.newest_s
    return round(area.left() + time_s / newest * area.width())


def drag(stack: PlotStack, start_s: float, end_s: float) -> None:
    y = stack.overview.height() // 2
    QTest.mousePress(
        stack.overview, Qt.MouseButton.LeftButton, Qt.KeyboardModifier.NoModifier, QPoint(x_at(stack, start_s), y)
    )
    QTest.mouseMove(stack.overview, QPoint(x_at(stack, end_s), y))
    QTest.mouseRelease(
        stack.overview, Qt.MouseButton.LeftButton, Qt.KeyboardModifier.NoModifier, QPoint(x_at(stack, end_s), y)
    )
    QApplication.processEvents()


def test_a_session_that_is_in_view_whole_needs_no_overview(drawn: PlotStack, view: TimeView) -> None:
    view.set_window(60.0)
    refresh(drawn)
    assert not drawn.overview.isVisible() and not drawn.overview.size().isEmpty()


def test_one_reading_is_no_outline(stack: PlotStack, feed: Feed) -> None:
    feed.ticks(1)
    refresh(stack)
    with stack.store.lock:
        assert session_shape(stack.store, [plot.spec for plot in stack.plots], 100) is None


def test_a_longer_session_has_its_visible_part_as_a_handle(long: PlotStack) -> None:
    overview = long.overview
    assert overview.isVisible()
    area, handle = overview.area, overview.handle
    assert handle.right() == pytest.approx(area.right(), abs=1)
    assert handle.width() == pytest.approx(area.width() / 10, abs=2)


def test_dragging_the_handle_moves_the_view_and_a_press_elsewhere_brings_it_there(
    long: PlotStack, view: TimeView
) -> None:
    drag(long, 95.0, 55.0)
    assert view.range() == pytest.approx((50.0, 60.0), abs=0.4) and not view.following
    drag(long, 20.0, 20.0)
    assert view.range() == pytest.approx((15.0, 25.0), abs=0.4)
    view.back()
    view.back()
    assert view.following, "each drag is one step in the history"


def test_dragging_an_end_of_the_handle_shows_more_or_less(long: PlotStack, view: TimeView) -> None:
    drag(long, 90.0, 40.0)
    assert view.range() == pytest.approx((40.0, 100.0), abs=0.5)
    drag(long, 100.0, 70.0)
    assert view.range() == pytest.approx((40.0, 70.0), abs=0.8)


def test_a_double_click_shows_everything_and_the_room_stays(long: PlotStack, view: TimeView) -> None:
    before = long._scroll.height()
    QTest.mouseDClick(long.overview, Qt.MouseButton.LeftButton, Qt.KeyboardModifier.NoModifier, QPoint(200, 10))
    refresh(long)
    assert view.window_s == pytest.approx(100.0, abs=0.5)
    assert not long.overview.isVisible() and long._scroll.height() == before
