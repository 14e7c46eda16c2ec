"""The history of a device's memory: levels, lives and the memory map at every moment."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudash.memory.allocator import AllocationRefused, AllocatorSettings, BlockView, Segment
from gpudash.memory.snapshot.history.groups import Node, tree
from gpudash.memory.snapshot.history.history import History, difference_text, differences
from gpudash.memory.snapshot.history.model import Annotation, DeviceSnapshot, TraceEntry
from gpudash.units import KIB, MIB
from tests.unit.memory.snapshot.made import (
    BACKWARD,
    BEGAN_US,
    EVENT_US,
    FORWARD,
    KEPT,
    OPTIMIZER,
    STACKS,
    Made,
    events,
)

SIZES = st.sampled_from(
    (1, 512, 40 * KIB, MIB, MIB + 1, 3 * MIB, 9 * MIB + 5, 12 * MIB, 19 * MIB + 512 * KIB, 50 * MIB)
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("malloc"), SIZES, st.integers(0, 1)),
        st.tuples(st.just("free"), st.integers(0, 1000), st.booleans()),
        st.tuples(st.sampled_from(("wait", "empty")), st.none(), st.none()),
    ),
    max_size=60,
)

Map = list[tuple[int, int, list[tuple[int, int, str]]]]


def shown(segments: list[Segment]) -> Map:
    return [(s.address, s.total_size, [(b.address, b.size, b.state) for b in s.blocks]) for s in segments]


def called(history: History, alive: np.ndarray) -> Node:
    """The call tree of blocks."""
    return tree(history.paths, history.lives.stack[alive], history.lives.bytes[alive])


def followed(program: list[tuple[str, object, object]], made: Made) -> list[tuple[int, int, int, Map]]:
    """Events so far, allocated, reserved and the map, after each of the program's calls."""
    live: list[int] = []
    found = [(len(made.entries), made.model.allocated_bytes, made.model.reserved_bytes, shown(made.model.segments()))]
    for what, number, way in program:
        if what == "malloc":
            assert isinstance(number, int)
            assert isinstance(way, int)
            live.append(made.malloc(number, FORWARD, stream=way))
        elif what == "wait":
            made.model.synchronize()
        elif what == "empty":
            made.empty_cache()
        elif live:
            assert isinstance(number, int)
            address = live.pop(number % len(live))
            if way:
                made.model.record_stream(address, 7)
            made.free(address)
        model = made.model
        found.append((len(made.entries), model.allocated_bytes, model.reserved_bytes, shown(model.segments())))
    return found


@pytest.mark.parametrize("expandable", [False, True])
@given(program=STEPS)
def test_levels_and_map_are_those_of_the_allocator_at_every_moment(
    expandable: bool, program: list[tuple[str, object, object]]
) -> None:
    made = Made(settings=AllocatorSettings(expandable_segments=expandable))
    states = followed(program, made)
    history = History(made.device())
    assert history.disagreeing == 0
    for count, allocated, reserved, segments in states:
        assert history.allocated[count] == allocated
        assert history.reserved[count] == reserved
        assert shown(history.blocks(count - 1)) == segments


@given(program=STEPS, before=st.lists(st.sampled_from((512, 64 * KIB, 12 * MIB, 40 * MIB)), max_size=8))
def test_what_was_there_before_the_recording_is_found_again(
    program: list[tuple[str, object, object]], before: list[int]
) -> None:
    made = Made()
    there = made.before(*before)
    for address in there[::2]:
        made.free(address)
    states = followed(program, made)
    history = History(made.device())
    first = len(there[::2])
    assert first == 0 or history.allocated[0] == sum(before)
    for count, allocated, reserved, segments in states:
        assert (history.allocated[count], history.reserved[count]) == (allocated, reserved)
        assert shown(history.blocks(count - 1)) == segments


def test_a_block_handed_out_whole_counts_with_what_was_not_worth_splitting() -> None:
    made = Made()
    big = made.malloc(12 * MIB)
    made.free(big)
    made.malloc(11 * MIB + 256 * KIB)
    history = History(made.device())
    alive = history.alive(history.last)
    assert history.lives.bytes[alive].tolist() == [12 * MIB]
    assert history.lives.requested[alive].tolist() == [11 * MIB + 256 * KIB]


def test_a_freed_block_is_pending_while_another_stream_uses_it() -> None:
    made = Made()
    address = made.malloc(4 * MIB)
    made.model.record_stream(address, 3)
    made.free(address)
    waiting = len(made.entries) - 1
    made.malloc(512)
    made.model.synchronize()
    history = History(made.device())
    assert history.allocated[waiting + 1] == 0
    assert history.lives.bytes[history.pending(waiting)].tolist() == [4 * MIB]
    assert history.state(waiting).pending == 4 * MIB
    assert len(history.pending(history.last)) == 0


