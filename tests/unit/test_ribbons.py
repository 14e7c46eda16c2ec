"""Allocations as ribbons: columns of a picture, whatever the number of allocations."""

from itertools import pairwise

import numpy as np
import pytest

from gpudash.drawing.ribbons import OTHERS, Allocations, RibbonGround, Ribbons, painted, ribbons, stayed_by_line

MIB = 2**20


def _allocations(lives: list[tuple[int, int, int, int]], events: int, place: np.ndarray | None = None) -> Allocations:
    """Of (born, freed, bytes, line)."""
    born, freed, size, site = np.array(sorted(lives), np.int64).T
    if place is None:
        place = np.arange(events, dtype=np.float64)
    return Allocations(born, freed, size, site, place)


def _nested(count: int, lines: int = 7, seed: int = 0) -> Allocations:
    """As a training asks: some that stay, then steps of a hundred that are freed in the other order."""
    random = np.random.default_rng(seed)
    lives = [(event, 2**62, MIB, event % lines) for event in range(20)]
    event = 20
    while len(lives) < count:
        step = min(100, count - len(lives))
        sizes = random.integers(1, 64, step) * 512
        lives += [(event + k, event + 2 * step - 1 - k, int(sizes[k]), k % lines) for k in range(step)]
        event += 2 * step
    return _allocations(lives, event)


def _thickness(shown: Ribbons) -> np.ndarray:
    return np.diff(np.concatenate((np.zeros((1, shown.tops.shape[1])), shown.tops)), axis=0)[:, shown.column_of]


def test_a_ribbon_is_as_thick_as_its_bytes_from_its_first_event_to_its_last() -> None:
    found = _allocations([(0, 6, 10, 0), (2, 4, 30, 1)], 8)
    shown = ribbons(found, 0.0, 8.0, 8)
    assert _thickness(shown).tolist() == [[10.0] * 6 + [10.0, 0.0], [0.0, 0.0, 30.0, 30.0, 30.0, 0.0, 0.0, 0.0]]
    assert shown.allocation.tolist() == [0, 1]


def test_what_lies_above_what_is_freed_comes_down() -> None:
    found = _allocations([(0, 2, 100, 0), (1, 9, 7, 1)], 4)
    shown = ribbons(found, 0.0, 4.0, 4)
    assert shown.tops[1][shown.column_of].tolist() == [100.0, 107.0, 107.0, 7.0]


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (0.3, 0.5), (0.41, 0.4101), (0.9, 1.2)])
@pytest.mark.parametrize("apart", [6000, 10])
def test_every_column_adds_up_to_what_was_allocated_at_its_moment(low: float, high: float, apart: int) -> None:
    found = _nested(3000)
    end = float(len(found.place))
    shown = ribbons(found, low * end, high * end, 300, apart=apart, single=40)
    top = shown.tops[-1][shown.column_of]
    assert top.tolist() == found.level[shown.moments + 1].tolist()


def test_a_peak_of_one_event_is_in_the_picture_of_ten_thousand() -> None:
    found = _nested(5000)
    shown = ribbons(found, 0.0, float(len(found.place)), 200)
    assert shown.tops[-1].max() == found.level.max()


@pytest.mark.parametrize("count", [40_000, 160_000])
def test_of_very_many_events_each_column_is_still_drawn_at_its_fullest_moment(count: int) -> None:
    found = _nested(count)
    begin, end = 777.5, len(found.place) - 333.25
    shown = ribbons(found, begin, end, 150)
    edges = np.ceil(np.linspace(begin, end, 151)).astype(int)
    fullest = [found.level[first : behind + 1].max() for first, behind in pairwise(edges.tolist())]
    assert shown.tops[-1][shown.column_of].tolist() == fullest
    assert shown.tops[-1][shown.column_of].tolist() == found.level[shown.moments + 1].tolist()


def test_single_allocations_flow_into_one_ribbon_a_line_where_there_are_too_many() -> None:
    found = _nested(3000, lines=5)
    shown = ribbons(found, 0.0, float(len(found.place)), 300, apart=100)
    assert sorted(shown.site.tolist()) == [0, 1, 2, 3, 4]
    assert set(shown.allocation.tolist()) == {-1}


def test_lines_added_up_before_the_largest_are_known_are_the_same_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    found = _nested(3000, lines=30)
    end = float(len(found.place))
    added_first = ribbons(found, 0.1 * end, 0.9 * end, 120, apart=10)
    monkeypatch.setattr("gpudash.drawing.ribbons.FEW_LINES", 0)
    sorted_out_first = ribbons(found, 0.1 * end, 0.9 * end, 120, apart=10)
    assert added_first.site.tolist() == sorted_out_first.site.tolist()
    assert added_first.tops.tolist() == sorted_out_first.tops.tolist()


