"""The history of a device's memory: what was alive at any moment of a trace, what it was for, and the moment in words.

Events have numbers from 0; the moment ``m`` is after event ``m``, and the moment -1 before the first event. `state`
gives a moment as `gpudash.memory.explaining.explain` takes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from gpudash.memory.allocator import Segment
from gpudash.memory.allocator.blocks import Rounding, segment_size
from gpudash.memory.allocator.trace import WORKSPACE
from gpudash.memory.explaining.call_sites import SourceLine, growing_lines, no_source
from gpudash.memory.explaining.memory_state import AllocationGroup, MemoryState, RefusedRequest
from gpudash.memory.frames import Frame
from gpudash.memory.snapshot.history.groups import Paths, Sites
from gpudash.memory.snapshot.history.layout import Layout, placed
from gpudash.memory.snapshot.history.lives import reserved_changes
from gpudash.memory.snapshot.history.model import (
    ALLOC,
    NONE,
    OOM,
    Annotation,
    Columns,
    DeviceSnapshot,
    Stack,
    is_python,
)
from gpudash.memory.snapshot.history.phases import (
    CATEGORIES,
    PHASES,
    Band,
    Role,
    bands,
    categorise,
    moved_gradients,
    numbered,
    phases,
    role_of,
    roles,
    steps,
)
from gpudash.memory.snapshot.history.workspaces import workspace_requests
from gpudash.telemetry.explanation import Evidence, Growth, site_name
from gpudash.units import format_bytes, format_change, format_count, format_duration

Ints = NDArray[np.int64]

MOST_CHANGES = 3
"""Call sites that the sentence of a difference names."""


def moment_text(history: History, moment: int) -> str:
    """A moment: by its time since the first event, else by its event."""
    if moment < 0:
        return "the begin of the recording"
    seconds = history.time_s(moment)
    if seconds is None:
        return f"event {format_count(moment)}"
    return format_duration(seconds)


class History:
    """What a trace tells of a device's memory, in columns.

    Args:
        device: of a snapshot.
        annotations: of the snapshot.
        known_steps: times at which steps began, in microseconds since 1970, and their numbers, from outside.

    Attributes:
        count: of events.
        allocated, reserved: bytes after each event; the first is before the first event, so one more than events.
        time_us: of each event, microseconds since 1970; -1 where the file keeps no times.
        peak: moment at which most was allocated, the first one of them.
        ooms: events at which a request was refused.
        lives: of blocks.
        categories: names of the categories by their codes.
        phases: bands of one phase each.
        phase: code of each event's phase, an index into `roles.PHASES`.
        steps: first event of each step; empty when no steps were found. `step_numbers` are their numbers.
        unrecorded_slack: bytes that blocks from before the trace had beside their rounded requests, which only later
            placements show; `allocated` does not count them.
        disagreeing: events and blocks in which the trace and the segments contradict each other.
    """

    categories = CATEGORIES

    def __init__(
        self,
        device: DeviceSnapshot,
        annotations: Sequence[Annotation] = (),
        known_steps: Sequence[tuple[int, int]] = (),
    ) -> None:
        self.device = device
        self.columns: Columns = device.trace.columns
        self.count = len(self.columns)
        self.time_us = self.columns.time_us
        self._placed = placed(device, with_slack=False)
        self.lives = self._placed.lives
        self.unrecorded_slack = sum(self._placed.slack.values())
        self.disagreeing = self._placed.disagreeing
        self.allocated = self._levels(device)
        changes = reserved_changes(self.columns)
        final = device.reserved_bytes
        # known for sure at the end only: the sum of all changes is taken off to get the beginning
        self.reserved = np.concatenate(([0], np.cumsum(changes))) + (final - int(changes.sum()))
        self.peak = int(np.argmax(self.allocated)) - 1
        self.ooms: Ints = np.flatnonzero(self.columns.action == OOM)
        role, phase_of_stack = roles(device.stacks)
        role[moved_gradients(device.stacks, self.lives.stack, self.lives.requested)] = Role.GRADIENTS
        self.phase = phases(self.columns, phase_of_stack, annotations)
        self.phases: tuple[Band, ...] = bands(self.phase)
        categorise(self.lives, role, self.phase, self.phases)
        self._workspaces: Ints = np.zeros(0, np.int64)
        if Role.WORKSPACE not in role:
            self._workspaces = workspace_requests(self.columns, self.lives, self.phase)
            self.lives.category[np.isin(self.lives.born, self._workspaces)] = CATEGORIES.index(WORKSPACE)
        self.steps, self.step_numbers = numbered(self.columns, known_steps)
        if not len(self.steps):
            self.steps = steps(self.phases, self.count)
            self.step_numbers = np.arange(1, len(self.steps) + 1)

    def _levels(self, device: DeviceSnapshot) -> Ints:
        lives, count = self.lives, self.count
        changes = np.zeros(count + 1, np.int64)
        seen = lives.born >= 0
        ended = (lives.freed >= 0) & (lives.freed < count)
        # an event has one block at most, so that no index comes twice and plain addition is enough
        changes[lives.born[seen] + 1] += lives.bytes[seen]
        # not in one statement with what is born: a block may end with the event that gives its address out again
        changes[lives.freed[ended] + 1] -= lives.bytes[ended]
        changes[0] = int(lives.bytes[~seen & (lives.freed >= 0)].sum())
        return np.cumsum(changes)

    @property
    def is_recorded(self) -> bool:
        """Whether the trace tells of any allocation: a snapshot without a history may have an event all the same."""
        return bool((self.columns.action == ALLOC).any())

    @property
    def last(self) -> int:
        """The moment after the last event."""
        return self.count - 1

    def time_s(self, moment: int) -> float | None:
        """Seconds from the first event to a moment; ``None`` in files without times."""
        if not self.count or self.time_us[0] == NONE:
            return None
        return float(self.time_us[max(0, moment)] - self.time_us[0]) / 1e6

    def step_at(self, moment: int) -> int:
        """Number of the step that a moment belongs to; 0 before the first."""
        if moment < self.last:
            return int(self.step_of(np.array([moment + 1]))[0])
        return self._last_step()

    def _last_step(self) -> int:
        if len(self.steps):
            return int(self.step_numbers[-1])
        return 0

    def step_of(self, events: Ints) -> Ints:
        """Number of the step that each event belongs to; 0 before the first, and for event -1."""
        if not len(self.steps):
            return np.zeros(len(events), np.int64)
        place = np.searchsorted(self.steps, events, side="right") - 1
        return np.where(place >= 0, self.step_numbers[np.maximum(place, 0)], 0)

    def phase_at(self, moment: int) -> str:
        """Name of the phase of the event of a moment."""
        if 0 <= moment < self.count:
            return PHASES[int(self.phase[moment])]
        return ""

    def alive(self, moment: int) -> Ints:
        """Indices of the lives that are allocated at a moment."""
        return self._placed.alive(moment)

    def pending(self, moment: int) -> Ints:
        """Indices of the lives that are freed at a moment, but still in use by another stream."""
        return self._placed.pending(moment)

    def grown(self, begin: int, end: int) -> Ints:
        """Indices of the lives that were allocated after ``begin`` and are alive at ``end``."""
        return np.flatnonzero((self.lives.born > begin) & (self.lives.born <= end) & (self.lives.freed > end))

    @cached_property
    def paths(self) -> Paths:
        """The tree of all stacks."""
        return Paths(self.device.stacks)

    @cached_property
    def sites(self) -> Sites:
        """The call sites of all stacks."""
        return Sites(self.device.stacks)

    def prepare(self) -> None:
        """Work out what the first query would otherwise have to."""
        self.paths  # noqa: B018 - kept from now on
        self.sites  # noqa: B018 - likewise

    def by_stack(self, lives: Ints) -> list[tuple[int, int, int]]:
        """Stack (-1 for none), bytes and number of the blocks that each allocated, those with most bytes first."""
        stacks, place = np.unique(self.lives.stack[lives], return_inverse=True)
        size = np.bincount(place, weights=self.lives.bytes[lives], minlength=len(stacks)).astype(np.int64)
        # by size; of equal ones, what has no stack comes last
        order = np.lexsort((stacks < 0, -size))
        count = np.bincount(place, minlength=len(stacks))
        return list(zip(stacks[order].tolist(), size[order].tolist(), count[order].tolist(), strict=True))

    def by_category(self, lives: Ints) -> dict[str, int]:
        """Bytes of blocks by category, in the order of a bar."""
        category = self.lives.category[lives]
        size = np.bincount(category, weights=self.lives.bytes[lives], minlength=len(CATEGORIES)).astype(np.int64)
        return {CATEGORIES[code]: int(size[code]) for code in np.unique(category).tolist()}

    def site_of(self, lives: Ints) -> Ints:
        """Index in `sites` of the call site of each life."""
        return self.sites.of_stack[self.lives.stack[lives]]

    def layout(self, moment: int) -> Layout:
        """Segments and blocks at a moment, in columns."""
        return self._placed.layout(moment)

    def blocks(self, moment: int) -> list[Segment]:
        """The memory map at a moment; a block's `owner` is the index of its stack or ``None``."""
        return self.layout(moment).segments()

    def groups(self, moment: int) -> tuple[AllocationGroup, ...]:
        """Live blocks at a moment, those of one stack, category and step together."""
        lives, alive = self.lives, self.alive(moment)
        table = np.stack(
            (
                lives.stack[alive],
                lives.category[alive].astype(np.int64),
                lives.phase[alive].astype(np.int64),
                self.step_of(lives.born[alive]),
            ),
            axis=1,
        )
        if not len(table):
            return ()
        # the four figures of a row as one number, in mixed radix: unique of numbers is much faster than of rows
        bases = table.max(axis=0) + 2
        key = ((((table[:, 0] + 1) * bases[1]) + table[:, 1]) * bases[2] + table[:, 2]) * bases[3] + table[:, 3]
        _, first, place = np.unique(key, return_index=True, return_inverse=True)
        size = np.bincount(place, weights=lives.bytes[alive]).astype(np.int64)
        count = np.bincount(place)
        stacks = self.device.stacks
        made: dict[int, tuple[Frame, ...]] = {NONE: ()}
        found = []
        rows = zip(size.tolist(), count.tolist(), table[first].tolist(), strict=True)
        for amount, blocks, (stack, category, phase, step) in rows:
            if stack not in made:
                made[stack] = python_stack(stacks[stack])
            found.append(AllocationGroup(amount, blocks, CATEGORIES[category], step, PHASES[phase], stack=made[stack]))
        return tuple(found)

    def growth(self, moment: int | None = None, source: SourceLine = no_source) -> tuple[Growth, ...]:
        """Lines of which every step leaves something behind, at a moment; by default at the end."""
        if moment is None:
            at = self.last
        else:
            at = moment
        return growing_lines(self.groups(at), self.step_at(at), source)

    def state(self, moment: int) -> MemoryState:
        """What the device held at a moment, for `explain`; at an ``oom``, with the request that was refused.

        How much the device has is known at an ``oom`` alone; else the capacity is what was reserved.
        """
        request = None
        device_free = 0
        if 0 <= moment < self.count and self.columns.action[moment] == OOM:
            request = self._request(moment)
            device_free = max(0, int(self.columns.device_free[moment]))
        # what is alive is there, also where the segments of a trace that contradicts itself do not hold it
        reserved = max(int(self.reserved[moment + 1]), int(self.allocated[moment + 1]))
        stream = None
        if request is not None:
            stream = int(self.columns.stream[moment])
        return MemoryState(
            device=f"device {self.device.index}",
            capacity=max(reserved + device_free, 1),
            device_free=device_free,
            reserved=reserved,
            groups=self.groups(moment),
            request=request,
            step=self.step_at(moment),
            time_s=self.time_s(moment) or 0.0,
            recorded=Evidence(self.count, None, 0.0 if self.is_recorded else None),
        ).with_segments(self.blocks(moment), stream)

    def asks_for_workspace(self, moment: int) -> bool:
        """Whether an event is about what cuBLAS works in."""
        stack = int(self.columns.stack[moment])
        if stack != NONE and role_of(self.device.stacks[stack])[0] is Role.WORKSPACE:
            return True
        return moment in self._workspaces

    def _request(self, moment: int) -> RefusedRequest:
        columns = self.columns
        size = int(columns.size[moment])
        number = int(columns.stack[moment])
        stack: tuple[Frame, ...] = ()
        if number != NONE:
            stack = python_stack(self.device.stacks[number])
        settings = self.device.settings
        rounded = Rounding(settings).rounded(size)
        return RefusedRequest(
            bytes=size,
            segment_bytes=segment_size(rounded, settings),
            step=self.step_at(moment),
            phase=self.phase_at(moment),
            stack=stack,
            is_workspace=self.asks_for_workspace(moment),
        )


