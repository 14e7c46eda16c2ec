"""The session library in the window."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtGui import QGuiApplication
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QLabel, QMessageBox, QPushButton
from pytestqt.qtbot import QtBot

from gpudash.telemetry.comparing import MOST_RUNS
from gpudash.telemetry.recording.facts import RunText, read_facts, set_locked, set_run_text
from gpudash.telemetry.recording.recorder import Recorder
from gpudash.telemetry.records import RunEnd, RunStarted, Sample, StepFinished
from gpudash.ui.recordings.document import RecordingDocument
from gpudash.ui.recordings.library import EMPTY_TRASH, NONE_FOUND, TRASH_HEADING, LibraryDocument
from gpudash.ui.recordings.library_table import COLUMNS, ROOMY_NAME_PX, name_of
from gpudash.ui.widgets.file_dialog import FileDialog
from gpudash.ui.widgets.undo import Undoing
from gpudash.ui.window.main_window import MainWindow
from gpudash.units import GIB, MIB
from tests.ui.conftest import settle
from tests.ui.library.conftest import compared, opened, read, started
from tests.ui.recordings import open_recording
from tests.unit.telemetry.recordings import ORIGIN, begin, record

Key = Qt.Key


def workloads(library: LibraryDocument) -> list[str]:
    """What the table shows, from the top."""
    return [row.run.workload for row in library.table.shown() if row.run is not None]


def select(library: LibraryDocument, *names: str) -> set[Path]:
    """Select the runs of these workloads; gives their recordings."""
    keys = {row.key for row in library.table.shown() if row.run is not None and row.run.workload in names}
    assert len(keys) == len(names)
    library.table.select(keys)
    return {path for path, _number in keys}


def headings(library: LibraryDocument) -> list[str]:
    """The sessions' lines."""
    return [library.table.runs.label(row, 0) for row in library.table.shown() if row.run is None]


def listed(library: LibraryDocument, qtbot: QtBot, key: tuple[Path, int]) -> None:
    """Wait until a run has been read."""
    qtbot.waitUntil(lambda: (library.refresh(), key in [row.key for row in library.table.shown()])[1])


def column(title: str) -> int:
    return [column.column.title for column in COLUMNS].index(title)


def press(
    library: LibraryDocument, key: Qt.Key, modifier: Qt.KeyboardModifier = Qt.KeyboardModifier.NoModifier
) -> None:
    library.table.setFocus()
    QTest.keyClick(library.table, key, modifier)


def test_the_newest_is_at_the_top_and_a_heading_sorts(library: LibraryDocument) -> None:
    assert workloads(library) == ["matmul", "pressure", "transfer", "training"]
    library.table.sortByColumn(column("peak"), Qt.SortOrder.DescendingOrder)
    assert sorted(workloads(library)[:2]) == ["pressure", "training"]
    library.table.sortByColumn(column("workload"), Qt.SortOrder.AscendingOrder)
    assert workloads(library) == ["matmul", "pressure", "training", "transfer"]


def test_a_row_says_what_ran_where_and_how_it_ended(library: LibraryDocument) -> None:
    header, *rows = [line.split("\t") for line in library.table.text().split("\n")]
    assert header == ["run", "began", "workload", "device", "ended", "peak", "duration", "loss", "tags", "note"]
    assert rows[1] == [
        *("pressure on sim:0", "3 Mar 2025", "pressure", "sim:0 (SIMULATED)"),
        *("out of memory", "10.0 GiB (GPU)", "8.0 s", "–", "", ""),
    ]


@pytest.mark.parametrize(
    ("typed", "found"),
    [("pre", ["pressure"]), ("SIMULATED", ["pressure"]), ("cpu failed", ["transfer"]), ("2025-03-01", ["training"])],
)
def test_typing_searches_every_column(library: LibraryDocument, typed: str, found: list[str]) -> None:
    library.search.clear()
    QTest.keyClicks(library.search, typed)
    assert workloads(library) == found
    library.search.clear()
    assert len(workloads(library)) == 4


def test_words_that_nothing_holds_are_answered(library: LibraryDocument) -> None:
    QTest.keyClicks(library.search, "xyzzy")
    assert NONE_FOUND in [label.text() for label in library.findChildren(type(library.disk.label))]


def test_enter_goes_from_the_search_to_the_table_and_opens(library: LibraryDocument) -> None:
    QTest.keyClicks(library.search, "train")
    QTest.keyClick(library.search, Key.Key_Return)
    assert library.table.hasFocus()
    QTest.keyClick(library.table, Key.Key_Return)
    assert [(path.name, run) for path, run in opened] == [("2025-03-01-120000-training.gpudash", 1)]


