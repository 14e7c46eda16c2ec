"""The explanation of a full memory says whose it is, in a run with ranks; and the menu of plots."""

from __future__ import annotations

from dataclasses import replace

import pytest
from PySide6.QtWidgets import QMenu

from gpudash.telemetry.records import Note
from gpudash.ui.window.main_window import MainWindow
from tests.ui.conftest import OpenWindow, settle
from tests.ui.fake_session import FakeSession
from tests.ui.rank_feed import RankFeed
from tests.ui.test_explanation import STATE, Session, explain, reported

RANKS = [{"rank": rank, "device": f"cuda:{rank}", "host": "a", "pid": rank} for rank in range(2)]


def explained(open_window: OpenWindow, message: str, *, ranks: bool) -> MainWindow:
    session = Session()
    session.feed(1.0)
    session.start("sim:0")
    if ranks:
        details = {"world_size": 2, "ranks": RANKS}
        session.apply(Note(time_s=1.0, run_id=1, topic="ranks", text="2 ranks", details=details))
    session.end(replace(reported(explain(STATE, lambda _file, _line: "")), message=message))
    window = open_window(session, size=(1280, 800))
    window.workspace.dashboard.explanation.explain()
    settle(window)
    return window


def test_the_rank_whose_memory_ran_out_is_in_the_title(open_window: OpenWindow) -> None:
    window = explained(open_window, "Rank 1 ran out of memory; rank 0 did not.", ranks=True)
    assert "· rank 1 on sim:0" in window.workspace.dashboard.explanation.page.header.title.text()


@pytest.mark.parametrize(("message", "ranks"), [("The memory ran out.", True), ("Rank 1 is a word here.", False)])
def test_no_rank_is_named_where_none_is_known(open_window: OpenWindow, message: str, ranks: bool) -> None:
    window = explained(open_window, message, ranks=ranks)
    assert "rank" not in window.workspace.dashboard.explanation.page.header.title.text()


def opened(window: MainWindow) -> list[tuple[str, bool]]:
    menu = window.findChild(QMenu, "View/Plots")
    assert menu is not None
    menu.aboutToShow.emit()
    return [(action.text(), action.isChecked()) for action in menu.actions() if not action.isSeparator()]


def test_the_view_s_menu_lists_the_plots_and_brings_them_back(open_window: OpenWindow) -> None:
    session = FakeSession().feed(1)
    RankFeed(session, 2).train(10)
    window = open_window(session)
    shown = [
        ("MEMORY BY RANK", True),
        ("STEP TIME BY RANK", True),
        ("LOSS", True),
        ("SHARE OF THE STEP", True),
        ("MEMORY cpu", False),
        ("UTILISATION", False),
        ("THROUGHPUT", False),
        ("Usual Plots", False),
    ]
    assert sorted(opened(window)) == sorted(shown) == sorted(opened(window)), "however often it is opened"
    menu = window.findChild(QMenu, "View/Plots")
    next(action for action in menu.actions() if action.text() == "UTILISATION").trigger()
    settle(window)
    assert window.workspace.dashboard.plots.plot("utilisation") is not None and ("UTILISATION", True) in opened(window)
    window.menus.actions["view.usual_plots"].trigger()
    assert window.workspace.dashboard.plots.plot("utilisation") is None
