"""What a watched program prints, as lines: cut as a terminal shows them, numbered, bounded."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from gpudash.session.watching.output import log as output_log
from gpudash.session.watching.output.log import LONGEST_LINE, LineCutter, OutputLine, OutputLog, shown


def lines(*texts: str) -> list[OutputLine]:
    return [OutputLine("stdout", text) for text in texts]


def cut(*pieces: bytes) -> list[str]:
    cutter = LineCutter("stdout")
    found = [line for piece in pieces for line in cutter.feed(piece)]
    return [line.text for line in [*found, *cutter.end()]]


def test_a_line_is_told_when_it_is_whole_and_the_rest_at_the_end() -> None:
    cutter = LineCutter("stderr")
    assert cutter.feed(b"one\ntw") == [OutputLine("stderr", "one")]
    assert cutter.feed(b"o\n") == [OutputLine("stderr", "two")]
    assert cutter.feed(b"three") == []
    assert cutter.end() == [OutputLine("stderr", "three")]
    assert cutter.end() == []


def test_a_progress_bar_is_one_line_its_last_state() -> None:
    assert cut(b"\r 10%", b"\r 50%", b"\r100%\n", b"done\n") == ["100%", "done"]
    assert cut(b"windows\r\n") == ["windows"]
    assert cut(b"\r 10%\r", b" 20%\r") == [" 20%"]


def test_a_line_that_never_ends_takes_no_more_than_its_share() -> None:
    cutter = LineCutter("stdout")
    for _ in range(1000):
        assert cutter.feed(b"x" * 65_536) == []
    (line,) = cutter.end()
    assert len(line.text) == LONGEST_LINE


def test_colours_and_control_characters_are_left_out_and_other_bytes_replaced() -> None:
    assert shown(b"\x1b[1;31mred\x1b[0m \x07bell \x1b]0;title\x07end") == "red bell end"
    assert shown("größer".encode()) == "größer"
    assert shown(b"\xff\xfe") == "\ufffd\ufffd"


@given(st.binary(max_size=400), st.lists(st.integers(0, 400), max_size=5))
def test_where_the_pieces_are_cut_makes_no_difference(data: bytes, places: list[int]) -> None:
    edges = [0, *sorted(place for place in places if place <= len(data)), len(data)]
    pieces = [data[begin:end] for begin, end in itertools.pairwise(edges)]
    assert cut(*pieces) == cut(data)


def test_lines_are_read_on_from_where_one_stopped() -> None:
    log = OutputLog()
    log.add(lines("a", "b"))
    found, number, lost = log.since(0)
    assert ([line.text for line in found], number, lost) == (["a", "b"], 2, 0)
    assert log.since(2) == ((), 2, 0)
    log.add(lines("c"))
    assert [line.text for line in log.since(2)[0]] == ["c"]


def test_the_newest_lines_are_kept_and_the_missing_ones_counted() -> None:
    log = OutputLog()
    log.add(lines(*map(str, range(output_log.MOST_LINES + 5))))
    found, number, lost = log.since(0)
    assert (found[0].text, len(found), number, lost) == ("5", output_log.MOST_LINES, output_log.MOST_LINES + 5, 5)
    assert log.left_out == 5
    log.leave_out(7)
    assert log.left_out == 12
    assert [line.text for line in log.newest(2)] == [str(output_log.MOST_LINES + 3), str(output_log.MOST_LINES + 4)]


def test_long_lines_are_bounded_together() -> None:
    log = OutputLog()
    for _ in range(output_log.MOST_BYTES // 4096 + 10):
        log.add(lines("x" * 4096))
    assert sum(len(line.text) for line in log.since(0)[0]) <= output_log.MOST_BYTES


def test_another_program_begins_with_an_empty_log_whose_numbers_go_on() -> None:
    log = OutputLog()
    log.add(lines("old"))
    log.begin()
    assert log.since(0) == ((), 1, 0)
    log.add(lines("new"))
    assert log.since(0) == ((OutputLine("stdout", "new"),), 2, 0)
    assert log.left_out == 0
