"""The dashboard of a recording is built over several frames, so that the window does not stand still."""

from __future__ import annotations

import gc
import itertools
import math
import threading
import weakref
from pathlib import Path

import pytest
from PySide6.QtCore import QCoreApplication, QEvent
from PySide6.QtWidgets import QApplication, QWidget
from pytestqt.qtbot import QtBot

from gpudash.session import Replay
from gpudash.session.recordings.opener import OpenedRecording
from gpudash.ui.colours import LIGHT
from gpudash.ui.dashboard.dashboard import Dashboard
from gpudash.ui.plots.plot import TimePlot
from gpudash.ui.recordings import document as recording_document
from gpudash.ui.recordings.document import RecordingDocument
from gpudash.ui.window.main_window import MainWindow
from tests.ui.conftest import settle
from tests.ui.fake_document import opened
from tests.ui.recordings import trained


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return trained().save(tmp_path / "run.gpudash")


class Counted(Replay):
    """A recording that counts how often one was closed."""

    closed = 0

    def close(self) -> bool:
        Counted.closed += 1
        return super().close()


@pytest.fixture(autouse=True)
def slice_by_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    """However fast the machine is, a frame builds one slice of the dashboard; nothing has been closed yet."""
    monkeypatch.setattr(recording_document, "SLICES_S", 0.0)
    monkeypatch.setattr(Counted, "closed", 0)


def opened_so_far(window: MainWindow, path: Path, frames: int) -> RecordingDocument:
    """A recording that has been read, after so many frames of its opening."""
    found = OpenedRecording(path, path.name, read=Counted)
    assert found.join(20)
    document = RecordingDocument(found, window.workspace.colours)
    document.ready.connect(lambda: window.workspace.serve(document))
    window.workspace.add(document, path, document.title)
    for _frame in range(frames):
        window.workspace.refresh()
    return document


def read_as_far_as_its_first_slice(window: MainWindow, path: Path, qtbot: QtBot) -> RecordingDocument:
    """Open a recording, and wait until it has been read but nothing of it is there."""
    window.workspace.open(path)
    document = window.workspace.front
    assert isinstance(document, RecordingDocument)

    def was_read() -> bool:
        document.refresh()
        return document._replay is not None

    qtbot.waitUntil(was_read, timeout=20_000)
    return document


def test_the_dashboard_of_a_recording_is_built_over_several_frames(
    window: MainWindow, path: Path, qtbot: QtBot
) -> None:
    document = read_as_far_as_its_first_slice(window, path, qtbot)
    ready: list[bool] = []
    document.ready.connect(lambda: ready.append(True))
    for _frame in range(5):
        document.refresh()
        assert document.dashboard is None and document.replay is None and not ready
    window.set_palette(LIGHT)
    while document.dashboard is None:
        assert document.replay is None and not ready
        document.refresh()
    assert ready == [True]
    assert document.dashboard.palette_ is LIGHT and document.dashboard in window.workspace.dashboards


def test_a_tab_may_be_closed_at_any_point_of_its_opening_and_nothing_of_it_stays(
    window: MainWindow, path: Path
) -> None:
    gc.collect()  # of the tests before
    threads, parentless = set(threading.enumerate()), len(QApplication.topLevelWidgets())
    frames, shown = 0, False
    while not shown:
        frames += 2
        document = opened_so_far(window, path, frames)
        gone, shown = weakref.ref(document), document.dashboard is not None
        window.workspace.close_front()
        del document
        settle(window)
        QCoreApplication.sendPostedEvents(None, QEvent.Type.DeferredDelete.value)
        gc.collect()
        assert gone() is None and opened(window) == ["Dashboard"] and Counted.closed == frames / 2
        assert len(QApplication.topLevelWidgets()) <= parentless and set(threading.enumerate()) <= threads
    assert frames > 20  # it opened in many turns of the event loop


@pytest.mark.parametrize("frames", [1, 4, 8, 12, 16, 24])
def test_the_window_may_be_closed_while_a_recording_opens(window: MainWindow, path: Path, frames: int) -> None:
    document = opened_so_far(window, path, frames)
    assert document.dashboard is None
    window.close()
    assert window.joined and Counted.closed == 1 and window.workspace.count == 0
    document.refresh()
    assert document.dashboard is None


def test_slices_that_take_no_time_share_a_frame(
    window: MainWindow, path: Path, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = read_as_far_as_its_first_slice(window, path, qtbot)
    monkeypatch.setattr(recording_document, "SLICES_S", math.inf)
    document.refresh()
    assert document.dashboard is not None


def test_figures_and_plots_of_a_recording_are_there_before_it_is_shown_each_in_a_frame_of_its_own(
    window: MainWindow, path: Path, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    for part in ("refresh_figures", "_choose_plots"):
        work = getattr(Dashboard, part)
        monkeypatch.setattr(
            Dashboard, part, lambda dashboard, part=part, work=work: (done.append(part), work(dashboard))[1]
        )
    document = read_as_far_as_its_first_slice(window, path, qtbot)
    frames = []
    plots = [0]
    while document.dashboard is None:
        done.clear()
        document.refresh()
        frames.append(tuple(done))
        plots.append(len(document.findChildren(TimePlot)))
    assert plots[-1] > 1 and max(after - before for before, after in itertools.pairwise(plots)) == 1
    assert [frame for frame in frames if frame] == [("refresh_figures",), ("_choose_plots",)]
    done.clear()
    document.refresh()
    assert "refresh_figures" not in done


def test_no_frame_puts_most_of_a_dashboard_into_the_window_since_qt_styles_what_is_put_there(
    window: MainWindow, path: Path, qtbot: QtBot
) -> None:
    document = read_as_far_as_its_first_slice(window, path, qtbot)
    counts = [len(document.findChildren(QWidget))]
    while document.dashboard is None:
        document.refresh()
        counts.append(len(document.findChildren(QWidget)))
    came = [after - before for before, after in itertools.pairwise(counts)]
    assert max(came) < sum(came) / 2