def test_a_recording_opens_as_a_tab(in_window: LibraryDocument, window: MainWindow, qtbot: QtBot) -> None:
    (path,) = select(in_window, "training")
    in_window.open_button.click()
    qtbot.waitUntil(lambda: (window.workspace.refresh(), window.workspace.is_open(path))[1])
    window.workspace.show_path("recordings")
    select(in_window, "training")
    in_window.delete()
    assert path.exists()
    assert "is open in a tab; close it first" in in_window.notice.text


def test_a_run_opens_with_its_time_in_view_and_what_it_came_to_in_the_tables(
    in_window: LibraryDocument, window: MainWindow, folder: Path, qtbot: QtBot
) -> None:
    path = folder / "2025-03-09-120000-three.gpudash"
    recorder = begin(path, status="")
    for number, workload in enumerate(("matmul", "transfer", "matmul"), 1):
        begun = 10.0 * number
        recorder.add(RunStarted(time_s=begun, run_id=number, workload=workload, device="cpu", spec={}, simulated=False))
        for second in range(6):
            recorder.add(Sample(begun + second, "host", None, {"process_bytes": MIB, "total_bytes": GIB}))
        result = {"run": number}
        ended: dict[str, Any] = {"time_s": begun + 5, "run_id": number, "seconds": 5.0, "steps": number}
        recorder.add(RunEnd(status="finished", result=result, **ended))
    recorder.close()
    listed(in_window, qtbot, (path, 3))

    def opened_at(number: int) -> tuple[RecordingDocument, tuple[float, float]]:
        window.workspace.show_path("recordings")
        in_window.table.select({(path, number)})
        in_window.open_button.click()
        document = window.workspace.front
        assert isinstance(document, RecordingDocument)
        qtbot.waitUntil(lambda: (window.workspace.refresh(), document.replay is not None)[1])
        assert document.dashboard is not None
        return document, document.dashboard.view.range()

    for number in (2, 1, 3):
        document, (left, right) = opened_at(number)
        assert left < 10.0 * number < 10.0 * number + 5 < right < left + 10
        assert document.replay is not None
        assert document.replay.store.run is not None and document.replay.store.run.result == {"run": number}
        assert in_window.table.selected()[0].key == (path, number)
    assert window.workspace.count == 2


def test_delete_then_undo_gives_byte_identical_files(
    in_window: LibraryDocument, window: MainWindow, qtbot: QtBot
) -> None:
    before = {path: path.read_bytes() for path in select(in_window, "training", "transfer")}
    press(in_window, Key.Key_Delete)
    assert not any(path.exists() for path in before)
    assert in_window.notice.text == "2 recordings moved to the trash."
    settle(window)
    assert window.menus.actions["edit.undo"].text() == "Undo Delete 2 Recordings"
    QTest.keyClick(in_window.table, Key.Key_Z, Qt.KeyboardModifier.ControlModifier)
    assert {path: path.read_bytes() for path in before} == before
    assert in_window.notice.text == ""
    read(in_window, qtbot, 4)
    QTest.keyClick(in_window.table, Key.Key_Y, Qt.KeyboardModifier.ControlModifier)
    assert not any(path.exists() for path in before)
    read(in_window, qtbot, 2)


def test_what_was_brought_back_and_opened_since_is_not_deleted_again(
    in_window: LibraryDocument, window: MainWindow, qtbot: QtBot
) -> None:
    (path,) = select(in_window, "training")
    in_window.delete()
    window.workspace.undo.undo()
    open_recording(window, path, qtbot)
    window.workspace.undo.redo()
    assert path.exists()
    assert window.workspace.notice.text == "2025-03-01-120000-training is open in a tab; close it first."


def test_an_undo_brings_back_what_it_can_and_names_the_rest(library: LibraryDocument, undoing: Undoing) -> None:
    gone, kept = sorted(select(library, "training", "transfer"))
    library.delete()
    (library._library_watcher.trash / gone.name).unlink()
    said: list[str] = []
    undoing.failed.connect(said.append)
    undoing.undo()
    assert (gone.exists(), kept.exists()) == (False, True)
    assert said == [f"{gone.name} is not in the trash any more."]