def python_stack(stack: Stack) -> tuple[Frame, ...]:
    """Python's lines of a stack, innermost first."""
    return tuple(Frame(*frame) for frame in filter(is_python, stack))


@dataclass(frozen=True, slots=True)
class SiteChange:
    """A call site at two moments.

    Attributes:
        file, line, function: of it; "" and 0 for what has no stack.
        category: of most of its bytes at the later moment, or at the earlier one where nothing is left.
        first, second: bytes alive at each.
    """

    file: str
    line: int
    function: str
    category: str
    first: int
    second: int

    @property
    def grown(self) -> int:
        """Bytes, the second moment minus the first."""
        return self.second - self.first

    @property
    def name(self) -> str:
        """Its short name: "train.py:41 step"."""
        return site_name(self.file, self.line, self.function)


def differences(first: History, begin: int, second: History, end: int) -> list[SiteChange]:
    """What grew and what shrank, most first, from a moment of one history to one of the same or of another."""
    before = _by_place(first, begin)
    after = _by_place(second, end)
    changes = []
    for place in before.keys() | after.keys():
        # by file and line: the function may have another name in the other file
        was, function, category = before.get(place) or (0, "", "")
        now, function, category = after.get(place) or (0, function, category)
        if now != was:
            changes.append(SiteChange(*place, function, category, was, now))
    return sorted(changes, key=lambda change: (-abs(change.grown), change.file, change.line))


