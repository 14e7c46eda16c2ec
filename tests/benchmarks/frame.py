"""What a frame of the plots costs, beside a bare QPainter drawing of the same and a naive pyqtgraph view.

All sides draw 12 curves in four plots with grid and labels on 1200×800, one new sample a curve and frame. Figures are
medians in milliseconds; a frame is the new data, the drawing made ready and painted.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable

import numpy as np
import pyqtgraph
from PySide6.QtCore import QLineF, QPointF, QRectF, Qt
from PySide6.QtGui import QColor, QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QApplication, QGridLayout, QWidget

from gpudash.drawing.shaping import Floats
from gpudash.telemetry.plots import CurveSpec, PlotSpec
from gpudash.telemetry.readings import Key
from gpudash.telemetry.store import Store
from gpudash.ui.colours import DARK
from gpudash.ui.plots.stack import PlotStack
from gpudash.ui.plots.view import TimeView
from gpudash.ui.widgets.theme import apply_theme

PLOTS = 4
CURVES = 3
WIDTH, HEIGHT = 1200, 800
WINDOW_S = 60.0
RATE_HZ = 20.0
COLOURS = ("gpu", "memory_controller", "cpu")

Frame = Callable[[int], None]


def measure() -> dict[str, float]:
    """The figures that are held, and the times they come from."""
    frame, million, areas = frame_cost(), million_points(), areas_cost()
    return {
        **frame,
        **million,
        **areas,
        "over_floor": frame["ratio_to_bare"],
        "naive_over": frame["times_cheaper_than_naive"],
        "million_over_ten_thousand": max(million["last_minute_ratio"], million["all_ratio"]),
    }


def frame_cost(frames: int = 40, samples: int = 10_000) -> dict[str, float]:
    """Cost of a frame of the last minute, and its ratios to the bare and to the naive drawing."""
    app = application()
    ours, close_ours = _gpudash(samples, WINDOW_S)
    bare, close_bare = _bare()
    naive, close_naive = _naive(samples)
    times = _interleaved(app, {"ours": ours, "bare": bare, "naive": naive}, frames)
    for close in (close_ours, close_bare, close_naive):
        close()
    return {
        "frame_ms": times["ours"],
        "bare_ms": times["bare"],
        "naive_ms": times["naive"],
        "ratio_to_bare": times["ours"] / times["bare"],
        "times_cheaper_than_naive": times["naive"] / times["ours"],
    }


def million_points(frames: int = 40) -> dict[str, float]:
    """Cost of a frame at a million samples a curve against ten thousand, for the last minute and for everything."""
    app = application()
    result: dict[str, float] = {}
    for name, window_s in (("last_minute", WINDOW_S), ("all", 1_000_000 / RATE_HZ)):
        many, close_many = _gpudash(1_000_000, window_s)
        few, close_few = _gpudash(10_000, window_s if name == "last_minute" else 10_000 / RATE_HZ)
        times = _interleaved(app, {"many": many, "few": few}, frames)
        close_many()
        close_few()
        result[f"{name}_1e6_ms"], result[f"{name}_1e4_ms"] = times["many"], times["few"]
        result[f"{name}_ratio"] = times["many"] / times["few"]
    return result


def areas_cost(frames: int = 40, samples: int = 10_000) -> dict[str, float]:
    """Cost of a frame whose plots fill the area between two of their three curves, against curves alone."""
    app = application()
    areas, close_areas = _gpudash(samples, WINDOW_S, areas=True)
    lines, close_lines = _gpudash(samples, WINDOW_S)
    times = _interleaved(app, {"areas": areas, "lines": lines}, frames)
    close_areas()
    close_lines()
    return {"areas_ms": times["areas"], "areas_over_lines": times["areas"] / times["lines"]}


def application() -> QApplication:
    app = QApplication.instance() or QApplication([])
    assert isinstance(app, QApplication)
    apply_theme(app, "dark")
    return app


def _interleaved(app: QApplication, sides: dict[str, Frame], frames: int) -> dict[str, float]:
    """Medians in ms; the sides take turns, so that a busy moment of the machine hits all of them."""
    took: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(frames + 5):
        for name, frame in sides.items():
            app.processEvents()
            began = time.perf_counter()
            frame(number)
            if number >= 5:
                took[name].append((time.perf_counter() - began) * 1e3)
    return {name: statistics.median(values) for name, values in took.items()}


def _values(plot: int, curve: int, t: Floats) -> Floats:
    """Bounded noise on a wave that is as long as the data: thinned, few and many samples make the same picture."""
    noise = np.random.default_rng(plot * CURVES + curve).uniform(-0.04, 0.04, len(t))
    return 0.3 + 0.2 * curve + 0.1 * np.sin(t / t[-1] * (20 + plot)) + noise


def _add(store: Store, key: Key, time_s: float, value: float) -> None:
    """Have the store take in a sample of a curve that nothing reads: a million of them without their records."""
    store.append(key, time_s, value)
    store.end.newest_s = max(store.end.newest_s, time_s)
    store.version += 1


def _gpudash(samples: int, window_s: float, *, areas: bool = False) -> tuple[Frame, Callable[[], None]]:
    store, t = Store(), np.arange(samples) / RATE_HZ
    specs = []
    for plot in range(PLOTS):
        curves = []
        for curve in range(CURVES):
            key = ("gpu", f"metric {curve}", f"device {plot}")
            values = _values(plot, curve, t)
            for time_s, value in zip(t.tolist(), values.tolist(), strict=True):
                _add(store, key, time_s, value)
            down_to = "curve 0" if areas and curve == CURVES - 1 else ""
            curves.append(CurveSpec(key, f"curve {curve}", "ratio", COLOURS[curve], down_to=down_to))
        specs.append(PlotSpec(f"plot {plot}", f"PLOT {plot}", tuple(curves), "ratio"))
    view = TimeView(window_s)
    stack = PlotStack(store, view, DARK)
    stack.set_plots(specs)
    stack.show_readout(False)
    stack.resize(WIDTH, HEIGHT)
    stack.show()

    def frame(number: int) -> None:
        newest = float(t[-1]) + (number + 1) / RATE_HZ
        with store.lock:
            for spec in specs:
                for curve in spec.curves:
                    _add(store, curve.key, newest, 0.5 + 0.1 * math.sin(number))
        stack.refresh()
        for plot in stack.plots:
            plot.canvas.viewport().repaint()

    return frame, lambda: _closed(stack)


class _Bare(QWidget):
    """The same picture by QPainter alone: polylines, grid lines and labels; nothing can be done with it."""

    def __init__(self) -> None:
        super().__init__()
        self.setAttribute(Qt.WidgetAttribute.WA_OpaquePaintEvent)
        self.curves: list[list[tuple[Floats, Floats]]] = []
        self.now = 0.0

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.fillRect(self.rect(), QColor(DARK.panel))
        for number, curves in enumerate(self.curves):
            area = QRectF(40, number * HEIGHT / PLOTS + 20, WIDTH - 60, HEIGHT / PLOTS - 40)
            painter.setRenderHint(QPainter.RenderHint.Antialiasing, on=False)
            painter.setPen(QPen(QColor(DARK.grid), 0))
            for line in range(7):
                x, y = area.left() + line * area.width() / 6, area.top() + line * area.height() / 6
                painter.drawLine(QLineF(x, area.top(), x, area.bottom()))
                painter.drawLine(QLineF(area.left(), y, area.right(), y))
            painter.setPen(QColor(DARK.muted))
            for line in range(7):
                painter.drawText(QPointF(4, area.top() + line * area.height() / 6), f"{line}")
            painter.setRenderHint(QPainter.RenderHint.Antialiasing)
            for (t, v), colour in zip(curves, COLOURS, strict=True):
                painter.setPen(QPen(QColor(DARK.curves[colour]), 1))
                x = area.left() + (t - self.now + WINDOW_S) / WINDOW_S * area.width()
                painter.drawPolyline(pyqtgraph.functions.arrayToQPolygonF(x, area.bottom() - v * area.height()))


def _bare() -> tuple[Frame, Callable[[], None]]:
    t = np.arange(int(WINDOW_S * RATE_HZ)) / RATE_HZ
    values = [[_values(plot, curve, t) for curve in range(CURVES)] for plot in range(PLOTS)]
    widget = _Bare()
    widget.resize(WIDTH, HEIGHT)
    widget.show()

    def frame(number: int) -> None:
        widget.now = float(t[-1]) + number / RATE_HZ
        shifted = t + number / RATE_HZ
        widget.curves = [[(shifted, v) for v in plot] for plot in values]
        widget.repaint()

    return frame, lambda: _closed(widget)


def _naive(samples: int) -> tuple[Frame, Callable[[], None]]:
    t = np.arange(samples) / RATE_HZ
    host = QWidget()
    grid = QGridLayout(host)
    lines = []
    for plot in range(PLOTS):
        widget = pyqtgraph.PlotWidget()
        widget.showGrid(x=True, y=True)
        grid.addWidget(widget, plot, 0)
        lines.append([(widget.plot(pen=COLOURS[c][0]), _values(plot, c, t).tolist()) for c in range(CURVES)])
    host.resize(WIDTH, HEIGHT)
    host.show()
    times = t.tolist()

    def frame(number: int) -> None:
        times.append(float(t[-1]) + (number + 1) / RATE_HZ)
        for curves in lines:
            for line, values in curves:
                values.append(0.5 + 0.1 * math.sin(number))
                line.setData(times, values)
                line.getViewBox().setXRange(times[-1] - WINDOW_S, times[-1], padding=0)
        for widget in host.findChildren(pyqtgraph.PlotWidget):
            widget.viewport().repaint()

    return frame, lambda: _closed(host)


def _closed(widget: QWidget) -> None:
    widget.hide()
    widget.deleteLater()
