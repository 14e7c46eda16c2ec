"""Presentation mode, and the size of words."""

from __future__ import annotations

from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QLabel, QPushButton, QScrollArea, QWidget
from pytestqt.qtbot import QtBot

from gpudash.ui.features.view import ZOOM
from gpudash.ui.forms.workload_panel import WIDTH
from gpudash.ui.plots.legend import LegendEntry
from gpudash.ui.widgets.remembered import remember
from gpudash.ui.widgets.text_size import set_text_scale, text_scale
from gpudash.ui.window.main_window import MainWindow
from tests.ui import test_explanation as explained
from tests.ui import test_result_page as results
from tests.ui.conftest import OpenWindow, settle
from tests.ui.fake_session import FakeSession, gpu
from tests.ui.parts import palette_over
from tests.ui.recordings import open_recording
from tests.unit.telemetry.recordings import record

pytestmark = pytest.mark.usefixtures("usual_size")

SIZES = [(1280, 800), (2560, 1440)]


@pytest.fixture
def session() -> FakeSession:
    session = FakeSession((gpu(0), gpu(1))).feed(20)
    session.start("cuda:0")
    session.train(20, device="cuda:0")
    return session


def present(window: MainWindow) -> None:
    window.menus.actions["view.presentation"].trigger()
    settle(window, 8)


def chrome(window: MainWindow) -> list[QWidget]:
    return [
        window.menuBar(),
        window.workspace.dashboard.panel,
        window.workspace.dashboard.tabs,
        window.workspace.dashboard.status_line,
    ]


def seen(window: MainWindow) -> list[bool]:
    return [part.isVisible() for part in chrome(window)]


@pytest.mark.parametrize(("size", "theme"), [((1280, 800), "dark"), ((2560, 1440), "light")])
def test_only_cards_warnings_and_plots_stay_and_leaving_restores_every_pixel(
    open_window: OpenWindow, session: FakeSession, size: tuple[int, int], theme: str
) -> None:
    window = open_window(session, size=size, theme=theme)
    settle(window, 8)
    before, usual = window.grab().toImage(), window.font().pointSizeF()
    present(window)
    assert seen(window) == [False] * 4
    assert window.workspace.dashboard.cards.isVisible()
    assert window.workspace.dashboard.plots.isVisible()
    assert window.font().pointSizeF() >= 1.5 * usual
    assert window.size().toTuple() == size
    present(window)
    assert window.grab().toImage() == before


@pytest.mark.parametrize("size", SIZES)
def test_no_word_is_cut(open_window: OpenWindow, session: FakeSession, size: tuple[int, int]) -> None:
    window = open_window(session, size=size)
    present(window)
    for label in [
        *window.workspace.dashboard.cards.findChildren(QLabel),
        *window.workspace.dashboard.view_bar.findChildren(QLabel),
    ]:
        if label.isVisible() and label.text():
            assert label.height() >= label.fontMetrics().height() - 1, label.text()
            assert label.width() >= label.fontMetrics().horizontalAdvance(label.text()) - 1, label.text()
    for button in window.workspace.dashboard.view_bar.findChildren(QPushButton):
        if button.isVisible():
            assert button.height() >= button.fontMetrics().height(), button.text()
    for plot in window.workspace.dashboard.plots.plots:
        for entry in plot.legend.findChildren(LegendEntry):
            if entry.isVisible():
                assert entry.height() >= entry.fontMetrics().height(), entry.spec.name
                assert entry.geometry().right() <= plot.legend.width()
        for one in plot.labels():
            assert plot.canvas.rect().adjusted(-1, -1, 1, 1).contains(one.rect.toRect()), one.text
    present(window)


def test_lines_are_thicker(open_window: OpenWindow, session: FakeSession) -> None:
    window = open_window(session, size=(1280, 800))
    plot = next(plot for plot in window.workspace.dashboard.plots.plots if "MEMORY" in plot.spec.title)
    width = {name: line.opts["pen"].width() for name, line in plot.canvas._raw.items()}
    present(window)
    assert all(line.opts["pen"].width() > width[name] for name, line in plot.canvas._raw.items())
    present(window)
    assert {name: line.opts["pen"].width() for name, line in plot.canvas._raw.items()} == width


