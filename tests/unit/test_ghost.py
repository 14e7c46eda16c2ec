"""The drawing of a predicted run: ribbons upon one another, thinned to columns of pixels without losing a peak."""

from __future__ import annotations

import json
import time
from array import array
from dataclasses import replace

import numpy as np
import pytest

from gpudash.drawing.ghost import Ghost
from gpudash.memory.allocator.trace import Trace, TraceCopy, TraceMark, repeated
from gpudash.memory.predicting.estimate import Target, judge
from gpudash.memory.predicting.memory_timeline import MemoryTimeline, timeline_of
from gpudash.session.predicting.ghosts import ghost_of
from gpudash.units import GIB, MIB

MARKS = ((0, 0, ""), (2, 1, "forward"), (4, 1, "backward"), (6, 2, "forward"), (8, 2, "backward"))


def ghost(*heights: float, **options: float) -> Ghost:
    level = np.full(len(heights), 10.0)
    return Ghost.of({"weights": level, "inputs": level * 0, "activations": np.array(heights)}, MARKS, **options)


def trace(steps: int = 2, size: int = 40 * MIB) -> Trace:
    """Weights that stay, and in each step two blocks of activations that go."""
    events, sizes, kinds = array("q", [1]), array("q", [30 * MIB]), ["weights"]
    marks = [TraceMark(0, 0, "")]
    for step in range(1, steps + 1):
        block = len(sizes) + 1
        marks += [TraceMark(len(events), step, "forward"), TraceMark(len(events) + 2, step, "backward")]
        events.extend([block, block + 1, -block, -block - 1])
        sizes.extend([size, size])
        kinds += ["activations", "activations"]
    return Trace(events, sizes, kinds, marks, followed=steps)


def test_ribbons_lie_upon_one_another_and_one_that_is_always_empty_is_not_there() -> None:
    found = ghost(1, 5, 2)
    assert found.names == ("weights", "activations")
    assert found.edges.tolist() == [[10, 10, 10], [11, 15, 12]]
    assert (found.highest, found.peak_at, found.parts) == (15, 1, {"weights": 10, "activations": 5})


def test_the_step_of_the_peak_is_shown_in_its_stages_and_of_equal_ones_the_last() -> None:
    step = ghost(0, 0, 3, 9, 2, 0, 3, 9, 2, 0).one_step
    assert (step.step, step.first, step.behind) == (2, 6, 10)
    assert [(stage.name, stage.start, stage.end) for stage in step.stages] == [
        ("forward", 0.0, 0.5),
        ("backward", 0.5, 1.0),
    ]


def test_a_peak_before_the_first_step_is_shown_in_the_whole_run() -> None:
    found = ghost(0, 20, 3, 9, 2, 0, 3, 9, 2, 0)
    assert found.one_step is found.whole
    assert [stage.name for stage in found.whole.stages] == ["", "1", "2"]


def test_of_several_moments_that_hold_the_most_the_peak_is_the_first_of_the_last_step() -> None:
    ribbons = {
        "activations": np.array([0.0, 8, 7, 0, 8, 7, 0]),
        "temporary": np.array([0.0, 1, 2, 0, 1, 2, 0]),
    }
    found = Ghost.of(ribbons, ((0, 1, "forward"), (3, 2, "forward"), (6, 2, "optimizer")))
    assert (found.peak_at, found.parts, found.one_step.step) == (4, {"activations": 8, "temporary": 1}, 2)


def timed(**seconds: float) -> Ghost:
    return replace(ghost(0, 0, 3, 9, 2, 0, 3, 9, 2, 0), stage_seconds=seconds)


def test_a_step_whose_stages_times_are_predicted_is_as_wide_as_they_take() -> None:
    step = timed(forward=0.1, backward=0.3).one_step
    assert step.seconds == pytest.approx(0.4)
    assert [stage.name for stage in step.stages] == ["forward", "backward"]
    assert [stage.end for stage in step.stages] == pytest.approx([0.25, 1.0])
    assert step.share_of(7) == pytest.approx(0.1875)
    assert step.columns(8).edges[-1].tolist() == [13, 19, 12, 12, 12, 12, 10, 10]
    assert ghost(0, 0, 3, 9, 2, 0, 3, 9, 2, 0).one_step.seconds is None


def test_a_stage_of_no_time_is_still_seen() -> None:
    step = timed(forward=0.4, backward=0.0).one_step
    assert 0.015 < step.stages[1].end - step.stages[1].start < 0.025


