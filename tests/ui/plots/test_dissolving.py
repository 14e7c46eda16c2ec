"""The memory plot, zoomed in, dissolves into allocations; a range names what was born in it and stayed."""

import numpy as np
import pytest
from PySide6.QtCore import QPointF
from PySide6.QtGui import QColor
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from gpudash.memory.frames import Frame
from gpudash.memory.request_log import NEVER, Request, RequestLog
from gpudash.telemetry.plots import CurveSpec, PlotSpec
from gpudash.telemetry.store import Store
from gpudash.ui.colours import DARK, Palette, mixed
from gpudash.ui.plots.legend import LevelKey
from gpudash.ui.plots.painting.dissolving import BEGINS_AT, ENDS_AT, stayed_text
from gpudash.ui.plots.painting.ribbons import SHADES
from gpudash.ui.plots.stack import PlotStack
from gpudash.ui.plots.view import TimeView
from gpudash.units import GIB, MIB
from tests.ui.conftest import IN_BOTH_THEMES

CONTEXT = 300 * MIB
HELD, PASSING = (Frame("/home/me/train.py", 2, "<module>"),), (Frame("/home/me/train.py", 9, "step"),)
KEPT = (Frame("/home/me/train.py", 12, "step"),)


def _log(steps: int = 100) -> RequestLog:
    """Ten seconds of a program: 400 MiB that stay, 100 MiB in the middle of each step, 1 MiB kept by each."""
    log = RequestLog()
    log.take([Request(0.0, "held", 400 * MIB, HELD)])
    length = 10.0 / steps
    for step in range(steps):
        begin = step * length
        log.take(
            [
                Request(begin + 0.2 * length, ("passing", step), 100 * MIB, PASSING),
                Request(begin + 0.5 * length, ("kept", step), MIB, KEPT),
                Request(begin + 0.8 * length, ("passing", step)),
            ]
        )
    return log


@pytest.fixture
def stack(qtbot: QtBot, palette: Palette) -> PlotStack:
    store = Store()
    names = (("context_bytes", "context"), ("allocated_bytes", "allocated"), ("idle_bytes", "idle"))
    curves = tuple(CurveSpec(("gpu", key, "card"), name, "bytes", name, stack=True) for key, name in names)
    for number in range(101):
        for curve, size in zip(curves, (CONTEXT, 400 * MIB, 200 * MIB), strict=True):
            store.append(curve.key, number / 10, size)
    store.end.newest_s = 10.0
    made = PlotStack(store, TimeView(10.0), palette)
    made.set_plots([PlotSpec("memory", "MEMORY", curves, "bytes")])
    qtbot.addWidget(made)
    made.resize(1000, 600)
    made.show()
    return made


def _shown(stack: PlotStack, log: RequestLog | None, low: float, high: float) -> None:
    stack.set_requests("memory", log)
    stack.view.show(low, high)
    stack.refresh(force=True)
    stack.refresh(force=True)


def _point(stack: PlotStack, time_s: float, size: float) -> QPointF:
    geometry = stack.plots[0].geometry_now
    assert geometry is not None
    return QPointF(geometry.x_of(time_s), geometry.y_of(size))


@IN_BOTH_THEMES
def test_each_allocation_is_painted_where_its_bytes_and_its_life_are(stack: PlotStack, palette: Palette) -> None:
    _shown(stack, _log(), 5.0, 5.1)
    canvas = stack.plots[0].canvas
    assert canvas.ribbons.isVisible()
    image = canvas.grab().toImage()
    ratio = image.devicePixelRatio()

    def painted(time_s: float, size: float) -> QColor:
        at = _point(stack, time_s, size)
        return image.pixelColor(round(at.x() * ratio), round(at.y() * ratio))

    idle = QColor(palette.curves["idle"])
    # between two steps nothing passes: what is reserved and not allocated is there
    assert painted(5.01, CONTEXT + 500 * MIB) == idle
    assert painted(5.05, CONTEXT + 500 * MIB) != idle
    assert painted(5.05, CONTEXT / 2) == QColor(palette.curves["context"])
    assert len({painted(5.01 + 0.08 * part, CONTEXT + 30 * MIB).name() for part in np.linspace(0, 1, 5)}) <= 2
    assert len(SHADES) == 3


def test_beside_what_requests_are_known_of_the_bands_are_as_they_were(stack: PlotStack) -> None:
    log = RequestLog()
    for number in range(20):
        log.take([Request(5.04 + number / 1000, ("held", number), MIB, HELD)])
    canvas = stack.plots[0].canvas
    _shown(stack, None, 5.0, 5.1)
    before = canvas.grab().toImage()
    _shown(stack, log, 5.0, 5.1)
    after = canvas.grab().toImage()
    picture = canvas.ribbons.picture
    assert picture is not None
    row = round(_point(stack, 5.0, CONTEXT + 300 * MIB).y())
    left, right = round(picture.place.left()), round(picture.place.right())
    differing = [x for x in range(before.width()) if before.pixel(x, row) != after.pixel(x, row)]
    assert differing and left - 1 <= min(differing) and max(differing) <= right + 1