def test_plots_are_enlarged_in_a_small_window_and_the_last_ones_scrolled_to(
    open_window: OpenWindow, session: FakeSession
) -> None:
    window = open_window(session, size=(1024, 768))
    stack = window.workspace.dashboard.plots
    settle(window, 8)
    before = [plot.height() for plot in stack.plots]
    present(window)
    in_view = [plot for plot in stack.plots if not plot.visibleRegion().isEmpty()]
    assert [plot.spec.id for plot in in_view] == ["loss", "memory"]
    assert all(plot.canvas.height() > 150 and plot.visibleRegion().boundingRect() == plot.rect() for plot in in_view)
    assert min(plot.canvas.width() for plot in in_view) > 0.9 * stack.width()
    scrolled = stack.findChild(QScrollArea)
    assert scrolled is not None
    scrolled.ensureWidgetVisible(stack.plots[-1])
    settle(window)
    assert stack.plots[-1].visibleRegion().boundingRect() == stack.plots[-1].rect()
    present(window)
    assert [plot.height() for plot in stack.plots] == before


@pytest.mark.parametrize("focus", ["plot", "window"])
def test_esc_leaves(open_window: OpenWindow, session: FakeSession, focus: str) -> None:
    window = open_window(session)
    present(window)
    target: QWidget = window.workspace.dashboard.plots.plots[0].canvas if focus == "plot" else window
    target.setFocus()
    QTest.keyClick(target, Qt.Key.Key_Escape)
    settle(window)
    assert seen(window) == [True] * 4
    assert not window.menus.actions["view.presentation"].isChecked()
    assert text_scale() == 1.0


def test_after_an_out_of_memory_esc_closes_the_explanation_then_the_result_and_then_leaves(
    open_window: OpenWindow,
) -> None:
    ran_out = explained.Session()
    window = open_window(ran_out)
    explained.failed(ran_out)
    settle(window)
    dashboard = window.workspace.dashboard
    present(window)
    assert dashboard.result.isVisible()
    dashboard.explanation.show_newest()
    settle(window)
    page = dashboard.explanation.page
    assert page.isVisible()
    shown = []
    for _ in range(3):
        QTest.keyClick(window, Qt.Key.Key_Escape)
        settle(window)
        shown.append((page.isVisible(), dashboard.result.isVisible(), window.menuBar().isVisible()))
    assert shown == [(False, True, False), (False, False, False), (False, False, True)]


def test_a_result_names_no_tab_that_is_hidden(open_window: OpenWindow) -> None:
    idle = FakeSession((gpu(0),)).feed(5)
    window = open_window(idle, size=(1600, 960))
    results.ended(idle, "matmul", {**results.RESULTS["matmul"], "remark": "a sentence that is longer than its column"})
    settle(window, 8)
    page = window.workspace.dashboard.result

    def sentences() -> list[str]:
        texts = [label.text() for label in page.findChildren(QLabel) if label.isVisible()]
        return [text for text in texts if "Steps tab" in text]

    before = sentences()
    assert len(before) == 1
    present(window)
    assert page.isVisible() and sentences() == []
    present(window)
    assert sentences() == before


def test_after_an_out_of_memory_the_strip_covers_nothing_of_the_plots(open_window: OpenWindow) -> None:
    ran_out = explained.Session()
    window = open_window(ran_out, size=(1440, 960))
    explained.failed(ran_out)
    settle(window)
    present(window)
    dashboard = window.workspace.dashboard
    assert dashboard.banner.isVisible()
    bottom = dashboard.plots.mapTo(dashboard, dashboard.plots.rect().bottomLeft()).y()
    assert bottom < dashboard.banner.geometry().top()


def test_the_key_that_enters_leaves_though_the_menu_bar_is_hidden(
    open_window: OpenWindow, session: FakeSession
) -> None:
    window = open_window(session)
    for shown in (False, True):
        QTest.keyClick(window, Qt.Key.Key_F10)
        settle(window)
        assert window.menuBar().isVisible() is shown


def test_other_keys_work_while_presenting(open_window: OpenWindow, session: FakeSession) -> None:
    window = open_window(session)
    present(window)
    QTest.keyClick(window, Qt.Key.Key_F5)
    assert session.requested[-1] == ("stop",)
    window.workspace.dashboard.plots.plots[0].canvas.setFocus()
    QTest.keyClick(window.workspace.dashboard.plots.plots[0].canvas, Qt.Key.Key_Space)
    assert not window.workspace.dashboard.view.following
    present(window)


