"""A recording in a tab: a line with what ran, where and how it ended, the dashboard, and the playback bar."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QKeyEvent
from PySide6.QtWidgets import QWidget

from gpudash.session.recordings.run_names import process_text
from gpudash.system.settings import Settings
from gpudash.telemetry.recording.recorder import RecordingError
from gpudash.telemetry.runs import RunView
from gpudash.ui.colours import Palette
from gpudash.ui.dashboard.dashboard import Dashboard
from gpudash.ui.dashboard.document import FileDocument
from gpudash.ui.dashboard.plots_page import SLOW_REFRESH
from gpudash.ui.dashboard.result_page import ResultPage
from gpudash.ui.dashboard.tabs.lower_tabs import LowerTabs
from gpudash.ui.forms.attached_page import PID
from gpudash.ui.forms.script_form import ScriptForm
from gpudash.ui.forms.workload_panel import WorkloadPanel
from gpudash.ui.recordings.head import RecordingHead
from gpudash.ui.recordings.replay_bar import ReplayBar
from gpudash.ui.widgets.focus_group import shortcut_within
from gpudash.ui.widgets.labels import worded_button
from gpudash.ui.widgets.notice import Notice
from gpudash.ui.widgets.opening_page import OpeningPage

if TYPE_CHECKING:
    from gpudash.session import Replay
    from gpudash.session.recordings.opener import OpenedRecording, OpenedReplay

SLICES_S = 0.004
"""Seconds of a frame after which no other slice of building a dashboard begins."""

_BUILT = object()
"""What is next after the last slice."""

READ_ADVICE = "The file is only read, never changed. No data leaves this computer."


class RecordingDocument(FileDocument):
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
        super().__init__(file.title, "Recording", OpeningPage(file.title, READ_ADVICE))
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
        self.run_again = worded_button(
            "↻  Run again", "Put these values into the live dashboard, ready to start", self._again, role="primary"
        )
        self.run_again.setMinimumHeight(32)
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
        begun, run = self._run(replay, dashboard)
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
            if replay.show_output(run.run_id):
                dashboard.tabs.output.begin(process_text(run), elsewhere=PID in run.spec)
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
        assert self.replay is not None and self.dashboard is not None
        _begun, run = self._run(self.replay, self.dashboard)
        if run is not None:
            self.again.emit(run)

    @staticmethod
    def _run(replay: Replay, dashboard: Dashboard) -> tuple[bool, RunView | None]:
        """Whether a run has begun at the current position, and the one in view, else the last of them; before the first
        run, the first one."""
        run = dashboard.runs.in_front()
        with replay.store.lock:
            whole = replay.store.end.runs
            return run is not None or not whole, run if run is not None or not whole else whole[0]

    def set_palette(self, palette: Palette) -> None:
        self._palette = palette
        super().set_palette(palette)

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
