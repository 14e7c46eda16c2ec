"""Stacks kept as numbers of frames."""

from __future__ import annotations

import pytest

from gpudash.memory.snapshot.history.model import NONE
from gpudash.memory.snapshot.reading.shape import ShapeError
from gpudash.memory.snapshot.reading.stacks import StackTable

A, B = {"filename": "a.py", "line": 1, "name": "f"}, {"filename": "b.py", "line": 2, "name": "g"}
FRAME_A, FRAME_B = ("a.py", 1, "f"), ("b.py", 2, "g")


def somewhere() -> str:
    return "somewhere"


def test_stacks_are_numbered_as_they_come_and_known_again_by_content() -> None:
    table = StackTable()
    shared = [A, B]
    assert [table.index(frames, somewhere) for frames in (shared, [B], shared, [dict(A), B], [], None)] == [
        0,
        1,
        0,
        0,
        NONE,
        NONE,
    ]
    stacks = table.stacks()
    assert list(stacks) == [(FRAME_A, FRAME_B), (FRAME_B,)]
    assert stacks.frames == (FRAME_A, FRAME_B)


def test_the_list_of_stacks_is_a_sequence() -> None:
    table = StackTable()
    for frames in ([A], [B], [A, B]):
        table.index(frames, somewhere)
    stacks = table.stacks()
    assert len(stacks) == 3
    assert stacks[-1] == stacks[2] == (FRAME_A, FRAME_B)
    assert stacks[2] is stacks[2]
    assert stacks[:2] == [(FRAME_A,), (FRAME_B,)]
    assert stacks == [(FRAME_A,), (FRAME_B,), (FRAME_A, FRAME_B)]
    assert stacks != [(FRAME_A,)]
    for outside in (3, -4):
        with pytest.raises(IndexError):
            stacks[outside]


def test_a_file_without_stacks_has_an_empty_list() -> None:
    assert list(StackTable().stacks()) == []


@pytest.mark.parametrize(
    ("frames", "words"),
    [
        ("text", "the frames of somewhere are 'text', not a list"),
        ([5], "a frame of somewhere is 5, not a dictionary"),
        ([{**A, "line": 2**65}], "a frame of somewhere has the line"),
        ([{**A, "line": True}], "a frame of somewhere has the line True"),
        ([{**A, "name": None}], "`name` of a frame of somewhere is None, not a text"),
        ([("a.py", "1", "f")], "a frame of somewhere is a tuple"),
    ],
)
def test_what_is_no_stack_is_refused_with_its_place(frames: object, words: str) -> None:
    with pytest.raises(ShapeError, match=words):
        StackTable().index(frames, somewhere)


def test_names_that_would_steer_a_terminal_or_cannot_be_written_are_made_readable() -> None:
    table = StackTable()
    table.index([{"filename": "\x1b[31m/tmp/ü.py\n", "line": 3, "name": "\ud800f\u202e"}], somewhere)
    assert table.stacks().frames == (("\ufffd[31m/tmp/ü.py\ufffd", 3, "\ufffdf\ufffd"),)
