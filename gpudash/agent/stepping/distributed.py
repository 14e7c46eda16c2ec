"""A rank of a distributed training from inside: its identity, its steps, and how long it was blocked in them.

DistributedDataParallel's own logger (torch/csrc/distributed/c10d/logger.cpp) measures the time: at the beginning of a
forward pass it computes the times of the previous iteration. On the CPU it reads its clock at five places. On CUDA it
records events and waits for them at the next forward pass, so only some iterations are measured there. It does not
support simulated devices: there the collectives themselves are timed, whoever calls them, since each is complete when
it returns. Without DistributedDataParallel (FSDP2, or the program's own collectives), the waits for collectives are
timed where they block. NCCL's do not block the CPU: they block the compute stream. There, in some steps, a CUDA event
is recorded on that stream before and after each wait; the events are read once the GPU has passed them, without
waiting.
"""

from __future__ import annotations

import _thread
import os
import sys
import time
import weakref

# Importing collections itself would delay every watched Python.
from _collections import deque  # type: ignore[import-not-found]  # of C, and in no stub

from ..guest import note_fault, restoring, undo_nothing
from ..memory import simulating

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..wire import Message
    from .steps import Steps

    Post = Callable[[Message], None]
    Row = list[Any]
    """Number, time in microseconds since 1970, seconds in all, computing and blocked, loss, accuracy, seconds waiting
    for input."""

EVERY = 1
"""On the CPU, every how many iterations one is measured."""

EVERY_ON_CUDA = 20
"""The same on CUDA, where measuring keeps the CPU from running ahead of the GPU by more than an iteration."""

EVERY_BY_ITSELF = 100
"""The same by default (kDDPRuntimeLoggingSampleRate in torch/csrc/distributed/c10d/reducer.hpp)."""

DOES_NOT_BLOCK = ("nccl", "rccl", "xccl", "hccl")
"""Names of backends whose waits return immediately (torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp)."""

EVERY_WITH_EVENTS = 4
"""Every how many steps one is measured by events around its collectives."""

MOST_LATE = 32
"""Most steps waiting for their events, since the CPU runs ahead of the GPU; beyond that, the oldest goes without."""

COLLECTIVES = (
    "allgather",
    "_allgather_base",
    "allgather_into_tensor_coalesced",
    "allreduce",
    "allreduce_coalesced",
    "alltoall",
    "alltoall_base",
    "barrier",
    "broadcast",
    "reduce",
    "reduce_scatter",
    "_reduce_scatter_base",
    "reduce_scatter_tensor_coalesced",
)
"""Methods of ``torch.distributed.ProcessGroup`` that block the stream they are called on, unless asynchronous."""

MOST_WAITING = 4096
"""Most steps between two messages; beyond that, the oldest are dropped."""

MEMORY_PERIOD_S = 0.5
"""Interval of memory readings, unless a peak has risen: a rank that is killed sends no more."""

STALLED_S = 2.0
"""Time since the newest step after which the main thread's position is reported: it may hang."""

PLACE_PERIOD_S = 1.0
"""Interval of the checks on its position."""

MOST_FRAMES = 64
"""Most frames of its stack, the innermost."""

_PEAKS = ("peak_allocated_bytes", "peak_reserved_bytes")
_ALLOCATOR = ("allocated_bytes", "reserved_bytes", *_PEAKS)


