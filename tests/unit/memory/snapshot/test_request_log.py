"""Requests as they come: which blocks are there, who asked for them, and what of it is kept."""

import numpy as np
import pytest

from gpudash.drawing.ribbons import stayed_by_line
from gpudash.memory.frames import Frame
from gpudash.memory.request_log import MOST_EVENTS, Request, RequestLog, RequestLogs
from gpudash.memory.snapshot.history.history import History
from gpudash.memory.snapshot.history.requests import log_of
from gpudash.units import MIB
from tests.unit.memory.snapshot.made import WEIGHTS, Made

TRAIN = (Frame("/home/me/train.py", 12, "step"), Frame("/home/me/train.py", 40, "<module>"))
LOAD = (Frame("/home/me/data.py", 7, "load"),)


def _filled(log: RequestLog, steps: int) -> None:
    """Every step allocates two blocks and keeps one."""
    for step in range(steps):
        log.take(
            [
                Request(step + 0.1, (1, 2 * step), 1000, TRAIN),
                Request(step + 0.2, (1, 2 * step + 1), 4096, LOAD),
                Request(step + 0.3, (1, 2 * step + 1)),
            ]
        )


def test_a_block_is_there_from_its_request_to_its_end() -> None:
    log = RequestLog()
    log.take([Request(1.0, "a", 512, TRAIN), Request(2.0, "b", 512, LOAD), Request(3.0, "a")])
    found = log.allocations()
    assert found.level.tolist() == [0, 512, 1024, 512]
    assert found.place.tolist() == [1.0, 2.0, 3.0]
    assert found.freed[0] == 2
    assert log.live() == ["b"]


def test_bytes_are_those_that_the_allocator_gives() -> None:
    log = RequestLog()
    log.take([Request(1.0, "a", 1, TRAIN), Request(1.0, "b", 513, TRAIN)])
    assert log.allocations().size.tolist() == [512, 1024]


def test_lines_are_those_of_the_program_with_what_they_allocate() -> None:
    log = RequestLog()
    _filled(log, 3)
    assert [(line.text, line.category) for line in log.lines] == [
        ("train.py:12 step", "other tensors"),
        ("data.py:7 load", "other tensors"),
    ]
    assert log.stack_of(0) == TRAIN
    assert log.stack_of(99) == ()


def test_an_end_that_nobody_heard_the_beginning_of_changes_nothing() -> None:
    log = RequestLog()
    log.take([Request(1.0, "unknown")])
    assert log.extent is None


def test_an_address_that_is_given_out_again_has_been_freed() -> None:
    log = RequestLog()
    log.take([Request(1.0, "a", 512, TRAIN), Request(2.0, "a", 1024, LOAD)])
    assert log.allocations().level.tolist() == [0, 512, 0, 1024]


def test_a_time_that_goes_back_is_that_of_the_event_before() -> None:
    log = RequestLog()
    log.take([Request(2.0, "a", 512, TRAIN), Request(1.0, "b", 512, TRAIN)])
    assert log.allocations().place.tolist() == [2.0, 2.0]


def test_blocks_of_a_process_that_has_ended_are_freed() -> None:
    log = RequestLog()
    log.take([Request(1.0, (1, 5), 512, TRAIN), Request(1.0, (2, 5), 512, TRAIN)])
    log.end(3.0, [owner for owner in log.live() if owner[0] == 1])
    assert log.live() == [(2, 5)]
    assert log.allocations().level[-1] == 512


def test_what_a_reader_has_stays_as_it_was_while_more_comes() -> None:
    log = RequestLog()
    _filled(log, 400)
    found = log.allocations()
    events, level = len(found.place), found.level.tolist()
    _filled(log, 400)
    assert (len(found.place), found.level.tolist()) == (events, level)


@pytest.mark.parametrize("most", [30, 100])
def test_the_older_half_goes_and_what_it_left_behind_stays(most: int) -> None:
    whole, bounded = RequestLog(), RequestLog(most)
    _filled(whole, 200)
    _filled(bounded, 200)
    expected, found = whole.allocations(), bounded.allocations()
    kept = len(found.place)
    assert kept <= most
    assert found.level.tolist() == expected.level[-kept - 1 :].tolist()
    # added up anew from the blocks it is the same
    found._level = None
    del found.__dict__["level"]
    assert found.level.tolist() == expected.level[-kept - 1 :].tolist()
    assert np.all(np.diff(found.born) >= 0)
    assert len(bounded.live()) == len(whole.live())


