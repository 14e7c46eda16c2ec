"""Curves laid over one another: alignment, differences, gaps, and bounded drawing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudash.telemetry.comparing import Curve
from gpudash.telemetry.comparing.curves import EMPTY, aligned, common_marks, difference, shared_memory
from tests.unit.telemetry.comparing.made import MADE


def curve(*points: tuple[float, float]) -> Curve:
    return Curve(np.array([x for x, _ in points]), np.array([y for _, y in points]))


def test_the_difference_is_b_minus_a_between_the_points_of_both() -> None:
    a, b = curve((0, 0), (10, 10)), curve((2, 5), (4, 5), (12, 13))
    found = difference(a, b, -100, 100, 1000)
    assert found.x.tolist() == [2, 4, 10]
    assert found.y.tolist() == pytest.approx([3, 1, 1])


def test_a_gap_in_either_is_a_gap_in_the_difference() -> None:
    a, b = curve((0, 0), (1, np.nan), (2, 0), (3, 0)), curve((0, 1), (3, 1))
    found = difference(a, b, 0, 3, 1000)
    assert np.isnan(found.y[found.x == 1]).all()
    assert found.y[found.x >= 2].tolist() == [1, 1]


def test_infinite_values_on_both_sides_make_a_gap() -> None:
    found = difference(curve((0, np.inf), (1, 1)), curve((0, np.inf), (1, 2)), 0, 1, 10)
    assert np.isnan(found.y[0])


def test_curves_that_do_not_overlap_have_no_difference() -> None:
    assert difference(curve((0, 0), (1, 0)), curve((2, 0), (3, 0)), 0, 3, 10) is EMPTY
    assert difference(EMPTY, curve((2, 0), (3, 0)), 0, 3, 10) is EMPTY


def test_nothing_can_be_drawn_on_no_column() -> None:
    with pytest.raises(ValueError, match="a column"):
        difference(EMPTY, EMPTY, 0, 1, 0)
    with pytest.raises(ValueError, match="nothing can be drawn"):
        EMPTY.drawn(1, 1, 10)


def test_a_spike_among_many_points_is_kept_and_the_drawing_is_bounded() -> None:
    y = np.zeros(200_000)
    y[123_456] = 9.0
    long = Curve(np.arange(200_000.0), y)
    drawn = long.drawn(0, 200_000, 500)
    assert len(drawn.x) < 5 * 500
    assert drawn.y.max() == 9.0
    apart = difference(long, Curve(long.x, np.zeros(200_000)), 0, 200_000, 500)
    assert len(apart.x) < 10 * 500
    assert apart.y.min() == -9.0


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 100), st.floats(-1e3, 1e3)), min_size=2, max_size=40, unique_by=lambda p: p[0]),
    st.lists(st.tuples(st.floats(0, 100), st.floats(-1e3, 1e3)), min_size=2, max_size=40, unique_by=lambda p: p[0]),
)
def test_swapping_flips_the_difference(first: list[tuple[float, float]], second: list[tuple[float, float]]) -> None:
    a, b = curve(*sorted(first)), curve(*sorted(second))
    there, back = difference(a, b, 0, 100, 1000), difference(b, a, 0, 100, 1000)
    assert there.x.tolist() == back.x.tolist()
    assert there.y.tolist() == pytest.approx([-value for value in back.y.tolist()], nan_ok=True)
    assert difference(a, a, 0, 100, 1000).y.tolist() == [0.0] * len(difference(a, a, 0, 100, 1000).y)


def test_runs_are_laid_over_one_another_by_start_step_or_mark() -> None:
    run = MADE.but(began_s=7.0, marks=(("epoch 2", 0.5),)).run()
    assert aligned(run, "loss", "start").x[0] == pytest.approx(0.01)
    assert aligned(run, "loss", "step").x[:3].tolist() == [1, 2, 3]
    assert aligned(run, "loss", "mark", "epoch 2").x[0] == pytest.approx(-0.49)
    assert aligned(run, "loss", "mark", "epoch 3") is EMPTY
    memory = aligned(run, "allocated", "step")
    assert memory.x[0] == 0.0
    assert memory.x[-1] <= 200


def test_what_a_run_did_not_tell_has_no_curve() -> None:
    assert aligned(MADE.but(loss=None).run(), "loss", "start") is EMPTY
    assert aligned(MADE.run(), "used", "start").extent is None
    assert aligned(MADE.but(steps=0).run(), "allocated", "step") is EMPTY


def test_a_program_that_counts_its_steps_anew_keeps_the_axis_ascending() -> None:
    run = MADE.but(steps=4).run()
    run.steps.number[:] = [1, 2, 1, 2]
    assert aligned(run, "loss", "step").x.tolist() == [1, 2, 2, 2]


def test_marks_and_memory_are_offered_where_every_run_has_them() -> None:
    one, other = MADE.but(marks=(("x", 0.1), ("y", 0.2))).run(), MADE.but(marks=(("y", 0.3),)).run("b")
    assert common_marks([one, other]) == ["y"]
    assert common_marks([]) == []
    assert shared_memory([one, other]) == "allocated"
    assert shared_memory([one, MADE.but(allocated=None).run("b")]) is None
