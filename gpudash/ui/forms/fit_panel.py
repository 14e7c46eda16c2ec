"""The panel below the form: whether the run fits, and what would.

Each change that saves memory is shown with its cost and a button that applies it.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from html import escape

from PySide6.QtCore import QEvent, QObject, QRectF, Qt, Signal
from PySide6.QtGui import (
    QColor,
    QEnterEvent,
    QFont,
    QFontMetrics,
    QGuiApplication,
    QHelpEvent,
    QPainter,
    QPaintEvent,
    QPen,
    QResizeEvent,
)
from PySide6.QtWidgets import (
    QFrame,
    QGridLayout,
    QPushButton,
    QSizePolicy,
    QToolButton,
    QToolTip,
    QVBoxLayout,
    QWidget,
)

from gpudash.devices.names import shown_name
from gpudash.memory.allocator.settings import assignment
from gpudash.memory.predicting.estimate import Alternative, Estimate
from gpudash.memory.predicting.prediction import COMMUNICATION, HELD_BACK, AlternativeText, Prediction
from gpudash.memory.serving.on_card import ServerOnCard
from gpudash.speed.time_text import time_lines
from gpudash.speed.work import StepTime
from gpudash.ui.colours import DARK, Palette
from gpudash.ui.widgets.layouts import in_column, in_row
from gpudash.ui.widgets.plain_text import PlainLabel, plain_tip
from gpudash.units import format_bytes, format_count

VERDICT_ROLES = {
    "fits": ("good", "✓ "),
    "short": ("error", "✕ "),
    "uncertain": ("warn", "≈ "),
    "unknown": ("muted", ""),
    "none": ("muted", "– "),
}
"""Role and sign of each verdict, "none" without a prediction: never colour alone."""

LEGEND_COLUMNS = 2

FIRST_ROWS = 3
"""How many alternatives are shown in a low panel, all of them in view, before the others are asked for."""

SPACING = 4
"""Logical pixels between rows of the panel."""

HEADLINE_SIZES = (4 / 3, 11 / 9, 1.0)
"""Font sizes of the verdict relative to the font, largest first; the first that fits is used."""

PREDICTING = "predicting…"
NOTHING_YET = "nothing to predict yet"

BAR_HEIGHT = 16
"""Height of the bar in logical pixels."""

GAP = 1.0
"""Logical pixels between parts, so that neighbours differ by more than colour."""

SMALLEST = 2.0
"""Minimum width of a part drawn with a gap, in logical pixels."""


class _Details(QWidget):
    """A column that shrinks only on request: content arrives bit by bit, and is removed while a prediction is
    recomputed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.column = QVBoxLayout(self)
        self.column.setContentsMargins(0, 0, 4, 0)
        self.column.setSpacing(2)

    def settle(self, *, shrinks: bool) -> None:
        """Adopt the height of the content; ``shrinks`` also allows a smaller one."""
        height = self.column.sizeHint().height()
        if self.column.hasHeightForWidth():
            height = self.column.heightForWidth(self.width())
        # Only grow while results arrive; the last one settles the height (`shrinks`).
        if height > self.minimumHeight() or shrinks:
            self.setMinimumHeight(height)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        # Its height changes with its content: only a new width requires new line breaks.
        if event.oldSize().width() != event.size().width():
            self.settle(shrinks=False)


