"""The input for finding causes: the history up to the failed request, the program's source, and replays of the
trace."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from gpudash.memory.explaining.call_sites import SourceLine
from gpudash.memory.frames import Frame, is_own
from gpudash.memory.snapshot.command_line import UNKNOWN_COMMAND, ProgramCommand
from gpudash.memory.snapshot.history.batch_shapes import SeenTensor
from gpudash.memory.snapshot.history.history import History
from gpudash.memory.snapshot.history.lives import Lives
from gpudash.memory.snapshot.history.model import ALLOC
from gpudash.memory.snapshot.history.phases import BACKWARD, FORWARD, OPTIMIZER, PHASES
from gpudash.memory.snapshot.replay.trace_program import REFUSED, SPECIAL, TraceProgram, compiled
from gpudash.memory.snapshot.replay.trace_replay import ReplayRun, Rerun
from gpudash.memory.snapshot.source_edits import SourceFile, imported_paths, method_of
from gpudash.telemetry.explanation import Explanation, Remedy

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_Key = TypeVar("_Key", bound=Hashable)

MOST_IMPORTED = 200
"""Most paths that are checked for modules imported by a program's files."""

BY_REPLAY = "replay"
"""Value of `Remedy.verified_by`."""


@dataclass(frozen=True)
class ProgramCause:
    """Why memory ran out, as far as the program is the cause.

    Attributes:
        text: the cause in a sentence.
        remedies: remedies, the most certain first.
        is_of_activations: whether smaller activations help.
        is_waste: whether the memory is not needed at all, so that the cause counts even if free memory is fragmented.
        puts_off: until when the memory has room again with anything else than `remedies`; "" if for good.
    """

    text: str
    remedies: tuple[Remedy, ...] = ()
    is_of_activations: bool = False
    is_waste: bool = False
    puts_off: str = ""


def replayed(text: str, ran: ReplayRun, patch: str = "") -> Remedy:
    """A remedy, with the peak of its replay if the request succeeds there."""
    if not ran.fits:
        return Remedy(text, patch=patch)
    return Remedy(text, predicted_peak_bytes=ran.peak_reserved, verified_by=BY_REPLAY, patch=patch)


