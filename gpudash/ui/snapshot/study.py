"""One device of a snapshot, analysed, and what a selection shows of it. No Qt."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gpudash.memory.explaining.call_sites import SourceLine, no_source, stack_lines
from gpudash.memory.snapshot.explaining import chosen_moment
from gpudash.memory.snapshot.history.groups import ROOT, Paths, tree
from gpudash.memory.snapshot.history.history import difference_text
from gpudash.memory.snapshot.history.lives import reserved_changes
from gpudash.memory.snapshot.history.model import NONE, OOM, DeviceSnapshot, Snapshot
from gpudash.memory.snapshot.history.requests import log_of
from gpudash.memory.snapshot.sidecar import NOTHING, Sidecar
from gpudash.session.recordings.report_folder import sidecar_of
from gpudash.telemetry.explanation import Explanation, Growth, Part, StackLine
from gpudash.ui.explanation.memory_map import Map, map_of
from gpudash.ui.snapshot.drawing.call_tree import Branch, own_code, whole
from gpudash.ui.snapshot.drawing.levels import Levels
from gpudash.ui.snapshot.drawing.timeline import place_text
from gpudash.ui.snapshot.rows import ChangeRow, HeldRow, Holder, Places, change_text, changes, holders
from gpudash.ui.snapshot.selection import Path as CallPath
from gpudash.ui.snapshot.selection import Selection
from gpudash.units import format_bytes, summed_bytes

logger = logging.getLogger(__name__)

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Step:
    """A step of the program: its moments, and its levels in bytes.

    Attributes:
        begin, end: the moments before its first event and after its last.
        peak: the most memory allocated during the step.
        allocated: the memory allocated at its end.
        kept: the increase from its beginning to its end.
    """

    number: int
    begin: int
    end: int
    peak: int
    allocated: int
    kept: int


class Study:
    """The analysis of one device.

    Args:
        snapshot: the snapshot as read.
        number: the index of the device in the snapshot.
        source: reads source lines of the program.
        known: what a sidecar file says about the snapshot.

    Attributes:
        snapshot: the snapshot with the sidecar's warnings.
        home: the moment that is explained: the last out-of-memory, else the peak.
        explanation: the explanation of that moment.
        requests: every allocation of the history, for drawing ribbons.
    """

    def __init__(
        self, snapshot: Snapshot, number: int, source: SourceLine = no_source, known: Sidecar = NOTHING
    ) -> None:
        self.snapshot = known.warned(snapshot)
        self.device = snapshot.devices[number]
        self.source = source
        self.known = known
        self.history = known.history(snapshot, self.device)
        self.history.prepare()
        history = self.history
        self.places = Places(self.device.stacks, history.sites)
        self.own_paths = Paths(list(map(own_code, self.device.stacks)))
        self.home = chosen_moment(history)
        self.explanation: Explanation = known.explained(history, source=source)
        self.growth: tuple[Growth, ...] = history.growth(source=source)
        timed = history.count > 0 and int(history.time_us[0]) != NONE
        seconds = None
        if timed:
            seconds = np.maximum.accumulate(history.time_us - history.time_us[0]) / 1e6
        self.requests = log_of(history)
        self.levels = Levels(
            history.allocated,
            history.reserved,
            seconds,
            history.phases,
            self.room if self.knows_capacity else None,
            history.peak,
            tuple(history.ooms.tolist()),
        )

    @property
    def knows_capacity(self) -> bool:
        """Whether the file records the device's capacity: it does if there was an out-of-memory."""
        return self.explanation.requested_bytes is not None

    @property
    def room(self) -> int:
        """Bytes available to PyTorch: the capacity without other processes' memory and without the context."""
        return self.explanation.capacity_bytes - self.explanation.part_bytes("process", "context", "unattributed")

    @property
    def has_history(self) -> bool:
        """Whether events were recorded."""
        return self.history.is_recorded

    def moment_of(self, selection: Selection) -> int:
        """The moment of a selection."""
        if selection.moment is None:
            return self.home
        return selection.moment

    def label(self, moment: int) -> str:
        """A moment as text."""
        return place_text(self.levels, moment)

    def lines_of(self, path: CallPath) -> tuple[StackLine, ...]:
        """The lines of a call path, innermost first."""
        return stack_lines(frame for frame in reversed(path) if frame[0])

    def alive(self, selection: Selection, moment: int | None = None) -> Ints:
        """Indices of the blocks that are alive at a moment (by default the selection's) and pass its filters."""
        found = self.history.alive(self.moment_of(selection) if moment is None else moment)
        return found[self.kept(selection, found)]

    def came(self, selection: Selection) -> Ints:
        """Indices of the blocks allocated between a selection's two moments and still alive at the later one."""
        assert selection.compared is not None
        found = self.history.grown(selection.compared, self.moment_of(selection))
        return found[self.kept(selection, found)]

    def kept(self, selection: Selection, lives: Ints) -> NDArray[np.bool_]:
        """Which of these blocks pass the selection's filters."""
        columns = self.history.lives
        keep = np.ones(len(lives), dtype=bool)
        if selection.category:
            keep &= columns.category[lives] == self.history.categories.index(selection.category)
        if selection.path:
            keep &= self.places.beneath(selection.path)[columns.stack[lives]]
        if selection.search:
            named = np.array([selection.search.lower() in name for name in self.history.categories])
            mentioned = self.places.mentioning(selection.search)[columns.stack[lives]]
            keep &= mentioned | named[columns.category[lives]]
        return keep

    def holders(self, lives: Ints, group: str) -> list[Holder]:
        """Who allocated these blocks."""
        columns = self.history.lives
        held = HeldRow(
            columns.bytes[lives],
            columns.stack[lives],
            columns.category[lives].astype(np.int64),
            columns.stream[lives],
        )
        return holders(held, group, self.places, self.history.categories)

    def changed(self, selection: Selection, group: str) -> tuple[list[ChangeRow], str]:
        """What grew and shrank between a selection's two moments, as rows and as a sentence."""
        assert selection.compared is not None
        first, second = selection.compared, self.moment_of(selection)
        found = changes(
            self.holders(self.alive(selection, first), group), self.holders(self.alive(selection, second), group)
        )
        if selection.narrowed or group != "call site":
            return found, change_text(found, self.label(first), self.label(second))
        return found, difference_text(self.history, first, self.history, second)

    def tree(self, lives: Ints, *, library: bool) -> tuple[Branch, Ints]:
        """The blocks by call stack, with or without library frames, and the code of each node's largest category."""
        columns = self.history.lives
        if library:
            paths = self.history.paths
        else:
            paths = self.own_paths
        stack, size = columns.stack[lives], columns.bytes[lives]
        root = tree(paths, stack, size)
        leaf = paths.leaf[stack]
        kinds, nodes = len(self.history.categories), len(paths.frames)
        key = columns.category[lives].astype(np.int64) * nodes + leaf
        own = np.bincount(key, size, kinds * nodes).astype(np.int64).reshape(kinds, nodes)
        most = np.argmax(list(map(paths.totals, own)), axis=0)
        kind = columns.category[lives][leaf == ROOT]
        sizes = np.bincount(kind, size[leaf == ROOT], kinds).astype(np.int64).tolist()
        counts = np.bincount(kind, minlength=kinds).tolist()
        without = dict(zip(self.history.categories, zip(sizes, counts, strict=True), strict=True))
        return whole(root, without), most

    def parts(self, selection: Selection) -> tuple[tuple[Part, ...], int]:
        """What the device held at the selected moment, and the total in bytes."""
        moment = self.moment_of(selection)
        if not self.levels.reserved.any():
            return (), 0
        if moment == self.home:
            return self.explanation.parts, self.explanation.capacity_bytes + self.explanation.beyond_bytes
        history = self.history
        parts = [Part("category", name, size) for name, size in history.by_category(history.alive(moment)).items()]
        live = summed_bytes(parts)
        waiting = int(history.lives.bytes[history.pending(moment)].sum())
        reserved = self.levels.at(moment)[1]
        parts.append(Part("pending", "freed, in use by another stream", waiting))
        parts.append(Part("idle", "idle inside PyTorch", max(0, reserved - live - waiting)))
        outside = [part for part in self.explanation.parts if part.kind in ("process", "context", "unattributed")]
        parts += outside
        taken = summed_bytes(parts)
        full = taken
        if self.knows_capacity:
            full = max(taken, self.explanation.capacity_bytes)
        parts.append(Part("free", "free", full - taken))
        return tuple(part for part in parts if part.bytes), full

    def map(self, selection: Selection) -> Map:
        """Segments and blocks at the selected moment."""
        return map_of(self.history.layout(self.moment_of(selection)))

    def stack_lines(self, stack: int) -> tuple[StackLine, ...]:
        """The Python lines of a stack, innermost first."""
        return stack_lines(frame for frame in self.places.stack(stack) if frame[0].endswith(".py"))

    def steps(self) -> list[Step]:
        """The program's steps with what each left allocated; none if no steps were found."""
        history = self.history
        begins = history.steps.tolist()
        found = []
        for place, (number, begin) in enumerate(zip(history.step_numbers.tolist(), begins, strict=True)):
            if place + 1 < len(begins):
                end = begins[place + 1]
            else:
                end = history.count
            levels = history.allocated[begin : end + 1]
            first, last = int(levels[0]), int(levels[-1])
            found.append(Step(number, begin - 1, end - 1, int(levels.max()), last, last - first))
        return found


