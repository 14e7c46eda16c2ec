"""What a newcomer is told in a window over a live session: why there is no GPU, what to try after the first run, and
in empty tables how to fill them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from gpudash.session import Replay
from gpudash.session.samples import sample
from gpudash.settings import save_settings
from gpudash.specs import DEFAULT_WORKLOAD
from gpudash.telemetry.records import Event, Marker, OutOfMemory, RunFailed, RunFinished
from gpudash.ui.hints import Hints
from gpudash.ui.library import open_library
from gpudash.ui.no_gpu_strip import NoGpuStrip
from gpudash.ui.remembered import recall, remember
from gpudash.ui.tool_commands import PRESENTATION

if TYPE_CHECKING:
    from gpudash.ui.main_window import MainWindow

DEMO_SAMPLE = "healthy-training"

_DISMISSED, _LEARNED = "no_gpu_dismissed", "hints_learned"
"""Under what is remembered which sentence is not to be told again, and what has been tried."""


class FirstMinute:
    """Puts the strip and the hints into the live dashboard; does nothing over a recording.

    Args:
        window: whose commands are whole.
    """

    def __init__(self, window: MainWindow) -> None:
        self._window = window
        self._demo_on = self._presenting = False
        self._ran = False
        session, dashboard = window.session, window.dashboard
        self.strip = NoGpuStrip(lambda: [] if isinstance(session, Replay) else session.gpu_facts())
        kept = recall(_LEARNED)
        self.hints = Hints(kept if isinstance(kept, list) else ())
        self._dismissed = recall(_DISMISSED)
        self.strip.setParent(dashboard)
        self.hints.setParent(dashboard)
        if isinstance(session, Replay):
            return
        dashboard.rows.insertWidget(0, self.strip)
        dashboard.rows.insertWidget(dashboard.rows.count() - 1, self.hints)
        self.strip.demo_requested.connect(self._open_demo_recording)
        self.strip.prediction_requested.connect(self._predict)
        self.strip.check_requested.connect(session.check_gpus)
        self.strip.dismissed.connect(self._dismiss)
        self.hints.learned.connect(lambda _name: self._keep_learned())
        self.hints.refused.connect(self._refuse)
        dashboard.happened.connect(self.take)
        dashboard.refreshed.connect(self.refresh)
        dashboard.view.selection_changed.connect(self._selection_changed)
        dashboard.view.changed.connect(self._view_changed)
        window.commands.actions[PRESENTATION].toggled.connect(self._present)
        for table in (dashboard.tabs.stages, dashboard.tabs.result, dashboard.tabs.epochs):
            table.add_offer("Start a run   F5", "Run what the panel at the left holds", window.start_run)
            table.add_offer("Recorded runs   Ctrl+Shift+O", "Look at a run of before", partial(open_library, window))

    def hold(self, held: bool) -> None:
        """Say nothing while the demo is on, or go on; what a presenter shows has the room."""
        self._demo_on = held
        self.refresh()
        self._offer_hints()

    def _present(self, presenting: bool) -> None:
        self._presenting = presenting
        self.refresh()
        self._offer_hints()

    @property
    def _held(self) -> bool:
        return self._demo_on or self._presenting

    def refresh(self) -> None:
        """Tell what is the case now."""
        session = self._window.session
        devices = session.devices()
        there = any(device.kind == "cuda" and device.problem is None for device in devices)
        problem = None if there or self._held else session.gpu_problem
        if problem is not None and problem == self._dismissed:
            problem = None
        simulated = any(device.kind == "sim" and device.problem is None for device in devices)
        self.strip.tell(problem, simulated=simulated)

    def take(self, event: Event) -> None:
        """Learn of an event: a first run has ended, or something was marked."""
        if isinstance(event, RunFinished | RunFailed | OutOfMemory) and not self._demo_on:
            self._ran = True
            self._offer_hints()
        elif isinstance(event, Marker) and event.category == "user":
            self.hints.take("mark")

    def _offer_hints(self) -> None:
        self.hints.offer(self._ran and not self._held and self._window.session.settings.hints)

    def _selection_changed(self) -> None:
        if self._window.view.selection is not None:
            self.hints.take("measure")

    def _view_changed(self) -> None:
        if not self._window.view.following:
            self.hints.take("pause")

    def _keep_learned(self) -> None:
        kept = recall(_LEARNED)
        before = kept if isinstance(kept, list) else []
        learned = [name for name in ("measure", "pause", "mark") if name not in self.hints.open]
        remember(_LEARNED, sorted({*before, *learned}, key=str))

    def _dismiss(self, problem: str) -> None:
        self._dismissed = problem
        remember(_DISMISSED, problem)

    def _refuse(self) -> None:
        settings = self._window.session.settings.model_copy(update={"hints": False})
        if self._window.commands.attempt(lambda: save_settings({"hints": False})):
            self._window.session.set_settings(settings)

    def _open_demo_recording(self) -> None:
        found = sample(DEMO_SAMPLE)
        if found is None:
            self._window.documents.notice.tell("This installation has no demo recordings; reinstall gpudash.")
        else:
            self._window.opening.open(found.path)

    def _predict(self) -> None:
        """Show in the panel what the default workload would need on the simulated GPU, or on the CPU."""
        window, panel = self._window, self._window.panel
        window.documents.show_dashboard()
        window.commands.actions["Workload Panel"].setChecked(True)
        panel.setVisible(True)
        if panel.watching:
            panel.workload.setCurrentIndex(panel.workload.findData(DEFAULT_WORKLOAD))
        simulated = (device.name for device in window.session.devices() if device.simulated and device.problem is None)
        panel.take_device(next(simulated, "cpu"))
        panel.fit.open_details()