def test_the_pointer_says_size_life_and_stack(stack: PlotStack) -> None:
    _shown(stack, _log(), 5.0, 5.1)
    ribbons = stack.plots[0].canvas.ribbons
    assert ribbons.text_at(_point(stack, 5.05, CONTEXT + 100 * MIB)) == (
        "400 MiB other tensors, still there\ntrain.py:2 <module>"
    )
    assert ribbons.text_at(_point(stack, 5.05, CONTEXT + 500 * MIB)) == (
        "100 MiB other tensors, for 60.0 ms\ntrain.py:9 step"
    )
    assert ribbons.text_at(_point(stack, 5.05, CONTEXT / 2)) == ""


def test_wide_ribbons_carry_the_name_of_their_line(stack: PlotStack) -> None:
    _shown(stack, _log(), 5.0, 5.1)
    assert "train.py:2  400 MiB" in [label.text for label in stack.plots[0].labels()]


def test_a_plot_of_too_many_events_stays_whole(stack: PlotStack) -> None:
    _shown(stack, _log(20_000), 0.0, 10.0)
    assert not stack.plots[0].canvas.ribbons.isVisible()
    _shown(stack, _log(20_000), 5.0, 5.1)
    assert stack.plots[0].canvas.ribbons.isVisible()


def test_without_requests_the_plot_is_as_it_was(stack: PlotStack) -> None:
    _shown(stack, None, 5.0, 5.1)
    assert stack.plots[0].canvas.ribbons.picture is None


def _palette_colours(palette: Palette) -> set[str]:
    """The colours that a pixel of the memory plot may have besides those of grid and labels."""
    panel = QColor(palette.panel)
    kinds = [QColor(palette.curves[name]) for name in palette.curves]
    return {mixed(kind, panel, shade).name() for kind in kinds for shade in SHADES} | {panel.name()}


@IN_BOTH_THEMES
@pytest.mark.parametrize("density", [1.0, 6.0, 12.0, 24.0, 31.0, 40.0, 60.0])
def test_at_any_density_every_pixel_has_a_colour_that_the_legend_has(
    stack: PlotStack, palette: Palette, density: float
) -> None:
    _shown(stack, None, 0.0, 10.0)
    (plot,) = stack.plots
    log = _log(round(density * plot.canvas.area.width() / 3))
    _shown(stack, log, 0.0, 10.0)
    assert (plot.canvas.ribbons.picture is not None) == (density < BEGINS_AT)
    image = plot.canvas.grab().toImage()
    ratio = image.devicePixelRatio()
    colours = _palette_colours(palette)
    written = [label.rect for label in plot.labels()]
    lines = [_point(stack, float(time_s), 0).x() for time_s in range(11)]
    sampled = 0
    for x in np.linspace(plot.canvas.area.left() + 5, plot.canvas.area.right() - 5, 90):
        if min(abs(x - line) for line in lines) < 3:
            continue  # a line of the grid
        for size in (CONTEXT / 3, CONTEXT + 60 * MIB, CONTEXT + 330 * MIB, CONTEXT + 430 * MIB):
            at = QPointF(x, _point(stack, 0.0, size).y())
            if any(room.contains(at) for room in written):
                continue
            sampled += 1
            assert image.pixelColor(round(at.x() * ratio), round(at.y() * ratio)).name() in colours, (x, size)
    assert sampled > 150


def test_a_view_that_follows_a_program_does_not_switch_to_and_fro(stack: PlotStack) -> None:
    _shown(stack, None, 0.0, 10.0)
    ribbons, columns = stack.plots[0].canvas.ribbons, stack.plots[0].canvas.area.width()
    between, above = (BEGINS_AT + ENDS_AT) / 2, ENDS_AT * 1.1

    def visible_at(density: float) -> bool:
        _shown(stack, _log(round(density * columns / 3)), 0.0, 10.0)
        return ribbons.isVisible()

    found = [visible_at(density) for density in (between, BEGINS_AT / 2, between, above, between)]
    assert found == [False, True, True, False, False]


