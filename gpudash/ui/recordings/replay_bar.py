"""The bar that plays a recording: play and pause, how fast, and where in the recording."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from PySide6.QtCore import QSignalBlocker, Qt
from PySide6.QtGui import QFontMetrics
from PySide6.QtWidgets import QComboBox, QHBoxLayout, QPushButton, QSlider, QWidget

from gpudash.ui.plots.view import TimeView
from gpudash.ui.widgets.plain_text import PlainLabel, plain_tip

SPEEDS = (1, 2, 5, 10, 30, 60)
"""Seconds of the recording in one second."""

PARTS = 10_000
"""Places of the slider; QSlider holds C ints."""

PAGE_RATIO = 0.05
"""Share of the recording that Page Up and Page Down move by."""

ARROW_S = 1.0
"""Seconds that an arrow key moves by."""

LONGEST_STEP_S = 0.5
"""Most that one frame plays, in seconds at the wall: nothing is skipped behind another tab or in a window that hung."""


class Played(Protocol):
    """What the bar needs of a replay; times are in session time."""

    @property
    def extent_s(self) -> tuple[float, float]:
        """First and last moment of the recording."""

    @property
    def position_s(self) -> float:
        """The moment that is shown."""

    @property
    def at_end(self) -> bool:
        """Whether that is the end, which moves on while the file is written."""

    @property
    def following(self) -> bool:
        """Whether the file is still being written."""

    def seek(self, time_s: float | None) -> None:
        """Show another moment; ``None`` is the end."""


class ReplayBar(QWidget):
    """Moves the position of a replay.

    Args:
        played: the replay.
        view: its time axis, which follows the position while it is played.
        longest_window_s: width of the shown range that is played at most.
        clock: monotonic seconds; for tests.
    """

    def __init__(
        self,
        played: Played,
        view: TimeView,
        longest_window_s: float,
        parent: QWidget | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(parent)
        self._played = played
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
        self.play.setMinimumWidth(QFontMetrics(self.play.font()).horizontalAdvance("❚❚  Pause") + 34)
        self.speed = QComboBox()
        self.speed.setAccessibleName("Speed of playing")
        self.speed.setToolTip("Seconds of the recording in one second")
        self.speed.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        for speed in SPEEDS:
            self.speed.addItem(f"{speed}×", speed)
        self.slider = QSlider(Qt.Orientation.Horizontal)
        self.slider.setRange(0, PARTS)
        self.slider.setPageStep(round(PARTS * PAGE_RATIO))
        self.slider.setAccessibleName("Place in the recording")
        self.slider.setToolTip("Drag to any moment; the arrows move by a second, Page Up and Page Down by a twentieth")
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
        """Whether the newest reading of a file that is still being written is followed."""
        return self._played.following and self._played.at_end and self._view.following

    def toggle(self) -> None:
        """Play, or hold still."""
        if self.live:
            self._view.pause()
            self._played.seek(self._played.extent_s[1])
        elif self.playing:
            self.playing = False
        else:
            self._start()
        self.refresh()

    def _start(self) -> None:
        """Play from the position; from the left edge of the view when that is the end."""
        start_s, end_s = self._played.extent_s
        place_s = self._played.position_s
        if self._played.at_end or place_s >= end_s:
            left = self._view.range()[0]
            place_s = left if start_s < left < end_s else start_s
        if self._view.window_s > self._longest_window_s:
            self._view.set_window(self._longest_window_s)
        self._played.seek(place_s)
        self._view.set_now(place_s)
        self._view.follow()
        self.playing, self._wanted, self._last_s = True, None, self._clock()

    def go_to_end(self) -> None:
        """Show everything there is, and what is still being written."""
        self.playing, self._wanted = False, None
        self._played.seek(None)
        self._view.set_now(self._played.extent_s[1])
        self.refresh()

    def _end_clicked(self) -> None:
        self.go_to_end()
        if self._played.following:
            self._view.follow()
            self.refresh()

    def refresh(self) -> None:
        """Play on, and show the place; called at every frame."""
        now_s = self._clock()
        passed_s, self._last_s = min(now_s - self._last_s, LONGEST_STEP_S), now_s
        start_s, end_s = self._played.extent_s
        if self._wanted is not None:
            self._go_to(start_s + (end_s - start_s) * self._wanted / PARTS)
            self._wanted = None
        elif self.playing:
            self._go_to(self._played.position_s + passed_s * int(self.speed.currentData()))
        self._show()

    def _go_to(self, time_s: float) -> None:
        """Show the moment ``time_s``; a view that does not show it follows."""
        end_s = self._played.extent_s[1]
        if time_s >= end_s:
            self.playing = False
            self._played.seek(None)
        else:
            self._played.seek(time_s)
        left, right = self._view.range()
        self._view.set_now(min(time_s, end_s))
        if not left <= time_s <= right and not self._view.following:
            self._view.follow()

    def _scrubbed(self, place: int) -> None:
        """The user moved the slider; the next frame goes there."""
        self._wanted = place

    def _show(self) -> None:
        start_s, end_s = self._played.extent_s
        place_s = min(max(self._played.position_s, start_s), end_s)
        whole_s = max(end_s - start_s, 1e-9)
        if self._wanted is None and not self.slider.isSliderDown():
            with QSignalBlocker(self.slider):
                self.slider.setSingleStep(max(1, round(PARTS * min(1.0, ARROW_S / whole_s))))
                self.slider.setValue(round(PARTS * (place_s - start_s) / whole_s))
        words = f"{place_words(place_s - start_s)} / {place_words(end_s - start_s)}"
        if self.time.text() != words:
            self.time.setText(words)
            self.slider.setAccessibleDescription(words.replace("/", "of"))
            self._time_width = max(self._time_width, self.time.sizeHint().width())
            self.time.setMinimumWidth(self._time_width)
        running = self.playing or self.live
        _name(self.play, "❚❚  Pause" if running else "▶  Play", "Hold still" if running else "Play the recording")
        if self._played.following:
            _name(self.end, "●  Follow", "Show what is being written now (End)")
            self.end.setEnabled(not self.live)
        else:
            _name(self.end, "▶❘  To the end", "Show the end of the recording (End)")
            self.end.setEnabled(not self._played.at_end)
        self.play.setToolTip(plain_tip(f"{self.play.accessibleName()} (Space)"))


def _name(button: QPushButton, words: str, means: str) -> None:
    """Give a button other words, and say what it does."""
    if button.text() != words:
        button.setText(words)
        button.setAccessibleName(means.partition(" (")[0])
        button.setToolTip(plain_tip(means))


def place_words(seconds: float) -> str:
    """A moment of a recording: 0:04.2, 12:05.0, 1:02:03.4."""
    tenths = max(0, round(seconds * 10))
    whole, tenth = divmod(tenths, 10)
    hours, rest = divmod(whole, 3600)
    minutes, left = divmod(rest, 60)
    short = f"{left:02d}.{tenth}"
    return f"{hours}:{minutes:02d}:{short}" if hours else f"{minutes}:{short}"
