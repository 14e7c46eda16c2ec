"""Finding commands by a few letters."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudash.ui.widgets.fuzzy import rank, score

COMMANDS = [
    ("Open…", "File"),
    ("Graph as PNG…", "File ▸ Export"),
    ("Range as CSV…", "File ▸ Export"),
    ("Copy Values", "Edit"),
    ("Copy Graph as Image", "Edit"),
    ("Start Run", "Run"),
    ("Zoom to Selection", "View"),
    ("Zoom In", "View"),
    ("Use Dark Look", "View"),
    ("Dark", "View ▸ Theme"),
]


def found(query: str) -> list[str]:
    return [COMMANDS[number][0] for number in rank(query, COMMANDS)]


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("open", "Open…"),
        ("csv", "Range as CSV…"),
        ("cgi", "Copy Graph as Image"),
        ("zs", "Zoom to Selection"),
        ("zoom", "Zoom In"),
        ("dark", "Dark"),
        ("export png", "Graph as PNG…"),
        ("png exp", "Graph as PNG…"),
        ("ZI", "Zoom In"),
        ("theme", "Dark"),
    ],
)
def test_the_meant_command_comes_first(query: str, first: str) -> None:
    assert found(query)[0] == first


def test_letters_in_another_order_find_nothing() -> None:
    assert found("vsc") == []
    assert score("vsc", "Range as CSV…") is None


def test_nothing_typed_lists_everything_in_its_order() -> None:
    assert found("") == found("   ") == [name for name, _place in COMMANDS]


def test_letters_in_a_row_are_worth_more_than_scattered_ones() -> None:
    assert (score("run", "Start Run") or 0) > (score("run", "Range under noise") or 0)


def test_the_name_is_worth_more_than_the_place() -> None:
    assert rank("view", [("Dark", "View"), ("View", "Window")]) == [1, 0]


@given(st.text(max_size=30), st.text(max_size=8))
def test_what_is_found_holds_the_letters_and_nothing_else_is_found(text: str, query: str) -> None:
    letters, rest = query.lower().replace(" ", ""), iter(text.lower())
    holds = all(letter in rest for letter in letters)
    assert (score(query, text) is not None) == holds


@given(st.text(alphabet="abc ", max_size=20), st.data())
def test_a_beginning_is_never_worth_less_than_a_scattered_part(text: str, data: st.DataObject) -> None:
    places = sorted(data.draw(st.sets(st.integers(0, max(0, len(text) - 1)), max_size=4))) if text else []
    query = "".join(text[place] for place in places)
    best = score(query, query + text)
    assert best is not None
    assert best >= (score(query, text) or 0.0) - 0.02 * 2 * len(query) - 1e-9


def test_other_words_find_an_entry_from_their_start_only_and_after_its_name() -> None:
    entries = [("Copy Graph as Image", "Edit", "png screenshot"), ("Graph as PNG…", "File ▸ Export", "")]
    assert rank("png", entries) == [1, 0]
    assert rank("screen", entries) == [0] and rank("shot", entries) == []
    assert rank("copy png", entries) == [0]
