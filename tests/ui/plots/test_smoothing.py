import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudash.telemetry.plots import CurveSpec
from gpudash.telemetry.series import Series
from gpudash.ui.plots.reading import SmoothedSeries, Smoother, Smoothing

weights = st.floats(0, 0.999)
values = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=200)


def smooth(values: np.ndarray, weight: float) -> np.ndarray:
    """``values`` smoothed from the first to the last sample."""
    return Smoother(weight).extend(values)


def test_zero_is_raw() -> None:
    raw = np.array([3.0, -1.0, 2.5])
    assert smooth(raw, 0.0).tolist() == raw.tolist()


@pytest.mark.parametrize("weight", [1.0, 1.5, -0.1])
def test_a_weight_of_one_that_would_flatten_everything_is_refused(weight: float) -> None:
    with pytest.raises(ValueError, match="outside 0 to below 1"):
        smooth(np.array([1.0]), weight)


@settings(max_examples=60, deadline=None)
@given(st.floats(-1e9, 1e9), weights, st.integers(1, 300))
def test_a_constant_stays_exactly_that_constant(constant: float, weight: float, count: int) -> None:
    assert (smooth(np.full(count, constant), weight) == constant).all()


@settings(max_examples=60, deadline=None)
@given(values, weights)
def test_the_line_begins_at_the_first_sample_ends_at_the_last_and_never_leaves_the_data(
    raw: list[float], weight: float
) -> None:
    line = smooth(np.array(raw), weight)
    assert len(line) == len(raw)
    assert line[0] == raw[0]
    slack = 1e-9 * max(1.0, max(map(abs, raw)))
    assert line.min() >= min(raw) - slack and line.max() <= max(raw) + slack


@settings(max_examples=40, deadline=None)
@given(values, st.floats(0.01, 0.99))
def test_it_is_the_bias_corrected_average(raw: list[float], weight: float) -> None:
    n = len(raw)
    ages = weight ** np.arange(n - 1, -1, -1)
    expected = float((ages * np.array(raw)).sum() / ages.sum())
    assert smooth(np.array(raw), weight)[-1] == pytest.approx(expected, rel=1e-7, abs=1e-6)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_finite_breaks_the_line_instead_of_poisoning_it(bad: float) -> None:
    line = smooth(np.array([1.0, 2.0, bad, 8.0, 8.0]), 0.9)
    assert math.isnan(line[2])
    assert line[3] == 8.0 and line[4] == 8.0


@settings(max_examples=40, deadline=None)
@given(values, weights, st.data())
def test_piece_by_piece_gives_the_same_as_all_at_once(raw: list[float], weight: float, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(raw)))
    smoother = Smoother(weight)
    pieces = np.concatenate((smoother.extend(np.array(raw[:cut])), smoother.extend(np.array(raw[cut:]))))
    assert pieces.tolist() == smooth(np.array(raw), weight).tolist()


def test_a_followed_series_is_smoothed_sample_by_sample_even_at_equal_times() -> None:
    raw, smoothed = Series(), SmoothedSeries(0.8)
    rng = np.random.default_rng(1)
    data: list[float] = []
    for round_number in range(40):
        for _ in range(int(rng.integers(0, 5))):
            data.append(math.nan if len(data) == 30 else float(rng.normal()))
            raw.append(round_number * 0.1, data[-1])
        smoothed.follow(raw)
    times, values = smoothed.series.window(-1.0, 100.0, 10_000)
    assert len(times) == len(data)
    np.testing.assert_array_equal(values, smooth(np.array(data), 0.8))


@pytest.mark.parametrize(("moment", "left"), [(0.25, 3), (-1.0, 0)])
def test_what_is_smoothed_ends_where_a_replay_stands(moment: float, left: int) -> None:
    smoothing, raw = Smoothing(0.8), Series()
    curve = CurveSpec(("run", "loss", None), "loss", "nats", "loss", smoothed=True)
    for number in range(10):
        raw.append(number * 0.1, 1.0)
    whole, then = smoothing.of(curve, raw), smoothing.of(curve, raw.until(moment))
    assert whole is not None and then is not None
    assert (len(whole.window(-2.0, 2.0, 100)[0]), len(then.window(-2.0, 2.0, 100)[0])) == (10, left)
