from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtGui import QShortcut
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from gpudash.devices.names import simulated_gpu
from gpudash.session import Replay
from gpudash.session.demo import SCENES
from gpudash.session.demo.tour import BUSY, TourPace
from gpudash.session.recordings.samples import samples
from gpudash.specs import TrainingSpec
from gpudash.specs.memory_cap import MemoryCap
from gpudash.ui.demo import Demo, Showing
from gpudash.ui.explanation.page import ExplanationPage
from gpudash.ui.features.help import play_demo
from gpudash.ui.window.main_window import MainWindow
from gpudash.units import GIB
from tests.ui import test_explanation as explained
from tests.ui.conftest import OpenWindow, settle
from tests.ui.fake_session import FakeSession

AT_ONCE = TourPace(ask=0.0, act=0.0, read=0.0, measured=0.0)


class PlayingSession(FakeSession):
    """Takes runs as the real session does."""

    def start_run(  # type: ignore[override]
        self,
        spec: Any,
        device: str,
        guard_bytes: int | None = None,
        memory_cap: MemoryCap | None = None,
        isolate: bool | None = None,
    ) -> int:
        return super().start_run(spec, device)


@pytest.fixture
def session() -> PlayingSession:
    return PlayingSession([simulated_gpu(0, 8 * GIB)]).feed(5.0)


@pytest.fixture
def begin(window: MainWindow) -> Callable[..., Demo]:
    """Begins the demo; time passes only when the test says so."""

    def begin(scene: int = 0, **options: Any) -> Demo:
        demo = Demo(window.workspace, pace=AT_ONCE, **options)
        demo.start(scene)
        demo._timer.stop()
        return demo

    return begin


def go_on(demo: Demo, times: int = 4) -> None:
    for _ in range(times):
        demo.refresh()
        QApplication.processEvents()


def test_the_bar_says_which_scene_it_is_and_asks_first(begin: Callable[..., Demo], window: MainWindow) -> None:
    demo = begin()
    settle(window)
    assert [step.isChecked() for step in demo.bar.steps] == [True, False, False, False, False]
    assert demo.bar.steps[0].text() == "1  Move a tensor" and demo.bar.steps[1].text() == "2"
    assert demo.bar.caption.text() == SCENES[0].questions[0].text.replace("GPU", "simulated GPU")
    assert [choice.text() for choice in demo.bar.choices] == list(SCENES[0].questions[0].choices)
    assert demo.bar.choices[0].isVisible() and not demo.bar.watch_for.isVisible()
    plots = window.workspace.dashboard.plots
    edges = [part.mapTo(window, QPoint()).x() for part in (demo.bar, plots)]
    assert edges[0] == edges[1] and demo.bar.width() == plots.width(), "it lies in line with what is above it"
    demo.leave()


def test_a_guess_starts_the_run_without_the_form_and_with_its_device_in_the_plots(
    begin: Callable[..., Demo], window: MainWindow, session: PlayingSession
) -> None:
    panel = window.workspace.dashboard.panel
    before = panel.workload.currentData(), panel.spec()
    demo = begin()
    assert not panel.isVisible()
    demo.bar.choices[1].click()
    go_on(demo)
    assert demo.tour.guess == 1
    assert [asked for asked in session.requested if asked[0] == "start"] == [("start", "pipeline", "sim:0")]
    assert (panel.workload.currentData(), panel.spec()) == before
    assert demo.bar.caption.text() == SCENES[0].acts[0].description
    assert window.workspace.dashboard.selected == "SIM-0-8GiB"
    demo.leave()
    assert panel.isVisible()


