"""A recording in a tab: a line with what ran, where and how it ended, the dashboard, and the playback bar."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from PySide6.QtCore import QSignalBlocker, Qt, Signal
from PySide6.QtGui import QFontMetrics, QKeyEvent, QResizeEvent
from PySide6.QtWidgets import (
    QHBoxLayout,
    QLabel,
    QPushButton,
    QSizePolicy,
    QSlider,
    QStackedWidget,
    QWidget,
)

from gpudash.devices.names import SIMULATED
from gpudash.session.recordings.run_names import given_name
from gpudash.specs import workloads
from gpudash.system.settings import Settings
from gpudash.telemetry.recording.recorder import RecordingError
from gpudash.telemetry.runs import ENDINGS, WATCH, RunView
from gpudash.ui.colours import Palette
from gpudash.ui.dashboard.dashboard import Dashboard
from gpudash.ui.dashboard.document import Document
from gpudash.ui.dashboard.plots_page import SLOW_REFRESH
from gpudash.ui.dashboard.result_page import ResultPage
from gpudash.ui.dashboard.tabs.lower_tabs import LowerTabs
from gpudash.ui.forms.script_form import ScriptForm
from gpudash.ui.forms.workload_panel import WorkloadPanel
from gpudash.ui.plots.view import TimeView
from gpudash.ui.widgets.fields import ChoiceField
from gpudash.ui.widgets.focus_group import shortcut_within
from gpudash.ui.widgets.layouts import in_column
from gpudash.ui.widgets.notice import Notice
from gpudash.ui.widgets.opening_page import OpeningPage
from gpudash.ui.widgets.plain_text import PlainLabel, plain_tip
from gpudash.units import format_count, format_duration

if TYPE_CHECKING:
    from gpudash.session import Replay
    from gpudash.session.recordings.opener import OpenedRecording, OpenedReplay

SPEEDS = (1, 2, 5, 10, 30, 60)
"""Playback speeds: seconds of the recording per second."""

PARTS = 10_000
"""Positions of the slider; QSlider uses C ints."""

PAGE_RATIO = 0.05
"""Share of the recording that Page Up and Page Down skip."""

ARROW_S = 1.0
"""Seconds that an arrow key skips."""

LONGEST_STEP_S = 0.5
"""Maximum wall-clock seconds that one frame plays: nothing is skipped while the tab is hidden or the window hangs."""


class ReplayBar(QWidget):
    """Moves the position of a replay.

    Args:
        replay: the replay to play.
        view: its time axis, which follows the position during playback.
        longest_window_s: the maximum width of the shown range during playback.
        clock: monotonic seconds; for tests.
    """

    def __init__(
        self,
        replay: Replay,
        view: TimeView,
        longest_window_s: float,
        parent: QWidget | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(parent)
        self._replay = replay
        self._view = view
        self._longest_window_s = longest_window_s
        self._clock = clock
        self._last_s = clock()
        self._wanted: int | None = None
        self._time_width = 0
        self.playing = False
        self._build()
        self.refresh()

    def _build(self) -> None:
        row = QHBoxLayout(self)
        row.setContentsMargins(0, 0, 0, 0)
        row.setSpacing(8)
        self.play = QPushButton()
        self.play.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.play.clicked.connect(self.toggle)
        # Wide enough for both texts, so that nothing moves when it changes.
        self.play.setMinimumWidth(QFontMetrics(self.play.font()).horizontalAdvance("❚❚  Pause") + 34)
        self.speed = ChoiceField()
        self.speed.setAccessibleName("Playback speed")
        self.speed.setToolTip("Seconds of the recording per second")
        self.speed.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        for speed in SPEEDS:
            self.speed.addItem(f"{speed}×", speed)
        self.slider = QSlider(Qt.Orientation.Horizontal)
        self.slider.setRange(0, PARTS)
        self.slider.setPageStep(round(PARTS * PAGE_RATIO))
        self.slider.setAccessibleName("Position in the recording")
        self.slider.setToolTip("Drag to any moment; arrow keys move by a second, Page Up and Page Down by a twentieth")
        self.slider.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.slider.valueChanged.connect(self._scrubbed)
        self.time = PlainLabel()
        self.time.setAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
        self.end = QPushButton()
        self.end.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.end.clicked.connect(self._end_clicked)
        for part in (self.play, self.speed):
            row.addWidget(part)
        row.addWidget(self.slider, 1)
        row.addWidget(self.time)
        row.addWidget(self.end)

    @property
    def live(self) -> bool:
        """Whether the newest reading is followed, in a file that is still being written."""
        return self._replay.following and self._replay.at_end and self._view.following

    def toggle(self) -> None:
        """Play or pause."""
        # Pausing a live recording freezes the view; the recording goes on.
        if self.live:
            self._view.pause()
            self._replay.seek(self._replay.extent_s[1])
        elif self.playing:
            self.playing = False
        else:
            self._start()
        self.refresh()

    def _start(self) -> None:
        """Play from the position; if that is the end, from the left edge of the view."""
        start_s, end_s = self._replay.extent_s
        place_s = self._replay.position_s
        # There is nothing to play after the end: replay what is in view.
        if self._replay.at_end or place_s >= end_s:
            left = self._view.range()[0]
            if start_s < left < end_s:
                place_s = left
            else:
                place_s = start_s
        # In a view of hours the position would hardly appear to move.
        if self._view.window_s > self._longest_window_s:
            self._view.set_window(self._longest_window_s)
        self._replay.seek(place_s)
        self._view.set_now(place_s)
        self._view.follow()
        # Count from now: the time since the last frame is not played.
        self.playing, self._wanted, self._last_s = True, None, self._clock()

    def go_to_end(self) -> None:
        """Show everything up to the end, and what is still being written."""
        self.playing, self._wanted = False, None
        self._replay.seek(None)
        self._view.set_now(self._replay.extent_s[1])
        self.refresh()

    def _end_clicked(self) -> None:
        self.go_to_end()
        if self._replay.following:
            self._view.follow()
            self.refresh()

    def refresh(self) -> None:
        """Continue playing and show the position; called in every frame."""
        now_s = self._clock()
        # A late frame plays no more than `LONGEST_STEP_S`.
        passed_s, self._last_s = min(now_s - self._last_s, LONGEST_STEP_S), now_s
        start_s, end_s = self._replay.extent_s
        # Scrubbing takes precedence over playback; it does not pause.
        if self._wanted is not None:
            self.go_to(start_s + (end_s - start_s) * self._wanted / PARTS)
            self._wanted = None
        elif self.playing:
            self.go_to(self._replay.position_s + passed_s * int(self.speed.currentData()))
        self._show()

    def go_to(self, time_s: float) -> None:
        """Show the moment ``time_s``; if it is not in view, the view follows it."""
        end_s = self._replay.extent_s[1]
        # At the end playback stops, and new readings are followed.
        if time_s >= end_s:
            self.playing = False
            self._replay.seek(None)
        else:
            self._replay.seek(time_s)
        left, right = self._view.range()
        self._view.set_now(min(time_s, end_s))
        # A view that the user moved stays there as long as it shows the moment.
        if not left <= time_s <= right and not self._view.following:
            self._view.follow()

    def _scrubbed(self, place: int) -> None:
        """The user moved the slider; the next frame goes there."""
        # Not at once: a drag sends many changes between two frames, and each seek takes milliseconds.
        self._wanted = place

    def _show(self) -> None:
        start_s, end_s = self._replay.extent_s
        place_s = min(max(self._replay.position_s, start_s), end_s)
        whole_s = max(end_s - start_s, 1e-9)
        # While the slider is held, only the user moves it.
        if self._wanted is None and not self.slider.isSliderDown():
            # Blocked: setting the position must not scrub.
            with QSignalBlocker(self.slider):
                # Arrow keys move by seconds, a different share of each recording.
                self.slider.setSingleStep(max(1, round(PARTS * min(1.0, ARROW_S / whole_s))))
                self.slider.setValue(round(PARTS * (place_s - start_s) / whole_s))
        text = f"{place_text(place_s - start_s)} / {place_text(end_s - start_s)}"
        # Only if it changed: setting a text lays out the row again.
        if self.time.text() != text:
            self.time.setText(text)
            self.slider.setAccessibleDescription(text.replace("/", "of"))
            # Never narrower than before, or the slider would jump with each digit.
            self._time_width = max(self._time_width, self.time.sizeHint().width())
            self.time.setMinimumWidth(self._time_width)
        running = self.playing or self.live
        _name(self.play, "❚❚  Pause" if running else "▶  Play", "Pause" if running else "Play the recording")
        if self._replay.following:
            _name(self.end, "●  Follow", "Show what is being written now (End)")
            self.end.setEnabled(not self.live)
        else:
            _name(self.end, "▶❘  To the end", "Show the end of the recording (End)")
            self.end.setEnabled(not self._replay.at_end)
        self.play.setToolTip(plain_tip(f"{self.play.accessibleName()} (Space)"))


def _name(button: QPushButton, text: str, means: str) -> None:
    """Change a button's text and its tooltip."""
    if button.text() != text:
        button.setText(text)
        button.setAccessibleName(means.partition(" (")[0])
        button.setToolTip(plain_tip(means))


