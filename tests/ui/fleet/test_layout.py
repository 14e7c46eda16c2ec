"""Where cells stand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudash.ui.fleet.arranging import Section
from gpudash.ui.fleet.layout import TITLED, Density, FleetLayout

SECTIONS = (Section("a", tuple(f"a{n}" for n in range(7))), Section("b", tuple(f"b{n}" for n in range(3))))


def laid_out(*counts: int, width: int = 700, density: Density = "cells", titled: bool = True) -> FleetLayout:
    sections = [
        Section(f"s{place}" if titled else "", tuple(f"{place}/{n}" for n in range(count)))
        for place, count in enumerate(counts)
    ]
    return FleetLayout(sections, width, density)


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=5), st.integers(50, 3000), st.sampled_from(["cells", "heat map"])
)
def test_cells_lie_within_the_width_and_none_covers_another(counts: list[int], width: int, density: Density) -> None:
    layout = laid_out(*counts, width=max(width, 220), density=density)
    taken: set[tuple[int, int]] = set()
    for place in range(len(layout.keys)):
        left, top, wide, high = layout.rect(place)
        assert left >= 0
        assert left + wide <= max(width, 220)
        assert top + high <= layout.height
        assert layout.at(left, top) == place
        assert layout.at(left + wide - 1, top + high - 1) == place
        taken.add((left, top))
    assert len(taken) == len(layout.keys)


@given(st.lists(st.integers(1, 60), min_size=1, max_size=4), st.integers(0, 2000), st.integers(1, 900))
def test_what_is_seen_is_what_overlaps_and_little_more(counts: list[int], top: int, height: int) -> None:
    layout = laid_out(*counts, width=900)
    seen = set(layout.seen(top, top + height))
    for place in range(len(layout.keys)):
        _left, begin, _width, high = layout.rect(place)
        overlaps = begin < top + height and begin + high > top
        if overlaps:
            assert place in seen
        elif begin >= top + height or begin + layout.row_height <= top:
            assert place not in seen


def test_a_whole_fleet_is_in_sight_as_a_heat_map() -> None:
    assert laid_out(512, width=1256, density="heat map", titled=False).height <= 600


def test_a_heat_map_is_drawn_as_large_as_all_of_it_fits() -> None:
    small, large = (
        FleetLayout([Section("", tuple(map(str, range(512))))], 2500, "heat map", room) for room in (300, 1200)
    )
    assert large.rect(0)[3] > small.rect(0)[3]
    assert large.height <= 1200
    assert small.rect(0)[3] == laid_out(512, width=2500, density="heat map").rect(0)[3]


def test_three_gpus_get_larger_cells() -> None:
    assert laid_out(3, width=1256, titled=False).rect(0)[2] > laid_out(512, width=1256, titled=False).rect(0)[2]


def test_titles_stand_above_their_cells_and_only_where_there_are_groups() -> None:
    layout = laid_out(7, 3)
    [first, second] = layout.titles(0, layout.height)
    assert first[1][1] + first[1][3] <= layout.rect(0)[1]
    assert layout.rect(6)[1] < second[1][1] < layout.rect(7)[1]
    assert list(laid_out(7, titled=False).titles(0, 1000)) == []
    assert layout.at(5, second[1][1] + 3) is None


@pytest.mark.parametrize(
    ("place", "columns", "rows", "goal"),
    [
        (0, 1, 0, 1),
        (0, -1, 0, 0),
        (9, 1, 0, 9),
        (1, 0, 1, 4),
        (4, 0, 1, 6),
        (5, 0, -1, 2),
        (6, 0, 1, 7),
        (8, 0, 1, 8),
        (8, 0, -1, 6),
        (1, 0, -1, 1),
        (0, 0, 9, 7),
    ],
)
def test_arrows_keep_the_column_also_from_group_to_group(place: int, columns: int, rows: int, goal: int) -> None:
    layout = FleetLayout(SECTIONS, 640, "cells")
    assert layout.columns == 3
    assert layout.moved(place, columns, rows) == goal


def test_nothing_to_show_has_no_height() -> None:
    layout = FleetLayout((), 500, "cells")
    assert (layout.height, layout.at(3, 3), list(layout.seen(0, 500))) == (0, None, [])


def test_small_groups_stand_side_by_side_and_their_titles_have_room() -> None:
    layout = laid_out(*[8] * 5, width=1254, density="heat map")
    titles = [rect for _section, rect in layout.titles(0, layout.height)]
    assert [(left, top) for left, top, _width, _height in titles[:3]] == [
        (0, 0),
        (titles[1][0], 0),
        (0, titles[2][1]),
    ]
    assert titles[1][0] >= titles[0][2] >= TITLED
    assert titles[1][0] + titles[1][2] <= 1254
    assert layout.rect(8)[0] == titles[1][0]
    assert layout.moved(0, 0, 1) == 16
    assert layout.moved(9, 0, 1) == 25
    assert layout.moved(25, 0, 1) == 25
    assert layout.moved(16, 0, -1) == 0
    assert layout.moved(9, 0, -1) == 9


def test_the_rows_of_a_group_are_even() -> None:
    layout = laid_out(8, 8, width=1256)
    assert layout.columns == 4
    assert layout.rect(3)[0] + layout.rect(3)[2] > 0.9 * 1256
