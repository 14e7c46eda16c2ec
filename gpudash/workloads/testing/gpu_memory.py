"""What a test uses of a GPU: its peaks, those of its pieces, and a text on what filled the memory."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from gpudash.memory.explaining.explain import explain
from gpudash.memory.explaining.explanation_text import report
from gpudash.memory.explaining.patches import in_folder
from gpudash.memory.frames import Frame, is_library
from gpudash.system.foreign_files import read_regular, source_line
from gpudash.telemetry.comparing.baseline import Footprint, FootprintChange
from gpudash.telemetry.explanation import short, site_name
from gpudash.units import format_bytes
from gpudash.workloads.live_blocks import is_simulator
from gpudash.workloads.post_mortem import PostMortem, Wanted
from gpudash.workloads.testing.marker import MemoryBudget
from gpudash.workloads.testing.measured_device import MeasuredDevice

if TYPE_CHECKING:
    from gpudash.memory.snapshot.history.history import History
    from gpudash.telemetry.explanation import Explanation, Owner

MOST_SOURCE_BYTES = 4 * 2**20
"""The most bytes read of a source file for a diff."""

FAR_OFF = 0.01
"""Fraction of the peak that a history may miss and still explain what filled it."""


@dataclass(frozen=True)
class LineAtPeak:
    """A line of code, and what it had allocated that exists at the peak.

    Attributes:
        file, line: its position.
        bytes: that it holds.
        name: the part of a `Footprint` it belongs to.
    """

    file: str
    line: int
    bytes: int
    name: str


class MeasuredPiece:
    """A piece of a test.

    Attributes:
        name: of it.
    """

    def __init__(self, name: str, memory: GpuMemory) -> None:
        self.name = name
        self.allocated = self.reserved = 0
        self._memory = memory

    @property
    def peak_bytes(self) -> int:
        """The most that tensors held on the device during it, including those from before."""
        self._memory.note_peaks()
        return self.allocated


class GpuMemory:
    """The memory of one test's device; the value of the fixture ``gpu_memory``.

    Attributes:
        device: the device for models and tensors: ``model.to(gpu_memory.device)``.
        budget_bytes: how much of the card the test may use; ``None`` without a limit.
    """

    def __init__(self, measured: MeasuredDevice, budget: MemoryBudget) -> None:
        self.budget_bytes = budget.bytes
        self._measured = measured
        self._budget = budget
        self._whole = MeasuredPiece("", self)
        self._open = [self._whole]
        self._pieces: dict[str, int] = {}
        measured.begin(budget, self.note_peaks)
        self.device: torch.device = measured.device
        self._allocations = measured.levels().allocations
        self._history: History | None = None

    @property
    def peak_bytes(self) -> int:
        """The most that tensors have held on the device so far, as in ``torch.cuda.max_memory_allocated``."""
        return self._whole.peak_bytes

    @property
    def needed_bytes(self) -> int:
        """The most that was used of the card so far: what the allocator reserved, and a context of 300 MiB."""
        self.note_peaks()
        return self._whole.reserved + self._measured.context_bytes

    @contextmanager
    def measure(self, name: str) -> Iterator[MeasuredPiece]:
        """Measure the peak of a block; blocks may be nested."""
        self.note_peaks()
        self._measured.reset()
        piece = MeasuredPiece(name, self)
        self._open.append(piece)
        try:
            yield piece
        finally:
            self.note_peaks()
            self._open.remove(piece)
            self._pieces[name] = max(self._pieces.get(name, 0), piece.allocated)

    def note_peaks(self) -> None:
        """Record the device's current peaks, which may be reset at any time."""
        levels = self._measured.levels()
        for piece in self._open:
            piece.allocated = max(piece.allocated, levels.allocated)
            piece.reserved = max(piece.reserved, levels.reserved)

    def end(self) -> None:
        """Restore the device."""
        self._measured.end()

    @property
    def used(self) -> bool:
        """Whether anything was allocated on the device."""
        return self._measured.levels().allocations > self._allocations

    def ran_out(self, error: BaseException) -> str:
        """Why memory was insufficient, as lines of a report; "" if ``error`` has another cause."""
        collector = self._measured.collector
        if collector is None or not any(isinstance(one, torch.OutOfMemoryError) for one in _chain(error)):
            return ""
        found = PostMortem(collector, time.monotonic, Wanted()).explanation()
        if found is None:
            return ""
        found = self._with_causes(found)
        lines = [f"The test has {self._budget} of {self._measured.label}.", "", *report(found)]
        patch = found.patch
        folder = str(Path.cwd())
        if patch:
            patch = in_folder(patch, folder, _read)
        else:
            patch = ""
        if patch:
            lines += ["", f"As a diff, for patch -p0 in {folder}:", patch.rstrip()]
        return "\n".join(lines)

    def _with_causes(self, found: Explanation) -> Explanation:
        """``found`` with causes in the program according to the history, and what would have helped."""
        history = self._history_of(self._measured.snapshot())
        if history is None or not len(history.ooms) or found.requested_bytes is None:
            return found
        from gpudash.memory.snapshot.explaining import explain_history
        from gpudash.memory.snapshot.sidecar import with_cause

        studied = explain_history(history, source=source_line, allowed=found.allowed_bytes)
        if studied.requested_bytes != found.requested_bytes:
            return found
        return with_cause(found.with_remedies(studied.remedies, studied.remedies_note), studied.cause)

    def footprint(self, root: Path) -> Footprint:
        """What a baseline stores: the peak by category, by line and by piece.

        Args:
            root: file names are relative to it.
        """
        parts: dict[str, dict[str, int]] = {}
        if self._pieces:
            parts = {"piece": dict(self._pieces)}
        history = self._at_peak()
        if history is not None:
            found = explain(history.state(history.peak), source_line)
            lines: dict[str, int] = {}
            for owner in found.owners:
                name = _line(owner, root)
                lines[name] = lines.get(name, 0) + owner.bytes
            parts = {"category": dict(found.by_category), "line": lines, **parts}
        return Footprint(self.peak_bytes, parts, self._measured.label)

    def lines(self, root: Path) -> list[LineAtPeak]:
        """What lines of code hold at the peak, the largest first; empty if no history was recorded.

        Args:
            root: file names are relative to it.
        """
        history = self._at_peak()
        if history is None:
            return []
        found = []
        for owner in explain(history.state(history.peak), source_line).owners:
            if owner.file is None or not owner.line:
                continue
            path = Path(owner.file)
            if path.is_relative_to(root):
                path = path.relative_to(root)
            found.append(LineAtPeak(str(path), owner.line, owner.bytes, _line(owner, root)))
        return sorted(found, key=lambda held: -held.bytes)

    def grown(self, change: FootprintChange) -> str:
        """The report that a test uses more than before: the verdict, what changed, and what filled the memory."""
        rows = change.rows()
        wide = max((len(row[0]) for row in rows), default=0)
        table = [f"  {name:<{wide}}  {then:>10}  {now:>10}  {by:>10}".rstrip() for name, then, now, by in rows]
        head = []
        if table:
            head = [f"  {'changed':<{wide}}  {'baseline':>10}  {'now':>10}  {'difference':>10}"]
        lines = [change.headline, "", *head, *table]
        history = self._at_peak()
        if history is not None:
            from gpudash.memory.snapshot.explaining import explain_history

            lines += ["", *report(explain_history(history, history.peak, source=source_line))]
        return "\n".join(lines)

    def describe(self) -> str:
        """The peak with the budget, in a line."""
        text = f"peak {format_bytes(self.peak_bytes)} allocated, {format_bytes(self.needed_bytes)}"
        if self.budget_bytes is not None:
            text += f" of {self._budget}" if isinstance(self._budget.card, int) else f" of a {self._budget}"
        pieces = ", ".join(f"{name} {format_bytes(size)}" for name, size in self._pieces.items())
        return f"{text} with the context on {self._measured.label}{f' ({pieces})' if pieces else ''}"

    def _at_peak(self) -> History | None:
        """The history, if it includes the peak: a long one has lost its start."""
        if self._history is None:
            history = self._history_of(self._snapshot())
            if history is not None and history.count:
                missed = self.peak_bytes - int(history.allocated[history.peak + 1])
                if abs(missed) <= FAR_OFF * self.peak_bytes:
                    self._history = history
                else:
                    self._history = None
        return self._history

    def _history_of(self, taken: Any) -> History | None:
        """The history of the test's device in a snapshot."""
        if taken is None:
            return None
        from gpudash.memory.snapshot.history.history import History
        from gpudash.memory.snapshot.reading.reader import snapshot_of

        index = self.device.index or 0
        device = snapshot_of(taken).device(index)
        if device is None:
            return None
        return History(device)

    def _snapshot(self) -> Any:
        if not self._budget.needs_history:
            return None
        return self._measured.snapshot()


