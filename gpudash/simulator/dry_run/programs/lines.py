"""The lines of a program that hold memory at its peak."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

from gpudash.memory.allocator.trace import Trace
from gpudash.memory.frames import Frame, is_installed, is_own
from gpudash.simulator.device.tracking import Tracker
from gpudash.simulator.dry_run.dry_run import RequestRecorder
from gpudash.simulator.dry_run.refusals import shown_line

MOST_LINES = 12
"""The most lines listed of those that keep memory from every step."""

MOST_AT_PEAK = 400
"""The most lines listed of those that hold memory at the peak: large models have more than a hundred."""

BLOCK_BYTES = 512
"""The caching allocator rounds requests to multiples of this (c10/cuda/CUDACachingAllocator.h, kMinBlockSize)."""


class LineRecorder(RequestRecorder):
    """Also records which lines allocate.

    Args:
        backend, tracker, index: as for `RequestRecorder`.
        first_used: called at the first allocation.

    Attributes:
        allocated_bytes: currently.
        peak_bytes: the peak so far.
    """

    def __init__(self, backend: Any, tracker: Tracker, index: int, first_used: Callable[[], None]) -> None:
        super().__init__(backend, tracker, index)
        self._first_used = first_used
        self._lines: list[str] = []
        self._steps: list[int] = []
        self._step_ended = 0
        self.allocated_bytes = 0
        self.peak_bytes = 0
        self._newest_peak = 0

    def _happened(self, action: str, address: int, size: int, stream: int) -> None:
        events = len(self.trace.events)
        super()._happened(action, address, size, stream)
        if len(self.trace.events) == events:
            return
        if not events:
            self._first_used()
        block = self.trace.events[-1]
        taken = _rounded(self.trace.sizes[abs(block) - 1])
        self.allocated_bytes += taken if block > 0 else -taken
        self.peak_bytes = max(self.peak_bytes, self.allocated_bytes)
        self._newest_peak = max(self._newest_peak, self.allocated_bytes)
        if block > 0:
            self._lines.append(_line())
            self._steps.append(self._tracker.step)

    @property
    def fraction(self) -> float:
        """The fraction of the card that the program lets its allocator reserve."""
        return float(self._card.fraction)

    def taken_peak(self) -> int:
        """The peak in bytes since the last call."""
        found, self._newest_peak = self._newest_peak, self.allocated_bytes
        return found

    def end_step(self) -> None:
        """Record the end of a step of the program's optimizer."""
        self._step_ended = len(self.trace.events)

    def kept_by_step(self) -> list[tuple[str, dict[int, int]]]:
        """Lines of code, each with the bytes from each step that still exist at the end of the last; largest first."""
        found: dict[str, Counter[int]] = {}
        for block in _held(self.trace, self._step_ended):
            size = _rounded(self.trace.sizes[block - 1])
            found.setdefault(self._lines[block - 1], Counter())[self._steps[block - 1]] += size
        ordered = sorted(found.items(), key=lambda item: -item[1].total())
        return [(line, dict(sizes)) for line, sizes in ordered[:MOST_LINES]]

    def lines_at_peak(self) -> list[tuple[str, int]]:
        """Lines of code, each with the bytes it had allocated that existed at the peak; the largest first."""
        return lines_at_peak(self.trace, self._lines)


def lines_at_peak(trace: Trace, lines: list[str]) -> list[tuple[str, int]]:
    """The lines that hold memory at the peak of a trace, with their bytes.

    Args:
        trace: the trace.
        lines: of each block.
    """
    now = 0
    most = 0
    place = 0
    for number, block in enumerate(trace.events):
        size = _rounded(trace.sizes[abs(block) - 1])
        now += size if block > 0 else -size
        if now > most:
            most = now
            place = number + 1
    found: Counter[str] = Counter()
    for block in _held(trace, place):
        found[lines[block - 1]] += _rounded(trace.sizes[block - 1])
    return found.most_common(MOST_AT_PEAK)


def _held(trace: Trace, place: int) -> set[int]:
    """The blocks that exist after this many events of a trace."""
    held: set[int] = set()
    for block in trace.events[:place]:
        if block > 0:
            held.add(block)
        else:
            held.discard(-block)
    return held


def _rounded(size: int) -> int:
    return -(-size // BLOCK_BYTES) * BLOCK_BYTES


_kinds: dict[str, int] = {}
_OWN = 2
_LIBRARYS = 1
_MACHINERY = 0


def _line() -> str:
    """The innermost running line of the program, otherwise of a library; "" if there is none."""
    found = _line_above(sys._getframe(2))
    if found:
        return found
    # torch's engine runs threads without any line of Python, while the main thread waits for them
    return _line_above(sys._current_frames().get(threading.main_thread().ident or 0))


def _kind_of(frame: Frame) -> int:
    if is_own(frame):
        return _OWN
    if is_installed(frame):
        return _LIBRARYS
    return _MACHINERY


def _line_above(frame: Any) -> str:
    librarys = ""
    while frame is not None:
        file = frame.f_code.co_filename
        kind = _kinds.get(file)
        if kind is None:
            place = Frame(file, 1, "")
            kind = _kinds[file] = _kind_of(place)
        if kind == _OWN:
            own = shown_line((file, frame.f_lineno))
            if librarys:
                return f"{own}, in {librarys}"
            return own
        if kind == _LIBRARYS and not librarys and "/torch/" not in file:
            librarys = shown_line((file, frame.f_lineno))
        frame = frame.f_back
    return librarys
