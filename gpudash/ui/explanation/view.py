"""Opening the explanation in a dashboard: what it is about, and what its buttons do there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QStackedWidget, QWidget

from gpudash.devices.names import Device
from gpudash.devices.simulated_cards import address_of
from gpudash.session.recordings.file_kinds import SNAPSHOT_NAME
from gpudash.session.source import DashboardSource
from gpudash.session.watching.request import WatchRequest
from gpudash.telemetry.explanation import Explanation, Remedy
from gpudash.telemetry.ranks.rows import failed_rank, places_of
from gpudash.telemetry.records import Event, MemoryExplained, RemediesFound, Topic
from gpudash.telemetry.runs import WATCH, RunView, run_of
from gpudash.ui.colours import Palette
from gpudash.ui.forms.workload_panel import WorkloadPanel

if TYPE_CHECKING:
    from gpudash.ui.explanation.header import RemediesView
    from gpudash.ui.explanation.page import ExplanationPage


TRIAL_S = 0.25
"""Between two looks at a run with a change, while it is on."""


class ExplanationView(QStackedWidget):
    """The parts of a dashboard, and in their place the explanation while it is looked at.

    Args:
        session: whose memory is explained.
        panel: where a remedy puts the run that it changes.
        parts: what there is to go back to.
        palette: colours at the start.

    Attributes:
        run_in_front: which run is to be explained where none is named; the newest, unless another is put here.

    Signals:
        start_requested: what the panel holds is to be run.
        reported: a passing message for the status line.
    """

    start_requested = Signal()
    reported = Signal(str)

    def __init__(self, session: DashboardSource, panel: WorkloadPanel, parts: QWidget, palette: Palette) -> None:
        super().__init__()
        self._session = session
        self._panel = panel
        self._palette = palette
        self._live = session.live is not None
        self.run_in_front: Callable[[], RunView | None] = self._newest_run
        self._explained: RunView | None = None
        self._trial_id: int | None = None
        self._trial_shown: tuple[bool, float] | None = None
        self.addWidget(parts)

    @cached_property
    def page(self) -> ExplanationPage:
        """The explanation; it is built when it is first asked for, for most sessions end without one."""
        from gpudash.ui.explanation.page import ExplanationPage

        page = ExplanationPage(self._session.store, self._palette)
        self.addWidget(page)
        page.closed.connect(self.close_page)
        page.applied.connect(self._apply_to_explained)
        page.stop_wanted.connect(self._stop)
        return page

    @property
    def open(self) -> bool:
        """Whether the explanation is in front."""
        return self.currentIndex() > 0

    @property
    def remedies(self) -> tuple[RemediesView, ...]:
        """Where remedies are shown; empty until something was explained."""
        if "page" in vars(self):
            return (self.page.header.remedies,)
        return ()

    def set_palette(self, palette: Palette) -> None:
        """Redraw in other colours."""
        self._palette = palette
        if "page" in vars(self):
            self.page.set_palette(palette)

    def refresh(self) -> None:
        """Draw what is new, while it is looked at."""
        if self.open:
            running = self._session.running
            self.page.header.remedies.setEnabled(not running)
            self._refresh_trial()
            self.page.program.change.set_startable(not running)
            self.page.refresh()

    def take(self, events: Iterable[Event]) -> None:
        """Learn of new events: an explanation that was asked for opens, remedies complete the one in front."""
        for event in events:
            if isinstance(event, MemoryExplained):
                if self._live:
                    self._show(event.explanation, self._newest_run())
            elif isinstance(event, RemediesFound) and self.open:
                self._show_run(self._explained)

    def _newest_run(self) -> RunView | None:
        with self._session.store.lock:
            return self._session.store.run

    def explain(self, run: RunView | None = None) -> None:
        """Open the explanation of an out-of-memory; while a run is on a GPU, ask where its memory is now.

        Args:
            run: which is to be explained; the one that is meant where none is given.
        """
        session = self._session
        if run is None:
            run = self.run_in_front()
        if run is not None and self._is_about(run):
            self._open_page()
        elif run is not None and run.running and run.device != "cpu" and session.live is not None:
            session.live.explain()
            self.reported.emit("The explanation opens at the end of this step.")
        elif not self._show_run(run):
            self.reported.emit("There is nothing to explain: no run on a GPU ran out of memory here.")

    def show_newest(self) -> bool:
        """Show the explanation of the newest run; false when it did not run out of a GPU's memory."""
        return self._show_run(self._newest_run())

    def _show_run(self, run: RunView | None) -> bool:
        if run is None or run.error is None or run.error.explanation is None:
            return False
        self._show(run.error.explanation, run)
        return True

    def _show(self, found: Explanation, run: RunView | None) -> None:
        session = self._session
        live = self._live
        if run is None:
            began_s = 0.0
        else:
            began_s = run.began_s
        device = device_of(found, session.devices())
        if device is None:
            uuid, name = (None, "")
        else:
            uuid, name = (device.uuid, device.name)
        searching = live and found.requested_bytes is not None and not found.remedies and not found.remedies_note
        rank = None
        if run is not None and places_of(run):
            rank = failed_rank(run)
        from gpudash.ui.explanation.own_program import own_program

        self._explained = run
        self._trial_id = None
        self._trial_shown = None
        self.page.show_explanation(
            found,
            began_s,
            uuid,
            commanding=live,
            searching=searching,
            rank=rank,
            allocator=name,
            program=own_program(run, found, live=live),
            snapshot=snapshot_of(run),
        )
        self._open_page()

    def _open_page(self) -> None:
        if not self.open:
            self.setCurrentWidget(self.page)
            self.page.owners.table.view.setFocus()
            self.refresh()

    def _is_about(self, run: RunView) -> bool:
        """Whether the page shows what became of a change in this run, and nothing else explains the run."""
        explained = run.error is not None and run.error.explanation is not None
        return run.run_id == self._trial_id and not explained

    def close_page(self) -> None:
        """Back to the plots."""
        self.setCurrentIndex(0)
        self.window().setFocus()

    def apply(self, run: RunView, remedy: Remedy) -> None:
        """Put a run into the form, with the change, and start it."""
        if self._session.running:
            return
        self.close_page()
        self._put_in_form(run, remedy)
        self.start_requested.emit()

    def _apply_to_explained(self, remedy: Remedy) -> None:
        """A program of the user's is run as it was, with the change; a run of ours by way of the form."""
        run = self._explained
        if run is None:
            return
        if run.workload != WATCH:
            self.apply(run, remedy)
        elif not self._session.running:
            self._try(run, remedy)

    def _try(self, run: RunView, remedy: Remedy) -> None:
        """Run a program with a change; what comes of it is shown beside the run that is explained."""
        live = self._session.live
        if live is None:
            return
        self._trial_shown = None
        self.page.put_forward(remedy)
        try:
            self._trial_id = live.watch(WatchRequest.from_spec(run.spec).with_remedy(remedy))
        except (ValueError, RuntimeError) as error:
            self.reported.emit(str(error))
            self.page.program.change.say(str(error))
            return
        self.refresh()

    def _refresh_trial(self) -> None:
        before = self._explained
        if self._trial_id is None or before is None:
            return
        store = self._session.store
        with store.lock:
            trial = run_of(store.runs, self._trial_id)
            newest_s = store.newest_s
        if trial is None or trial is before:
            return
        shown = self._trial_shown
        if shown is not None and shown[0] == trial.running and (not trial.running or newest_s < shown[1] + TRIAL_S):
            return
        self._trial_shown = trial.running, newest_s
        self.page.show_trial(before, trial)

    def _stop(self) -> None:
        live = self._session.live
        if live is not None:
            live.stop_run("Stop")

    def _put_in_form(self, run: RunView, remedy: Remedy) -> None:
        panel = self._panel
        row = panel.workload.findData(run.workload)
        if row >= 0:
            panel.workload.setCurrentIndex(row)
        panel.take_device(remedy.device or run.device)
        panel.change_fields({**run.spec, **remedy.fields})


def snapshot_of(run: RunView | None) -> Path | None:
    """The memory snapshot in the report of a run's out-of-memory; ``None`` where it lies no longer there."""
    if run is None:
        return None
    folders = [note.details.get("folder") for note in run.notes if note.topic == Topic.REPORT]
    if not folders or not isinstance(folders[-1], str):
        return None
    path = Path(folders[-1]) / SNAPSHOT_NAME
    if path.is_file():
        return path
    return None


def device_of(found: Explanation, devices: Sequence[Device]) -> Device | None:
    """The device that an explanation is about. A program's simulated card is called as the session's may be; its size
    tells which is meant.
    """
    called_so = [device for device in devices if address_of(device.name) == found.device]
    return next(
        (device for device in called_so if device.total_bytes == found.capacity_bytes), next(iter(called_so), None)
    )
