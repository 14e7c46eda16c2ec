"""Every test has one tier."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tests import tiers


def test_every_test_has_one_tier(request: pytest.FixtureRequest) -> None:
    found = [[tier for tier in tiers.TIERS if item.get_closest_marker(tier)] for item in request.session.items]
    assert {len(names) for names in found} == {1}


@dataclass(frozen=True)
class Row:
    """As much of a test as is asked of it."""

    nodeid: str
    is_of_table: bool = True
    tier: str = "process"

    def get_closest_marker(self, name: str) -> bool | None:
        return name == self.tier or (name == "table" and self.is_of_table) or None


def test_of_a_table_every_so_many_th_row_runs_and_of_the_rest_everything() -> None:
    table = [Row(f"test_kinds.py::test_kind[{number}]") for number in range(7)]
    other = [Row("test_kinds.py::test_other"), Row("test_words.py::test_word[1]", is_of_table=False)]
    kept, left = tiers.sampled([*other[:1], *table, *other[1:]], 3)
    assert kept == [other[0], table[0], table[3], table[6], other[1]]
    assert left == [table[number] for number in (1, 2, 4, 5)]


def test_every_slow_test_is_in_one_share_with_all_of_its_file_and_the_others_are_in_all() -> None:
    slow = [
        Row(f"test_{number}.py::test_kind[{row}]", tier=tier)
        for number in range(20)
        for row in range(2)
        for tier in ("process", "long")
    ]
    others = [Row("test_0.py::test_fast", tier="fast")]
    first, second = (tiers.in_share([*slow, *others], share, 2)[0] for share in (0, 1))
    assert set(first) & set(second) == set(others) and set(first) | set(second) == {*slow, *others}
    assert len(first) > len(others) and len(second) > len(others)
    files = [{row.nodeid.partition("::")[0] for row in share if row.tier != "fast"} for share in (first, second)]
    assert not files[0] & files[1]


def test_shares_take_about_the_same_time_however_long_single_files_are() -> None:
    windows = [Row(f"tests/end_to_end/test_window.py::test_{number}") for number in range(6)]
    commands = [Row(f"tests/end_to_end/test_{file}.py::test_{row}") for file in range(5) for row in range(3)]
    short = [Row(f"tests/unit/test_{file}.py::test_{row}") for file in range(12) for row in range(10)]
    on_a_card = [Row(f"tests/gpu/test_speed.py::test_{row}") for row in range(500)]
    rows = [*short, *commands, *on_a_card, *windows]
    seconds = {row: length for some, length in ((windows, 20), (commands, 8), (short, 1)) for row in some}

    lengths = [sum(seconds.get(row, 0) for row in tiers.in_share(rows, share, 2)[0]) for share in (0, 1)]

    assert sum(lengths) == sum(seconds.values()) and abs(lengths[0] - lengths[1]) <= 0.05 * sum(lengths)


def test_a_quick_run_takes_of_what_needs_no_process_the_first_row_and_of_the_window_one_function_in_three() -> None:
    fast = [Row(f"test_kinds.py::test_kind[{row}]", tier="fast") for row in range(3)]
    slow = [Row("test_kinds.py::test_run", tier="process"), Row("test_kinds.py::test_soak", tier="long")]
    windows = [Row(f"test_window.py::test_{number}[{row}]", tier="window") for number in range(90) for row in range(2)]

    kept, left, why = tiers.quick([*fast, *slow, *windows])

    assert kept[0] == fast[0] and {*fast[1:], *slow} <= set(left)
    functions = [row.nodeid.partition("[")[0] for row in kept if row.tier == "window"]
    assert len(functions) == len(set(functions)) and 15 < len(functions) < 45
    assert why == {"row": 2 + len(functions), "process": 1, "long": 1, "window": 2 * (90 - len(functions))}
