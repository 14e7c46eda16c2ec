"""Which GPUs are shown, in what order, when that order may change, and where cells stand."""

from __future__ import annotations

import dataclasses
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudash.telemetry.fleet_gpu import FleetGpu
from gpudash.ui.fleet.layout import (
    RESORT_S,
    SORTS,
    TITLED,
    Arrangement,
    Density,
    FleetLayout,
    Order,
    Section,
    arrange,
    found_by,
    natural,
)
from tests.ui.fleet.fake_fleet import generated, gpu

FLEET = generated()


def keys(order: Order) -> list[str]:
    return [key for section in order.sections for key in section.keys]


def full(*shares: float | None) -> list[FleetGpu]:
    return [gpu(f"n{place}", 0, full=share) for place, share in enumerate(shares)]


def test_the_three_fullest_of_a_fleet_are_the_first_three() -> None:
    shuffled = list(FLEET)
    random.Random(1).shuffle(shuffled)
    [section] = arrange(shuffled, Arrangement(), {})
    by_key = {found.key: found.fullness or 0.0 for found in FLEET}
    highest = sorted(by_key.values(), reverse=True)[:3]
    assert [by_key[key] for key in section.keys[:3]] == highest
    assert len(section.keys) == len(FLEET)


def test_a_gpu_whose_figure_is_not_known_comes_last() -> None:
    [section] = arrange(full(None, 0.0, 0.4), Arrangement(), {})
    assert section.keys == ("n2/0", "n1/0", "n0/0")


@pytest.mark.parametrize("sort", SORTS)
def test_every_sorting_shows_every_gpu_once(sort: str) -> None:
    [section] = arrange(FLEET, Arrangement(sort=sort), {})  # type: ignore[arg-type]
    assert sorted(section.keys) == sorted(found.key for found in FLEET)


def test_machines_are_sorted_as_a_person_counts() -> None:
    fleet = [gpu("node-10", 0), gpu("node-2", 1), gpu("node-2", 0)]
    [section] = arrange(fleet, Arrangement(sort="host"), {})
    assert section.keys == ("node-2/0", "node-2/1", "node-10/0")


def test_a_group_stands_where_its_first_gpu_would() -> None:
    fleet = [gpu("a", 0, full=0.1), gpu("b", 0, full=0.9), gpu("a", 1, full=0.95), gpu("b", 1, full=0.2)]
    sections = arrange(fleet, Arrangement(group="machine"), {})
    assert [(section.title, section.keys) for section in sections] == [("a", ("a/1", "a/0")), ("b", ("b/0", "b/1"))]
    nameless = arrange([dataclasses.replace(gpu(), product="")], Arrangement(group="product"), {})
    assert nameless[0].title == "not reported"


def test_only_gpus_with_a_warning_are_shown_when_asked() -> None:
    [section] = arrange(full(0.2, 0.4), Arrangement(only_warnings=True), {"n0/0": "warning"})
    assert section.keys == ("n0/0",)


@pytest.mark.parametrize("query", ["node-007", "NODE-007", "node 007", "gpu-node-007-", "training"])
def test_a_search_finds_what_holds_its_words(query: str) -> None:
    found = found_by(query, FLEET)
    assert found
    assert len(found) < len(FLEET)
    assert all(word in f"{f.host} {f.uuid} {f.run}".casefold() for f in found for word in query.casefold().split())


def test_an_abbreviation_is_found_where_nothing_holds_the_word_itself() -> None:
    fleet = [gpu("rack-a-node-1", 0), gpu("rack-b-node-2", 0)]
    assert [found.host for found in found_by("rbn2", fleet)] == ["rack-b-node-2"]
    assert found_by("zzz", fleet) == []


@given(st.lists(st.text("ab019-", max_size=6)))
def test_natural_order_is_an_order(names: list[str]) -> None:
    ordered = sorted(names, key=natural)
    assert sorted(ordered, key=natural) == ordered
    assert sorted(ordered) == sorted(names)