class StreamWaits:
    """How long collectives blocked the compute stream, by CUDA events around each. Belongs to the training thread.

    Attributes:
        measuring: whether to record in this step.
    """

    def __init__(self) -> None:
        self.measuring = False
        self._stream: Any = None
        self._began: Any = None
        self._pairs: list[tuple[Any, Any]] = []

    def next_step(self, *, measure: bool) -> list[tuple[Any, Any]] | None:
        """Start the next step; returns the events of the previous one, ``None`` if it was not measured."""
        pairs = None
        if self.measuring:
            pairs = self._pairs
        cuda: Any = sys.modules["torch"].cuda
        self._pairs = []
        self._began = None
        self.measuring = measure
        self._stream = None
        if measure:
            self._stream = cuda.current_stream()
        return pairs

    def begin(self) -> bool:
        """Record the beginning of a wait; false if it does not block the compute stream."""
        cuda: Any = sys.modules["torch"].cuda
        try:
            # A collective inside another counts once; one on another stream does not block the computation; and in a
            # graph capture, the event would become part of the graph.
            if self._began is not None or cuda.current_stream() != self._stream or cuda.is_current_stream_capturing():
                return False
            began = cuda.Event(enable_timing=True)
            began.record()
        except Exception as error:  # the program's own next call will raise it too
            note_fault(error)
            self.measuring = False
            return False
        self._began = began
        return True

    def end(self) -> None:
        """Record the end of a wait."""
        began = self._began
        self._began = None
        try:
            ended = sys.modules["torch"].cuda.Event(enable_timing=True)
            ended.record()
        except Exception as error:
            note_fault(error)
            self.measuring = False
            return
        self._pairs.append((began, ended))


def _held_s(pairs: list[tuple[Any, Any]]) -> float | None:
    """Seconds between the events of each pair; ``None`` if the GPU has not passed the last one, or never will."""
    try:
        # Events of a stream are passed in order, so query only the last one; the query does not wait.
        if pairs and not pairs[-1][1].query():
            return None
        return float(sum(began.elapsed_time(ended) for began, ended in pairs)) / 1e3
    except Exception as error:
        note_fault(error)
        return None