def test_the_notice_has_the_way_back(library: LibraryDocument, undoing: Undoing, qtbot: QtBot) -> None:
    (path,) = select(library, "training")
    library.delete_button.click()
    assert not path.exists()
    (undo,) = [button for button in library.notice.findChildren(QPushButton) if button.text() == "Undo"]
    assert undo.isVisible()
    undo.click()
    assert path.exists()


def test_the_notice_goes_when_undo_would_mean_something_else(library: LibraryDocument, undoing: Undoing) -> None:
    select(library, "training")
    library.delete()
    undoing.push("Hide Loss", lambda: None, lambda: None)
    assert library.notice.text == ""


def test_an_undo_that_cannot_be_done_is_said_and_forgotten(
    library: LibraryDocument, undoing: Undoing, qtbot: QtBot
) -> None:
    select(library, "training")
    library.delete()
    for path in (library._library_watcher.trash).iterdir():
        path.unlink()
    said: list[str] = []
    undoing.failed.connect(said.append)
    undoing.undo()
    assert "is not in the trash any more" in said[0]
    assert undoing.undo_text == ""


def test_the_trash_shows_what_was_deleted_and_restores_it(
    library: LibraryDocument, undoing: Undoing, qtbot: QtBot
) -> None:
    (path,) = select(library, "pressure")
    library.delete()
    library.trash_button.click()
    read(library, qtbot, 1)
    assert "Trash: 1, " in library.disk.trash_label.text()
    assert library.trash_button.text() == "Show Recordings"
    assert TRASH_HEADING in [label.text() for label in library.findChildren(QLabel)]
    assert not library.delete_button.isVisible()
    select(library, "pressure")
    press(library, Key.Key_Delete)  # what is in the trash stays there
    library.restore_button.click()
    assert path.exists()
    undoing.undo()
    assert not path.exists()
    undoing.redo()
    assert path.exists()
    library.trash_button.click()
    read(library, qtbot, 4)


@pytest.mark.parametrize("words", ["“2025-03-01-120000-training” is", "2 recordings are"])
def test_what_lies_in_the_trash_is_restored_before_it_is_opened(
    library: LibraryDocument, qtbot: QtBot, words: str
) -> None:
    names = ("training", "transfer") if words[0] == "2" else ("training",)
    select(library, *names)
    library.delete()
    library.trash_button.click()
    read(library, qtbot, len(names))
    select(library, *names)
    assert not library.open_button.isVisible()
    press(library, Key.Key_Return)
    assert opened == []
    assert library.notice.text == f"{words} in the trash; restore first, then open."


def test_emptying_the_trash_asks_with_a_verb_and_the_safe_button_is_the_default(
    library: LibraryDocument, qtbot: QtBot
) -> None:
    select(library, "pressure")
    library.delete()
    library.trash_button.click()
    read(library, qtbot, 1)
    library.empty_button.click()
    (box,) = library.findChildren(QMessageBox)
    assert [button.text() for button in box.buttons()].count("Empty Trash") == 1
    assert box.defaultButton().text().replace("&", "") == "Cancel"
    next(button for button in box.buttons() if button.text() == "Empty Trash").click()
    read(library, qtbot, 0)
    assert EMPTY_TRASH in [label.text() for label in library.findChildren(type(library.disk.label))]


def test_lock_protects_and_unlock_gives_up(library: LibraryDocument, qtbot: QtBot) -> None:
    (path,) = select(library, "transfer")
    library.lock_button.click()
    qtbot.waitUntil(lambda: (library.refresh(), library.lock_button.text() == "Unlock")[1])
    library.delete()
    assert path.exists()
    assert "is locked; unlock it first" in library.notice.text
    library.lock_button.click()
    qtbot.waitUntil(lambda: (library.refresh(), library.lock_button.text() == "Lock")[1])
    library.delete()
    assert not path.exists()


def test_of_several_the_locked_one_stays_and_is_named(library: LibraryDocument, folder: Path, qtbot: QtBot) -> None:
    set_locked(folder / "2025-03-02-120000-transfer.gpudash", True)
    qtbot.waitUntil(lambda: (library.refresh(), any("locked" in words for words in headings(library)))[1])
    select(library, "transfer", "training")
    library.delete()
    assert library.notice.text == (
        "“2025-03-01-120000-training” moved to the trash. 2025-03-02-120000-transfer is locked; unlock it first."
    )


