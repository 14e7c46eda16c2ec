"""Recordings as tabs: opening, what is shown of them, which commands act there, closing."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from pathlib import Path

import pytest
from PySide6.QtCore import QCoreApplication, QEvent, Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from gpudash.session import Replay
from gpudash.session.recordings.loading import Progress
from gpudash.session.recordings.opener import OpenedRecording
from gpudash.telemetry.recording.facts import set_run_text
from gpudash.telemetry.recording.recorder import Recorder, RecordingError
from gpudash.telemetry.records import Output, RunEnd, RunStarted
from gpudash.telemetry.runs import RunView
from gpudash.ui.colours import LIGHT
from gpudash.ui.recordings.document import RecordingDocument
from gpudash.ui.window.main_window import MainWindow
from gpudash.units import format_moment
from tests.ui.conftest import OpenWindow, settle
from tests.ui.fake_document import opened
from tests.ui.fake_session import GPU_BYTES, FakeSession, gpu
from tests.ui.recordings import MARK_S, KeptSession, open_recording, trained, wait_until_shown
from tests.ui.words import complaints, weakest
from tests.unit.session.test_tensorboard_log import write as written_log

Key = Qt.Key


@pytest.fixture
def session() -> FakeSession:
    return FakeSession().feed(5)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return trained().save(tmp_path / "run.gpudash")


def test_a_recording_opens_as_a_tab_with_the_live_dashboard_s_parts(
    window: MainWindow, path: Path, qtbot: QtBot
) -> None:
    document = open_recording(window, path, qtbot)
    assert opened(window) == ["Dashboard", "run.gpudash"] and window.windowTitle() == "run.gpudash – gpudash"
    assert window.workspace.front_dashboard is document.dashboard is not window.workspace.dashboard
    assert document.dashboard is not None
    assert [plot.spec.id for plot in document.dashboard.plots.plots] == ["loss", "memory", "utilisation", "throughput"]
    assert document.dashboard.tabs.isVisible() and document.dashboard.cards.isVisible()
    assert not document.dashboard.panel.button.isVisible() and document.run_again.isVisible()
    assert not document.dashboard.view_bar.pause.isVisible()


def test_the_line_above_says_what_where_when_and_how_it_ended(window: MainWindow, path: Path, qtbot: QtBot) -> None:
    head = open_recording(window, path, qtbot).head
    assert head.what.text() == "Training · cpu" and head.badge.isHidden()
    assert "finished · 12.0 s · 120 steps" in head.label.text() and head.label.text().startswith("2023-11-1")
    assert head.file.text() == "run.gpudash" and head.file.toolTip() == str(path)


def test_of_several_runs_everything_is_of_the_one_in_view(window: MainWindow, tmp_path: Path, qtbot: QtBot) -> None:
    kept = KeptSession([gpu(0)])
    for number, full in ((1, 0.5), (2, 0.25)):
        spec = {"command": ["python", f"/code/train{number}.py"]}
        kept.apply(RunStarted(time_s=kept.now_s, run_id=number, workload="watch", device="cuda:0", spec=spec))
        kept.feed(6.0, full=full)
        kept.apply(Output(time_s=kept.now_s, run_id=number, stream="stdout", lines=[f"printed by {number}"]))
        ended = RunEnd(time_s=kept.now_s, run_id=number, status="finished", seconds=6.0, steps=number, result={})
        kept.apply(ended)
        kept.feed(3.0, full=0.0)
    document = open_recording(window, kept.save(tmp_path / "two.gpudash"), qtbot)
    dashboard = document.dashboard
    assert dashboard is not None and document.replay is not None
    runs = list(document.replay.store.runs)
    dashboard.tabs.show_output(requested=True)

    def shown(number: int) -> tuple[bool, ...]:
        run = runs[number - 1]
        assert run.ended_s is not None
        dashboard.view.show(run.began_s + 1.0, run.ended_s - 1.0)
        for _frame in range(20):
            document.refresh()
        settle(window)
        (card,) = (one for one in dashboard.figures.contents if one.key == gpu(0).uuid)
        return (
            f"train{number}.py" in document.head.what.text() and f"· {number} step" in document.head.label.text(),
            dashboard.panel.script.script().file == f"/code/train{number}.py",
            f"printed by {number}" in dashboard.tabs.output.text.toPlainText(),
            f"printed by {3 - number}" not in dashboard.tabs.output.text.toPlainText(),
            number == 2 or card.used == pytest.approx(0.5 * GPU_BYTES, rel=0.01),
        )

    assert all(shown(2)) and all(shown(1)) and all(shown(2))


def test_a_name_given_to_the_run_heads_the_recording_and_its_tab(window: MainWindow, path: Path, qtbot: QtBot) -> None:
    set_run_text(path, 1, "title", "the baseline")
    head = open_recording(window, path, qtbot).head
    assert head.what.text() == "the baseline" and head.label.text().startswith("Training · cpu · 2023-11-1")
    assert head.accessibleName().startswith("Recording run.gpudash: the baseline, Training · cpu")
    bar = window.workspace.bar
    assert bar.tabText(1) == "the baseline" and bar.tabToolTip(1) == str(path)
    assert window.windowTitle() == "the baseline – gpudash"


def test_before_its_run_a_recording_says_so_and_offers_to_run_it_all_the_same(
    window: MainWindow, path: Path, qtbot: QtBot
) -> None:
    document = open_recording(window, path, qtbot)
    document.bar.slider.setValue(0)
    settle(window)
    assert document.replay is not None and document.replay.store.run is None
    assert document.head.what.text() == "Training · cpu" and "not started yet" in document.head.label.text()
    asked: list[object] = []
    document.again.connect(asked.append)
    document.run_again.click()
    assert [run.workload for run in asked if isinstance(run, RunView)] == ["training"]
    assert window.workspace.front is None, "the live dashboard came to the front, ready to start"


def test_times_are_those_of_the_recording_and_never_now(window: MainWindow, path: Path, qtbot: QtBot) -> None:
    document = open_recording(window, path, qtbot)
    dashboard, replay = document.dashboard, document.replay
    assert dashboard is not None and replay is not None
    run = replay.store.run
    assert run is not None and dashboard.plots.readout.title == f"at {format_moment(run.ended_s)}", (
        "within the range shown"
    )
    document.bar.slider.setValue(document.bar.slider.maximum() // 2)
    dashboard.view.follow()
    settle(window)
    assert dashboard.plots.readout.title == f"at {format_moment(replay.position_s)}"
    assert dashboard.plots.plots[-1]._time_ticks(dashboard.plots.plots[-1]._geometry).name == "session time"
    assert window.workspace.dashboard.plots.readout.title == "now"


def test_a_simulated_run_is_marked_as_such(window: MainWindow, tmp_path: Path, qtbot: QtBot) -> None:
    document = open_recording(window, trained(device="sim:0").save(tmp_path / "sim.gpudash"), qtbot)
    assert document.head.badge.isVisible() and document.head.badge.text() == "SIMULATED"


def test_marks_are_shown_at_the_same_microsecond_and_the_keys_jump_there(
    window: MainWindow, path: Path, qtbot: QtBot
) -> None:
    dashboard = open_recording(window, path, qtbot).dashboard
    assert dashboard is not None
    assert ("here it began", MARK_S) in [(mark.label, mark.time_s) for mark in dashboard.plots.marks]
    assert "warning" in {mark.category for mark in dashboard.plots.marks}
    dashboard.plots.plots[0].canvas.setFocus()
    dashboard.view.set_cursor(MARK_S - 0.5, pinned=True)
    QTest.keyClick(dashboard.plots.plots[0].canvas, Key.Key_BracketRight)
    assert dashboard.view.cursor_s == MARK_S
    assert window.workspace.dashboard.view.cursor_s is None, "the live view was left alone"


def test_keys_and_menus_act_on_the_tab_in_front(window: MainWindow, path: Path, qtbot: QtBot) -> None:
    dashboard = open_recording(window, path, qtbot).dashboard
    assert dashboard is not None
    actions, before = window.menus.actions, window.workspace.dashboard.view.window_s
    actions["view.window.1800"].trigger()
    assert (dashboard.view.window_s, window.workspace.dashboard.view.window_s) == (1800.0, before)
    actions["view.zoom_in"].trigger()
    assert dashboard.view.window_s == pytest.approx(1440.0)
    actions["view.tables"].trigger()
    assert dashboard.tabs.collapsed and not window.workspace.dashboard.tabs.collapsed
    actions["view.marks.phase"].trigger()
    assert "phase" in dashboard.plots.hidden_marks and "phase" in window.workspace.dashboard.plots.hidden_marks
    actions["view.panel"].trigger()
    assert not dashboard.panel.isVisible() and window.workspace.dashboard.left.isHidden()
    window.workspace.show_dashboard()
    actions["view.window.10"].trigger()
    assert (dashboard.view.window_s, window.workspace.dashboard.view.window_s) == (pytest.approx(1440.0), 10.0)


def test_what_cannot_be_done_to_a_recording_is_not_offered_while_it_is_in_front(
    window: MainWindow, path: Path, qtbot: QtBot
) -> None:
    open_recording(window, path, qtbot)
    mark = window.menus.actions["edit.add_mark"]
    assert not mark.isEnabled() and "on the live dashboard" in mark.toolTip()
    assert window.menus.actions["view.pause"].text() == "Play or Pause the Recording"
    window.workspace.show_dashboard()
    settle(window)
    assert mark.isEnabled()


def test_copying_takes_from_the_recording_in_front(window: MainWindow, path: Path, qtbot: QtBot) -> None:
    dashboard = open_recording(window, path, qtbot).dashboard
    assert dashboard is not None
    dashboard.view.select(4.0, 5.0)
    settle(window)
    assert window.menus.actions["view.zoom_to_selection"].isEnabled()
    window.menus.actions["edit.copy_values"].trigger()
    assert (
        QApplication.clipboard().text()
        == dashboard.plots.selection_text()
        != window.workspace.dashboard.plots.selection_text()
    )
    window.menus.actions["edit.copy_graph"].trigger()
    assert not QApplication.clipboard().image().isNull()


def test_a_recording_behind_another_tab_draws_nothing(window: MainWindow, path: Path, qtbot: QtBot) -> None:
    dashboard = open_recording(window, path, qtbot).dashboard
    assert dashboard is not None
    window.workspace.show_dashboard()
    settle(window)
    frame = dashboard._frame
    settle(window)
    assert dashboard._frame == frame


def test_a_recording_that_is_still_written_is_followed_with_the_spec_of_its_run(
    window: MainWindow, tmp_path: Path, qtbot: QtBot
) -> None:
    session = trained(seconds=7.0)
    path = tmp_path / "growing.gpudash"
    recorder = Recorder(path, meta={"rate_hz": 10})
    for record in session.kept:
        recorder.add(record)
    recorder.commit()
    try:
        document = open_recording(window, path, qtbot)
        assert document.replay is not None and document.dashboard is not None
        assert document.replay.following and document.bar.live and document.dashboard.view.following
        assert document.dashboard.panel.form.values()["steps"] == "70"
        before, kept = document.replay.extent_s[1], len(session.kept)
        session.feed(2.0)
        for record in session.kept[kept:]:
            recorder.add(record)
        recorder.commit()

        def grown() -> bool:
            window.workspace.refresh()
            return document.dashboard is not None and document.dashboard.view.range()[1] > before + 1.5

        qtbot.waitUntil(grown, timeout=20_000)
        window.workspace.close_front()
    finally:
        recorder.close()


def test_several_recordings_are_open_and_the_same_file_comes_to_the_front(
    window: MainWindow, path: Path, tmp_path: Path, qtbot: QtBot
) -> None:
    first = open_recording(window, path, qtbot)
    second = open_recording(window, trained(seconds=6.0).save(tmp_path / "other.gpudash"), qtbot)
    assert opened(window) == ["Dashboard", "run.gpudash", "other.gpudash"]
    window.workspace.open(path)
    assert window.workspace.front is first and window.workspace.count == 2
    assert second.replay is not None and first.replay is not None
    assert second.replay.extent_s[1] < first.replay.extent_s[1]


def test_a_recording_follows_the_theme_and_the_window_closes_it(window: MainWindow, path: Path, qtbot: QtBot) -> None:
    document = open_recording(window, path, qtbot)
    window.set_palette(LIGHT)
    assert document.dashboard is not None and document.dashboard.palette_ is LIGHT
    window.close()
    assert window.joined


def test_closing_a_tab_frees_its_memory_and_its_threads(window: MainWindow, path: Path, qtbot: QtBot) -> None:
    threads = set(threading.enumerate())
    document = open_recording(window, path, qtbot)
    assert document.dashboard is not None and document.replay is not None
    gone = [weakref.ref(part) for part in (document, document.dashboard, document.replay, document.replay.store)]
    window.workspace.close_front()
    del document
    settle(window)
    QCoreApplication.sendPostedEvents(None, QEvent.Type.DeferredDelete.value)
    gc.collect()
    assert [part() for part in gone] == [None] * 4
    assert set(threading.enumerate()) <= threads


class Slow:
    """A recording that is read as slowly as the test wants."""

    def __init__(self, path: Path) -> None:
        self.go = threading.Event()
        self.reported = threading.Event()
        self.closed = threading.Event()
        self.opened = OpenedRecording(path, path.name, read=self.read)

    def read(self, path: Path, progress: Progress) -> Replay:
        progress(0.5)
        self.reported.set()
        assert self.go.wait(20)
        progress(0.75)
        return Replay(path, progress)


@pytest.fixture
def slow(path: Path) -> Slow:
    return Slow(path)


def opening(window: MainWindow, slow: Slow) -> RecordingDocument:
    document = RecordingDocument(slow.opened, window.workspace.colours)
    document.ready.connect(lambda: window.workspace.serve(document))
    window.workspace.add(document, slow.opened.path, document.title)
    assert slow.reported.wait(20)
    settle(window)
    return document


def test_while_it_is_read_a_number_says_how_far_and_esc_gives_it_up(
    window: MainWindow, slow: Slow, qtbot: QtBot
) -> None:
    document = opening(window, slow)
    assert document.opening.label.text().endswith("kB") and document.opening.bar.value() == 500
    assert window.workspace.front_dashboard is None and not window.menus.actions["view.show_all"].isEnabled()
    QTest.keyClick(document, Key.Key_Escape)
    assert opened(window) == ["Dashboard"] and window.workspace.dashboard.plots.isVisible()
    slow.go.set()
    assert slow.opened.join(20) and slow.opened.poll() is None


def test_what_was_open_stays_open_until_the_new_one_is_read(
    window: MainWindow, slow: Slow, tmp_path: Path, qtbot: QtBot
) -> None:
    before = open_recording(window, trained(seconds=6.0).save(tmp_path / "other.gpudash"), qtbot)
    document = opening(window, slow)
    assert before.replay is not None
    slow.go.set()
    wait_until_shown(window, document, qtbot)
    assert window.workspace.count == 2 and document.dashboard is not None


def test_a_recording_that_is_no_longer_wanted_is_closed_when_it_has_been_read(path: Path) -> None:
    closed = threading.Event()

    class Closing(Replay):
        def close(self) -> bool:
            closed.set()
            return super().close()

    reading = OpenedRecording(path, path.name, read=lambda path, _progress: Closing(path))
    assert reading.join(20)
    reading.give_up()
    assert closed.is_set() and reading.poll() is None


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"SQLite format 3\x00" + b"x" * 200, "broken.gpudash"),
        (b"", "is empty"),
        (b"\x7fELF....", "neither a memory snapshot"),
    ],
)
def test_a_file_that_cannot_be_read_is_told_in_a_sentence_and_what_was_open_stays(
    window: MainWindow, path: Path, tmp_path: Path, qtbot: QtBot, content: bytes, words: str
) -> None:
    before = open_recording(window, path, qtbot)
    broken = tmp_path / "broken.gpudash"
    broken.write_bytes(content)
    window.workspace.open(broken)

    def told() -> bool:
        window.workspace.refresh()
        return words in window.workspace.notice.text

    qtbot.waitUntil(told)
    assert window.workspace.notice.text.count(".") <= 3 and "Traceback" not in window.workspace.notice.text
    assert window.workspace.count == 1 and before.replay is not None
    assert broken.read_bytes() == content


def test_a_file_that_vanishes_while_it_is_read_or_may_not_be_read_is_a_sentence(
    window: MainWindow, tmp_path: Path
) -> None:
    gone = OpenedRecording(tmp_path / "gone.gpudash", "gone.gpudash", read=lambda path, _progress: Replay(path))
    assert gone.join(20)
    with pytest.raises(RecordingError, match=r"gone\.gpudash"):
        gone.poll()
    assert not window.workspace.open(tmp_path / "gone.gpudash")
    assert "There is no file" in window.workspace.notice.text


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_told(window: MainWindow, path: Path) -> None:
    path.chmod(0)
    assert not window.workspace.open(path)
    assert "cannot be read" in window.workspace.notice.text


def test_an_error_nobody_thought_of_is_a_sentence_too(path: Path) -> None:
    def read(_path: Path, _progress: Progress) -> Replay:
        raise MemoryError("no room")

    reading = OpenedRecording(path, path.name, read=read)
    assert reading.join(20)
    with pytest.raises(RecordingError, match=r"run\.gpudash cannot be read \(MemoryError: no room\)\."):
        reading.poll()


def test_a_torn_recording_shows_what_is_readable_and_says_the_rest(
    window: MainWindow, path: Path, qtbot: QtBot
) -> None:
    whole = path.read_bytes()
    torn = whole[: len(whole) * 3 // 4]
    path.write_bytes(torn)
    document = open_recording(window, path, qtbot)
    assert document.notice.isVisible() and document.notice.text
    assert path.read_bytes() == torn


@pytest.mark.parametrize(("size", "theme"), [((1280, 800), "dark"), ((2560, 1440), "light")])
def test_no_word_of_an_open_recording_is_cut_or_too_faint(
    open_window: OpenWindow, tmp_path: Path, qtbot: QtBot, size: tuple[int, int], theme: str
) -> None:
    window = open_window(FakeSession().feed(2), theme=theme, size=size)
    open_recording(window, trained([gpu(0)], device="cuda:0").save(tmp_path / "run.gpudash"), qtbot)
    assert complaints(window) == []
    assert [found for found in weakest(window, window.grab().toImage()) if found[0] < 4.5] == []


def test_a_log_of_tensorboard_opens_as_if_it_were_a_recording(window: MainWindow, tmp_path: Path, qtbot: QtBot) -> None:
    place = written_log(tmp_path / "logs", {"loss": 3.0, "lr": 0.1}, {"loss": 2.0}, {"loss": 1.0}).parent
    document = open_recording(window, place, qtbot)
    assert document.dashboard is not None
    (run,) = document.dashboard.session.store.end.runs
    assert (run.workload, run.step, run.steps) == ("logs", 3, 3)
    assert opened(window)[1] == "logs"


def test_a_log_without_losses_is_told_in_a_sentence(window: MainWindow, tmp_path: Path, qtbot: QtBot) -> None:
    window.workspace.open(written_log(tmp_path / "logs", {"lr": 0.1}))

    def is_told() -> bool:
        window.workspace.refresh()
        return "has no losses" in window.workspace.notice.text

    qtbot.waitUntil(is_told)
    assert opened(window) == ["Dashboard"]