@pytest.mark.parametrize("size", [(1280, 800), (2560, 1440)])
def test_the_key_plot_has_most_of_the_height_and_the_time_axis_is_in_the_window(
    open_window: OpenWindow, session: PlayingSession, size: tuple[int, int]
) -> None:
    window = open_window(session, size=size)
    demo = Demo(window.workspace, pace=AT_ONCE)
    demo.start(4)
    demo._timer.stop()
    demo.bar.skip.click()
    go_on(demo)
    for _ in range(4):
        settle(window)
        window.workspace.refresh()
    dashboard = window.workspace.dashboard
    heights = {plot.spec.id: plot.height() for plot in dashboard.plots.plots}
    assert demo.tour.place == "memory" and demo.pointer.isVisible()
    assert heights["memory"] >= 0.55 * sum(heights.values())
    assert all(plot.visibleRegion().boundingRect().height() == plot.height() for plot in dashboard.plots.plots)
    axis = dashboard.plots.axis
    assert axis.visibleRegion().boundingRect() == axis.rect()
    assert axis.mapTo(window, axis.rect().bottomLeft()).y() < window.height() - demo.bar.height()
    assert dashboard.plots.height() - axis.geometry().bottom() < 12, "nothing below them is kept free"
    dashboard.view.select(1.0, 2.0)
    settle(window)
    assert dashboard.plots.strip.isVisible(), "what is measured is told"
    dashboard.view.clear_selection()
    demo.leave()
    for _ in range(4):
        settle(window)
        window.workspace.refresh()
    assert dashboard.panel.isVisible()


def test_in_a_large_window_the_sentence_is_larger(open_window: OpenWindow, session: PlayingSession) -> None:
    window = open_window(session, size=(1280, 800))
    demo = Demo(window.workspace, pace=AT_ONCE)
    demo.start(0)
    demo._timer.stop()
    sizes: list[float] = []
    guesses: list[float] = []
    for size in ((1280, 800), (1920, 1080), (2560, 1440)):
        window.resize(*size)
        settle(window)
        sizes.append(demo.bar.caption.fontInfo().pointSizeF())
        assert demo.bar.next.fontInfo().pointSizeF() < sizes[-1] * 0.7
        assert demo.bar.height() < window.height() / 5
        guesses.append(demo.bar.choices[0].fontInfo().pointSizeF())
        assert all(button.sizeHint().width() <= button.width() for button in demo.bar.choices)
    assert sizes[1] > 1.3 * sizes[0] and sizes[2] > 1.7 * sizes[0]
    assert guesses[2] > 1.3 * guesses[0]
    demo.leave()


@pytest.mark.parametrize("size", [(1280, 720), (1280, 800), (2560, 1440)])
def test_where_an_out_of_memory_is_explained_the_curve_has_most_of_the_height(
    open_window: OpenWindow, size: tuple[int, int]
) -> None:
    session = explained.Session()
    window = open_window(session, size=size)
    explained.failed(session)
    settle(window)
    dashboard = window.workspace.dashboard
    showing = Showing(dashboard)
    page = showing.look_at("explanation")
    settle(window)
    assert isinstance(page, ExplanationPage) and page.isVisible() and not page.stack.isVisible()
    assert page.plots.height() > page.height() / 2 - 10
    assert not page.owners.table.view.horizontalScrollBar().isVisible(), "the table is read without it"
    assert (page.plots.width() > page.owners.width()) == (size[0] > 2000)
    window.resize(1280, 800)
    settle(window)
    assert not page.owners.table.view.horizontalScrollBar().isVisible(), "nor in a window that was larger"
    showing.restore()
    dashboard.explanation.show_newest()
    settle(window)
    assert page.stack.isVisible(), "whoever opens it without the demo sees all of it"
    assert page.plots.width() < page.owners.width()


def test_what_is_spoken_of_is_framed(begin: Callable[..., Demo], window: MainWindow) -> None:
    demo = begin(1)
    demo.bar.skip.click()
    go_on(demo)
    settle(window)
    go_on(demo)
    assert demo.pointer.target is window.workspace.dashboard.tabs and demo.pointer.isVisible()
    assert (
        window.workspace.dashboard.tabs.bar.tabText(window.workspace.dashboard.tabs.bar.currentIndex()) == "Steps"
        and not window.workspace.dashboard.tabs.collapsed
    )
    inside = demo.pointer.geometry()
    assert inside.contains(
        window.workspace.dashboard.tabs.mapTo(window, window.workspace.dashboard.tabs.rect().center())
    )
    assert demo.pointer.testAttribute(Qt.WidgetAttribute.WA_TransparentForMouseEvents)
    demo.leave()
    assert not demo.pointer.isVisible()


