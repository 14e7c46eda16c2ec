"""Traces recorded on GPUs, replayed: the model places every block where the GPU run placed it."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudash.memory.allocator import (
    AllocationRefused,
    AllocatorSettings,
    BlockView,
    CachingAllocator,
    DeviceMemory,
    Segment,
    caching,
)
from gpudash.memory.allocator.blocks import FreeList
from gpudash.memory.snapshot.history.model import DeviceSnapshot, SnapshotError, TraceEntry
from gpudash.memory.snapshot.replay import placements as replaying
from gpudash.memory.snapshot.replay.placements import RecordedAllocator, ReplayOutcome, replay
from gpudash.memory.snapshot.replay.trace_program import compiled
from gpudash.memory.snapshot.replay.what_if import WhatIf
from gpudash.units import GIB, MIB
from tests.unit.memory.snapshot.made import events

RECORDED = Path(__file__).parent / "recorded"
EXPECTED: dict[str, dict[str, int]] = json.loads((RECORDED / "expected.json").read_text())
BASE = 0x7F0000000000
ACTIONS = ("alloc", "", "free_requested", "free_completed", "segment_alloc", "segment_free", "snapshot")
STATES = ("inactive", "active_allocated", "active_pending_free")
STACKS = ((("somewhere.py", 1, "step"),), (("memory.py", 2, "empty_cache"),))


@cache
def recorded(name: str) -> DeviceSnapshot:
    """A recorded trace; addresses are in units of 512 bytes above `BASE`, and free stands for both of its events."""
    with np.load(RECORDED / f"{name}.npz") as columns:
        c = {key: columns[key].astype(np.int64) for key in columns.files}
    addresses = (BASE + 512 * np.cumsum(c["addresses"])).tolist()
    sizes = np.cumsum(c["sizes"]).tolist()
    emptied, trace = set(c["emptied"].tolist()), []
    rows = zip(c["action"].tolist(), c["address"].tolist(), c["size"].tolist(), strict=True)
    for number, (action, address, size) in enumerate(rows):
        where, stack = (addresses[address], sizes[size], 0), int(number in emptied)
        names = ("free_requested", "free_completed") if action == 1 else (ACTIONS[action],)
        trace += [TraceEntry(name, *where, stack=stack) for name in names]
    return DeviceSnapshot(0, _segments(c, sizes), events(trace), AllocatorSettings(), STACKS)


def _segments(c: dict[str, np.ndarray], sizes: list[int]) -> tuple[Segment, ...]:
    blocks = iter(zip(c["block_size"].tolist(), c["block_state"].tolist(), c["block_requested"].tolist(), strict=True))
    found = []
    for begin, count, small in zip(c["segment_address"], c["segment_blocks"], c["segment_small"], strict=True):
        address, held = BASE + 512 * int(begin), []
        for _ in range(int(count)):
            size, state, requested = next(blocks)
            held.append(BlockView(address, 512 * size, sizes[requested], STATES[state]))
            address += 512 * size
        begin_address = BASE + 512 * int(begin)
        found.append(Segment(begin_address, address - begin_address, 0, bool(small), (0, 0), False, tuple(held)))
    return tuple(found)


@cache
def followed(name: str) -> ReplayOutcome:
    """The replay that follows the trace."""
    return replay(recorded(name))


@pytest.fixture(params=sorted(EXPECTED))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_every_allocation_is_placed_at_its_real_address(name: str) -> None:
    expected, found = EXPECTED[name], followed(name)
    assert len(recorded(name).trace) == expected["events"]
    assert found.allocations == found.allocations_at_real_address == expected["allocations"]
    assert found.segments == found.segments_of_real_size == expected["segments"]
    assert found.releases == found.releases_as_real
    for figure in ("peak_allocated", "peak_reserved", "final_allocated", "final_reserved"):
        assert getattr(found, figure) == expected[figure], figure


def test_on_a_card_with_room_to_spare_the_model_alone_reserves_as_much_as_the_gpu_did(name: str) -> None:
    real, found = followed(name), WhatIf(recorded(name)).run(2**49)
    assert found.fits is True
    assert found.retries == 0
    assert found.final_allocated == real.final_allocated
    assert found.peak_allocated == real.peak_allocated + real.unrecorded_slack
    if not real.retries:
        assert found.peak_reserved == real.peak_reserved


def test_a_capacity_below_what_is_allocated_is_refused(name: str) -> None:
    found = WhatIf(recorded(name)).run(followed(name).peak_allocated - 1)
    assert found.fits is False
    assert found.failed_at is not None


def test_a_card_of_the_capacity_that_was_reserved_is_enough(name: str) -> None:
    assert WhatIf(recorded(name)).run(followed(name).peak_reserved).fits is True


def test_the_layout_before_the_trace_is_whole(name: str) -> None:
    for segment in compiled(recorded(name))[0].begin:
        assert sum(block.size for block in segment.blocks) == segment.total_size
        assert segment.blocks[0].address == segment.address
        for block, following in pairwise(segment.blocks):
            assert following.address == block.address + block.size
            assert {block.state, following.state} != {"inactive"}


class HighestAddressFirst(RecordedAllocator):
    """Breaks ties the wrong way round."""

    def _best(self, home: FreeList, rounded: int) -> int:
        place = super()._best(home, rounded)
        while 0 <= place < len(home.entries) - 1 and home.entries[place + 1][0] == home.entries[place][0]:
            place += 1
        return place


class LargestFirst(RecordedAllocator):
    """Fits worst."""

    def _best(self, home: FreeList, rounded: int) -> int:
        return -1 if super()._best(home, rounded) < 0 else len(home.entries) - 1


TELLING = (
    "lm-27b-128-fullstep",
    "lm-medium-128-train-fp32",
    "qlora-1b-step",
    "vae-conv3d-backward",
    "lm-xl-forward-amp",
)


@pytest.mark.parametrize("name", TELLING, indirect=True)
@pytest.mark.parametrize("policy", [HighestAddressFirst, LargestFirst])
def test_a_wrong_choice_among_free_blocks_is_found_out(
    name: str, policy: type[RecordedAllocator], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replaying, "RecordedAllocator", policy)
    found = replay(recorded(name))
    assert found.allocations_at_real_address < found.allocations


@pytest.mark.parametrize("name", ["lm-27b-128-fullstep", "qlora-1b-step", "lm-medium-512-train-amp"], indirect=True)
@pytest.mark.parametrize("threshold", [MIB // 2, 2 * MIB])
def test_a_wrong_split_threshold_is_found_out(name: str, threshold: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caching, "NOT_SPLIT", threshold)
    try:
        found = replay(recorded(name))
    except SnapshotError:
        return
    assert (
        found.allocations_at_real_address != found.allocations
        or found.final_allocated != EXPECTED[name]["final_allocated"]
    )


def test_a_retry_and_an_emptied_cache_are_told_apart() -> None:
    found = followed("conv3d-infer-retry")
    assert (found.releases, found.retries) == (2, 1)
    found = followed("quantise-empty-cache")
    assert (found.releases, found.retries) == (28, 0)


def test_the_capacity_of_the_card_brings_its_retry_back() -> None:
    device = recorded("conv3d-infer-retry")
    real = followed("conv3d-infer-retry")
    again = WhatIf(device).run(real.peak_reserved)
    assert (again.retries, again.peak_reserved, again.final_reserved) == (1, real.peak_reserved, real.final_reserved)


def test_the_slack_of_a_block_freed_later_shows_by_what_is_placed_beside_it() -> None:
    assert followed("lm-medium-512-train-amp").unrecorded_slack == 3 * 983_040


def test_other_settings_are_replayed_on_a_fresh_card() -> None:
    device = recorded("lm-forward-five-steps")
    found = WhatIf(device).run(None, AllocatorSettings(expandable_segments=True))
    assert found.fits is True
    assert found.peak_reserved < followed("lm-forward-five-steps").peak_reserved


def test_a_request_that_had_been_refused_has_to_be_there_on_another_card() -> None:
    device = recorded("conv-step-tiny")
    refused = replace(device, trace=events([*device.trace, TraceEntry("oom", 0, GIB, 0, device_free=MIB)]))
    assert WhatIf(refused).run(GIB).failed_at == len(device.trace)
    assert WhatIf(refused).run(2 * GIB).fits is True


def test_a_layout_that_never_fitted_says_so() -> None:
    assert WhatIf(recorded("lm-medium-128-infer-fp32")).run(GIB).failed_at == -1


def test_a_trace_that_contradicts_its_segments_is_refused_in_words() -> None:
    device = recorded("conv-step-tiny")
    with pytest.raises(SnapshotError, match=r"segments of the snapshot disagree in 1 of their events and blocks\."):
        replay(replace(device, trace=events([*device.trace, TraceEntry("alloc", BASE + 1, 7, 0)])))


def test_unknown_events_change_nothing() -> None:
    device = recorded("conv-step-tiny")
    assert replay(replace(device, trace=events([*device.trace, TraceEntry("wonder", 1, 1, 0)]))) == replay(device)


@pytest.mark.parametrize("capacity", [0, -1, 2**50 + 1])
def test_an_impossible_capacity_is_refused(capacity: int) -> None:
    with pytest.raises(ValueError, match="memory capacity must be between"):
        WhatIf(recorded("conv-step-tiny")).run(capacity)


def test_a_free_that_waited_for_a_stream_is_replayed_as_one() -> None:
    told: list[TraceEntry] = []
    model = CachingAllocator(DeviceMemory(GIB), observer=lambda *event: told.append(TraceEntry(*event)))
    first = model.malloc(3 * MIB)
    model.record_stream(first, 1)
    model.free(first)
    model.malloc(3 * MIB)
    model.process_events({1})
    model.malloc(3 * MIB)
    device = DeviceSnapshot(0, tuple(model.segments()), events(told), model.settings, ())
    found = replay(device)
    assert found.allocations == found.allocations_at_real_address == 3
    assert WhatIf(device).run(GIB).peak_reserved == found.peak_reserved == 20 * MIB


PROGRAMS = st.lists(
    st.one_of(
        st.tuples(st.just("malloc"), st.one_of(st.integers(1, MIB), st.integers(MIB, 60 * MIB)), st.integers(0, 1)),
        st.tuples(st.just("free"), st.integers(0, 1000), st.booleans()),
        st.tuples(st.just("wait"), st.just(0), st.just(0)),
    ),
    max_size=60,
)


@settings(max_examples=120, deadline=None)
@given(PROGRAMS, st.sampled_from([(True, 4 * GIB), (False, 4 * GIB), (False, 200 * MIB)]))
def test_what_the_model_recorded_is_replayed_to_the_byte(
    program: list[tuple[str, int, int]], card: tuple[bool, int]
) -> None:
    expandable, capacity = card
    told: list[TraceEntry] = []
    chosen = AllocatorSettings(expandable_segments=expandable)
    model = CachingAllocator(DeviceMemory(capacity), chosen, observer=lambda *event: told.append(TraceEntry(*event)))
    live: list[int] = []
    for what, number, way in program:
        if what == "malloc":
            with suppress(AllocationRefused):
                live.append(model.malloc(number, stream=way))
        elif what == "wait":
            model.synchronize()
        elif live:
            address = live.pop(number % len(live))
            if way:
                model.record_stream(address, 7)
            model.free(address)
    device = DeviceSnapshot(0, tuple(model.segments()), events(told), chosen, ())
    assert compiled(device)[0].begin == []
    found = replay(device)
    figures = model.statistics()
    assert found.allocations == found.allocations_at_real_address == figures["allocation.all.allocated"]
    assert found.segments == found.segments_of_real_size == figures["num_device_alloc"]
    assert found.releases == found.releases_as_real == found.retries
    assert (found.peak_allocated, found.peak_reserved, found.final_reserved) == (
        figures["allocated_bytes.all.peak"],
        figures["reserved_bytes.all.peak"],
        figures["reserved_bytes.all.current"],
    )


def test_an_expandable_segment_that_was_unmapped_in_between_is_replayed() -> None:
    told: list[TraceEntry] = []
    chosen = AllocatorSettings(expandable_segments=True)
    model = CachingAllocator(DeviceMemory(150 * MIB), chosen, observer=lambda *event: told.append(TraceEntry(*event)))
    kept = [model.malloc(30 * MIB) for _ in range(4)]
    model.free(kept.pop(1))
    model.free(kept.pop(1))
    model.malloc(50 * MIB, stream=1)
    device = DeviceSnapshot(0, tuple(model.segments()), events(told), chosen, ())
    assert {event.action for event in told} >= {"segment_map", "segment_unmap"}
    assert compiled(device)[0].begin == []
    found = replay(device)
    assert found.allocations == found.allocations_at_real_address == 5
    assert (found.retries, found.releases_as_real) == (1, 1)
    assert found.final_reserved == model.reserved_bytes
