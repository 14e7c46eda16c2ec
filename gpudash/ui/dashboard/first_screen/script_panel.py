"""The panel where a script is dropped or chosen, and the scripts that ran last with the memory they took."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PySide6.QtCore import QPointF, QRectF, QSize, Qt, Signal
from PySide6.QtGui import QColor, QPainter, QPaintEvent, QPen, QPolygonF, QResizeEvent
from PySide6.QtWidgets import QPushButton, QSizePolicy, QWidget

from gpudash.ui.colours import Palette
from gpudash.ui.dashboard.first_screen.panels import StartPanel, heading
from gpudash.ui.dashboard.first_screen.rows import RowCell, RowContent, RowList
from gpudash.ui.widgets.fields import WORKING_FOLDER
from gpudash.ui.widgets.file_dialog import FileDialog
from gpudash.ui.widgets.labels import worded_button
from gpudash.ui.widgets.layouts import in_column
from gpudash.ui.widgets.plain_text import PlainLabel
from gpudash.ui.widgets.text_size import scaled
from gpudash.ui.widgets.theme import PaintedWidget
from gpudash.units import GIB, format_age, format_bytes

TITLE = "Drop your train.py"
SENTENCE = "See what it needs before it runs."
DROP = "Drop a script anywhere in this window"
CHOOSE = "Choose a file…"
NONE = "Scripts that you have run appear here."

AREA_PX = (96, 150)
"""Minimum height of the drop area, and maximum beside a list of scripts, in logical pixels."""

UNLIMITED_PX = 2**24 - 1
"""Qt's QWIDGETSIZE_MAX: a widget with this maximum height is unlimited."""

ICON_PX = (22, 28)
SHEET_GAP = 8
"""Size of the paper icon, and its distance from the text below."""

ABOVE, BELOW = 3, 2
"""Proportions of the empty height above the text, where the icon is, and below the button."""


@dataclass(frozen=True, slots=True)
class LastScript:
    """A script that ran before.

    Attributes:
        name: file name.
        arguments: its arguments, as typed.
        spec: parameters of the run.
        began_s: start, in seconds since the epoch.
        peak_bytes: peak of its tensors on a GPU; ``None`` if unknown.
        ran_out: whether it ran out of memory.
        cut_short: how it ended before its peak, as "stopped after 0 steps"; "" if its peak is known.
        reserved_bytes: peak of what its allocator took from the GPU; ``None`` if unknown.
    """

    name: str
    arguments: str
    spec: Mapping[str, Any]
    began_s: float
    peak_bytes: int | None
    ran_out: bool = False
    cut_short: str = ""
    reserved_bytes: int | None = None

    def left_cell(self, free: int | None) -> RowCell:
        """How much of the free memory a run like the last one would leave, by what its allocator took.

        The allocator frees what it keeps before a request fails: if the tensors alone have room, the run may fit.
        """
        if self.peak_bytes is None:
            return RowCell("", right=True)
        reserved = max(self.peak_bytes, self.reserved_bytes or 0)
        if free is None or reserved <= free or self.peak_bytes > free:
            return left_cell(free, reserved)
        return RowCell(f"≈ {(free - self.peak_bytes) / GIB:.1f} spare", "warn", right=True)


