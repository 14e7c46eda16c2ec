"""The dashboard of a recording is built over several frames, so that the window does not stand still."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from PySide6.QtWidgets import QWidget
from pytestqt.qtbot import QtBot

from gpudash.session import Replay
from gpudash.ui.colours import LIGHT
from gpudash.ui.dashboard.dashboard import Dashboard
from gpudash.ui.plots.plot import TimePlot
from gpudash.ui.recordings.document import RecordingDocument
from gpudash.ui.window.main_window import MainWindow
from tests.ui.recordings import trained


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return trained().save(tmp_path / "run.gpudash")


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


def test_a_tab_closed_while_its_dashboard_is_being_built_lets_go_of_the_file(
    window: MainWindow, path: Path, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[Replay] = []
    close = Replay.close
    monkeypatch.setattr(Replay, "close", lambda replay: (closed.append(replay), close(replay))[1])
    document = read_as_far_as_its_first_slice(window, path, qtbot)
    document.refresh()
    window.workspace.close_front()
    assert len(closed) == 1 and window.workspace.count == 0
    document.refresh()
    assert document.dashboard is None


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