@dataclass
class Case:
    """A failed request.

    Attributes:
        history: history of the device.
        found: why it failed, by the content of the memory.
        capacity: bytes available to PyTorch.
        uncapped: the same without a cap on the process; equal if there was none.
        source: reads lines of the program.
        command: command that started the program.
        shapes: shapes of the program's tensors at a few steps and when memory ran out.
    """

    history: History
    found: Explanation
    capacity: int
    source: SourceLine
    uncapped: int
    command: ProgramCommand = UNKNOWN_COMMAND
    shapes: Sequence[SeenTensor] = ()
    _files: dict[str, SourceFile] = field(default_factory=dict)

    @property
    def moment(self) -> int:
        """The event of the failed request."""
        return int(self.history.ooms[-1])

    @property
    def lives(self) -> Lives:
        """All blocks of the trace."""
        return self.history.lives

    @cached_property
    def alive(self) -> Ints:
        """Blocks that were alive when the request failed."""
        found: Ints = self.history.alive(self.moment)
        return found

    @property
    def live_bytes(self) -> int:
        """Bytes of the live blocks."""
        return int(self.lives.bytes[self.alive].sum())

    def bytes_of(self, lives: Ints) -> int:
        """Total bytes of some blocks."""
        return int(self.lives.bytes[lives].sum())

    def rounds(self, lives: Ints) -> list[Ints]:
        """Blocks allocated by a loop's lines, by iteration in order of time; the first line's request starts each.

        A loop runs the same lines again, so the same line requests the same size when the next iteration begins. If a
        line runs several times in an iteration, as in an inner loop over layers, the iteration is split.
        """
        if not len(lives):
            return []
        ordered = lives[np.argsort(self.lives.born[lives])]
        stack = self.lives.stack[ordered]
        requested = self.lives.requested[ordered]
        begins = np.flatnonzero((stack == stack[0]) & (requested == requested[0]))
        # The first of them is the first block of all, so nothing precedes it.
        return np.split(ordered, begins[1:])

    def of_category(self, *names: str) -> Ints:
        """The live blocks of some categories."""
        return self.alive[self._in_category(names)]

    def of_other_category(self, *names: str) -> Ints:
        """The live blocks of all others."""
        return self.alive[~self._in_category(names)]

    def _in_category(self, names: Sequence[str]) -> Bools:
        codes = list(map(self.history.categories.index, names))
        return np.isin(self.lives.category[self.alive], codes)

    def groups(self, lives: Ints, keys: Callable[[int], Iterable[_Key]]) -> dict[_Key, Ints]:
        """Some blocks by their keys, such as the lines that led to them, in the order in which the keys are met."""
        found: dict[_Key, list[int]] = {}
        for life in lives.tolist():
            for key in keys(life):
                found.setdefault(key, []).append(life)
        return {key: np.array(group, np.int64) for key, group in found.items()}

    def largest_groups(self, lives: Ints, keys: Callable[[int], Iterable[_Key]]) -> list[tuple[_Key, Ints]]:
        """The same, those of most bytes first; of equal ones that whose key is met first."""
        return sorted(self.groups(lives, keys).items(), key=lambda group: -self.bytes_of(group[1]))

    def innermost(self, life: int) -> list[Frame]:
        """The program's own line that asked for a block; empty if none is known."""
        return self.frames(life)[:1]

    def file(self, name: str) -> SourceFile:
        """A file of the program."""
        if name not in self._files:
            self._files[name] = SourceFile(name, self.source)
        return self._files[name]

    @cached_property
    def own_frames(self) -> list[list[Frame]]:
        """For each stack, the lines of the program's own code, innermost first."""
        found = []
        for stack in self.history.device.stacks:
            frames = [Frame(*one) for one in stack]
            found.append(list(filter(is_own, frames)))
        return found

    def frames(self, life: int) -> list[Frame]:
        """The program's own lines that led to a block, innermost first."""
        stack = int(self.lives.stack[life])
        if stack >= 0:
            return self.own_frames[stack]
        return []

    @cached_property
    def refused_frames(self) -> list[Frame]:
        """The program's own lines that led to the failed request, innermost first."""
        stack = int(self.history.columns.stack[self.moment])
        if stack >= 0:
            return self.own_frames[stack]
        return []

    @cached_property
    def program_files(self) -> list[SourceFile]:
        """The program's files in the stacks of live blocks and of the failed request."""
        stacks = [*self.lives.stack[self.alive].tolist(), int(self.history.columns.stack[self.moment])]
        # A dict as an ordered set: files of earlier allocations come first.
        names: dict[str, None] = {}
        for stack in dict.fromkeys(stacks):
            if stack >= 0:
                names.update((frame.file, None) for frame in self.own_frames[stack])
        return list(map(self.file, names))

    @cached_property
    def imported_files(self) -> list[SourceFile]:
        """Files next to the program's that these import: they may contain settings, but appear in no stack."""
        known = {file.file for file in self.program_files}
        paths = [path for path in imported_paths(self.program_files)[:MOST_IMPORTED] if path not in known]
        return [self.file(path) for path in paths if any(self.source(path, line) for line in range(1, 6))]

    @property
    def named_files(self) -> list[SourceFile]:
        """Python files named in the command that appear in no stack, such as settings."""
        known = {file.file for file in self.program_files}
        return [self.file(name) for name in self.command.files if name not in known]

    @cached_property
    def trains(self) -> bool:
        """Whether the program computes gradients, as far as its trace and source show."""
        differentiates = (PHASES[BACKWARD], PHASES[OPTIMIZER])
        if any(band.name in differentiates for band in self.history.phases):
            return True
        # A first step may fail before its backward pass: the source still shows that there is one.
        called: set[str] = set()
        for file in self.program_files:
            called.update(map(method_of, file.nodes()))
        return "backward" in called

    @property
    def only_infers(self) -> bool:
        """Whether the program computes no gradients, which only its source can show."""
        return not self.trains and any(any(file.lines) for file in self.program_files)

    def makings(self, lives: Ints) -> list[Ints]:
        """Some blocks grouped by the times of their creation, with forward or backward passes in between."""
        columns = self.history.columns
        ordered = lives[np.argsort(self.lives.born[lives])]
        # Counts other lines' requests in passes: if the count has risen between two blocks, a new group begins.
        is_pass = (columns.action == ALLOC) & np.isin(self.history.phase, (FORWARD, BACKWARD))
        is_pass &= ~np.isin(columns.stack, self.lives.stack[lives])
        passes = np.concatenate(([0], np.cumsum(is_pass)))[np.maximum(self.lives.born[ordered], 0)]
        return np.split(ordered, np.flatnonzero(np.diff(passes)) + 1)

    def with_frames(self, wanted: Sequence[tuple[str, int]]) -> Bools:
        """For each life, whether one of these lines is in its stack."""
        lines = set(wanted)
        of_stack = [any(frame[:2] in lines for frame in frames) for frames in self.own_frames]
        known = np.array([*of_stack, False], bool)
        return np.asarray(known[self.lives.stack])

    def through(self, part: str, name: str = "") -> Bools:
        """For each life, whether its stack has a function ``name`` in a file whose path contains ``part``."""
        of_stack = []
        for stack in self.history.device.stacks:
            frames = [(file.replace("\\", "/"), function) for file, _line, function in stack]
            of_stack.append(any(part in file and name in ("", function) for file, function in frames))
        # One more for blocks without a stack, whose index -1 is the last element.
        known = np.array([*of_stack, False], bool)
        return np.asarray(known[self.lives.stack])

    @cached_property
    def _compiled(self) -> tuple[TraceProgram, Ints]:
        program, lives, order = compiled(self.history.device)
        last = program.operations[program.last_refusal] - SPECIAL
        # The program continued after earlier failures without that memory: request the minimum there.
        specials = []
        for place, (kind, stream, address, size) in enumerate(program.specials):
            if kind == REFUSED and place != last:
                size = 1
            specials.append((kind, stream, address, size))
        program = replace(program, specials=specials)
        block_of = np.full(len(lives), -1, np.int64)
        block_of[order] = np.arange(len(order))
        return program, block_of

    def resized(self, lives: Ints, factor: float, *, request: bool = False) -> ReplayRun:
        """The run with some blocks scaled.

        Args:
            lives: the blocks.
            factor: factor of their sizes; 0 reduces them to the smallest possible request.
            request: whether the failed request is one of them.
        """
        program, block_of = self._compiled
        size = list(program.size)
        for block in block_of[lives].tolist():
            if block >= 0:
                size[block] = max(1, int(size[block] * factor))
        refused_bytes = None
        if request:
            refused_bytes = max(1, int(self.refused_bytes * factor))
        return self._with_sizes(size, refused_bytes)

    def with_sizes(self, sizes: Mapping[int, int], request: int) -> ReplayRun:
        """The run with other sizes of some blocks.

        Args:
            sizes: bytes by life.
            request: bytes of the failed request.
        """
        program, block_of = self._compiled
        size = list(program.size)
        for life, given in sizes.items():
            block = int(block_of[life])
            if block >= 0:
                size[block] = given
        return self._with_sizes(size, request)

    @property
    def refused_bytes(self) -> int:
        """Bytes of the failed request."""
        program = self._compiled[0]
        return program.specials[program.operations[program.last_refusal] - SPECIAL][3]

    def _with_sizes(self, size: list[int], request: int | None) -> ReplayRun:
        program = self._compiled[0]
        specials = list(program.specials)
        if request is not None:
            last = program.operations[program.last_refusal] - SPECIAL
            specials[last] = (*specials[last][:3], request)
        return self._ran(replace(program, size=size, specials=specials))

    def freed_sooner(self, ends: dict[int, int]) -> ReplayRun:
        """The run with some blocks freed earlier.

        Args:
            ends: life → event before which it is freed.
        """
        program, block_of = self._compiled
        events = np.array(list(ends.values()), np.int64)
        places = np.searchsorted(program.events, events).tolist()
        late = {}
        for life, place in zip(ends, places, strict=True):
            block = int(block_of[life])
            if block >= 0 and self.lives.freed[life] > ends[life]:
                late[block] = place
        return self._ran(program.without_late(late))

    def on(self, capacity: int) -> ReplayRun:
        """The run with the given number of bytes available to PyTorch."""
        return Rerun(self._compiled[0], capacity, self.history.device.settings).run()

    def _ran(self, program: TraceProgram) -> ReplayRun:
        return Rerun(program, self.capacity, self.history.device.settings).run()