def place_text(seconds: float) -> str:
    """A position in a recording: 0:04.2, 12:05.0, 1:02:03.4."""
    tenths = max(0, round(seconds * 10))
    whole, tenth = divmod(tenths, 10)
    hours, rest = divmod(whole, 3600)
    minutes, left = divmod(rest, 60)
    short = f"{left:02d}.{tenth}"
    if hours:
        return f"{hours}:{minutes:02d}:{short}"
    return f"{minutes}:{short}"


SLICES_S = 0.004
"""Seconds of a frame after which no other slice of building a dashboard begins."""

_BUILT = object()
"""What is next after the last slice."""

READ_ADVICE = "The file is only read, never changed. No data leaves this computer."


class RecordingDocument(Document):
    """One recording: a progress page until it is read, then the dashboard.

    Args:
        file: the recording, which is being read.
        palette: the window's colours.
        settings: called when the recording has been read; returns the current settings.

    Signals:
        ready: the dashboard is shown.
        refused: the recording cannot be read; one sentence.
        again: this run, a `RunView`, should be run again.
    """

    ready = Signal()
    refused = Signal(str)
    again = Signal(object)

    def __init__(
        self, file: OpenedRecording | OpenedReplay, palette: Palette, settings: Callable[[], Settings] = Settings
    ) -> None:
        super().__init__()
        self.title = file.title
        self.setAccessibleName(f"Recording {self.title}")
        self._file = file
        self._palette = palette
        self._settings = settings
        self._closed = False
        self._frame = 0
        self._notices: list[str] = []
        self._shown_run: int | None = None
        self._wanted_run: int | None = None
        self.replay: Replay | None = None
        self._replay: Replay | None = None
        self._slices: Iterator[None] = iter(())
        # Holds what has no place yet, outside the window, whose style sheet would be applied to each widget. Without
        # it, closing in between would leave them to Python, which takes their attributes before Qt lets go of them.
        self._parts = QWidget()
        self.opening = OpeningPage(self.title, READ_ADVICE)
        self.opening.cancelled.connect(self.closed)
        self._stack = QStackedWidget()
        self._stack.addWidget(self.opening)
        in_column(self._stack, parent=self, margins=(0, 0, 0, 0))
        # Escape closes only the progress page: the dashboard has its own uses for it.
        self._escape = shortcut_within(self, "Esc", self.closed.emit)

    def refresh(self) -> None:
        """Continue opening or playing, and draw what is new."""
        if self._closed:
            return
        if self.replay is None:
            if self._replay is None:
                self._poll()
            else:
                self._continue_opening()
            return
        assert self.dashboard is not None
        self.bar.refresh()
        # Texts change slowly, curves do not.
        if self._frame % SLOW_REFRESH == 0:
            self._show_text(self.replay, self.dashboard)
        self.dashboard.refresh()
        self._frame += 1

    def _continue_opening(self) -> None:
        """Build the next slices of the dashboard: one, and more as long as they are short."""
        began_s = time.perf_counter()
        while next(self._slices, _BUILT) is not _BUILT:
            if time.perf_counter() - began_s >= SLICES_S:
                return

    def _poll(self) -> None:
        try:
            replay = self._file.poll()
        except RecordingError as error:
            self.refused.emit(str(error))
            return
        # A generator: building the dashboard takes several frames.
        if replay is not None:
            self._replay, self._slices = replay, self._show(replay)
        else:
            self.opening.show_progress(round(self._file.part * self._file.size_bytes), self._file.size_bytes)

    def _show(self, replay: Replay) -> Iterator[None]:
        """Replace the progress page with the dashboard, slice by slice: in one go it would freeze the window."""
        replay.set_settings(self._settings())
        parts = self._parts
        script = ScriptForm(parts)
        yield
        panel = WorkloadPanel(parts, script=script)
        yield
        panel.set_commanding(False)
        yield
        tabs = LowerTabs(parts)
        yield
        result = ResultPage(parts)
        yield
        dashboard = Dashboard(replay, self._palette, parts, panel=panel, tabs=tabs, result=result, holder=parts)
        yield
        self._stack.addWidget(dashboard)
        yield
        yield from dashboard.arrange()
        self._add_parts(replay, dashboard)
        yield
        if replay.following:
            dashboard.view.follow()
        else:
            dashboard.show_run()
        yield
        self._show_text(replay, dashboard)
        yield
        yield from dashboard.prepare()
        yield
        # Move the focus only if it was on the progress page.
        focused = False
        if self.focusWidget() is not None:
            focused = self.opening.isAncestorOf(self.focusWidget())
        self._stack.setCurrentWidget(dashboard)
        if focused:
            self.setFocus()
        yield
        # Last: until these are set, `refresh` continues with the slices.
        self.replay, self.dashboard = replay, dashboard
        # The theme may have changed in the meantime.
        if dashboard.palette_ is not self._palette:
            dashboard.set_palette(self._palette)
        self._escape.setEnabled(False)
        self._name_tab(replay)
        if self._wanted_run is not None:
            self.show_run(self._wanted_run)
        self.ready.emit()

    def show_run(self, number: int) -> None:
        """Go to the end of a run, counted from 1, with the run in view; once the recording has been read."""
        if self.replay is None or self.dashboard is None:
            self._wanted_run = number
            return
        with self.replay.store.lock:
            runs = list(self.replay.store.end.runs)
        if not 1 <= number <= len(runs):
            return
        run, later = runs[number - 1], runs[number:]
        # A run that never ended extends to the next one, or to the end of the recording.
        if run.ended_s is not None:
            end_s = run.ended_s
        elif later:
            end_s = later[0].began_s
        else:
            end_s = None
        self.bar.go_to(end_s if later and end_s is not None else self.replay.extent_s[1])
        self.dashboard.show_run()
        self._show_text(self.replay, self.dashboard)

    def _add_parts(self, replay: Replay, dashboard: Dashboard) -> None:
        """Add what the dashboard of a recording has and a live session's does not."""
        self.head = RecordingHead()
        self.notice = Notice()
        self.bar = ReplayBar(replay, dashboard.view, replay.settings.window_s)
        self.run_again = QPushButton("↻  Run again")
        self.run_again.setProperty("role", "primary")
        self.run_again.setMinimumHeight(32)
        self.run_again.setToolTip("Put these values into the live dashboard, ready to start")
        self.run_again.clicked.connect(self._again)
        dashboard.result.verdict.again.connect(self._again)
        panel = dashboard.panel.layout()
        assert panel is not None
        panel.addWidget(self.run_again)
        dashboard.panel.form.set_locked(True)
        dashboard.rows.insertWidget(0, self.head)
        dashboard.rows.insertWidget(1, self.notice)
        dashboard.rows.insertWidget(dashboard.rows.count() - 1, self.bar)

    def _show_text(self, replay: Replay, dashboard: Dashboard) -> None:
        """Update the line above, the run's settings in the form, and notices about unreadable data."""
        dashboard.view.live = replay.following and replay.at_end
        begun, run = self._run(replay)
        start_s, end_s = replay.extent_s
        if replay.following:
            unfinished = "Being recorded"
        elif not replay.at_end:
            unfinished = "In progress"
        else:
            unfinished = "Never ended"
        if not begun:
            unfinished = "Not started yet"
        seconds = end_s - start_s
        name = self._run_name(replay, run)
        self.head.show_recording(self._file.path, replay.began_wall_s, run, seconds, unfinished, begun=begun, name=name)
        dashboard.panel.progress.unfinished = unfinished
        self.run_again.setEnabled(run is not None)
        # Fill the form once per run, since that takes a frame.
        if run is not None and run.run_id != self._shown_run:
            self._shown_run = run.run_id
            dashboard.panel.show_spec(run.workload, run.device, run.spec)
        # An unchanged list is not shown again, or a closed notice would come back.
        notices = replay.notices
        if notices != self._notices:
            self._notices = notices
            if notices:
                self._report_notices("\n".join(f"{text.rstrip('.')}." for text in notices))
            else:
                self.notice.dismiss()

    @staticmethod
    def _run_name(replay: Replay, run: RunView | None) -> str:
        """What the user called a run of the recording; "" if nothing."""
        with replay.store.lock:
            began = [one.began_s for one in replay.store.end.runs]
        if run is None or run.began_s not in began:
            return ""
        return replay.run_title(began.index(run.began_s) + 1)

    def _name_tab(self, replay: Replay) -> None:
        """Let the tab have the name of the recording's run, if there is just one and it has a name."""
        with replay.store.lock:
            runs = list(replay.store.end.runs)
        name = self._run_name(replay, runs[0]) if len(runs) == 1 else ""
        if name:
            self.title, self.title_tip = name, str(self._file.path)
            self.setAccessibleName(f"Recording {name}")
            self.retitled.emit()

    def _report_notices(self, text: str) -> None:
        """Show a notice about what could not be read."""
        self.notice.report(text)

    def _again(self) -> None:
        assert self.replay is not None
        _begun, run = self._run(self.replay)
        if run is not None:
            self.again.emit(run)

    @staticmethod
    def _run(replay: Replay) -> tuple[bool, RunView | None]:
        """Whether a run has begun at the current position, and that run; before the first run, the first one."""
        with replay.store.lock:
            run, whole = replay.store.run, replay.store.end.runs
            return run is not None or not whole, run if run is not None or not whole else whole[0]

    def set_palette(self, palette: Palette) -> None:
        """Use these colours."""
        self._palette = palette
        if self.dashboard is not None:
            self.dashboard.set_palette(palette)

    def copy_values(self) -> None:
        """Copy from the focused table or output, or else the selection of the plots."""
        if self.dashboard is not None:
            self.dashboard.copy_values()

    def copy_picture(self) -> None:
        """Copy a picture of the plots."""
        if self.dashboard is not None:
            self.dashboard.copy_picture()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        # Space without modifiers; a focused button or field handles it first.
        if self.replay is not None and event.key() == Qt.Key.Key_Space and not event.modifiers():
            self.bar.toggle()
        else:
            super().keyPressEvent(event)

    def close_document(self) -> None:
        """Close the file and stop everything that reads it."""
        self._closed = True
        # Drop an unfinished generator before closing what it builds on.
        self._slices = iter(())
        self._parts.deleteLater()
        self._file.give_up()
        if self._replay is not None:
            self._replay.close()