class FitPanel(QWidget):
    """The verdict, the bar, two lines of figures and, in the details, parts and alternatives.

    Attributes:
        head: everything but the details.

    Signals:
        applied: the user wants this `Alternative`.
        regarded: the pointer or the focus moved to another row, or to none.
        folded: the user opened or closed the details.
        taken_back: the user wants the form as it was before the change that was applied last.
    """

    applied = Signal(object)
    taken_back = Signal()
    regarded = Signal()
    folded = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._regarded: AlternativeText | None = None
        self._palette = DARK
        self._prediction: Prediction | None = None
        self._rows: list[AlternativeRow] = []  # asking the layout for its items would leave wrappers of deleted ones
        self._chosen_open: bool | None = None
        self._running = False
        self._reached: int | None = None
        self._reason = False
        self._whole = True
        self._is_verdict = self._shows_all = False
        self.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Maximum)
        self._headline = PlainLabel(PREDICTING)
        self._headline.setWordWrap(False)
        self.bar = FitBar(self._palette)
        self._lines = PlainLabel("\n", role="muted", wraps=True)
        self._lines.setAlignment(Qt.AlignmentFlag.AlignTop)
        self._lines.installEventFilter(self)
        self._first_way: Alternative | None = None
        self._apply_first = QPushButton("Apply")
        self._apply_first.setProperty("role", "chip")
        self._apply_first.clicked.connect(self._apply_first_way)
        self._apply_first.hide()
        self._applied_text = PlainLabel(role="muted", wraps=True)
        self._undo_applied = QPushButton("Undo")
        self._undo_applied.setProperty("role", "chip")
        self._undo_applied.setToolTip("Put the form back to what it was before")
        self._undo_applied.clicked.connect(self.taken_back)
        self._applied = QWidget()
        self._ranks = PlainLabel(role="legend", wraps=True)
        self._ranks.setAccessibleName("The other ranks")
        self._ranks.hide()  # until there are ranks, or the parts below would move up with the first prediction
        self._toggle = QToolButton()
        self._toggle.setCheckable(True)
        self._toggle.setToolButtonStyle(Qt.ToolButtonStyle.ToolButtonTextBesideIcon)
        self._toggle.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self._toggle.setProperty("role", "fold")
        self._toggle.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self._toggle.setToolTip("What the memory is for, and what would need less")
        self._toggle.clicked.connect(self._toggled)
        self._details = _Details()
        self._details.setAccessibleName("What the memory is for, and what would need less")
        self._time_lines: list[str] = []
        self._column = self._details.column
        self._model, self._granted = _note("The model"), _note("What is taken for granted")
        self._column.addWidget(self._model)
        self._others = QToolButton()
        self._others.setProperty("role", "fold")
        self._others.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self._others.setArrowType(Qt.ArrowType.DownArrow)
        self._others.setToolButtonStyle(Qt.ToolButtonStyle.ToolButtonTextBesideIcon)
        self._others.clicked.connect(self._show_others)
        self._others.hide()
        self._column.addWidget(self._others)
        self._legend = QWidget()
        self._column.addWidget(self._legend)
        self._time = _note("How long a step is predicted to take")
        self._column.addWidget(self._time)
        self._column.addWidget(self._granted)
        self._column.addStretch(1)
        self._lay_out()
        self._set_open(False)
        self._set_headline("unknown", PREDICTING)

    def _lay_out(self) -> None:
        rule = QFrame()
        rule.setProperty("role", "rule")
        rule.setFixedHeight(1)
        row = in_row((self._lines, 1), self._apply_first, margins=(0, 0, 0, 0), spacing=6)
        row.setAlignment(self._apply_first, Qt.AlignmentFlag.AlignTop)  # beside the first lines, which name its change
        in_row((self._applied_text, 1), self._undo_applied, parent=self._applied, margins=(0, 0, 0, 0), spacing=6)
        self._applied.hide()
        self.head = QWidget()
        self.head.setProperty("role", "kept")
        self.head.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
        parts = (rule, self._headline, self.bar, row, self._applied, self._ranks, self._toggle)
        in_column(*parts, parent=self.head, margins=(0, 2, 0, 0), spacing=SPACING)
        in_column(self.head, self._details, parent=self, margins=(0, 0, 0, 0), spacing=SPACING)

    @property
    def estimate(self) -> Estimate | None:
        """The prediction that is shown; ``None`` while there is none for the form's values."""
        if self._prediction is None:
            return None
        return self._prediction.estimate

    @property
    def headline(self) -> str:
        """The text of the first line."""
        return self._headline.text()

    @property
    def figures(self) -> str:
        """The text below the bar."""
        return self._lines.text()

    @property
    def notes(self) -> str:
        """The text in the details besides parts and alternatives: the model, the assumptions, what was not tried."""
        notes = (self._model, self._time, self._granted)
        return "\n".join(note.text() for note in notes if note.text())

    @property
    def rank_lines(self) -> str:
        """The text about the other ranks and the assumed interconnect; "" for a run on one device."""
        return self._ranks.text()

    @property
    def alternatives(self) -> list[AlternativeRow]:
        """The rows of the alternatives, from the top."""
        return list(self._rows)

    @property
    def regarded_alternative(self) -> AlternativeText | None:
        """The alternative under the pointer, else the one with the focus."""
        return self._regarded

    def _regard(self) -> None:
        """Update which row is under the pointer or has the focus."""
        if self._details.isHidden():
            seen = []
        else:
            seen = self._rows
        # The pointer takes precedence over the focus: it is moved on purpose.
        row = next((row for row in seen if row.under_pointer), None) or next((row for row in seen if row.focused), None)
        way = None
        if row is not None:
            way = row.way
        if way != self._regarded:
            self._regarded = way
            self.regarded.emit()

    def set_palette(self, palette: Palette) -> None:
        """Redraw in other colours."""
        self._palette = palette
        self._show()

    def set_roomy(self, roomy: bool) -> None:
        """Open the details if there is room for all of them, and close them otherwise, unless the user has decided."""
        if roomy and not self._shows_all:
            self._show_others()
        if self._chosen_open is None and roomy != self.is_open:
            self._set_open(roomy)

    @property
    def is_open(self) -> bool:
        """Whether the details are open."""
        return self._toggle.isChecked()

    def show_estimate(
        self,
        estimate: Estimate,
        *,
        whole: bool,
        at_peak: Mapping[str, float] | None = None,
        step: StepTime | None = None,
    ) -> None:
        """Show a prediction.

        Args:
            estimate: the prediction so far.
            whole: whether it is complete.
            at_peak: as in `Prediction`.
            step: predicted time of a step; ``None`` if unknown.
        """
        self._time_lines = [] if step is None else list(time_lines(step))
        prediction = self._prediction = Prediction(estimate, at_peak)
        self._reason, self._whole, self._reached = False, whole, None
        self._headline.setToolTip(plain_tip("\n".join(filter(None, (prediction.release, estimate.method)))))
        self._set_headline(prediction.verdict, prediction.headline)
        remarks = (prediction.margin_remark, prediction.largest, prediction.alone, prediction.largest_batch_remark)
        self._set_lines(_figures(prediction), tip="\n".join(filter(None, remarks)))
        self._show()

    def withdraw(self, text: str = PREDICTING) -> None:
        """Clear the prediction because it was made for other values; its room stays, so that nothing moves.

        Args:
            text: what is being waited for.
        """
        self._prediction, self._reason, self._whole = None, False, True
        self._headline.setToolTip("")
        self._set_headline("unknown", text)
        self._set_lines("")
        self._show()

    def show_server(self, server: ServerOnCard) -> None:
        """Show what a server of the model needs; its parts are in the plot."""
        self._prediction, self._reason, self._whole = None, True, True
        self._headline.setToolTip("")
        verdict = server.standing
        self._set_headline("none" if verdict == "refused" else verdict, server.headline)
        self._set_lines("\n".join(server.lines), tip="\n".join((server.headline, *server.lines)))
        self._show()
        if server.shorter_length:
            length = server.shorter_length
            self._offer_first_way(Alternative(f"sequences of {format_count(length)}", {"sequence": length}))

    def show_changed_run(self, change: str, need: str) -> None:
        """Show that the script runs with a change, instead of the prediction for it as it is.

        Args:
            change: the change: "with batch 6".
            need: what the script needs with it.
        """
        # Called at each reading; a prediction may have been shown since.
        if self._prediction is None and (self.headline, self.figures) == (change, need):
            return
        self.withdraw(change)
        self._set_lines(need)

    def show_missing(self, message: str) -> None:
        """Ask for what is missing before anything can be predicted."""
        self.show_reason(message, "")
        self._set_headline("none", NOTHING_YET)

    def show_reason(self, message: str, remedy: str) -> None:
        """Show why nothing can be predicted."""
        self._prediction, self._reason, self._whole = None, True, True
        self._headline.setToolTip("")
        self._set_headline("none", "cannot be predicted")
        self._set_lines(message, tip=f"{message} {remedy}".strip())
        self._show()

    def set_running(self, running: bool) -> None:
        """Set whether a run is going on: alternatives are locked then, and the prediction is the run's."""
        self._running, self._reached = running, None
        for row in self._rows:
            row.set_locked(running)
        self._apply_first.setEnabled(not running)
        self._undo_applied.setEnabled(not running)

    @property
    def applied_text(self) -> str:
        """What was applied last, as long as it can be taken back here; else ""."""
        return self._applied_text.text()

    def show_applied(self, change: str) -> None:
        """Show that ``change`` was applied, with a button that takes it back; "" shows neither."""
        text = ""
        if change:
            text = f"{change} applied"
        if text == self.applied_text:
            return
        self._applied_text.setText(text)
        self._undo_applied.setAccessibleName(f"Undo: {change}")
        self._applied.setVisible(bool(text))

    def show_reached(self, reserved: int | None) -> None:
        """Compare the prediction with its run.

        Args:
            reserved: peak bytes reserved by PyTorch so far; ``None`` or 0 while unknown.
        """
        # Called at each reading; most of them do not raise the peak.
        if self._prediction is None or not reserved or reserved == self._reached:
            return
        self._reached = reserved
        self._set_headline("unknown", self._prediction.reached(reserved))
        self.bar.show_prediction(self._prediction, self._palette, reserved + self._prediction.estimate.overhead_bytes)

    def _set_headline(self, verdict: str, text: str) -> None:
        role, sign = VERDICT_ROLES[verdict]
        self._headline.setText(f"{sign}{text}")
        if self._headline.property("role") != role:
            # A style sheet evaluates properties only when the widget is polished.
            self._headline.setProperty("role", role)
            self._headline.style().unpolish(self._headline)
            self._headline.style().polish(self._headline)
        self._is_verdict = verdict != "unknown"
        self._fit_headline()

    def _fit_headline(self) -> None:
        """Show the verdict in the largest size that fits the width; the room for it never changes."""
        base = self.font()
        font = QFont(base)
        font.setPointSizeF(base.pointSizeF() * HEADLINE_SIZES[0])
        font.setBold(True)
        self._headline.setFixedHeight(QFontMetrics(font).height())
        if self._is_verdict:
            text = self._headline.text()
            for size in HEADLINE_SIZES:
                font.setPointSizeF(base.pointSizeF() * size)
                if QFontMetrics(font).horizontalAdvance(text) <= self.width():
                    break
        else:
            font = QFont(base)
        self._headline.setFont(font)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._fit_headline()

    def changeEvent(self, event: QEvent) -> None:
        super().changeEvent(event)
        if event.type() is QEvent.Type.FontChange:
            self._fit_headline()

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if watched is self._lines and event.type() is QEvent.Type.FontChange:
            self._share_height()
        return super().eventFilter(watched, event)

    def _show_ranks(self) -> None:
        prediction = self._prediction
        if prediction is None:
            # Empty lines keep the height of the previous text.
            self._ranks.setText("\n" * self._ranks.text().count("\n"))
            self._ranks.setVisible(self._ranks.isVisibleTo(self) and not self._reason)
            return
        lines = list(filter(None, (*prediction.rank_lines, prediction.lower_bound, prediction.assumed)))
        self._ranks.setText("\n".join(lines))
        self._ranks.setVisible(bool(lines))

    def _set_lines(self, text: str, tip: str = "") -> None:
        self._lines.setText(text)
        self._lines.setToolTip(plain_tip(tip))

    def _apply_first_way(self) -> None:
        if self._first_way is not None:
            self.applied.emit(self._first_way)

    def _offer_first_way(self, way: Alternative | None) -> None:
        """Show the button of the change that the figures name; without one the lines have all the width."""
        self._first_way = way
        self._apply_first.setVisible(way is not None)
        if way is not None:
            self._apply_first.setAccessibleName(f"Apply: {way.change}")
            self._apply_first.setToolTip(plain_tip(_apply_text(way)))

    def _show(self) -> None:
        prediction = self._prediction
        way = first_way(prediction)
        self._offer_first_way(None if way is None else way.alternative)
        self.bar.show_prediction(prediction, self._palette)
        self._toggle.setEnabled(prediction is not None)
        more = ", still searching…"
        if self._whole:
            more = ""
        self._toggle.setText(f"{_toggle_text(prediction, whole=self._whole)}{more}")
        self._share_height()
        self._show_ranks()
        opened = self._toggle.isChecked() and not self._reason
        self._details.setVisible(opened)
        if opened:
            self._fill(prediction)
        self._regard()

    def _share_height(self) -> None:
        """Let a reason replace the bar and the switch, and take their height: nothing else moves."""
        self.bar.setVisible(not self._reason)
        self._toggle.setVisible(not self._reason)
        height = 2 * self._lines.fontMetrics().lineSpacing() + 2
        if self._reason:
            height += self.bar.height() + self._toggle.sizeHint().height() + 2 * SPACING
        # Fixed, since a label's own height follows its text.
        self._lines.setFixedHeight(height)

    def _fill(self, prediction: Prediction | None) -> None:
        """Update the details. A row stays while its alternative does, since the pointer may be on it."""
        self._column.removeWidget(self._legend)
        self._legend.hide()
        self._legend.deleteLater()
        self._legend = self._make_legend([] if prediction is None else prediction.segments)
        _say(self._model, [] if prediction is None else prediction.model_lines)
        untried = []
        if prediction is not None and self._whole:
            untried = [prediction.untried]
        _say(self._time, [] if prediction is None else self._time_lines)
        _say(self._granted, [] if prediction is None else [prediction.alone, *untried, *prediction.assumption_lines])
        old, self._rows = self._rows, []
        for place, way in enumerate(sorted(_ways(prediction), key=_order)):
            row = next((row for row in old if row.way == way), None)
            if row is None:
                row = AlternativeRow(way)
                row.applied.connect(self.applied)
                row.regarded.connect(self._regard)
                row.set_locked(self._running)
            else:
                old.remove(row)
            self._column.insertWidget(place + 1, row)  # after the model
            self._rows.append(row)
        self._column.insertWidget(len(self._rows) + 1, self._others)
        # If the run does not fit, alternatives come first; the parts are also in the plot, at the peak.
        before = 1
        if prediction is not None and prediction.estimate.fits is False:
            before += len(self._rows) + 1
        self._column.insertWidget(before, self._legend)
        self._legend.show()
        for row in old:
            self._column.removeWidget(row)
            row.hide()
            row.deleteLater()
        self._hide_others()
        self._details.settle(shrinks=prediction is not None and self._whole)

    def _hide_others(self) -> None:
        """Show the first rows, and how many more there are; one more has the room that the button would take."""
        shown = len(self._rows)
        if not self._shows_all and shown > FIRST_ROWS + 1:
            shown = FIRST_ROWS
        for place, row in enumerate(self._rows):
            row.setVisible(place < shown)
        self._others.setText(f"{len(self._rows) - shown} more")
        self._others.setVisible(shown < len(self._rows))

    def _show_others(self) -> None:
        self._shows_all = True
        self._hide_others()
        self._details.settle(shrinks=False)

    def _make_legend(self, parts: Sequence[tuple[str, int]]) -> QWidget:
        legend = QWidget()
        grid = QGridLayout(legend)
        grid.setContentsMargins(0, 0, 0, 0)
        grid.setHorizontalSpacing(8)
        grid.setVerticalSpacing(1)
        rows = -(-len(parts) // LEGEND_COLUMNS)
        for number, (name, size) in enumerate(parts):
            colour = part_colour(name, self._palette)
            text = name.removesuffix(" in the allocator").removesuffix(" state").removesuffix(" (assumed)")
            label = PlainLabel(role="legend")
            label.setTextFormat(Qt.TextFormat.RichText)
            label.setText(f'<span style="color:{colour}">■</span> {escape(text)} <b>{format_bytes(size)}</b>')
            label.setToolTip(plain_tip(f"{name}: {format_bytes(size)}"))
            # Fill one column, then the next.
            grid.addWidget(label, number % rows, number // rows)
        return legend

    def open_details(self) -> None:
        """Open the details, as if the user had."""
        self._toggled(True)

    def _toggled(self, opened: bool) -> None:
        self._chosen_open = opened
        self._set_open(opened)
        self.folded.emit()

    def _set_open(self, opened: bool) -> None:
        self._toggle.setChecked(opened)
        self._toggle.setArrowType(Qt.ArrowType.DownArrow if opened else Qt.ArrowType.RightArrow)
        self._show()


def _note(name: str) -> PlainLabel:
    """A text in the details; it may be empty."""
    label = PlainLabel(role="legend", wraps=True)
    label.setAccessibleName(name)
    label.hide()
    return label


def _say(label: PlainLabel, lines: Sequence[str]) -> None:
    label.setText("\n".join(filter(None, lines)))
    label.setVisible(bool(label.text()))


def _ways(prediction: Prediction | None) -> tuple[AlternativeText, ...]:
    """The rows: what would fit, else what recipes would save."""
    if prediction is None:
        return ()
    return prediction.remedies or prediction.savings


def _order(way: AlternativeText) -> int:
    """What fits comes first; within that, the given order (least harmful first) is kept."""
    return {True: 0, None: 1, False: 2}[way.alternative.fits]


def _toggle_text(prediction: Prediction | None, *, whole: bool) -> str:
    left = ""
    if prediction is not None and whole and prediction.untried:
        left = ", search stopped early"
    if prediction is None or not _ways(prediction):
        return f"Details{left}"
    if not prediction.remedies:
        return f"What recipes would save ({len(prediction.savings)}){left}"
    return f"What would fit ({sum(way.alternative.fits is True for way in prediction.remedies)}){left}"


def _figures(prediction: Prediction) -> str:
    if prediction.estimate.peak_allocated_bytes is None:
        return prediction.estimate.reason
    way = first_way(prediction)
    if way is not None:
        return f"{prediction.need}\nfits with {way.change}"
    return "\n".join(filter(None, (prediction.need, prediction.largest)))


def first_way(prediction: Prediction | None) -> AlternativeText | None:
    """A change of the form with which a run fits that no batch makes fit, the result of training being the same.

    ``None`` if there is no such change, or it is not known yet.
    """
    if prediction is None or prediction.estimate.fits is not False or prediction.estimate.largest_batch_size:
        return None
    for way in prediction.remedies:
        change = way.alternative
        if change.fits and change.fields and change.device is None and not change.changes_training:
            return way
    return None


_FIT_ROLES = {True: ("good", "✓"), False: ("error", "✕"), None: ("warn", "≈")}


class AlternativeRow(QWidget):
    """A change, what it needs and its cost; with a button if the form can make it.

    Attributes:
        under_pointer, focused: whether the row has the pointer or the focus.

    Signals:
        applied: the `Alternative`; its button was pressed.
        regarded: `under_pointer` or `focused` changed.
    """

    applied = Signal(object)
    regarded = Signal()

    def __init__(self, way: AlternativeText, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.way = way
        self.under_pointer = self.focused = False
        self.setProperty("role", "remedy")
        self.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
        self.alternative = way.alternative
        grid = QGridLayout(self)
        grid.setContentsMargins(4, 2, 2, 2)
        grid.setHorizontalSpacing(6)
        grid.setVerticalSpacing(0)
        grid.setColumnStretch(1, 1)
        role, sign = _FIT_ROLES[way.alternative.fits]
        mark = PlainLabel(sign, role=role)
        mark.setFixedWidth(12)
        mark.setToolTip(plain_tip(way.fit))
        change = PlainLabel(way.change, wraps=True)
        costs = PlainLabel(_costs(way), role="legend", wraps=True)
        grid.addWidget(mark, 0, 0)
        grid.addWidget(change, 0, 1)
        grid.addWidget(costs, 1, 1, 1, 3)
        self.copy_button = self._make_copy_button()
        if self.copy_button is not None:
            grid.addWidget(self.copy_button, 0, 3)
            self.copy_button.installEventFilter(self)
        self.button = self._make_button()
        if self.button is not None:
            grid.addWidget(self.button, 0, 2)
            # The button has the focus, but the row is what it refers to.
            self.button.installEventFilter(self)
        self.setAccessibleName(f"{way.change}: {way.fit}; {_costs(way)}")

    def enterEvent(self, event: QEnterEvent) -> None:
        self._regard(pointer=True, focus=self.focused)

    def leaveEvent(self, event: QEvent) -> None:
        self._regard(pointer=False, focus=self.focused)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if event.type() in (QEvent.Type.FocusIn, QEvent.Type.FocusOut):
            self._regard(pointer=self.under_pointer, focus=event.type() is QEvent.Type.FocusIn)
        return super().eventFilter(watched, event)

    def _regard(self, *, pointer: bool, focus: bool) -> None:
        self.under_pointer = pointer
        self.focused = focus
        self.regarded.emit()

    def _make_button(self) -> QPushButton | None:
        """A button that applies the alternative or copies its command; ``None`` if neither is possible here."""
        alternative = self.alternative
        if alternative.allocator:
            start = start_text(alternative.allocator)
            button = self._chip("Copy", f"Copy the command that starts gpudash with it:\n{start}")
            button.clicked.connect(lambda: QGuiApplication.clipboard().setText(start))
            return button
        if alternative.patch or alternative.command:
            button = self._chip("Run", "Run the script with this change, from a copy; your files are unchanged")
        elif alternative.fields or alternative.device is not None:
            button = self._chip("Apply", _apply_text(alternative))
        else:
            return None
        button.clicked.connect(lambda: self.applied.emit(alternative))
        return button

    def _make_copy_button(self) -> QPushButton | None:
        """A button that copies an edit of a program, or the command with the change; ``None`` if it is neither."""
        edit = self.alternative.patch
        tip = "Copy the change, for patch -p0 in the script's folder"
        label = "Copy patch"
        if not edit:
            edit = shlex.join(self.alternative.command)
            tip = "Copy the command with the change"
            label = "Copy"
        if not edit:
            return None
        button = self._chip(label, f"{tip}:\n{edit}")
        button.clicked.connect(lambda: QGuiApplication.clipboard().setText(edit))
        return button

    def _chip(self, text: str, tip: str) -> QPushButton:
        button = QPushButton(text)
        button.setToolTip(plain_tip(tip))
        button.setProperty("role", "chip")
        button.setAccessibleName(f"{text}: {self.way.change}")
        return button

    def set_locked(self, locked: bool) -> None:
        """Set whether the form is locked."""
        if self.button is not None and not self.alternative.allocator:
            self.button.setEnabled(not locked)


def start_text(setting: str) -> str:
    """The command that starts this process again, simulated GPUs included, with an allocator setting."""
    return f"{assignment(setting)} {shlex.join(['gpudash', *sys.argv[1:]])}"


def _costs(way: AlternativeText) -> str:
    needs = ""
    if way.needs:
        needs = f"needs {way.needs}"
    start = ""
    if way.alternative.allocator:
        start = "set it before starting gpudash"
    saves = ""
    if way.alternative.saved_bytes is not None:
        saves = f"saves {format_bytes(way.alternative.saved_bytes)}"
    return " · ".join(filter(None, (saves, needs, way.price, start)))


def _apply_text(alternative: Alternative) -> str:
    if alternative.device is not None:
        return f"Choose {shown_name(alternative.device)}"
    changes = (f"{name.replace('_', ' ')} {value}" for name, value in alternative.fields.items())
    return f"Set {', '.join(changes)}"


def part_colour(name: str, palette: Palette) -> str:
    """The colour of a part of the bar, which is that of its band in the plots if it has one."""
    return palette.curves[{HELD_BACK: "idle", COMMUNICATION: "other tensors"}.get(name, name)]


class FitBar(QWidget):
    """A bar up to what is free, or to what is needed if that is more; the excess is hatched."""

    def __init__(self, palette: Palette, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._palette = palette
        self._prediction: Prediction | None = None
        self._reached: int | None = None
        self.setFixedHeight(BAR_HEIGHT)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self.setAccessibleName("Predicted memory")

    def show_prediction(self, prediction: Prediction | None, palette: Palette, reached: int | None = None) -> None:
        """Draw a prediction; ``None`` draws an empty bar. A mark shows the bytes ``reached`` by its run."""
        self._prediction, self._palette, self._reached = prediction, palette, reached
        if prediction is None:
            parts = []
        else:
            parts = [f"{name} {format_bytes(size)}" for name, size in prediction.segments]
        if prediction is not None:
            parts = [prediction.headline, *parts, prediction.need]
        self.setAccessibleDescription("; ".join(filter(None, parts)))
        self.update()

    def parts(self) -> list[tuple[str, int, QRectF]]:
        """Name, bytes and rectangle of each part, from the left."""
        if self._prediction is None:
            return []
        scale = self._pixels_per_byte(self._prediction)
        placed, left = [], 0.0
        for name, size in self._prediction.segments:
            width = size * scale
            placed.append((name, size, QRectF(left, 1, width, BAR_HEIGHT - 2)))
            left += width
        return placed

    def free_end(self) -> float | None:
        """The x coordinate where free memory ends; ``None`` if unknown or at the end of the bar."""
        prediction = self._prediction
        free = None
        if prediction is not None:
            free = prediction.estimate.free_bytes
        if prediction is None or free is None:
            return None
        if prediction.bar_bytes + prediction.estimate.convolutions.unknown_bytes <= free:
            return None
        return free * self._pixels_per_byte(prediction)

    def _pixels_per_byte(self, prediction: Prediction) -> float:
        # More may be needed than is free: scale the bar to fit both.
        most = prediction.bar_bytes + prediction.estimate.convolutions.unknown_bytes
        return self.width() / max(most, prediction.estimate.free_bytes or 0, 1)

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(QPen(QColor(self._palette.border), 1))
        painter.setBrush(QColor(self._palette.window))
        painter.drawRoundedRect(QRectF(0.5, 0.5, self.width() - 1, BAR_HEIGHT - 1), 3, 3)
        painter.setPen(Qt.PenStyle.NoPen)
        for name, _size, place in self.parts():
            colour = QColor(part_colour(name, self._palette))
            gap = 0.0
            if place.width() > SMALLEST:
                gap = GAP
            painter.fillRect(place.adjusted(0, 0, -gap, 0), colour)
        self._mark_unknown(painter)
        end = self.free_end()
        if end is not None:
            self._mark_overhang(painter, end)
        if self._prediction is not None and self._reached is not None:
            at = self._reached * self._pixels_per_byte(self._prediction)
            painter.fillRect(QRectF(min(at, self.width()) - 1.5, 0, 3, BAR_HEIGHT), QColor(self._palette.text))

    def unknown(self) -> QRectF | None:
        """The rectangle of what convolutions may take beyond all parts; ``None`` if nothing about them is unknown."""
        prediction = self._prediction
        if prediction is None or not prediction.estimate.convolutions.unknown_bytes:
            return None
        scale = self._pixels_per_byte(prediction)
        width = prediction.estimate.convolutions.unknown_bytes * scale
        return QRectF(prediction.bar_bytes * scale, 1, width, BAR_HEIGHT - 2)

    def _mark_unknown(self, painter: QPainter) -> None:
        place = self.unknown()
        if place is not None:
            self._hatch(painter, place, QColor(self._palette.muted))

    def _mark_overhang(self, painter: QPainter, end: float) -> None:
        critical = QColor(self._palette.critical)
        beyond = QRectF(end, 1, self.width() - end, BAR_HEIGHT - 2)
        painter.fillRect(beyond, QColor(self._palette.banner_critical))
        self._hatch(painter, beyond, critical)
        painter.fillRect(QRectF(end - 1, 0, 2, BAR_HEIGHT), critical)

    def _hatch(self, painter: QPainter, place: QRectF, colour: QColor) -> None:
        painter.setBrush(Qt.BrushStyle.NoBrush)
        painter.setClipRect(place)
        painter.setPen(QPen(colour, 1.5))
        for left in range(int(place.left()) - BAR_HEIGHT, int(place.right()) + BAR_HEIGHT, 6):
            painter.drawLine(left, BAR_HEIGHT, left + BAR_HEIGHT, 0)
        painter.setClipping(False)

    def event(self, event: QEvent) -> bool:
        if event.type() is QEvent.Type.ToolTip and isinstance(event, QHelpEvent):
            QToolTip.showText(event.globalPos(), plain_tip(self.text_at(event.pos().x())), self)
            return True
        return super().event(event)

    def text_at(self, x: float) -> str:
        """A description of the bar at an x coordinate."""
        prediction = self._prediction
        if prediction is None:
            return "Nothing has been predicted yet"
        end = self.free_end()
        beyond = ""
        if end is not None and x > end:
            beyond = "\nbeyond what is free"
        for name, size, place in self.parts():
            if place.left() <= x <= place.right():
                return f"{name}: {format_bytes(size)}{beyond}"
        unknown = self.unknown()
        if unknown is not None and unknown.left() <= x <= unknown.right():
            more = format_bytes(prediction.estimate.convolutions.unknown_bytes)
            return f"convolutions may take up to {more} more on this card{beyond}"
        left = prediction.scale.apart(prediction.bar_bytes, prediction.estimate.free_bytes or 0)
        return f"left over at the peak: {left}"
