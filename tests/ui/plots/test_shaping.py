import math
from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudash.drawing.shaping import dashes, pulses, stacked
from gpudash.ui.plots.overlay import Mark, place

NAN = math.nan


def array(*values: float) -> np.ndarray:
    return np.array(values, dtype=float)


def test_bands_at_the_same_times_are_summed_as_they_are() -> None:
    t = array(0, 1, 2)
    times, edges = stacked([(t, array(1, 2, 3)), (t.copy(), array(10, 10, 10))])
    assert times.tolist() == [0, 1, 2]
    assert [edge.tolist() for edge in edges if edge is not None] == [[1, 2, 3], [11, 12, 13]]


def test_no_band_loses_a_peak_that_lies_between_the_times_of_another() -> None:
    times, edges = stacked([(array(0, 10), array(1, 1)), (array(0, 4.9, 5, 5.1, 10), array(0, 0, 7, 0, 0))])
    assert edges[1] is not None
    assert edges[1].max() == 8.0 and times[edges[1].argmax()] == 5.0


def test_a_band_outside_its_samples_has_no_height() -> None:
    _, edges = stacked([(array(0, 1, 2, 3), array(1, 1, 1, 1)), (array(2, 3), array(5, 5))])
    assert edges[1] is not None and edges[1].tolist() == [1, 1, 6, 6]


def test_a_gap_in_a_band_is_a_gap_in_all_above_it_and_not_a_zero() -> None:
    t = array(0, 1, 2)
    _, edges = stacked([(t, array(1, NAN, 1)), (t, array(2, 2, 2))])
    assert edges[0] is not None and edges[1] is not None
    assert math.isnan(edges[0][1]) and math.isnan(edges[1][1]) and edges[1][2] == 3


def test_a_band_without_data_is_left_out() -> None:
    t = array(0, 1)
    times, edges = stacked([None, (t, array(2, 2)), (array(), array())])
    assert times.tolist() == [0, 1]
    assert edges[0] is None and edges[2] is None and edges[1] is not None
    assert stacked([None])[1] == [None]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.floats(0, 1e12), min_size=1, max_size=30), min_size=1, max_size=4))
def test_every_band_reaches_at_least_its_own_highest_sample(heights: list[list[float]]) -> None:
    bands = [(np.sort(np.random.default_rng(i).uniform(0, 1, len(h))), np.array(h)) for i, h in enumerate(heights)]
    _, edges = stacked(bands)
    for (_, values), edge in zip(bands, edges, strict=True):
        assert edge is not None and edge.max() >= values.max() * (1 - 1e-12)


def test_a_burst_has_edges_down_to_zero() -> None:
    t, v = pulses(array(1.0, 1.1, 1.1, 5.0, 5.2, 5.2), array(9, 9, NAN, 4, 4, NAN), bridged_s=1.0)
    assert t.tolist() == [1.0, 1.0, 1.1, 1.1, 5.0, 5.0, 5.0, 5.2, 5.2]
    np.testing.assert_array_equal(v, array(0, 9, 9, 0, NAN, 0, 4, 4, 0))


def test_bursts_close_together_are_one_line() -> None:
    t, v = pulses(array(1.0, 1.1, 1.1, 1.2, 1.3, 1.3), array(9, 9, NAN, 4, 4, NAN), bridged_s=1.0)
    assert t.tolist() == [1.0, 1.0, 1.1, 1.2, 1.3, 1.3]
    assert v.tolist() == [0, 9, 9, 4, 4, 0]


def test_no_burst_is_no_points() -> None:
    assert len(pulses(array(1.0), array(NAN), 1.0)[0]) == 0
    assert len(pulses(array(), array(), 1.0)[0]) == 0


def test_a_dense_curve_is_dashed_by_leaving_out_columns() -> None:
    pattern = dashes(np.arange(1000) * 1.0, 1.0, "dash")
    assert pattern is not None
    assert 0.5 < pattern.mean() < 0.75
    assert (np.diff(pattern) != 0).sum() > 100


def test_dashes_move_with_the_data() -> None:
    t = np.arange(1000) * 1.0
    first, second = dashes(t, 1.0, "dot"), dashes(t[100:], 1.0, "dot")
    assert first is not None and second is not None
    np.testing.assert_array_equal(first[100:], second)


def test_a_sparse_curve_is_left_to_the_pen() -> None:
    assert dashes(np.arange(10) * 100.0, 1.0, "dash") is None


def _place(marks: list[Mark], width: float = 500.0) -> list[tuple[str, float, float]]:
    def elide(text: str, room: float) -> str:
        return text if len(text) * 8 <= room else text[: max(0, int(room / 8) - 1)] + "…"

    placed = place(marks, lambda t: t, 0.0, width, lambda text: len(text) * 8.0, elide)
    return [(p.text, p.text_x, p.text_x + len(p.text) * 8.0) for p in placed]


def test_a_user_s_mark_keeps_its_label_before_others() -> None:
    labels = _place([Mark(100, "epoch 11", "epoch"), Mark(104, "look here", "user"), Mark(108, "epoch 12", "epoch")])
    assert labels[1][0] == "look here"


def test_a_label_at_the_right_end_goes_to_the_left_of_its_line() -> None:
    ((text, _, right),) = _place([Mark(495, "finished", "run")])
    assert text == "finished" and right <= 495


marks = st.lists(
    st.tuples(
        st.floats(-50, 550),
        st.text("abcdefgh ", min_size=1, max_size=30),
        st.sampled_from(["user", "run", "epoch", "x"]),
    ),
    max_size=40,
)


@settings(max_examples=100, deadline=None)
@given(marks)
def test_labels_never_overlap_stay_inside_and_every_line_inside_is_kept(found: list[tuple[float, str, str]]) -> None:
    ordered = sorted((Mark(*mark) for mark in found), key=lambda mark: mark.time_s)
    labels = _place(ordered)
    assert len(labels) == sum(0 <= mark.time_s <= 500 for mark in ordered)
    boxes = sorted((left, right) for text, left, right in labels if text)
    assert all(first[1] <= second[0] for first, second in pairwise(boxes))
    assert all(left >= 0 and right <= 500 for left, right in boxes)