def test_esc_in_a_dialog_means_the_dialog(open_window: OpenWindow, session: FakeSession, qtbot: QtBot) -> None:
    window = open_window(session)
    present(window)
    palette = palette_over(window)
    qtbot.waitUntil(palette.field.hasFocus)
    QTest.keyClick(palette.field, Qt.Key.Key_Escape)
    assert not palette.isVisible()
    assert window.menus.actions["view.presentation"].isChecked()
    present(window)


def test_what_was_hidden_before_stays_hidden(open_window: OpenWindow, session: FakeSession) -> None:
    window = open_window(session)
    window.menus.actions["view.panel"].trigger()
    present(window)
    present(window)
    assert seen(window) == [True, False, True, True]


def test_a_recording_opened_meanwhile_is_presented_too_and_shows_everything_afterwards(
    open_window: OpenWindow, session: FakeSession, qtbot: QtBot, tmp_path: Path
) -> None:
    window = open_window(session)
    present(window)
    dashboard = open_recording(window, record(tmp_path / "run.gpudash"), qtbot).dashboard
    assert dashboard is not None
    settle(window)
    own: list[QWidget] = [dashboard.panel, dashboard.tabs, dashboard.status_line, window.workspace.bar]
    assert [part.isVisible() for part in own] == [False] * 4
    assert dashboard.plots.isVisible()
    present(window)
    assert [part.isVisible() for part in own] == [True] * 4
    assert min(dashboard.splitter.sizes()) > 0
    assert dashboard.panel.width() == window.workspace.dashboard.panel.width() == WIDTH
    scrolled = dashboard.panel.findChildren(QScrollArea)
    (fields,) = [area for area in scrolled if area.accessibleName() == "Fields of the workload"]
    assert fields.widget().width() == fields.viewport().width()


def test_a_recording_closed_meanwhile_is_not_missed(
    open_window: OpenWindow, session: FakeSession, qtbot: QtBot, tmp_path: Path
) -> None:
    window = open_window(session)
    open_recording(window, record(tmp_path / "run.gpudash"), qtbot)
    present(window)
    window.workspace.close_front()
    settle(window)
    present(window)
    assert seen(window) == [True] * 4
    assert not window.workspace.bar.isVisible()


def test_a_window_that_is_closed_while_presenting_leaves_nothing_behind(
    open_window: OpenWindow, session: FakeSession
) -> None:
    window = open_window(session)
    present(window)
    window.leave()
    assert text_scale() == 1.0


def test_the_text_size_is_used_and_remembered(open_window: OpenWindow, session: FakeSession) -> None:
    window = open_window(session)
    usual = window.font().pointSizeF()
    window.menus.actions["view.text_size.200"].trigger()
    assert window.font().pointSizeF() == pytest.approx(2.0 * usual)
    set_text_scale(1.0)  # as at the next start
    again = open_window(FakeSession())
    assert text_scale() == 2.0
    assert again.menus.actions["view.text_size.200"].isChecked()
    again.menus.actions["view.text_size.100"].trigger()
    assert text_scale() == 1.0


def test_a_text_size_that_is_no_longer_offered_becomes_the_nearest(open_window: OpenWindow) -> None:
    remember("text_size", 1.3)
    window = open_window(FakeSession())
    assert text_scale() == 1.25
    window.menus.actions["view.text_size.100"].trigger()


@pytest.mark.usefixtures("usual_size")
def test_keys_change_the_text_size_and_those_of_a_plot_go_on_zooming_it(
    open_window: OpenWindow, session: FakeSession, qtbot: QtBot
) -> None:
    window = open_window(session)
    field = window.workspace.dashboard.panel.workload
    field.setFocus()
    control = Qt.KeyboardModifier.ControlModifier
    both = control | Qt.KeyboardModifier.AltModifier
    seen = []
    for key in (Qt.Key.Key_Plus, Qt.Key.Key_Equal, Qt.Key.Key_Plus, Qt.Key.Key_Plus, Qt.Key.Key_Minus):
        qtbot.keyClick(field, key, both)
        seen.append(text_scale())
    qtbot.keyClick(field, Qt.Key.Key_0, control)
    assert [*seen, text_scale()] == [1.25, 1.5, 2.0, 2.0, 1.5, 1.0]

    dashboard = window.workspace.dashboard
    dashboard.plots.plots[0].setFocus()
    qtbot.keyClick(dashboard.plots.plots[0], Qt.Key.Key_Plus, control)
    settle(window)
    begin, end = dashboard.view.range()
    assert end - begin == pytest.approx(ZOOM * session.settings.window_s) and text_scale() == 1.0
