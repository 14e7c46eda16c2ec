"""The time axis shared by all plots: the shown part of the session, the cursor and the selection.

Everything is in session time (seconds). Pausing stops the view, never the recording: this module does not touch the
store.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from PySide6.QtCore import QObject, Signal

from gpudash.units import format_duration

MIN_WINDOW_S = 0.01
MAX_WINDOW_S = 7 * 86400.0

LEAST_PAGE_S = 5.0
"""The narrowest page shown from the start of a run; the next one is twice as wide, and so on up to the window."""

PAGE_MARGIN_RATIO = 0.02
"""Share of a page before the start of the run."""

_HISTORY = 100


@dataclass(frozen=True, slots=True)
class _Place:
    following: bool
    window_s: float
    right_s: float


class TimeView(QObject):
    """The shown time window, the cursor and the selection.

    While following, the right edge is the newest reading (plus `lead_s`, room for a forecast). While paused, it is
    fixed at `right_s`. From `begin_page` until the window is full it follows in pages: nothing moves while the curves
    grow from the left into what is predicted for them.

    Attributes:
        live: whether the newest reading is current; if not, times are shown as session times only.
        wall_origin_s: returns the seconds since the epoch at session time 0, if times are shown as clock times; else
            ``None``.
        least_s, most_s: the narrowest and the widest window.
        since_s: earlier readings are not drawn: what is shown began then, and they are of something else.
        origin_s: session time from which the axis counts while runs are overlaid at their common start; else ``None``.

    Signals:
        changed: the shown range or the following state changed.
        cursor_changed: the cursor moved or disappeared.
        selection_changed: the selection changed or was cleared.
    """

    changed = Signal()
    cursor_changed = Signal()
    selection_changed = Signal()

    def __init__(self, window_s: float = 60.0, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.live = True
        self.wall_origin_s: Callable[[], float] | None = None
        self.least_s, self.most_s = MIN_WINDOW_S, MAX_WINDOW_S
        self.since_s = -math.inf
        self.origin_s: float | None = None
        self._window_s = self._clamped(window_s)
        self._following = True
        self._held = False
        self._window_to_follow_s: float | None = None
        self._now_s = 0.0
        self._right_s = 0.0
        self._lead_s = 0.0
        self._began_s: float | None = None
        self._paused = math.nan, math.inf
        self._cursor_s: float | None = None
        self._cursor_offset_s: float | None = None
        self._selection: tuple[float, float] | None = None
        self._past: list[_Place] = []
        self._future: list[_Place] = []
        self._last_move = ""

    @property
    def following(self) -> bool:
        """Whether the right edge follows the newest reading."""
        return self._following

    @property
    def held(self) -> bool:
        """Whether the shown range is still the one set by `hold`, unchanged by the user."""
        return self._held and not self._following

    @property
    def window_s(self) -> float:
        """The width of the shown range in seconds, unless a page is shown, which is narrower."""
        return self._window_s

    @property
    def now_s(self) -> float:
        """The time of the newest reading."""
        return self._now_s

    @property
    def right_s(self) -> float:
        """The right edge of the shown range."""
        return self.range()[1]

    @property
    def still_s(self) -> float:
        """The time that keeps its place in the shown range from frame to frame: now, if the range moves with it."""
        if self._page is not None:
            return self._page[0]
        if self._following:
            return self._now_s
        return self._right_s

    @property
    def counted_from_s(self) -> float | None:
        """The session time from which the axis counts; ``None`` for now, or for the session's."""
        if self.origin_s is None and self._page is not None:
            return self._began_s
        return self.origin_s

    @property
    def lead_s(self) -> float:
        """Seconds shown beyond now while following."""
        return self._lead_s

    @property
    def behind_s(self) -> float:
        """How far the newest reading drawn is behind the newest there is; 0 while following."""
        return max(0.0, self._now_s - min(self.right_s, self._until_s))

    @property
    def _until_s(self) -> float:
        """Later readings are not drawn: the range had room ahead of the newest reading when it was paused."""
        right_s, newest_s = self._paused
        if not self._following and right_s == self._right_s:
            return newest_s
        return math.inf

    def range(self) -> tuple[float, float]:
        """The start and the end of the shown range."""
        if self._page is not None:
            return self._page
        right = self._right_s
        if self._following:
            right = self._now_s + self._lead_s
        return right - self._window_s, right

    @property
    def _page(self) -> tuple[float, float] | None:
        """The page shown while following; ``None`` once the window is full."""
        if self._began_s is None or not self._following:
            return None
        width = self._window_s
        reached = self._now_s - self._began_s
        filled = 1.0 - PAGE_MARGIN_RATIO - self._lead_s / self._window_s
        if reached > filled * width:
            return None
        while width / 2 >= LEAST_PAGE_S and reached <= filled * width / 2:
            width /= 2
        left = self._began_s - PAGE_MARGIN_RATIO * width
        return left, left + width

    def begin_page(self, began_s: float) -> None:
        """While following, show what began at ``began_s`` from its start until it fills the window."""
        if self._following:
            self._began_s = began_s
            self.changed.emit()

    def drawn(self) -> tuple[float, float]:
        """The part of the range whose readings are drawn."""
        left, right = self.range()
        right = min(right, self._until_s)
        return min(max(left, self.since_s), right - self.least_s), right

    def status(self) -> str:
        """The status line's text about the view."""
        if self._following:
            return "Live"
        behind = self.behind_s
        if behind < 59.5:
            text = f"{behind:.0f} s"
        else:
            text = format_duration(behind)
        if self.origin_s is not None:
            return "Runs from their start"
        if self.held:
            return f"This run ended {text} ago"
        return f"Paused {text} behind"

    def set_now(self, newest_s: float) -> None:
        """Set the time of the newest reading."""
        if newest_s != self._now_s:
            self._now_s = newest_s
            if self._following:
                self.changed.emit()

    def set_lead(self, lead_s: float) -> None:
        """Show ``lead_s`` seconds beyond now while following."""
        if lead_s != self._lead_s:
            self._lead_s = lead_s
            if self._following:
                self.changed.emit()

    def set_window(self, window_s: float) -> None:
        """Show ``window_s`` seconds; the right edge stays."""
        self._remember("window")
        self._began_s = None
        self._window_to_follow_s = None
        self._window_s = self._clamped(window_s)
        self.changed.emit()

    def pause(self) -> None:
        """Freeze the view; readings are still stored."""
        if self._following:
            cursor = self.cursor_s
            left, self._right_s = self.range()
            if self._page is not None:
                self._window_to_follow_s = self._window_s
                self._window_s = self._right_s - left
                self._began_s = None
            self._paused = self._right_s, self._now_s
            # While following the cursor moves along; when frozen it must stay at its time.
            self._following = False
            self._pin_cursor(cursor)
            self.changed.emit()

    def follow(self) -> None:
        """Let the right edge follow the newest reading again."""
        if not self._following:
            self._remember("follow")
            self._following = True
            # `hold` changed the width to show a whole run; following restores the previous width.
            if self._window_to_follow_s is not None:
                self._window_s = self._window_to_follow_s
                self._window_to_follow_s = None
            self.changed.emit()

    def toggle(self) -> None:
        """Pause while following, follow while paused."""
        if self._following:
            self.pause()
        else:
            self.follow()

    def zoom(self, factor: float, anchor_s: float | None = None) -> None:
        """Make the window ``factor`` times as wide.

        While following, the right edge stays and following continues. While paused, `anchor_s` keeps its place.
        """
        self._remember("zoom")
        self._began_s = None
        left, right = self.range()
        width = self._clamped(self._window_s * factor)
        if not self._following:
            if anchor_s is None:
                anchor = (left + right) / 2
            else:
                anchor = anchor_s
            # The anchor's relative position stays, and with it what is under the pointer.
            share = (right - anchor) / self._window_s
            self._right_s = self._within(anchor + share * width, width)
        self._window_s = width
        self.changed.emit()

    def pan(self, seconds: float) -> None:
        """Move the view by ``seconds`` (positive: later). Moving back pauses; the newest reading is the limit."""
        # There is nothing to see beyond the newest reading.
        if self._following and seconds >= 0:
            return
        self._remember("pan")
        self.pause()
        # After `pause`, which sets `right_s` to the moving edge.
        self._right_s = self._within(self._right_s + seconds, self._window_s)
        self.changed.emit()

    def show(self, start_s: float, end_s: float) -> None:
        """Show exactly this range, paused."""
        self._remember("show")
        start_s, end_s = min(start_s, end_s), max(start_s, end_s)
        self.pause()
        self._window_s = self._clamped(end_s - start_s)
        self._right_s = end_s
        self.changed.emit()

    def hold(self, start_s: float, end_s: float) -> None:
        """Show exactly this range, paused; `follow` returns to the width shown before."""
        self._remember("hold")
        # If the view is held already, the width before the first `hold` counts.
        if self._following:
            self._window_to_follow_s = self._window_s
            self._began_s = None
        self._held = True
        self.pause()
        self._window_s = self._clamped(end_s - start_s)
        self._right_s = end_s
        self.changed.emit()

    def resize(self, start_s: float, end_s: float) -> None:
        """Show this range, up to the newest reading, while an end is dragged; consecutive calls are one step."""
        self._remember("resize")
        self.pause()
        end_s = min(end_s, max(self._now_s, start_s + MIN_WINDOW_S))
        # An end dragged past the other stops just before it.
        self._window_s = self._clamped(end_s - min(start_s, end_s - MIN_WINDOW_S))
        self._right_s = end_s
        self.changed.emit()

    def show_all(self, extent: tuple[float, float] | None) -> None:
        """Show everything; a following view keeps following."""
        if extent is None:
            return
        start, end = extent
        if self._following:
            self._remember("show")
            self._began_s = None
            self._window_s = self._clamped(max(end, self._now_s) - start + self._lead_s)
            self.changed.emit()
        else:
            self.show(start, end)

    def zoom_to_selection(self) -> None:
        """Show the selected range; does nothing without a selection."""
        if self._selection is not None:
            self.show(*self._selection)

    def settle(self) -> None:
        """End a gesture, so that the next move is a separate step in the history."""
        self._last_move = ""

    def back(self) -> None:
        """Return to the view before the last move."""
        self._travel(self._past, self._future)

    def forward(self) -> None:
        """Return to the view that `back` left."""
        self._travel(self._future, self._past)

    @property
    def selection(self) -> tuple[float, float] | None:
        """The selected range, in order, or ``None``."""
        return self._selection

    def select(self, start_s: float, end_s: float) -> None:
        """Select a range; its ends may be given in either order."""
        selection = (min(start_s, end_s), max(start_s, end_s))
        if selection != self._selection:
            self._selection = selection
            self.selection_changed.emit()

    def clear_selection(self) -> None:
        """Clear the selection."""
        if self._selection is not None:
            self._selection = None
            self.selection_changed.emit()

    @property
    def cursor_s(self) -> float | None:
        """The cursor's session time, or ``None``. Under a resting mouse it moves with the following view."""
        if self._cursor_offset_s is not None:
            return self.right_s - self._cursor_offset_s
        return self._cursor_s

    @property
    def cursor_pinned(self) -> bool:
        """Whether the cursor stays at its time while the view moves."""
        return self._cursor_offset_s is None

    def set_cursor(self, time_s: float | None, *, pinned: bool = False) -> None:
        """Move the cursor.

        Args:
            time_s: the new time; ``None`` removes the cursor.
            pinned: keep it at this time while the view moves (keyboard), rather than at this place (mouse).
        """
        # Stored as a distance from the moving edge: the pointer rests while time passes under it.
        if time_s is not None and self._following and not pinned:
            self._cursor_s, self._cursor_offset_s = None, self.right_s - time_s
        else:
            self._pin_cursor(time_s)
        self.cursor_changed.emit()

    def _pin_cursor(self, time_s: float | None) -> None:
        self._cursor_s, self._cursor_offset_s = time_s, None

    def _clamped(self, window_s: float) -> float:
        return min(max(window_s, self.least_s), self.most_s)

    def _within(self, right_s: float, window_s: float) -> float:
        """The right edge of a window of this width, as close to ``right_s`` as there is data."""
        latest = max(self._now_s, self._now_s + self._lead_s)
        # At least a tenth of the window contains data, at either end.
        return min(max(right_s, min(window_s * 0.1, latest)), latest)

    def _remember(self, move: str) -> None:
        """Remember the view before a move; consecutive small moves of one kind (wheel, drag) count as one."""
        self._held = False
        # One notch of the wheel is not a step: `back` returns to where the gesture began.
        repeated = move == self._last_move and move in ("zoom", "pan", "window", "resize")
        self._last_move = move
        if not repeated:
            self._past.append(self._place())
            del self._past[:-_HISTORY]
            self._future.clear()

    def _place(self) -> _Place:
        return _Place(self._following, self._window_s, self.right_s)

    def _travel(self, source: list[_Place], target: list[_Place]) -> None:
        if not source:
            return
        target.append(self._place())
        place = source.pop()
        self._held = False
        self._window_to_follow_s = None
        # The restored view may be paused: a cursor that moved along must stay where it is now.
        if not place.following:
            self._pin_cursor(self.cursor_s)
        self._following, self._window_s, self._right_s = place.following, place.window_s, place.right_s
        self._last_move = ""
        self.changed.emit()


