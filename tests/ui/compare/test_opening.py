"""Comparisons opened in the window: from the menu, from paths, twice, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from pytestqt.qtbot import QtBot

from gpudash.session import Replay
from gpudash.system.settings import recordings_folder
from gpudash.ui.features.recordings import open_comparison
from gpudash.ui.recordings.compare.document import CompareDocument
from gpudash.ui.recordings.library import LibraryDocument
from gpudash.ui.window.main_window import MainWindow
from tests.ui.conftest import OpenWindow
from tests.ui.fake_session import FakeSession
from tests.unit.telemetry.comparing.made import MADE


@pytest.fixture
def recordings(tmp_path: Path) -> list[Path]:
    return [MADE.but(steps=20 + 10 * place).record(tmp_path / f"{name}.gpudash") for place, name in enumerate("abc")]


def ready(window: MainWindow, qtbot: QtBot) -> CompareDocument:
    document = window.workspace.front
    assert isinstance(document, CompareDocument)

    def read() -> bool:
        window.workspace.refresh()
        return document.comparison is not None

    qtbot.waitUntil(read)
    return document


def test_recordings_are_compared_in_a_tab_once(open_window: OpenWindow, qtbot: QtBot, recordings: list[Path]) -> None:
    window = open_window(FakeSession())
    assert open_comparison(window.workspace, recordings[:2]) is not None
    document = ready(window, qtbot)
    assert [run.label for run in document.runs] == [
        "training model mlp on cuda:0 (a)",
        "training model mlp on cuda:0 (b)",
    ]
    bar = window.workspace.bar
    assert bar.tabText(1) == "training … cuda:0 (a) vs (b)"
    assert all(run.label in bar.tabToolTip(1) and run.recording in bar.tabToolTip(1) for run in document.runs)
    assert window.windowTitle().startswith("training model mlp on cuda:0 (a) vs training model mlp on cuda:0 (b)")
    document.swap()
    assert bar.tabText(1) == "training … cuda:0 (b) vs (a)"
    document.swap()
    window.workspace.show_dashboard()
    assert open_comparison(window.workspace, recordings[:2]) is None
    assert window.workspace.front is document
    open_comparison(window.workspace, [recordings[1], recordings[0]])
    assert window.workspace.count == 2
    ready(window, qtbot)


def ticked(window: MainWindow, qtbot: QtBot) -> LibraryDocument:
    """The library in front, as soon as it has ticked a run."""
    library = window.workspace.front
    assert isinstance(library, LibraryDocument)
    qtbot.waitUntil(lambda: (library.refresh(), bool(library.table.runs.ticked))[1])
    return library


def test_a_run_of_this_session_is_compared_with_one_that_is_ticked(
    open_window: OpenWindow, qtbot: QtBot, recordings: list[Path]
) -> None:
    MADE.record(recordings_folder() / "kept.gpudash")
    session = FakeSession()
    session.recording_path = recordings[2]
    window = open_window(session)
    window.menus.actions["analyse.compare"].trigger()
    library = ticked(window, qtbot)
    assert library.table.runs.ticked == {(recordings[2], 1)}
    library.table.select({(recordings_folder() / "kept.gpudash", 1)})
    QTest.keyClick(library.table, Qt.Key.Key_Space)
    library.compare_button.click()
    assert {Path(run.recording).name for run in ready(window, qtbot).runs} == {"c.gpudash", "kept.gpudash"}


def test_the_run_of_a_recording_that_is_looked_at_is_ticked(
    open_window: OpenWindow, qtbot: QtBot, recordings: list[Path]
) -> None:
    window = open_window(Replay(recordings[0]))
    window.menus.actions["analyse.compare"].trigger()
    assert ticked(window, qtbot).table.runs.ticked == {(recordings[0], 1)}


def test_one_alone_is_refused(open_window: OpenWindow, recordings: list[Path]) -> None:
    window = open_window(FakeSession())
    open_comparison(window.workspace, recordings[:1])
    assert window.workspace.notice.text == "A comparison takes 2 to 6 recordings; 1 were chosen."


def test_it_has_a_place_in_the_menus_between_view_and_help(open_window: OpenWindow) -> None:
    window = open_window(FakeSession())
    titles = [action.text().replace("&", "") for action in window.menuBar().actions()]
    assert titles.index("View") < titles.index("Analyse") < titles.index("Help")
    menu = next(action.menu() for action in window.menuBar().actions() if action.text().replace("&", "") == "Analyse")
    assert "Compare With…" in [action.text().replace("&", "") for action in menu.actions()]
