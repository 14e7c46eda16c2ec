"""Opening files in the window: tabs, recent files, dropping, recordings in windows of their own."""

from __future__ import annotations

import importlib
import pickle
from pathlib import Path

import psutil
import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QMenu, QTabBar, QWidget
from pytestqt.qtbot import QtBot

from gpudash.cli.recordings.open import open_address
from gpudash.session.recordings.file_kinds import FoundFile
from gpudash.telemetry.records import Note, Warning
from gpudash.ui.colours import LIGHT
from gpudash.ui.snapshot.document import PAGE
from gpudash.ui.widgets.file_dialog import FileDialog
from gpudash.ui.widgets.remembered import RECENT_FILES, add_recent, recall, recent_files, remember
from gpudash.ui.window.main_window import MainWindow
from tests.ui.conftest import OpenWindow, settle
from tests.ui.fake_document import FakeDocument, front, opened, snapshot, with_fakes
from tests.ui.fake_session import FakeSession
from tests.ui.words import complaints

Key = Qt.Key
CTRL = Qt.KeyboardModifier.ControlModifier


@pytest.fixture
def session() -> FakeSession:
    return FakeSession().feed(5)


@pytest.fixture
def window(open_window: OpenWindow, session: FakeSession) -> MainWindow:
    return with_fakes(open_window(session))


def test_without_a_document_there_is_no_bar_of_tabs(window: MainWindow) -> None:
    assert not window.workspace.bar.isVisible()
    assert window.workspace.front is None and window.workspace.dashboard.plots.isVisible()


def test_a_snapshot_opens_in_a_tab_named_after_its_file(window: MainWindow, tmp_path: Path) -> None:
    path = snapshot(tmp_path)
    assert window.workspace.open(path)
    assert opened(window) == ["Dashboard", "a.pickle"]
    assert window.workspace.bar.isVisible() and window.workspace.bar.tabToolTip(1) == str(path)
    assert front(window).isVisible() and not window.workspace.dashboard.plots.isVisible()
    assert window.windowTitle() == "a.pickle – gpudash"


def test_the_folder_of_a_report_opens_under_the_folders_name(window: MainWindow, tmp_path: Path) -> None:
    path = snapshot(tmp_path / "2026-11-21-101500-train", "snapshot.pickle")
    window.workspace.open(path.parent)
    assert opened(window) == ["Dashboard", "2026-11-21-101500-train"]
    assert front(window).path == path


