"""The bar below a recording's dashboard: it plays the recording and moves through it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from PySide6.QtCore import QSignalBlocker, Qt
from PySide6.QtGui import QFontMetrics
from PySide6.QtWidgets import QPushButton, QSlider, QWidget

from gpudash.ui.plots.view import TimeView
from gpudash.ui.widgets.fields import ChoiceField
from gpudash.ui.widgets.labels import worded_button
from gpudash.ui.widgets.layouts import in_row
from gpudash.ui.widgets.plain_text import PlainLabel, plain_tip

if TYPE_CHECKING:
    from gpudash.session import Replay

SPEEDS = (1, 2, 5, 10, 30, 60)
"""Playback speeds: seconds of the recording per second."""

PARTS = 10_000
"""Positions of the slider; QSlider uses C ints."""

PAGE_RATIO = 0.05
"""Share of the recording that Page Up and Page Down skip."""

ARROW_S = 1.0
"""Seconds that an arrow key skips."""

LONGEST_STEP_S = 0.5
"""Maximum wall-clock seconds that one frame plays: nothing is skipped while the tab is hidden or the window hangs."""


class ReplayBar(QWidget):
    """Moves the position of a replay.

    Args:
        replay: the replay to play.
        view: its time axis, which follows the position during playback.
        longest_window_s: the maximum width of the shown range during playback.
        clock: monotonic seconds; for tests.
    """

    def __init__(
        self,
        replay: Replay,
        view: TimeView,
        longest_window_s: float,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._replay = replay
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
        self.play = worded_button("", "", self.toggle, tab_only=True)
        # Wide enough for both texts, so that nothing moves when it changes.
        self.play.setMinimumWidth(QFontMetrics(self.play.font()).horizontalAdvance("❚❚  Pause") + 34)
        speeds = [(f"{speed}×", speed) for speed in SPEEDS]
        self.speed = ChoiceField("Playback speed", "Seconds of the recording per second", speeds)
        self.speed.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.slider = QSlider(Qt.Orientation.Horizontal)
        self.slider.setRange(0, PARTS)
        self.slider.setPageStep(round(PARTS * PAGE_RATIO))
        self.slider.setAccessibleName("Position in the recording")
        self.slider.setToolTip("Drag to any moment; arrow keys move by a second, Page Up and Page Down by a twentieth")
        self.slider.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.slider.valueChanged.connect(self._scrubbed)
        self.time = PlainLabel()
        self.time.setAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
        self.end = worded_button("", "", self._end_clicked, tab_only=True)
        parts = (self.play, self.speed, (self.slider, 1), self.time, self.end)
        in_row(*parts, parent=self, margins=(0, 0, 0, 0), spacing=8)

    @property
    def live(self) -> bool:
        """Whether the newest reading is followed, in a file that is still being written."""
        return self._replay.following and self._replay.at_end and self._view.following

    def toggle(self) -> None:
        """Play or pause."""
        # Pausing a live recording freezes the view; the recording goes on.
        if self.live:
            self._view.pause()
            self._replay.seek(self._replay.extent_s[1])
        elif self.playing:
            self.playing = False
        else:
            self._start()
        self.refresh()

    def _start(self) -> None:
        """Play from the position; if that is the end, from the left edge of the view."""
        start_s, end_s = self._replay.extent_s
        place_s = self._replay.position_s
        # There is nothing to play after the end: replay what is in view.
        if self._replay.at_end or place_s >= end_s:
            left = self._view.range()[0]
            if start_s < left < end_s:
                place_s = left
            else:
                place_s = start_s
        # In a view of hours the position would hardly appear to move.
        if self._view.window_s > self._longest_window_s:
            self._view.set_window(self._longest_window_s)
        self._replay.seek(place_s)
        self._view.set_now(place_s)
        self._view.follow()
        # Count from now: the time since the last frame is not played.
        self.playing, self._wanted, self._last_s = True, None, self._clock()

    def go_to_end(self) -> None:
        """Show everything up to the end, and what is still being written."""
        self.playing, self._wanted = False, None
        self._replay.seek(None)
        self._view.set_now(self._replay.extent_s[1])
        self.refresh()

    def _end_clicked(self) -> None:
        self.go_to_end()
        if self._replay.following:
            self._view.follow()
            self.refresh()

    def refresh(self) -> None:
        """Continue playing and show the position; called in every frame."""
        now_s = self._clock()
        # A late frame plays no more than `LONGEST_STEP_S`.
        passed_s, self._last_s = min(now_s - self._last_s, LONGEST_STEP_S), now_s
        start_s, end_s = self._replay.extent_s
        # Scrubbing takes precedence over playback; it does not pause.
        if self._wanted is not None:
            self.go_to(start_s + (end_s - start_s) * self._wanted / PARTS)
            self._wanted = None
        elif self.playing:
            self.go_to(self._replay.position_s + passed_s * int(self.speed.currentData()))
        self._show()

    def go_to(self, time_s: float) -> None:
        """Show the moment ``time_s``; if it is not in view, the view follows it."""
        end_s = self._replay.extent_s[1]
        # At the end playback stops, and new readings are followed.
        if time_s >= end_s:
            self.playing = False
            self._replay.seek(None)
        else:
            self._replay.seek(time_s)
        left, right = self._view.range()
        self._view.set_now(min(time_s, end_s))
        # A view that the user moved stays there as long as it shows the moment.
        if not left <= time_s <= right and not self._view.following:
            self._view.follow()

    def _scrubbed(self, place: int) -> None:
        """The user moved the slider; the next frame goes there."""
        # Not at once: a drag sends many changes between two frames, and each seek takes milliseconds.
        self._wanted = place

    def _show(self) -> None:
        start_s, end_s = self._replay.extent_s
        place_s = min(max(self._replay.position_s, start_s), end_s)
        whole_s = max(end_s - start_s, 1e-9)
        # While the slider is held, only the user moves it.
        if self._wanted is None and not self.slider.isSliderDown():
            # Blocked: setting the position must not scrub.
            with QSignalBlocker(self.slider):
                # Arrow keys move by seconds, a different share of each recording.
                self.slider.setSingleStep(max(1, round(PARTS * min(1.0, ARROW_S / whole_s))))
                self.slider.setValue(round(PARTS * (place_s - start_s) / whole_s))
        text = f"{place_text(place_s - start_s)} / {place_text(end_s - start_s)}"
        # Only if it changed: setting a text lays out the row again.
        if self.time.text() != text:
            self.time.setText(text)
            self.slider.setAccessibleDescription(text.replace("/", "of"))
            # Never narrower than before, or the slider would jump with each digit.
            self._time_width = max(self._time_width, self.time.sizeHint().width())
            self.time.setMinimumWidth(self._time_width)
        running = self.playing or self.live
        _name(self.play, "❚❚  Pause" if running else "▶  Play", "Pause" if running else "Play the recording")
        if self._replay.following:
            _name(self.end, "●  Follow", "Show what is being written now (End)")
            self.end.setEnabled(not self.live)
        else:
            _name(self.end, "▶❘  To the end", "Show the end of the recording (End)")
            self.end.setEnabled(not self._replay.at_end)
        self.play.setToolTip(plain_tip(f"{self.play.accessibleName()} (Space)"))


def _name(button: QPushButton, text: str, means: str) -> None:
    """Change a button's text and its tooltip."""
    if button.text() != text:
        button.setText(text)
        button.setAccessibleName(means.partition(" (")[0])
        button.setToolTip(plain_tip(means))


def place_text(seconds: float) -> str:
    """A position in a recording: 0:04.2, 12:05.0, 1:02:03.4."""
    tenths = max(0, round(seconds * 10))
    whole, tenth = divmod(tenths, 10)
    hours, rest = divmod(whole, 3600)
    minutes, left = divmod(rest, 60)
    short = f"{left:02d}.{tenth}"
    if hours:
        return f"{hours}:{minutes:02d}:{short}"
    return f"{minutes}:{short}"