FILE_LEAST_PX = 160
"""Minimum width for the file's name."""


class RecordingHead(QWidget):
    """The line above a recording: what ran, where and how it ended."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.what, self.badge, self.label, self.file = PlainLabel(), PlainLabel(SIMULATED), PlainLabel(), PlainLabel()
        self.what.setProperty("role", "figure-small")
        self.badge.setProperty("role", "badge")
        self.badge.hide()
        row = QHBoxLayout(self)
        row.setContentsMargins(2, 2, 2, 0)
        row.setSpacing(10)
        for label in (self.what, self.badge, self.label, self.file):
            label.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
            label.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        for label in (self.label, self.file):
            label.setProperty("role", "muted")
        self.file.setAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
        # The name uses the room that is left and requests none.
        self.file.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
        self.file.setMinimumWidth(FILE_LEAST_PX)
        row.addWidget(self.what)
        row.addWidget(self.badge)
        row.addWidget(self.label)
        row.addWidget(self.file, 1)
        self._name = ""

    def show_recording(
        self,
        path: Path | str,
        began_wall_s: float,
        run: RunView | None,
        seconds: float,
        unfinished: str,
        *,
        begun: bool = True,
        name: str = "",
    ) -> None:
        """Show what is known about the recording.

        Args:
            path: the file, or the name of another source.
            began_wall_s: seconds since the epoch at session time 0.
            run: the run at the current position.
            seconds: the length of the recording.
            unfinished: the text for a run that has not ended at that position.
            begun: whether the run has begun at that position.
            name: what the user called the run; "" if nothing.
        """
        if isinstance(path, Path):
            self._name = path.name
        else:
            self._name = path
        self.file.setToolTip(plain_tip(str(path)))
        if run is None:
            what = "Session"
        elif run.workload == WATCH:
            what = given_name(run.workload, run.device, run.spec)
        else:
            what = f"{workload_title(run.workload)} · {run.device}"
        _write(self.what, name or what)
        self.badge.setVisible(run is not None and run.simulated)
        began = datetime.fromtimestamp(began_wall_s + (0.0 if run is None else run.began_s)).astimezone()
        parts = [
            *([what] if name else []),
            f"{began:%Y-%m-%d %H:%M:%S}",
            *_ending(run if begun else None, seconds, unfinished, known=run is not None),
        ]
        _write(self.label, " · ".join(parts))
        self.setAccessibleName(f"Recording {self._name}: {name or what}, {', '.join(parts)}")
        self._fit()

    def show_machine(self, name: str, state: str, product: str) -> None:
        """Show a machine's name, the state of its connection, and its product name."""
        self._name = product
        self.file.setToolTip(plain_tip(product))
        _write(self.what, name)
        _write(self.label, state)
        self.setAccessibleName(f"Machine {name}: {state}, {product}")
        self._fit()

    def resizeEvent(self, event: QResizeEvent) -> None:
        self._fit()

    def _fit(self) -> None:
        width = max(self.file.width(), FILE_LEAST_PX)
        _write(self.file, self.file.fontMetrics().elidedText(self._name, Qt.TextElideMode.ElideMiddle, width))


def workload_title(name: str) -> str:
    """A workload's title in the window."""
    known = workloads().get(name)
    if known is None:
        return name
    return known.title


def _ending(run: RunView | None, seconds: float, unfinished: str, *, known: bool) -> list[str]:
    if run is None or run.running:
        return [unfinished.lower() if known else "no run", format_duration(seconds)]
    parts = [ENDINGS.get(run.status, "ended")]
    if run.seconds is not None:
        parts.append(format_duration(run.seconds))
    if run.step:
        parts.append(f"{format_count(run.step)} step{'s' if run.step != 1 else ''}")
    return parts


def _write(label: QLabel, text: str) -> None:
    if label.text() != text:
        label.setText(text)