class ScriptPanel(StartPanel):
    """The drop area, and the last scripts.

    Signals:
        file_chosen: `Path` of the script to run.
        script_chosen: `LastScript` to run again.
    """

    file_chosen = Signal(object)
    script_chosen = Signal(object)

    def __init__(self, palette: Palette) -> None:
        super().__init__(TITLE, SENTENCE)
        self._scripts: Sequence[LastScript] = ()
        self._free: int | None = None
        self.choose = worded_button(CHOOSE, "Choose a Python script to run; it needs no change", self._choose)
        self.area = DropArea(self.choose, palette)
        self.list = RowList("Last scripts", palette)
        self.list.chosen.connect(self._chosen)
        self._what = PlainLabel()
        self.none = PlainLabel(NONE, role="muted", wraps=True)
        self.add(self.area, 2)
        self.add(heading(PlainLabel("LAST SCRIPTS"), self._what))
        self.add(self.none)
        self.add_list(self.list, 3)
        self.show_scripts((), None)

    def show_scripts(self, scripts: Sequence[LastScript], free: int | None, now_s: float | None = None) -> None:
        """Show the scripts that ran last.

        Args:
            scripts: newest first.
            free: bytes free on the device of the next run; ``None`` if unknown.
            now_s: seconds since the epoch.
        """
        self._scripts = scripts
        self._free = free
        if now_s is None:
            now_s = time.time()
        self.list.show_rows([self._row(place, script, now_s) for place, script in enumerate(scripts)])
        self.none.setVisible(not scripts)
        # Without a list, the drop area takes its room.
        self.list.setVisible(bool(scripts))
        self.area.setMaximumHeight(scaled(AREA_PX[1]) if scripts else UNLIMITED_PX)
        peaks = any(script.peak_bytes is not None for script in scripts)
        self._what.setText("peak, and GiB left beside it" if peaks else "")

    def set_palette(self, palette: Palette) -> None:
        """Redraw in other colours."""
        self.area.set_palette(palette)
        self.list.set_palette(palette)

    def _row(self, place: int, script: LastScript, now_s: float) -> RowContent:
        ago = f"{format_age(max(0.0, now_s - script.began_s))} ago"
        peak = ""
        left = script.left_cell(self._free)
        parts = [f"{script.name} {script.arguments}".strip(), ago]
        if script.peak_bytes is not None:
            peak = format_bytes(script.peak_bytes)
            parts.append(f"peak {peak}")
        if script.ran_out:
            left = RowCell("✕ ran out", "critical", right=True)
            parts.append("ran out of memory")
        elif script.cut_short:
            # What it held says nothing about whether it fits: its peak was still to come.
            left = RowCell(script.cut_short.partition(" after ")[0], "muted", right=True)
            parts = [*parts[:2], script.cut_short]
            if peak:
                peak = f"≥ {peak}"
                parts.append(f"at least {format_bytes(script.peak_bytes)}")
        cells = (
            RowCell(script.name, bold=True),
            RowCell(ago, "muted", right=True, spare=True),
            RowCell(peak, right=True),
            left,
        )
        return RowContent(str(place), cells, ", ".join(parts), "Fill the form as it was")

    def _choose(self) -> None:
        found = FileDialog.ask_to_open(self, "Choose a Script", WORKING_FOLDER, "Python (*.py)")
        if found:
            self.file_chosen.emit(Path(found))

    def _chosen(self, key: str) -> None:
        self.script_chosen.emit(self._scripts[int(key)])


def left_cell(free: int | None, needed: int) -> RowCell:
    """How much of the free memory would be left, or is missing; a sign accompanies the colour."""
    if free is None:
        return RowCell("", right=True)
    left = free - needed
    if left < 0:
        return RowCell(f"✕ {-left / GIB:.1f} short", "critical", right=True)
    return RowCell(f"✓ {left / GIB:.1f} spare", "good", right=True)


class DropArea(PaintedWidget):
    """A dashed area with an icon, a sentence and a button. It invites drops, which work anywhere in the window."""

    def __init__(self, button: QPushButton, palette: Palette) -> None:
        super().__init__(palette)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Expanding)
        self.setMinimumHeight(scaled(AREA_PX[0]))
        self.setMaximumHeight(scaled(AREA_PX[1]))
        self._label = PlainLabel(DROP)
        self._label.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self._column = in_column((QWidget(), ABOVE), self._label, parent=self, margins=(8, 8, 8, 10), spacing=8)
        self._column.addWidget(button, alignment=Qt.AlignmentFlag.AlignHCenter)
        self._column.addStretch(BELOW)

    def sizeHint(self) -> QSize:
        return QSize(scaled(300), scaled(AREA_PX[1]))

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        # In a high area, icon and text are centred together; in a low one the icon needs all the room there is.
        high = self.height() > scaled(AREA_PX[1])
        self._column.setStretch(self._column.count() - 1, BELOW if high else 0)

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        accent = QColor(self._palette.accent)
        painter.setPen(QPen(accent, 1, Qt.PenStyle.DashLine))
        painter.setBrush(QColor(self._palette.banner_note))
        painter.drawRoundedRect(QRectF(self.rect()).adjusted(0.5, 0.5, -0.5, -0.5), 6, 6)
        width, height = ICON_PX
        left = (self.width() - width) / 2
        top = self._label.y() - height - SHEET_GAP
        if top < 4:
            return
        fold = 7.0
        sheet = [(0, 0), (width - fold, 0), (width, fold), (width, height), (0, height)]
        painter.setPen(QPen(accent, 1.6))
        painter.setBrush(Qt.BrushStyle.NoBrush)
        painter.drawPolygon(QPolygonF([QPointF(left + x, top + y) for x, y in sheet]))
        middle = left + width / 2
        painter.drawLine(QPointF(middle, top + 9), QPointF(middle, top + 21))
        painter.drawPolyline(
            QPolygonF([QPointF(middle - 5, top + 16), QPointF(middle, top + 21), QPointF(middle + 5, top + 16)])
        )
