"""The plots of a comparison: loss, throughput and memory of every run over one axis, and a difference below."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyqtgraph
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QComboBox, QFrame, QHBoxLayout, QLabel, QSizePolicy, QVBoxLayout, QWidget

from gpudash.telemetry.comparing import ComparedRun, Curve
from gpudash.telemetry.comparing.alignment import MEMORY, Alignment, Quantity, aligned, shared_memory
from gpudash.telemetry.comparing.curves import EMPTY, difference
from gpudash.telemetry.comparing.words import MINUS
from gpudash.ui.compare.looks import LETTERS, run_pen
from gpudash.ui.compare.overlay_plot import MIN_SPAN, OverlayPlot
from gpudash.ui.plots.curve import Unit, format_value
from gpudash.ui.theme import Palette

APART = "A and B have no common part: drag B over A."
"""What is said instead while there is nothing to subtract."""

HINT = "Drag moves B · Shift+drag pans · wheel zooms"

_PLAIN: dict[Quantity, tuple[str, Unit, str]] = {
    "loss": ("LOSS", "loss", ""),
    "accuracy": ("ACCURACY", "ratio", ""),
    "throughput": ("THROUGHPUT", "number", "items/s"),
}

_WHERE = {"start": "seconds from the start", "step": "steps", "mark": "seconds from the mark"}


@dataclass(frozen=True, slots=True)
class Laying:
    """How runs are laid over one another.

    Attributes:
        alignment: what is laid over what.
        mark: label of the mark, for "mark".
        offset: how far B is moved to the right, in seconds or steps.
    """

    alignment: Alignment = "start"
    mark: str = ""
    offset: float = 0.0


class Overlay(QFrame):
    """The plots under one another."""

    def __init__(self, palette: Palette, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setProperty("role", "panel")
        self._palette = palette
        self._runs: Sequence[ComparedRun] = ()
        self._laying = Laying()
        self._span: tuple[float, float] | None = None
        self._cursor = math.nan
        self._dirty = True
        self._drawn_columns = 0
        self._curves: dict[Quantity, list[Curve]] = {}
        self.plots: dict[Quantity, OverlayPlot] = {}
        self.difference = OverlayPlot(MINUS.upper(), "loss", signed=True)
        self.difference.setMinimumHeight(120)
        self.quantity = QComboBox()
        self.quantity.setAccessibleName("Quantity whose difference is drawn")
        self.quantity.setToolTip("What the lowest plot subtracts")
        self.quantity.currentIndexChanged.connect(lambda _row: self.touch())
        self.readout = QLabel()
        self.readout.setProperty("role", "muted")
        self.readout.setTextFormat(Qt.TextFormat.PlainText)
        self.readout.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
        self.readout.setWordWrap(True)
        self.readout.setAlignment(Qt.AlignmentFlag.AlignTop)
        self.readout.setMinimumHeight(2 * self.readout.fontMetrics().lineSpacing())
        self.nothing = QLabel("Neither loss, throughput nor memory was recorded of these runs; the figures are beside.")
        self.nothing.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self.nothing.setWordWrap(True)
        self.nothing.setProperty("role", "muted")
        self._column = QVBoxLayout(self)
        self._column.setContentsMargins(6, 4, 10, 6)
        self._column.setSpacing(2)
        self._column.addWidget(self.nothing, 1)
        self._column.addWidget(self._chooser())
        self._column.addWidget(self.difference, 3)
        self._column.addWidget(self.readout)
        self._listen(self.difference)

    def _chooser(self) -> QWidget:
        self._chooser_row = QWidget()
        row = QHBoxLayout(self._chooser_row)
        row.setContentsMargins(4, 2, 0, 0)
        words = QLabel(f"{MINUS} of")
        words.setProperty("role", "muted")
        row.addWidget(words)
        row.addWidget(self.quantity)
        self.hint = QLabel(HINT)
        self.hint.setProperty("role", "legend")
        self.hint.setToolTip("A double click shows everything again")
        self.hint.setWordWrap(True)
        self.hint.setAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
        self.hint.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
        row.addWidget(self.hint, 1)
        return self._chooser_row

    def _listen(self, plot: OverlayPlot) -> None:
        plot.box.zoomed.connect(self.zoom)
        plot.box.panned.connect(self._pan)
        plot.box.reset.connect(self.show_all)
        plot.hovered.connect(self.set_cursor)

    def set_runs(self, runs: Sequence[ComparedRun]) -> None:
        """Show these runs from now on, the first as A."""
        self._runs = list(runs)
        memory = shared_memory(self._runs)
        wanted: list[Quantity] = [name for name in ("loss", "throughput") if any(self._has(run, name) for run in runs)]
        if memory is not None:
            wanted.append(memory)
        for plot in self.plots.values():
            for gone in (plot.heading, plot):
                self._column.removeWidget(gone)
                gone.deleteLater()
        self.plots = {}
        self.quantity.blockSignals(True)
        self.quantity.clear()
        for place, name in enumerate(wanted):
            title, unit, unit_name = _PLAIN.get(name, (f"MEMORY, {name.upper()}", "bytes", ""))
            plot = self.plots[name] = OverlayPlot(title, unit, unit_name)
            self._listen(plot)
            self._column.insertWidget(2 * place, plot.heading)
            self._column.insertWidget(2 * place + 1, plot, 3)
            self.quantity.addItem(f"memory, {name}" if name in MEMORY else name, name)
        self.quantity.blockSignals(False)
        for part in (self._chooser_row, self.difference, self.readout):
            part.setVisible(bool(wanted))
        self.nothing.setVisible(not wanted)
        self.set_palette(self._palette)

    def _has(self, run: ComparedRun, name: Quantity) -> bool:
        return len(aligned(run, name, "start").x) > 0

    def set_laying(self, laying: Laying) -> None:
        """Lay the runs over one another in another way; the view stays where the axis stays the same."""
        before, self._laying = self._laying, laying
        self._curves = {
            name: [self._laid(place, run, name) for place, run in enumerate(self._runs)] for name in self.plots
        }
        if self._span is None or (before.alignment, before.mark) != (laying.alignment, laying.mark):
            self.show_all()
        self.touch()

    def _laid(self, place: int, run: ComparedRun, name: Quantity) -> Curve:
        curve = aligned(run, name, self._laying.alignment, self._laying.mark)
        return curve.moved(self._laying.offset) if place == 1 else curve

    @property
    def span(self) -> tuple[float, float]:
        """The part of the axis that is shown."""
        return self._span or (0.0, 1.0)

    def show_all(self) -> None:
        """Show every run whole."""
        extents = [curve.extent for curves in self._curves.values() for curve in curves]
        known = [extent for extent in extents if extent is not None]
        low = min((extent[0] for extent in known), default=0.0)
        high = max((extent[1] for extent in known), default=1.0)
        self._span = (low, max(high, low + MIN_SPAN))
        self.touch()

    def zoom(self, factor: float, place: float) -> None:
        """Make the shown part ``factor`` times as wide around ``place``."""
        low, high = self.span
        factor = max(factor, MIN_SPAN / (high - low))
        self._span = (place - (place - low) * factor, place + (high - place) * factor)
        self.touch()

    def _pan(self, by: float) -> None:
        self._span = (self.span[0] - by, self.span[1] - by)
        self.touch()

    def set_cursor(self, place: float) -> None:
        """Tell the values at ``place``; NaN for nowhere."""
        self._cursor = place
        self._tell()
        for plot in (*self.plots.values(), self.difference):
            plot.set_cursor(place)

    def set_palette(self, palette: Palette) -> None:
        """Draw in other colours."""
        self._palette = palette
        for plot in self.plots.values():
            plot.set_look(palette, shows_places=False)
        self.difference.set_look(palette, shows_places=True)
        self.touch()

    def touch(self) -> None:
        """Draw anew at the next `refresh`."""
        self._dirty = True

    def refresh(self) -> bool:
        """Draw what changed; answers whether anything was drawn."""
        columns = self.difference.columns
        if not self.plots or not (self._dirty or columns != self._drawn_columns):
            return False
        self._dirty, self._drawn_columns = False, columns
        pens = [run_pen(place, self._palette) for place in range(len(self._runs))]
        for name, plot in self.plots.items():
            plot.show_curves(self._curves.get(name, ()), pens, *self.span)
            plot.setAccessibleDescription(self._description(name))
        self._draw_difference(columns)
        self._tell()
        return True

    def _draw_difference(self, columns: int) -> None:
        name: Quantity = self.quantity.currentData()
        plot = self.plots[name]
        self.difference.set_unit(plot.unit, plot.unit_name)
        self.difference.set_title(f"{MINUS.upper()}, {plot.title}")
        self.difference.places.setLabel(_WHERE[self._laying.alignment])
        curve = self._difference(name, columns)
        self.hint.setText(HINT if len(curve.x) else APART)
        self.difference.show_curves([curve], [pyqtgraph.mkPen(self._palette.text, width=1)], *self.span)
        self.difference.setAccessibleDescription(f"{MINUS}; above 0 B has more.")

    def _difference(self, name: Quantity, columns: int) -> Curve:
        curves = self._curves.get(name, [])
        return difference(curves[0], curves[1], *self.span, columns) if len(curves) > 1 else EMPTY

    def _description(self, name: Quantity) -> str:
        plot, parts = self.plots[name], []
        for letter, curve in zip(LETTERS, self._curves.get(name, ()), strict=False):
            known = curve.y[np.isfinite(curve.y)]
            words = f"{letter} ends at {self._words(plot, float(known[-1]))}" if len(known) else f"{letter} has none"
            parts.append(words)
        return f"{plot.title.capitalize()}: {', '.join(parts)}."

    def _words(self, plot: OverlayPlot, value: float) -> str:
        return format_value(plot.unit, value, plot.unit_name)

    def _tell(self) -> None:
        """The values at the cursor, of every run and quantity."""
        if math.isnan(self._cursor):
            self.readout.setText("Point at a plot to read values.")
            return
        where = f"{self._cursor:.0f}" if self._laying.alignment == "step" else f"{self._cursor:.2f} s"
        parts = [f"{'step ' if self._laying.alignment == 'step' else ''}{where}"]
        for name, plot in self.plots.items():
            values = [_at(curve, self._cursor) for curve in self._curves.get(name, ())]
            told = [f"{letter} {self._words(plot, value)}" for letter, value in zip(LETTERS, values, strict=False)]
            parts.append(f"{plot.title.lower()}: {', '.join(told)}")
        self.readout.setText("   ".join(parts))


def _at(curve: Curve, place: float) -> float:
    """The newest value at or before ``place``; NaN outside the curve."""
    extent = curve.extent
    if extent is None or not extent[0] <= place <= extent[1]:
        return math.nan
    return float(curve.y[int(np.searchsorted(curve.x, place, "right")) - 1])
