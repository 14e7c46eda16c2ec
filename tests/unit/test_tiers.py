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

    def get_closest_marker(self, name: str) -> bool | None:
        return (name == "table" and self.is_of_table) or None


def test_of_a_table_every_so_many_th_row_runs_and_of_the_rest_everything() -> None:
    table = [Row(f"test_kinds.py::test_kind[{number}]") for number in range(7)]
    other = [Row("test_kinds.py::test_other"), Row("test_words.py::test_word[1]", is_of_table=False)]
    kept, left = tiers.sampled([*other[:1], *table, *other[1:]], 3)
    assert kept == [other[0], table[0], table[3], table[6], other[1]]
    assert left == [table[number] for number in (1, 2, 4, 5)]
