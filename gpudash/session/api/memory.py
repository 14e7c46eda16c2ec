"""The memory of this process's GPU: measured over a block of code, and explained after an out-of-memory."""

from __future__ import annotations

import importlib.util
import linecache
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpudash.agent.memory import recording, simulating
from gpudash.drawing.page import Block, BulletsBlock, DrawingBlock, HeadingBlock, ParagraphBlock, fragment
from gpudash.drawing.svg import svg
from gpudash.memory.explaining.explanation_text import remedy_sections, report
from gpudash.memory.snapshot.explaining import explain_history
from gpudash.memory.snapshot.history.history import History
from gpudash.memory.snapshot.reading.reader import snapshot_of
from gpudash.memory.snapshot.report_html import allocated, cause, curve, filled
from gpudash.session.api.cells import with_cell_names
from gpudash.system.foreign_files import source_line
from gpudash.telemetry.explanation import Explanation, site_name
from gpudash.units import format_bytes, format_duration

MOST_EVENTS = 400_000
"""How many events are kept for each device, the newest."""

NO_GPU = (
    'There is no GPU in this process: call gpudash.simulate("rtx4090", as_cuda=True) first, and code that says "cuda" '
    "runs on a simulated one."
)

NO_TORCH = "torch is not installed in this Python, so that nothing of it has a GPU: pip install torch."

NOT_FOLLOWED = (
    "Nothing was recorded of this process's memory: call gpudash.watch_this_process(), or %load_ext gpudash in a "
    "notebook, before the code that runs out."
)

NOT_OUT = "No GPU of this process has run out of memory since it is being watched."


class NothingKnownError(RuntimeError):
    """Nothing is known about this process's memory: one sentence, with what to do."""


@dataclass(frozen=True, repr=False)
class ExplainedMemory:
    """Why memory ran out; ``str`` gives the terminal's text, and a notebook displays it as HTML.

    Attributes:
        explanation: the full explanation.
    """

    explanation: Explanation

    def __str__(self) -> str:
        return with_cell_names("\n".join(report(self.explanation)))

    __repr__ = __str__

    def to_dict(self) -> dict[str, Any]:
        """The explanation as dicts, lists, numbers and text."""
        return self.explanation.to_json()

    def to_html(self) -> str:
        """The explanation as an HTML fragment, which a notebook displays."""
        found = self.explanation
        body = cause(found)
        for title, rows in remedy_sections(found):
            body += [HeadingBlock(title), BulletsBlock([" · ".join(row.split("  ")) for row in rows])]
        return with_cell_names(fragment([*body, *filled(found), *allocated(found)]))

    _repr_html_ = to_html


@dataclass(repr=False)
class Measurement:
    """What a block of code took on a GPU; empty until the block has ended. Sizes in bytes.

    Attributes:
        peak_bytes: the most that tensors held at once.
        began_bytes: what tensors held at the start of the block.
        seconds: duration.
        by_category: bytes allocated at the peak, for weights, gradients and so on.
        by_line: the lines that hold most of it.
        times_s, allocated_bytes: the curve, with a point for each allocator event.
        explanation: of the peak.
    """

    peak_bytes: int = 0
    began_bytes: int = 0
    seconds: float = 0.0
    by_category: Mapping[str, int] = field(default_factory=dict)
    by_line: Mapping[str, int] = field(default_factory=dict)
    times_s: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    allocated_bytes: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    explanation: Explanation | None = None
    _drawing: DrawingBlock | None = None

    def __str__(self) -> str:
        rows = [f"  {format_bytes(size):>10}  {name}" for name, size in self.by_line.items()]
        return with_cell_names("\n".join([self.headline, *rows]))

    __repr__ = __str__

    @property
    def headline(self) -> str:
        """Peak and duration, in a sentence."""
        more = format_bytes(self.peak_bytes - self.began_bytes)
        return f"Peak {format_bytes(self.peak_bytes)}, {more} more than before, in {format_duration(self.seconds)}."

    def take(self, history: History, began_us: int) -> None:
        """Fill in from a history what happened since ``began_us``, microseconds since 1970."""
        first = int(np.searchsorted(history.time_us, began_us))
        levels = history.allocated[first:]
        self.began_bytes = int(levels[0])
        self.peak_bytes = int(levels.max())
        self.allocated_bytes = levels[1:]
        self.times_s = (history.time_us[first:] - began_us) / 1e6
        moment = first + int(np.argmax(levels)) - 1
        self.explanation = explain_history(history, moment, source=line_of_source)
        self.by_category = self.explanation.by_category
        self.by_line = {site_name(one.file, one.line, one.name): one.bytes for one in self.explanation.owners}
        scene = curve(history, moment)
        if scene is not None:
            self._drawing = DrawingBlock(svg(scene))

    def to_dict(self) -> dict[str, Any]:
        """Figures, categories, lines and the curve."""
        return {
            "peak_bytes": self.peak_bytes,
            "began_bytes": self.began_bytes,
            "seconds": self.seconds,
            "by_category": dict(self.by_category),
            "by_line": dict(self.by_line),
            "times_s": self.times_s.tolist(),
            "allocated_bytes": self.allocated_bytes.tolist(),
        }

    def to_html(self) -> str:
        """The measurement as an HTML fragment, which a notebook displays."""
        body: list[Block] = [ParagraphBlock(self.headline, "cause")]
        if self._drawing is not None:
            body.append(self._drawing)
        if self.explanation is not None:
            body += [*filled(self.explanation), *allocated(self.explanation)]
        return with_cell_names(fragment(body))

    _repr_html_ = to_html


