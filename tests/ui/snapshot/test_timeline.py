"""The timeline: moments are picked, compared, zoomed and read where they are drawn."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest
from PySide6.QtCore import QMarginsF, QPoint, QPointF, Qt
from PySide6.QtGui import QWheelEvent
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from gpudash.memory.request_log import Request, RequestLog
from gpudash.memory.snapshot.history.phases import Band
from gpudash.ui.colours import Palette
from gpudash.ui.snapshot.drawing.levels import Levels
from gpudash.ui.snapshot.drawing.timeline import Timeline
from gpudash.units import MIB

LEFT = Qt.MouseButton.LeftButton


def levels(count: int = 100, *, timed: bool = False, capacity: int | None = None) -> Levels:
    sizes = np.arange(count + 1, dtype=np.int64) % 60 * MIB
    seconds = np.linspace(0.0, 2.0, count) if timed else None
    peak = int(np.argmax(sizes)) - 1
    bands = (Band("forward", 0, count // 2), Band("backward", count // 2, count))
    return Levels(sizes, sizes + MIB, seconds, bands, capacity, peak, (count - 10,))


@pytest.fixture
def timeline(qtbot: QtBot, palette: Palette) -> Timeline:
    view = Timeline(palette)
    qtbot.addWidget(view)
    view.resize(700, 300)
    view.show_levels(levels())
    view.show()
    view.picks = []  # type: ignore[attr-defined]
    view.picked.connect(view.picks.append)  # type: ignore[attr-defined]
    return view


def picks(view: Timeline) -> list[Any]:
    return view.picks  # type: ignore[attr-defined,no-any-return]


def at(view: Timeline, moment: int) -> QPoint:
    return QPoint(round(view.x_of(moment)), 150)


def test_a_click_picks_the_moment_under_it(timeline: Timeline, qtbot: QtBot) -> None:
    for moment in (0, 33, 71, 99):
        qtbot.mouseClick(timeline, LEFT, pos=at(timeline, moment))
    assert picks(timeline) == [(0, None), (33, None), (71, None), (99, None)]


@pytest.mark.parametrize(("start", "end"), [(20, 40), (40, 20)])
def test_a_drag_picks_two_moments_the_later_one_first(timeline: Timeline, qtbot: QtBot, start: int, end: int) -> None:
    qtbot.mousePress(timeline, LEFT, pos=at(timeline, start))
    qtbot.mouseMove(timeline, at(timeline, end))
    qtbot.mouseRelease(timeline, LEFT, pos=at(timeline, end))
    assert picks(timeline) == [(40, 20)]


def test_the_wheel_zooms_at_the_pointer_and_a_double_click_shows_all(timeline: Timeline, qtbot: QtBot) -> None:
    place = QPointF(at(timeline, 70))
    wheel = QWheelEvent(
        place,
        place,
        QPoint(),
        QPoint(0, 480),
        Qt.MouseButton.NoButton,
        Qt.KeyboardModifier.NoModifier,
        Qt.ScrollPhase.NoScrollPhase,
        False,
    )
    QApplication.sendEvent(timeline, wheel)
    left, right = timeline.view
    assert right - left == pytest.approx(100 / 1.25**4)
    assert timeline.x_of(70) == pytest.approx(place.x(), abs=1)
    qtbot.mouseDClick(timeline, LEFT, pos=place.toPoint())
    assert timeline.view == (0, 100)


def test_shift_and_a_drag_move_the_view(timeline: Timeline, qtbot: QtBot) -> None:
    timeline.zoom(0.5, 50.0)
    left, right = timeline.view
    qtbot.mousePress(timeline, LEFT, Qt.KeyboardModifier.ShiftModifier, pos=QPoint(300, 150))
    qtbot.mouseMove(timeline, QPoint(250, 150))
    qtbot.mouseRelease(timeline, LEFT, Qt.KeyboardModifier.ShiftModifier, pos=QPoint(250, 150))
    assert timeline.view[0] > left and timeline.view[1] - timeline.view[0] == pytest.approx(right - left)
    assert picks(timeline) == []


def test_zooming_never_leaves_the_trace(timeline: Timeline) -> None:
    for _ in range(60):
        timeline.zoom(0.5, 99.0)
    left, right = timeline.view
    assert right - left == pytest.approx(8) and right <= 100
    timeline.zoom(1e6, 0.0)
    assert timeline.view == (0, 100)


def test_arrows_step_by_events_and_stop_at_the_ends(timeline: Timeline, qtbot: QtBot) -> None:
    timeline.show_moments(98, None)
    timeline.setFocus()
    qtbot.keyClick(timeline, Qt.Key.Key_Right)
    qtbot.keyClick(timeline, Qt.Key.Key_Right, Qt.KeyboardModifier.ShiftModifier)
    qtbot.keyClick(timeline, Qt.Key.Key_Left, Qt.KeyboardModifier.ShiftModifier)
    assert picks(timeline) == [(99, None), (99, None), (88, None)]


def test_by_time_the_same_moment_lies_at_its_time(timeline: Timeline, qtbot: QtBot) -> None:
    timeline.show_levels(levels(timed=True))
    qtbot.mouseClick(timeline, LEFT, pos=at(timeline, 50))
    timeline.set_by_time(False)
    qtbot.mouseClick(timeline, LEFT, pos=at(timeline, 50))
    assert picks(timeline) == [(50, None), (50, None)]


def test_the_picture_says_in_words_what_it_shows(timeline: Timeline) -> None:
    assert timeline.accessibleDescription() == "100 events; allocated reaches 59 MiB at event 58"
    timeline.show_levels(levels(timed=True))
    assert timeline.accessibleDescription().endswith("at event 58 · 1.2 s")


def test_a_spike_of_one_event_in_a_million_is_drawn(qtbot: QtBot, palette: Palette) -> None:
    sizes = np.zeros(1_000_001, dtype=np.int64)
    sizes[500_000] = 100 * MIB
    view = Timeline(palette)
    qtbot.addWidget(view)
    view.resize(700, 300)
    view.show_levels(Levels(sizes, sizes, None, peak=499_999))
    view.show_moments(0, None)
    image = view.grab().toImage()
    column = round(view.x_of(499_999))
    colours = {image.pixelColor(column + shift, 150).name() for shift in (-1, 0, 1)}
    assert palette.curves["allocated"] in colours


def test_the_capacity_is_a_line_where_it_is_known(qtbot: QtBot, palette: Palette) -> None:
    view = Timeline(palette)
    qtbot.addWidget(view)
    view.resize(700, 300)
    view.show_levels(levels(capacity=200 * MIB))
    frame = view.frame()
    assert frame is not None and frame.y_of(200 * MIB) > frame.area.top()
    image = view.grab().toImage()
    line = {image.pixelColor(x, round(frame.y_of(200 * MIB)) + up).name() for x in range(300, 340) for up in (-1, 0)}
    assert palette.curves["capacity"] in line


@pytest.mark.parametrize("width", [300, 500, 700, 1100])
@pytest.mark.parametrize("ooms", [(4, 9, 14), (30, 60, 97), (2, 50, 52, 98), tuple(range(0, 99, 7))])
def test_no_label_lies_on_another_and_that_of_the_capacity_makes_way_for_marks(
    qtbot: QtBot, palette: Palette, ooms: tuple[int, ...], width: int
) -> None:
    """Every out-of-memory is near the capacity, whose name lies along its line."""
    count, full = 100, 200 * MIB
    sizes = np.full(count + 1, full - 4 * MIB, np.int64)
    sizes[26] = full
    view = Timeline(palette)
    qtbot.addWidget(view)
    view.resize(width, 260)
    view.show_levels(Levels(sizes, sizes, None, (), full, 25, ooms))
    view.grab()
    frame = view.frame()
    assert frame is not None
    capacity, *others = view.labels
    assert capacity.text == "room for PyTorch 200 MiB"
    assert {"OOM"} <= {label.text for label in others} <= {"OOM", "peak"}
    for one, other in combinations(view.labels, 2):
        assert not one.rect.intersects(other.rect), (one, other)
    assert all(frame.area.contains(label.rect) for label in view.labels)
    line = frame.y_of(full)
    marks = [QPointF(view.x_of(moment), frame.y_of(float(sizes[moment + 1]))) for moment in (*ooms, 25)]
    # A cross reaches some pixels beyond its middle.
    assert not any((capacity.rect + QMarginsF(4, 4, 4, 4)).contains(mark) for mark in marks)
    assert abs(capacity.rect.center().y() - line) < 4 * capacity.rect.height(), "it stays at its line"


def test_nothing_to_draw_is_nothing_drawn(qtbot: QtBot, palette: Palette) -> None:
    view = Timeline(palette)
    qtbot.addWidget(view)
    view.resize(300, 200)
    qtbot.mouseClick(view, LEFT, pos=QPoint(100, 100))
    qtbot.keyClick(view, Qt.Key.Key_Right)
    view.zoom(2.0)
    assert view.frame() is None and not view.grab().isNull()


@pytest.mark.parametrize("ribbons", [False, True])
def test_allocated_has_a_patch_beside_its_name_only_if_the_picture_has_its_colour(
    qtbot: QtBot, palette: Palette, *, ribbons: bool
) -> None:
    log = RequestLog()
    log.take([Request(float(number), number, MIB) for number in range(100)])
    view = Timeline(palette)
    qtbot.addWidget(view)
    view.resize(700, 300)
    view.show_levels(levels(timed=True), log if ribbons else None)
    view.show_moments(50, None)
    image = view.grab().toImage()
    above = {image.pixelColor(x, y).name() for x in range(700) for y in range(20)}
    assert (view.ribbons is not None) == ribbons
    assert palette.curves["reserved"] in above
    assert (palette.curves["allocated"] in above) != ribbons
