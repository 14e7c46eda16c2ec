"""What of the data is seen: no gap is bridged, and nothing short is lost."""

import math

import pytest
from PySide6.QtGui import QColor
from PySide6.QtWidgets import QApplication

from gpudash.telemetry.plots import CurveSpec, PlotSpec
from gpudash.telemetry.records import Sample
from gpudash.telemetry.store import Store
from gpudash.ui.colours import DARK, LIGHT
from gpudash.ui.plots.stack import PlotStack
from gpudash.ui.plots.view import TimeView
from gpudash.ui.widgets.theme import apply_theme
from gpudash.units import GIB
from tests.ui.plots.conftest import GPU, MEMORY, Feed, refresh
from tests.unit.telemetry.copies import copied


def test_a_lost_gpu_is_a_gap_in_the_drawing(stack: PlotStack, feed: Feed) -> None:
    feed.ticks(50)
    feed.ticks(20, lost=True)
    feed.ticks(30)
    refresh(stack)
    times, values = stack.plots[1].points.raw["GPU"]
    missing = times[[math.isnan(v) for v in values]]
    assert missing.min() == pytest.approx(5.0) and missing.max() == pytest.approx(6.9)
    picture = stack.plots[0].canvas.grab().toImage()
    geometry = stack.plots[0].geometry_now
    assert geometry is not None
    ratio = picture.devicePixelRatio()
    column = round(geometry.x_of(6.0) * ratio)
    band = QColor(DARK.curves["other"])
    top, bottom = geometry.area.top(), geometry.area.bottom()
    assert all(picture.pixelColor(column, round(y * ratio)) != band for y in range(math.ceil(top), int(bottom)))


def test_a_spike_of_one_sample_is_a_drawn_pixel_at_every_zoom(stack: PlotStack, store: Store, view: TimeView) -> None:
    for i in range(60_000):
        store.apply(Sample(i * 0.01, "host", None, {"cpu_utilisation": 1.0 if i == 31_234 else 0.1}))
    key = ("host", "cpu_utilisation", None)
    stack.set_plots([PlotSpec("spiky", "SPIKY", (CurveSpec(key, "spiky", "ratio", "gpu"),), "ratio")])
    view.show(0.0, 600.0)
    ground, colour = QColor(DARK.panel), QColor(DARK.curves["gpu"])
    for _ in range(12):
        refresh(stack)
        canvas, geometry = stack.plots[0].canvas, stack.plots[0].geometry_now
        assert geometry is not None
        picture = canvas.grab().toImage()
        x, y = geometry.x_of(312.34), geometry.y_of(0.97)
        near = [picture.pixelColor(round(x) + dx, round(y) + dy) for dx in range(-2, 3) for dy in range(-2, 3)]
        assert any(_nearer(pixel, colour, ground) for pixel in near), view.window_s
        view.zoom(0.5, 312.34)


def _distance(one: QColor, other: QColor) -> int:
    return sum(abs(a - b) for a, b in zip(one.getRgb()[:3], other.getRgb()[:3], strict=True))


def _nearer(pixel: QColor, to: QColor, than: QColor) -> bool:
    return _distance(pixel, to) < _distance(pixel, than)


def test_smoothed_curves_are_bold_over_the_faint_raw_ones_and_zero_is_raw(drawn: PlotStack) -> None:
    plot = drawn.plots[2]
    assert not plot.points.smoothed
    drawn.set_smoothing(0.9)
    refresh(drawn)
    assert set(plot.points.smoothed) == {"loss"}
    raw, bold = plot.canvas._raw["loss"], plot.canvas._bold["loss"]
    assert bold.opts["pen"].width() == 2 and raw.opts["pen"].color().alphaF() < 0.5
    assert bold.getData()[0][-1] == raw.getData()[0][-1]
    drawn.set_smoothing(0.0)
    refresh(drawn)
    assert not plot.points.smoothed and raw.opts["pen"].color().alphaF() == 1.0
    with pytest.raises(ValueError, match="smoothing"):
        drawn.set_smoothing(1.0)


def test_both_themes_reach_the_canvas(drawn: PlotStack, qapp: QApplication) -> None:
    area = drawn.plots[1].canvas.area
    for palette in (LIGHT, DARK):
        apply_theme(qapp, palette.name)
        drawn.set_palette(palette)
        refresh(drawn)
        picture = drawn.plots[1].canvas.grab().toImage()
        colour = QColor(palette.curves["gpu"])
        column = [picture.pixelColor(round(area.center().x()), y) for y in range(int(area.bottom()))]
        assert min(_distance(pixel, colour) for pixel in column) < 100, palette.name


def test_transfers_of_a_millisecond_are_seen(stack: PlotStack, store: Store, view: TimeView) -> None:
    h2d = PlotSpec("bw", "TRANSFER", (CurveSpec(("transfer", "h2d", None), "H2D", "rate", "h2d"),), "rate")
    stack.set_plots([h2d])
    store.apply(copied(5.0, 10**7, 0.001))
    store.end.newest_s = 10.0
    refresh(stack)
    picture, geometry = stack.plots[0].canvas.grab().toImage(), stack.plots[0].geometry_now
    assert geometry is not None
    x, y = round(geometry.x_of(5.0)), round(geometry.y_of(5e9))
    colour, ground = QColor(DARK.curves["h2d"]), QColor(DARK.panel)
    assert any(_nearer(picture.pixelColor(x + dx, y), colour, ground) for dx in (-1, 0, 1))


def test_every_burst_of_many_is_seen_also_with_a_dashed_style(stack: PlotStack, store: Store, view: TimeView) -> None:
    curve = CurveSpec(("transfer", "d2h", None), "D2H", "rate", "d2h", style="dash")
    stack.set_plots([PlotSpec("bw", "TRANSFER", (curve,), "rate")])
    times = [0.5 + i for i in range(9)]
    for time_s in times:
        store.apply(copied(time_s, 10**8, 0.01, from_device="cuda:0", to_device="cpu"))
    store.end.newest_s = 10.0
    refresh(stack)
    picture, geometry = stack.plots[0].canvas.grab().toImage(), stack.plots[0].geometry_now
    assert geometry is not None
    colour, ground, y = QColor(DARK.curves["d2h"]), QColor(DARK.panel), round(geometry.y_of(5e9))
    for time_s in times:
        x = round(geometry.x_of(time_s))
        assert any(_nearer(picture.pixelColor(x + dx, y), colour, ground) for dx in (-1, 0, 1)), time_s


def test_bands_never_add_up_to_more_than_was_ever_used(stack: PlotStack, store: Store, view: TimeView) -> None:
    stack.set_plots([MEMORY])
    for i in range(6000):
        other = 7 * GIB if i % 7 < 3 else GIB
        values = {"used_bytes": other, "process_bytes": 0, "free_bytes": (8 * GIB - other) * (i % 5 > 0)}
        store.apply(Sample(i * 0.05, "gpu", GPU, values))
    view.show(0.0, 300.0)
    refresh(stack)
    _, edges = stack.plots[0]._stack
    assert edges[1] is not None and len(stack.plots[0].points.known) == 2
    assert edges[1].max() == 8 * GIB