def test_small_changes_leave_every_cell_in_its_place() -> None:
    order = Order()
    order.update(full(0.50, 0.49), Arrangement(), {}, 0.0, busy=False)
    assert not order.update(full(0.50, 0.51), Arrangement(), {}, 100.0, busy=False)
    assert keys(order) == ["n0/0", "n1/0"]
    assert not order.old


def test_a_large_change_is_sorted_in_but_not_before_its_time() -> None:
    order = Order()
    order.update(full(0.5, 0.2), Arrangement(), {}, 0.0, busy=False)
    assert not order.update(full(0.5, 0.9), Arrangement(), {}, RESORT_S - 1, busy=False)
    assert order.old
    assert order.update(full(0.5, 0.9), Arrangement(), {}, RESORT_S, busy=False)
    assert keys(order) == ["n1/0", "n0/0"]
    assert not order.old


def test_nothing_moves_under_the_pointer_and_the_order_is_said_to_be_old() -> None:
    order = Order()
    order.update(full(0.5, 0.2), Arrangement(), {}, 0.0, busy=False)
    assert not order.update(full(0.5, 0.9), Arrangement(), {}, 1000.0, busy=True)
    assert order.old
    assert keys(order) == ["n0/0", "n1/0"]


def test_who_asks_for_another_order_gets_it_at_once() -> None:
    order = Order()
    order.update(full(0.5, 0.2), Arrangement(), {}, 0.0, busy=False)
    assert order.update(full(0.5, 0.9), Arrangement(sort="host", query="n1"), {}, 0.1, busy=True)
    assert keys(order) == ["n1/0"]
    order.update(full(0.5, 0.9), Arrangement(), {}, 0.2, busy=True)
    order.update(full(0.95, 0.9), Arrangement(), {}, 0.3, busy=True)
    order.forget()
    assert order.update(full(0.95, 0.9), Arrangement(), {}, 0.4, busy=True)
    assert keys(order) == ["n0/0", "n1/0"]


def test_new_gpus_come_last_and_lost_ones_go_while_the_order_rests() -> None:
    order = Order()
    first = [gpu("a", 0, full=0.5), gpu("b", 0, full=0.4)]
    order.update(first, Arrangement(group="machine"), {}, 0.0, busy=False)
    later = [gpu("b", 0, full=0.4), gpu("b", 1, full=0.99), gpu("c", 0, full=0.98)]
    assert order.update(later, Arrangement(group="machine"), {}, 1.0, busy=True)
    assert [(section.title, section.keys) for section in order.sections] == [("b", ("b/0", "b/1")), ("c", ("c/0",))]


@given(
    st.lists(st.dictionaries(st.integers(0, 8), st.floats(0, 1), min_size=1), min_size=1, max_size=8),
    st.lists(st.booleans(), min_size=8, max_size=8),
)
def test_every_gpu_that_is_there_is_shown_exactly_once(answers: list[dict[int, float]], busy: list[bool]) -> None:
    order = Order()
    for place, answer in enumerate(answers):
        fleet = [gpu(f"n{number}", 0, full=share) for number, share in answer.items()]
        order.update(fleet, Arrangement(group="machine"), {}, 3.0 * place, busy=busy[place])
        assert sorted(keys(order)) == sorted(found.key for found in fleet)


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


def test_cells_are_drawn_as_large_as_all_of_them_fit() -> None:
    few, many = ([Section("", tuple(map(str, range(count))))] for count in (12, 512))
    assert FleetLayout(few, 2500, "cells", 1200).rect(0)[3] > FleetLayout(many, 2500, "cells", 1200).rect(0)[3]
    assert FleetLayout(few, 1256, "cells", 600).height <= 600
    assert FleetLayout(few, 2500, "cells", 1200, 1.0).rect(0) == FleetLayout(few, 2500, "cells").rect(0)


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
