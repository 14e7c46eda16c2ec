"""Filled areas: smooth or rough, they cover the same pixels; what many ranks have in common is one shape."""

from __future__ import annotations

import numpy as np
import pytest
from PySide6.QtCore import QBuffer
from PySide6.QtGui import QColor, QImage, QPainter
from PySide6.QtSvg import QSvgGenerator
from PySide6.QtWidgets import QApplication

from gpudash.telemetry.plots import CurveSpec, PlotSpec
from gpudash.telemetry.records import Sample, StepFinished
from gpudash.telemetry.store import Store
from gpudash.ui.plots.painting.layers import Area, paint_area
from gpudash.ui.plots.stack import PlotStack
from gpudash.ui.plots.view import TimeView
from tests.ui.plots.conftest import refresh

WIDTH, HEIGHT = 300, 100
HALF = QColor(0, 0, 255, 128)


def edge(points: int, level: float, spike: tuple[float, float] | None = None) -> tuple[np.ndarray, np.ndarray]:
    x = np.linspace(10.0, 290.0, points)
    y = np.full(points, level)
    if spike is not None:
        y[np.argmin(np.abs(x - spike[0]))] = spike[1]
    return x, y


def painted(area: Area, ratio: float = 1.0) -> QImage:
    image = QImage(round(WIDTH * ratio), round(HEIGHT * ratio), QImage.Format.Format_ARGB32)
    image.setDevicePixelRatio(ratio)
    image.fill(QColor("white"))
    painter = QPainter(image)
    paint_area(painter, area)
    painter.end()
    return image


def ground(image: QImage, x: float, y: float) -> bool:
    ratio = image.devicePixelRatio()
    return image.pixelColor(round(x * ratio), round(y * ratio)) == QColor("white")


@pytest.mark.parametrize("ratio", [1.0, 1.5, 2.0])
@pytest.mark.parametrize("points", [2, 20, 1500, 20_000])
def test_everything_between_the_edges_is_covered_once_and_nothing_else(
    qapp: QApplication, points: int, ratio: float
) -> None:
    image = painted(Area(edge(points, 30.0), edge(points, 70.0), HALF), ratio)
    inside = {
        image.pixelColor(x, y).name()
        for x in range(round(14 * ratio), round(286 * ratio))
        for y in (round(35 * ratio), round(50 * ratio), round(65 * ratio))
    }
    assert inside == {image.pixelColor(round(150 * ratio), round(50 * ratio)).name()}, "no seam and no overlap"
    assert not ground(image, 150, 50)
    assert all(ground(image, *place) for place in ((150, 25), (150, 75), (5, 50), (295, 50)))


def test_a_spike_of_one_point_among_many_is_seen(qapp: QApplication) -> None:
    image = painted(Area(edge(20_000, 60.0, spike=(150.0, 5.0)), edge(20_000, 70.0), HALF))
    assert any(not ground(image, x, 8) for x in (149, 150, 151))
    assert all(ground(image, x, 8) for x in (100, 140, 160, 200))


def test_edges_may_have_points_at_places_of_their_own(qapp: QApplication) -> None:
    image = painted(Area(edge(3000, 30.0), edge(2, 70.0), HALF))
    assert not ground(image, 20, 50) and not ground(image, 280, 50) and ground(image, 150, 80)


def test_in_a_vector_picture_an_area_is_one_shape(qapp: QApplication) -> None:
    data = QBuffer()
    generator = QSvgGenerator()
    generator.setOutputDevice(data)
    painter = QPainter(generator)
    paint_area(painter, Area(edge(1500, 30.0), edge(1500, 70.0), HALF))
    painter.end()
    assert bytes(data.data().data()).count(b"<path") <= 1


LOW, HIGH, TOP = ("rank", "step_s", "lowest"), ("rank", "step_s", "highest"), ("run", "throughput", None)
SCALING = CurveSpec(TOP, "top", "number", "loss", unit_name="s")
"""Keeps the axis where it is, whatever is hidden."""

SPEC = PlotSpec(
    "rank_step",
    "STEP TIME",
    (
        CurveSpec(LOW, "lowest", "number", "gpu", unit_name="s", faint=True),
        CurveSpec(HIGH, "highest", "number", "gpu", unit_name="s", faint=True, down_to="lowest"),
        SCALING,
    ),
    "number",
    unit_name="s",
)


def fed(store: Store, stack: PlotStack, view: TimeView, *, gap: bool = False, samples: int = 100) -> None:
    for number in range(samples):
        time_s = 10.0 * number / samples
        lost = gap and 4.0 <= time_s < 6.0
        for (_table, metric, which), value in ((LOW, 1.0), (HIGH, 3.0)):
            store.apply(Sample(time_s, "rank", which, {metric: None if lost else value}))
        store.apply(StepFinished(time_s=time_s, step=number, steps=samples, seconds=0.1, throughput=4.0))
    stack.set_plots([SPEC])
    view.show(0.0, 10.0)
    refresh(stack)


def filled(stack: PlotStack, time_s: float, value: float) -> bool:
    """Whether anything is painted there; the canvas itself is transparent."""
    plot = stack.plots[0]
    geometry = plot.geometry_now
    assert geometry is not None
    picture = plot.canvas.grab().toImage()
    ratio = picture.devicePixelRatio()
    return picture.pixelColor(round(geometry.x_of(time_s) * ratio), round(geometry.y_of(value) * ratio)).alpha() > 0


def test_it_is_filled_between_both_and_nowhere_else(store: Store, stack: PlotStack, view: TimeView) -> None:
    fed(store, stack, view)
    assert filled(stack, 3.3, 2.13)
    assert not filled(stack, 3.3, 0.53)


def test_a_gap_in_the_readings_is_a_gap_in_the_area(store: Store, stack: PlotStack, view: TimeView) -> None:
    fed(store, stack, view, gap=True)
    assert not filled(stack, 5.3, 2.13)
    assert filled(stack, 3.3, 2.13) and filled(stack, 7.7, 2.13)


def test_curves_that_are_thinned_to_other_times_still_enclose_an_area(
    store: Store, stack: PlotStack, view: TimeView
) -> None:
    fed(store, stack, view, samples=50_000)
    assert filled(stack, 3.3, 2.13)


def test_hiding_either_end_takes_the_area_away(store: Store, stack: PlotStack, view: TimeView) -> None:
    fed(store, stack, view)
    for name in ("lowest", "highest"):
        stack.plots[0].legend.set_hidden({name})
        refresh(stack)
        assert not filled(stack, 3.3, 2.13), name


def test_a_plot_that_has_no_area_any_more_forgets_it(store: Store, stack: PlotStack, view: TimeView) -> None:
    fed(store, stack, view)
    lines = tuple(CurveSpec(key, key[2], "number", "gpu", unit_name="s") for key in (LOW, HIGH))
    stack.set_plots([PlotSpec("rank_step", "STEP TIME", (*lines, SCALING), "number", unit_name="s")])
    refresh(stack)
    assert not filled(stack, 3.3, 2.13)