def test_one_that_is_being_recorded_stays(library: LibraryDocument, folder: Path, qtbot: QtBot) -> None:
    recorder = begin(folder / "2025-03-09-120000-live.gpudash", workload="live", status="running")
    try:
        qtbot.waitUntil(lambda: (library.refresh(), "live" in workloads(library))[1])
        select(library, "live")
        assert "running now" in library.table.text()
        assert any("recording now" in words for words in headings(library))
        library.delete()
        assert recorder.path.exists()
        assert "is being recorded" in library.notice.text
    finally:
        recorder.close()


def test_a_name_is_given_and_taken_back(library: LibraryDocument, undoing: Undoing, qtbot: QtBot) -> None:
    (path,) = select(library, "training")
    library.details.title.setFocus()
    library.details.title.selectAll()
    QTest.keyClicks(library.details.title, "Baseline")
    QTest.keyClick(library.details.title, Key.Key_Return)
    qtbot.waitUntil(lambda: (library.refresh(), "Baseline" in library.table.text())[1])
    assert read_facts(path).runs[0].label.title == "Baseline"
    assert path.name == "2025-03-01-120000-training.gpudash"
    undoing.undo()
    qtbot.waitUntil(lambda: read_facts(path).runs[0].label.title == "")


def test_a_name_that_is_being_typed_outlives_a_recording_that_comes(
    library: LibraryDocument, folder: Path, qtbot: QtBot
) -> None:
    (path,) = select(library, "training")
    library.details.title.setFocus()
    library.details.title.selectAll()
    QTest.keyClicks(library.details.title, "Base")
    record(folder / "2025-03-09-120000-another.gpudash", workload="another")
    read(library, qtbot, 5)
    QTest.keyClicks(library.details.title, "line")
    QTest.keyClick(library.details.title, Key.Key_Return)
    qtbot.waitUntil(lambda: read_facts(path).runs[0].label.title == "Baseline")


def test_an_empty_library_offers_a_run(library: LibraryDocument, folder: Path, qtbot: QtBot) -> None:
    assert not library.start_button.isVisible()
    for path in folder.iterdir():
        path.unlink()
    read(library, qtbot, 0)
    assert library.start_button.isVisible()
    library.start_button.click()
    assert started == [True]
    library.trash_button.click()
    assert not library.start_button.isVisible()


def test_two_ticks_compare_the_older_run_with_the_newer(library: LibraryDocument) -> None:
    (newer,) = select(library, "matmul")
    press(library, Key.Key_Space)
    assert not library.compare_button.isEnabled()
    (older,) = select(library, "transfer")
    press(library, Key.Key_Space)
    assert library.compare_button.text() == "Compare 2 runs"
    library.search.setText("pressure")  # what is ticked is compared, seen or not
    library.compare_button.click()
    assert compared == [[older, newer]]
    library.search.clear()
    press(library, Key.Key_Space)
    assert not library.compare_button.isEnabled()


def test_more_runs_than_can_be_compared_are_not_offered_to_be(
    library: LibraryDocument, folder: Path, qtbot: QtBot
) -> None:
    for number in range(MOST_RUNS - 3):
        record(folder / f"2025-04-0{number + 1}-120000-matmul.gpudash", workload="matmul")
    read(library, qtbot, MOST_RUNS + 1)

    def refused() -> bool:
        library.refresh()
        library.table.select({row.key for row in library.table.shown() if row.run is not None})
        return library.compare_button.toolTip().startswith(f"At most {MOST_RUNS} runs")

    qtbot.waitUntil(refused)  # one that was read while it was still written has no run yet
    assert library.details.heading.text() == "SELECTED RUNS"
    assert not library.compare_button.isEnabled()


def test_a_click_on_the_box_ticks(library: LibraryDocument, qtbot: QtBot) -> None:
    table = library.table
    place = next(place for place, row in enumerate(table.shown()) if row.run is not None)
    cell = table.visualRect(table.runs.index(place, 0))
    qtbot.mouseClick(table.viewport(), Qt.MouseButton.LeftButton, pos=QPoint(cell.left() + 12, cell.center().y()))
    assert table.runs.ticked == {table.shown()[place].key}


def several_runs(folder: Path) -> Path:
    """A session of a run that ran out on a simulated GPU and one that went well on the CPU."""
    recorder = Recorder(folder.parent / "2025-03-08-120000-session.gpudash", meta={"wall_clock_origin": ORIGIN})
    for number, (device, spec) in enumerate((("sim:0", {"width": 1024}), ("cpu", {"steps": 5})), 1):
        began = 10.0 * number
        simulated = device == "sim:0"
        recorder.add(
            RunStarted(time_s=began, run_id=number, workload="training", device=device, spec=spec, simulated=simulated)
        )
        recorder.add(StepFinished(time_s=began + 4, run_id=number, step=1, steps=1, seconds=1.0, loss=2.5 * number))
        recorder.add(RunEnd(time_s=began + 5, run_id=number, status="finished", seconds=5.0, steps=1, result={}))
    recorder.commit()
    recorder.close()
    return recorder.path.rename(folder / recorder.path.name)


