"""The area between two curves: what many ranks have in common with each other is one shape."""

from __future__ import annotations

from gpudash.telemetry.plots import CurveSpec, PlotSpec
from gpudash.telemetry.store import Store
from gpudash.ui.plots.stack import PlotStack
from gpudash.ui.plots.view import TimeView
from tests.ui.plots.conftest import refresh

LOW, HIGH, TOP = ("rank", "step_s", "lowest"), ("rank", "step_s", "highest"), ("run", "top", None)
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
        store._append(LOW, time_s, None if lost else 1.0)
        store._append(HIGH, time_s, None if lost else 3.0)
        store._append(TOP, time_s, 4.0)
    store.newest_s = 10.0
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
