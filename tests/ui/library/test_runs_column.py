"""The last runs at the left of the dashboard: those of this session and of the folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from PySide6.QtCore import QEvent, QPoint, Qt
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from gpudash.session.recordings import library as library_module
from gpudash.session.recordings.library import Library, LibraryEntry
from gpudash.telemetry.recording.facts import Facts, RunFacts
from gpudash.ui.recordings.compare.document import CompareDocument
from gpudash.ui.recordings.document import RecordingDocument
from gpudash.ui.recordings.library import LibraryDocument
from gpudash.ui.recordings.runs_column import RunsColumn
from gpudash.ui.recordings.runs_list import RunsListModel, rows_of
from gpudash.ui.window.main_window import MainWindow
from tests.ui.conftest import OpenWindow, settle
from tests.ui.fake_session import FakeSession


@pytest.fixture
def session() -> FakeSession:
    """Begun after all that is recorded."""
    session = FakeSession().feed(5)
    session.began_wall_s = 1.8e9
    return session


@pytest.fixture
def window(folder: Path, session: FakeSession, open_window: OpenWindow, monkeypatch: pytest.MonkeyPatch) -> MainWindow:
    """Over a folder of four recordings."""
    monkeypatch.setattr(library_module, "POLL_S", 0.02)
    return open_window(session, size=(1280, 800))


@pytest.fixture
def runs(window: MainWindow, qtbot: QtBot) -> RunsColumn:
    """The runs in front of the form."""
    column = window.findChild(RunsColumn)
    assert column is not None
    window.workspace.dashboard.left.bar.setCurrentIndex(1)
    look(window, qtbot, 4)
    return column


def look(window: MainWindow, qtbot: QtBot, count: int) -> None:
    """Wait until so many rows are shown."""
    column = window.findChild(RunsColumn)
    assert column is not None

    def there() -> bool:
        window.workspace.refresh()
        return len(column.list.runs.rows) == count

    qtbot.waitUntil(there)


def names(column: RunsColumn) -> list[str]:
    model = column.list.runs
    return [model.index(number).data() for number in range(model.rowCount())]


def tick(column: RunsColumn, *places: int) -> None:
    for place in places:
        index = column.list.runs.index(place)
        column.list.runs.setData(index, Qt.CheckState.Checked, Qt.ItemDataRole.CheckStateRole)


def test_the_newest_run_is_first_and_the_tab_says_how_many_there_are(window: MainWindow, runs: RunsColumn) -> None:
    assert names(runs) == ["matmul on cpu", "pressure on sim:0", "transfer on cpu", "training on cuda:0"]
    bar = window.workspace.dashboard.left.bar
    assert [bar.tabText(place) for place in range(bar.count())] == ["New run", "Runs 4"]


def test_a_row_says_in_words_what_it_shows(runs: RunsColumn) -> None:
    words = runs.list.runs.index(1).data(Qt.ItemDataRole.AccessibleTextRole)
    assert words.startswith("pressure on sim:0, out of memory, peak 10.0 GiB (GPU), ") and "2025" in words


def test_each_has_an_outline_of_its_memory(runs: RunsColumn) -> None:
    outlines = [row.run.outline for row in runs.list.runs.rows if row.run is not None]
    assert len(outlines) == 4 and all(max(value or 0 for value in outline) == 100 for outline in outlines)


def test_a_run_of_this_session_is_there_while_it_runs_and_opens_in_the_plots(
    window: MainWindow, runs: RunsColumn, session: FakeSession, qtbot: QtBot
) -> None:
    session.start(steps=50)
    session.train(5, steps=50)
    look(window, qtbot, 5)
    first = runs.list.runs.rows[0]
    assert first.run is not None and first.run.status == "running" and names(runs)[0] == "training steps 50 on cpu"
    assert max(value or 0 for value in first.run.outline) == 100
    session.end()
    settle(window)
    window.workspace.dashboard.view.follow()
    session.feed(60)
    settle(window)
    runs.list.setCurrentIndex(runs.list.runs.index(0))
    runs.list.activated.emit(runs.list.runs.index(0))
    settle(window)
    view = window.workspace.dashboard.view
    assert view.held and view.range()[0] == pytest.approx(4.75) and window.workspace.front is None
    assert window.workspace.dashboard.prediction.ghost is None and window.workspace.dashboard.result.isHidden()


def test_enter_opens_the_recording_of_a_run(window: MainWindow, runs: RunsColumn, qtbot: QtBot) -> None:
    runs.list.setFocus()
    runs.list.setCurrentIndex(runs.list.runs.index(2))
    qtbot.keyClick(runs.list, Qt.Key.Key_Return)
    front = window.workspace.front
    assert isinstance(front, RecordingDocument) and window.workspace.is_open(runs.list.runs.rows[2].entry.path)


def test_two_ticked_runs_are_compared_the_oldest_as_a(window: MainWindow, runs: RunsColumn) -> None:
    assert not runs.compare_button.isEnabled()
    tick(runs, 0, 3)
    assert runs.compare_button.text() == "Compare 2 runs" and runs.compare_button.isEnabled()
    compared: list[list[Path]] = []
    runs.compare.connect(compared.append)
    runs.compare_button.click()
    assert [path.name[11:] for path in compared[0]] == ["120000-training.gpudash", "120000-matmul.gpudash"]
    assert isinstance(window.workspace.front, CompareDocument)


def test_space_and_a_click_at_the_left_tick_and_a_click_elsewhere_does_not(runs: RunsColumn, qtbot: QtBot) -> None:
    runs.list.setFocus()
    runs.list.setCurrentIndex(runs.list.runs.index(0))
    qtbot.keyClick(runs.list, Qt.Key.Key_Space)
    assert [row.key for row in runs.ticked()] == [runs.list.runs.rows[0].key]
    rect = runs.list.visualRect(runs.list.runs.index(1))
    qtbot.mouseClick(runs.list.viewport(), Qt.MouseButton.LeftButton, pos=rect.topLeft() + QPoint(14, 14))
    assert len(runs.ticked()) == 2
    qtbot.mouseClick(runs.list.viewport(), Qt.MouseButton.LeftButton, pos=rect.center())
    assert len(runs.ticked()) == 2 and runs.list.currentIndex().row() == 1


def test_a_file_that_is_no_recording_is_a_row_with_its_reason_and_cannot_be_ticked(
    window: MainWindow, runs: RunsColumn, folder: Path, qtbot: QtBot
) -> None:
    (folder / "broken.gpudash").write_bytes(b"no recording")
    look(window, qtbot, 5)
    place = names(runs).index("broken")
    index = runs.list.runs.index(place)
    assert "is not a recording" in index.data(Qt.ItemDataRole.ToolTipRole)
    assert index.data(Qt.ItemDataRole.CheckStateRole) is None
    assert "cannot be read" in index.data(Qt.ItemDataRole.AccessibleTextRole)
    said: list[str] = []
    runs.said.connect(said.append)
    runs.list.activated.emit(index)
    assert "is not a recording" in said[0] and window.workspace.front is None


def test_the_list_is_one_stop_and_every_control_has_a_name_and_room(runs: RunsColumn) -> None:
    stops = [part for part in (runs.list, runs.compare_button, runs.all_button) if part.focusPolicy()]
    assert len(stops) <= 3 and runs.list.accessibleName() == "Last runs"
    assert all(button.height() >= 24 for button in (runs.compare_button, runs.all_button))
    assert runs.list.sizeHintForRow(0) >= 24


def test_all_recordings_are_one_click_away(window: MainWindow, runs: RunsColumn) -> None:
    runs.all_button.click()
    assert isinstance(window.workspace.front, LibraryDocument)


def test_the_column_is_as_wide_with_the_runs_as_with_the_form(window: MainWindow, runs: RunsColumn) -> None:
    left = window.workspace.dashboard.left
    width = left.width()
    left.show_form()
    QApplication.sendPostedEvents(None, QEvent.Type.LayoutRequest.value)
    assert left.width() == width == window.workspace.dashboard.panel.width()


def test_a_session_without_a_recording_lists_its_runs_and_cannot_compare_them(
    open_window: OpenWindow, qtbot: QtBot
) -> None:
    session = FakeSession(recording=None).feed(5)
    session.start()
    session.train(2)
    window = open_window(session)
    column = window.findChild(RunsColumn)
    assert column is not None
    window.workspace.dashboard.left.bar.setCurrentIndex(1)
    look(window, qtbot, 1)
    assert column.list.runs.index(0).data(Qt.ItemDataRole.CheckStateRole) is None


def test_the_number_of_runs_is_told_while_the_form_is_in_front(window: MainWindow, qtbot: QtBot) -> None:
    def counted() -> bool:
        window.workspace.refresh()
        return window.workspace.dashboard.left.bar.tabText(1) == "Runs 4"

    qtbot.waitUntil(counted)
    column = window.findChild(RunsColumn)
    assert column is not None and not column.list.runs.rows


def test_a_session_that_somebody_else_began_later_stands_above_the_runs_of_this_one(
    window: MainWindow, runs: RunsColumn, session: FakeSession, qtbot: QtBot
) -> None:
    session.began_wall_s = 1.7e9
    session.start(steps=50)
    look(window, qtbot, 5)
    began = [row.began_s for row in runs.list.runs.rows]
    assert began == sorted(began, reverse=True) and names(runs)[-1] == "training steps 50 on cpu"


def test_a_recording_has_no_second_face(window: MainWindow, runs: RunsColumn, qtbot: QtBot) -> None:
    runs.list.activated.emit(runs.list.runs.index(0))
    document = window.workspace.front
    assert isinstance(document, RecordingDocument)

    def read() -> bool:
        window.workspace.refresh()
        return document.dashboard is not None

    qtbot.waitUntil(read)
    assert document.dashboard is not None and document.dashboard.left.bar.isHidden()


def _entry(number: int) -> LibraryEntry:
    run = RunFacts(1, "training", "cpu", {"steps": number}, status="finished", began_s=1.0, seconds=2.0)
    facts = Facts(began_wall_s=1e9 + number, runs=(run,), duration_s=3.0)
    return LibraryEntry(Path(f"/r/{number}.gpudash"), facts, 1, 1e9 + number, written=False)


def test_a_run_of_the_demo_is_not_among_the_user_s() -> None:
    users = _entry(0)
    demos = _entry(1)
    assert users.facts is not None and demos.facts is not None
    demos = demos._replace(
        facts=replace(demos.facts, runs=tuple(replace(run, of_demo=True) for run in demos.facts.runs))
    )
    assert [row.entry for row in rows_of([users, demos])] == [users]


def test_a_new_run_comes_on_top_and_what_was_ticked_stays_so() -> None:
    model = RunsListModel()
    model.show_rows(rows_of(Library(tuple(map(_entry, range(3)))).entries))
    model.setData(model.index(0), Qt.CheckState.Checked, Qt.ItemDataRole.CheckStateRole)
    inserted: list[tuple[int, int]] = []
    model.rowsInserted.connect(lambda _parent, first, last: inserted.append((first, last)))
    model.show_rows(rows_of([_entry(number) for number in range(4)]))
    assert inserted == [(0, 0)] and model.index(1).data(Qt.ItemDataRole.CheckStateRole) is Qt.CheckState.Checked
    model.show_rows(rows_of([_entry(0)]))
    assert not model.ticked and model.rowCount() == 1


def test_a_run_that_is_on_can_be_stopped_beside_the_list_of_runs(
    window: MainWindow, session: FakeSession, runs: RunsColumn
) -> None:
    assert not runs.stop_button.isVisible(), "nothing runs"
    session.train(3)
    session.running = True
    window.workspace.refresh()
    settle(window)
    form = window.workspace.dashboard.panel.button
    assert runs.stop_button.isVisible() and runs.stop_button.text() == form.text() and "Stop" in form.text()
    runs.stop_button.click()
    assert ("stop",) in session.requested
