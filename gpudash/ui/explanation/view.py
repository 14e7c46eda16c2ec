"""Opening the explanation in a dashboard: which run it explains, and what its buttons do."""

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
from gpudash.ui.widgets.layouts import scrolled_both_ways

if TYPE_CHECKING:
    from gpudash.ui.explanation.header import RemediesView
    from gpudash.ui.explanation.page import ExplanationPage


TRIAL_S = 0.25
"""Seconds between updates of a run with a change."""


class ExplanationView(QStackedWidget):
    """The parts of a dashboard, replaced by the explanation while that is open.

    Args:
        session: session whose memory is explained.
        panel: panel that a remedy fills with the changed run.
        parts: widgets to return to.
        palette: colours at the start.

    Attributes:
        run_in_front: returns the run to explain if none is given; by default the newest.

    Signals:
        start_requested: run what the panel holds.
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
        """The explanation page, created on first access: most sessions never need it."""
        from gpudash.ui.explanation.page import ExplanationPage

        page = ExplanationPage(self._session.store, self._palette)
        self.addWidget(scrolled_both_ways(page, "Explanation"))
        page.closed.connect(self.close_page)
        page.applied.connect(self._apply_to_explained)
        page.stop_wanted.connect(self._stop)
        return page

    @property
    def open(self) -> bool:
        """Whether the explanation is shown."""
        return self.currentIndex() > 0

    @property
    def remedies(self) -> tuple[RemediesView, ...]:
        """The views of remedies; empty until something was explained."""
        if "page" in vars(self):
            return (self.page.header.remedies,)
        return ()

    def set_palette(self, palette: Palette) -> None:
        """Redraw in other colours."""
        self._palette = palette
        if "page" in vars(self):
            self.page.set_palette(palette)

    def refresh(self) -> None:
        """Draw what is new while the explanation is shown."""
        if self.open:
            running = self._session.running
            self.page.header.remedies.setEnabled(not running)
            self._refresh_trial()
            self.page.program.change.set_startable(not running)
            self.page.refresh()

    def take(self, events: Iterable[Event]) -> None:
        """Handle new events: open an explanation that was requested, and add remedies to the one shown."""
        for event in events:
            if isinstance(event, MemoryExplained):
                if self._live:
                    self._show(event.explanation, self._newest_run())
            elif isinstance(event, RemediesFound) and self.open:
                self._show_run(self._explained)

    def _newest_run(self) -> RunView | None:
        with self._session.store.lock:
            return self._session.store.run

    def _newest_explained(self) -> RunView | None:
        with self._session.store.lock:
            runs = list(self._session.store.runs)
        explained = (run for run in reversed(runs) if run.error is not None and run.error.explanation is not None)
        return next(explained, None)

    def _number_of_other(self, run: RunView | None) -> int | None:
        """The number of a run in the session, counted from 1, if another one is in front."""
        if run is None or run is self.run_in_front():
            return None
        with self._session.store.lock:
            runs = list(self._session.store.runs)
        return next((number for number, other in enumerate(runs, 1) if other is run), None)

    def explain(self, run: RunView | None = None) -> None:
        """Open the explanation of an out-of-memory; during a run on a GPU, request one of its current memory.

        Args:
            run: run to explain; by default `run_in_front`, or if that did not run out of memory, the last that did.
        """
        session = self._session
        if run is None:
            run = self.run_in_front()
        if run is not None and self._is_about(run):
            self._open_page()
        elif run is not None and run.running and run.device != "cpu" and session.live is not None:
            session.live.explain()
            self.reported.emit("The explanation opens at the end of this step.")
        elif not self._show_run(run) and not self._show_run(self._newest_explained()):
            self.reported.emit("There is nothing to explain: no run on a GPU ran out of memory here.")

    def show_newest(self) -> bool:
        """Show the explanation of the newest run; return false if it did not run out of GPU memory."""
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
            number=self._number_of_other(run),
            rank=rank,
            allocator=name,
            program=own_program(run, found, live=live),
            snapshot=snapshot_of(run),
        )
        self._open_page()

    def _open_page(self) -> None:
        if not self.open:
            self.setCurrentIndex(1)  # behind the parts
            self.page.owners.table.view.setFocus()
            self.refresh()

    def _is_about(self, run: RunView) -> bool:
        """Whether the page shows this run as the trial of a change; not if the run has an explanation of its own."""
        explained = run.error is not None and run.error.explanation is not None
        return run.run_id == self._trial_id and not explained

    def close_page(self) -> None:
        """Return to the plots."""
        self.setCurrentIndex(0)
        self.window().setFocus()

    def apply(self, run: RunView, remedy: Remedy) -> None:
        """Fill the form with a run and a change, and start it."""
        if self._session.running:
            return
        self.close_page()
        self._put_in_form(run, remedy)
        self.start_requested.emit()

    def _apply_to_explained(self, remedy: Remedy) -> None:
        """Run the user's program again with the change; a built-in workload goes through the form."""
        run = self._explained
        if run is None:
            return
        if run.workload != WATCH:
            self.apply(run, remedy)
        elif not self._session.running:
            self._try(run, remedy)

    def _try(self, run: RunView, remedy: Remedy) -> None:
        """Run a program with a change, and show the result beside the run that is explained."""
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
    """The memory snapshot in the report of a run's out-of-memory; ``None`` if it is no longer there."""
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
    """The device that an explanation is about. A program's simulated card may have the same name as the session's; the
    size of its memory distinguishes them.
    """
    called_so = [device for device in devices if address_of(device.name) == found.device]
    return next(
        (device for device in called_so if device.total_bytes == found.capacity_bytes), next(iter(called_so), None)
    )
