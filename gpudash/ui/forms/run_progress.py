"""The progress of a run: a bar, and below it the result of the last step."""

from __future__ import annotations

import math
from collections.abc import Callable

from PySide6.QtWidgets import QProgressBar, QWidget

from gpudash.devices.names import SIMULATED
from gpudash.memory.watching.growth import Forecast
from gpudash.memory.watching.watch import run_left
from gpudash.session.watching.program import StopProgress
from gpudash.specs import ComparisonSpec
from gpudash.telemetry.ranks.rows import ranks_text
from gpudash.telemetry.results.outcome import stop_text
from gpudash.telemetry.runs import ENDINGS, WATCH, RunView, item_of
from gpudash.ui.forms.attached_page import PID
from gpudash.ui.widgets.layouts import in_column
from gpudash.ui.widgets.plain_text import PlainLabel
from gpudash.units import format_count, format_left, format_percent, format_throughput

LEFT = "No longer watched; it keeps running"
"""Text for a process that was already running and is no longer watched."""


def asks_nothing(run: RunView) -> bool:
    """Whether a process that was already running is watched from outside only, and cannot take a snapshot."""
    return PID in run.spec and all(note.details.get("way", "outside") == "outside" for note in run.notes)


READY = "Ready"

FINEST = 10_000
"""Resolution of the bar: QProgressBar uses C ints, and a run may have more steps than these can hold."""


def stop_progress(stop: StopProgress) -> str:
    """How long a program has been waited for since it was sent a signal, and what comes next."""
    sent = f"{stop.sent} sent to {stop.program} {format_left(stop.waited_s)} ago"
    if not stop.next:
        return f"{sent}; the system ends it as soon as it can."
    if stop.left_s is not None:
        return f"{sent}. {stop.deadline}"
    if stop.next == "SIGTERM":
        return f"{sent}; it may take as long as it needs.\nTerminate sends SIGTERM, then Kill SIGKILL."
    return f"{sent}.\nKill sends SIGKILL: what it has not saved is lost."


class RunProgress(QWidget):
    """Shows the current run, or how the last one ended.

    Attributes:
        unfinished: text for a run that is neither going on nor ended.
        idle: text without a run.
    """

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.unfinished = "Ended"
        self.idle = READY
        self.bar = QProgressBar()
        self.bar.setTextVisible(False)
        self.bar.setFixedHeight(8)
        self.bar.setAccessibleName("Progress of the run")
        self.label = PlainLabel(READY, role="muted", wraps=True)
        in_column(self.bar, self.label, parent=self, margins=(0, 0, 0, 0), spacing=8)

    def say(self, text: str) -> None:
        """Show ``text`` below the bar."""
        if self.label.text() != text:
            self.label.setText(text)

    def show_run(
        self, run: RunView | None, running: bool, loading: str, stopping: bool, ahead: Forecast | None = None
    ) -> None:
        """Show progress; the text stays while the run is being stopped.

        Args:
            run: the current or last run.
            running: whether it is going on.
            loading: what has to load before the first step, or "".
            stopping: whether it was asked to stop.
            ahead: forecast for the memory of its device; if that is full before the run ends, the time left is shown.
        """
        begins = running and (run is None or not run.running)  # do not show the last run's figures for this one
        # Without a run, an empty bar says nothing.
        self.bar.setVisible(begins or (run is not None and run.workload != WATCH))
        if begins or (running and run is not None and run.workload != WATCH and run.steps == 0):
            self._set(0, 0)
            if not stopping:
                self.say(loading or "Preparing…")
            return
        if run is None:
            self._set(0, 1)
            self.say(loading or self.idle)
            return
        self._set(run.step, max(run.steps, 1))
        if not stopping:
            self.say(_progress_text(run, running, self.unfinished, ahead))

    def _set(self, value: int, maximum: int) -> None:
        if maximum > FINEST:
            value, maximum = round(value / maximum * FINEST), FINEST
        self.bar.setRange(0, maximum)
        self.bar.setValue(value)


def _progress_text(run: RunView, running: bool, unfinished: str, ahead: Forecast | None) -> str:
    parts = []
    if run.simulated:
        parts = [SIMULATED]
    if not running and run.status == "cancelled" and PID in run.spec:
        parts.append(LEFT)
    elif not running:
        parts.append(ENDINGS.get(run.status, unfinished).capitalize())
    elif run.workload == WATCH:
        parts.append("Running")
    if run.workload == WATCH:
        if run.step:
            parts.append(f"step {format_count(run.step)}")
    elif run.steps:
        compared = run.workload == ComparisonSpec.name
        about = ""
        if compared and running:
            about = "about "
        parts.append(
            f"{'repetition' if compared else 'step'} {format_count(run.step)} of {about}{format_count(run.steps)}"
        )
    parts += filter(None, (ranks_text(run), run_left(run, ahead)))
    lines = [" · ".join(parts), *_figure_lines(run, running)]
    if not running:
        lines.append(stop_text(run.result))
    return "\n".join(filter(None, lines))


def _figure_lines(run: RunView, running: bool) -> list[str]:
    """Loss, accuracy and speed; the mean speed of a whole run, too long to end their line, has one of its own."""
    figures = [
        write(metric.last) for name, write in _METRICS if (metric := run.metrics.get(name)) is not None and metric.count
    ]
    pace = _pace_text(run, running)
    if running and pace:
        return [" · ".join([*figures, pace])]
    return [" · ".join(figures), pace]


def _pace_text(run: RunView, running: bool) -> str:
    """The speed of a run. After its end, the average from its result, because the last step alone says little; "" for
    a run that ended badly."""
    whole, metric = run.result.get("items_per_second"), run.metrics.get("throughput")
    if not running and isinstance(whole, int | float):
        return f"mean {format_throughput(whole, item_of(run.workload))}"
    if metric is None or not metric.count or run.error is not None:
        return ""
    return f"last {format_throughput(metric.last, item_of(run.workload))}"


def _loss_text(loss: float) -> str:
    if math.isnan(loss):
        return "loss NaN"
    if math.isfinite(loss):
        return f"loss {loss:.3f}"
    return "loss infinite"


_METRICS: tuple[tuple[str, Callable[[float], str]], ...] = (
    ("loss", _loss_text),
    ("accuracy", lambda ratio: f"accuracy {format_percent(ratio)}"),
)
