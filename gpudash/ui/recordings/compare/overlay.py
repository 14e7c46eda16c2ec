"""The plots of a comparison: loss, throughput and memory of every run on one axis, with a difference below."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QFrame, QSizePolicy, QWidget

from gpudash.drawing.axes import Unit
from gpudash.telemetry.comparing import ComparedRun, Curve
from gpudash.telemetry.comparing.comparison import LETTERS, MINUS
from gpudash.telemetry.comparing.curves import EMPTY, MEMORY, Alignment, Quantity, aligned, difference, shared_memory
from gpudash.telemetry.runs import item_of
from gpudash.ui.colours import Palette
from gpudash.ui.plots.time_axis import TimeAxis
from gpudash.ui.plots.view import SharedAxis
from gpudash.ui.recordings.compare.plots import OverlayPlot, draw_together
from gpudash.ui.widgets.fields import ChoiceField
from gpudash.ui.widgets.layouts import in_column, in_row
from gpudash.ui.widgets.plain_text import PlainLabel

APART = "A and B do not overlap: drag B over A."
"""Shown when there is nothing to subtract."""

HINT = "Point at a plot to read values · drag moves B · Shift+drag pans · wheel zooms"

_PLAIN: dict[Quantity, tuple[str, Unit, str]] = {
    "loss": ("LOSS", "loss", ""),
    "accuracy": ("ACCURACY", "ratio", ""),
    "throughput": ("THROUGHPUT", "number", ""),
}

_WHERE = {"start": "seconds from the start", "step": "steps", "mark": "seconds from the mark"}


@dataclass(frozen=True, slots=True)
class Laying:
    """How the runs are overlaid.

    Attributes:
        alignment: what to align the runs by.
        mark: the label of the mark, for "mark".
        offset: how far B is shifted to the right, in seconds or steps.
    """

    alignment: Alignment = "start"
    mark: str = ""
    offset: float = 0.0


@dataclass(frozen=True, slots=True)
class _Subject:
    """What a plot shows: a quantity, of those runs whose throughput counts this ``item``; "" for all runs."""

    quantity: Quantity
    item: str = ""

    def curve(self, run: ComparedRun, laying: Laying) -> Curve:
        """The curve of a run; empty if it is not of this plot."""
        if self.item and item_of(run.view.workload) != self.item:
            return EMPTY
        return aligned(run, self.quantity, laying.alignment, laying.mark)


def _subjects(runs: Sequence[ComparedRun]) -> dict[str, _Subject]:
    """The plots for these runs by their names; rates of different items do not share an axis."""
    found = {"loss": _Subject("loss")}
    for item in dict.fromkeys(item_of(run.view.workload) for run in runs):
        name = "throughput"
        if name in found:
            name = f"throughput, {item}"
        subject = _Subject("throughput", item)
        if any(len(subject.curve(run, Laying()).x) for run in runs):
            found[name] = subject
    memory = shared_memory(runs)
    if memory is not None:
        found[memory] = _Subject(memory)
    return {name: one for name, one in found.items() if any(len(one.curve(run, Laying()).x) for run in runs)}


class Overlay(QFrame):
    """The plots, one below the other."""

    def __init__(self, palette: Palette) -> None:
        super().__init__()
        self.setProperty("role", "panel")
        self._palette = palette
        self._runs: Sequence[ComparedRun] = ()
        self._laying = Laying()
        self.axis = SharedAxis(parent=self)
        self.axis.changed.connect(self.touch)
        self.axis.cursor_changed.connect(self._point)
        self._laid_once = False
        self._dirty = True
        self._pointed = False
        self._curves: dict[str, list[Curve]] = {}
        self._subjects: dict[str, _Subject] = {}
        self.plots: dict[str, OverlayPlot] = {}
        self.difference = OverlayPlot(MINUS.upper(), "loss", "", self.axis, palette, signed=True)
        self.difference.outdated.connect(self.touch)
        self.places = TimeAxis(palette)
        self.quantity = ChoiceField("Quantity whose difference is drawn", "What the lowest plot subtracts")
        self.quantity.currentIndexChanged.connect(lambda _row: self.touch())
        self.readout = PlainLabel(role="muted", wraps=True)
        self.readout.setToolTip("A double click shows everything again")
        self.readout.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
        self.readout.setAlignment(Qt.AlignmentFlag.AlignTop)
        self.readout.setMinimumHeight(2 * self.readout.fontMetrics().lineSpacing())
        self.nothing = PlainLabel(
            "Neither loss, throughput nor memory was recorded for these runs; the figures are at the right.",
            role="muted",
            wraps=True,
        )
        self.nothing.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self._column = in_column(
            (self.nothing, 1),
            self._chooser(),
            (self.difference, 3),
            self.places,
            self.readout,
            parent=self,
            margins=(6, 4, 10, 6),
            spacing=2,
        )

    def _chooser(self) -> QWidget:
        self._chooser_row = QWidget()
        text = PlainLabel(f"{MINUS} of", role="muted")
        self.apart = PlainLabel(role="legend", wraps=True)
        self.apart.setAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
        self.apart.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
        in_row(text, self.quantity, (self.apart, 1), parent=self._chooser_row, margins=(4, 2, 0, 0))
        return self._chooser_row

    def set_runs(self, runs: Sequence[ComparedRun]) -> None:
        """Show these runs, the first one as A."""
        self._runs = list(runs)
        self._subjects = _subjects(self._runs)
        for plot in self.plots.values():
            for gone in (plot.heading, plot):
                self._column.removeWidget(gone)
                gone.deleteLater()
        self.plots = {}
        self.quantity.blockSignals(True)
        self.quantity.clear()
        for place, (name, subject) in enumerate(self._subjects.items()):
            title, unit, unit_name = _PLAIN.get(subject.quantity, (f"MEMORY, {name.upper()}", "bytes", ""))
            if subject.item:
                unit_name = f"{subject.item}/s"
            plot = self.plots[name] = OverlayPlot(title, unit, unit_name, self.axis, self._palette)
            plot.outdated.connect(self.touch)
            self._column.insertWidget(2 * place, plot.heading)
            self._column.insertWidget(2 * place + 1, plot, 3)
            self.quantity.addItem(f"memory, {name}" if name in MEMORY else name, name)
        both = (place for place, name in enumerate(self._subjects) if all(self._has(run, name) for run in runs[:2]))
        self.quantity.setCurrentIndex(next(both, 0))
        self.quantity.blockSignals(False)
        for part in (self._chooser_row, self.difference, self.places, self.readout):
            part.setVisible(bool(self._subjects))
        self.nothing.setVisible(not self._subjects)
        self.set_palette(self._palette)

    def _has(self, run: ComparedRun, name: str) -> bool:
        return len(self._subjects[name].curve(run, Laying()).x) > 0

    @property
    def picture_parts(self) -> list[QWidget]:
        """The widgets that make a picture of the plots, from top to bottom."""
        plots: list[QWidget] = []
        for plot in self.plots.values():
            plots += [plot.heading, plot]
        return [*plots, self._chooser_row, self.difference, self.places]

    def set_laying(self, laying: Laying) -> None:
        """Align the runs in another way; the view is kept if the axis stays the same."""
        before, self._laying = self._laying, laying
        self.axis.name = _WHERE[laying.alignment]
        self._curves = {}
        known = []
        for name in self.plots:
            curves = self._curves[name] = [self._laid(place, run, name) for place, run in enumerate(self._runs)]
            known += [curve.extent for curve in curves if curve.extent is not None]
        self.axis.set_whole(
            min((extent[0] for extent in known), default=0.0), max((extent[1] for extent in known), default=1.0)
        )
        if not self._laid_once or (before.alignment, before.mark) != (laying.alignment, laying.mark):
            self.axis.show_whole()
        self._laid_once = True
        self.touch()

    def _laid(self, place: int, run: ComparedRun, name: str) -> Curve:
        curve = self._subjects[name].curve(run, self._laying)
        if place == 1:
            return curve.moved(self._laying.offset)
        return curve

    def set_palette(self, palette: Palette) -> None:
        """Use these colours."""
        self._palette = palette
        self.places.set_palette(palette)
        for plot in (*self.plots.values(), self.difference):
            plot.set_palette(palette)
        self.touch()

    def touch(self) -> None:
        """Draw everything at the next `refresh`."""
        self._dirty = True

    def _point(self) -> None:
        """Draw the cursor at the next `refresh`."""
        self._pointed = True
        self._show_values()

    def refresh(self) -> bool:
        """Draw what changed; returns whether anything was drawn."""
        if not self.plots or not (self._dirty or self._pointed):
            return False
        if self._dirty:
            for name, plot in self.plots.items():
                plot.show_curves(self._curves.get(name, ()))
                plot.set_description(self._description(name))
            self._show_difference()
            self._show_values()
        self._dirty = self._pointed = False
        draw_together([*self.plots.values(), self.difference], self.places)
        return True

    def _show_difference(self) -> None:
        name: str = self.quantity.currentData()
        spec = self.plots[name].spec
        self.difference.set_subject(f"{MINUS.upper()}, {spec.title}", spec.unit, spec.unit_name)
        curve = self._difference(name, self.difference.columns)
        self.apart.setText("" if len(curve.x) else self._why_apart(name))
        self.difference.show_curves([curve])
        self.difference.set_description(f"{MINUS}; above 0 B has more.")

    def _why_apart(self, name: str) -> str:
        """Why there is no difference to draw."""
        for letter, curve in zip(LETTERS, self._curves.get(name, ())[:2], strict=False):
            if not len(curve.x):
                return f"{letter} has no {self.quantity.currentText()}."
        return APART

    def _difference(self, name: str, columns: int) -> Curve:
        curves = self._curves.get(name, [])
        if len(curves) > 1:
            return difference(curves[0], curves[1], *self.axis.range(), columns)
        return EMPTY

    def _description(self, name: str) -> str:
        plot, parts = self.plots[name], []
        for letter, curve in zip(LETTERS, self._curves.get(name, ()), strict=False):
            known = curve.y[np.isfinite(curve.y)]
            if len(known):
                text = f"{letter} ends at {plot.formatted(float(known[-1]))}"
            else:
                text = f"{letter} has none"
            parts.append(text)
        return f"{plot.spec.title.capitalize()}: {', '.join(parts)}."

    def _show_values(self) -> None:
        """Show the values of every run and quantity at the cursor."""
        cursor = self.axis.cursor_s
        if cursor is None:
            self.readout.setText(HINT)
            return
        by_step = self._laying.alignment == "step"
        parts = [f"step {cursor:.0f}" if by_step else f"{cursor:.2f} s"]
        parts += [plot.text_at(cursor, self._curves.get(name, ())) for name, plot in self.plots.items()]
        self.readout.setText("   ".join(parts))
