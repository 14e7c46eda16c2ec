"""The memory of this process in the user's own tracker: TensorBoard, Weights & Biases, MLflow, and what is like them.

A tracker is known by its methods; none is imported here. Everything runs in the thread that trains, within the
optimizer's own step: there is no thread to end, and what is written stands at the step that it belongs to.
"""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType, TracebackType
from typing import Any, Protocol, Self, runtime_checkable

from gpudash.system.processes import resident_bytes

logger = logging.getLogger(__name__)

_STATISTICS = {
    "allocated_bytes": "allocated_bytes.all.current",
    "peak_allocated_bytes": "allocated_bytes.all.peak",
    "reserved_bytes": "reserved_bytes.all.current",
    "allocation_retries": "num_alloc_retries",
}
"""What is written of a GPU → torch's name for it (torch.cuda.memory_stats)."""


@runtime_checkable
class ScalarWriter(Protocol):
    """As ``torch.utils.tensorboard.SummaryWriter``, and that of tensorboardX."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int | None = None) -> object: ...


@runtime_checkable
class MetricsLogger(Protocol):
    """As the module ``mlflow`` with its active run, and the loggers of Lightning."""

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> object: ...


@runtime_checkable
class RunLogger(Protocol):
    """As a run of Weights & Biases, or the module ``wandb`` with its active run."""

    def log(self, data: dict[str, Any], step: int | None = None, commit: bool | None = None) -> object: ...


Tracker = ScalarWriter | MetricsLogger | RunLogger


class MemoryLog:
    """Writes this process's memory into a tracker until `stop`, or the end of its block.

    Attributes:
        step: steps of optimizers since it began.
        active: whether it still writes.
    """

    def __init__(self, tracker: Tracker, every_s: float) -> None:
        from torch.optim.optimizer import register_optimizer_step_post_hook

        self.step = 0
        self.active = True
        self._write = _writing(tracker)
        self._name = _name(tracker)
        self._every_s = every_s
        self._next_s = 0.0
        self._hook = register_optimizer_step_post_hook(self._stepped)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def log(self, step: int | None = None) -> None:
        """Write now, also where no optimizer steps, such as in a loop that evaluates.

        Args:
            step: what it is written at; the number of steps so far unless given.
        """
        if not self.active:
            return
        if step is None:
            step = self.step
        try:
            self._write(dict(_readings()), step)
        except Exception as error:  # whatever a tracker does, the training goes on
            logger.exception("a tracker took no memory; nothing more is written to it")
            self.stop()
            warnings.warn(f"gpudash writes no more memory: {self._name} refused it ({error}).", stacklevel=2)

    def stop(self) -> None:
        """Write no more; a second call does nothing."""
        self.active = False
        self._hook.remove()

    def _stepped(self, _optimizer: object, _arguments: object, _keywords: object) -> None:
        self.step += 1
        now = time.monotonic()
        if now >= self._next_s:
            self._next_s = now + self._every_s
            self.log()


def log_to(tracker: Tracker, *, every_s: float = 1.0) -> MemoryLog:
    """Write this process's memory into a tracker of experiments while it trains.

    It writes as an optimizer steps, in the thread that trains, at most once every ``every_s`` seconds: of each GPU what
    is allocated and reserved, the most that was allocated, and the retries of the allocator; and what the process takes
    of the host. Their names are ``memory/cuda:0/allocated_bytes`` and so on.

    Args:
        tracker: a ``SummaryWriter``, a run of Weights & Biases, the module ``mlflow``, or what has the same methods.
            Into a run of Weights & Biases it goes with the next row that you log.
        every_s: seconds between two writings; 0 writes at every step.

    Returns:
        what writes, until its `stop` or the end of its block; its `log` writes at once.

    Raises:
        TypeError: one sentence, when the tracker has none of these methods.
        ValueError: when ``every_s`` is negative.

    >>> import gpudash, torch
    >>> class Printer:
    ...     def add_scalar(self, tag, scalar_value, global_step=None):
    ...         print(global_step, tag)
    >>> weight = torch.ones(2, requires_grad=True)
    >>> optimizer = torch.optim.SGD([weight], lr=0.1)
    >>> with gpudash.log_to(Printer()):
    ...     weight.sum().backward()
    ...     optimizer.step()
    1 memory/host/process_bytes
    """
    if not every_s >= 0:
        raise ValueError(f"every_s is {every_s}, and there are no fewer than 0 seconds between two writings.")
    return MemoryLog(tracker, every_s)


def _writing(tracker: Tracker) -> Callable[[Mapping[str, float], int], object]:
    """How readings are written into a tracker."""
    if isinstance(tracker, ScalarWriter):
        writer = tracker

        def add(readings: Mapping[str, float], step: int) -> None:
            for name, value in readings.items():
                writer.add_scalar(name, value, global_step=step)

        return add
    if isinstance(tracker, MetricsLogger):
        metrics = tracker
        return lambda readings, step: metrics.log_metrics(dict(readings), step=step)
    if isinstance(tracker, RunLogger):
        run = tracker
        # Not committed: a row of its own would move the run's step on, which is the user's.
        return lambda readings, _step: run.log(dict(readings), commit=False)
    raise TypeError(
        f"{_name(tracker)} has none of add_scalar, log_metrics and log: give a SummaryWriter, a run of Weights & "
        "Biases, or the module mlflow."
    )


def _name(tracker: object) -> str:
    """Of a module its own, of anything else that of its type."""
    if isinstance(tracker, ModuleType):
        return tracker.__name__
    return type(tracker).__name__


def _readings() -> Iterator[tuple[str, float]]:
    """Names and values of what is read now."""
    host = resident_bytes()
    if host is not None:
        yield "memory/host/process_bytes", float(host)
    for device, statistics in _devices():
        for name, key in _STATISTICS.items():
            yield f"memory/{device}/{name}", float(statistics.get(key, 0))


def _devices() -> Iterator[tuple[str, Mapping[str, int]]]:
    """The GPUs of this process that hold something, with torch's statistics; asking makes no context."""
    import torch

    kind = "cuda"
    module: Any = torch.cuda
    if not torch.cuda.is_available():
        kind = "sim"
        module = getattr(torch, "sim", None)
    if module is None or not module.is_initialized():
        return
    for index in range(module.device_count()):
        statistics = module.memory_stats(index)
        if statistics.get("reserved_bytes.all.peak", 0):
            yield f"{kind}:{index}", statistics