@pytest.mark.parametrize("columns", [1, 2, 3, 7, 50, 541])
def test_however_its_width_is_shared_out_the_highest_of_a_step_is_shown_in_as_many_columns(columns: int) -> None:
    for seconds in (
        {"forward": 1.0, "backward": 1e-9},
        {"forward": 1e-9, "backward": 1.0},
        {"forward": 1, "backward": 2},
    ):
        step = timed(**seconds).one_step
        shown = step.columns(columns).edges
        assert shown.shape[1] == columns
        assert shown[-1].max() == 19


def test_the_predicted_times_of_a_ghost_are_recorded_with_it_as_predicted() -> None:
    found = timed(forward=0.1, backward=0.3)
    written = json.loads(json.dumps(found.thinned(4).to_json()))
    assert written["predicted"] is True
    assert Ghost.from_json(written).stage_seconds == {"forward": 0.1, "backward": 0.3}
    del written["stage_seconds"]
    assert Ghost.from_json(written).stage_seconds == {}
    with pytest.raises(ValueError, match="times"):
        Ghost.from_json({**written, "stage_seconds": {"forward": -1}})


@pytest.mark.parametrize("requests", [1, 2, 290, 541, 5310])
@pytest.mark.parametrize("columns", [1, 7, 120, 540])
def test_however_many_requests_and_columns_the_highest_is_shown(requests: int, columns: int) -> None:
    heights = np.arange(requests) * 7 % 291 + 1.0
    assert Ghost.of({"activations": heights}).whole.columns(columns).edges.max() == heights.max()


@pytest.mark.parametrize("columns", [1, 7, 100, 540, 2000])
def test_each_column_shows_the_highest_of_its_requests_and_of_what_it_began_with(columns: int) -> None:
    heights = np.random.default_rng(columns).integers(0, 1000, 1234).astype(np.float64)
    shown = Ghost.of({"activations": heights}).whole.columns(columns).edges[0]
    for column in range(columns):
        begin, end = (np.ceil(place * 1234 / columns) for place in (column, column + 1))
        assert shown[column] == heights[int(max(0, begin - 1)) if column else 0 : int(max(end, 1))].max()


@pytest.mark.timed
def test_a_hundred_thousand_requests_are_thinned_within_a_frame() -> None:
    level = np.ones(100_000)
    ribbons = {name: level * place for place, name in enumerate("abcdefgh", 1)}
    panel = Ghost.of({**ribbons, "activations": np.arange(100_000) % 977.0}).whole
    took = []
    for _ in range(5):
        began = time.perf_counter()
        panel.columns(700)
        took.append(time.perf_counter() - began)
    assert min(took) < 0.02


def test_a_course_comes_over_as_columns_and_its_highest_point_is_what_is_needed() -> None:
    target = Target("sim:0", GIB, GIB - 100 * MIB, 50 * MIB)
    found = judge(trace(), target, "training")
    written = json.loads(json.dumps(timeline_of(trace(), target, found).to_json()))
    drawn = ghost_of(MemoryTimeline.from_json(written), found)
    assert drawn.names == ("in use already", "context", "weights", "activations", "idle in the allocator")
    assert drawn.highest == 100 * MIB + (found.needed_bytes or 0)
    assert drawn.edges[drawn.top].max() == (100 + 50) * MIB + (found.peak_allocated_bytes or 0)
    assert drawn.parts["activations"] == found.by_category["activations"]
    assert (drawn.capacity, drawn.limit) == (GIB, GIB)


def test_of_a_run_that_does_not_fit_what_is_above_the_limit_is_what_is_short() -> None:
    target = Target("sim:0", 140 * MIB, 120 * MIB, 50 * MIB)
    found = judge(trace(), target, "training")
    drawn = ghost_of(timeline_of(trace(), target, found), found)
    assert found.fits is False and drawn.limit is not None
    assert drawn.limit - drawn.highest == found.spare_bytes


COPIES = ((0, 0, 700, 0), (3, 1, 64, 0), (5, 1, 4, 1), (6, 2, 64, 0), (10, 2, 4, 1))


def test_copies_are_added_up_by_columns_each_in_its_own_step() -> None:
    found = replace(ghost(0, 0, 3, 9, 2, 0, 3, 9, 2, 0), copies=np.array(COPIES))
    assert found.one_step.copied(4).tolist() == [[64, 0, 0, 0], [0, 0, 0, 4]]
    assert found.whole.copied(5).tolist() == [[700, 64, 0, 64, 0], [0, 0, 4, 0, 4]]
    assert ghost(1, 2).whole.copied(3).tolist() == [[0, 0, 0], [0, 0, 0]]


