"""This process's memory in the user's own tracker: TensorBoard, Weights & Biases, MLflow, and similar ones.

A tracker is recognised by its methods; none is imported here. Everything runs in the training thread, within the
optimizer's own step: there is no thread to end, and values are logged at the step that they belong to.
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
"""Logged name → key in torch.cuda.memory_stats."""


@runtime_checkable
class ScalarWriter(Protocol):
    """Such as ``torch.utils.tensorboard.SummaryWriter``, and that of tensorboardX."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int | None = None) -> object: ...


@runtime_checkable
class MetricsLogger(Protocol):
    """Such as the module ``mlflow`` with its active run, and the loggers of Lightning."""

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> object: ...


@runtime_checkable
class RunLogger(Protocol):
    """Such as a run of Weights & Biases, or the module ``wandb`` with its active run."""

    def log(self, data: dict[str, Any], step: int | None = None, commit: bool | None = None) -> object: ...


Tracker = ScalarWriter | MetricsLogger | RunLogger


class MemoryLog:
    """Logs this process's memory to a tracker until `stop`, or the end of its block.

    Attributes:
        step: number of optimizer steps since it began.
        active: whether it still logs.
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
        """Log now, even if no optimizer steps, such as in an evaluation loop.

        Args:
            step: the step to log at; the number of steps so far by default.
        """
        if not self.active:
            return
        if step is None:
            step = self.step
        try:
            self._write(dict(_readings()), step)
        except Exception as error:  # whatever a tracker raises, the training continues
            logger.exception("a tracker took no memory; nothing more is written to it")
            self.stop()
            warnings.warn(f"gpudash writes no more memory: {self._name} refused it ({error}).", stacklevel=2)

    def stop(self) -> None:
        """Stop logging; a second call does nothing."""
        self.active = False
        self._hook.remove()

    def _stepped(self, _optimizer: object, _arguments: object, _keywords: object) -> None:
        self.step += 1
        now = time.monotonic()
        if now >= self._next_s:
            self._next_s = now + self._every_s
            self.log()


def log_to(tracker: Tracker, *, every_s: float = 1.0) -> MemoryLog:
    """Log this process's memory to an experiment tracker while it trains.

    It logs when an optimizer steps, in the training thread, at most once every ``every_s`` seconds: for each GPU
    allocated and reserved memory, the allocated peak, and the allocator's retries; and the host memory of the process.
    The names are ``memory/cuda:0/allocated_bytes`` and so on.

    Args:
        tracker: a ``SummaryWriter``, a run of Weights & Biases, the module ``mlflow``, or any object with the same
            methods. In a run of Weights & Biases the values are added to the next row that you log.
        every_s: seconds between two logged rows; 0 logs every step.

    Returns:
        an object that logs until its `stop` or the end of its block; its `log` logs at once.

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
    """The function that logs readings to a tracker."""
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
        # Not committed: a separate row would advance the run's step, which belongs to the user.
        return lambda readings, _step: run.log(dict(readings), commit=False)
    raise TypeError(
        f"{_name(tracker)} has none of add_scalar, log_metrics and log: give a SummaryWriter, a run of Weights & "
        "Biases, or the module mlflow."
    )


def _name(tracker: object) -> str:
    """The name of a module, or of anything else its type's."""
    if isinstance(tracker, ModuleType):
        return tracker.__name__
    return type(tracker).__name__


def _readings() -> Iterator[tuple[str, float]]:
    """Names and values of the current readings."""
    host = resident_bytes()
    if host is not None:
        yield "memory/host/process_bytes", float(host)
    for device, statistics in _devices():
        for name, key in _STATISTICS.items():
            yield f"memory/{device}/{name}", float(statistics.get(key, 0))


def _devices() -> Iterator[tuple[str, Mapping[str, int]]]:
    """The GPUs of this process that hold memory, with torch's statistics; reading them creates no context."""
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
