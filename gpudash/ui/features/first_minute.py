"""What a newcomer sees in the window of a live session: why there is no GPU.

While no GPU can be used, a strip above the status line shows the cause, what works now, and what to do next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from PySide6.QtCore import QObject, Qt, Signal
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QFrame, QGridLayout, QSizePolicy, QWidget

from gpudash.system.foreign_text import tab_separated
from gpudash.telemetry.records import Event, RunEnd
from gpudash.ui.widgets.focus_group import FocusGroup
from gpudash.ui.widgets.labels import discard, worded_button
from gpudash.ui.widgets.layouts import in_column, in_row
from gpudash.ui.widgets.plain_text import PlainLabel
from gpudash.ui.widgets.remembered import recall, remember
from gpudash.ui.window.menus import Command
from gpudash.ui.window.workspace import Workspace

_DISMISSED = "no_gpu_dismissed"
"""Key under which the sentence that was dismissed is remembered."""


def commands(workspace: Workspace) -> list[Command]:
    """Add the newcomer's hints to the window; there are no commands for them."""
    FirstMinute(workspace)
    return []


class FirstMinute(QObject):
    """Adds the strip to the live dashboard; does nothing for a recording.

    It is hidden during the demo and in presentation mode, to leave the room to the presenter.
    """

    def __init__(self, workspace: Workspace) -> None:
        super().__init__(workspace)
        self._workspace = workspace
        self._held = False
        session, dashboard = workspace.session.live, workspace.dashboard
        self.strip = NoGpuStrip(lambda: [] if session is None else session.machine.gpu_facts())
        self._dismissed = recall(_DISMISSED)
        self.strip.setParent(dashboard)
        if session is None:
            return
        dashboard.footer.hold(self.strip)
        self.strip.check_requested.connect(session.machine.check_gpus)
        self.strip.dismissed.connect(self._dismiss)
        dashboard.happened.connect(self.take)
        dashboard.refreshed.connect(self.refresh)
        workspace.changed.connect(self._hold)

    def _hold(self) -> None:
        """Hide during a presentation, show again afterwards."""
        held = self._workspace.playing_demo or self._workspace.presenting
        if held != self._held:
            self._held = held
            self.refresh()

    def refresh(self) -> None:
        """Show the current cause."""
        session = self._workspace.session
        devices = session.devices()
        there = any(device.kind == "cuda" and device.problem is None for device in devices)
        problem = None
        live = session.live
        simulates = live is not None and live.machine.simulated.given
        if not (there or self._held or simulates):
            problem = self._gpu_problem
        if problem is not None and problem == self._dismissed:
            problem = None
        simulated = any(device.kind == "sim" and device.problem is None for device in devices)
        self.strip.report(problem, simulated=simulated)

    def take(self, event: Event) -> None:
        """Handle an event: after a first run has ended, the strip counts as read."""
        if isinstance(event, RunEnd) and not self._workspace.playing_demo and self._gpu_problem is not None:
            self._dismiss(self._gpu_problem)  # the status line still shows it

    @property
    def _gpu_problem(self) -> str | None:
        live = self._workspace.session.live
        if live is None:
            return None
        return live.gpu_problem

    def _dismiss(self, problem: str) -> None:
        self._dismissed = problem
        remember(_DISMISSED, problem)


WORKS_NOW = "What works now: runs on the CPU, predictions for a card, snapshots and recordings."
WORKS_SIMULATED = (
    "What works now: runs on the CPU and on a simulated GPU, predictions for a card, snapshots and recordings."
)
SEARCHING = "Looking for a GPU…"

Facts = Sequence[tuple[str, str]]


class NoGpuStrip(QFrame):
    """Hidden until there is a problem to show.

    Args:
        facts: what the driver, its library and torch answered; called when the details are opened.

    Signals:
        check_requested: the driver should be queried again.
        dismissed: this sentence should not be shown again.
    """

    check_requested = Signal()
    dismissed = Signal(str)

    def __init__(self, facts: Callable[[], Facts]) -> None:
        super().__init__()
        self._facts = facts
        self._problem = ""
        self.setProperty("role", "banner")
        self.setProperty("level", "note")
        self.text = PlainLabel(wraps=True, selectable=True)
        self.text.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Preferred)
        self.text.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self.check = worded_button("Check again", "Ask the driver again, without a restart", self._check, tab_only=True)
        self.details = worded_button("Details", "What driver, library and torch answered", self._toggle, tab_only=True)
        self.details.setCheckable(True)
        self.close_button = worded_button(
            "×", "Do not show this again", self._dismiss, role="chip", name="Dismiss", tab_only=True
        )
        self._folded = QWidget()
        self._answers: list[QWidget] = []
        self._lay_out()
        self._folded.hide()
        self.hide()

    def _lay_out(self) -> None:
        row = in_row((self.text, 1), spacing=6)
        buttons = (self.check, self.details, self.close_button)
        for button in buttons:
            row.addWidget(button)
        FocusGroup(self, buttons)
        self._grid = QGridLayout()
        self._grid.setHorizontalSpacing(18)
        self._grid.setVerticalSpacing(2)
        copy = worded_button("Copy details", "Copy these details for a bug report", self._copy, tab_only=True)
        in_row(self._grid, 1, in_column(copy, 1), parent=self._folded, margins=(0, 0, 0, 0))
        in_column(row, self._folded, parent=self, margins=(14, 2, 10, 2), spacing=4)

    @property
    def problem(self) -> str:
        """The hint shown; "" for none."""
        return self._problem

    def report(self, problem: str | None, *, simulated: bool = False) -> None:
        """Show why there is no GPU and what works; ``None`` hides the strip.

        Args:
            problem: one sentence.
            simulated: whether a simulated GPU is available.
        """
        self._problem = problem or ""
        self.setVisible(problem is not None)
        if problem is None:
            return
        text = f"{problem} {WORKS_SIMULATED if simulated else WORKS_NOW}"
        if self.text.text() != text:
            self.text.setText(text)
            self.setAccessibleName(text)

    def _check(self) -> None:
        self.text.setText(SEARCHING)
        self.check_requested.emit()

    def _toggle(self) -> None:
        if self.details.isChecked():
            self._fill()
        self._folded.setVisible(self.details.isChecked())

    def _fill(self) -> None:
        discard(self._answers, self._grid)
        for row, (name, answer) in enumerate(self._facts()):
            for column, text in enumerate((name, answer)):
                label = PlainLabel(text, role="muted" if column == 0 else "", selectable=True)
                label.setFocusPolicy(Qt.FocusPolicy.NoFocus)
                self._grid.addWidget(label, row, column)
                self._answers.append(label)

    def _copy(self) -> None:
        lines = [("problem", self._problem), *self._facts()]
        QGuiApplication.clipboard().setText(tab_separated(lines))

    def _dismiss(self) -> None:
        problem = self._problem
        self.report(None)
        self.dismissed.emit(problem)