MIN_SPAN = 1e-3
"""The narrowest view of a shared axis, in seconds or steps."""


class SharedAxis(TimeView):
    """An axis of steps or events, or of time that does not pass. Several plots can share it.

    Args:
        bounded: whether the view stays within the whole range.

    Attributes:
        name: the quantity on the axis.
        whole: the range that `show_whole` shows.
    """

    def __init__(self, *, bounded: bool = False, parent: QObject | None = None) -> None:
        super().__init__(1.0, parent)
        self.live = False
        self.name = ""
        self.whole = (0.0, 1.0)
        self.least_s, self.most_s = MIN_SPAN, math.inf
        self._bounded = bounded
        # There is no "now" to follow on an axis of steps.
        self.pause()

    def set_whole(self, low: float, high: float, least: float | None = None) -> None:
        """Set the whole range; the view stays where it is until `show_whole`."""
        if least is not None:
            self.least_s = least
        self.whole = (low, max(high, low + self.least_s))
        if self._bounded:
            self.most_s = self.whole[1] - self.whole[0]

    def show_whole(self) -> None:
        """Show the whole range."""
        self.show(*self.whole)

    def _within(self, right_s: float, window_s: float) -> float:
        low, high = self.whole
        if self._bounded:
            return min(max(right_s, low + window_s), high)
        return right_s