class Studying(threading.Thread):
    """Makes a `Study` in the background; the owner polls for the result.

    Args:
        path: the snapshot file, whose sidecar may contain more.

    Attributes:
        study: the result, when it is ready.
        problem: a sentence if the analysis failed.
    """

    def __init__(self, snapshot: Snapshot, number: int, source: SourceLine, path: Path) -> None:
        super().__init__(name="gpudash-snapshot-study", daemon=True)
        self.study: Study | None = None
        self.problem = ""
        self._arguments = snapshot, number, source
        self._path = path

    def run(self) -> None:
        try:
            self.study = Study(*self._arguments, sidecar_of(self._path))
        except Exception as error:  # report errors caused by the file's content
            logger.exception("a snapshot cannot be explained")
            self.problem = f"The snapshot cannot be explained ({type(error).__name__}: {error})."


def device_names(snapshot: Snapshot) -> Sequence[str]:
    """The names of a snapshot's devices, each with the most memory it had reserved."""
    return list(map(_device_name, snapshot.devices))


def _device_name(device: DeviceSnapshot) -> str:
    columns = device.trace.columns
    changes = np.cumsum(np.append(0, reserved_changes(columns)))
    reserved = device.reserved_bytes - int(changes[-1]) + int(changes.max())
    ran_out = ""
    if (columns.action == OOM).any():
        ran_out = ", out of memory"
    return f"GPU {device.index}: {format_bytes(reserved)} reserved{ran_out}"