def test_the_peak_is_the_first_moment_of_the_highest_level() -> None:
    made = Made()
    for _ in range(2):
        addresses = [made.malloc(size) for size in (2 * MIB, 6 * MIB)]
        for address in addresses:
            made.free(address)
    history = History(made.device())
    assert history.allocated[history.peak + 1] == history.allocated.max() == 8 * MIB
    assert history.allocated[: history.peak + 1].max() < 8 * MIB
    assert history.time_s(history.peak) == pytest.approx(history.peak * EVENT_US / 1e6)


def test_a_file_without_times_has_events_only() -> None:
    made = Made()
    made.malloc(MIB)
    made.entries = [entry._replace(time_us=None) for entry in made.entries]
    assert History(made.device()).time_s(0) is None


def test_trained_steps_have_phases_and_categories() -> None:
    made = Made()
    made.before(30 * MIB)
    for _ in range(5):
        made.step(8 * MIB, keeps=64 * KIB)
    history = History(made.device())
    assert [band.name for band in history.phases[:3]] == ["forward", "backward", "optimizer"]
    assert len(history.phases) == 15
    assert len(history.steps) == 5
    peak = history.by_category(history.alive(history.peak))
    assert peak["activations"] == 24 * MIB
    assert peak["temporary"] == 4 * MIB
    assert peak["no stack recorded"] == 30 * MIB
    assert sum(peak.values()) == history.allocated.max()
    assert history.phase_at(history.peak) == "backward"


def test_steps_of_an_optimizer_that_allocates_nothing_are_those_of_the_backward_pass() -> None:
    made = Made()
    for number in range(6):
        for stack in (FORWARD, BACKWARD):
            for _ in range(2):
                made.free(made.malloc(4 * MIB, stack), stack)
        if number == 0:
            made.malloc(8 * MIB, OPTIMIZER)
            made.malloc(8 * MIB, OPTIMIZER)
    history = History(made.device())
    assert len(history.steps) == 6


def test_accumulated_gradients_make_one_step() -> None:
    made = Made()
    for number in range(6):
        for stack in (FORWARD, BACKWARD, *((OPTIMIZER,) if number % 3 == 2 else ())):
            for _ in range(2):
                made.free(made.malloc(4 * MIB, stack), stack)
    assert len(History(made.device()).steps) == 2


def test_annotations_tell_the_optimizer_where_stacks_do_not() -> None:
    made = Made()
    for _ in range(3):
        for _ in range(2):
            made.free(made.malloc(2 * MIB, FORWARD), FORWARD)
        begin = made.now_us
        for _ in range(3):
            made.free(made.malloc(2 * MIB, None), None)
        made.annotations += [
            Annotation("START", "Optimizer.step#Own.step", 0, begin),
            Annotation("END", "Optimizer.step#Own.step", 0, made.now_us),
        ]
    names = [band.name for band in History(made.device(), made.annotations).phases]
    assert names == ["forward", "optimizer"] * 3


def test_a_closure_of_an_optimizer_has_the_phases_of_what_it_does() -> None:
    made = Made()
    for _ in range(2):
        begin = made.now_us
        for stack in (FORWARD, BACKWARD, None, OPTIMIZER):
            for _ in range(4):
                made.free(made.malloc(2 * MIB, stack), stack)
        made.annotations.append(Annotation("START", "Optimizer.step#SGD.step", 0, begin))
        made.annotations.append(Annotation("END", "Optimizer.step#SGD.step", 0, made.now_us))
    names = [band.name for band in History(made.device(), made.annotations).phases]
    assert names == ["forward", "backward", "optimizer"] * 2


def test_an_optimizer_that_is_refused_memory_in_its_closure_is_in_the_pass_that_asked() -> None:
    made = Made()
    begin = made.now_us
    for _ in range(4):
        made.free(made.malloc(2 * MIB, FORWARD), FORWARD)
    annotations = [Annotation("START", "Optimizer.step#SGD.step", 0, begin)]
    assert [band.name for band in History(made.device(), annotations).phases] == ["forward"]


