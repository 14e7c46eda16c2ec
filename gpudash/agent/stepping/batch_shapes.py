"""Shapes of the tensors in the variables of the functions that make the program's steps.

They are read after a few steps and when memory has run out, so that a step costs no more than a comparison.
"""

from __future__ import annotations

import sys
import time
from _thread import get_ident
from itertools import islice

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType, FrameType
    from typing import Any

    Row = list[Any]
    """File, function, variable, shape, bytes of the elements, bytes of the storage."""

MOST_FRAMES = 40
"""Most functions whose variables are read, from the one that made the step outwards."""

MOST_VARIABLES = 500
"""Most variables that are read of one."""

MOST_INNER = 16
"""Most elements that are read of a list, a tuple or a dictionary."""

MOST_TENSORS = 32
"""Most tensors of a reading, those of the innermost functions."""

MOST_READINGS = 6
"""Most readings that are kept: the first ones, and the newest."""

LONGEST_KEY = 40

OPTIMIZED = 0x1
"""Flag of a function's code (``inspect.CO_OPTIMIZED``), whose ``f_locals`` is not what holds its variables."""


class BatchShapes:
    """Reads them.

    Args:
        torch: the torch module.
    """

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._steps = 0
        self._next = 1
        self._thread = 0
        self._codes: set[CodeType] = set()
        self._readings: list[tuple[int, list[Row]]] = []

    def step_ended(self) -> None:
        """A step has ended on this thread, whose variables still hold its batch."""
        self._steps += 1
        if self._steps < self._next:
            return
        self._next *= 2
        self._thread = get_ident()
        own = __file__.rpartition("/stepping/")[0]
        machinery = ("<", *(f"{file.rpartition('/')[0]}/" for file in (self._torch.__file__, own)))
        outwards = _outwards(sys._getframe(1))
        frames = [frame for frame in outwards if not frame.f_code.co_filename.startswith(machinery)]
        self._codes = {frame.f_code for frame in frames}
        if len(self._readings) >= MOST_READINGS:
            self._readings.pop()
        self._readings.append(self._read(frames))

    def at_failure(self) -> list[Row]:
        """All readings with a new one of the same functions, each row preceded by its time in microseconds."""
        if not self._codes:
            return []
        # A backward pass may run on a thread of its own.
        innermost = sys._current_frames().get(self._thread)
        frames = [frame for frame in _outwards(innermost) if frame.f_code in self._codes]
        now = self._read(frames)
        return [[time_us, *row] for time_us, rows in (*self._readings, now) for row in rows]

    def _read(self, frames: list[FrameType]) -> tuple[int, list[Row]]:
        rows: list[Row] = []
        # No mode or class of the program takes part in the reading.
        with self._torch._C.DisableTorchFunction():
            for frame in frames[:MOST_FRAMES]:
                code = frame.f_code
                for name, tensor in self._tensors(frame):
                    if len(rows) < MOST_TENSORS and tensor.layout == self._torch.strided:
                        size = tensor.numel() * tensor.element_size()
                        stored = tensor.untyped_storage().nbytes()
                        rows.append([code.co_filename, code.co_name, name, list(tensor.shape), size, stored])
        return time.time_ns() // 1000, rows

    def _tensors(self, frame: FrameType) -> list[tuple[str, Any]]:
        variables: Any = frame.f_locals
        found = []
        for name, value in list(variables.items())[:MOST_VARIABLES]:
            found += [(f"{name}{key}", inner) for key, inner in _parts(value) if self._is_data(inner)]
        # Before Python 3.13 the frame keeps this copy of its variables, which would hold what they let go of.
        if frame.f_code.co_flags & OPTIMIZED and isinstance(variables, dict) and sys.getrefcount(variables) <= 3:
            variables.clear()
        return found

    def _is_data(self, value: Any) -> bool:
        # Not its ``__class__``, which may be code of the program; nor a weight, or another class of tensors.
        return type(value) is self._torch.Tensor


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _parts(value: Any) -> list[tuple[str, Any]]:
    """A value and, if it is a plain collection, its first elements, each as it is written behind the variable."""
    if type(value) in (list, tuple):
        return [(f"[{place}]", inner) for place, inner in enumerate(value[:MOST_INNER])]
    if issubclass(type(value), dict):
        items = islice(dict.items(value), MOST_INNER)
        return [(f"[{key!r}]", inner) for key, inner in items if type(key) is str and len(key) <= LONGEST_KEY]
    return [("", value)]
