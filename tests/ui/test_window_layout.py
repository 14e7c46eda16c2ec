"""Where things are: sizes, what collapses, what is kept and what can be had back."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from PySide6.QtCore import QByteArray, QCoreApplication, QEvent, QObject, QPoint, QSettings, Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import (
    QAbstractButton,
    QApplication,
    QComboBox,
    QGraphicsItem,
    QMenu,
    QPushButton,
    QScrollArea,
    QSplitterHandle,
    QTabBar,
    QWidget,
)

from gpudash.system.folders import data_folder
from gpudash.telemetry.records import RunStarted
from gpudash.ui.app import build_window
from gpudash.ui.colours import DARK
from gpudash.ui.window.main_window import DEFAULT_SIZE, MainWindow
from tests.programs import python
from tests.ui.conftest import OpenWindow, settle
from tests.ui.fake_session import LONG_NAMES, FakeSession, gpu

LEAST_PLOT_PX, TIGHT_PLOT_PX, LOWEST_PLOT_PX = 84, 50, 30


def busy_session(gpus: int = 1) -> FakeSession:
    session = FakeSession([gpu(number, LONG_NAMES[number]) for number in range(gpus)]).feed(10)
    session.start("cuda:0" if gpus else "cpu")
    session.train(12, device="cuda:0" if gpus else "cpu")
    return session


def inside(window: MainWindow, widget: object) -> bool:
    """Whether the whole widget is seen."""
    return widget.isVisible() and widget.visibleRegion().boundingRect() == widget.rect()  # type: ignore[attr-defined]


def test_a_low_window_keeps_tables_to_their_bar_and_cards_to_a_line(open_window: OpenWindow) -> None:
    window = open_window(busy_session(), size=(1280, 800))
    assert (
        window.workspace.dashboard.tabs.collapsed
        and window.workspace.dashboard.tabs.height() == window.workspace.dashboard.tabs.bar.height()
    )
    assert window.workspace.dashboard.cards.height() < 50
    assert inside(window, window.workspace.dashboard.panel.button) and inside(
        window, window.workspace.dashboard.panel.progress.bar
    )
    form = window.workspace.dashboard.panel.findChild(QScrollArea)
    assert form is not None and not form.verticalScrollBar().isVisible(), "the essential fields have room"
    window.workspace.dashboard.panel.form.more.click()
    settle(window)
    assert form.verticalScrollBar().isVisible()
    assert len(window.workspace.dashboard.plots.plots) == 5
    plots = window.workspace.dashboard.plots
    for plot in plots.plots:
        assert plot.canvas.height() >= TIGHT_PLOT_PX
        assert inside(window, plot), plot.spec.title
    memory = plots.plot("memory")
    assert memory is not None and memory.height() >= 0.4 * plots._scroll.height() - 1


def test_the_default_size_shows_every_plot_of_a_run_and_the_tables(open_window: OpenWindow) -> None:
    window = open_window(busy_session(4), size=DEFAULT_SIZE)
    assert not window.workspace.dashboard.tabs.collapsed
    assert all(inside(window, plot) for plot in window.workspace.dashboard.plots.plots)
    assert window.workspace.dashboard.tabs.stages.view.isVisible()


@pytest.mark.parametrize(
    ("gpus", "warned"),
    [(0, True), (1, False), (1, True)],
    ids=["four, memory warned of", "five", "five, memory warned of"],
)
@pytest.mark.parametrize("size", [(1280, 800), (1440, 936), (1440, 960)])
def test_every_plot_is_seen_whole_also_beside_open_tables(
    open_window: OpenWindow, size: tuple[int, int], gpus: int, warned: bool
) -> None:
    session = busy_session(gpus)
    window = open_window(session, size=size)
    dashboard = window.workspace.dashboard
    if dashboard.tabs.collapsed:
        dashboard.toggle_tables()
    dashboard.tabs.show_output()
    if warned:
        session.warn("warning", "host")
    settle(window)
    assert len(dashboard.plots.plots) == 4 + gpus
    least = LOWEST_PLOT_PX if gpus else TIGHT_PLOT_PX
    for plot in dashboard.plots.plots:
        assert inside(window, plot) and plot.canvas.height() >= least, plot.spec.title
    memory = dashboard.plots.plot("memory")
    assert memory is not None and inside(window, dashboard.plots.axis)
    assert memory.height() >= 0.4 * dashboard.plots._scroll.height() - 1
    dashboard.toggle_tables()
    settle(window)
    lowest = min(plot.canvas.height() for plot in dashboard.plots.plots)
    roomy = TIGHT_PLOT_PX if gpus else LEAST_PLOT_PX
    assert lowest >= (roomy if size[0] == 1440 else least), "as high as before once there is room"


def test_opening_shows_the_window_and_never_one_of_its_parts_alone(
    qapp: QApplication,
) -> None:
    shown: list[str] = []

    class Watcher(QObject):
        def eventFilter(self, watched: QObject, event: QEvent) -> bool:
            if event.type() is QEvent.Type.Show and isinstance(watched, QWidget) and watched.isWindow():
                shown.append(type(watched).__name__)
            return False

    watcher = Watcher()
    qapp.installEventFilter(watcher)
    window = build_window(FakeSession(), DARK, lambda _choice: None)  # type: ignore[arg-type]
    window.timer.stop()
    qapp.removeEventFilter(watcher)
    window.close()
    window.deleteLater()
    QCoreApplication.sendPostedEvents(None, QEvent.Type.DeferredDelete.value)
    assert shown == []


def test_a_plot_that_changed_its_height_is_drawn_wholly_anew(open_window: OpenWindow) -> None:
    window = open_window(busy_session(4), size=(2560, 1440))
    window.resize(1440, 960)
    settle(window)
    for plot in window.workspace.dashboard.plots.plots:
        shown = plot.canvas.grab().toImage()
        for mode in (QGraphicsItem.CacheMode.NoCache, QGraphicsItem.CacheMode.DeviceCoordinateCache):
            plot.canvas.frame.setCacheMode(mode)
        assert plot.canvas.grab().toImage() == shown, plot.spec.title


def test_plots_share_their_left_and_right_edge(open_window: OpenWindow) -> None:
    window = open_window(busy_session())
    areas = [plot.canvas.area for plot in window.workspace.dashboard.plots.plots]
    assert max(area.left() for area in areas) - min(area.left() for area in areas) <= 1
    assert max(area.right() for area in areas) - min(area.right() for area in areas) <= 1


def test_dragging_the_handle_is_respected_until_the_layout_is_reset(open_window: OpenWindow) -> None:
    window = open_window(busy_session(), size=(1440, 960))
    window.workspace.dashboard.splitter.moveSplitter(window.workspace.dashboard.splitter.sizes()[0] - 40, 1)
    by_hand = window.workspace.dashboard.splitter.sizes()
    window.workspace.session.feed(3)  # type: ignore[union-attr]
    settle(window)
    assert window.workspace.dashboard.splitter.sizes() == by_hand
    window.menus.actions["view.reset_layout"].trigger()
    settle(window)
    assert window.workspace.dashboard.splitter.sizes() != by_hand


def test_reset_layout_brings_everything_back(open_window: OpenWindow) -> None:
    window = open_window(busy_session(), size=(2000, 1300))
    window.menus.actions["view.panel"].trigger()
    window.menus.actions["view.tables"].trigger()
    window.workspace.dashboard.plots.plot("memory").legend.toggle("used")
    window.menus.actions["view.full_screen"].trigger()
    settle(window)
    assert (
        window.workspace.dashboard.left.isHidden()
        and window.workspace.dashboard.tabs.collapsed
        and window.isFullScreen()
    )
    window.menus.actions["view.reset_layout"].trigger()
    settle(window)
    assert window.workspace.dashboard.panel.isVisible() and not window.isFullScreen()
    assert not window.workspace.dashboard.plots.plot("memory").hidden
    assert window.menus.actions["view.panel"].isChecked()
    assert not window.menus.actions["view.full_screen"].isChecked()
    window.resize(*DEFAULT_SIZE)
    settle(window)
    assert not window.workspace.dashboard.tabs.collapsed


@pytest.mark.parametrize("kept", [QByteArray(b"no geometry"), "a text"], ids=["bytes", "text"])
def test_a_corrupt_layout_opens_the_default(open_window: OpenWindow, kept: object) -> None:
    data_folder().mkdir(parents=True, exist_ok=True)
    store = QSettings(str(data_folder() / "layout.ini"), QSettings.Format.IniFormat)
    store.setValue("geometry", kept)
    store.sync()
    window = open_window(FakeSession())
    assert all(
        part.isVisible() and part.height() > 0
        for part in (
            window.workspace.dashboard.panel,
            window.workspace.dashboard.plots,
            window.workspace.dashboard.cards,
        )
    )


def test_a_torn_layout_file_opens_the_default(open_window: OpenWindow) -> None:
    data_folder().mkdir(parents=True, exist_ok=True)
    (data_folder() / "layout.ini").write_bytes(b"[General\ngeometry=@ByteArray(\x00\xff\xfe")
    assert open_window(FakeSession()).isVisible()


def test_closing_keeps_the_place_and_closes_the_session_once(open_window: OpenWindow) -> None:
    session = busy_session()
    window = open_window(session)
    window.leave()
    window.close()
    assert session.requested == [("close",)]
    assert not window.timer.isActive()
    kept = QSettings(str(data_folder() / "layout.ini"), QSettings.Format.IniFormat).value("geometry")
    assert isinstance(kept, QByteArray) and not kept.isEmpty()


PROBE = """
import json, sys
from PySide6.QtCore import QRect
from PySide6.QtWidgets import QApplication
from gpudash.ui.app import application, build_window
from gpudash.ui.colours import DARK
from gpudash.ui.widgets.theme import apply_colours
from tests.ui.conftest import settle
from tests.ui.test_window_layout import busy_session, inside
from tests.ui.words import complaints
asked = json.loads(sys.argv[1])
app = application()
window = build_window(busy_session(4), apply_colours(app, "light"), lambda _choice: None)
window.timer.stop()
opened = window.geometry().getRect()
if asked["size"]:
    window.resize(*asked["size"])