def test_behind_the_last_request_ribbons_go_on_while_readings_are_the_same(stack: PlotStack) -> None:
    """A run that has failed holds its memory until it ends, and asks for nothing any more."""
    log = RequestLog()
    for number in range(40):
        log.take([Request(3.91 + number / 1000, ("held", number), 10 * MIB, HELD)])
    log.take([Request(4.05, "last", MIB // 2, KEPT)])
    _shown(stack, log, 3.0, 9.0)
    ribbons = stack.plots[0].canvas.ribbons
    for time_s in (4.03, 6.0, 8.9):
        assert "train.py:2" in ribbons.text_at(_point(stack, time_s, CONTEXT + 15 * MIB)), time_s
    allocated = stack.plots[0].spec.curves[1]
    stack.store.append(allocated.key, 10.1, 100 * MIB)
    stack.store.append(allocated.key, 10.9, 100 * MIB)
    _shown(stack, log, 3.0, 10.9)
    assert "train.py:2" in ribbons.text_at(_point(stack, 9.9, CONTEXT + 15 * MIB))
    assert ribbons.text_at(_point(stack, 10.5, CONTEXT + 15 * MIB)) == "", "something was freed of which nobody told"


def test_a_range_names_what_was_born_in_it_and_stayed(stack: PlotStack) -> None:
    _shown(stack, _log(), 2.0, 8.0)
    stack.view.select(3.0, 6.0)
    stack.refresh(force=True)
    assert stack.strip.card.stayed == "Allocated and kept: 30 MiB\n30 MiB in 30   train.py:12 step"
    stack.view.clear_selection()
    stack.refresh(force=True)
    assert not stack.strip.card.isVisible()


def test_a_range_in_which_all_was_freed_says_so() -> None:
    log = RequestLog()
    log.take([Request(1.0, "a", MIB, PASSING), Request(2.0, "a"), Request(9.0, "b", GIB, KEPT)])
    assert stayed_text(log, (0.5, 3.0)) == "Nothing allocated in this range was still held at its end."
    assert stayed_text(log, (20.0, 30.0)) == ""


def test_what_was_there_before_anybody_listened_lies_below(stack: PlotStack) -> None:
    log = RequestLog()
    for step in range(50):
        log.take([Request(step / 5, ("kept", step), MIB, KEPT)])
    _shown(stack, log, 4.0, 4.5)
    ribbons = stack.plots[0].canvas.ribbons
    assert ribbons.text_at(_point(stack, 4.3, CONTEXT + 100 * MIB)) == ""
    assert DARK.curves["allocated"]
    assert "1 MiB" in ribbons.text_at(_point(stack, 4.3, CONTEXT + 390 * MIB))


def test_no_ribbon_slides_to_the_next_reading_where_readings_are_missing(stack: PlotStack) -> None:
    """A program that has run out of memory frees its tensors while its card is not read; then that is empty."""
    store, (plot,) = stack.store, stack.plots
    for curve in plot.spec.curves:
        store.append(curve.key, 10.1, None)
        store.append(curve.key, 10.9, 0)
    store.end.newest_s = 11.0
    log = _log()
    log.take([Request(10.05 + number / 10, ("kept", number)) for number in range(9)])
    _shown(stack, log, 9.9, 11.0)
    ribbons = plot.canvas.ribbons
    held = CONTEXT + 200 * MIB
    assert "train.py:2" in ribbons.text_at(_point(stack, 9.95, held))
    assert ribbons.text_at(_point(stack, 10.5, held / 2)) == ""
    image = plot.canvas.grab().toImage()
    ratio = image.devicePixelRatio()
    for share in (0.1, 0.3, 0.5, 0.7, 0.9):
        at = _point(stack, 10.47, share * held)
        assert image.pixelColor(round(at.x() * ratio), round(at.y() * ratio)).alphaF() < 0.5


def test_the_legend_names_what_the_ribbons_are_of_while_there_are_any(stack: PlotStack) -> None:
    (plot,) = stack.plots
    _shown(stack, _log(), 5.0, 5.1)
    assert plot.legend.levels == ["other tensors"]
    stack.resize(420, 600)
    QApplication.processEvents()
    key = plot.legend.findChild(LevelKey)
    assert key is not None and key.texts == ["other tensors"], "curves make room for it"
    _shown(stack, _log(20_000), 0.0, 10.0)
    assert plot.legend.levels == []


def test_the_legend_names_the_largest_categories_first(stack: PlotStack) -> None:
    log = RequestLog()
    size = {"small": MIB, "large": 400 * MIB, "next": 40 * MIB}
    events = len(size) * 20
    numbers = np.arange(events)
    log.replace(
        (numbers / 10, np.zeros(events + 1, np.int64)),
        (
            np.arange(len(size)),
            np.full(len(size), NEVER),
            np.array(list(size.values())),
            np.arange(len(size)),
            np.arange(len(size)),
        ),
        [(Frame("/home/me/train.py", line, "step"),) for line in range(len(size))],
        tuple(size),
    )
    _shown(stack, log, 1.0, 4.0)
    assert stack.plots[0].legend.levels == ["large", "next", "small"]
