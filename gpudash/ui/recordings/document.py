"""A recording in a tab: a line that says what ran, where and how it ended; the dashboard over it; the bar that
plays it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Protocol

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QKeyEvent, QKeySequence, QResizeEvent, QShortcut
from PySide6.QtWidgets import QHBoxLayout, QLabel, QPushButton, QSizePolicy, QStackedWidget, QVBoxLayout, QWidget

from gpudash.devices.names import SIMULATED
from gpudash.session import Replay
from gpudash.settings import Settings
from gpudash.specs import workloads
from gpudash.telemetry.recording.recorder import RecordingError
from gpudash.telemetry.runs import RunView
from gpudash.ui.colours import Palette
from gpudash.ui.dashboard.dashboard import Dashboard
from gpudash.ui.dashboard.document import Document
from gpudash.ui.dashboard.plots_page import SLOW_REFRESH
from gpudash.ui.dashboard.tabs.lower_tabs import LowerTabs
from gpudash.ui.forms.run_progress import ENDINGS
from gpudash.ui.forms.workload_panel import WorkloadPanel
from gpudash.ui.recordings.replay_bar import ReplayBar
from gpudash.ui.widgets.notice import Notice
from gpudash.ui.widgets.opening_page import OpeningPage
from gpudash.ui.widgets.plain_text import PlainLabel, plain_tip
from gpudash.units import format_count, format_duration

READ_ADVICE = "The file is only read, never changed. No data leaves this computer."


class Opened(Protocol):
    """A recording that is being read, as `OpenedRecording` or `OpenedStream`."""

    title: str
    size_bytes: int
    part: float

    @property
    def place(self) -> Path | str:
        """The file, or the name of what is read."""

    def poll(self) -> Replay | None:
        """The recording; ``None`` while it is being read."""

    def give_up(self) -> None:
        """Let go of it."""


class RecordingDocument(Document):
    """One recording: a page with progress until it is read, then the dashboard.

    Args:
        opened: the recording, which is being read.
        palette: of the window.
        settings: called when it has been read, for what is in force then.

    Signals:
        ready: the dashboard is there.
        refused: the recording cannot be read: one sentence.
        again: the run that is to be run again, a `RunView`.
    """

    ready = Signal()
    refused = Signal(str)
    again = Signal(object)

    def __init__(self, opened: Opened, palette: Palette, settings: Callable[[], Settings] = Settings) -> None:
        super().__init__()
        self.title = opened.title
        self.setAccessibleName(f"Recording {self.title}")
        self._opened = opened
        self._palette = palette
        self._settings = settings
        self._closed = False
        self._frame = 0
        self._told: list[str] = []
        self._shown_run: int | None = None
        self.replay: Replay | None = None
        self._read: Replay | None = None
        self._slices: Iterator[None] = iter(())
        self.opening = OpeningPage(self.title, READ_ADVICE)
        self.opening.cancelled.connect(self.closed)
        self._stack = QStackedWidget()
        self._stack.addWidget(self.opening)
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.addWidget(self._stack)
        self._escape = QShortcut(QKeySequence(Qt.Key.Key_Escape), self)
        self._escape.setContext(Qt.ShortcutContext.WidgetWithChildrenShortcut)
        self._escape.activated.connect(self.closed)

    def refresh(self) -> None:
        """Go on with opening, play on, and draw what is new."""
        if self._closed:
            return
        if self.replay is None:
            if self._read is None:
                self._poll()
            else:
                next(self._slices, None)
            return
        assert self.dashboard is not None
        self.bar.refresh()
        if self._frame % SLOW_REFRESH == 0:
            self._show_words(self.replay, self.dashboard)
        self.dashboard.refresh()
        self._frame += 1

    def _poll(self) -> None:
        try:
            replay = self._opened.poll()
        except RecordingError as error:
            self.refused.emit(str(error))
            return
        if replay is not None:
            self._read, self._slices = replay, self._show(replay)
        else:
            self.opening.show_progress(round(self._opened.part * self._opened.size_bytes), self._opened.size_bytes)

    def _show(self, replay: Replay) -> Iterator[None]:
        """Put the dashboard in the place of the progress, a slice a frame: in one go the window would stand still."""
        replay.set_settings(self._settings())
        panel, tabs = WorkloadPanel(), LowerTabs()
        yield
        dashboard = Dashboard(replay, self._palette, panel=panel, tabs=tabs)
        self._add_parts(replay, dashboard)
        yield
        self._stack.addWidget(dashboard)
        yield
        if replay.following:
            dashboard.view.follow()
        else:
            dashboard.show_run()
        self._show_words(replay, dashboard)
        yield from dashboard.prepare()
        yield
        self.replay, self.dashboard = replay, dashboard
        if dashboard.palette_ is not self._palette:
            dashboard.set_palette(self._palette)
        self._escape.setEnabled(False)
        focused = self.opening.isAncestorOf(self.focusWidget()) if self.focusWidget() is not None else False
        self._stack.setCurrentWidget(dashboard)
        if focused:
            self.setFocus()
        self.ready.emit()

    def _add_parts(self, replay: Replay, dashboard: Dashboard) -> None:
        """What the dashboard of a recording has beside that of the live session."""
        self.head = RecordingHead()
        self.notice = Notice()
        self.bar = ReplayBar(replay, dashboard.view, replay.settings.window_s)
        self.run_again = QPushButton("↻  Run again")
        self.run_again.setProperty("role", "primary")
        self.run_again.setMinimumHeight(32)
        self.run_again.setToolTip("Put these values into the live dashboard, ready to start")
        self.run_again.clicked.connect(self._again)
        dashboard.tabs.verdict.again.connect(self._again)
        panel = dashboard.panel.layout()
        assert panel is not None
        panel.addWidget(self.run_again)
        dashboard.panel.form.set_locked(True)
        dashboard.rows.insertWidget(0, self.head)
        dashboard.rows.insertWidget(1, self.notice)
        dashboard.rows.insertWidget(dashboard.rows.count() - 1, self.bar)

    def _show_words(self, replay: Replay, dashboard: Dashboard) -> None:
        """Bring up to date what the line above says, what the run was asked, and what could not be read."""
        dashboard.view.live = replay.following and replay.at_end
        begun, run = self._run(replay)
        start_s, end_s = replay.extent_s
        unfinished = "Being recorded" if replay.following else "Under way" if not replay.at_end else "Never ended"
        if not begun:
            unfinished = "Not begun yet"
        seconds, place = end_s - start_s, self._opened.place
        self.head.show_recording(place, replay.began_wall_s, run, seconds, unfinished, begun=begun)
        dashboard.panel.progress.unfinished = unfinished
        self.run_again.setEnabled(run is not None)
        if run is not None and run.run_id != self._shown_run:
            self._shown_run = run.run_id
            dashboard.panel.show_spec(run.workload, run.device, run.spec)
        notices = replay.notices
        if notices != self._told:
            self._told = notices
            self.notice.tell("\n".join(f"{text.rstrip('.')}." for text in notices))

    def _again(self) -> None:
        assert self.replay is not None
        _begun, run = self._run(self.replay)
        if run is not None:
            self.again.emit(run)

    @staticmethod
    def _run(replay: Replay) -> tuple[bool, RunView | None]:
        """The run at the place that is shown, and whether it has begun there: before the first one, that one."""
        with replay.store.lock:
            run, whole = replay.store.run, replay.store.whole.runs
            return run is not None or not whole, run if run is not None or not whole else whole[0]

    def set_palette(self, palette: Palette) -> None:
        """Redraw in other colours."""
        self._palette = palette
        if self.dashboard is not None:
            self.dashboard.set_palette(palette)

    def copy_values(self) -> None:
        """Copy from the table or output that has the focus, else the selection of the plots."""
        if self.dashboard is not None:
            self.dashboard.copy_values()

    def copy_picture(self) -> None:
        """Copy a picture of the plots."""
        if self.dashboard is not None:
            self.dashboard.copy_picture()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if self.replay is not None and event.key() == Qt.Key.Key_Space and not event.modifiers():
            self.bar.toggle()
        else:
            super().keyPressEvent(event)

    def close_document(self) -> None:
        """Let go of the file, and of what still reads it."""
        self._closed = True
        self._slices = iter(())
        self._opened.give_up()
        if self._read is not None:
            self._read.close()


FILE_LEAST_PX = 160
"""Room that the file's name has at least."""