def test_in_presentation_mode_the_tables_are_there_while_they_are_spoken_of(
    begin: Callable[..., Demo], window: MainWindow, usual_size: None
) -> None:
    action = window.menus.actions["view.presentation"]
    action.trigger()
    demo = begin(1)
    demo.bar.skip.click()
    go_on(demo)
    settle(window)
    go_on(demo)
    assert (
        window.workspace.dashboard.tabs.isVisible()
        and demo.pointer.isVisible()
        and demo.pointer.target is window.workspace.dashboard.tabs
    )
    demo.tour.go(4)
    demo.bar.skip.click()
    go_on(demo)
    assert demo.tour.place == "memory" and not window.workspace.dashboard.tabs.isVisible()
    demo.tour.go(1)
    demo.bar.skip.click()
    go_on(demo)
    assert window.workspace.dashboard.tabs.isVisible()
    demo.leave()
    assert not window.workspace.dashboard.tabs.isVisible()
    action.trigger()
    settle(window)
    assert window.workspace.dashboard.tabs.isVisible()


def test_escape_pauses_also_in_presentation_mode_and_leaves_that_next(
    begin: Callable[..., Demo], window: MainWindow, qtbot: QtBot, usual_size: None
) -> None:
    window.menus.actions["view.presentation"].trigger()
    demo = begin()
    qtbot.keyClick(window, Qt.Key.Key_Escape)
    demo.refresh()
    assert demo.tour.paused and window.workspace.presenting
    qtbot.keyClick(window, Qt.Key.Key_Escape)
    assert demo.tour.paused and not window.workspace.presenting
    demo.leave()


def test_leaving_shows_what_was_shown_before(begin: Callable[..., Demo], window: MainWindow) -> None:
    window.workspace.dashboard.panel.change_fields({"width": 64, "steps": 17})
    window.workspace.dashboard.tabs.bar.setCurrentIndex(4)
    before = (
        window.workspace.dashboard.panel.workload.currentData(),
        window.workspace.dashboard.panel.device_name,
        window.workspace.dashboard.panel.spec(),
    )
    assert isinstance(before[2], TrainingSpec) and before[2].steps == 17
    demo = begin(2)
    demo.bar.skip.click()
    go_on(demo)
    assert not window.workspace.dashboard.panel.isVisible()
    demo.bar.leave.click()
    settle(window)
    assert (
        window.workspace.dashboard.panel.workload.currentData(),
        window.workspace.dashboard.panel.device_name,
        window.workspace.dashboard.panel.spec(),
    ) == before
    assert window.workspace.dashboard.tabs.bar.currentIndex() == 4
    assert window.workspace.dashboard.panel.isVisible()
    assert window.findChild(Demo) is None
    assert not [shortcut for shortcut in window.findChildren(QShortcut) if shortcut.key().toString() == "PgDown"]


def test_leaving_stops_the_demos_own_run(begin: Callable[..., Demo], session: PlayingSession) -> None:
    demo = begin()
    demo.bar.skip.click()
    go_on(demo)
    demo.bar.leave.click()
    assert ("stop",) in session.requested


def test_a_run_of_the_users_is_stopped_by_its_own_button_only(
    begin: Callable[..., Demo], window: MainWindow, session: PlayingSession
) -> None:
    session.start()
    demo = begin()
    demo.bar.skip.click()
    go_on(demo)
    settle(window)
    assert demo.bar.caption.text() == BUSY and demo.bar.stop_run.isVisible()
    assert ("stop",) not in session.requested
    demo.bar.stop_run.click()
    assert ("stop",) in session.requested
    demo.leave()


def test_escape_pauses_wherever_the_focus_is_and_is_the_plots_again_while_paused(
    begin: Callable[..., Demo], window: MainWindow, qtbot: QtBot
) -> None:
    clear = window.menus.actions["view.clear_selection"]
    demo = begin()
    window.workspace.dashboard.plots.plots[0].canvas.setFocus()
    window.workspace.dashboard.view.select(1.0, 2.0)
    assert clear.shortcuts() == []
    qtbot.keyClick(window.workspace.dashboard.plots.plots[0].canvas, Qt.Key.Key_Escape)
    go_on(demo)
    assert demo.tour.paused and window.workspace.dashboard.view.selection is not None
    assert demo.bar.pause.text().startswith("Go on")
    qtbot.keyClick(window.workspace.dashboard.plots.plots[0].canvas, Qt.Key.Key_Escape)
    assert window.workspace.dashboard.view.selection is None and demo.tour.paused
    demo.bar.pause.click()
    assert not demo.tour.paused
    demo.leave()
    assert [keys.toString() for keys in clear.shortcuts()] == ["Esc"]


