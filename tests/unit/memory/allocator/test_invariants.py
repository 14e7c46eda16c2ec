"""Whatever is asked of the allocator, its books agree with a recount of its blocks."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gpudash.memory.allocator import AllocationRefused, AllocatorSettings, CachingAllocator, DeviceMemory, Segment
from gpudash.memory.allocator.blocks import FREE, UNMAPPED, Rounding
from gpudash.units import KIB, MIB

CAPACITY = 256 * MIB
SIZES = st.one_of(
    st.integers(1, 4 * KIB),
    st.integers(1, MIB),
    st.integers(MIB + 1, 12 * MIB),
    st.integers(10 * MIB, 80 * MIB),
    st.sampled_from([512, MIB, MIB + 1, 2 * MIB, 10 * MIB, 10 * MIB - 1, 20 * MIB, 21 * MIB]),
)
STREAMS = st.integers(0, 2)
POOLS = st.sampled_from([None, None, None, (0, 1), (0, 2)])
SETTINGS = st.sampled_from(
    [
        AllocatorSettings(),
        AllocatorSettings(),
        AllocatorSettings(max_split_size=24 * MIB),
        AllocatorSettings(expandable_segments=True),
        AllocatorSettings(expandable_segments=True, max_split_size=32 * MIB, large_segment_size=12 * MIB),
        AllocatorSettings(garbage_collection_threshold=0.4, per_process_memory_fraction=0.7),
        AllocatorSettings(roundup_power2_divisions={1: 4, 2: 8, 4: 1, 8: 2, 64: 4}),
        AllocatorSettings(large_segment_size=32 * MIB),
    ]
)


class AllocatorMachine(RuleBasedStateMachine):
    """Random requests, frees, streams and pools on a small card."""

    @initialize(chosen=SETTINGS)
    def begin(self, chosen: AllocatorSettings) -> None:
        self.events: list[tuple[str, int, int, int]] = []
        self.memory = DeviceMemory(CAPACITY, used=10 * MIB)
        self.model = CachingAllocator(self.memory, chosen, observer=lambda *event: self.events.append(event))
        self.live: dict[int, int] = {}

    def best(self, size: int, stream: int, pool: tuple[int, int]) -> int | None:
        """The smallest free block that is large enough, the lowest address among equals, found the slow way."""
        fitting = [
            (block.size, block.address)
            for segment in self.model.segments()
            if (segment.stream, segment.is_small, segment.pool_id) == (stream, size <= MIB, pool)
            for block in segment.blocks
            if block.state == "inactive" and block.size >= size
        ]
        return min(fitting)[1] if fitting else None

    @rule(size=SIZES, stream=STREAMS, pool=POOLS)
    def malloc(self, size: int, stream: int, pool: tuple[int, int] | None) -> None:
        rounded = Rounding(self.model.settings).rounded(size)
        best = self.best(rounded, stream, pool or (0, 0))
        try:
            address = self.model.malloc(size, stream, pool, owner=size)
        except AllocationRefused as refused:
            told = refused
        else:
            self.served(address, size, best)
            return
        assert (told.device_free, told.reserved) == (self.memory.free_bytes, self.model.reserved_bytes)
        assert best is None or self.model.settings.max_split_size is not None

    def served(self, address: int, size: int, best: int | None) -> None:
        assert address not in self.live
        self.live[address] = size
        plain = self.model.settings.max_split_size is None and not self.model.settings.expandable_segments
        if plain and best is not None:
            assert address == best

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        address = data.draw(st.sampled_from(sorted(self.live)))
        del self.live[address]
        self.model.free(address)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), stream=STREAMS)
    def use_on_another_stream(self, data: st.DataObject, stream: int) -> None:
        self.model.record_stream(data.draw(st.sampled_from(sorted(self.live))), stream)

    @rule(streams=st.sets(STREAMS))
    def process_events(self, streams: set[int]) -> None:
        self.model.process_events(streams)

    @rule()
    def synchronize(self) -> None:
        self.model.synchronize()
        assert self.model.pending_bytes == 0

    @rule()
    def empty_cache(self) -> None:
        self.model.empty_cache()
        shared = [segment for segment in self.model.segments() if segment.pool_id == (0, 0)]
        assert all(segment.is_expandable or segment.active_size for segment in shared)

    @rule(others=st.integers(0, CAPACITY))
    def other_processes_come_and_go(self, others: int) -> None:
        self.memory.others = others

    @rule()
    def reset_peak(self) -> None:
        self.model.reset_peak()
        figures = self.model.statistics()
        assert all(figures[key] == value for key, value in _levels(figures, "peak").items())

    @rule()
    def reset_accumulated(self) -> None:
        self.model.reset_accumulated()
        assert all(v == 0 for k, v in self.model.statistics().items() if k.endswith((".allocated", ".freed")))

    @invariant()
    def blocks_fill_their_segments_without_overlap(self) -> None:
        segments = self.model.segments()
        for segment, following in pairwise(segments):
            assert segment.address + segment.total_size <= following.address
        for segment in segments:
            address = segment.address
            for block in segment.blocks:
                assert block.address == address
                assert block.size > 0 and block.size % 512 == 0
                assert block.requested_size <= block.size
                address += block.size
            assert address == segment.address + segment.total_size
            assert all({a.state, b.state} != {"inactive"} for a, b in pairwise(segment.blocks))

    @invariant()
    def what_is_live_is_there(self) -> None:
        held = {
            block.address: block.owner
            for segment in self.model.segments()
            for block in segment.blocks
            if block.state == "active_allocated"
        }
        assert held == self.live

    @invariant()
    def bytes_are_conserved_between_card_and_allocator(self) -> None:
        segments = self.model.segments()
        assert self.memory.taken == self.model.reserved_bytes == sum(s.total_size for s in segments)
        used = self.model.allocated_bytes + self.model.pending_bytes
        assert used == sum(s.active_size for s in segments)
        change = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}
        assert sum(size * change.get(action, 0) for action, _address, size, _stream in self.events) == self.memory.taken

    @invariant()
    def statistics_equal_a_recount(self) -> None:
        figures, segments = self.model.statistics(), self.model.segments()
        for scope, chosen in (
            ("all", segments),
            ("small_pool", [s for s in segments if s.is_small]),
            ("large_pool", [s for s in segments if not s.is_small]),
        ):
            for name, value in recount(chosen).items():
                assert figures[f"{name}.{scope}.current"] == value, (name, scope)
                assert figures[f"{name}.{scope}.peak"] >= value
                difference = figures[f"{name}.{scope}.allocated"] - figures[f"{name}.{scope}.freed"]
                assert figures[f"{name}.{scope}.allocated"] >= 0
                assert figures[f"{name}.{scope}.freed"] >= 0
                assert difference <= value

    @invariant()
    def free_lists_hold_exactly_the_free_blocks(self) -> None:
        heap = self.model._heap
        listed = [entry for pool in heap.pools() for home in pool.lists.values() for entry in home.entries]
        free = [(block.size, block.order, block.address) for block in heap.blocks.values() if block.state == FREE]
        assert sorted(listed) == sorted(free)
        unmapped = [a for pool in heap.pools() for home in pool.lists.values() for a in home.unmapped]
        assert sorted(unmapped) == sorted(b.address for b in heap.blocks.values() if b.state == UNMAPPED)
        if heap.freed_at is not None:
            assert heap.freed_at.keys() == {address for *_, address in free}

    def teardown(self) -> None:
        if not hasattr(self, "model"):
            return
        for address in list(self.live):
            self.model.free(address)
        self.model.empty_cache()
        kept = self.model.segments()
        assert not any(segment.active_size or segment.pool_id == (0, 0) for segment in kept)
        assert self.memory.taken == self.model.reserved_bytes == sum(segment.total_size for segment in kept)
        assert kept or not any(_levels(self.model.statistics(), "current").values())
        # a range of addresses that the card refused its first memory stays, as in torch, and serves the next request
        shared = (block for block in self.model._heap.blocks.values() if block.home.pool.private is None)
        assert all(block.state == UNMAPPED for block in shared)


def _levels(figures: dict[str, int], kind: str) -> dict[str, int]:
    """``kind`` of every figure by its key, with the value of its level."""
    return {key[: -len("current")] + kind: value for key, value in figures.items() if key.endswith(".current")}


def recount(segments: list[Segment]) -> dict[str, int]:
    """Torch's figures, counted from the blocks."""
    blocks = [block for segment in segments for block in segment.blocks]
    allocated = [block for block in blocks if block.state == "active_allocated"]
    active = [block for block in blocks if block.state != "inactive"]
    ordinary = [segment for segment in segments if not segment.is_expandable]
    split = [b for s in ordinary for b in s.blocks if b.state == "inactive" and len(s.blocks) > 1]
    return {
        "allocation": len(allocated),
        "allocated_bytes": sum(block.size for block in allocated),
        "requested_bytes": sum(block.requested_size for block in active),
        "active": len(active),
        "active_bytes": sum(block.size for block in active),
        "reserved_bytes": sum(segment.total_size for segment in segments),
        "segment": len(ordinary),
        "inactive_split": len(split),
        "inactive_split_bytes": sum(block.size for block in split),
    }


TestAllocator = AllocatorMachine.TestCase
TestAllocator.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
