"""The past of one GPU in a tab."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import pytest
from PySide6.QtCore import QCoreApplication, QDateTime, QEvent, Qt
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QApplication, QPushButton
from pytestqt.qtbot import QtBot

from gpudash.system.settings import Settings
from gpudash.telemetry.records import Sample
from gpudash.ui.dashboard.cards import DeviceCards
from gpudash.ui.dashboard.tabs.lower_tabs import LowerTabs
from gpudash.ui.dashboard.view_bar import ViewBar
from gpudash.ui.fleet.gpu_document import ROLL_S, GpuDocument
from gpudash.ui.fleet.header import Range
from gpudash.ui.forms.workload_panel import WorkloadPanel
from gpudash.ui.widgets.theme import apply_theme
from tests.ui.fleet.fake_fleet import NOW_S, gpu
from tests.ui.fleet.fake_view import FakeView

LEFT = Qt.MouseButton.LeftButton
HOUR_S = 3600.0


class Shown:
    """A tab whose clocks stand still until they are moved."""

    def __init__(self, app: QApplication, *, simulated: bool = False) -> None:
        self.now_s = 0.0
        self.gpu = gpu("node-07", 3, simulated=simulated)
        self.view = FakeView(self.gpu, NOW_S - HOUR_S, NOW_S)
        self.document = GpuDocument(
            self.view,  # type: ignore[arg-type]
            self.gpu,
            apply_theme(app, "dark"),
            Settings(),
            wall_clock=lambda: NOW_S + self.now_s,
            clock=lambda: self.now_s,
        )
        self.document.resize(1280, 720)
        self.document.show()
        self.later(0.1)

    def later(self, seconds: float, frames: int = 5) -> None:
        self.now_s += seconds
        for _frame in range(frames):
            self.document.refresh()
            QApplication.processEvents()

    def press(self, words: str) -> None:
        [button] = [found for found in self.document.bar.findChildren(QPushButton) if found.text() == words]
        assert button.isEnabled()
        button.click()


Open = Callable[..., Shown]


@pytest.fixture
def open_tab(qapp: QApplication) -> Iterator[Open]:
    opened: list[Shown] = []

    def open_one(*, simulated: bool = False) -> Shown:
        opened.append(Shown(qapp, simulated=simulated))
        return opened[-1]

    yield open_one
    for shown in opened:
        shown.document.close()
        shown.document.deleteLater()
    QCoreApplication.sendPostedEvents(None, QEvent.Type.DeferredDelete.value)


@pytest.fixture
def shown(open_tab: Open) -> Shown:
    found = open_tab()
    found.view.answer()
    found.later(0.1)
    return found


def test_the_title_is_machine_and_number(shown: Shown) -> None:
    assert shown.document.title == "node-07 · GPU 3"


def test_loading_is_told_in_place_until_the_answer_is_there(open_tab: Open) -> None:
    shown = open_tab()
    assert shown.document.bar.state.text() == "Loading…"
    shown.view.answer()
    shown.later(0.1)
    assert shown.document.bar.state.text() == ""


def test_the_usual_plots_have_only_curves_of_which_something_was_told(shown: Shown) -> None:
    plots = {plot.spec.id: [curve.name for curve in plot.spec.curves] for plot in shown.document.past.plots.plots}
    assert plots == {
        "memory": ["used"],
        "utilisation": ["GPU"],
        "temperature": ["temperature"],
        "power": ["power"],
        "SM clock": ["SM clock"],
        "memory clock": ["memory clock"],
    }
    assert shown.document.past.view.range() == (0.0, HOUR_S)


def test_what_asks_for_a_run_is_not_there(shown: Shown) -> None:
    parts = (WorkloadPanel, DeviceCards, LowerTabs, ViewBar)
    assert not any(shown.document.findChildren(part) for part in parts)


def test_a_failure_is_told_in_place_and_what_was_there_stays(shown: Shown) -> None:
    shown.press("24 h")
    shown.view.answer(problem="http://host:9090 does not answer (timed out)")
    shown.later(0.1)
    assert shown.document.problem.isVisible()
    assert shown.document.problem.accessibleName() == "http://host:9090 does not answer (timed out)."
    assert len(shown.document.past.plots.plots) == 6


def test_a_preset_asks_for_that_part_with_no_more_points_than_pixels(shown: Shown) -> None:
    for words, seconds in (("15 min", 900), ("6 h", 21_600), ("24 h", 86_400), ("7 days", 604_800)):
        shown.press(words)
        began, ended, points = shown.view.ranges[-1]
        assert (round(ended - began), round(ended)) == (seconds, round(NOW_S + shown.now_s))
        assert points <= shown.document.past.plots.width()
        shown.view.answer()
        shown.later(0.1)
        assert shown.document.past.view.range() == (0.0, seconds)


def test_a_range_is_shown_as_far_as_it_was_told_of_so_that_the_newest_values_can_be_read(open_tab: Open) -> None:
    shown = open_tab()
    shown.view.answer(until=0.98)
    shown.later(0.1)
    assert shown.document.past.view.range() == (0.0, pytest.approx(0.98 * HOUR_S))
    assert shown.view.sought == [pytest.approx(0.98 * HOUR_S)]
    shown.press("6 h")
    shown.view.answer(until=0.5)
    shown.later(0.1)
    assert shown.document.past.view.range() == (0.0, 6 * HOUR_S)


def test_any_other_part_can_be_typed_and_does_not_move_on(shown: Shown) -> None:
    bar = shown.document.bar
    bar.begin.setDateTime(QDateTime.fromSecsSinceEpoch(int(NOW_S - 50_000)))
    bar.end.setDateTime(QDateTime.fromSecsSinceEpoch(int(NOW_S - 40_000)))
    bar.end.editingFinished.emit()
    began, ended, _points = shown.view.ranges[-1]
    assert (abs(began - NOW_S + 50_000) < 60, abs(ended - NOW_S + 40_000) < 60) == (True, True)
    shown.view.answer()
    count = len(shown.view.ranges)
    shown.later(500)
    assert len(shown.view.ranges) == count


def test_earlier_and_later_step_by_the_length_of_the_part(shown: Shown) -> None:
    shown.press("◀ Earlier")
    assert shown.view.ranges[-1][1] == pytest.approx(NOW_S - HOUR_S, abs=1)
    shown.press("Later ▶")
    assert shown.view.ranges[-1][1] == pytest.approx(NOW_S, abs=1)
    assert shown.document.bar.range == Range(HOUR_S)


def test_the_last_hour_moves_on_with_the_time_but_not_while_it_is_studied(shown: Shown) -> None:
    count = len(shown.view.ranges)
    shown.later(ROLL_S - 1)
    assert len(shown.view.ranges) == count
    shown.later(ROLL_S)
    assert len(shown.view.ranges) == count + 1
    shown.view.answer()
    shown.later(0.1)
    shown.document.past.view.select(600, 900)
    shown.later(60)
    shown.document.past.view.clear_selection()
    shown.document.past.view.show(600, 900)
    shown.later(60)
    assert len(shown.view.ranges) == count + 1


def test_a_slow_answer_is_waited_for_before_it_is_asked_again(open_tab: Open) -> None:
    shown = open_tab()
    shown.later(1000)
    assert len(shown.view.ranges) == 1


def test_the_whole_range_comes_back_after_zooming(shown: Shown, qtbot: QtBot) -> None:
    past = shown.document.past
    past.view.show(600, 900)
    shown.later(0.1)
    qtbot.mouseClick(shown.document.bar.whole, LEFT)
    assert past.view.range() == (0.0, HOUR_S)


def test_the_cursor_is_told_by_the_clock(shown: Shown) -> None:
    shown.document.past.view.set_cursor(1800.0)
    shown.later(0.1)
    assert shown.document.bar.state.text().startswith("cursor at ")


def test_a_simulated_gpu_says_so_in_head_plot_and_picture(open_tab: Open) -> None:
    shown = open_tab(simulated=True)
    shown.view.answer()
    shown.later(0.1)
    assert "SIMULATED" in shown.document.head.text()
    assert "SIMULATED" in shown.document.past.plots.plots[0].spec.title


def test_copying_takes_the_figures_of_the_plots(shown: Shown) -> None:
    shown.document.copy_values()
    assert "\t" in QGuiApplication.clipboard().text()
    shown.document.copy_picture()
    assert not QGuiApplication.clipboard().image().isNull()


def test_closing_ends_what_asks_the_server(shown: Shown) -> None:
    shown.document.close_document()
    assert shown.view.closings == 1


def test_the_plots_speak_of_the_machine_they_are_of_and_not_of_this_one(shown: Shown) -> None:
    view, device = shown.view, shown.view.gpus[0].uuid
    view.store.link("cuda:3", device)
    view.store.apply(Sample(1.0, "host", None, {"cpu_utilisation": 0.5, "process_cpu_utilisation": 0.1}))
    shown.later(0.1)
    plots = {plot.spec.id: plot.spec for plot in shown.document.past.plots.plots}
    assert plots["memory"].title == "MEMORY node-07 · GPU 3"
    names = [curve.name for plot in plots.values() for curve in plot.curves]
    assert not any("this process" in name for name in names)


def test_the_axis_has_the_times_of_the_users_clock(shown: Shown) -> None:
    [*_others, lowest] = shown.document.past.plots.plots
    ticks = lowest._time_ticks(lowest._geometry)
    began = datetime.fromtimestamp(NOW_S - HOUR_S, UTC).astimezone()
    assert ticks.name == f"clock time, from {began.day} {began:%b} on"
    drawn_s = NOW_S - HOUR_S + lowest._geometry.origin_s
    moments = [datetime.fromtimestamp(drawn_s + time_s, UTC).astimezone() for time_s, _ in ticks.marks]
    assert len(moments) >= 4
    assert [text for _, text in ticks.marks] == [f"{moment:%H:%M}" for moment in moments]
    picture = shown.document.past.plots.picture()
    assert f" · {began:%Y-%m-%d %H:%M:%S} to " in picture.text("Title")
