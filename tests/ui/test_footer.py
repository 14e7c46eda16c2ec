"""The row at the bottom: strips lie over the status line, and nothing in the window moves when one comes or goes."""

from __future__ import annotations

import pytest
from PySide6.QtCore import QPoint, QRect
from PySide6.QtWidgets import QPushButton, QWidget

from gpudash.ui.features.first_minute import FirstMinute
from gpudash.ui.window.main_window import MainWindow
from tests.ui.conftest import OpenWindow, settle
from tests.ui.fake_session import FakeSession, gpu
from tests.ui.parts import part

NO_DRIVER = "No NVIDIA driver is loaded: the library libnvidia-ml.so.1 was not found."

SIZES = [(1280, 800), (1920, 1080), (2560, 1440)]


def places(window: MainWindow) -> dict[str, QRect]:
    """Where the parts of the stage are."""
    dashboard = window.workspace.dashboard
    parts: dict[str, QWidget] = {
        "cards": dashboard.cards,
        "panel": dashboard.panel,
        "controls": dashboard.view_bar,
        "plots": dashboard.plots,
        "axis": dashboard.plots.axis,
        "tabs": dashboard.tabs.bar,
        "status": dashboard.status_line,
    }
    parts |= {plot.spec.id: plot for plot in dashboard.plots.plots}
    return {name: QRect(widget.mapTo(window, QPoint()), widget.size()) for name, widget in parts.items()}


@pytest.mark.parametrize("size", SIZES)
def test_nothing_moves_when_a_strip_comes_or_goes(open_window: OpenWindow, size: tuple[int, int]) -> None:
    session = FakeSession(gpu_problem=NO_DRIVER).feed(5)
    window = open_window(session, size=size)
    dashboard, told = window.workspace.dashboard, part(window, FirstMinute)
    before = places(window)
    assert told.strip.isVisible()
    session.start()
    session.end()
    settle(window)
    assert not told.strip.isVisible()
    dashboard.plots.dismiss()
    settle(window)
    shown = {name: place for name, place in places(window).items() if name in before}
    assert {name: shown[name] for name in ("cards", "panel", "controls", "plots", "axis", "tabs", "status")} == {
        name: before[name] for name in ("cards", "panel", "controls", "plots", "axis", "tabs", "status")
    }
    session.warn("critical")
    settle(window)
    assert dashboard.banner.isVisible()
    assert window.childAt(places(window)["status"].center()) in dashboard.banner.children(), "what warns is in front"
    assert places(window) == shown
    dashboard.banner.forget()
    settle(window)
    assert places(window) == shown


def test_the_overview_takes_no_room_from_the_plots_when_a_session_outgrows_the_view(open_window: OpenWindow) -> None:
    session = FakeSession([gpu(0)]).feed(5)
    window = open_window(session, size=(1280, 800))
    dashboard = window.workspace.dashboard
    before = places(window)
    assert not dashboard.plots.overview.isVisible()
    session.feed(90)
    dashboard.plots.refresh(force=True)
    settle(window)
    assert dashboard.plots.overview.isVisible()
    assert places(window) == before


def test_a_passing_message_lies_over_a_strip_beside_its_buttons(open_window: OpenWindow) -> None:
    session = FakeSession([gpu(0)]).feed(5)
    window = open_window(session, size=(1280, 800))
    dashboard = window.workspace.dashboard
    session.warn("warning")
    settle(window)
    words = places(window)["status"].topLeft() + QPoint(40, 18)
    stop = next(b for b in dashboard.banner.findChildren(QPushButton) if b.text() == "Stop run")
    over_stop = stop.mapTo(window, stop.rect().center())
    dashboard.status_line.report("Copied 312 rows of values.")
    settle(window)
    assert dashboard.status_line.isAncestorOf(window.childAt(words))
    assert window.childAt(over_stop) is stop
    dashboard.status_line.report("")
    settle(window)
    assert dashboard.banner.isAncestorOf(window.childAt(words))


def test_a_passing_message_is_read_whole_over_a_strip_that_has_a_folded_button(open_window: OpenWindow) -> None:
    window = open_window(FakeSession(gpu_problem=NO_DRIVER).feed(5), size=(1280, 800))
    strip, line = part(window, FirstMinute).strip, window.workspace.dashboard.status_line
    line.report("There is nothing to explain: no run on a GPU ran out of memory here.")
    settle(window)
    row, first = places(window)["status"], strip.check.mapTo(window, QPoint(0, strip.check.height() // 2))
    assert line.isAncestorOf(window.childAt(row.left() + 40, row.center().y()))
    assert line.isAncestorOf(window.childAt(first - QPoint(20, 0))), "no half of the strip's sentence is left"
    assert window.childAt(first + QPoint(8, 0)) is strip.check


def test_what_a_strip_unfolds_reaches_upwards_over_the_tables(open_window: OpenWindow) -> None:
    window = open_window(FakeSession(gpu_problem=NO_DRIVER).feed(5), size=(1280, 800))
    strip = part(window, FirstMinute).strip
    before, low = places(window), strip.geometry()
    strip.details.click()
    settle(window)
    assert strip.geometry().bottom() == low.bottom() and strip.height() > low.height()
    assert places(window) == before
    strip.details.click()
    settle(window)
    assert strip.geometry() == low