class _Follower:
    """Records the memory of this process, with the steps of its optimizers."""

    def __init__(self) -> None:
        self.on = False
        self._steps: list[tuple[int, int]] = []
        self._hook: Any = None

    def start(self) -> None:
        """Record from now on, if there is a device."""
        import torch
        from torch.optim import optimizer

        if self.on and recording.is_on(torch):
            return
        recording.start(torch, MOST_EVENTS)
        if self._hook is None:
            self._steps.append((time.time_ns() // 1000, 1))
            self._hook = optimizer.register_optimizer_step_post_hook(self._step_ended)
        self.on = True

    def stop(self) -> None:
        """Stop recording."""
        import torch

        recording.stop(torch)
        if self._hook is not None:
            self._hook.remove()
        self._hook = None
        self._steps.clear()
        self.on = False

    def histories(self) -> Iterator[History]:
        """The history of each device, with the steps of the optimizers."""
        import torch

        snapshot = snapshot_of(recording.take(torch))
        for device in snapshot.devices:
            yield History(device, snapshot.annotations, self._steps)

    def _step_ended(self, _optimizer: Any, _args: Any, _keywords: Any) -> None:
        self._steps.append((time.time_ns() // 1000, self._steps[-1][1] + 1))


_follower = _Follower()


def follow_memory() -> None:
    """Record from now on which line allocates what, for `explain` and `measure`.

    Raises:
        NothingKnownError: when this process has no GPU.
    """
    require_gpu()
    _follower.start()


@contextmanager
def measure(device: int = 0) -> Iterator[Measurement]:
    """Measure the memory that a block of code takes on a GPU of this process.

    Args:
        device: index of the GPU.

    Raises:
        NothingKnownError: when this process has no such GPU.

    >>> import gpudash, torch
    >>> with gpudash.simulate("8GiB"), gpudash.measure(7):
    ...     pass
    Traceback (most recent call last):
    gpudash.session.api.memory.NothingKnownError: There is no GPU 7 in this process; the last one is 0.
    >>> with gpudash.simulate("8GiB") as card, gpudash.measure() as found:
    ...     kept = torch.ones(1024, 1024, device=card.device)
    >>> found.peak_bytes
    4194304
    """
    require_gpu(device)
    followed = _follower.on
    _follower.start()
    found = Measurement()
    began_us = time.time_ns() // 1000
    began_s = time.perf_counter()
    failed = True
    try:
        yield found
        failed = False
    finally:
        found.seconds = time.perf_counter() - began_s
        for history in _follower.histories():
            if history.device.index == device:
                found.take(history, began_us)
        # after a failed block the recording is kept for `explain`
        if not followed and not failed:
            _follower.stop()


def explain(error: BaseException | None = None) -> ExplainedMemory:
    """Explain why a GPU of this process ran out of memory, and what would have fitted.

    Args:
        error: the exception raised; the newest out-of-memory by default.

    Raises:
        NothingKnownError: when ``error`` is not an out-of-memory, or nothing was recorded.
    """
    if error is not None and type(error).__name__ != "OutOfMemoryError":
        raise NothingKnownError(f"{type(error).__name__} is no out-of-memory of a GPU; there is nothing to explain.")
    if not _follower.on:
        raise NothingKnownError(NOT_FOLLOWED)
    found = None
    newest_us = -1
    for history in _follower.histories():
        if len(history.ooms) and int(history.time_us[history.ooms[-1]]) > newest_us:
            newest_us = int(history.time_us[history.ooms[-1]])
            found = explain_history(history, source=line_of_source, allowed=_allowed(history.device.index))
    if found is None:
        raise NothingKnownError(NOT_OUT)
    return ExplainedMemory(found)


def line_of_source(file: str, line: int) -> str:
    """A line of a module, or of a cell, which is in no file; "" if not known."""
    known = source_line(file, line)
    # a kernel puts what it compiles into Python's own line cache: size, time, lines
    cached = linecache.cache.get(file, ())
    if known or len(cached) < 3 or not 0 < line <= len(cached[2]):
        return known
    return cached[2][line - 1].rstrip()


def _allowed(index: int) -> int | None:
    """Bytes that this process may reserve on a CUDA GPU; ``None`` without a limit, and for a simulated GPU, which
    reports its own."""
    import torch

    fraction_of = getattr(torch.cuda, "get_per_process_memory_fraction", None)  # not in older torch
    if simulating.backend() is not None or fraction_of is None:
        return None
    fraction = float(fraction_of(index))
    if fraction >= 1:
        return None
    return int(fraction * torch.cuda.get_device_properties(index).total_memory)


def require_gpu(index: int = 0) -> None:
    """Raise `NothingKnownError` unless this process has a GPU with this index."""
    require_torch()
    import torch

    if simulating.backend() is not None:
        count = torch.get_device_module("sim").device_count()
    elif torch.cuda.is_available():
        count = torch.cuda.device_count()
    else:
        raise NothingKnownError(NO_GPU)
    if not 0 <= index < count:
        raise NothingKnownError(f"There is no GPU {index} in this process; the last one is {count - 1}.")


def require_torch() -> None:
    """Raise `NothingKnownError` if torch is not installed."""
    if sys.modules.get("torch") is None and importlib.util.find_spec("torch") is None:
        raise NothingKnownError(NO_TORCH)
