"""The top of an explanation, live or of a snapshot: the cause, the request, and what would have fitted."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from PySide6.QtCore import QEvent, QSize, Signal
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QBoxLayout, QFrame, QLabel, QMenu, QPushButton, QSizePolicy, QWidget

from gpudash.telemetry.explanation import Explanation, Remedy
from gpudash.ui.widgets.labels import worded_button, worded_label, wrapped_text, wrapping_label
from gpudash.ui.widgets.layouts import in_column, in_row
from gpudash.ui.widgets.plain_text import plain_tip, without_mnemonics

if TYPE_CHECKING:
    from gpudash.session.predicting.remedies import SoFar

MOST = 4
"""Maximum number of remedies shown at once."""

GAP, STACKED_GAP = 18, 4
"""Logical pixels between remedies, side by side and stacked."""

AFTER_THE_CHANGE = "Next to the change below,"
"""Beginning of the title of the remedies that follow the one shown beside the source."""

RUNS_AGAIN = "Run again with it"
"""What the button of a remedy does, if something can be run from here."""

ALSO = "Also would have fit:"
"""The title if the whole run fits with the first of them."""

LEAST_TEXT_PX = 80
"""Logical pixels; in less width, a line of a button would hold a single word at most."""


class CauseHeader(QFrame):
    """A title with controls beside it, and sentences below.

    Args:
        controls: widgets at the right of the title.
        applying: what the button of a remedy does.
    """

    def __init__(
        self, controls: Sequence[QWidget], parent: QWidget | None = None, *, applying: str = RUNS_AGAIN
    ) -> None:
        super().__init__(parent)
        self.setProperty("role", "panel")
        self.title = worded_label("title", wraps=False)
        self.headline = worded_label("headline")
        self.request = worded_label("muted")
        self.remedies = RemediesView(applying=applying)
        head = in_row((self.title, 1), spacing=8)
        for control in controls:
            head.addWidget(control)
        column = in_column(head, parent=self, margins=(12, 6, 10, 8), spacing=3)
        for widget in (self.headline, self.request, self.remedies):
            column.addWidget(widget)

    def show_cause(self, found: Explanation, title: str) -> None:
        """Show the cause in ``found`` below ``title``; the caller shows the remedies."""
        self.title.setText(title)
        self.headline.setText(found.headline)
        self.request.setText(found.request_words)
        self.request.setVisible(bool(found.request_words))


class RemediesView(QWidget):
    """Remedies side by side or stacked, with a note about them.

    While a search adds remedies, nothing moves under the pointer: each stays at its place, side by side they and the
    note have their room from the beginning, and what was there keeps its button.

    Args:
        applying: what the button of a remedy does.

    Signals:
        applied: the button of this `Remedy` was pressed.
    """

    applied = Signal(object)

    def __init__(self, parent: QWidget | None = None, *, applying: str = RUNS_AGAIN) -> None:
        super().__init__(parent)
        self._applying = applying
        self._remedies: Sequence[Remedy] = ()
        self._final_note = ""
        self._listed: tuple[list[Remedy], bool, list[Remedy]] = ([], False, [])
        self._widgets: list[QLabel | QPushButton] = []
        self._commanding = self._stacked = self._searching = self._keeps_room = False
        self._runnable: Sequence[Remedy] = ()
        self._lead = worded_label("muted", wraps=False)
        self.more = _button_with_menu()
        self.more.hide()
        self.note = wrapping_label("muted")
        self._line = QWidget()
        self._line.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
        self._row = in_row(self._lead, self.more, 1, parent=self._line, margins=(0, 2, 0, 0), spacing=GAP)
        in_column(self._line, self.note, parent=self, margins=(0, 0, 0, 0), spacing=3)

    def show_remedies(
        self,
        remedies: Sequence[Remedy],
        note: str = "",
        *,
        commanding: bool = False,
        searching: bool = False,
        runnable: Sequence[Remedy] = (),
        follow: bool = False,
    ) -> None:
        """Show remedies.

        Args:
            remedies: best first.
            note: why there are none, or what they are based on.
            commanding: whether a remedy can be applied here.
            searching: whether the search for remedies is still going on.
            runnable: remedies that the user's program can be run with from here.
            follow: whether they come after a first one that is shown elsewhere.
        """
        remedies = in_shown_order(self._remedies, remedies)
        is_unchanged = (remedies, note) == (self._remedies, self._final_note)
        self._keeps_room = searching or self._searching or (self._keeps_room and is_unchanged)
        self._searching = searching
        self._final_note = note
        before = self._widgets_of(commanding, runnable)
        self._remedies = remedies
        self._commanding = commanding
        self._runnable = runnable
        best: Sequence[Remedy] = ()
        lead = ""
        # Import only when there is something to explain, to keep the window's start fast.
        if remedies:
            from gpudash.memory.explaining.explanation_text import alike, failure_title

            best = alike(remedies)[:MOST]  # less certain ones are in the menu; their tooltips say so
            lead = f"{failure_title(remedies[:1])}:"
            if follow and best[0].fits:
                lead = ALSO
            elif follow:
                lead = f"{AFTER_THE_CHANGE} {lead[0].lower()}{lead[1:]}"
        elif searching:
            from gpudash.session.predicting.remedies import SEARCHING

            lead = f"{SEARCHING}…"
        self._show_best(best, before)
        self._lead.setText(lead)
        self._line.setVisible(bool(remedies) or self._keeps_room)
        self.note.setText("" if searching else note)
        self.setVisible(bool(remedies or note or searching))
        self._reserve()
        self._fit()

    def _widgets_of(self, commanding: bool, runnable: Sequence[Remedy]) -> list[tuple[Remedy, QLabel | QPushButton]]:
        """The remedies that are shown, each with its widget, which stays as long as it would be made alike."""
        if commanding != self._commanding or list(runnable) != list(self._runnable):
            return []
        return list(zip(self._remedies, self._widgets, strict=False))

    def _show_best(self, best: Sequence[Remedy], before: Sequence[tuple[Remedy, QLabel | QPushButton]]) -> None:
        """Show these remedies in the line; those in ``before`` keep their widgets."""
        widgets = []
        for remedy in best:
            kept = next((widget for other, widget in before if other == remedy), None)
            widgets.append(kept or self._shown(remedy, self._commanding))
        for widget in self._widgets:
            if widget not in widgets:
                self._row.removeWidget(widget)
                widget.hide()
                widget.deleteLater()
        for place, widget in enumerate(widgets, 1):
            if self._row.indexOf(widget) != place:
                self._row.insertWidget(place, widget)
        for one, following in pairwise((*widgets, self.more)):
            QWidget.setTabOrder(one, following)  # else by the time at which each was made
        self._widgets = widgets

    @property
    def searching(self) -> bool:
        """Whether a search is going on."""
        return self._searching

    def show_so_far(self, so_far: SoFar | None) -> None:
        """Show what a search has found so far and its progress; does nothing without a search."""
        if so_far is None or not self._searching:
            return
        if so_far.found != tuple(self._remedies):
            self.show_remedies(so_far.found, commanding=self._commanding, searching=True, runnable=self._runnable)
        if so_far.found:
            self.note.setText(so_far.brief_text if self._stacked else so_far.progress_text)
            self._reserve()
        elif self._lead.text() != so_far.progress_text:
            self._lead.setText(so_far.progress_text)

    @property
    def room_to_come(self) -> int:
        """Height in pixels that a search may still take with its remedies below each other; 0 for them side by side,
        which have their room, and without a search.
        """
        if not (self._keeps_room and self._stacked):
            return 0
        line = self.fontMetrics().lineSpacing()
        rows = (MOST + 1) * (self.more.sizeHint().height() + STACKED_GAP)
        # Beside the rows: the title, two remedies in two lines, and the note.
        return max(0, rows + 4 * line - self.heightForWidth(self.width()))

    def set_stacked(self, stacked: bool) -> None:
        """Stack the remedies in a narrow place, instead of placing them side by side."""
        if stacked != self._stacked:
            self._stacked = stacked
            self._row.setDirection(QBoxLayout.Direction.TopToBottom if stacked else QBoxLayout.Direction.LeftToRight)
            self._row.setSpacing(STACKED_GAP if stacked else GAP)
            self._lead.setWordWrap(stacked)
            self._reserve()
            self._fit()

    def _reserve(self) -> None:
        """Give the line the height of a button and the note that of a line of text before there are any."""
        least_line = least_note = 0
        if self._keeps_room and not self._stacked:
            least_line = self.more.sizeHint().height() + self._row.contentsMargins().top()
            least_note = self.note.fontMetrics().lineSpacing()
        self._line.setMinimumHeight(least_line)
        self.note.setMinimumHeight(least_note)
        self.note.setVisible(bool(self.note.full_text) or least_note > 0)

    def changeEvent(self, event: QEvent) -> None:
        super().changeEvent(event)
        if event.type() is QEvent.Type.FontChange:
            self._reserve()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._fit()

    def minimumSizeHint(self) -> QSize:
        return QSize(0, super().minimumSizeHint().height())

    def _fit(self) -> None:
        """Show as many remedies as fit, at least one; one that is too long for a line is wrapped."""
        whole = len(self._remedies)
        self._let_wrap(())
        for remedy, widget in zip(self._remedies, self._widgets, strict=False):
            _say(widget, remedy_text(remedy))
        if self._stacked:
            fitting = self._fit_below()
        else:
            fitting = self._fit_alongside()
        for place, widget in enumerate(self._widgets):
            widget.setVisible(place < fitting)
        self.more.setVisible(fitting < whole)
        self.more.setText(f"{whole - fitting} more")
        self._fill_menu(self._remedies[fitting:])
        for part in (self._line, self):
            part.updateGeometry()  # else the parent layout uses the height before wrapping

    def _fit_alongside(self) -> int:
        """The number that fits in one line; if even the first is too long, wrap it."""
        wide = [widget.sizeHint().width() + GAP for widget in self._widgets]
        self.more.setText(f"{len(self._remedies)} more")
        room = self.width() - self._lead.sizeHint().width()
        fitting = len(wide)
        while fitting > 1 and sum(wide[:fitting]) + self._room_for_more(fitting) > room:
            fitting -= 1
        if fitting == 1 and (excess := wide[0] + self._room_for_more(1) - room) > 0:
            self._let_wrap(self._widgets[:1])
            self._break(0, excess + GAP)
        return fitting

    def _fit_below(self) -> int:
        """All remedies, each wrapped to the width."""
        self._let_wrap(self._widgets)
        for place, widget in enumerate(self._widgets):
            self._break(place, widget.sizeHint().width() - self.width())
        return len(self._widgets)

    def _break(self, place: int, excess: int) -> None:
        """Wrap a button's text if the button is too wide by ``excess`` pixels."""
        button, text = self._widgets[place], remedy_text(self._remedies[place])
        room = button.fontMetrics().horizontalAdvance(text) - excess
        if isinstance(button, QPushButton) and excess > 0 and room >= LEAST_TEXT_PX:
            _say(button, wrapped_text(text, button.fontMetrics(), room))

    def _let_wrap(self, wrapping: Sequence[QWidget]) -> None:
        """Let these widgets wrap; side by side, this is at most one, which has the line to itself."""
        for widget in self._widgets:
            if isinstance(widget, QLabel):
                widget.setWordWrap(widget in wrapping)
                self._row.setStretchFactor(widget, int(widget in wrapping and not self._stacked))
        self._row.setStretch(self._row.count() - 1, int(self._stacked or not wrapping))  # stretch after the last one

    def _room_for_more(self, shown: int) -> int:
        if shown < len(self._remedies):
            return self.more.sizeHint().width() + GAP
        return 0

    def _fill_menu(self, remedies: Sequence[Remedy]) -> None:
        """List the others; what is listed already stays as it is, since the menu may be open."""
        menu = self.more.menu()
        listed = (list(remedies), self._commanding, list(self._runnable))
        if listed == self._listed:
            return
        begins_alike = listed[1:] == self._listed[1:] and list(remedies[: len(self._listed[0])]) == self._listed[0]
        if not begins_alike:
            menu.clear()
        self._listed = listed
        for remedy in remedies[len(menu.actions()) :]:
            action = menu.addAction(without_mnemonics(remedy_text(remedy)))
            action.setToolTip(plain_tip(remedy_tip(remedy)))
            action.setEnabled(self._applies(remedy, self._commanding))
            action.triggered.connect(lambda _checked=False, remedy=remedy: self.applied.emit(remedy))

    def _applies(self, remedy: Remedy, commanding: bool) -> bool:
        return commanding and (applicable(remedy) or remedy in self._runnable)

    def _shown(self, remedy: Remedy, commanding: bool) -> QLabel | QPushButton:
        text, tip = remedy_text(remedy), remedy_tip(remedy)
        if not self._applies(remedy, commanding):
            label = wrapping_label("figure-small")
            label.setText(text)
            label.setToolTip(plain_tip(tip))
            return label
        return worded_button(without_mnemonics(text), f"{self._applying}: {tip}", lambda: self.applied.emit(remedy))


