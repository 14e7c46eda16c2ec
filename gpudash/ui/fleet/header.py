"""The top of a fleet's pages: size and fullness of the fleet, the source and its problems; and the row of controls that
selects the time range.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial

from PySide6.QtCore import QDateTime, QSignalBlocker, Qt, Signal
from PySide6.QtWidgets import QButtonGroup, QDateTimeEdit, QFrame, QSizePolicy, QWidget

from gpudash.ui.widgets.labels import worded_button
from gpudash.ui.widgets.layouts import in_column, in_row
from gpudash.ui.widgets.plain_text import PlainLabel, plain_tip


class ProblemStrip(QFrame):
    """Shows problems in place; hidden while there are none."""

    def __init__(self) -> None:
        super().__init__()
        self.setProperty("role", "banner")
        self.sentence = PlainLabel(wraps=True, selectable=True)
        in_row((self.sentence, 1), parent=self, margins=(12, 6, 12, 6))
        self.hide()

    def report(self, sentences: Iterable[str]) -> None:
        """Show these sentences, without repeats; hide if there are none."""
        text = " ".join(f"{sentence.rstrip('.')}." for sentence in dict.fromkeys(sentences) if sentence)
        if self.sentence.text() != text:
            self.sentence.setText(text)
            self.setAccessibleName(text)
        self.setVisible(bool(text))


class FleetHeader(QWidget):
    """Two lines, and below them the problem strip while there is a problem."""

    def __init__(self) -> None:
        super().__init__()
        self.total = PlainLabel(role="figure")
        self.total.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
        self.source = PlainLabel(role="muted")
        self.source.setAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
        for label in (self.total, self.source):
            label.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        self.problem = ProblemStrip()
        row = in_row((self.total, 1), self.source)
        in_column(row, self.problem, parent=self, margins=(0, 0, 0, 0), spacing=6)

    def show_size(self, text: str) -> None:
        """Show the size and fullness of the fleet."""
        if self.total.text() != text:
            self.total.setText(text)
            self.total.setToolTip(plain_tip(text))

    def show_source(self, text: str) -> None:
        """Show the source, and the age of its newest reading."""
        self.source.setText(text)

    def show_problem(self, *sentences: str) -> None:
        """Show these problems in place; without arguments, hide them."""
        self.problem.report(sentences)


MOMENT = "d MMM yyyy HH:mm"


class RangeBar(QWidget):
    """Chips for the last minutes to days, two fields for any other range, and buttons for the range before and after.

    Args:
        chosen: initial range.
        wall_clock: seconds since the epoch.

    Signals:
        changed: a different range was chosen.
        whole_wanted: show the whole range.
    """

    changed = Signal()
    whole_wanted = Signal()

    def __init__(self, chosen: Range, wall_clock: Callable[[], float] = time.time) -> None:
        super().__init__()
        self._range = chosen
        self._wall_clock = wall_clock
        label = PlainLabel("Last", role="muted")
        row = in_row(label, parent=self, margins=(0, 0, 0, 0), spacing=4)
        self._presets = QButtonGroup(self)
        self._presets.setExclusive(False)
        for text, seconds in PRESETS:
            tip = f"Show the last {text}, moving on with time"
            chip = worded_button(text, tip, partial(self.choose, Range(seconds)), role="chip", tab_only=True)
            chip.setCheckable(True)
            self._presets.addButton(chip)
            row.addWidget(chip)
        row.addSpacing(10)
        self.begin, self.end = self._moment("Begin of the range"), self._moment("End of the range")
        to = PlainLabel("to", role="muted")
        for part in (self.begin, to, self.end):
            row.addWidget(part)
        self.earlier = worded_button(
            "◀ Earlier",
            "Show the range of the same length before this one",
            lambda: self.choose(self._range.earlier(self._wall_clock())),
            role="chip",
            tab_only=True,
        )
        self.later = worded_button(
            "Later ▶",
            "Show the range of the same length after this one",
            lambda: self.choose(self._range.later(self._wall_clock())),
            role="chip",
            tab_only=True,
        )
        tip = "Show the whole range again after zooming into it"
        self.whole = worded_button("Whole range", tip, self.whole_wanted.emit, role="chip", tab_only=True)
        self.whole.setEnabled(False)
        for button in (self.earlier, self.later, self.whole):
            row.addWidget(button)
        row.addSpacing(10)
        self.state = PlainLabel(role="muted")
        self.state.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
        row.addWidget(self.state, 1)
        self._show()

    def _moment(self, name: str) -> QDateTimeEdit:
        field = QDateTimeEdit()
        field.setDisplayFormat(MOMENT)
        field.setCalendarPopup(True)
        field.setAccessibleName(name)
        field.setToolTip(plain_tip(f"{name}, in your local time"))
        field.setKeyboardTracking(False)
        field.editingFinished.connect(self._typed)
        return field

    @property
    def range(self) -> Range:
        """The selected range."""
        return self._range

    def choose(self, chosen: Range) -> None:
        """Select a range."""
        self._range = chosen
        self._show()
        self.changed.emit()

    def show_state(self, text: str) -> None:
        """Show in the rest of the row that a query is running, or what is pointed at."""
        self.state.setText(text)

    def _typed(self) -> None:
        wanted = between(*(field.dateTime().toMSecsSinceEpoch() / 1000 for field in (self.begin, self.end)))
        began, ended = self._range.at(self._wall_clock())
        if abs(wanted.at(self._wall_clock())[0] - began) >= 60 or abs((wanted.ended_wall_s or 0) - ended) >= 60:
            self.choose(wanted)

    def _show(self) -> None:
        """Update the chips and fields to the selected range."""
        began, ended = self._range.at(self._wall_clock())
        for button, (_text, seconds) in zip(self._presets.buttons(), PRESETS, strict=True):
            button.setChecked(self._range.ended_wall_s is None and abs(self._range.seconds - seconds) < 1)
        self.later.setEnabled(self._range.ended_wall_s is not None)
        for field, wall in ((self.begin, began), (self.end, ended)):
            with QSignalBlocker(field):
                field.setDateTime(QDateTime.fromMSecsSinceEpoch(round(wall * 1000)))
        self.setAccessibleDescription(range_text(began, ended))


PRESETS = (("15 min", 900.0), ("1 h", 3600.0), ("6 h", 6 * 3600.0), ("24 h", 86_400.0), ("7 days", 7 * 86_400.0))

DAY_S = 86_400.0

SHORTEST_S = 1.0


@dataclass(frozen=True, slots=True)
class Range:
    """A time range.

    Attributes:
        seconds: its length.
        ended_wall_s: its end, in seconds since the epoch; ``None`` for a range that always ends now.
    """

    seconds: float = PRESETS[1][1]
    ended_wall_s: float | None = None

    def at(self, now_s: float) -> tuple[float, float]:
        """Begin and end, in seconds since the epoch."""
        if self.ended_wall_s is None:
            end = now_s
        else:
            end = min(self.ended_wall_s, now_s)
        return end - self.seconds, end

    def earlier(self, now_s: float) -> Range:
        """The range of the same length before this one."""
        return replace(self, ended_wall_s=self.at(now_s)[0])

    def later(self, now_s: float) -> Range:
        """The range of the same length after this one; the last such range always ends now."""
        end = self.at(now_s)[1] + self.seconds
        return replace(self, ended_wall_s=None if end >= now_s else end)

    def days_before(self, days: int, now_s: float) -> Range:
        """The same hours this many days earlier."""
        return replace(self, ended_wall_s=self.at(now_s)[1] - days * DAY_S)


def between(first_s: float, last_s: float) -> Range:
    """The range between two times, in either order."""
    begin, end = min(first_s, last_s), max(first_s, last_s)
    return Range(max(end - begin, SHORTEST_S), end)


def range_text(began_s: float, ended_s: float) -> str:
    """A range in local time: "21 Nov 13:10 to 14:10"; with seconds if it is short."""
    begin, end = map(datetime.fromtimestamp, (began_s, ended_s))  # the user's own clock
    clock = "%H:%M"
    if ended_s - began_s < 600:
        clock = "%H:%M:%S"
    if begin.date() == end.date():
        day = ""
    else:
        day = f"{end.day} {end:%b} "
    return f"{begin.day} {begin:%b} {begin.strftime(clock)} to {day}{end.strftime(clock)}"
