"""The history of a device's memory: live blocks at any moment of a trace, their purpose, and the moment in words.

Events are numbered from 0; the moment ``m`` is after event ``m``, and the moment -1 before the first event. `state`
returns a moment as input for `gpudash.memory.explaining.explain`.
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
from gpudash.memory.explaining.explanation_text import workspace_text
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
"""Most call sites that the sentence about a difference names."""


def moment_text(history: History, moment: int) -> str:
    """A moment in words: the time since the first event, else the number of its event."""
    if moment < 0:
        return "the begin of the recording"
    seconds = history.time_s(moment)
    if seconds is None:
        return f"event {format_count(moment)}"
    return format_duration(seconds)


class History:
    """The history of a device's memory by a trace, in columns.

    Args:
        device: device of a snapshot.
        annotations: annotations of the snapshot.
        known_steps: start times of steps, in microseconds since 1970, and their numbers, if known from elsewhere.

    Attributes:
        count: number of events.
        allocated, reserved: bytes after each event, preceded by the value before the first event.
        time_us: time of each event in microseconds since 1970; -1 in files without times.
        peak: first moment of the largest allocated size.
        ooms: events of failed requests.
        lives: lives of the blocks.
        categories: names of the categories by their codes.
        phases: intervals of a single phase.
        phase: phase of each event, an index into `roles.PHASES`.
        steps: first event of each step; empty if no steps were found. `step_numbers` are their numbers.
        unrecorded_slack: bytes by which blocks from before the trace were larger than their rounded requests, as only
            later placements show; `allocated` excludes them.
        disagreeing: number of events and blocks for which the trace and the segments are inconsistent.
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
        # Only the final value is certain: subtract the sum of all changes to get the initial one.
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
        # An event has at most one block, so no index occurs twice and plain addition is correct.
        changes[lives.born[seen] + 1] += lives.bytes[seen]
        # A separate statement: a block may end with the event that allocates its address again.
        changes[lives.freed[ended] + 1] -= lives.bytes[ended]
        changes[0] = int(lives.bytes[~seen & (lives.freed >= 0)].sum())
        return np.cumsum(changes)

    @property
    def is_recorded(self) -> bool:
        """Whether the trace contains allocations: a snapshot without a history may have an event all the same."""
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
        """Number of the step at a moment; 0 before the first."""
        if moment < self.last:
            return int(self.step_of(np.array([moment + 1]))[0])
        return self._last_step()

    def _last_step(self) -> int:
        if len(self.steps):
            return int(self.step_numbers[-1])
        return 0

    def step_of(self, events: Ints) -> Ints:
        """Number of the step of each event; 0 before the first, and for event -1."""
        if not len(self.steps):
            return np.zeros(len(events), np.int64)
        place = np.searchsorted(self.steps, events, side="right") - 1
        return np.where(place >= 0, self.step_numbers[np.maximum(place, 0)], 0)

    def phase_at(self, moment: int) -> str:
        """Name of the phase at a moment."""
        if 0 <= moment < self.count:
            return PHASES[int(self.phase[moment])]
        return ""

    def alive(self, moment: int) -> Ints:
        """Indices of lives that are allocated at a moment."""
        return self._placed.alive(moment)

    def pending(self, moment: int) -> Ints:
        """Indices of lives that are freed at a moment, but still used by another stream."""
        return self._placed.pending(moment)

    def grown(self, begin: int, end: int) -> Ints:
        """Indices of lives allocated after ``begin`` and alive at ``end``."""
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
        """Compute what the first query would otherwise have to."""
        self.paths  # noqa: B018 - kept from now on
        self.sites  # noqa: B018 - likewise

    def by_stack(self, lives: Ints) -> list[tuple[int, int, int]]:
        """Stack (-1 for none), bytes and number of its blocks, the largest first."""
        stacks, place = np.unique(self.lives.stack[lives], return_inverse=True)
        size = np.bincount(place, weights=self.lives.bytes[lives], minlength=len(stacks)).astype(np.int64)
        # By size; of equal ones, no stack comes last.
        order = np.lexsort((stacks < 0, -size))
        count = np.bincount(place, minlength=len(stacks))
        return list(zip(stacks[order].tolist(), size[order].tolist(), count[order].tolist(), strict=True))

    def by_category(self, lives: Ints) -> dict[str, int]:
        """Bytes of blocks by category, in the order of the bar."""
        category = self.lives.category[lives]
        size = np.bincount(category, weights=self.lives.bytes[lives], minlength=len(CATEGORIES)).astype(np.int64)
        return {CATEGORIES[code]: int(size[code]) for code in np.unique(category).tolist()}

    def site_of(self, lives: Ints) -> Ints:
        """Call site of each life, as an index into `sites`."""
        return self.sites.of_stack[self.lives.stack[lives]]

    def layout(self, moment: int) -> Layout:
        """Segments and blocks at a moment, in columns."""
        return self._placed.layout(moment)

    def blocks(self, moment: int) -> list[Segment]:
        """The memory map at a moment; a block's `owner` is the index of its stack or ``None``."""
        return self.layout(moment).segments()

    def groups(self, moment: int) -> tuple[AllocationGroup, ...]:
        """Live blocks at a moment, grouped by stack, category and step."""
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
        # A row's four numbers as one, in mixed radix: `unique` is much faster for numbers than for rows.
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
        """Lines that leave memory behind in every step, at a moment; by default at the end."""
        if moment is None:
            at = self.last
        else:
            at = moment
        return growing_lines(self.groups(at), self.step_at(at), source)

    def state(self, moment: int) -> MemoryState:
        """The content of the device's memory at a moment, for `explain`; at an ``oom``, with the failed request.

        The capacity is only known at an ``oom``; otherwise it is the reserved memory.
        """
        request = None
        device_free = 0
        if 0 <= moment < self.count and self.columns.action[moment] == OOM:
            request = self._request(moment)
            device_free = max(0, int(self.columns.device_free[moment]))
        # Live blocks count even if the segments of an inconsistent trace do not contain them.
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
        """Whether an event is for a cuBLAS workspace."""
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
    """The Python frames of a stack, innermost first."""
    return tuple(Frame(*frame) for frame in filter(is_python, stack))


