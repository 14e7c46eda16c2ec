"""Memory snapshots of the program: at an out-of-memory, and when the dashboard requests one.

For CUDA's memory, torch must not import anything meanwhile: the program's main thread may be importing.
"""

from __future__ import annotations

import os
import pickle
import sys
import time
from _thread import RLock, get_native_id
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ..guest import note_fault
from ..stepping.batch_shapes import BatchShapes
from ..wire import Message
from . import simulating

PROTOCOL = 4
"""Pickle protocol: the viewer on torch's site does not support newer ones."""

MOST_FILES = 3
"""Most files from out-of-memory errors for each process; the newest replaces the last one."""

SHARE = 0.05
"""Part of the program's time that files of further out-of-memory errors may take."""

Post = Callable[[Message], None]


class Snapshots:
    """Writes snapshots.

    Args:
        folder: folder for those of out-of-memory errors.
        post: sends a message.
        step: returns the number of the current step.
        report_steps: sends the steps completed so far: a snapshot's steps are those known before it.
        shapes: provides the shapes of batches.
    """

    def __init__(
        self,
        folder: str | None,
        post: Post,
        step: Callable[[], int],
        report_steps: Callable[[], Any],
        shapes: BatchShapes,
    ) -> None:
        self._folder = folder
        self._post = post
        self._step = step
        self._report_steps = report_steps
        self._shapes = shapes
        self._written = 0
        self._spent_s = 0.0
        self._began_s = time.monotonic()

    def forked(self) -> None:
        """In a forked child, whose files have other names."""
        self._written, self._spent_s = 0, 0.0

    def write_on_request(self, path: str, reason: str) -> None:
        """Write one at the dashboard's request, and report the result."""
        device, problem = "", None
        try:
            device, made = _now()
            _write(made, path)
        except Exception as error:
            problem = _sentence(error)
        answer = {"type": "snapshot", "path": None if problem else path, "problem": problem}
        self._report_steps()
        self._post({**answer, "device": device, "reason": reason})

    def on_simulated_full(self, card: Any, refused: Any) -> None:
        """A simulated card refused an allocation; its error is about to be raised."""
        facts = {
            "device": f"sim:{card.index}",
            "requested_bytes": refused.requested,
            "capacity_bytes": refused.capacity,
            "free_bytes": refused.device_free,
            "allocated_bytes": refused.allocated,
            "reserved_bytes": refused.reserved,
            "context_bytes": card.context_bytes,
            "others": {str(pid): size for pid, size in card.others.items()},
            "allowed_bytes": refused.allowed,
        }
        self._out_of_memory(facts)

    def on_cuda_full(self, device: int, requested: int, capacity: int, free: int) -> None:
        """The observer that torch calls before it raises its error."""
        facts: Message = {
            "device": f"cuda:{device}",
            "requested_bytes": requested,
            "capacity_bytes": capacity,
            "free_bytes": free,
            "allocated_bytes": None,
            "reserved_bytes": None,
        }
        try:
            stats = sys.modules["torch"]._C._cuda_memoryStats(device)
            facts["allocated_bytes"] = stats["allocated_bytes"]["all"]["current"]
            facts["reserved_bytes"] = stats["reserved_bytes"]["all"]["current"]
        except Exception:
            # The request's figures are useful even without these.
            facts["allocated_bytes"] = None
        facts["capacity_bytes"], facts["allowed_bytes"] = _limits(device, capacity)
        self._out_of_memory(facts)

    def _out_of_memory(self, facts: Message) -> None:
        """Never raises: the program's own error is about to be raised."""
        path, problem = None, None
        try:
            path, problem = self._file(facts["device"])
        except Exception as error:
            problem = _sentence(error)
        shapes: list[Any] = []
        try:
            shapes = self._shapes.at_failure()
        except Exception as error:
            note_fault(error)
        self._report_steps()
        facts.update(snapshot=path, step=self._step(), problem=problem, shapes=shapes)
        self._post({"type": "oom", **facts})

    def _file(self, device: str) -> tuple[str | None, str | None]:
        if not self._folder:
            return None, None
        began = time.monotonic()
        if self._written >= MOST_FILES and self._spent_s > SHARE * (began - self._began_s):
            return (
                None,
                "No file was written for this out-of-memory: there were so many that writing would slow the program.",
            )
        self._written += 1
        path = f"{self._folder}/{os.getpid()}-{min(self._written, MOST_FILES)}.pickle"
        _write(_of(device), path)
        self._spent_s += time.monotonic() - began
        return path, None


def _limits(device: int, given: int) -> tuple[int, int | None]:
    """Bytes of a GPU, and the limit on what the process may reserve; ``None`` without a limit, or if torch does not
    report it.

    Args:
        device: index of the GPU.
        given: value that torch passes to its observers: the limit if there is one, else the GPU's bytes
            (c10/cuda/CUDACachingAllocator.cpp).
    """
    try:
        cuda = sys.modules["torch"].cuda
        fraction = cuda.memory.get_per_process_memory_fraction(device)
        total = int(cuda.get_device_properties(device).total_memory)
    except (AttributeError, RuntimeError):
        return given, None
    if fraction >= 1 or total <= given:
        return (given, None)
    return (total, given)


def _now() -> tuple[str, Any]:
    """Device and content of a snapshot of this process."""
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized() and not simulating.answers_for_cuda():
        return "cuda", _of("cuda")
    if simulating.backend() is not None:
        return "sim", _of("sim")
    raise RuntimeError("This process uses no GPU, so that there is no memory to take a snapshot of.")


def _of(device: str) -> Any:
    if device.startswith("sim"):
        return simulating.backend().module.memory._snapshot()
    return take(sys.modules["torch"])


def _write(made: Any, path: str) -> None:
    """Write a file, whole or not at all."""
    half = f"{path}.{os.getpid()}.part"
    try:
        with open(half, "wb") as file:
            pickle.dump(made, file, protocol=PROTOCOL)
        os.replace(half, path)
    except BaseException:
        if os.path.exists(half):
            os.unlink(half)
        raise


def _sentence(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"The snapshot could not be written: {error.strerror}."
    text = str(error)
    if text.endswith("."):
        return text
    return f"The snapshot could not be taken: {type(error).__name__}: {text}."


_one_at_a_time = RLock()


def take(torch: Any) -> Any:
    """``torch.cuda.memory._snapshot()``, on any thread at any time.

    To symbolise an allocation's lines, torch reads its own attribute ``torch._inductor`` (``appendSymbolized`` in
    torch/csrc/profiler/python/combined_traceback.cpp), which imports that module. This takes seconds; and if the
    program imports ``torch._dynamo`` meanwhile, as the first optimizer does, each import meets an unfinished module of
    the other, and the program's fails. The attribute is therefore hidden from this thread, unless the program has
    imported it: only then is there generated code to symbolise.
    """
    with _one_at_a_time, _importing_nothing(torch):
        return torch.cuda.memory._snapshot()


@contextmanager
def _importing_nothing(torch: Any) -> Iterator[None]:
    """For this thread only, torch has just its present attributes, and creates no others.

    Threads are identified by the system's number, which a child forked meanwhile does not share.
    """
    taker, program = get_native_id(), getattr(torch, "__getattr__", None)

    def __getattr__(name: str) -> Any:  # noqa: N807 - the name by which Python asks a module for what it has not
        if program is None or get_native_id() == taker:
            raise AttributeError(name)
        return program(name)

    torch.__getattr__ = __getattr__
    try:
        yield
    finally:
        if program is None:
            del torch.__getattr__
        else:
            torch.__getattr__ = program