def test_what_stayed_names_the_line() -> None:
    log = RequestLog()
    _filled(log, 10)
    found = log.allocations()
    (one,) = stayed_by_line(found, found.moment(2.0), found.moment(6.0))
    assert (log.lines[one.site].text, one.bytes, one.count) == ("train.py:12 step", 4 * 1024, 4)


def test_a_device_of_which_nothing_was_told_has_no_log() -> None:
    logs = RequestLogs()
    assert logs.of("sim:0") is None
    logs.made("sim:0").take([Request(1.0, "a", 512)])
    assert logs.of("sim:0") is logs.made("sim:0")
    assert logs.devices == ("sim:0",)
    assert MOST_EVENTS > 1_000_000


def _trained(steps: int) -> RequestLog:
    """Gradients go with the next step, the optimizer's state comes with the first, the history keeps something."""
    log = RequestLog()
    at = [(Frame("/home/me/train.py", line, "<module>"),) for line in range(1, 6)]
    log.take([Request(0.0, "weights", 4096, at[0])])
    for step in range(steps):
        time_s = float(step)
        gone = [Request(time_s + 0.1, ("gradients", step - 1))]
        state = [Request(time_s + 0.3, "state", 8192, at[2])] if step == 0 else []
        new = [
            Request(time_s + 0.2, ("gradients", step), 2048, at[1]),
            *state,
            Request(time_s + 0.4, ("history", step), 1024, at[3]),
        ]
        log.take([*gone, *new])
    return log


def test_a_line_keeps_of_every_step_what_later_steps_do_not_free() -> None:
    log = _trained(40)
    found = log.allocations()
    held = log.held_by_line(len(found.place) - 1, np.arange(1.0, 41.0) - 0.05)
    assert {line: one.bytes for (_file, line), one in held.items()} == {1: 4096, 2: 2048, 3: 8192, 4: 40 * 1024}
    assert {line: one.growth for (_file, line), one in held.items()} == {1: 0.0, 2: 0.0, 3: 0.0, 4: 1024.0}


@pytest.mark.parametrize("stride", [5, 10])
def test_a_line_that_keeps_something_of_every_nth_step_keeps_its_part_of_it_of_each(stride: int) -> None:
    log = RequestLog()
    kept = (Frame("/home/me/train.py", 9, "<module>"),)
    cached = (Frame("/home/me/train.py", 12, "<module>"),)
    for step in range(8 * stride):
        log.take([Request(step + 0.1, ("cached", step % 2), 2048, cached)])  # the last two stay, and no more
        if step % stride == 0:
            log.take([Request(step + 0.2, ("kept", step), 5120, kept)])
    moment = len(log.allocations().place) - 1
    held = log.held_by_line(moment, np.arange(1.0, 8 * stride + 1) - 0.05)
    assert held["/home/me/train.py", 9].growth == pytest.approx(5120 / stride)
    assert held["/home/me/train.py", 9].stride == stride
    assert held["/home/me/train.py", 12].growth == 0.0


def test_what_lines_hold_is_of_the_moment_that_is_asked_for() -> None:
    log = _trained(40)
    held = log.held_by_line(log.allocations().moment(9.9))
    assert held["/home/me/train.py", 4].bytes == 10 * 1024
    assert not log.held_by_line(-1)


def test_too_few_steps_say_nothing_of_growth() -> None:
    log = _trained(3)
    held = log.held_by_line(len(log.allocations().place) - 1, np.arange(1.0, 4.0))
    assert all(one.growth == 0.0 for one in held.values())


def test_a_snapshot_is_the_same_log_told_at_once() -> None:
    made = Made()
    made.malloc(20 * MIB, WEIGHTS)
    for _ in range(5):
        made.step(8 * MIB, 4 * MIB)
    snapshot = made.snapshot()
    history = History(snapshot.devices[0], snapshot.annotations)
    log = log_of(history)
    found = log.allocations()
    assert found.level.tolist() == history.allocated.tolist()
    assert np.all(np.diff(found.born) >= 0)
    there = np.flatnonzero(found.freed > history.last)
    assert int(found.size[there].sum()) == int(history.allocated[-1])
    assert "weights" in [line.category for line in log.lines]
    assert log.stack_of(0)
