"""The allocator's statistics, under the names of ``torch.cuda.memory_stats``."""

from __future__ import annotations


class Counter:
    """One statistic: its current level, its peak, and how much it rose and fell in total."""

    __slots__ = ("_fallen_before", "_risen", "_risen_before", "current", "peak")

    def __init__(self) -> None:
        self.current = self.peak = 0
        self._risen = self._risen_before = self._fallen_before = 0

    def add(self, amount: int) -> None:
        """Change the level by ``amount``, which is negative for a decrease."""
        if amount > 0:
            self._risen += amount
        self.current += amount
        if self.current > self.peak:
            self.peak = self.current

    def reset_peak(self) -> None:
        """Set the peak to the current level."""
        self.peak = self.current

    def reset_accumulated(self) -> None:
        """Set the totals of what rose and fell to zero."""
        self._risen_before = self._risen
        # what fell is what rose and is no longer there
        self._fallen_before = self._risen - self.current

    def figures(self) -> dict[str, int]:
        """``current``, ``peak``, ``allocated`` and ``freed``."""
        return accumulated(self.current, self.peak, self._risen, self._risen_before, self._fallen_before)


def accumulated(current: int, peak: int, risen: int, risen_before: int, fallen_before: int) -> dict[str, int]:
    """The four figures of torch from the current level and what rose; what fell is the difference."""
    return {
        "current": current,
        "peak": peak,
        "allocated": risen - risen_before,
        "freed": risen - current - fallen_before,
    }


class PoolStatistics:
    """The statistics of the small pools, of the large ones, or of both.

    `count`, `size` and `requested` cover allocated blocks; `requested` also covers those freed but still in use by a
    stream. `waiting` and `waiting_size` cover the latter: together with `count` and `size` they are torch's
    ``active``. `splits` and `split_size` cover free blocks that are part of a segment: torch's ``inactive_split``.
    """

    __slots__ = (
        "_before",
        "active_count_peak",
        "active_size_peak",
        "count",
        "count_peak",
        "counters",
        "counts",
        "requested",
        "requested_peak",
        "requests",
        "reserved",
        "segment",
        "size",
        "size_peak",
        "sizes",
        "split_size",
        "split_size_peak",
        "split_sizes",
        "splits",
        "splits_peak",
        "splits_risen",
        "waiting",
        "waiting_size",
    )

    def __init__(self) -> None:
        self.count = self.size = self.requested = self.waiting = self.waiting_size = 0
        self.count_peak = self.size_peak = self.requested_peak = self.active_count_peak = self.active_size_peak = 0
        self.counts = self.sizes = self.requests = 0
        self.splits = self.splits_peak = self.splits_risen = 0
        self.split_size = self.split_size_peak = self.split_sizes = 0
        self.segment = Counter()
        self.reserved = Counter()
        self.counters = (("segment", self.segment), ("reserved_bytes", self.reserved))
        self._before: dict[str, tuple[int, int]] = {}

    def add_split(self, count: int, size: int) -> None:
        """Change the number of free parts of segments by ``count`` and their bytes by ``size``."""
        if count:
            self.splits += count
            if count > 0:
                self.splits_risen += count
                if self.splits > self.splits_peak:
                    self.splits_peak = self.splits
        self.split_size += size
        if size > 0:
            self.split_sizes += size
            if self.split_size > self.split_size_peak:
                self.split_size_peak = self.split_size

    def wait(self, size: int) -> None:
        """Count a freed block of ``size`` bytes, allocated until now, as still in use by a stream."""
        # `size` and `count` fell when it was freed, and these rise instead: torch's `active` does not change
        self.waiting += 1
        self.waiting_size += size

    def stop_waiting(self, size: int) -> None:
        """Count a waiting block of ``size`` bytes as free."""
        self.waiting -= 1
        self.waiting_size -= size

    def note_active_peak(self) -> None:
        """Record the peak of ``active`` while blocks wait; otherwise it is the peak of allocated blocks."""
        self.active_count_peak = max(self.active_count_peak, self.count + self.waiting)
        self.active_size_peak = max(self.active_size_peak, self.size + self.waiting_size)

    def _levels(self) -> list[tuple[str, int, int, int]]:
        """Name, current level, peak and total rise of the statistics kept in plain attributes."""
        # while nothing waits, `active` has no peak of its own but uses that of the allocated blocks, which costs
        # nothing
        return [
            ("allocation", self.count, self.count_peak, self.counts),
            ("allocated_bytes", self.size, self.size_peak, self.sizes),
            ("requested_bytes", self.requested, self.requested_peak, self.requests),
            ("active", self.count + self.waiting, max(self.count_peak, self.active_count_peak), self.counts),
            ("active_bytes", self.size + self.waiting_size, max(self.size_peak, self.active_size_peak), self.sizes),
            ("inactive_split", self.splits, self.splits_peak, self.splits_risen),
            ("inactive_split_bytes", self.split_size, self.split_size_peak, self.split_sizes),
        ]

    def reset_peak(self) -> None:
        """Set every peak to the current level."""
        self.count_peak = self.count
        self.size_peak = self.size
        self.requested_peak = self.requested
        self.splits_peak = self.splits
        self.split_size_peak = self.split_size
        self.active_count_peak = self.count + self.waiting
        self.active_size_peak = self.size + self.waiting_size
        for _name, counter in self.counters:
            counter.reset_peak()

    def reset_accumulated(self) -> None:
        """Set all totals of what rose and fell to zero."""
        self._before = {name: (risen, risen - level) for name, level, _peak, risen in self._levels()}
        for _name, counter in self.counters:
            counter.reset_accumulated()

    def figures(self) -> dict[str, dict[str, int]]:
        """The four figures of each statistic, by torch's name."""
        found: dict[str, dict[str, int]] = {}
        for name, level, peak, risen in self._levels():
            risen_before, fallen_before = self._before.get(name, (0, 0))
            found[name] = accumulated(level, peak, risen, risen_before, fallen_before)
        found.update((name, counter.figures()) for name, counter in self.counters)
        return found


