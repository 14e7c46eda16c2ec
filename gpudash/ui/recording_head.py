"""The line above a recording: what ran, where, when, how it ended, and in which file that is."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from PySide6.QtCore import Qt
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QHBoxLayout, QLabel, QSizePolicy, QWidget

from gpudash.devices import SIMULATED
from gpudash.specs import workloads
from gpudash.telemetry.runs import RunView
from gpudash.ui.run_progress import ENDINGS
from gpudash.units import format_count, format_duration

FILE_LEAST_PX = 160
"""Room that the file's name has at least."""


class RecordingHead(QWidget):
    """One line."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.what, self.badge, self.words, self.file = QLabel(), QLabel(SIMULATED), QLabel(), QLabel()
        self.what.setProperty("role", "figure-small")
        self.badge.setProperty("role", "badge")
        self.badge.hide()
        row = QHBoxLayout(self)
        row.setContentsMargins(2, 2, 2, 0)
        row.setSpacing(10)
        for label in (self.what, self.badge, self.words, self.file):
            label.setTextFormat(Qt.TextFormat.PlainText)
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
        self.file.setToolTip(str(place))
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