def test_where_a_step_is_drawn_in_time_its_copies_are_too() -> None:
    found = replace(timed(forward=0.3, backward=0.1), copies=np.array([(8, 2, 64, 0)]))
    assert found.one_step.copied(4).tolist()[0] == [0, 0, 0, 64]


def test_copies_come_over_with_a_course_and_on_the_cpu_there_are_none() -> None:
    copied = replace(trace(), copies=[TraceCopy(1, 1, 4096, outward=False), TraceCopy(5, 1, 4, outward=True)])
    for target, wanted in (
        (Target("sim:0", GIB, GIB), [[1, 1, 4096, 0], [5, 1, 4, 1]]),
        (Target("cpu", GIB, GIB), []),
    ):
        course = timeline_of(copied, target, judge(copied, target, "training"))
        read = MemoryTimeline.from_json(json.loads(json.dumps(course.to_json())))
        assert read.copies.tolist() == wanted


def test_a_course_that_goes_on_copies_in_each_step_what_the_last_one_did() -> None:
    longer = repeated(replace(trace(), copies=[TraceCopy(5, 2, 64, outward=False)]), 4)
    assert [(copy.at, copy.step) for copy in longer.copies] == [(5, 2), (9, 3), (13, 4)]


def test_on_the_cpu_nothing_is_kept_and_nothing_lies_beneath() -> None:
    target = Target("cpu", GIB, GIB // 2)
    found = judge(trace(), target, "training")
    drawn = ghost_of(timeline_of(trace(), target, found), found)
    assert drawn.names == ("weights", "activations")
    assert drawn.highest == found.peak_allocated_bytes


@pytest.mark.parametrize("wrong", [{"changes": "%%%"}, {"kinds": "0000"}, {"in_use": None}])
def test_a_course_that_cannot_be_read_is_an_error_of_a_kind_that_is_told(wrong: dict[str, object]) -> None:
    target = Target("sim:0", GIB, GIB)
    written = timeline_of(trace(), target, judge(trace(), target, "training")).to_json()
    with pytest.raises((ValueError, TypeError)):
        MemoryTimeline.from_json({**written, **wrong})


def test_a_panel_of_very_many_requests_is_thinned_from_a_part_of_them_that_has_every_peak() -> None:
    heights = np.random.default_rng(1).integers(0, 1000, 100_000).astype(np.float64)
    kept = np.full(100_000, 5000.0)
    kept[77_777] = 9000.0
    found = Ghost.of({"activations": heights, "idle": kept}, kept="idle")
    found.prepare()
    columns = found.whole.columns(700).edges
    assert found.whole.fine.shape == (2, 8192)
    assert (columns[0].max(), columns[1].max()) == (heights.max(), (heights + kept).max())
    assert columns[0].min() >= 900, "each column shows the highest of some 143 requests"


def test_thinned_it_keeps_its_peak_its_steps_and_where_they_begin() -> None:
    long = Ghost.of(
        {"weights": np.full(10_000, 10.0), "activations": np.where(np.arange(10_000) == 7_777, 90.0, 1.0)},
        ((0, 0, ""), (100, 1, "forward"), (5_000, 2, "forward")),
        capacity=200.0,
    )
    small = long.thinned(16)
    assert small.requests == 48 and small.highest == 100.0 and small.steps == 2
    assert small.marks == ((0, 0, ""), (16, 1, "forward"), (32, 2, "forward"))
    assert (small.step_panel(2).columns(4).edges[-1].max(), small.capacity) == (100.0, 200.0)


def test_it_is_written_in_plain_values_and_read_again_as_it_was() -> None:
    before = ghost(0, 0, 5, 9, 3, 0, 5, 9, 3, 0, limit=15.0)
    after = Ghost.from_json(json.loads(json.dumps(before.to_json())))
    assert (after.names, after.marks, after.top, after.limit) == (before.names, before.marks, before.top, 15.0)
    assert after.edges.tolist() == before.edges.tolist()


@pytest.mark.parametrize(
    "changed",
    [{"edges": []}, {"edges": [[1, None]]}, {"names": ["a"]}, {"marks": [[99, 1, ""]]}, {"top": 7}, {"marks": None}],
)
def test_what_is_no_drawing_is_refused(changed: dict[str, object]) -> None:
    written = ghost(0, 0, 5, 9, 3, 0, 5, 9, 3, 0).to_json()
    with pytest.raises((KeyError, TypeError, ValueError)):
        Ghost.from_json({**written, **changed})
