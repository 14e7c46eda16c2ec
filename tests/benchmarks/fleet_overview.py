"""The overview of 64 machines with 8 GPUs each: what painting it costs beside a bare QPainter drawing of the same
rectangles and words, and how much of a core it takes when the server is polled once a second.

Both densities are painted: the heat map, which has all 512 cells in sight at 1280×800, and large cells at 2560×1440.
The polls are real ones over HTTP, of a server in another process; the time is this process's own, of all its threads,
for asking, reading, arranging and painting.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from PySide6.QtCore import QRect, Qt
from PySide6.QtGui import QColor, QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QApplication, QWidget

from gpudash.session.fleet import Fleet
from gpudash.sources.prometheus.address import read_address
from gpudash.system.settings import Settings
from gpudash.ui.colours import DARK
from gpudash.ui.fleet.document import FleetDocument
from gpudash.ui.fleet.grid import SMALL_PT, TINY_PT, FleetGrid, sized
from gpudash.ui.fleet.labels import Cell
from gpudash.ui.fleet.layout import Rect
from gpudash.ui.widgets.theme import apply_theme

MACHINES, GPUS = 64, 8
FRAMES, POLLS = 60, 20
SIZES = {"heat map": (1280, 800), "cells": (2560, 1440)}

RIGHT = Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter


def measure() -> dict[str, float]:
    """The figures that are held, and the times they come from."""
    app = QApplication.instance() or QApplication([])
    assert isinstance(app, QApplication)
    apply_theme(app, "dark")
    with server() as port:
        fleet = Fleet(read_address(f"http://127.0.0.1:{port}"), settings=Settings())
        fleet.poll()
        document = FleetDocument(fleet, DARK, open_gpu=lambda _gpu: None, compare=lambda _gpus: None)
        document.show()
        try:
            painted = {}
            for place, density in enumerate(("cells", "heat map")):
                document.controls.density.setCurrentIndex(place)
                painted.update(_painted(app, document, density))
            document.resize(*SIZES["heat map"])
            core = _core_at_1_hz(app, fleet, document)
        finally:
            document.close_document()
            document.close()
            document.deleteLater()
    return {**painted, "over_bare": max(painted["heat map_ratio"], painted["cells_ratio"]), "core": core}


def _core_at_1_hz(app: QApplication, fleet: Fleet, document: FleetDocument) -> float:
    """Seconds of processor time for one poll and what it leads to: the share of a core when there is one a second."""
    took = []
    for _poll in range(POLLS):
        began = time.process_time()
        fleet.poll()
        document.refresh()
        document.grid.viewport().repaint()
        app.processEvents()
        took.append(time.process_time() - began)
    assert not fleet.problem, fleet.problem
    assert len(fleet.gpus()) == MACHINES * GPUS
    return statistics.median(took)


def _painted(app: QApplication, document: FleetDocument, density: str) -> dict[str, float]:
    """Milliseconds of a frame of the grid and of the bare drawing, taking turns."""
    document.resize(*SIZES[density])
    app.processEvents()
    grid = document.grid
    bare = _Bare(grid)
    bare.resize(grid.viewport().size())
    bare.show()
    sides: dict[str, Callable[[], None]] = {"ours": grid.viewport().repaint, "bare": bare.repaint}
    took: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(FRAMES + 5):
        for name, paint in sides.items():
            app.processEvents()
            began = time.perf_counter()
            paint()
            if number >= 5:
                took[name].append((time.perf_counter() - began) * 1e3)
    bare.hide()
    bare.deleteLater()
    ours, floor = (statistics.median(took[name]) for name in ("ours", "bare"))
    return {
        f"{density}_ms": ours,
        f"{density}_bare_ms": floor,
        f"{density}_ratio": ours / floor,
        f"{density}_in_sight": float(len(bare.drawn)),
    }


class _Bare(QWidget):
    """The same rectangles and words by QPainter alone; nothing can be done with it."""

    def __init__(self, grid: FleetGrid) -> None:
        super().__init__()
        self.setAttribute(Qt.WidgetAttribute.WA_OpaquePaintEvent)
        layout = grid.layout_
        seen = list(layout.seen(0, grid.viewport().height()))
        self.drawn: list[tuple[Rect, Cell]] = [(layout.rect(place), grid.cells[layout.keys[place]]) for place in seen]
        self._dense = layout.density == "heat map"
        self._small, self._tiny = sized(self.font(), SMALL_PT), sized(self.font(), TINY_PT)
        self._bold = sized(self.font(), SMALL_PT)
        self._bold.setBold(True)

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.fillRect(self.rect(), QColor(DARK.window))
        draw = self._draw_dense if self._dense else self._draw_cell
        for rect, cell in self.drawn:
            draw(painter, QRect(*rect), cell)
        painter.end()

    def _draw_dense(self, painter: QPainter, rect: QRect, cell: Cell) -> None:
        painter.fillRect(rect, QColor(DARK.accent))
        painter.setPen(QColor(DARK.text))
        painter.setFont(self._small)
        painter.drawText(rect, Qt.AlignmentFlag.AlignCenter, cell.percent)
        if cell.short:
            painter.setFont(self._tiny)
            painter.drawText(rect, Qt.AlignmentFlag.AlignBottom, cell.short)

    def _draw_cell(self, painter: QPainter, rect: QRect, cell: Cell) -> None:
        painter.setPen(QPen(QColor(DARK.border), 1))
        painter.setBrush(QColor(DARK.panel))
        painter.drawRect(rect)
        inner = rect.adjusted(8, 5, -8, -4)
        bar = QRect(inner.left(), rect.center().y() - 4, inner.width() - 40, 8)
        painter.fillRect(bar, QColor(DARK.grid))
        bar.setWidth(round(bar.width() * (cell.fullness or 0.0)))
        painter.fillRect(bar, QColor(DARK.accent))
        painter.setPen(QColor(DARK.text))
        painter.setFont(self.font())
        painter.drawText(inner, Qt.AlignmentFlag.AlignTop, cell.name)
        painter.setFont(self._bold)
        painter.drawText(inner, RIGHT, cell.percent)
        painter.setFont(self._small)
        painter.drawText(inner, Qt.AlignmentFlag.AlignBottom, cell.figure)
        painter.drawText(inner, Qt.AlignmentFlag.AlignBottom | Qt.AlignmentFlag.AlignRight, cell.status)


@contextmanager
def server() -> Iterator[int]:
    """The port of a server of generated answers, in a process that ends with the block."""
    command = [sys.executable, "-m", "tests.benchmarks.fleet_server", str(MACHINES), str(GPUS)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            yield int(server.stdout.readline())
        finally:
            server.stdin.close()
            server.wait(10)