def test_runs_stand_under_their_session_and_are_named_by_what_differs(
    library: LibraryDocument, folder: Path, qtbot: QtBot
) -> None:
    path = several_runs(folder)
    read(library, qtbot, 5)
    library.search.setText("2025-03-08")
    names = ["training width 1024 on sim:0", "training steps 5 on cpu"]
    rows = library.table.shown()
    assert [row.key for row in rows] == [(path, 0), (path, 2), (path, 1)]
    assert [library.table.runs.label(row, 0) for row in rows[1:]] == names[::-1]
    assert "2 runs" in headings(library)[0]
    library.table.selectRow(1)
    assert library.details.heading.text() == "SELECTED RUN"
    library.table.selectRow(0)
    assert library.details.heading.text() == "SELECTED SESSION"
    assert library.details.title.accessibleName() == "Name of the session"
    library.group_button.click()
    library.table.sortByColumn(column("run"), Qt.SortOrder.DescendingOrder)
    assert [name_of(row) for row in library.table.shown()] == names
    library.table.runs.tick([row.key for row in library.table.shown()], True)
    library.compare_button.click()
    assert compared == [[Path(f"{path}#1"), Path(f"{path}#2")]]


def test_tags_and_a_note_are_kept_searched_and_taken_back(
    library: LibraryDocument, folder: Path, undoing: Undoing, qtbot: QtBot
) -> None:
    path = several_runs(folder)
    read(library, qtbot, 5)
    library.table.select({(path, 1)})
    details = library.details
    qtbot.waitUntil(lambda: (library.refresh(), not details.tags.isReadOnly())[1])  # its session has ended
    details.tags.setFocus()
    QTest.keyClicks(details.tags, "wide, <b>baseline</b>")
    details.note.setFocus()
    QTest.keyClicks(details.note, "the one to beat")
    library.table.setFocus()
    qtbot.waitUntil(lambda: read_facts(path).runs[0].label == RunText("", "wide, <b>baseline</b>", "the one to beat"))
    assert read_facts(path).runs[1].label == RunText()
    qtbot.waitUntil(lambda: (library.refresh(), "the one to beat" in library.table.text())[1])
    library.search.setText("beat <b>baseline")
    assert [row.key for row in library.table.shown()] == [(path, 0), (path, 1)]
    undoing.undo()
    undoing.undo()
    qtbot.waitUntil(lambda: read_facts(path).runs[0].label == RunText())


def test_a_run_is_found_tagged_and_ticked_by_keys_alone(
    in_window: LibraryDocument, window: MainWindow, qtbot: QtBot
) -> None:
    window.resize(1280, 800)
    in_window.search.setFocus()

    def press(*keys: Qt.Key) -> None:
        for key in keys:
            focused = QApplication.focusWidget()
            assert focused is not None
            QTest.keyClick(focused, key)

    QTest.keyClicks(in_window.search, "pressure")
    press(Qt.Key.Key_Return, Qt.Key.Key_Space)
    [(path, number)] = in_window.table.runs.ticked
    assert path.stem.endswith("pressure")
    press(Qt.Key.Key_Tab, Qt.Key.Key_Tab)
    tags = QApplication.focusWidget()
    assert tags is in_window.details.tags and not tags.visibleRegion().isEmpty()
    QTest.keyClicks(tags, "wide")
    press(Qt.Key.Key_Return)
    qtbot.waitUntil(lambda: read_facts(path).runs[number - 1].label.tags == "wide")


