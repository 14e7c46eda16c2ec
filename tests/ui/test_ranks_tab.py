"""The table of ranks below the plots, and what the rest of the window says of them."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QColor, QGuiApplication
from pytestqt.qtbot import QtBot

from gpudash.telemetry.ranks.rows import RankRow
from gpudash.telemetry.records import Note, RunEnd, RunStarted, Warning
from gpudash.ui.colours import Palette
from gpudash.ui.dashboard.banner import Banner
from gpudash.ui.dashboard.tabs.ranks_tab import BARS, COLUMNS, RanksTab
from gpudash.ui.window.main_window import MainWindow
from gpudash.units import GIB
from tests.ui.conftest import IN_BOTH_THEMES, OpenWindow, settle
from tests.ui.fake_session import FakeSession
from tests.ui.rank_feed import RankFeed

FIELDS = [field for field, _column, _write in COLUMNS]
ROW = RankRow(0, "cpu", "a", 7, 0.5, 0.5, 0.25, 0.25, GIB, 8 * GIB, "running", "", 0.125)
ROWS = [
    ROW,
    dataclasses.replace(ROW, rank=1, step_s=0.25, waiting=0.0, remark="straggler, 20 % slower"),
    dataclasses.replace(ROW, rank=2, step_s=None, computing=None, communicating=None, waiting=None, peak_bytes=None),
]


@pytest.fixture
def tab(qtbot: QtBot, palette: Palette) -> RanksTab:
    tab = RanksTab()
    qtbot.addWidget(tab)
    tab.resize(1000, 200)
    tab.show_ranks(ROWS, "Rank 1 is slow.")
    tab.show()
    qtbot.waitExposed(tab)
    return tab


@pytest.fixture
def window(open_window: OpenWindow) -> MainWindow:
    return open_window(FakeSession().feed(1))


def shown(tab: RanksTab) -> list[int]:
    return [row.rank for row in tab.model.rows]


def tabs_of(window: MainWindow) -> list[str]:
    bar = window.workspace.dashboard.tabs.bar
    return [bar.tabText(place) for place in range(bar.count()) if bar.isTabVisible(place)]


def open_ranks(window: MainWindow) -> RanksTab:
    tabs = window.workspace.dashboard.tabs
    assert tabs.ranks is not None
    tabs.bar.setCurrentIndex(tabs_of(window).index("Ranks"))
    tabs.set_collapsed(False)
    settle(window)
    return tabs.ranks


def cell(tab: RanksTab, rank: int, field: str) -> str:
    return str(tab.model.index(shown(tab).index(rank), FIELDS.index(field)).data())


def test_what_is_known_is_written_and_what_is_not_is_a_dash(tab: RanksTab) -> None:
    assert [cell(tab, 0, field) for field in ("step", "step_s", "computing", "waiting", "peak_bytes")] == [
        "7",
        "500 ms",
        "50 %",
        "25 %",
        "1.00 GiB",
    ]
    assert {cell(tab, 2, field) for field in ("step_s", "computing", "communicating", "waiting", "peak_bytes")} == {"-"}
    assert cell(tab, 1, "remark") == "straggler, 20 % slower" and tab.label.text() == "Rank 1 is slow."


@pytest.mark.parametrize("field", FIELDS)
def test_a_click_on_a_heading_sorts_and_what_is_not_known_stands_last(tab: RanksTab, field: str) -> None:
    place = FIELDS.index(field)
    for order, reverse in ((Qt.SortOrder.AscendingOrder, False), (Qt.SortOrder.DescendingOrder, True)):
        tab.view.sortByColumn(place, order)
        values = [getattr(row, field) for row in tab.model.rows]
        known = [value for value in values if value not in (None, "")]
        assert known == sorted(known, reverse=reverse)
        assert values[len(known) :] == [value for value in values if value in (None, "")]


def test_the_order_stays_while_new_figures_come(tab: RanksTab) -> None:
    tab.view.sortByColumn(FIELDS.index("step_s"), Qt.SortOrder.DescendingOrder)
    assert shown(tab) == [0, 1, 2]
    tab.show_ranks([ROW, dataclasses.replace(ROWS[1], step_s=0.9), ROWS[2]], "")
    assert shown(tab) == [1, 0, 2]


def test_a_chosen_rank_stays_chosen_wherever_its_row_goes(tab: RanksTab) -> None:
    tab.view.sortByColumn(FIELDS.index("step_s"), Qt.SortOrder.AscendingOrder)
    tab.view.selectRow(0)
    assert tab.selected_rank == 1
    tab.show_ranks([ROW, dataclasses.replace(ROWS[1], step_s=0.9), ROWS[2]], "")
    assert shown(tab) == [0, 1, 2] and tab.selected_rank == 1


def test_copy_takes_the_chosen_row_or_all_as_text_under_a_header(tab: RanksTab) -> None:
    tab.copy()
    lines = QGuiApplication.clipboard().text().splitlines()
    assert lines[0].split("\t")[:4] == ["rank", "device", "host", "step"] and len(lines) == 4
    tab.view.selectRow(1)
    tab.copy()
    assert QGuiApplication.clipboard().text().splitlines()[1].startswith("1\tcpu\ta\t7\t250 ms")
    assert len(QGuiApplication.clipboard().text().splitlines()) == 2


def test_columns_that_say_the_same_of_every_rank_are_left_out(tab: RanksTab) -> None:
    host = FIELDS.index("host")
    assert tab.view.isColumnHidden(host)
    tab.show_ranks([ROW, dataclasses.replace(ROW, rank=1, host="b")], "")
    assert not tab.view.isColumnHidden(host)


def test_the_table_is_named_and_reached_with_the_keyboard_and_left_with_tab(tab: RanksTab) -> None:
    assert tab.view.accessibleName() == "Ranks"
    assert tab.view.focusPolicy() & Qt.FocusPolicy.TabFocus and not tab.view.tabKeyNavigation()


@IN_BOTH_THEMES
def test_a_share_is_a_bar_in_its_colour_as_long_as_it_is(tab: RanksTab, palette: Palette) -> None:
    picture = tab.view.viewport().grab().toImage()
    ratio = picture.devicePixelRatio()
    for field, curve in BARS.items():
        rect = tab.view.visualRect(tab.model.index(0, FIELDS.index(field)))
        y = round((rect.bottom() - 3) * ratio)
        colours = [picture.pixelColor(round(x * ratio), y) for x in range(rect.left(), rect.right())]
        part = sum(colour == QColor(palette.curves[curve]) for colour in colours) / (rect.width() - 16)
        assert part == pytest.approx(getattr(ROW, field), abs=0.06), field


def test_the_tab_is_there_only_while_a_run_has_ranks(window: MainWindow) -> None:
    assert "Ranks" not in tabs_of(window)
    session = window.workspace.session
    feed = RankFeed(session, 2)
    feed.train(5)
    settle(window)
    assert tabs_of(window)[1] == "Ranks"
    assert len(open_ranks(window).model.rows) == 2
    session.end()
    session.start()
    settle(window)
    assert (
        "Ranks" not in tabs_of(window)
        and window.workspace.dashboard.tabs.current() is window.workspace.dashboard.tabs.stages
    )


def test_the_tab_that_was_open_stays_open_when_the_ranks_come(window: MainWindow) -> None:
    window.workspace.dashboard.tabs.bar.setCurrentIndex(tabs_of(window).index("Events"))
    settle(window)
    RankFeed(window.workspace.session, 2).train(2)
    settle(window)
    assert window.workspace.dashboard.tabs.current() is window.workspace.dashboard.tabs.events
    assert window.workspace.dashboard.tabs.bar.tabText(window.workspace.dashboard.tabs.bar.currentIndex()) == "Events"


def test_choosing_a_rank_divides_its_step_and_choosing_none_that_of_all(window: MainWindow) -> None:
    RankFeed(window.workspace.session, 2).train(20)
    settle(window)
    ranks = open_ranks(window)
    ranks.view.selectRow(1)
    settle(window)
    assert window.workspace.dashboard.plots.plot("rank_share").spec.title == "SHARE OF THE STEP · rank 1"
    ranks.view.clearSelection()
    settle(window)
    assert window.workspace.dashboard.plots.plot("rank_share").spec.title == "SHARE OF THE STEP · mean of 2 ranks"


def test_the_window_s_copy_takes_from_the_ranks_while_they_have_the_focus(window: MainWindow) -> None:
    RankFeed(window.workspace.session, 2).train(5)
    settle(window)
    ranks = open_ranks(window)
    ranks.view.setFocus()
    window.menus.actions["edit.copy_values"].trigger()
    assert QGuiApplication.clipboard().text().startswith("rank\tdevice")


def test_the_progress_says_how_many_ranks_there_are(window: MainWindow) -> None:
    RankFeed(window.workspace.session, 2).train(40)
    settle(window)
    assert "step 40 of 300 · 2 ranks" in window.workspace.dashboard.panel.progress.label.text()


def test_all_plots_of_eight_ranks_are_drawn_and_others_can_be_brought_back(window: MainWindow) -> None:
    RankFeed(window.workspace.session, 8).train(30)
    settle(window)
    ids = [plot.spec.id for plot in window.workspace.dashboard.plots.plots]
    assert ids == ["rank_memory", "rank_step", "loss", "rank_share"]
    for plot in window.workspace.dashboard.plots.plots[:3]:
        assert {"lowest", "median", "highest"} <= plot.points.raw.keys()
    window.workspace.dashboard.plots.choice.choose("utilisation", True)
    settle(window)
    assert [plot.spec.id for plot in window.workspace.dashboard.plots.plots] == [*ids, "utilisation"]


def straggler() -> Note:
    return Note(time_s=1.0, run_id=1, topic="straggler", text="Rank 1 is slow.", details={"rank": 1, "slower": 0.2})


@pytest.fixture
def banner(qtbot: QtBot) -> Banner:
    banner = Banner()
    qtbot.addWidget(banner)
    return banner


def test_a_straggler_is_a_note_and_gives_way_to_a_warning(banner: Banner) -> None:
    banner.take(straggler())
    assert banner.accessibleName() == "note: Rank 1 is slow." and banner.property("level") == "note"
    banner.take(Warning(time_s=2.0, level="warning", device="host", text="Full.", actions=()))
    assert banner.accessibleName() == "warning: Full."


@pytest.mark.parametrize("found", [{"rank": 1, "slower": 1.26, "text": "Rank 1 computes 126 % longer."}, None])
def test_at_the_end_of_the_run_the_strip_says_what_its_result_says(
    banner: Banner, found: dict[str, Any] | None
) -> None:
    banner.take(straggler())
    ended = RunEnd(time_s=9.0, run_id=1, status="finished", seconds=9.0, steps=9, result={"straggler": found})
    banner.take(ended)
    assert banner.accessibleName() == "note: Rank 1 computes 126 % longer." if found else not banner.isVisible()


def test_a_failure_stands_above_the_straggler_and_the_next_run_begins_without_one(banner: Banner) -> None:
    banner.take(straggler())
    banner.take(
        RunEnd(
            status="failed", time_s=2.0, run_id=1, error="x", message="Rank 1 died.", remedy="", seconds=1.0, steps=1
        )
    )
    assert "Rank 1 died." in banner.accessibleName()
    banner.take(RunStarted(time_s=3.0, run_id=2, workload="training", device="cpu", spec={}))
    assert banner.isHidden()
