"""Panes 1 and 3: what filled the memory, with chips and a search field to narrow it, and when."""

from __future__ import annotations

from functools import partial

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QCheckBox, QFrame, QPushButton, QVBoxLayout, QWidget

from gpudash.telemetry.explanation import short
from gpudash.ui.colours import Palette
from gpudash.ui.explanation.bar import PartsBar
from gpudash.ui.snapshot.drawing.timeline import Timeline
from gpudash.ui.snapshot.selection import Selection
from gpudash.ui.snapshot.study import Study
from gpudash.ui.widgets.labels import search_field, title_label, worded_button
from gpudash.ui.widgets.layouts import in_row
from gpudash.ui.widgets.plain_text import PlainLabel, without_mnemonics
from gpudash.units import format_bytes

NO_HISTORY = (
    "No history was recorded, so there is no curve. Next time call torch.cuda.memory._record_memory_history() before "
    'the program allocates, and torch.cuda.memory._dump_snapshot("snapshot.pickle") at the end.'
)

WHEN_WIDTH = 340
"""Minimum width in logical pixels at which the curve is legible."""

NAMES = ("moment", "category", "path")
"""The chips, in order; two moments share one chip."""


class Panel(QFrame):
    """A frame with a column layout."""

    def __init__(self, side: int, edge: int) -> None:
        super().__init__()
        self.setProperty("role", "panel")
        self.column = QVBoxLayout(self)
        self.column.setContentsMargins(side, edge, side, edge)
        self.column.setSpacing(4)


class FilledPanel(Panel):
    """What filled the memory: the bar, the chips and the search field."""

    def __init__(self, palette: Palette) -> None:
        super().__init__(12, 6)
        self.bar = PartsBar(palette)
        self.chips = Chips()
        self._whole = PlainLabel(role="muted")
        head = in_row(title_label("WHAT FILLED IT"), self._whole, 1, self.chips, spacing=8)
        self.column.addLayout(head)
        self.column.addWidget(self.bar)

    def show_selection(self, study: Study, selection: Selection) -> None:
        """Show what the device held at the selected moment."""
        moment = study.moment_of(selection)
        parts, whole = study.parts(selection)
        refused = None
        if moment == study.home and study.explanation.requested_bytes:
            refused = study.explanation
        self.bar.show_shares(parts, whole, refused)
        self.bar.set_category(selection.category)
        more = ""
        if refused is not None:
            more = f"; asked for {refused.request_size}"
        at = ""
        if study.has_history:
            at = f" at {study.label(moment)}"
        self._whole.setText(f"{format_bytes(whole)} in all{at}{more}" if whole else "nothing is reserved")
        self.chips.show_selection(selection, study)


class WhenPanel(Panel):
    """When the memory was filled: the curve and the jump buttons.

    Signals:
        jumped: "peak" or "oom".
    """

    jumped = Signal(str)

    def __init__(self, palette: Palette) -> None:
        super().__init__(10, 6)
        self.timeline = Timeline(palette)
        self.to_oom = worded_button(
            "OOM", "Go to the last out-of-memory (O)", lambda: self.jumped.emit("oom"), role="chip"
        )
        self.to_peak = worded_button("Peak", "Go to the peak (P)", lambda: self.jumped.emit("peak"), role="chip")
        self.by_time = QCheckBox("by time")
        self.by_time.setChecked(True)
        self.by_time.setToolTip("Space events by time instead of evenly")
        self.by_time.toggled.connect(self.timeline.set_by_time)
        self.no_history = PlainLabel(NO_HISTORY, role="muted", wraps=True, selectable=True)
        self.no_history.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self.hint = PlainLabel("click: that moment · drag: compare two · wheel: zoom", role="legend")
        head = in_row(title_label("WHEN"), 1, spacing=6)
        for control in (self.to_oom, self.to_peak, self.by_time):
            head.addWidget(control)
        self.column.addLayout(head)
        self.column.addWidget(self.timeline, 1)
        self.column.addWidget(self.no_history, 1)
        self.column.addWidget(self.hint)
        self.setMinimumWidth(WHEN_WIDTH)

    def show_study(self, study: Study) -> None:
        """Draw the curve of a device, or say why there is none."""
        self.timeline.show_levels(study.levels, study.requests)
        for widget in (self.timeline, self.hint, self.to_peak, self.by_time):
            widget.setVisible(study.has_history)
        self.no_history.setVisible(not study.has_history)
        self.to_oom.setVisible(bool(study.levels.ooms))
        self.by_time.setEnabled(study.levels.time_s is not None)


class Chips(QWidget):
    """A row of buttons with a search field.

    Signals:
        removed: the `Selection` field whose chip was clicked.
        searched: the text to search for.
    """

    removed = Signal(str)
    searched = Signal(str)

    def __init__(self) -> None:
        super().__init__()
        row = in_row(parent=self, margins=(0, 0, 0, 0), spacing=6)
        self.buttons: dict[str, QPushButton] = {}
        self._field = ""
        for name in NAMES:
            button = worded_button("", "Remove this filter (Esc)", partial(self._remove, name), role="chip")
            button.hide()
            row.addWidget(button)
            self.buttons[name] = button
        self.search = search_field(
            "Search stacks   /",
            "Search stacks and categories",
            "Only blocks with this text in their stack or category (/)",
        )
        self.search.setFixedWidth(190)
        self.search.textChanged.connect(lambda text: self.searched.emit(text.strip()))
        row.addWidget(self.search)

    def show_selection(self, selection: Selection, study: Study) -> None:
        """Show what narrows the panes."""
        if selection.compared is None:
            self._field = "moment"
        else:
            self._field = "compared"
        self._show("moment", moment_text(selection, study))
        self._show("category", selection.category)
        self._show("path", path_text(selection))
        if selection.search != self.search.text().strip():
            self.search.setText(selection.search)

    def _show(self, name: str, text: str) -> None:
        button = self.buttons[name]
        button.setText(without_mnemonics(f"{text}  ×"))
        button.setAccessibleName(f"Remove {text}")
        button.setVisible(bool(text))

    def _remove(self, name: str) -> None:
        self.removed.emit(self._field if name == "moment" else name)


def moment_text(selection: Selection, study: Study) -> str:
    """The selected moment or moments as text; "" for the default one."""
    moment = study.moment_of(selection)
    if selection.compared is not None:
        return f"{study.label(selection.compared)} to {study.label(moment)}"
    if selection.moment is None:
        return ""
    return study.label(moment)


def path_text(selection: Selection) -> str:
    """The line below which blocks were allocated."""
    if not selection.path:
        return ""
    file, line, name = selection.path[-1]
    if file:
        return f"{short(file)}:{line} {name}"
    return name
