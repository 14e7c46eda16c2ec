"""The requests to a device's allocator while a program runs: a history that is still being written."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpudash.drawing.ribbons import Allocations
from gpudash.memory.allocator.trace import WORKSPACE
from gpudash.memory.frames import Frame, site_of
from gpudash.memory.growth_rate import GrowthRate, HeldLine, growth_rate
from gpudash.telemetry.explanation import NO_STACK, site_name

MOST_EVENTS = 2_000_000
"""That are kept, 60 bytes each; beyond them the older half goes."""

MOST_STACKS = 50_000
"""That are kept with their frames; what comes with another one has none."""

ROUNDED_TO = 512
"""Bytes: torch's allocator gives a multiple of them (c10/cuda/CUDACachingAllocator.cpp, kMinBlockSize)."""

MOST_GROWTH_STEPS = 200
"""Newest steps whose leavings are looked at: it is asked twice a second."""

OUTSIDE = " <module>"
"""What Python calls code outside of functions."""

NEVER = 2**62
"""Event that frees what is still there: behind all others, and far enough from the largest number to reckon with."""

Stack = tuple[Frame, ...]


@dataclass(frozen=True, slots=True)
class AllocatingLine:
    """A line of a program, as one that allocates for one purpose.

    Attributes:
        file, line, name: of its frame; "" and 0 where no stack is known.
        category: what it allocates, by its stack.
    """

    file: str
    line: int
    name: str
    category: str

    @property
    def text(self) -> str:
        """Its short name: "train.py:41 step", outside of functions "train.py:41"."""
        return site_name(self.file, self.line, self.name).removesuffix(OUTSIDE)


@dataclass(frozen=True, slots=True)
class Request:
    """One request, or the end of one.

    Attributes:
        time_s: session time.
        owner: tells the block from all others that are there: its process and its address.
        bytes: that were asked for; 0 where the block is freed.
        stack: of whoever asked, innermost line first.
    """

    time_s: float
    owner: Hashable
    bytes: int = 0
    stack: Stack = ()


class _Column:
    """Numbers that are only ever added to, but for those that are set in their place."""

    def __init__(self, kind: type[np.generic]) -> None:
        self.values: NDArray[Any] = np.zeros(1024, kind)
        self.count = 0

    def append(self, value: float) -> None:
        if self.count == len(self.values):
            # whoever still reads the shorter one has all that it was given
            self.values = np.concatenate((self.values, np.zeros_like(self.values)))
        self.values[self.count] = value
        self.count += 1

    @property
    def taken(self) -> NDArray[Any]:
        return self.values[: self.count]

    def replace(self, values: NDArray[Any]) -> None:
        self.values = np.concatenate((values, np.zeros(max(1024, len(values)), values.dtype)))
        self.count = len(values)


