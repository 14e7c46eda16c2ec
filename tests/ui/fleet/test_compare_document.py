"""Two GPUs, or two days of one, on one axis."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from PySide6.QtCore import QCoreApplication, QEvent
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QApplication, QLabel

from gpudash.telemetry.series import Statistics
from gpudash.ui.colours import LIGHT
from gpudash.ui.fleet.compare_document import METRICS, NOTHING, FleetComparison, GpuSide, axis_of, comparison_text
from gpudash.ui.fleet.header import Range
from gpudash.ui.widgets.theme import apply_theme
from gpudash.units import GIB
from tests.ui.fleet.fake_fleet import NOW_S, gpu
from tests.ui.fleet.fake_view import FakeView

DAY_S, HOUR_S = 86_400.0, 3600.0
OpenTab = Callable[..., FleetComparison]


@pytest.fixture
def open_tab(qapp: QApplication) -> Iterator[OpenTab]:
    opened: list[FleetComparison] = []

    def open_one(*, days: int = 0, simulated: bool = False) -> FleetComparison:
        a = gpu("node-01", 0)
        b = a if days else gpu("node-02", 5, simulated=simulated)
        sides = tuple(GpuSide(FakeView(found, NOW_S - HOUR_S, NOW_S), found) for found in (a, b))  # type: ignore[arg-type]
        document = FleetComparison(
            sides,  # type: ignore[arg-type]
            apply_theme(qapp, "dark"),
            chosen=Range(),
            days=days,
            wall_clock=lambda: NOW_S,
        )
        document.resize(1280, 720)
        document.show()
        opened.append(document)
        return document

    yield open_one
    for document in opened:
        document.close()
        document.deleteLater()
    QCoreApplication.sendPostedEvents(None, QEvent.Type.DeferredDelete.value)


def answer(document: FleetComparison, *full: float, problem: str = "") -> None:
    for side, share in zip(document.sides, full or (0.5, 0.25), strict=True):
        side.view.answer(full=share, problem=problem)  # type: ignore[attr-defined]
    for _frame in range(3):
        document.refresh()
        QApplication.processEvents()


def words(document: FleetComparison) -> list[str]:
    return [label.text() for label in document.findChildren(QLabel) if label.isVisibleTo(document)]


def test_every_figure_of_both_is_drawn_on_one_axis_in_two_styles(open_tab: OpenTab) -> None:
    document = open_tab()
    answer(document)
    assert [metric.title for metric in document.plots] == [metric.title for metric in METRICS]
    for plot in document.plots.values():
        assert [len(curve.x) > 50 for curve in plot.shown] == [True, True]
        assert {curve.name: curve.style for curve in plot.spec.curves} == {"A": "solid", "B": "dash"}
    assert document.axis.range() == (0.0, 60.0)
    assert document.places.labels[-1].text == "minutes from the beginning"


def test_the_legend_tells_which_is_which_and_of_when(open_tab: OpenTab) -> None:
    document = open_tab(simulated=True)
    told = words(document)
    assert document.title == "node-01 · GPU 0 vs node-02 · GPU 5"
    assert {"A", "B", "node-01 · GPU 0", "node-02 · GPU 5"} <= set(told)
    assert sum("SIMULATED" in text for text in told) == 1


def test_the_figures_say_who_has_more(open_tab: OpenTab) -> None:
    document = open_tab()
    answer(document, 0.5, 0.25)
    told = next(text for text in words(document) if "GiB less on average" in text)
    assert told.startswith("A: mean ")
    answer(document, 0.5, 0.5)
    assert any("the same on average" in text for text in words(document))


def test_two_days_of_one_gpu_ask_for_the_same_hours_of_the_day_before(open_tab: OpenTab) -> None:
    document = open_tab(days=1)
    assert document.title == "node-01 · GPU 0, two days"
    assert document.ranges() == ((NOW_S - HOUR_S, NOW_S), (NOW_S - HOUR_S - DAY_S, NOW_S - DAY_S))
    answer(document)
    document.days.setCurrentIndex(7)
    asked = [side.view.ranges[-1][:2] for side in document.sides]  # type: ignore[attr-defined]
    assert asked == [(NOW_S - HOUR_S, NOW_S), (NOW_S - HOUR_S - 7 * DAY_S, NOW_S - 7 * DAY_S)]


def test_another_range_is_asked_for_on_both_sides_with_no_more_points_than_pixels(open_tab: OpenTab) -> None:
    document = open_tab()
    answer(document)
    document.bar.choose(Range(6 * HOUR_S))
    for side in document.sides:
        began, ended, points = side.view.ranges[-1]  # type: ignore[attr-defined]
        assert ended - began == 6 * HOUR_S
        assert points <= next(iter(document.plots.values())).columns
    answer(document)
    assert [round(edge) for edge in document.axis.range()] == [0, 6]


def test_loading_and_failure_are_told_in_place(open_tab: OpenTab) -> None:
    document = open_tab()
    document.refresh()
    assert document.bar.state.text() == "Loading…"
    answer(document, problem="http://host:9090 does not answer")
    assert document.problem.accessibleName() == "http://host:9090 does not answer."
    assert document.label.text() == NOTHING
    answer(document)
    assert not document.problem.isVisible()
    assert not document.label.isVisible()


def test_zooming_and_panning_stay_within_the_range(open_tab: OpenTab) -> None:
    document = open_tab()
    answer(document)
    document.axis.zoom(0.5, 60.0)
    document.axis.pan(1000.0)
    document.refresh()
    low, high = document.axis.range()
    assert (round(low), round(high)) == (30, 60)
    document.axis.zoom(10.0, 45.0)
    document.refresh()
    assert document.axis.range() == (0.0, 60.0)
    document.axis.zoom(1e-9, 30.0)
    document.refresh()
    document.bar.whole.click()
    document.refresh()
    assert document.axis.range() == (0.0, 60.0)


def test_pointing_tells_the_values_of_both(open_tab: OpenTab) -> None:
    document = open_tab()
    answer(document)
    document.axis.set_cursor(30.0)
    assert document.readout.text().startswith("30.0 minutes   memory used: A ")
    document.axis.set_cursor(None)
    assert document.readout.text().startswith("Point at a plot")


def test_another_theme_and_copies(open_tab: OpenTab) -> None:
    document = open_tab()
    document.copy_values()
    answer(document)
    document.set_palette(LIGHT)
    document.refresh()
    document.copy_values()
    assert QGuiApplication.clipboard().text().startswith("memory used\tA: mean ")
    document.copy_picture()
    assert not QGuiApplication.clipboard().image().isNull()


def test_closing_ends_both_looks(open_tab: OpenTab) -> None:
    document = open_tab()
    document.close_document()
    assert [side.view.closings for side in document.sides] == [1, 1]  # type: ignore[attr-defined]


def figures(mean: float) -> Statistics:
    return Statistics(3, mean, mean, 0.0, mean, mean, mean, 2.0)


def test_what_one_side_does_not_tell_is_a_dash_and_no_verdict() -> None:
    assert comparison_text(METRICS[0], None, figures(GIB)) == "A: -   B: mean 1.00 GiB, highest 1.00 GiB"


def test_swapping_turns_more_into_less_and_nothing_else() -> None:
    one, other = (
        comparison_text(METRICS[1], *pair) for pair in ((figures(0.2), figures(0.7)), (figures(0.7), figures(0.2)))
    )
    assert one.endswith("B has 50 points more on average")
    assert other.endswith("B has 50 points less on average")


@pytest.mark.parametrize(
    ("seconds", "name"), [(60, "seconds"), (3600, "minutes"), (86_400, "hours"), (7 * 86_400, "days")]
)
def test_the_axis_counts_in_a_unit_that_fits(seconds: float, name: str) -> None:
    assert axis_of(seconds)[1] == name
