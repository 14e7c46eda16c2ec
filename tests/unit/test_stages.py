"""Where columns, blocks, the limit and the axis of a chart of stages lie."""

from __future__ import annotations

import math

import pytest

from gpudash.drawing.scene import SceneCurve, SceneFrame
from gpudash.drawing.stages import (
    ColumnState,
    StageBlock,
    StageBox,
    StageChart,
    StageColumn,
    curve_scene,
    in_unit,
    loss_ticks,
    sampled,
)
from gpudash.units import GIB, MIB

FRAME = StageBox(0, 0, 1000, 500)


def column(*sizes: int, state: ColumnState = "past") -> StageColumn:
    blocks = tuple(StageBlock(f"b{place}", size * MIB, "weights") for place, size in enumerate(sizes))
    return StageColumn("line", blocks, state)


def test_all_columns_have_one_width_and_lie_beside_each_other() -> None:
    chart = StageChart("MEMORY", tuple(column(10 * place) for place in range(1, 8)), 128 * MIB)
    placed = chart.placed(FRAME, line=30, axis=80, header=40)
    assert len({round(header.width, 6) for header in placed.headers}) == 1
    for left, right in zip(placed.headers, placed.headers[1:], strict=False):
        assert left.right <= right.x
    assert placed.headers[-1].right <= FRAME.right


def test_blocks_stand_on_one_another_to_scale() -> None:
    chart = StageChart("MEMORY", (column(64, 32),), 128 * MIB)
    placed = chart.placed(FRAME, line=30, axis=80, header=40)
    low, high = placed.columns[0]
    assert low.bottom == placed.plot.bottom and high.bottom == pytest.approx(low.y)
    assert low.height == pytest.approx(2 * high.height) and placed.tops[0] == pytest.approx(high.y)


@pytest.mark.parametrize(("sizes", "limit"), [((64,), 128), ((200,), 128), ((127,), 128), ((0,), 128)])
def test_a_limit_within_sight_is_in_the_plot_and_the_highest_pile_has_room_for_its_figure(
    sizes: tuple[int, ...], limit: int
) -> None:
    placed = StageChart("MEMORY", (column(*sizes),), limit * MIB).placed(FRAME, line=30, axis=80, header=40)
    assert placed.limit is not None and placed.plot.y <= placed.limit <= placed.plot.bottom
    assert placed.tops[0] - 30 >= placed.plot.y


def test_the_figure_of_a_pile_next_to_the_limit_has_room_above_it() -> None:
    chart = StageChart("GPU", (column(249),), 256.0 * MIB)
    placed = chart.placed(FRAME, line=40, axis=50, header=60)
    assert placed.limit is not None and placed.tops[0] > placed.limit
    assert placed.limit - placed.plot.y >= 40


def test_an_axis_that_reaches_beyond_the_limit_stays_as_it_is_and_so_does_the_limit() -> None:
    charts = [StageChart("GPU", (column(*sizes),), 4.0 * GIB, reaches=8.0 * GIB) for sizes in ((), (900,), (7000,))]
    placed = [chart.placed(FRAME, line=40, axis=50, header=60) for chart in charts]
    assert len({chart.unit for chart in charts}) == 1
    assert len({(one.limit, one.ticks) for one in placed}) == 1 and placed[0].limit is not None


def test_a_limit_far_beyond_is_not_in_the_plot() -> None:
    chart = StageChart("MEMORY", (column(10),), 8 * GIB)
    assert not chart.shows_limit and chart.placed(FRAME, line=30, axis=80, header=40).limit is None
    assert chart.unit[1] == "MiB"


def test_figures_have_a_decimal_where_few_digits_stand_before_it() -> None:
    assert [in_unit(size * MIB, MIB) for size in (0, 1.5, 8, 64, 1032)] == ["0", "1.5", "8", "64", "1,032"]
    assert in_unit(11.5 * GIB, GIB) == "11.5"


def test_too_many_columns_keep_the_first_the_last_and_the_one_that_is_looked_at() -> None:
    many = [StageColumn(str(place), (), "now" if place == 9 else "past") for place in range(30)]
    kept = [one.title for one in sampled(many, 6)]
    assert kept == ["0", "1", "9", "27", "28", "29"]


@pytest.mark.parametrize(
    ("highest", "ticks"),
    [
        (4.61, (0, 1, 2, 3, 4, 5)),
        (math.log(2), (0, 0.2, 0.4, 0.6, 0.8)),
        (11.2, (0, 5, 10, 15)),
        (5.0, (0, 1, 2, 3, 4, 5)),
        (math.inf, (0, 1)),
        (0.0, (0, 1)),
    ],
)
def test_the_axis_of_losses_has_round_ticks_that_do_not_move_as_it_falls(
    highest: float, ticks: tuple[float, ...]
) -> None:
    assert loss_ticks(highest) == pytest.approx(ticks)


def test_a_curve_is_drawn_over_the_steps_that_the_run_takes() -> None:
    scene = curve_scene([4.0, 3.0, 2.0], 30, (0.0, 2.0, 4.0), SceneFrame())
    curve = scene.items[0]
    assert isinstance(curve, SceneCurve)
    assert curve.x.tolist() == [1.0, 2.0, 3.0] and scene.across.high == 30.0
    assert [text for _value, text in scene.left.ticks] == ["0", "2", "4"]
    empty = curve_scene([], 30, (0.0, 1.0), SceneFrame()).items[0]
    assert isinstance(empty, SceneCurve) and not len(empty.x)