def difference_text(first: History, begin: int, second: History, end: int) -> str:
    """The same in a sentence."""
    changes = differences(first, begin, second, end)
    allocated = int(second.allocated[end + 1])
    grown = allocated - int(first.allocated[begin + 1])
    beginning, ending = moment_text(first, begin), moment_text(second, end)
    if first is not second:
        beginning, ending = f"the first snapshot ({beginning})", f"the second ({ending})"
    head = f"Between {beginning} and {ending}"
    if not changes:
        return f"{head} nothing changed: {format_bytes(allocated)} allocated at both."
    verb = f"stayed at {format_bytes(allocated)}"
    if grown > 0:
        verb = f"grew by {format_bytes(grown)}"
    elif grown < 0:
        verb = f"fell by {format_bytes(-grown)}"
    parts = []
    for change in changes[:MOST_CHANGES]:
        # without a stack both may be unknown
        kind = ""
        if change.category != change.name:
            kind = f" ({change.category})"
        parts.append(f"{format_change(change.grown)} {change.name}{kind}")
    rest = [change.grown for change in changes[MOST_CHANGES:]]
    if rest:
        sites = "other call sites"
        if len(rest) == 1:
            sites = "other call site"
        parts.append(f"{format_change(sum(rest))} {format_count(len(rest))} {sites}")
    return f"{head} allocated {verb}: {', '.join(parts)}."


def _by_place(history: History, moment: int) -> dict[tuple[str, int], tuple[int, str, str]]:
    """Bytes, function and category of most bytes, by file and line."""
    alive = history.alive(moment)
    kinds = len(CATEGORIES)
    key = history.site_of(alive) * kinds + history.lives.category[alive]
    # one sum for all pairs of site and category, then one row for each site
    total = np.bincount(key, weights=history.lives.bytes[alive], minlength=len(history.sites.frames) * kinds)
    total = total.reshape(-1, kinds)
    count = np.bincount(history.site_of(alive), minlength=len(history.sites.frames))
    most = total.argmax(axis=1)
    whole = total.sum(axis=1)
    found = {}
    for site in np.flatnonzero(count).tolist():
        file, line, name = history.sites.frames[site]
        found[file, line] = (int(whole[site]), name, CATEGORIES[int(most[site])])
    return found
