"""The axes of drawn plots: where they begin, their levels, and labels that never clash."""

import math

import pytest
from PySide6.QtCore import QRectF

from gpudash.telemetry.records import EpochFinished, Marker, Sample
from gpudash.telemetry.store import Store
from gpudash.ui.plots.stack import PlotStack
from gpudash.ui.plots.view import TimeView
from gpudash.units import GIB
from tests.ui.plots.conftest import GPU, Feed, refresh


def test_only_the_lowest_plot_names_the_time_axis(drawn: PlotStack, view: TimeView) -> None:
    named = [[label.text for label in plot.labels() if "now" in label.text] for plot in drawn.plots]
    assert named == [[], [], ["seconds before now"]]
    view.pause()
    refresh(drawn)
    assert "session time" in [label.text for label in drawn.plots[-1].labels()]


def _clashes(stack: PlotStack) -> list[tuple[str, str, str]]:
    found = []
    for plot in stack.plots:
        labels = plot.labels()
        canvas = QRectF(plot.canvas.rect())
        found += [(plot.spec.id, label.text, "outside") for label in labels if not canvas.contains(label.rect)]
        found += [
            (plot.spec.id, a.text, b.text)
            for i, a in enumerate(labels)
            for b in labels[i + 1 :]
            if a.rect.adjusted(0.6, 0.6, -0.6, -0.6).intersects(b.rect)
        ]
    return found


@pytest.mark.parametrize("size", [(500, 420), (900, 560), (1600, 1100)])
@pytest.mark.parametrize("paused", [False, True])
def test_no_label_overlaps_another_or_leaves_its_canvas(
    drawn: PlotStack, view: TimeView, store: Store, size: tuple[int, int], paused: bool
) -> None:
    for time_s in (12.0, 12.2, 15.0, 19.9):
        store.apply(Marker(time_s=time_s, label=f"a mark at {time_s}"))
    store.apply(EpochFinished(time_s=15.1, epoch=2, device="cpu", loss=1, accuracy=0, seconds=1, observation=""))
    drawn.resize(*size)
    for window_s in (0.3, 3.0, 10.0, 4000.0):
        view.set_window(window_s)
        if paused:
            view.pause()
        refresh(drawn)
        assert _clashes(drawn) == []


def test_values_beyond_a_zoomed_axis_leave_an_arrow_at_the_edge(drawn: PlotStack) -> None:
    plot = drawn.plots[0]
    plot.zoom_y(0.1, 0)
    refresh(drawn)
    arrows = plot.canvas.overlay._content.arrows
    assert [arrow.above for arrow in arrows] == [True]
    drawn.fit(plot)
    refresh(drawn)
    assert plot.canvas.overlay._content.arrows == []


def test_memory_begins_at_zero_and_shows_the_capacity(drawn: PlotStack) -> None:
    plot = drawn.plots[0]
    low, high = plot.y_range
    assert low == 0.0 and high > 8 * GIB
    assert [level.value for level in plot.canvas.overlay._content.levels] == [8 * GIB]
    assert "capacity 8.00 GiB" in [label.text for label in plot.labels()]


def test_the_capacity_stays_while_its_source_is_lost(stack: PlotStack, feed: Feed, store: Store) -> None:
    feed.ticks(10)
    store.apply(Sample(feed.time_s, "gpu", GPU, {"total_bytes": None, "used_bytes": None, "process_bytes": None}))
    refresh(stack)
    assert [level.value for level in stack.plots[0].canvas.overlay._content.levels] == [8 * GIB]


def test_the_logarithmic_axis_is_for_the_loss_alone(drawn: PlotStack) -> None:
    drawn.toggle_log()
    refresh(drawn)
    assert [plot.log for plot in drawn.plots] == [False, False, True]
    low, high = drawn.plots[2].y_range
    assert low < math.log10(4.0 / 21) and math.log10(4.0 / 11) < high < 0.0
    drawn.toggle_log()
    assert not drawn.plots[2].log


def test_accuracy_reads_on_its_own_axis_from_0_to_100(drawn: PlotStack) -> None:
    plot = drawn.plots[2]
    geometry = plot.geometry_now
    assert geometry is not None
    right = [label for label in plot.labels() if label.rect.left() > geometry.area.right() and not label.turned]
    assert [label.text for label in right] == ["0", "50", "100"]
    hundred = right[-1].rect.center().y()
    item = plot.canvas._raw["accuracy"]
    _, y = item.getData()
    assert geometry.y_of(float(y[-1])) == pytest.approx(hundred, abs=2.0)
