import gc
import math
from itertools import pairwise

import pytest
from PySide6.QtCore import QRectF, Qt
from PySide6.QtGui import QColor
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from gpudash.telemetry.records import EpochFinished, Marker, RunStarted, Transfer, Warning
from gpudash.telemetry.store import Store
from gpudash.ui.plots.canvas import MIN_HEIGHT_PX
from gpudash.ui.plots.curve import CurveSpec, PlotSpec
from gpudash.ui.plots.stack import PlotStack
from gpudash.ui.plots.view import TimeView
from gpudash.ui.theme import DARK, LIGHT, apply_theme
from gpudash.units import GIB
from tests.ui.plots.conftest import GPU, LOSS, MEMORY, UTILISATION, Clock, Feed, refresh


def test_pausing_the_view_loses_no_sample_and_following_ends_at_the_newest(
    drawn: PlotStack, feed: Feed, store: Store, view: TimeView
) -> None:
    drawn.pause()
    frozen = view.range()
    feed.ticks(50)
    refresh(drawn)
    assert view.range() == frozen
    assert view.status().startswith("Paused 5 s behind")
    drawn.pause()
    refresh(drawn)
    series = store.series("gpu", "used_bytes", GPU)
    assert series is not None
    times, _ = series.window(0.0, 100.0, 10_000)
    assert len(times) == 251 and max(b - a for a, b in pairwise(times.tolist())) < 0.21
    assert view.range()[1] == store.newest_s
    plot = drawn.plots[1]
    assert plot.data.points["GPU"][0][-1] == store.newest_s


def test_all_plots_share_range_and_pixel_edges_whatever_their_labels(drawn: PlotStack, view: TimeView) -> None:
    view.show(3.0, 7.0)
    refresh(drawn)
    geometries = [plot.geometry_now for plot in drawn.plots]
    assert all(g is not None and g.time_at(g.area.left()) == pytest.approx(3.0) for g in geometries)
    assert all(g is not None and g.time_at(g.area.right()) == pytest.approx(7.0) for g in geometries)
    lefts = {plot.canvas.mapTo(drawn, plot.canvas.area.topLeft().toPoint()).x() for plot in drawn.plots}
    rights = {plot.canvas.mapTo(drawn, plot.canvas.area.topRight().toPoint()).x() for plot in drawn.plots}
    assert len(lefts) == len(rights) == 1


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


def test_every_plot_keeps_its_least_height_and_the_stack_scrolls(drawn: PlotStack) -> None:
    drawn.resize(700, 250)
    refresh(drawn)
    assert all(plot.canvas.height() >= MIN_HEIGHT_PX for plot in drawn.plots)
    assert drawn.height() == 250


def test_hiding_the_largest_curve_shrinks_the_axis_and_the_readout_and_the_chip_brings_it_back(
    stack: PlotStack, feed: Feed, qtbot: QtBot
) -> None:
    stack.set_plots([PlotSpec("memory", "MEMORY", MEMORY.curves, "bytes")])
    feed.ticks(100)
    refresh(stack)
    plot = stack.plots[0]
    before, rows = plot.y_range[1], len(stack.readout.rows())
    assert before >= 8 * GIB
    plot.legend.toggle("free")
    refresh(stack)
    assert plot.y_range[1] < 2 * GIB
    assert len(stack.readout.rows()) == rows - 1
    assert [curve.name for curve in stack.visible_curves] == ["other processes"]
    assert plot.legend._chip.text() == "1 hidden - show all" and plot.legend._chip.isVisible()
    qtbot.mouseClick(plot.legend._chip, Qt.MouseButton.LeftButton)
    refresh(stack)
    assert plot.y_range[1] == before and not plot.legend._chip.isVisible()


def test_only_isolates_a_curve_and_again_restores_all(drawn: PlotStack, qtbot: QtBot) -> None:
    legend = drawn.plots[1].legend
    entry = legend._entries[0]
    qtbot.mouseClick(entry._only, Qt.MouseButton.LeftButton)
    assert legend.hidden == {"CPU"}
    qtbot.mouseClick(entry._button, Qt.MouseButton.LeftButton, Qt.KeyboardModifier.NoModifier)
    assert legend.hidden == {"CPU", "GPU"}
    legend.isolate("GPU")
    assert legend.hidden == {"CPU"}
    legend.isolate("GPU")
    assert legend.hidden == frozenset()