class AllocatorStatistics:
    """All statistics of an allocator."""

    EVENTS = ("num_alloc_retries", "num_ooms", "num_sync_all_streams", "num_device_alloc", "num_device_free")

    __slots__ = ("all", "events", "large", "oversize_allocations", "oversize_segments", "small")

    def __init__(self) -> None:
        self.all = PoolStatistics()
        self.large = PoolStatistics()
        self.small = PoolStatistics()
        self.oversize_allocations = Counter()
        self.oversize_segments = Counter()
        self.events: dict[str, int] = dict.fromkeys(self.EVENTS, 0)

    def reset_peak(self) -> None:
        """Reset the peaks, like ``torch.cuda.reset_peak_memory_stats``."""
        for pools in (self.all, self.large, self.small):
            pools.reset_peak()
        self.oversize_allocations.reset_peak()
        self.oversize_segments.reset_peak()

    def reset_accumulated(self) -> None:
        """Reset the accumulated figures, like ``torch.cuda.reset_accumulated_memory_stats``."""
        for pools in (self.all, self.large, self.small):
            pools.reset_accumulated()
        self.oversize_allocations.reset_accumulated()
        self.oversize_segments.reset_accumulated()
        self.events = dict.fromkeys(self.EVENTS, 0)

    def flat(self, max_split_size: int) -> dict[str, int]:
        """The dictionary of ``torch.cuda.memory_stats``, sorted by name like torch's.

        Args:
            max_split_size: bytes, -1 without a limit.
        """
        found: dict[str, int] = dict(self.events, num_oom_rejections=0, max_split_size=max_split_size)
        for scope, pools in (("all", self.all), ("large_pool", self.large), ("small_pool", self.small)):
            for name, values in pools.figures().items():
                found.update((f"{name}.{scope}.{kind}", value) for kind, value in values.items())
        oversize = {"oversize_allocations": self.oversize_allocations, "oversize_segments": self.oversize_segments}
        for name, counter in oversize.items():
            found.update((f"{name}.{kind}", value) for kind, value in counter.figures().items())
        return dict(sorted(found.items()))
