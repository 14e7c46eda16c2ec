"""The line at the bottom: the recording, the sampling rate and its cost, the versions of driver and torch."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence

from PySide6.QtCore import QEvent, Qt, QTimer, Signal
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QSizePolicy, QWidget

from gpudash.session import Status
from gpudash.ui.widgets.layouts import in_row
from gpudash.ui.widgets.plain_text import PlainLabel, plain_tip
from gpudash.units import format_bytes

MESSAGE_SHOWN_MS = 5000
"""Milliseconds for which a passing message is shown."""

LEFT_LEAST_PX = 240
"""Minimum width of the left side, which shows the state of the recording; logical pixels."""

GAP_PX = 16
MARGIN_PX = 12
_BETWEEN = "   "


WATCHED_S, LATE_SHARE = 10.0, 0.2
"""Seconds over which missed readings are counted, and the share of missed ones that is worth reporting."""

LATE_TEXT = "readings come late, the machine is busy"


class StatusLine(QWidget):
    """The session at the left, the machine at the right. If room is short, the left side is abbreviated.

    Args:
        clock: monotonic seconds.

    Signals:
        message_changed: a passing message appeared or disappeared.
    """

    message_changed = Signal()

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._missed: deque[tuple[float, int]] = deque()
        self._left = PlainLabel(role="muted", selectable=True)
        self._right = PlainLabel(role="muted", selectable=True)
        for label, side in ((self._left, Qt.AlignmentFlag.AlignLeft), (self._right, Qt.AlignmentFlag.AlignRight)):
            label.setAlignment(side | Qt.AlignmentFlag.AlignVCenter)
            label.setFocusPolicy(Qt.FocusPolicy.NoFocus)
            label.setMinimumWidth(1)
        self._left.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
        self._right.setSizePolicy(QSizePolicy.Policy.Maximum, QSizePolicy.Policy.Preferred)
        in_row((self._left, 1), self._right, parent=self, margins=(MARGIN_PX, 3, MARGIN_PX, 3), spacing=GAP_PX)
        self._versions: Sequence[str] = ("",)
        self._machine = ""
        self._message = ""
        self._forget = QTimer(self, singleShot=True, interval=MESSAGE_SHOWN_MS)
        self._forget.timeout.connect(lambda: self.report(""))

    def report(self, text: str) -> None:
        """Show ``text`` at the left for a while, such as "Copied 312 rows"."""
        self._message = text
        if text:
            self._forget.start()
        self._fit()
        self.message_changed.emit()

    @property
    def has_message(self) -> bool:
        """Whether a passing message is shown."""
        return bool(self._message)

    def show_status(
        self,
        status: Status | None,
        origin: str,
        gpu_problem: str | None,
        loading: str,
        simulated: Sequence[str] = (),
    ) -> None:
        """Show the state of the session.

        Args:
            status: ``None`` for a recording.
            origin: what is shown, if it is not this session; how far its view is behind stands above the plots.
            gpu_problem: why no GPU can be used.
            loading: what is still being loaded, or "".
            simulated: names of the simulated GPUs; with some, why there is no other is left to the tooltip.
        """
        if status is None:
            missing = 0.0
        else:
            missing = self._missing_share(status)
        late = missing > LATE_SHARE
        versions = (origin,) if status is None else _session_versions(status, origin, late=late)
        parts = []
        if status and status.driver:
            parts.append(f"NVML {status.driver}")
        if simulated:
            parts.append(_simulated_text(simulated))
        elif gpu_problem:
            parts.append(gpu_problem.rstrip("."))
        if loading:
            parts.append(loading)
        elif status and status.torch:
            parts.append(status.torch)
        machine = " · ".join(parts)
        if (versions, machine) != (self._versions, self._machine):
            self._versions, self._machine = versions, machine
            self._fit()
        place = ""
        if status is not None and status.recording is not None:
            place = str(status.recording)
        self._left.setToolTip(plain_tip("\n".join(filter(None, (versions[0], place, missed_text(missing) * late)))))
        self._right.setToolTip(plain_tip("\n".join(filter(None, (machine, gpu_problem)) if simulated else (machine,))))

    def _missing_share(self, status: Status) -> float:
        """The share of recent readings that were missed; 0 until it can be computed."""
        now = self._clock()
        self._missed.append((now, status.missed))
        while now - self._missed[0][0] > WATCHED_S:
            self._missed.popleft()
        since, before = self._missed[0]
        due = status.rate_hz * (now - since)
        if now - since > WATCHED_S / 2 and due > 0:
            return (status.missed - before) / due
        return 0.0

    def resizeEvent(self, event: QResizeEvent) -> None:
        self._fit()

    def changeEvent(self, event: QEvent) -> None:
        super().changeEvent(event)
        if event.type() in (QEvent.Type.FontChange, QEvent.Type.StyleChange):
            self._fit()

    def _fit(self) -> None:
        """Give the right side what it needs, and the left the longest of its versions that fits."""
        metrics = self._left.fontMetrics()
        room = max(0, self.width() - 2 * MARGIN_PX - GAP_PX)
        right = metrics.elidedText(self._machine, Qt.TextElideMode.ElideRight, max(0, room - LEFT_LEAST_PX))
        width = metrics.horizontalAdvance(right) + 2
        versions = (self._message,) if self._message else self._versions
        fitting = (text for text in versions if metrics.horizontalAdvance(text) <= room - width)
        left = next(fitting, None) or metrics.elidedText(versions[-1], Qt.TextElideMode.ElideRight, room - width)
        for label, text in ((self._left, left), (self._right, right)):
            label.setText(text)


_SHARES = ((0.9, "Nearly every"), (0.42, "About every second"), (0.29, "About every third"))
"""Minimum share of missing readings → how it is worded."""


def missed_text(share: float) -> str:
    """A sentence about the ``share`` of recent readings, 0 to 1, that is missing."""
    each = next((text for least, text in _SHARES if share >= least), "About every fourth")
    return f"{each} reading of the last {WATCHED_S:.0f} s is missing; where several are, curves have a gap."


def _simulated_text(names: Sequence[str]) -> str:
    """Simulated GPUs: "simulating RTX 4060", "simulating 2 × RTX 4060, L4"."""
    parts = [f"{count} × {name}" for name, count in Counter(names).items()]
    return f"simulating {', '.join(part.removeprefix('1 × ') for part in parts)}"


def _session_versions(status: Status, origin: str, *, late: bool) -> tuple[str, ...]:
    """The state of the session in words, from the longest version to the shortest."""
    rate = f"sampling {status.rate_hz:g} Hz"
    if late:
        rate = f"{rate} · {LATE_TEXT}"
    whole = f"{rate} · {status.own_cpu_ratio * 100:.1f} % of one core"
    if status.recording is None:
        recording = ("not recording",) * 2
    else:
        size = format_bytes(status.recording_bytes)
        recording = (f"● recording {status.recording.name}  {size}", f"● recording  {size}")
    shown = list(filter(None, (origin,)))
    return (
        _BETWEEN.join((*shown, recording[0], whole)),
        _BETWEEN.join((*shown, recording[1], whole)),
        _BETWEEN.join((*shown, recording[1], rate)),
        _BETWEEN.join((*shown, recording[1])),
    )