def test_from_the_command_line_the_folder_of_a_report_opens_under_the_folders_name_too(
    window: MainWindow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(_simulation: object, *, file: FoundFile) -> tuple[int, bool]:
        window.workspace.open_file(file)
        return 0, True

    path = snapshot(tmp_path / "2026-11-21-101500-train", "snapshot.pickle")
    monkeypatch.setattr("gpudash.ui.app.run", run)
    assert open_address(path.parent) == 0
    assert opened(window) == ["Dashboard", "2026-11-21-101500-train"]
    assert front(window).path == path


def test_a_long_title_is_shortened_in_the_middle(window: MainWindow, tmp_path: Path) -> None:
    window.workspace.open(snapshot(tmp_path, f"begin-{'x' * 60}-end.pickle"))
    title = opened(window)[1]
    assert title.startswith("begin-") and title.endswith("-end.pickle") and "…" in title and len(title) < 40


def test_opening_a_file_again_brings_its_tab_to_the_front(window: MainWindow, tmp_path: Path) -> None:
    first, second = snapshot(tmp_path), snapshot(tmp_path, "b.pickle")
    window.workspace.open(first)
    window.workspace.open(second)
    window.workspace.open(tmp_path / "." / "a.pickle")
    assert opened(window) == ["Dashboard", "a.pickle", "b.pickle"]
    assert front(window).path == first


def test_only_the_document_in_front_is_refreshed_and_the_dashboard_goes_on(
    window: MainWindow, session: FakeSession, tmp_path: Path
) -> None:
    window.workspace.open(snapshot(tmp_path))
    behind = front(window)
    window.workspace.open(snapshot(tmp_path, "b.pickle"))
    before = behind.refreshed
    session.feed(1)
    settle(window)
    assert behind.refreshed == before and front(window).refreshed >= 6
    assert window.workspace.dashboard.view.range()[1] == session.now_s
    assert window.workspace.dashboard.cards.isHidden() is False


def test_ctrl_w_closes_the_document_in_front_and_its_process(window: MainWindow, tmp_path: Path) -> None:
    window.workspace.open(snapshot(tmp_path))
    document = front(window)
    QTest.keyClick(document, Key.Key_W, CTRL)
    settle(window)
    assert document.closings == 1
    assert opened(window) == ["Dashboard"] and not window.workspace.bar.isVisible()
    assert window.workspace.dashboard.plots.isVisible() and window.windowTitle() == "gpudash"


def test_ctrl_w_on_the_dashboard_closes_nothing(window: MainWindow, tmp_path: Path) -> None:
    window.workspace.open(snapshot(tmp_path))
    window.workspace.show_dashboard()
    settle(window)
    assert not window.menus.actions["file.close_document"].isEnabled()
    QTest.keyClick(window, Key.Key_W, CTRL)
    assert opened(window) == ["Dashboard", "a.pickle"] and window.isVisible()


def test_ctrl_tab_goes_round_the_tabs(window: MainWindow, tmp_path: Path) -> None:
    window.workspace.open(snapshot(tmp_path))
    window.workspace.open(snapshot(tmp_path, "b.pickle"))
    seen = []
    for _ in range(3):
        QTest.keyClick(QApplication.focusWidget() or window, Key.Key_Tab, CTRL)
        seen.append(window.workspace.bar.currentIndex())
    assert seen == [0, 1, 2]


def test_the_button_of_a_tab_closes_it_and_is_named(window: MainWindow, tmp_path: Path) -> None:
    window.workspace.open(snapshot(tmp_path))
    document = front(window)
    button = window.workspace.bar.tabButton(1, QTabBar.ButtonPosition.RightSide)
    assert button is not None and button.accessibleName() == "Close a.pickle"
    QTest.mouseClick(button, Qt.MouseButton.LeftButton)
    assert document.closings == 1 and opened(window) == ["Dashboard"]
    assert window.workspace.bar.tabButton(0, QTabBar.ButtonPosition.RightSide) is None


def test_a_document_that_closes_itself_takes_its_tab_along(window: MainWindow, tmp_path: Path) -> None:
    window.workspace.open(snapshot(tmp_path))
    front(window).closed.emit()
    assert opened(window) == ["Dashboard"]


def test_what_a_document_says_is_in_the_status_line_that_is_in_sight(window: MainWindow, tmp_path: Path) -> None:
    line, document = window.workspace.status_line, window.workspace.open(snapshot(tmp_path)) and front(window)
    settle(window)
    document.said.emit("Copied 12 rows")
    assert line.isVisible() and line._left.text() == "Copied 12 rows"
    assert window.workspace.dashboard.status_line._left.text() != "Copied 12 rows"
    window.workspace.show_dashboard()
    settle(window)
    document.said.emit("Wrote report.html")
    assert not line.isVisible() and window.workspace.dashboard.status_line._left.text() == "Wrote report.html"


def test_the_dashboards_tab_keeps_its_title_however_many_are_open(window: MainWindow, tmp_path: Path) -> None:
    window.resize(960, 700)
    for number in range(9):
        window.workspace.open(snapshot(tmp_path, f"a-rather-long-name-{number}.pickle"))
    bar = window.workspace.bar
    settle(window)
    metrics = bar.fontMetrics()
    assert bar.tabRect(1).width() < metrics.horizontalAdvance(bar.tabText(1)), "there is too little room"
    assert bar.tabRect(0).width() > metrics.horizontalAdvance("Dashboard")


def test_closing_the_window_closes_every_document(window: MainWindow, tmp_path: Path) -> None:
    documents = []
    for name in ("a.pickle", "b.pickle"):
        window.workspace.open(snapshot(tmp_path, name))
        documents.append(front(window))
    window.close()
    assert [document.closings for document in documents] == [1, 1]


def test_a_document_follows_the_theme(window: MainWindow, tmp_path: Path) -> None:
    window.workspace.open(snapshot(tmp_path))
    window.set_palette(LIGHT)
    assert front(window).palettes[-1] is LIGHT


def test_a_wrong_file_is_told_in_one_sentence_and_what_was_open_stays(window: MainWindow, tmp_path: Path) -> None:
    window.workspace.open(snapshot(tmp_path))
    (tmp_path / "notes.txt").write_text("notes")
    assert not window.workspace.open(tmp_path / "notes.txt")
    assert "notes.txt is neither a memory snapshot" in window.workspace.notice.text
    assert window.workspace.notice.isVisible() and front(window).isVisible()
    assert recent_files() == [tmp_path / "a.pickle"]
    window.workspace.open(tmp_path / "a.pickle")
    assert window.workspace.notice.text == ""


def test_a_process_that_cannot_be_started_is_told_too(window: MainWindow, tmp_path: Path) -> None:
    def refuse(*_args: object) -> FakeDocument:
        raise OSError("no more processes")

    window.workspace.openers["snapshot"] = refuse
    window.workspace.open(snapshot(tmp_path))
    assert window.workspace.notice.text == "a.pickle cannot be opened: no more processes"
    assert window.workspace.count == 0


def test_copying_is_the_business_of_the_document_in_front_and_of_its_keys(window: MainWindow, tmp_path: Path) -> None:
    values, picture = window.menus.actions["edit.copy_values"], window.menus.actions["edit.copy_graph"]
    keys = values.shortcuts()
    window.workspace.open(snapshot(tmp_path))
    values.trigger()
    picture.trigger()
    assert front(window).copied == ["values", "picture"]
    assert values.shortcuts() == picture.shortcuts() == []
    window.workspace.show_dashboard()
    assert values.shortcuts() == keys


def test_starting_a_run_brings_the_dashboard_to_the_front(
    window: MainWindow, session: FakeSession, tmp_path: Path
) -> None:
    window.workspace.open(snapshot(tmp_path))
    window.menus.actions["run.start"].trigger()
    assert window.workspace.front is None and session.requested[-1][0] == "start"


def test_open_asks_for_a_file_beside_the_one_opened_last(
    window: MainWindow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    window.workspace.open(snapshot(tmp_path))
    asked = []

    def choose(_parent: QWidget, _title: str, start: str, _kinds: str) -> str:
        asked.append(start)
        return str(snapshot(tmp_path, "b.pickle"))

    monkeypatch.setattr(FileDialog, "ask_to_open", choose)
    window.menus.actions["file.open"].trigger()
    assert asked == [str(tmp_path)] and opened(window)[-1] == "b.pickle"


@pytest.mark.parametrize(("name", "workload"), [("train.py", "watch"), ("config.json", "model")])
def test_a_script_or_a_models_config_that_is_opened_fills_the_form(
    window: MainWindow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, workload: str
) -> None:
    chosen = tmp_path / name
    chosen.write_text("{}")
    monkeypatch.setattr(FileDialog, "ask_to_open", lambda *_asked: str(chosen))
    window.menus.actions["file.open"].trigger()
    panel = window.workspace.dashboard.panel
    assert panel.workload.currentData() == workload
    if panel.watching:
        assert panel.script.file.text() == str(chosen)
    else:
        assert panel.form.values()["path"] == str(chosen)
    assert opened(window) == ["Dashboard"]


def recent_menu(window: MainWindow) -> list[str]:
    menu = window.findChild(QMenu, "File/Open Recent")
    menu.aboutToShow.emit()
    return [action.text() for action in menu.actions() if not action.isSeparator()]


def test_a_notice_moves_nothing_leaves_a_warning_in_sight_and_closes_by_itself(window: MainWindow) -> None:
    notice, dashboard = window.workspace.notice, window.workspace.dashboard
    settle(window)
    before = dashboard.geometry()
    notice.report("Wrote out.png.", "note")
    settle(window)
    assert dashboard.geometry() == before
    assert notice.geometry().bottom() == window.workspace.rect().bottom()
    dashboard.banner.take(Warning(time_s=0.0, level="critical", device="host", text="full"))
    settle(window)
    notice.report("Wrote out.svg.", "note")
    assert notice.geometry().bottom() < dashboard.banner.mapTo(window.workspace, QPoint(0, 0)).y()
    notice._closing.timeout.emit()
    assert notice.text == "" and not notice._closing.isActive()


def test_recent_files_are_listed_newest_first_and_at_most_ten(window: MainWindow, tmp_path: Path) -> None:
    first, *samples, last = recent_menu(window)
    assert (first, last) == ("No file has been opened yet", "Clear Recent Files")
    assert samples and all(entry.startswith("Demo: ") for entry in samples)
    paths = [snapshot(tmp_path, f"{number}.pickle") for number in range(RECENT_FILES + 2)]
    for path in (*paths, paths[5]):
        window.workspace.open(path)
    entries = recent_menu(window)
    assert len(entries) == RECENT_FILES + 1
    assert entries[0] == f"&1  {tmp_path.name}/5.pickle" and entries[1].endswith("/11.pickle")
    assert recent_menu(window) == entries


def test_a_recent_file_that_is_gone_says_so_and_leaves_the_list_when_chosen(window: MainWindow, tmp_path: Path) -> None:
    window.workspace.open(snapshot(tmp_path))
    window.workspace.close_documents()
    (tmp_path / "a.pickle").unlink()
    assert recent_menu(window)[0].endswith("a.pickle  (missing)")
    menu = window.findChild(QMenu, "File/Open Recent")
    menu.actions()[0].trigger()
    assert window.workspace.notice.text == f"There is no file {tmp_path / 'a.pickle'}."
    assert recent_files() == []


def test_a_recent_file_opens_again(window: MainWindow, tmp_path: Path) -> None:
    window.workspace.open(snapshot(tmp_path))
    window.workspace.close_documents()
    recent_menu(window)
    window.findChild(QMenu, "File/Open Recent").actions()[0].trigger()
    assert opened(window)[-1] == "a.pickle"
    window.menus.actions["file.clear_recent"].trigger()
    assert recent_files() == []


def test_what_is_remembered_survives_a_broken_or_unwritable_file(home: Path, tmp_path: Path) -> None:
    remember("other", 7)
    add_recent(tmp_path / "a.pickle")
    assert recall("other") == 7 and recent_files() == [tmp_path / "a.pickle"]
    (home / "state.json").write_text("[not json")
    assert recall("other") is None and recent_files() == []
    (home / "state.json").unlink()
    (home / "state.json").mkdir()
    add_recent(tmp_path / "b.pickle")
    assert recent_files() == []


def test_a_snapshot_that_was_asked_for_opens_when_it_is_written(
    window: MainWindow, session: FakeSession, tmp_path: Path
) -> None:
    path = snapshot(tmp_path, "snapshot.pickle")
    session.apply(Note(time_s=5.0, run_id=1, topic="snapshot", text="saved", details={"path": str(path)}))
    settle(window)
    assert front(window).path == path
    session.apply(Note(time_s=5.0, run_id=1, topic="snapshot", text="No memory.", details={"path": None}))
    settle(window)
    assert window.workspace.notice.text == "No memory."


def refreshed(window: MainWindow) -> bool:
    window.workspace.refresh()
    return True


@pytest.mark.parametrize("size", [(1280, 800), (2560, 1440)])
def test_no_word_is_cut_where_a_document_is_open(
    open_window: OpenWindow, session: FakeSession, tmp_path: Path, size: tuple[int, int]
) -> None:
    window = with_fakes(open_window(session, size=size))
    window.workspace.open(snapshot(tmp_path))
    window.workspace.open(tmp_path / "gone.pickle")
    window.workspace.show_dashboard()
    settle(window)
    assert complaints(window) == []


@pytest.mark.process
def test_a_real_snapshot_is_read_by_a_process_that_ends_with_the_window(
    open_window: OpenWindow, tmp_path: Path, qtbot: QtBot
) -> None:
    # pytest rewrites our modules, and CPython 3.11 cannot do so in two threads at a time (python/cpython#106905)
    importlib.import_module(PAGE)
    window = open_window(FakeSession())
    before = set(psutil.Process().children())
    path = snapshot(tmp_path)
    path.write_bytes(pickle.dumps({"segments": [], "device_traces": [[]], "allocator_settings": {}}))
    window.workspace.open(path)
    document = window.workspace.front
    assert document is not None and document.opening.isVisible()
    qtbot.waitUntil(lambda: refreshed(window) and (document.ready or document._refused), timeout=20_000)
    reading = set(psutil.Process().children()) - before
    assert document.ready and reading
    window.close()
    assert not any(child.is_running() for child in reading)


def test_a_file_that_is_not_for_keeping_is_not_remembered(window: MainWindow, tmp_path: Path) -> None:
    window.workspace.open(snapshot(tmp_path), remember=False)
    assert opened(window) == ["Dashboard", "a.pickle"]
    assert recent_files() == []