class RequestLog:
    """Requests in the order of their coming. One thread adds, any thread reads.

    Args:
        most: events that are kept.

    Attributes:
        lines: that have allocated, by their numbers.
        version: grows with every request.
    """

    def __init__(self, most: int = MOST_EVENTS) -> None:
        self.lines: list[AllocatingLine] = []
        self.version = 0
        self._most = most
        self._lock = threading.Lock()
        self._time = _Column(np.float64)
        self._level = _Column(np.int64)
        self._level.append(0)
        self._born = _Column(np.int64)
        self._freed = _Column(np.int64)
        self._size = _Column(np.int64)
        self._site = _Column(np.int64)
        self._stack = _Column(np.int64)
        self._of_blocks = (self._born, self._freed, self._size, self._site, self._stack)
        self._stacks: list[Stack] = [()]
        self._number_of: dict[Stack, tuple[int, int]] = {}
        self._line_of: dict[tuple[str, int, str], int] = {}
        self._live: dict[Hashable, int] = {}
        self._bytes = 0
        self._found: tuple[int, Allocations] | None = None

    def take(self, requests: Iterable[Request]) -> None:
        """Add requests; a time before that of the one before is taken for the same moment."""
        with self._lock:
            for request in requests:
                if request.bytes > 0:
                    self._allocated(request)
                else:
                    self._ended(request.owner, request.time_s)
            if self._time.count > self._most:
                self._drop_older_half()

    def replace(
        self,
        events: tuple[NDArray[np.float64], NDArray[np.int64]],
        blocks: Sequence[NDArray[Any]],
        stacks: Sequence[Stack],
        categories: Sequence[str],
    ) -> None:
        """Know what is told at once in place of all before.

        Args:
            events: their times, and bytes before the first and after each.
            blocks: of each, by their first event: the events that allocated and freed it, its bytes, the numbers of its
                stack, -1 for none, and of its category.
            stacks: by their numbers.
            categories: names by their numbers.
        """
        born, freed, size, stack, category = blocks
        with self._lock:
            sites = [site_of(one) or Frame("", 0, NO_STACK) for one in (*stacks, ())]
            # blocks with one stack and one category are of one line, and many stacks share theirs
            pairs, pair_of = np.unique(stack * len(categories) + category, return_inverse=True)
            lines = []
            for pair in pairs.tolist():
                number, kind = divmod(pair, len(categories))
                lines.append(self._line(sites[number], categories[kind]))
            self._time.replace(events[0])
            self._level.replace(events[1])
            found = (born, freed, size, np.array(lines, np.int64)[pair_of], stack + 1)
            for column, values in zip(self._of_blocks, found, strict=True):
                column.replace(values.astype(np.int64))
            self._stacks = [(), *stacks]
            self.version += 1

    def end(self, time_s: float, owners: Iterable[Hashable] | None = None) -> None:
        """Free these blocks, or all: their process has ended, or what it freed meanwhile is not known."""
        with self._lock:
            for owner in list(self._live if owners is None else owners):
                self._ended(owner, time_s)

    def live(self) -> list[Hashable]:
        """Owners of the blocks that are there."""
        with self._lock:
            return list(self._live)

    @property
    def extent(self) -> tuple[float, float] | None:
        """Session time of the first request and of the newest; ``None`` before any."""
        if not self._time.count:
            return None
        times = self._time.taken
        return float(times[0]), float(times[-1])

    def allocations(self) -> Allocations:
        """All that is known; what comes later changes nothing of it but ends, which count as not yet come."""
        with self._lock:
            if self._found is None or self._found[0] != self.version:
                columns = self._born, self._freed, self._size, self._site, self._time, self._level
                self._found = self.version, Allocations(*(column.taken for column in columns))
            return self._found[1]

    def held_by_line(
        self, moment: int, steps: NDArray[np.float64] | None = None, since: int = 0
    ) -> dict[tuple[str, int], HeldLine]:
        """What lines hold, by file and line; a workspace belongs to none.

        Args:
            moment: event of `allocations`.
            steps: session times at which steps ended, ascending; ``None`` where none are known.
            since: event from which a line that has allocated is there, though it may hold nothing at the moment.
        """
        found = self.allocations()
        there = np.flatnonzero((found.born <= moment) & (found.freed > moment))
        sizes = np.bincount(found.site[there], found.size[there], len(self.lines)).astype(np.int64)
        rates: dict[int, GrowthRate] = {}
        if steps is not None and len(found.place) and moment >= 0:
            rates = _rates(found, there, steps[steps <= found.place[moment]])
        recent = found.site[(found.born >= since) & (found.born <= moment)]
        held: dict[tuple[str, int], HeldLine] = {}
        for number in np.union1d(recent, found.site[there]).tolist():
            line = self.lines[number]
            if line.category == WORKSPACE:
                continue
            key = line.file, line.line
            before = held.get(key, HeldLine(0))
            rate = rates.get(number, GrowthRate(0.0, before.stride))
            stride = rate.stride
            if before.growth:
                # A line that keeps different kinds of memory has the pace of the most frequent.
                stride = min(before.stride, rate.stride)
            held[key] = HeldLine(before.bytes + int(sizes[number]), before.growth + rate.bytes_per_step, stride)
        return held

    def stack_of(self, allocation: int) -> Stack:
        """The stack of an allocation, innermost line first; empty where it is not known."""
        if 0 <= allocation < self._stack.count:
            return self._stacks[int(self._stack.values[allocation])]
        return ()

    def _allocated(self, request: Request) -> None:
        # an address that is given out again has been freed, whatever was missed
        self._ended(request.owner, request.time_s)
        size = -(-request.bytes // ROUNDED_TO) * ROUNDED_TO
        stack, line = self._known(request.stack)
        self._live[request.owner] = self._born.count
        self._born.append(self._time.count)
        self._freed.append(NEVER)
        self._size.append(size)
        self._site.append(line)
        self._stack.append(stack)
        self._happened(request.time_s, size)

    def _ended(self, owner: Hashable, time_s: float) -> None:
        allocation = self._live.pop(owner, None)
        if allocation is None:
            return
        self._freed.values[allocation] = self._time.count
        self._happened(time_s, -int(self._size.values[allocation]))

    def _happened(self, time_s: float, change: int) -> None:
        if self._time.count:
            time_s = max(time_s, float(self._time.values[self._time.count - 1]))
        self._bytes += change
        self._time.append(time_s)
        self._level.append(self._bytes)
        self.version += 1

    def _known(self, stack: Stack) -> tuple[int, int]:
        """Numbers of a stack and of its line."""
        found = self._number_of.get(stack)
        if found is not None:
            return found
        from gpudash.memory.snapshot.history.phases import category_of_role, role_of  # of no use before a request

        site = site_of(stack) or Frame("", 0, NO_STACK)
        category = category_of_role(role_of(stack)[0]) if stack else NO_STACK
        line = self._line(site, category)
        if len(self._stacks) >= MOST_STACKS:
            return 0, line
        self._stacks.append(stack)
        found = self._number_of[stack] = len(self._stacks) - 1, line
        return found

    def _line(self, site: Frame, category: str) -> int:
        """Number of a line."""
        key = site.file, site.line, category
        line = self._line_of.get(key)
        if line is None:
            line = self._line_of[key] = len(self.lines)
            self.lines.append(AllocatingLine(*site, category))
        return line

    def _drop_older_half(self) -> None:
        """Keep the newer half of the events, and what was there before it as there from the beginning."""
        cut = self._time.count // 2
        born = self._born.taken
        kept = np.flatnonzero(self._freed.taken >= cut)
        place = np.cumsum(self._freed.taken >= cut) - 1
        freed = self._freed.taken[kept]
        self._freed.replace(np.where(freed == NEVER, NEVER, freed - cut))
        self._born.replace(np.maximum(born[kept] - cut, -1))
        for column in (self._size, self._site, self._stack):
            column.replace(column.taken[kept])
        self._level.replace(self._level.taken[cut:])
        self._time.replace(self._time.taken[cut:])
        self._live = {owner: int(place[allocation]) for owner, allocation in self._live.items()}


def _rates(found: Allocations, there: NDArray[np.int64], steps: NDArray[np.float64]) -> dict[int, GrowthRate]:
    """What lines keep of every step, or of every n-th, by their number: as the warning about growing lines has it.

    Args:
        there: numbers of the allocations that are there.
        steps: session times at which steps ended, up to now.
    """
    rates: dict[int, GrowthRate] = {}
    there = there[found.born[there] >= 0]
    steps = steps[-MOST_GROWTH_STEPS:]
    if not len(steps):
        return rates
    there = there[found.place[found.born[there]] >= steps[0]]
    step = steps.searchsorted(found.place[found.born[there]], "right")
    pairs, place = np.unique(found.site[there] * (len(steps) + 2) + step, return_inverse=True)
    sizes = np.bincount(place, found.size[there]).astype(np.int64).tolist()
    of_lines: dict[int, dict[int, int]] = {}
    for pair, size in zip(pairs.tolist(), sizes, strict=True):
        line, of_step = divmod(pair, len(steps) + 2)
        if of_step < len(steps):  # the present step is incomplete
            of_lines.setdefault(line, {})[of_step] = size
    for line, of_steps in of_lines.items():
        rate = growth_rate(of_steps, len(steps))
        if rate is not None:
            rates[line] = rate
    return rates


class RequestLogs:
    """The logs of a session's devices, by torch's names of them. Any thread may ask.

    Attributes:
        why_none: why nothing is known of a program's requests, in a sentence; "" where there may be some yet.
    """

    def __init__(self) -> None:
        self.why_none = ""
        self._logs: dict[str, RequestLog] = {}

    def of(self, device: str) -> RequestLog | None:
        """The log of a device; ``None`` where nothing was told of its requests."""
        return self._logs.get(device)

    def put(self, device: str, log: RequestLog) -> None:
        """Have a log that is known otherwise."""
        self._logs[device] = log

    def made(self, device: str) -> RequestLog:
        """The log of a device, empty where there was none."""
        return self._logs.setdefault(device, RequestLog())

    @property
    def devices(self) -> Sequence[str]:
        """Those that have one."""
        return tuple(self._logs)
