"""The picture of a recording: the whole run, drawn by the real window."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PySide6.QtGui import QColor, QImage
from PySide6.QtWidgets import QApplication

from gpudash.session import Replay
from gpudash.telemetry.recording.recorder import Recorder
from gpudash.telemetry.records import Record
from gpudash.ui.colours import DARK, LIGHT
from gpudash.ui.picture import draw
from gpudash.ui.window.main_window import MainWindow
from tests.ui.conftest import OpenWindow, settle
from tests.ui.fake_session import FakeSession
from tests.ui.words import complaints, weakest

SIZE = (1600, 1000)
COVERED = 0.8


class RecordedSession(FakeSession):
    """Keeps what it applies, for a recording."""

    def __init__(self) -> None:
        self.kept: list[Record] = []
        super().__init__()

    def apply(self, *records: Record) -> None:
        super().apply(*records)
        self.kept.extend(records)


def recorded(path: Path, seconds: float, idle_s: float = 3.0) -> Path:
    """A recording of a training run between two idle stretches."""
    session = RecordedSession()
    session.feed(idle_s)
    session.start()
    session.train(seconds, steps=round(seconds * 10))
    session.end()
    session.feed(0.3)
    recorder = Recorder(
        path, meta={"wall_clock_origin": "2026-11-21T10:15:00+00:00", "host_product": "AMD EPYC 9554", "rate_hz": 10}
    )
    for record in session.kept:
        recorder.add(record)
    recorder.close("closed")
    return path


@pytest.fixture
def window(open_window: OpenWindow, tmp_path: Path) -> MainWindow:
    window = open_window(Replay(recorded(tmp_path / "run.gpudash", 20.0)), size=SIZE)
    window.workspace.dashboard.show_run()
    settle(window)
    return window


def coverage(window: MainWindow) -> dict[str, float]:
    """Share of the time axis over which each plot has data."""
    start, end = window.workspace.dashboard.view.range()
    shares = {}
    for plot in window.workspace.dashboard.plots.plots:
        times = np.concatenate([t[np.isfinite(v)] for t, v in plot.points.raw.values()])
        inside = times[(times >= start) & (times <= end)]
        shares[plot.spec.id] = float(np.ptp(inside)) / (end - start)
    return shares


def test_every_plot_of_the_run_has_data_over_most_of_its_time_axis(window: MainWindow) -> None:
    shares = coverage(window)
    assert set(shares) == {"memory", "utilisation", "loss", "throughput"}
    assert min(shares.values()) >= COVERED, shares


def test_a_short_run_fills_its_time_axis_too(open_window: OpenWindow, tmp_path: Path) -> None:
    window = open_window(Replay(recorded(tmp_path / "short.gpudash", 2.0)), size=SIZE)
    window.workspace.dashboard.show_run()
    settle(window)
    assert min(coverage(window).values()) >= COVERED


def test_nothing_in_the_picture_is_cut_and_the_last_loss_can_be_read(window: MainWindow) -> None:
    assert complaints(window) == []
    assert [found for found in weakest(window, window.grab().toImage()) if found[0] < 4.5] == []
    assert "loss 1." in window.workspace.dashboard.panel.progress.label.text()
    assert dict(window.workspace.dashboard.plots.readout.rows())["loss"].startswith("1.")


def test_a_recording_offers_no_button_it_could_not_serve(window: MainWindow) -> None:
    assert (
        not window.workspace.dashboard.panel.button.isVisible()
        and not window.workspace.dashboard.view_bar.pause.isVisible()
    )
    assert "run.start" not in window.menus.actions and "edit.add_mark" not in window.menus.actions
    assert "run.gpudash" in window.workspace.dashboard.status_line._left.text()


@pytest.mark.parametrize(("theme", "palette"), [("dark", DARK), ("light", LIGHT)])
def test_the_picture_has_its_size_theme_and_colours(tmp_path: Path, qapp: QApplication, theme, palette) -> None:  # type: ignore[no-untyped-def]
    target = tmp_path / "picture.png"
    draw(recorded(tmp_path / "run.gpudash", 20.0), target, SIZE, theme)
    assert not [widget for widget in QApplication.topLevelWidgets() if isinstance(widget, MainWindow)]
    image = QImage(str(target))
    assert (image.width(), image.height()) == SIZE
    assert image.pixelColor(2, 500) == QColor(palette.window)
    colours = {image.pixelColor(x, y).name() for x in range(400, 1300, 3) for y in range(100, 800, 3)}
    assert palette.curves["process"] in colours and palette.curves["loss"] in colours


def test_a_picture_that_cannot_be_written_is_an_error(tmp_path: Path, qapp: QApplication) -> None:
    path = recorded(tmp_path / "run.gpudash", 2.0)
    with pytest.raises(OSError, match="cannot be written"):
        draw(path, tmp_path / "missing" / "picture.png", SIZE)
    assert not [widget for widget in QApplication.topLevelWidgets() if isinstance(widget, MainWindow)]