@dataclass(frozen=True, slots=True)
class SiteChange:
    """A call site at two moments.

    Attributes:
        file, line, function: position; "" and 0 for blocks without a stack.
        category: category of most of its bytes at the later moment, or at the earlier one if it has none left.
        first, second: live bytes at each moment.
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
        """Short name: "train.py:41 step"."""
        name = site_name(self.file, self.line, self.function)
        if self.category == WORKSPACE and self.file:
            return workspace_text(name)
        return name


def differences(first: History, begin: int, second: History, end: int) -> list[SiteChange]:
    """Growth and shrinkage, largest first, between moments of one history or of two."""
    before = _by_place(first, begin)
    after = _by_place(second, end)
    changes = []
    for place in before.keys() | after.keys():
        # By file and line: the function may have another name in the other file.
        was, function, category = before.get(place) or (0, "", "")
        now, function, category = after.get(place) or (0, function, category)
        if now != was:
            file, line, _ = place
            changes.append(SiteChange(file, line, function, category, was, now))
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
        # Without a stack, both may be unknown.
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


def _by_place(history: History, moment: int) -> dict[tuple[str, int, bool], tuple[int, str, str]]:
    """Bytes, function and main category, by file, line and whether it is a workspace, which belongs to no line."""
    alive = history.alive(moment)
    kinds = len(CATEGORIES)
    key = history.site_of(alive) * kinds + history.lives.category[alive]
    # One sum for each pair of site and category, then one row for each site.
    total = np.bincount(key, weights=history.lives.bytes[alive], minlength=len(history.sites.frames) * kinds)
    total = total.reshape(-1, kinds)
    count = np.bincount(history.site_of(alive), minlength=len(history.sites.frames))
    workspaces = total[:, CATEGORIES.index(WORKSPACE)].copy()
    total[:, CATEGORIES.index(WORKSPACE)] = 0
    most = total.argmax(axis=1)
    whole = total.sum(axis=1)
    found = {}
    for site in np.flatnonzero(count).tolist():
        file, line, name = history.sites.frames[site]
        if workspaces[site]:
            found[file, line, True] = (int(workspaces[site]), name, WORKSPACE)
        if whole[site]:
            found[file, line, False] = (int(whole[site]), name, CATEGORIES[int(most[site])])
    return found