def in_shown_order(shown: Sequence[Remedy], remedies: Sequence[Remedy]) -> list[Remedy]:
    """``remedies``, those that were shown already at their places, and new ones in the places that became free."""
    if not remedies:
        return []
    from gpudash.memory.explaining.explanation_text import remedy_groups

    free = [remedy for remedy in shown if remedy not in remedies]
    found: list[Remedy] = []
    for _title, group in remedy_groups(remedies):
        new = [remedy for remedy in group if remedy not in shown]
        for remedy in shown:
            if remedy in group:
                found.append(remedy)
            elif new and remedy in free:
                free.remove(remedy)
                found.append(new.pop(0))
        found += new
    return found


def _say(widget: QLabel | QPushButton, text: str) -> None:
    widget.setText(without_mnemonics(text) if isinstance(widget, QPushButton) else text)


def _button_with_menu() -> QPushButton:
    button = QPushButton()
    button.setToolTip("Other changes")
    menu = QMenu(button)
    menu.setToolTipsVisible(True)
    button.setMenu(menu)
    return button


def applicable(remedy: Remedy) -> bool:
    """Whether a remedy can be applied by changing the form."""
    return bool(remedy.fields) or remedy.device is not None


def remedy_text(remedy: Remedy) -> str:
    """The change, and the peak it would have had unless the change names it; as in the terminal."""
    from gpudash.memory.explaining.explanation_text import unsaid_peak

    peak = unsaid_peak(remedy, failed=True)
    facts = "; ".join(filter(None, (peak, remedy.puts_off)))
    if not facts:
        return remedy.change
    return f"{remedy.change} ({facts})"


def remedy_tip(remedy: Remedy) -> str:
    """How certain the remedy is, what it costs, and its form in the terminal."""
    from gpudash.memory.explaining.explanation_text import NOT_TRIED
    from gpudash.memory.explaining.whole_need import RERUN
    from gpudash.memory.predicting.prediction import price

    verb = "predicted"
    if remedy.verified_by == RERUN:
        verb = "measured"
    source = NOT_TRIED
    if remedy.verified_by:
        source = f"{verb} by {remedy.verified_by}"
    parts = [source, price(remedy), remedy.flags]
    text = "; ".join(filter(None, parts))
    return "\n".join(filter(None, (text, shlex.join(remedy.command), remedy.patch)))
