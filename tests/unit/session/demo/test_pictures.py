"""What the stage shows of lines: columns, code, blocks and sentences, from a trace alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpudash.session.demo.pictures import REFUSED, LineScript, code_of, pictures_of
from gpudash.units import MIB
from gpudash.workloads.lines.trace import ENDED, LineBlock, LineFailure, LineMoment, LinesTrace
from tests.unit.session.demo.traces import block, failed, leak, three_lines

SCRIPT = LineScript("Title", "Question?")


def test_every_expression_that_allocates_is_a_step_with_one_before_and_one_after() -> None:
    pictures = pictures_of(three_lines(), SCRIPT)
    chart = pictures[0].chart
    assert chart is not None and len(pictures) == 6
    assert [column.title for column in chart.columns] == [
        "before",
        "line 1",
        "line 2",
        "line 3: a + b",
        "line 3: relu",
        "after",
    ]
    assert [column.figure for column in chart.columns] == ["0", "64", "128", "192", "peak 256", "192 stay"]
    assert chart.limit == 320 * MIB


def test_columns_are_over_now_or_to_come_as_the_steps_go() -> None:
    pictures = pictures_of(three_lines(), SCRIPT)
    states = [[column.state for column in picture.chart.columns] for picture in pictures if picture.chart]
    assert states[0] == ["now", *["coming"] * 5]
    assert states[4] == [*["past"] * 4, "now", "coming"]


def test_a_tensor_that_nobody_named_is_told_with_how_long_it_lives() -> None:
    pictures = pictures_of(three_lines(), SCRIPT)
    assert pictures[3].sentence == "a + b takes 64 MiB, and no variable has it."
    assert pictures[4].sentence == "64 MiB that nobody named: a + b lives until relu is done."
    assert (pictures[4].tone, pictures[4].remark) == ("warn", "256 of 320 MiB")
    assert [(shown.name, shown.named, shown.remark) for shown in pictures[4].blocks] == [
        ("a", True, ""),
        ("b", True, ""),
        ("a + b", False, "no name"),
        ("c", True, "being made"),
    ]
    assert pictures[5].sentence == "192 MiB stay on the card: a, b and c."


def test_a_line_has_its_figure_once_it_has_run() -> None:
    pictures = pictures_of(three_lines(), SCRIPT)
    assert [(line.state, line.figure) for line in pictures[2].code] == [
        ("past", "+ 64 MiB"),
        ("now", "+ 64 MiB"),
        ("coming", ""),
    ]
    assert pictures[4].code[2].figure == "+ 128, then − 64 MiB" and pictures[4].code[2].warns


def test_a_leak_climbs_turn_by_turn_to_the_limit_and_what_is_refused_stands_over_it() -> None:
    pictures = pictures_of(leak(), LineScript(mend="Drop it"))
    chart = pictures[-1].chart
    assert chart is not None
    assert [column.title for column in chart.columns[2:]] == ["step 1", "step 2", "step 3", "line 3 fails"]
    assert pictures[3].sentence == "Step 2: 192 MiB, 64 MiB more than in the step before."
    refused = chart.columns[-1].blocks[-1]
    assert (refused.kind, refused.bytes) == (REFUSED, 64 * MIB)
    assert chart.columns[-1].failed and chart.columns[-1].bytes > 256 * MIB
    assert pictures[-1].sentence == ("Line 3 asks for 64 MiB more, but 256 MiB of 256 MiB are taken: out of memory.")
    assert (pictures[-1].tone, pictures[-1].remark) == ("wrong", "instead: Drop it")
    assert pictures[-1].code[2].state == "wrong"


def test_the_blocks_beside_the_code_add_up_to_the_column_and_the_last_says_what_the_rest_is() -> None:
    blocks = [LineBlock(name, size * MIB) for name, size in (("a", 36), ("b", 16), ("c", 36), ("x", 9))]
    blocks.append(LineBlock("workspace", 8 * MIB, workspace=True))
    moment = LineMoment(1, "", 0, tuple(blocks), after=105 * MIB)
    host = (LineBlock("kept", 64 * MIB),)
    pictures = pictures_of(LinesTrace(("a = 1",), 256 * MIB, (moment,)), SCRIPT)
    assert [block.name for block in pictures[1].blocks] == ["a", "b", "c", "2 more"]
    assert pictures[1].blocks[-1].remark == "x, workspace"
    with_host = pictures_of(LinesTrace(("a = 1",), 256 * MIB, (replace(moment, host=host),)), SCRIPT)[1].blocks
    assert sum(block.bytes for block in with_host if block.kind != "host") == 105 * MIB
    assert with_host[-1].kind == "host"


def test_of_a_long_loop_the_first_steps_and_the_last_are_shown() -> None:
    trace = leak(30)
    pictures = pictures_of(LinesTrace(trace.source, 4096 * MIB, trace.moments), SCRIPT)
    steps = [picture.sentence.partition(":")[0] for picture in pictures if picture.sentence.startswith("Step")]
    assert steps == [f"Step {step}" for step in (2, 3, 4, 5, 6, 27, 28, 29, 30)]
    told = next(picture for picture in pictures if picture.sentence.startswith("Step 27"))
    assert told.sentence.endswith("1.31 GiB more than in step 6.")


def test_the_width_that_figures_take_is_kept_free_in_all_steps() -> None:
    rooms = {tuple(line.room for line in picture.code) for picture in pictures_of(three_lines(), SCRIPT)}
    assert len(rooms) == 1
    pictures = pictures_of(three_lines(), SCRIPT)
    assert all(len(line.figure) <= len(line.room) for picture in pictures for line in picture.code)
    before = [line.room for line in code_of(three_lines().source)]
    assert before[:2] == [line.room for line in pictures[0].code][:2] == ["+ 000 MiB"] * 2, "nor when they have run"
    assert "then" in before[2], "a line with two operations may give memory back"


def test_a_size_is_rounded_alike_in_the_columns_the_code_and_the_sentence() -> None:
    size = 3_906 * 1024
    held = LineMoment(1, "", 0, (LineBlock("x", size, fresh=True),), (), 0, size)
    picture = pictures_of(LinesTrace(("x = 1",), 64 * MIB, (held,)), SCRIPT)[1]
    assert picture.chart is not None and picture.chart.columns[1].figure == "peak 3.8"
    assert picture.code[0].figure == "+ 3.8 MiB" and picture.sentence == "x takes 3.8 MiB."


def test_what_was_held_before_a_line_was_stopped_is_still_shown() -> None:
    held = LineMoment(1, "", 0, (block("x", fresh=True),), (), 0, 64 * MIB)
    stopped = LinesTrace(("x = 1", "while x: x"), 128 * MIB, (held,), LineFailure(2, ENDED, "was stopped"))
    last = pictures_of(stopped, SCRIPT)[-1]
    assert [shown.name for shown in last.blocks] == ["x"] and last.code[0].figure == "+ 64 MiB"
    assert last.blocks_title == "IN MEMORY, before line 2" and last.blocks[0].remark != "being made"


def test_a_line_that_was_stopped_has_no_figure_and_no_line_before_it_is_called_the_peak() -> None:
    held = LineMoment(1, "", 0, (block("x", fresh=True),), (), 0, 64 * MIB)
    stopped = LinesTrace(("x = 1", "while x: x"), 128 * MIB, (held,), LineFailure(2, ENDED, "was stopped"))
    pictures = pictures_of(stopped, SCRIPT)
    chart = pictures[-1].chart
    assert chart is not None and [column.figure for column in chart.columns] == ["0", "64", "not measured"]
    assert not any(column.is_peak for column in chart.columns)
    assert not any(picture.remark for picture in pictures), "no share of the card is called the most"


def test_several_blocks_of_one_origin_are_told_with_how_many_they_are() -> None:
    kept = (LineBlock("model(x)", 72 * MIB, named=False, count=2), LineBlock("model", 16 * MIB, count=2))
    trace = LinesTrace(("a = 1",), 320 * MIB, (LineMoment(1, "", 0, kept, (), 0, 88 * MIB),))
    cards = pictures_of(trace, SCRIPT)[1].blocks
    assert [(card.name, card.remark) for card in cards] == [("model(x)", "2 unnamed"), ("model", "2 blocks")]


def test_what_kernels_keep_is_in_the_sum_of_what_stays_by_its_size() -> None:
    kept = (block("a"), block("b"), LineBlock("workspace", 8 * MIB, workspace=True))
    end = LineMoment(0, "", 0, kept, (), 136 * MIB, 136 * MIB)
    trace = LinesTrace(("a = 1",), 320 * MIB, (*three_lines().moments[:1], end))
    assert pictures_of(trace, SCRIPT)[-1].sentence == "136 MiB stay on the card: a, b and 8 MiB of workspace."


@pytest.mark.parametrize(
    ("held", "sentence"),
    [
        (0, "Line 1 asks for 1,526 MiB, and the whole card has 320 MiB: out of memory."),
        (256, "Line 1 asks for 1,526 MiB more, but 256 MiB of 320 MiB are taken: out of memory."),
    ],
)
def test_a_refusal_is_in_the_unit_of_the_axis_and_an_empty_card_is_not_called_taken(held: int, sentence: str) -> None:
    failure = LineFailure(1, "OutOfMemoryError", "", True, 1526 * MIB, 1526 * MIB, held * MIB)
    assert pictures_of(LinesTrace(("a = 1",), 320 * MIB, (), failure), SCRIPT)[-1].sentence == sentence


def test_an_exception_is_one_sentence_at_its_line() -> None:
    last = pictures_of(failed(), SCRIPT)[-1]
    assert last.sentence == "Line 2: ValueError: It broke." and last.tone == "wrong"
    assert [line.state for line in last.code] == ["past", "wrong"]


def test_a_process_that_ended_is_told_without_the_name_of_an_exception() -> None:
    trace = LinesTrace(("a = 1",), MIB, (), LineFailure(1, ENDED, "ended its process (signal SIGSEGV)"))
    assert pictures_of(trace, SCRIPT)[-1].sentence == "Line 1 ended its process (signal SIGSEGV)."
    trace = LinesTrace(("a = 1",), MIB, (), LineFailure(1, ENDED, "No lines can be run here: no torch"))
    assert pictures_of(trace, SCRIPT)[-1].sentence == "No lines can be run here: no torch."


def test_a_line_that_does_nothing_to_memory_is_no_step() -> None:
    trace = three_lines()
    idle = LineMoment(2, "", 0, (block("a"),), (), 64 * MIB, 64 * MIB)
    moments = (trace.moments[0], idle, *trace.moments[1:])
    assert len(pictures_of(LinesTrace(trace.source, trace.limit, moments), SCRIPT)) == 6


def test_a_picture_says_in_words_what_it_shows() -> None:
    words = pictures_of(three_lines(), SCRIPT)[4].description
    assert "Title. Question?" in words and "Now line 3: c = (a + b).relu()." in words and "a + b 64 MiB." in words