def test_a_hidden_curve_stays_listed_and_struck_through(drawn: PlotStack) -> None:
    legend = drawn.plots[1].legend
    legend.toggle("GPU")
    button = legend._entries[0]._button
    assert button.isVisible() and button.font().strikeOut()
    assert button.accessibleName() == "GPU, hidden"


def test_a_lost_gpu_is_a_gap_in_the_drawing(stack: PlotStack, feed: Feed) -> None:
    feed.ticks(50)
    feed.ticks(20, lost=True)
    feed.ticks(30)
    refresh(stack)
    times, values = stack.plots[1].data.points["GPU"]
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
    key = ("host", "spiky", None)
    for i in range(60_000):
        store._append(key, i * 0.01, 1.0 if i == 31_234 else 0.1)
    store.newest_s = 600.0
    stack.set_plots([PlotSpec("spiky", "SPIKY", (CurveSpec(key, "spiky", "ratio", "gpu"),), "ratio")])
    view.show(0.0, 600.0)
    ground, colour = QColor(DARK.panel), QColor(DARK.curves["gpu"])
    for _ in range(12):
        refresh(stack)
        canvas, geometry = stack.plots[0].canvas, stack.plots[0].geometry_now
        assert geometry is not None
        picture = canvas.grab().toImage()
        x, y = geometry.x_of(312.34), geometry.y_of(0.9)
        near = [picture.pixelColor(round(x) + dx, round(y) + dy) for dx in range(-2, 3) for dy in range(-2, 3)]
        assert any(_nearer(pixel, colour, ground) for pixel in near), view.window_s
        view.zoom(0.5, 312.34)


def _distance(one: QColor, other: QColor) -> int:
    return sum(abs(a - b) for a, b in zip(one.getRgb()[:3], other.getRgb()[:3], strict=True))


def _nearer(pixel: QColor, to: QColor, than: QColor) -> bool:
    return _distance(pixel, to) < _distance(pixel, than)


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
    from gpudash.telemetry.records import Sample

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


def test_smoothed_curves_are_bold_over_the_faint_raw_ones_and_zero_is_raw(drawn: PlotStack) -> None:
    plot = drawn.plots[2]
    assert not plot.data.smoothed
    drawn.set_smoothing(0.9)
    refresh(drawn)
    assert set(plot.data.smoothed) == {"loss"}
    raw, bold = plot.canvas._raw["loss"], plot.canvas._bold["loss"]
    assert bold.opts["pen"].width() == 2 and raw.opts["pen"].color().alphaF() < 0.5
    assert bold.getData()[0][-1] == raw.getData()[0][-1]
    drawn.set_smoothing(0.0)
    refresh(drawn)
    assert not plot.data.smoothed and raw.opts["pen"].color().alphaF() == 1.0
    with pytest.raises(ValueError, match="smoothing"):
        drawn.set_smoothing(1.0)


def test_readings_that_change_nothing_are_not_drawn_again(drawn: PlotStack, feed: Feed) -> None:
    drawn.refresh()
    assert not drawn.refresh()
    feed.ticks(1)
    assert drawn.refresh()


def test_a_paused_view_far_behind_costs_nothing(drawn: PlotStack, feed: Feed) -> None:
    drawn.pause()
    feed.ticks(100)
    drawn.refresh()
    feed.ticks(10)
    assert not drawn.refresh()


def test_a_stack_that_is_not_seen_is_not_drawn(drawn: PlotStack, feed: Feed) -> None:
    drawn.hide()
    feed.ticks(1)
    assert not drawn.refresh()


def test_plots_keep_their_widgets_and_none_pile_up(drawn: PlotStack, qtbot: QtBot) -> None:
    kept = drawn.plots[1]
    kept.legend.toggle("CPU")
    for _ in range(5):
        drawn.set_plots([UTILISATION])
        drawn.set_plots([MEMORY, UTILISATION, LOSS])
    assert drawn.plots[1] is kept and kept.hidden == {"CPU"}
    changed = PlotSpec("utilisation", "UTILISATION", UTILISATION.curves[:1], "ratio")
    for _ in range(5):
        drawn.set_plots([MEMORY, changed])
        drawn.set_plots([MEMORY, UTILISATION])
    QApplication.sendPostedEvents(None, 52)  # QEvent.Type.DeferredDelete
    gc.collect()
    assert len(drawn.findChildren(type(kept))) == 3