def test_page_down_and_up_turn_the_scenes(begin: Callable[..., Demo], window: MainWindow, qtbot: QtBot) -> None:
    demo = begin()
    qtbot.keyClick(window, Qt.Key.Key_PageDown)
    assert demo.tour.position == 1
    qtbot.keyClick(window, Qt.Key.Key_PageUp)
    assert demo.tour.position == 0
    demo.leave()


@pytest.mark.parametrize("presenting", [False, True])
def test_every_sentence_of_the_demo_fits_a_narrow_window(
    open_window: OpenWindow, session: PlayingSession, usual_size: None, presenting: bool
) -> None:
    window = open_window(session, size=(1280, 800) if presenting else (960, 700))
    demo = Demo(window.workspace)
    if presenting:
        window.menus.actions["view.presentation"].trigger()
    settle(window)
    sentences = [scene.watch_for for scene in SCENES]
    sentences += [act.description for scene in SCENES for act in scene.acts]
    sentences.append(
        "torch: “The .grad attribute of a Tensor that is not a leaf Tensor is being accessed. Its .grad attribute "
        "won't be populated during autograd.backward(). If you indeed want the .grad field to be populated for a "
        "non-leaf Tensor, use .retain_grad() on the non-leaf Tensor. If you access the non-leaf Tensor by mistake, "
        "make sure you access the leaf Tensor instead. See github.com/pytorch/pytorch/pull/30531 for more information. "
        "(Triggered internally at /__w/pytorch/pytorch/build/aten/src/ATen/core/TensorBody.h:493.)” Move first, then "
        "ask for gradients: "
        "x = x.to(device).requires_grad_()."
    )
    sentences += [question.text for scene in SCENES for question in scene.questions]
    for words in sentences:
        demo.tour.log, demo.tour.state = [words], "playing"
        demo.tour._runs = [None]
        demo.bar.refresh()
        QApplication.processEvents()
        label = demo.bar.caption
        taken = label.fontMetrics().boundingRect(0, 0, label.width(), 1000, int(Qt.TextFlag.TextWordWrap), label.text())
        whole = demo.tour.said(words) if words.startswith("Watch") else words
        assert label.text() in (words, whole) and taken.height() <= label.height()
    demo.leave()


def test_the_frame_takes_the_colours_of_the_other_theme(begin: Callable[..., Demo], window: MainWindow) -> None:
    from gpudash.ui.colours import LIGHT

    demo = begin()
    window.set_palette(LIGHT)
    demo.refresh()
    assert demo.pointer._colour.name() == LIGHT.accent
    demo.leave()


def test_help_begins_the_demo_once(window: MainWindow) -> None:
    window.menus.actions["help.demo"].trigger()
    demo = window.findChild(Demo)
    assert isinstance(demo, Demo) and play_demo(window.workspace) is demo
    demo.leave()


def test_closing_the_window_ends_the_demos_clock(begin: Callable[..., Demo], window: MainWindow) -> None:
    demo = begin()
    demo._timer.start()
    window.close()
    assert not demo._timer.isActive()


def test_the_demo_recordings_are_in_the_menu_and_open(window: MainWindow, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[object] = []
    monkeypatch.setattr(window.workspace, "open", opened.append)
    for found in samples():
        action = window.menus.actions[f"help.sample.{found.path.name}"]
        assert action.toolTip() == found.description
        action.trigger()
    assert opened == [found.path for found in samples()]


def test_a_recordings_window_offers_no_demo(open_window: OpenWindow) -> None:
    window = open_window(Replay(samples()[0].path))
    assert "help.demo" not in window.menus.actions
    assert f"help.sample.{samples()[0].path.name}" in window.menus.actions