def test_a_picture_painted_over_another_one_shows_nothing_of_it() -> None:
    shown = ribbons(_nested(500), 0.0, 600.0, 300)
    colours = np.arange(1, len(shown.site) + 1, dtype=np.uint32)
    around = RibbonGround(np.full(300, float(MIB)), np.full(300, 40.0 * MIB), 7)
    scale = 1.2 / MIB
    spare = np.full((60, 300), 99, np.uint32)
    over = painted(shown, colours, 60, scale, around, spare)
    assert over is spare
    assert over.tolist() == painted(shown, colours, 60, scale, around).tolist()


def test_the_smallest_lines_are_one_ribbon_on_top_of_all() -> None:
    lives = [(line, 2**62, 512 * (1 + line), line) for line in range(60)]
    shown = ribbons(_allocations(lives, 60), 0.0, 60.0, 60, apart=10)
    assert shown.site[-1] == OTHERS
    assert OTHERS not in shown.site[:-1]


def test_lines_keep_their_order_from_picture_to_picture() -> None:
    found = _nested(4000, lines=9)
    end = float(len(found.place))
    orders = [ribbons(found, part * end, (part + 0.3) * end, 200, apart=10).site.tolist() for part in (0.0, 0.3, 0.6)]
    assert orders[0] == orders[1] == orders[2]


def test_the_pointer_finds_the_ribbon_that_is_painted_there() -> None:
    found = _nested(600)
    shown = ribbons(found, 100.0, 400.0, 250)
    height = 180
    scale = height / shown.tops.max()
    colours = np.arange(1, len(shown.site) + 1, dtype=np.uint32)
    pixels = painted(shown, colours, height, scale)
    assert pixels.shape == (height, 250)
    for column in range(0, 250, 11):
        for row in range(2, height, 17):
            edges = shown.tops[:, shown.column_of[column]] * scale
            middle = height - row - 0.5
            if np.abs(edges - middle).min() < 1:
                continue
            ribbon = shown.at(column, middle / scale)
            assert pixels[row, column] == (0 if ribbon is None else ribbon + 1)


def test_ribbons_stand_on_what_is_below_them() -> None:
    shown = ribbons(_allocations([(0, 9, 10, 0)], 2), 0.0, 2.0, 2)
    pixels = painted(
        shown, np.array([7], np.uint32), 40, 1.0, RibbonGround(np.array([5.0, 20.0]), np.array([5.0, 35.0]), 9)
    )
    assert np.flatnonzero(pixels[::-1, 1] == 9).tolist() == list(range(30, 35))
    assert [np.flatnonzero(pixels[::-1, column] == 7).tolist() for column in (0, 1)] == [
        list(range(5, 15)),
        list(range(20, 30)),
    ]


def test_what_was_born_and_stayed_is_told_by_line_the_largest_first() -> None:
    found = _allocations([(0, 99, 5, 0), (1, 3, 50, 1), (2, 99, 10, 2), (4, 99, 20, 2), (5, 99, 8, 0)], 7)
    assert [(one.site, one.bytes, one.count) for one in stayed_by_line(found, 0, 4)] == [(2, 30, 2)]
    assert [(one.site, one.bytes) for one in stayed_by_line(found, 0, 5)] == [(2, 30), (0, 8)]


def test_what_was_there_before_the_first_event_is_in_every_column() -> None:
    found = _allocations([(-1, 2, 64, 0), (0, 99, 32, 1)], 4)
    assert found.level.tolist() == [64, 96, 96, 32, 32]
    shown = ribbons(found, -2.0, 4.0, 6)
    assert shown.tops[-1][shown.column_of].tolist() == [64, 64, 96, 96, 96, 32]


@pytest.mark.parametrize("apart", [6000, 0])
def test_a_range_in_which_nothing_is_held_has_no_ribbons(apart: int) -> None:
    found = _allocations([(0, 1, 10, 0), (2, 3, 30, 1)], 4)
    shown = ribbons(found, 3.5, 9.0, 5, apart=apart)
    assert not len(shown.site)
    assert shown.tops[:, shown.column_of].shape == (0, 5)
    around = RibbonGround(np.full(5, 2.0), np.full(5, 3.0), 7)
    pixels = painted(shown, np.zeros(0, np.uint32), 4, 1.0, around)
    assert pixels[:, 0].tolist() == [0, 7, 0, 0]


def test_nothing_allocated_is_no_ribbon() -> None:
    empty = np.zeros(0, np.int64)
    shown = ribbons(Allocations(empty, empty, empty, empty, np.arange(3.0)), 0.0, 3.0, 10)
    assert shown.at(3, 1.0) is None