def leave_out_machinery(error: BaseException) -> None:
    """End the traceback of an error, and of its causes, where the simulated GPU's own code starts.

    pytest shows the arguments of every call, which in that code include storages with as many elements as the card has
    bytes; and the user's mistake is not there.
    """
    for one in _chain(error):
        last = None
        found = one.__traceback__
        while found is not None:
            if is_simulator(found.tb_frame.f_code.co_filename):
                break
            code = found.tb_frame.f_code
            if not is_library(Frame(code.co_filename, found.tb_lineno, code.co_name)):
                last = found
            found = found.tb_next
        if found is not None and last is not None:
            last.tb_next = None


def _read(file: str) -> bytes:
    return read_regular(file, MOST_SOURCE_BYTES)


def _line(owner: Owner, root: Path) -> str:
    """A line identified by its text, which does not change if others are added above it."""
    if owner.file is None:
        return site_name(owner.file, owner.line, owner.name)
    path = Path(owner.file)
    if path.is_relative_to(root):
        name = str(path.relative_to(root))
    else:
        name = path.name
    if owner.text:
        return f"{name}: {short(owner.text)}"
    return f"{name} {owner.name}"


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error and the errors that caused it."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        yield error
        seen.add(id(error))
        error = error.__cause__ or error.__context__