class Distributed:
    """Follows this process's rank, if it is one of several.

    Args:
        post, keep: send a message.
        steps: receives losses.
    """

    def __init__(self, post: Post, keep: Post, steps: Steps) -> None:
        self._post = post
        self._keep = keep
        self._steps = steps
        self._models: list[Any] = []
        self._measured: dict[int, int] = {}
        self._rows: deque[Row] = deque(maxlen=MOST_WAITING)
        self._device: str | None = None
        self._number = 0
        self._open: Row | None = None
        self._open_blocked_s: float | None = None
        self._ended_s: float | None = None
        self._spent_s = 0.0
        self._trainer: int | None = None
        self._strategy = ""
        self._times_waits = self._waits_block = False
        self._waited_s = 0.0
        self._loaded_s: float | None = None
        self._open_input_s: float | None = None
        self._polled_s = 0.0
        self._placed_s = 0.0
        self._stream_waits = StreamWaits()
        self._open_pairs: list[tuple[Any, Any]] | None = None
        self._late: deque[tuple[Row, list[tuple[Any, Any]] | None]] = deque()
        self._peaks: list[Any] = []
        self._place: list[list[Any]] = []

    def follow(self, module: Any) -> Callable[[], None]:
        """Hook the constructor of DistributedDataParallel; ``module`` defines it.

        Returns:
            A function that undoes it.
        """
        made = module.DistributedDataParallel
        # Called at the end of the constructor, when model and logger exist.
        helper = made._ddp_init_helper

        def _ddp_init_helper(model: Any, *args: Any, **kwargs: Any) -> Any:
            found = helper(model, *args, **kwargs)
            try:
                self._made(model)
            except Exception as error:
                note_fault(error)
            return found

        def undo() -> None:
            if made._ddp_init_helper is _ddp_init_helper:
                made._ddp_init_helper = helper
            for reference in self._models:
                model = reference()
                if model is not None and os.environ.get("TORCH_DISTRIBUTED_DEBUG", "").upper() != "DETAIL":
                    model._set_ddp_runtime_logging_sample_rate(EVERY_BY_ITSELF)
            self._models.clear()

        made._ddp_init_helper = _ddp_init_helper
        return undo

    def follow_waits(self, work: Any) -> Callable[[], None]:
        """Time the waits for collectives; ``work`` is ``torch.distributed.Work``.

        Returns:
            A function that undoes it.
        """
        undo = self._timed(work, "wait", self._waited)
        self._times_waits = undo is not undo_nothing
        return undo

    def follow_streams(self, group: Any, stream: Any) -> Callable[[], None]:
        """Measure how long collectives block the compute stream, if their waits do not block the CPU.

        Args:
            group: ``torch.distributed.ProcessGroup``.
            stream: ``torch.cuda.Stream``; FSDP2 orders its computation after collectives with a stream's own methods.

        Returns:
            A function that undoes it.
        """
        undone = [self._measured_on_stream(group, name) for name in COLLECTIVES]
        undone += [self._measured_on_stream(stream, name, of_torch=True) for name in ("wait_event", "wait_stream")]

        def undo() -> None:
            for one in undone:
                one()

        return undo

    def _measured_on_stream(self, owner: Any, name: str, *, of_torch: bool = False) -> Callable[[], None]:
        """Record events around each call of a method; with ``of_torch`` only around calls from torch's distributed
        code."""
        method = None if owner is None else vars(owner).get(name)
        if method is None:
            return undo_nothing

        def measured(of: Any, *args: Any, **kwargs: Any) -> Any:
            waits = self._stream_waits
            # Just two comparisons in steps that are not measured: these methods are called for every layer.
            if not waits.measuring or self._trainer != _thread.get_ident():
                return method(of, *args, **kwargs)
            if of_torch and not sys._getframe(1).f_globals.get("__name__", "").startswith("torch.distributed."):
                return method(of, *args, **kwargs)
            if not waits.begin():
                return method(of, *args, **kwargs)
            try:
                return method(of, *args, **kwargs)
            finally:
                waits.end()

        return restoring(owner, {name: measured})

    def _timed(self, owner: Any, name: str, spent: Callable[[float], None]) -> Callable[[], None]:
        """Measure how long each call of a method takes on the training thread."""
        method = None if owner is None else vars(owner).get(name)
        if method is None:
            return undo_nothing

        def timed(of: Any, *args: Any, **kwargs: Any) -> Any:
            if self._trainer not in (None, _thread.get_ident()):
                return method(of, *args, **kwargs)
            waits = self._stream_waits
            marked = name == "wait" and waits.measuring and waits.begin()
            began_s = time.perf_counter()
            try:
                return method(of, *args, **kwargs)
            finally:
                spent(time.perf_counter() - began_s)
                if marked:
                    waits.end()

        return restoring(owner, {name: timed})

    def _waited(self, seconds: float) -> None:
        self._waited_s += seconds

    def loaded(self, seconds: float) -> None:
        """A `DataLoader` took ``seconds`` for a batch, on this thread."""
        if self._trainer in (None, _thread.get_ident()):
            self._loaded_s = (self._loaded_s or 0.0) + seconds

    def stepped(self, optimizer: Any) -> None:
        """The optimizer has completed a step."""
        if self._device is None and not self._introduced(optimizer):
            return
        now_s = time.perf_counter()
        self._trainer = _thread.get_ident()
        self._place = []
        # The previous step's measurements and loss have arrived by now.
        self._close_row()
        self._number += 1
        self._open_pairs = self._next_pairs()
        seconds = None
        if self._ended_s is not None:
            seconds = now_s - self._ended_s
        self._open = [self._number, time.time_ns() // 1000, seconds]
        self._open_blocked_s = self._in_collectives_s()
        self._open_input_s = self._loaded_s
        # A program with a loader waited 0 s if it took no batch; without a loader, the time is unknown.
        if self._loaded_s is not None:
            self._loaded_s = 0.0
        self._ended_s = now_s

    def _next_pairs(self) -> list[tuple[Any, Any]] | None:
        """The events of the step that has ended; the next one gets some if its waits are not measured otherwise."""
        device = self._device or ""
        if self._waits_block or self._strategy == "ddp" or not device.startswith("cuda"):
            return None
        return self._stream_waits.next_step(measure=self._number % EVERY_WITH_EVENTS == 0)

    def report(self, figures: dict[str, Any], *, last: bool = False) -> bool:
        """Report the new steps, and sometimes the memory; returns whether this is a rank.

        Args:
            figures: figures of the allocators, by device.
            last: whether this is the last call.
        """
        if self._device is None:
            return False
        if last:
            self._close_row()
            self._read_late(at_most=0)
        rows = []
        while self._rows:
            rows.append(self._rows.popleft())
        if rows:
            self._post({"type": "rank_steps", "steps": rows})
        memory = _memory(self._device, figures)
        peaks = list(map(memory.get, _PEAKS))
        now_s = time.monotonic()
        if memory and (last or peaks != self._peaks or now_s - self._polled_s >= MEMORY_PERIOD_S):
            self._polled_s = now_s
            self._peaks = peaks
            self._post({"type": "rank_memory", **memory})
        if not last:
            self._report_place()
        return True

    def _report_place(self) -> None:
        """Report the main thread's position if no step has ended for a while: the last report shows where it hangs."""
        now_s = time.perf_counter()
        if self._ended_s is None or now_s - self._ended_s < STALLED_S or now_s - self._placed_s < PLACE_PERIOD_S:
            return
        self._placed_s = now_s
        place = _place_of_main_thread()
        if place and place != self._place:
            self._place = place
            self._post({"type": "rank_place", "frames": place})

    def forked(self) -> None:
        """In a forked child: it is no rank until it becomes one."""
        self._models.clear()
        self._measured.clear()
        self._rows.clear()
        self._late.clear()
        self._stream_waits = StreamWaits()
        self._open_pairs = None
        self._device = self._open = self._open_blocked_s = self._ended_s = None
        self._trainer = self._loaded_s = self._open_input_s = None
        self._waited_s = 0.0
        self._number = 0
        self._peaks = []

    def _made(self, model: Any) -> None:
        every = EVERY_ON_CUDA
        if model.device_type == "cpu":
            every = EVERY
        # With this setting, torch prints every measurement.
        if os.environ.get("TORCH_DISTRIBUTED_DEBUG", "").upper() != "DETAIL":
            model._set_ddp_runtime_logging_sample_rate(every)
        self._models = [one for one in self._models if one() is not None]
        self._models.append(weakref.ref(model))
        self._introduce("ddp", str(next(model.module.parameters()).device))
        if self._ended_s is None:
            self._ended_s = time.perf_counter()
            self._in_collectives_s()  # ignore the broadcast of the parameters before the first step

    def _introduced(self, optimizer: Any) -> bool:
        """Report the rank's identity if no DistributedDataParallel did; returns whether it is a rank."""
        if _group() is None:
            return False
        weight = optimizer.param_groups[0]["params"][0]
        strategy = ""
        if type(weight).__name__ == "DTensor":
            strategy = "fsdp"
        return self._introduce(strategy, str(weight.device))

    def _introduce(self, strategy: str, device: str) -> bool:
        group = _group()
        if group is None or self._device is not None:
            return group is not None
        self._device = simulating.called_here(device)
        self._strategy = strategy
        self._waits_block = not any(name in group["backend"] for name in DOES_NOT_BLOCK)
        self._keep({"type": "rank", "strategy": strategy, "device": self._device, **group})
        return True

    def _close_row(self) -> None:
        """Report the previous step: its measurements and its loss are only known now."""
        row = self._open
        self._open = None
        loss, accuracy = self._steps.newest_reported()
        # Read even if unused: otherwise the logger's present value would count for the next step.
        logged_s = self._blocked_s()
        blocked_s = self._open_blocked_s
        if blocked_s is None:
            blocked_s = logged_s
        input_s = self._open_input_s
        if row is None or row[2] is None:
            return
        self._late.append(([row[0], row[1], row[2], None, blocked_s, loss, accuracy, input_s], self._open_pairs))
        self._read_late(at_most=MOST_LATE)

    def _read_late(self, *, at_most: int) -> None:
        """Report steps whose events the GPU has passed, in order; if more than ``at_most`` are waiting, even
        without."""
        while self._late:
            row, pairs = self._late[0]
            held_s = None
            if pairs is not None:
                held_s = _held_s(pairs)
            # Rows are reported in order: one whose events are pending delays those after it.
            if pairs is not None and held_s is None and len(self._late) <= at_most:
                return
            self._late.popleft()
            if held_s is not None:
                row[4] = held_s
            if row[4] is None:
                row[3] = None
            else:
                row[3] = max(0.0, row[2] - row[4] - (row[7] or 0.0))
            self._rows.append(row)

    def _blocked_s(self) -> float | None:
        """Time from the end of the gradients' computation to that of their all-reduce, in the newest measured
        iteration.

        ``None`` if nothing has been measured since.
        """
        found: list[float] = []
        for reference in self._models:
            model = reference()
            logger = getattr(model, "logger", None)
            if logger is None:
                continue
            logged = logger._get_ddp_logging_data().ints_map
            iteration = logged.get("iteration", 0)
            communicated = logged.get("backward_comm_time", 0)
            # The values stay until the next measured iteration: count each once.
            if communicated > 0 and self._measured.get(id(reference)) != iteration:
                overlap = logged.get("backward_compute_comm_overlap_time", 0)
                found.append(max(0, communicated - overlap) / 1e9)
            self._measured[id(reference)] = iteration
        if found:
            return sum(found)
        return None

    def _in_collectives_s(self) -> float | None:
        """Time in collectives since the last call; ``None`` if unknown, or if DistributedDataParallel measures it."""
        waited_s = self._waited_s
        self._waited_s = 0.0
        if self._device is None:
            return None
        if not self._device.startswith("sim"):
            known = self._times_waits and self._waits_block and self._strategy != "ddp"
            if known:
                return waited_s
            return None
        spent_s = simulating.in_collectives_s()
        if spent_s is None:
            return None
        since_s = spent_s - self._spent_s
        self._spent_s = spent_s
        return since_s


def _group() -> dict[str, Any] | None:
    """Number of ranks, this rank, and the backend; ``None`` if it is the only one."""
    distributed: Any = sys.modules.get("torch.distributed")
    is_initialized = getattr(distributed, "is_initialized", None)  # torch may be built without distributed
    if is_initialized is None or not is_initialized():
        return None
    world_size = distributed.get_world_size()
    if world_size < 2:
        return None
    return {"world_size": world_size, "rank": distributed.get_rank(), "backend": str(distributed.get_backend())}


def _place_of_main_thread() -> list[list[Any]]:
    """File, line and function of each frame of its stack, outermost first; empty if it has none."""
    threading: Any = sys.modules.get("threading")
    if threading is None:
        return []
    frame = sys._current_frames().get(threading.main_thread().ident)
    found: list[list[Any]] = []
    while frame is not None and len(found) < MOST_FRAMES:
        found.append([frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name])
        frame = frame.f_back
    return found[::-1]


def _memory(device: str, every: dict[str, Any]) -> dict[str, Any]:
    """Memory in bytes: by the allocator of the rank's device, or for a rank on the CPU, of its process.

    Args:
        device: device of the rank.
        every: figures of the allocators by device; without an entry, nothing is known.
    """
    figures = every.get(device)
    if figures is None:
        if device.startswith("cpu"):
            return {"used_bytes": _resident()}
        return {}
    found = {key: figures.get(key) for key in _ALLOCATOR}
    return {"used_bytes": figures.get("used_bytes"), "capacity_bytes": figures.get("capacity_bytes"), **found}


def _resident() -> int | None:
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None
