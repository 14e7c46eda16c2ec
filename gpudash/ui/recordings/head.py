"""The line above a recording's dashboard: what ran, where and how it ended."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from PySide6.QtCore import Qt
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QSizePolicy, QWidget

from gpudash.devices.names import SIMULATED
from gpudash.session.recordings.run_names import given_name
from gpudash.specs import workloads
from gpudash.telemetry.runs import ENDINGS, WATCH, RunView
from gpudash.ui.widgets.layouts import in_row
from gpudash.ui.widgets.plain_text import PlainLabel, plain_tip
from gpudash.units import format_count, format_duration

FILE_LEAST_PX = 160
"""Minimum width for the file's name."""


class RecordingHead(QWidget):
    """The line above a recording: what ran, where and how it ended."""

    def __init__(self) -> None:
        super().__init__()
        self.what = PlainLabel(role="figure-small", selectable=True)
        self.badge = PlainLabel(SIMULATED, role="badge", selectable=True)
        self.label = PlainLabel(role="muted", selectable=True)
        self.file = PlainLabel(role="muted", selectable=True)
        self.badge.hide()
        for label in (self.what, self.badge, self.label, self.file):
            label.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self.file.setAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
        # The name uses the room that is left and requests none.
        self.file.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
        self.file.setMinimumWidth(FILE_LEAST_PX)
        in_row(self.what, self.badge, self.label, (self.file, 1), parent=self, margins=(2, 2, 2, 0), spacing=10)
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
        self.what.setText(name or what)
        self.badge.setVisible(run is not None and run.simulated)
        began = datetime.fromtimestamp(began_wall_s + (0.0 if run is None else run.began_s)).astimezone()
        parts = [
            *([what] if name else []),
            f"{began:%Y-%m-%d %H:%M:%S}",
            *_ending(run if begun else None, seconds, unfinished, known=run is not None),
        ]
        self.label.setText(" · ".join(parts))
        self.setAccessibleName(f"Recording {self._name}: {name or what}, {', '.join(parts)}")
        self._fit()

    def show_machine(self, name: str, state: str, product: str) -> None:
        """Show a machine's name, the state of its connection, and its product name."""
        self._name = product
        self.file.setToolTip(plain_tip(product))
        self.what.setText(name)
        self.label.setText(state)
        self.setAccessibleName(f"Machine {name}: {state}, {product}")
        self._fit()

    def resizeEvent(self, event: QResizeEvent) -> None:
        self._fit()

    def _fit(self) -> None:
        width = max(self.file.width(), FILE_LEAST_PX)
        self.file.setText(self.file.fontMetrics().elidedText(self._name, Qt.TextElideMode.ElideMiddle, width))


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