def test_marks_of_a_run_are_drawn_on_every_plot_and_labelled_on_the_first(drawn: PlotStack, store: Store) -> None:
    store.apply(RunStarted(time_s=12.0, run_id=1, workload="training", device="cpu", spec={}))
    store.apply(Warning(time_s=15.0, level="warning", device="host", text="memory"))
    refresh(drawn)
    assert [(m.time_s, m.category) for m in drawn.marks] == [(12.0, "run"), (15.0, "warning")]
    for position, plot in enumerate(drawn.plots):
        texts = [label.text for label in plot.labels()]
        assert len(plot.canvas.overlay._content.marks) == 2
        assert ("training on cpu" in texts) == (position == 0)
    drawn.set_hidden_marks({"warning"})
    refresh(drawn)
    assert [m.category for m in drawn.marks] == ["run"]


def test_brackets_jump_between_marks_and_m_asks_for_one_at_the_cursor(
    drawn: PlotStack, store: Store, view: TimeView, qtbot: QtBot
) -> None:
    for time_s in (2.0, 12.0, 18.0):
        store.apply(Marker(time_s=time_s, label="m"))
    refresh(drawn)
    asked: list[float] = []
    drawn.mark_requested.connect(asked.append)
    drawn.request_mark()
    drawn.jump_mark(-1)
    assert view.cursor_s == 18.0 and view.following
    drawn.request_mark()
    drawn.jump_mark(-1)
    drawn.jump_mark(-1)
    assert view.cursor_s == 2.0 and not view.following
    start, end = view.range()
    assert start <= 2.0 <= end
    drawn.jump_mark(-1)
    assert view.cursor_s == 2.0
    drawn.jump_mark(1)
    assert view.cursor_s == 12.0
    assert asked == [20.0, 18.0]


def test_arrow_keys_move_the_cursor_by_samples(drawn: PlotStack, view: TimeView) -> None:
    drawn.move_cursor(-1)
    assert view.cursor_s == pytest.approx(19.9)
    drawn.move_cursor(-10)
    assert view.cursor_s == pytest.approx(18.9)
    drawn.move_cursor(1)
    assert view.cursor_s == pytest.approx(19.0)
    refresh(drawn)
    assert dict(drawn.readout.rows())["accuracy"] == "95 %"


def test_show_all_shows_everything_and_jump_to_now_follows(drawn: PlotStack, view: TimeView) -> None:
    drawn.show_all()
    assert view.following and view.range() == (0.0, 20.0)
    view.pan(-3.0)
    drawn.jump_to_now()
    assert view.following


def test_a_forecast_is_drawn_into_room_beyond_now(drawn: PlotStack, view: TimeView) -> None:
    drawn.set_forecast("memory", [(20.0, 2 * GIB), (25.0, 8 * GIB)])
    refresh(drawn)
    assert view.range()[1] > 20.0
    assert len(drawn.plots[0].canvas.overlay._content.forecast) == 2
    drawn.set_forecast("memory", None)
    assert view.range()[1] == 20.0


def test_a_plot_says_what_it_shows_at_most_once_a_second(drawn: PlotStack, feed: Feed, clock: Clock) -> None:
    plot = drawn.plots[0]
    assert plot.accessibleName() == "MEMORY cuda:0"
    assert plot.accessibleDescription() == "MEMORY cuda:0, now 2.00 of 8.00 GiB, rising 102 MiB/s"
    feed.ticks(50)
    clock.now = 0.5
    drawn.refresh()
    assert "now 2.00" in plot.accessibleDescription()
    feed.ticks(1)
    clock.now = 1.5
    drawn.refresh()
    assert "now 2.51" in plot.accessibleDescription()


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
    store.apply(
        Transfer(
            time_s=5.0,
            from_device="cpu",
            to_device="cuda:0",
            memory="pinned",
            blocking=True,
            bytes=10**7,
            seconds=0.001,
        )
    )
    store.newest_s = 10.0
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
        store.apply(
            Transfer(
                time_s=time_s,
                from_device="cuda:0",
                to_device="cpu",
                memory="pinned",
                blocking=True,
                bytes=10**8,
                seconds=0.01,
            )
        )
    store.newest_s = 10.0
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
        store._append(("gpu", "other_bytes", GPU), i * 0.05, other)
        store._append(("gpu", "free_bytes", GPU), i * 0.05, (8 * GIB - other) * (i % 5 > 0))
    store.newest_s = 300.0
    view.show(0.0, 300.0)
    refresh(stack)
    _, edges = stack.plots[0]._stack
    assert edges[1] is not None and len(stack.plots[0].data.known) == 2
    assert edges[1].max() == 8 * GIB