def test_an_annotation_that_never_ends_lasts_to_the_end_and_one_that_never_began_is_nothing() -> None:
    made = Made()
    made.free(made.malloc(2 * MIB, FORWARD), FORWARD)
    name = "_compile.compile_inner (dynamo_timed)"
    begin = made.now_us
    annotations = [Annotation("END", name, 0, BEGAN_US), Annotation("START", name, 0, begin)]
    for _ in range(4):
        made.free(made.malloc(2 * MIB, FORWARD), FORWARD)
    bands = History(made.device(), annotations).phases
    assert [(band.name, band.end_event) for band in bands] == [
        ("forward", (begin - BEGAN_US) // EVENT_US),
        ("compilation", len(made.entries)),
    ]


def test_steps_known_from_outside_win() -> None:
    made = Made()
    times = []
    for _ in range(6):
        times.append(made.now_us)
        made.step(4 * MIB)
    history = History(made.device(), (), [(time, 10 + number) for number, time in enumerate(times)])
    assert history.step_numbers.tolist() == [10, 11, 12, 13, 14, 15]
    assert history.step_at(history.last) == 15
    assert history.step_of(np.array([-1])).tolist() == [0]


def test_what_grows_between_steps_is_named_and_what_stays_is_not() -> None:
    made = Made()
    made.before(100 * MIB)
    for _ in range(8):
        made.step(4 * MIB, keeps=64 * KIB)
    (growth,) = History(made.device()).growth()
    assert (growth.file, growth.line) == ("/home/mia/train.py", 44)
    assert growth.bytes_per_step == 64 * KIB


def test_groups_and_tree_add_up_to_what_is_alive() -> None:
    made = Made()
    made.before(MIB)
    for stack in (FORWARD, FORWARD, BACKWARD, None):
        made.malloc(3 * MIB, stack)
    history = History(made.device())
    alive = history.alive(history.last)
    total = int(history.allocated[-1])
    stacks = history.by_stack(alive)
    assert [(STACKS[stack] if stack >= 0 else None, count) for stack, _size, count in stacks] == [
        (FORWARD, 2),
        (None, 2),
        (BACKWARD, 1),
    ]
    assert sum(size for _stack, size, _count in stacks) == sum(history.by_category(alive).values()) == total
    root = called(history, alive)
    assert (root.bytes, root.count, root.own) == (total, len(alive), 4 * MIB)
    (main,) = root.children
    assert (main.file, main.line, main.bytes) == ("/home/mia/train.py", 90, 9 * MIB)
    assert [child.bytes for child in main.children] == [6 * MIB, 3 * MIB]
    lines = [history.sites.frames[site][1] for site in history.site_of(alive).tolist()]
    assert sorted(lines) == [0, 0, 41, 41, 42]


def test_total_of_a_site_counts_what_its_callees_allocated() -> None:
    made = Made()
    made.malloc(2 * MIB, FORWARD)
    device = made.device()
    outer = (
        (("/home/mia/model.py", 7, "forward"), ("/home/mia/train.py", 41, "step")),
        (("/home/mia/train.py", 41, "step"),),
    )
    made.malloc(2 * MIB, FORWARD)
    device = replace(made.device(), stacks=outer)
    trace = [entry._replace(stack=place % 2) for place, entry in enumerate(device.trace)]
    history = History(replace(device, trace=events(trace)))
    alive = history.alive(history.last)
    totals = history.sites.totals(history.lives.stack[alive], history.lives.bytes[alive]).tolist()
    by_line = {line: total for (_file, line, _name), total in zip(history.sites.frames, totals, strict=True)}
    assert by_line == {7: by_line[7], 41: int(history.allocated[-1]), 0: 0} and 0 < by_line[7] < by_line[41]


def test_two_moments_are_compared_in_words() -> None:
    made = Made()
    made.malloc(8 * MIB, FORWARD)
    begin = len(made.entries) - 1
    made.malloc(20 * MIB, BACKWARD)
    history = History(made.device())
    assert difference_text(history, begin, history, history.last) == (
        "Between 1.00 ms and 3.00 ms allocated grew by 20 MiB: +20 MiB train.py:42 step (gradients)."
    )
    assert "fell by 20 MiB: −20 MiB train.py:42" in difference_text(history, history.last, history, begin)


def test_a_moment_compared_with_itself_is_the_same() -> None:
    made = Made()
    made.malloc(8 * MIB)
    history = History(made.device())
    assert difference_text(history, history.last, history, history.last) == (
        "Between 1.00 ms and 1.00 ms nothing changed: 8 MiB allocated at both."
    )


def test_two_snapshots_are_compared_by_their_lines() -> None:
    first, second = Made(), Made()
    first.malloc(8 * MIB, FORWARD)
    second.malloc(10 * MIB, FORWARD)
    second.malloc(4 * MIB, None)
    one, other = History(first.device()), History(second.device())
    assert difference_text(one, one.last, other, other.last) == (
        "Between the first snapshot (1.00 ms) and the second (3.00 ms) allocated grew by 6 MiB: "
        "+4 MiB no stack recorded, +2 MiB train.py:41 step (activations)."
    )


def test_a_device_without_anything_has_an_empty_history() -> None:
    history = History(DeviceSnapshot(0, (), events([]), AllocatorSettings(), ()))
    assert (history.count, history.peak, history.last) == (0, -1, -1)
    assert not history.is_recorded
    assert history.allocated.tolist() == history.reserved.tolist() == [0]
    assert history.by_stack(history.alive(-1)) == [] and history.by_category(history.alive(-1)) == {}
    assert called(history, history.alive(-1)).children == ()
    assert history.blocks(-1) == []


def test_an_orphan_free_is_a_block_from_before() -> None:
    block = BlockView(BASE, 20 * MIB, 0, "inactive")
    segment = Segment(BASE, 20 * MIB, 0, False, (0, 0), False, (block,))
    entry = TraceEntry("free_completed", BASE, 20 * MIB, 0)
    history = History(DeviceSnapshot(0, (segment,), events([entry]), AllocatorSettings(), ()))
    assert history.allocated.tolist() == [20 * MIB, 0]
    assert not history.is_recorded


BASE = 0x7F0000000000

ENTRIES = st.lists(
    st.tuples(
        st.sampled_from(
            ("alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "segment_map", "snapshot")
        ),
        st.integers(0, 6).map(lambda place: BASE + 2 * MIB * place),
        st.sampled_from((0, 1, 512, 2 * MIB, 20 * MIB)),
        st.integers(0, 1),
        st.just(BEGAN_US),
        st.one_of(st.none(), st.integers(0, len(STACKS) - 1)),
    ).map(lambda row: TraceEntry(*row)),
    max_size=30,
)


@given(entries=ENTRIES)
def test_a_trace_that_contradicts_its_segments_is_counted_and_still_shown(entries: list[TraceEntry]) -> None:
    block = BlockView(BASE, 20 * MIB, 0, "inactive")
    segment = Segment(BASE, 20 * MIB, 0, False, (0, 0), False, (block,))
    history = History(DeviceSnapshot(0, (segment,), events(entries), AllocatorSettings(), STACKS))
    assert len(history.allocated) == len(entries) + 1
    for moment in (-1, history.peak, history.last):
        history.blocks(moment)
        history.state(moment)
        assert called(history, history.alive(moment)).count == len(history.alive(moment))


def test_what_cannot_have_led_to_the_segments_is_counted() -> None:
    entry = TraceEntry("alloc", BASE, 512, 0)
    assert History(DeviceSnapshot(0, (), events([entry]), AllocatorSettings(), ())).disagreeing > 0


def test_cublas_workspace_is_known_by_its_size_where_stacks_are_pythons_alone_and_a_tensor_beside_it_is_none() -> None:
    made = Made(capacity=100 * MIB)
    workspace = 8_519_680
    made.malloc(workspace, KEPT)  # no product before it: a tensor of the program's
    for stack in (FORWARD, BACKWARD):
        made.malloc(3 * MIB, stack)
        made.malloc(workspace, stack)
        made.malloc(workspace, stack)  # a thread has one
    history = History(made.device())
    alive = history.alive(history.last)
    is_workspace = history.lives.category[alive] == history.categories.index("workspace")
    assert history.lives.requested[alive][is_workspace].tolist() == [workspace, workspace]


def test_a_workspace_that_came_is_told_apart_from_what_its_line_holds() -> None:
    made = Made(capacity=100 * MIB)
    made.malloc(3 * MIB, FORWARD)
    begin = len(made.entries) - 1
    made.malloc(8_519_680, FORWARD)
    made.malloc(2 * MIB, FORWARD)
    history = History(made.device())
    changes = differences(history, begin, history, history.last)
    assert [(change.name, change.category, change.grown) for change in changes] == [
        ("workspace of cuBLAS, first used at train.py:41 step", "workspace", 8_519_680),
        ("train.py:41 step", "activations", 2 * MIB),
    ]


def test_a_workspace_that_was_refused_is_known_too() -> None:
    made = Made(capacity=24 * MIB)
    made.malloc(12 * MIB, FORWARD)
    with pytest.raises(AllocationRefused):
        made.malloc(8_519_680, FORWARD)
    history = History(made.device())
    assert history.asks_for_workspace(int(history.ooms[-1]))