if asked["at"]:
    window.move(*asked["at"])
window.show()
settle(window)
board = window.workspace.dashboard
seen = {"opened": opened, "complaints": complaints(window), "plots": all(inside(window, p) for p in board.plots.plots),
        "button": inside(window, board.panel.button), "ratio": window.devicePixelRatioF()}
window.leave()
print(json.dumps(seen))
"""


def probe(
    home: Path, screen: tuple[int, int], *, scale: float = 1.0, size: object = None, at: object = None
) -> dict[str, object]:
    """Open a window in a process of its own on a screen of this size in device pixels."""
    home.mkdir(exist_ok=True)
    config = home / "screens.json"
    shape = {"name": "s", "x": 0, "y": 0, "width": screen[0], "height": screen[1], "logicalDpi": 96, "dpr": 1}
    config.write_text(json.dumps({"screens": [shape]}))
    environment = {
        **os.environ,
        "QT_QPA_PLATFORM": f"offscreen:configfile={config}",
        "QT_SCALE_FACTOR": str(scale),
        "GPUDASH_HOME": str(home),
    }
    done = python("-c", PROBE, json.dumps({"size": size, "at": at}), env=environment, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr
    seen: dict[str, object] = json.loads(done.stdout)
    return seen


@pytest.mark.process
@pytest.mark.parametrize("scale", [1.25, 2.0])
def test_nothing_is_cut_at_a_larger_scale(home: Path, scale: float) -> None:
    seen = probe(home, (2560, 1600), scale=scale, size=[1280, 800])
    assert seen["ratio"] == scale
    assert seen["complaints"] == []
    assert seen["plots"] and seen["button"]


@pytest.mark.process
def test_the_window_opens_where_it_was_unless_that_is_off_the_screen(home: Path) -> None:
    first = probe(home, (2560, 1440), size=[1300, 900], at=[1200, 400])
    assert first["opened"] == [560, 240, *DEFAULT_SIZE]
    again = probe(home, (2560, 1440))
    frame_px = 4
    assert again["opened"] == pytest.approx([1200, 400, 1300, 900], abs=frame_px)
    smaller = probe(home, (1280, 800))
    left, top, width, height = smaller["opened"]
    assert left >= 0 and top >= 0 and left + width <= 1280 and top + height <= 800
    assert smaller["button"]


@pytest.mark.process
def test_on_a_small_screen_at_a_large_scale_the_window_is_no_larger_than_the_screen(home: Path) -> None:
    left, top, width, height = probe(home, (1024, 768), scale=1.5)["opened"]
    title_px = 24
    assert left >= 0 and left + width <= 683
    assert top >= 0 and height <= 512 - title_px


@pytest.mark.process
def test_on_a_small_screen_the_bar_of_the_title_is_within_the_screen(home: Path) -> None:
    _left, top, _width, height = probe(home, (1024, 768))["opened"]
    title_px, edge_px = 24, 5
    assert top >= title_px and top + height <= 768 - edge_px


@pytest.mark.parametrize("first_screen", [True, False])
def test_in_the_smallest_window_every_control_can_be_scrolled_into_view(
    open_window: OpenWindow, first_screen: bool
) -> None:
    session = FakeSession([gpu(0)]).feed(10) if first_screen else busy_session()
    window = open_window(session, size=(683, 480), first_screen=first_screen)
    assert (window.width(), window.height()) == (683, 480)
    controls = [
        part for part in window.workspace.findChildren(QWidget) if isinstance(part, (QAbstractButton, QComboBox))
    ]
    controls = [part for part in controls if part.isVisible() and not isinstance(part.parentWidget(), QTabBar)]
    assert len(controls) > 15
    for control in controls:
        around = control.parentWidget()
        while around is not None:
            if isinstance(around, QScrollArea):
                around.ensureWidgetVisible(control, 0, 0)
            around = around.parentWidget()
        QApplication.processEvents()
        assert inside(window, control), control.accessibleName()


def test_tab_scrolls_a_small_window_to_what_it_goes_to(open_window: OpenWindow) -> None:
    window = open_window(busy_session(), size=(683, 300))
    button = window.workspace.dashboard.panel.button
    assert not inside(window, button)
    window.workspace.dashboard.panel.workload.setFocus()
    for _stop in range(40):
        QTest.keyClick(QApplication.focusWidget(), Qt.Key.Key_Tab)
        if button.hasFocus():
            break
    assert button.hasFocus() and inside(window, button)


@pytest.mark.parametrize("size", [(1280, 800), (1440, 960), (2560, 1440)])
def test_no_tab_and_no_statistics_move_what_is_under_the_pointer_or_hide_the_time_axis(
    open_window: OpenWindow, size: tuple[int, int]
) -> None:
    window = open_window(busy_session(), size=size)
    dashboard = window.workspace.dashboard
    axis, tabs, fold = dashboard.plots.axis, dashboard.tabs, dashboard.plots.strip._fold
    assert inside(window, axis)
    opened: set[int] = set()
    for position in range(tabs.bar.count()):
        pointer = tabs.bar.mapTo(window, tabs.bar.tabRect(position).center())
        QTest.mouseClick(tabs.bar, Qt.MouseButton.LeftButton, pos=tabs.bar.tabRect(position).center())
        settle(window)
        assert tabs.bar.tabAt(tabs.bar.mapFrom(window, pointer)) == tabs.bar.currentIndex() == position
        assert inside(window, axis), tabs.bar.tabText(position)
        opened.add(tabs.height())
        if position == 0 and tabs.collapsed:  # a press on the open tab had closed it
            QTest.mouseClick(tabs.bar, Qt.MouseButton.LeftButton, pos=tabs.bar.tabRect(position).center())
            settle(window)
            opened = {tabs.height()}
    assert len(opened) == 1 and not tabs.collapsed, "every tab has the same height"
    for _press in range(2):
        pointer = fold.mapTo(window, fold.rect().center())
        QTest.mouseClick(fold, Qt.MouseButton.LeftButton)
        settle(window)
        assert window.childAt(pointer) is fold and inside(window, axis)


def test_a_height_that_was_dragged_is_that_of_every_tab_and_stays_when_the_tables_are_closed(
    open_window: OpenWindow,
) -> None:
    window = open_window(busy_session(), size=(1440, 960))
    dashboard = window.workspace.dashboard
    whole = sum(dashboard.splitter.sizes())
    dashboard.splitter.setSizes([whole - 300, 300])
    dashboard.splitter.splitterMoved.emit(whole - 300, 1)
    for position in range(dashboard.tabs.bar.count()):
        dashboard.tabs.bar.setCurrentIndex(position)
        settle(window)
        assert dashboard.tabs.height() == 300
    dashboard.toggle_tables()
    dashboard.toggle_tables()
    settle(window)
    assert dashboard.tabs.height() == 300
    dashboard.reset_layout()
    settle(window)
    assert dashboard.tabs.height() < 300


@pytest.mark.parametrize("size", [(1280, 800), (1440, 960), (2560, 1440)])
def test_memory_pressure_gives_memory_two_fifths_of_the_plots_and_a_warning_too(
    open_window: OpenWindow, size: tuple[int, int]
) -> None:
    session = busy_session()
    window = open_window(session, size=size)
    plots = window.workspace.dashboard.plots
    memory = plots.plot("memory")
    assert memory is not None and plots.plots[0].spec.id == "loss"
    session.warn("warning", session.gpus[0].uuid)
    settle(window)
    assert memory.height() >= 0.4 * plots._scroll.height() - len(plots.plots) * 5
    session.end()
    session.feed(120)
    session.apply(RunStarted(time_s=session.now_s, run_id=2, workload="pressure", device="cuda:0", spec={}))
    session.feed(5)
    settle(window)
    assert [plot.spec.id for plot in plots.plots] == ["memory", "utilisation"]
    assert memory.height() >= 0.5 * plots._scroll.height()


@pytest.mark.parametrize("size", [(1280, 720), (1920, 1080)])
def test_while_a_warning_stands_every_plot_stays_in_sight(open_window: OpenWindow, size: tuple[int, int]) -> None:
    session = busy_session()
    window = open_window(session, size=size)
    window.workspace.dashboard.plots.choice.choose("transfer", False)
    session.warn("warning", session.gpus[0].uuid)
    settle(window)
    plots = window.workspace.dashboard.plots
    memory = plots.plot("memory")
    assert len(plots.plots) == 4 and memory is not None
    assert memory.height() >= 0.4 * plots._scroll.height() - len(plots.plots) * 5
    assert [plot.spec.id for plot in plots.plots if not inside(window, plot)] == []


def test_a_comparison_shows_the_memory_of_its_own_devices(open_window: OpenWindow) -> None:
    session = FakeSession([gpu(0), gpu(1)]).feed(5)
    window = open_window(session)
    window.workspace.dashboard.select_device(session.gpus[1].uuid)
    session.apply(
        RunStarted(time_s=session.now_s, run_id=1, workload="comparison", device="cpu", spec={"devices": "cpu,cuda:0"})
    )
    session.feed(5)
    settle(window)
    titles = [plot.spec.title for plot in window.workspace.dashboard.plots.plots]
    assert titles[:2] == ["MEMORY cuda:0", "MEMORY cpu"] and "MEMORY cuda:1" not in titles
    session.end()
    session.feed(120)
    settle(window)
    window.workspace.dashboard.view.follow()
    settle(window)
    assert [plot.spec.title for plot in window.workspace.dashboard.plots.plots] == ["MEMORY cuda:1", "UTILISATION"]


@pytest.mark.parametrize("size", [DEFAULT_SIZE, (1920, 1080), (2560, 1440)])
def test_the_tables_are_as_high_as_whole_rows_are(open_window: OpenWindow, size: tuple[int, int]) -> None:
    view = open_window(busy_session(), size=size).workspace.dashboard.tabs.stages.view
    room, rows = view.viewport().height(), view.verticalHeader()
    ends = [rows.sectionPosition(row) + rows.sectionSize(row) for row in range(rows.count())]
    assert room >= 3 * rows.defaultSectionSize() - 4
    assert rows.length() <= room or min(abs(end - room) for end in ends) <= 4


def test_a_wide_window_has_a_wider_panel_for_longer_names(open_window: OpenWindow) -> None:
    window = open_window(busy_session(), size=(1440, 960))
    panel = window.workspace.dashboard.panel
    before = panel.width()
    window.resize(1920, 1080)
    settle(window)
    assert panel.width() > before
    window.resize(1440, 960)
    settle(window)
    assert panel.width() == before


@pytest.mark.parametrize("size", [(1280, 960), (1280, 600)], ids=["all in view", "scrolled"])
def test_fields_end_where_the_button_that_starts_ends(open_window: OpenWindow, size: tuple[int, int]) -> None:
    window = open_window(FakeSession().feed(10), size=size)
    panel = window.workspace.dashboard.panel
    (area,) = (each for each in panel.findChildren(QScrollArea) if each.accessibleName() == "Fields of the workload")
    layout = area.widget().layout()
    assert layout is not None
    fields = area.widget().mapTo(panel, layout.contentsRect().topRight()).x()
    assert fields == panel.button.mapTo(panel, panel.button.rect().topRight()).x()


def test_for_an_audience_nothing_is_kept_free_below_the_plots(open_window: OpenWindow) -> None:
    window = open_window(busy_session(), size=(1280, 800))
    dashboard = window.workspace.dashboard
    before = dashboard.footer.height()
    window.menus.actions["view.presentation"].trigger()
    settle(window)
    plots = dashboard.plots
    assert window.height() - plots.mapTo(window, plots.rect().bottomLeft()).y() < before
    window.menus.actions["view.presentation"].trigger()
    settle(window)
    assert dashboard.footer.height() == before


def test_every_menu_has_one_column_where_a_large_screen_is_drawn_at_twice_the_size(open_window: OpenWindow) -> None:
    window = open_window(busy_session(), size=(1280, 720))
    for menu in window.findChildren(QMenu):
        menu.ensurePolished()
        assert menu.sizeHint().height() < 720 - window.menuBar().height(), menu.objectName()


def test_the_buttons_of_the_time_range_stay_where_they_are_when_a_loss_comes(open_window: OpenWindow) -> None:
    session = FakeSession().feed(10)
    window = open_window(session, size=(1280, 800))
    bar = window.workspace.dashboard.view_bar

    def places() -> list[QPoint]:
        return [button.mapTo(window, QPoint()) for button in bar.findChildren(QPushButton)]

    before = places()
    assert not bar.smoothing.isVisible()
    session.start()
    session.train(5)
    settle(window)
    assert bar.smoothing.isVisible() and places() == before


def grip_of(window: MainWindow) -> QSplitterHandle:
    return window.workspace.dashboard.splitter.handle(1)


def test_the_grip_of_the_tables_has_a_target_that_is_dragged_from_anywhere_in_it(open_window: OpenWindow) -> None:
    window = open_window(busy_session(), size=(1280, 960))
    splitter, grip = window.workspace.dashboard.splitter, grip_of(window)
    middle = QPoint(grip.width() // 2, grip.height() // 2)
    assert grip.cursor().shape() is Qt.CursorShape.SplitVCursor
    for offset in (-11, 11):
        assert window.childAt(grip.mapTo(window, middle + QPoint(0, offset))) is grip
        before = splitter.sizes()[1]
        QTest.mousePress(grip, Qt.MouseButton.LeftButton, pos=middle + QPoint(0, offset))
        QTest.mouseMove(grip, middle + QPoint(0, offset - 30))
        QTest.mouseRelease(grip, Qt.MouseButton.LeftButton, pos=middle + QPoint(0, offset))
        settle(window)
        assert splitter.sizes()[1] == before + 30, "it does not jump when it is grabbed"
    beside = window.childAt(grip.mapTo(window, QPoint(8, 1)))
    assert beside is not grip, "beside its middle it covers nothing of the plots"


def test_arrow_keys_move_the_grip_of_the_tables_which_says_what_it_is(open_window: OpenWindow) -> None:
    window = open_window(busy_session(), size=(1280, 960))
    splitter, grip = window.workspace.dashboard.splitter, grip_of(window)
    assert grip.accessibleName() == "Height of the tables" and grip.focusPolicy() & Qt.FocusPolicy.TabFocus
    grip.setFocus()
    before = splitter.sizes()[1]
    QTest.keyClick(grip, Qt.Key.Key_Up)
    assert splitter.sizes()[1] > before
    QTest.keyClick(grip, Qt.Key.Key_Down)
    assert splitter.sizes()[1] == before
    window.workspace.dashboard.tabs.set_collapsed(True)
    splitter.rebalance()
    assert not grip.isEnabled(), "there is nothing to make higher"