@pytest.mark.parametrize("width", [1240, 2520])
def test_columns_fit_and_names_have_room(library: LibraryDocument, folder: Path, qtbot: QtBot, width: int) -> None:
    path = folder / "2025-03-03-120000-pressure.gpudash"
    set_run_text(path, 1, "tags", "baseline, wide")
    set_run_text(path, 1, "note", "before the learning rate was halved, and with the old data")
    qtbot.waitUntil(lambda: (library.refresh(), "baseline" in library.table.text())[1])
    library.resize(width, 700)
    QApplication.processEvents()
    table, header = library.table, library.table.horizontalHeader()
    shown = [place for place in range(len(COLUMNS)) if not table.isColumnHidden(place)]
    assert [COLUMNS[place].column.title for place in shown if COLUMNS[place].column.title != "note"] == [
        *("run", "began", "workload", "device", "ended", "peak", "duration", "tags")
    ], "no run has a loss"
    assert sum(header.sectionSize(place) for place in shown) == table.viewport().width()
    metrics = table.fontMetrics()
    assert metrics.horizontalAdvance("training width 1024 on sim:0") <= header.sectionSize(0) <= ROOMY_NAME_PX
    for row in table.shown():
        for place in shown[1:] if row.run is not None else ():
            words, least = table.runs.label(row, place), COLUMNS[place].least
            seen = words if not least or width > 2000 else words[:least]
            if COLUMNS[place].column.title != "note":
                assert metrics.horizontalAdvance(seen) < header.sectionSize(place)
            assert words in table.runs.tip(row, place)


def test_a_column_that_says_nothing_of_any_run_is_not_there(library: LibraryDocument) -> None:
    hidden = [COLUMNS[place].column.title for place in range(len(COLUMNS)) if library.table.isColumnHidden(place)]
    assert hidden == ["loss", "tags", "note"]
    library.search.setText("transfer")
    assert library.table.isColumnHidden(column("loss"))


def test_a_run_of_a_session_that_is_being_recorded_is_named_tagged_and_noted(
    library: LibraryDocument, folder: Path, qtbot: QtBot
) -> None:
    recorder = begin(folder / "2025-03-09-120000-now.gpudash", status="running")
    listed(library, qtbot, (recorder.path, 1))
    library.table.select({(recorder.path, 1)})
    for field, words in ((library.details.title, "the wide one"), (library.details.tags, "wide")):
        field.setFocus()
        field.setText(words)
        QTest.keyClick(field, Key.Key_Return)

    def told() -> bool:
        recorder.tick()  # as the session does
        library.refresh()
        runs = [row.run for row in library.table.shown() if row.key == (recorder.path, 1)]
        return [run and run.label for run in runs] == [RunText("the wide one", "wide")]

    qtbot.waitUntil(told)
    recorder.close()
    assert read_facts(recorder.path).runs[0].label == RunText("the wide one", "wide")


def test_a_recording_from_elsewhere_is_listed_and_ticked(
    library: LibraryDocument, tmp_path: Path, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = record(tmp_path / "elsewhere.gpudash", workload="transfer")
    monkeypatch.setattr(FileDialog, "ask_to_open_several", lambda *_arguments: [str(path)])
    library.add_button.click()
    qtbot.waitUntil(lambda: (library.refresh(), library.table.runs.ticked == {(path, 1)})[1])
    assert library.notice.text == "Tick the runs to compare with “transfer on cpu”, then Compare."


def test_what_is_wrong_with_a_damaged_file_is_said(library: LibraryDocument, folder: Path, qtbot: QtBot) -> None:
    (folder / "torn.gpudash").write_bytes(b"hello")
    read(library, qtbot, 5)
    library.table.select({(folder / "torn.gpudash", 0)})
    words = " ".join(label.text() for label in library.details.findChildren(type(library.disk.label)))
    assert "no SQLite file" in words
    assert library.details.title.isReadOnly()


def test_disk_use_stands_beside_its_limits(library: LibraryDocument) -> None:
    assert library.disk.label.text().startswith("4 of 100 recordings, ")
    assert library.disk.label.text().endswith(" of 2.00 GiB")
    assert library.disk.bar.value() == 40


def test_ctrl_c_copies_the_selected_rows(in_window: LibraryDocument, window: MainWindow) -> None:
    select(in_window, "matmul")
    window.menus.actions["edit.copy_values"].trigger()
    lines = QGuiApplication.clipboard().text().split("\n")
    assert len(lines) == 2
    assert "matmul" in lines[1]


def test_the_library_is_there_once_and_closes_with_its_tab(in_window: LibraryDocument, window: MainWindow) -> None:
    window.workspace.show_dashboard()
    window.menus.actions["file.library"].trigger()
    assert window.workspace.count == 1
    assert window.workspace.front is in_window
    window.workspace.close_front()
    assert window.workspace.count == 0


def test_every_control_has_a_name_and_a_tip(library: LibraryDocument) -> None:
    for button in library.findChildren(QPushButton):
        if button.isVisible():
            assert button.text() or button.accessibleName()
            assert button.toolTip()
    assert library.search.accessibleName()
    assert library.table.accessibleName()