class RecordingHead(QWidget):
    """One line."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.what, self.badge, self.words, self.file = PlainLabel(), PlainLabel(SIMULATED), PlainLabel(), PlainLabel()
        self.what.setProperty("role", "figure-small")
        self.badge.setProperty("role", "badge")
        self.badge.hide()
        row = QHBoxLayout(self)
        row.setContentsMargins(2, 2, 2, 0)
        row.setSpacing(10)
        for label in (self.what, self.badge, self.words, self.file):
            label.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
            label.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        for label in (self.words, self.file):
            label.setProperty("role", "muted")
        self.file.setAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
        self.file.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
        self.file.setMinimumWidth(FILE_LEAST_PX)
        row.addWidget(self.what)
        row.addWidget(self.badge)
        row.addWidget(self.words)
        row.addWidget(self.file, 1)
        self._name = ""

    def show_recording(
        self,
        place: Path | str,
        began_wall_s: float,
        run: RunView | None,
        seconds: float,
        unfinished: str,
        *,
        begun: bool = True,
    ) -> None:
        """Say what is known.

        Args:
            place: the file, or the name of what is read.
            began_wall_s: seconds since the epoch at session time 0.
            run: the run that the recording is of, as it is at the position shown.
            seconds: how long the recording is.
            unfinished: what is said of a run that has not ended there.
            begun: whether the run has begun there.
        """
        self._name = place.name if isinstance(place, Path) else place
        self.file.setToolTip(plain_tip(str(place)))
        what = "Session" if run is None else f"{workload_title(run.workload)} · {run.device}"
        _write(self.what, what)
        self.badge.setVisible(run is not None and run.simulated)
        began = datetime.fromtimestamp(began_wall_s + (0.0 if run is None else run.began_s)).astimezone()
        parts = [
            f"{began:%Y-%m-%d %H:%M:%S}",
            *_ending(run if begun else None, seconds, unfinished, known=run is not None),
        ]
        _write(self.words, " · ".join(parts))
        self.setAccessibleName(f"Recording {self._name}: {what}, {', '.join(parts)}")
        self._fit()

    def resizeEvent(self, event: QResizeEvent) -> None:
        self._fit()

    def _fit(self) -> None:
        width = max(self.file.width(), FILE_LEAST_PX)
        _write(self.file, self.file.fontMetrics().elidedText(self._name, Qt.TextElideMode.ElideMiddle, width))


def workload_title(name: str) -> str:
    """What a workload is called in the window."""
    known = workloads().get(name)
    return "Own program" if name == "watch" else name if known is None else known.title


def _ending(run: RunView | None, seconds: float, unfinished: str, *, known: bool) -> list[str]:
    if run is None or run.running:
        return [unfinished.lower() if known else "no run", format_duration(seconds)]
    told = [ENDINGS.get(run.status, "Ended").lower()]
    if run.seconds is not None:
        told.append(format_duration(run.seconds))
    if run.step:
        told.append(f"{format_count(run.step)} step{'s' if run.step != 1 else ''}")
    return told


def _write(label: QLabel, words: str) -> None:
    if label.text() != words:
        label.setText(words)
