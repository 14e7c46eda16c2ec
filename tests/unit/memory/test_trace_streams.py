"""Blocks that were asked on other streams, as FSDP2 asks for what it gathers, are replayed on those."""

from __future__ import annotations

from array import array

from gpudash.memory.allocator.trace import WEIGHTS, Trace, TraceMark, repeated
from gpudash.memory.predicting.fit import peaks, run_on
from gpudash.units import MIB

SIZE = 32 * MIB


def two_after_each_other(stream: int) -> Trace:
    """A block that is freed before the next of its size is asked for, on another stream unless ``stream`` is 0."""
    streams = {2: stream} if stream else {}
    return Trace(array("q", [1, -1, 2, -2]), array("q", [SIZE, SIZE]), [WEIGHTS] * 2, streams=streams)


def test_what_one_stream_has_freed_no_other_one_gets() -> None:
    assert peaks(two_after_each_other(0)).reserved == SIZE
    assert peaks(two_after_each_other(1)).reserved == 2 * SIZE
    assert peaks(two_after_each_other(1)).allocated == SIZE


def test_a_card_without_room_for_both_releases_what_the_other_stream_left() -> None:
    assert [run_on(two_after_each_other(stream), SIZE).retries for stream in (0, 1)] == [0, 1]


def test_a_block_beside_the_run_moves_the_streams_along() -> None:
    assert two_after_each_other(1).with_constant(MIB).streams == {3: 1}


def test_steps_that_are_gone_on_with_keep_their_streams() -> None:
    events, sizes = array("q", [1, 2]), array("q", [SIZE, SIZE])
    trace = Trace(events, sizes, [WEIGHTS] * 2, [TraceMark(0, 1, ""), TraceMark(1, 2, "")], 2, {1: 1, 2: 1})
    assert repeated(trace, 4).streams == {1: 1, 2: 1, 3: 1, 4: 1}
