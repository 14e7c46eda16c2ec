"""The table of epochs: means, time and one observation each."""

from __future__ import annotations

import math
import time
from typing import Any, Protocol

from gpudash.devices.names import kind_of, shown_name
from gpudash.telemetry.records import EpochFinished
from gpudash.units import format_duration

COLUMNS = ("epoch", "device", "loss", "accuracy", "seconds", "observation")
"""The columns of the table."""

NOTICEABLE = 0.2
"""Relative change of an epoch's time that is worth an observation."""

SETTLED = 0.01
"""Relative change below which the loss counts as unchanged."""


class Reporter(Protocol):
    """Receives the end of an epoch. `Context` is one."""

    def epoch(
        self, epoch: int, *, loss: float, accuracy: float, seconds: float, device: str, observation: str
    ) -> EpochFinished:
        """Handle the end of an epoch: means of loss (nats) and accuracy over its steps, of finite losses only."""
        ...


class Epochs:
    """Collects the epochs of a run and reports each when it ends."""

    def __init__(self, context: Reporter) -> None:
        self._context = context
        self._done: list[EpochFinished] = []

    def begin(self, epoch: int, device: str) -> None:
        """Start an epoch."""
        self._epoch, self._device = epoch, device
        self._losses: list[float] = []
        self._accuracies: list[float] = []
        self._began_s = time.perf_counter()

    def add(self, loss: float, accuracy: float) -> None:
        """Add a step."""
        self._losses.append(loss)
        self._accuracies.append(accuracy)

    def end(self) -> list[dict[str, Any]]:
        """End the epoch, report it, and return all epochs so far."""
        seconds = time.perf_counter() - self._began_s
        finite = list(filter(math.isfinite, self._losses))
        if finite:
            loss = math.fsum(finite) / len(finite)
        else:
            loss = math.nan
        accuracy = math.fsum(self._accuracies) / max(1, len(self._accuracies))
        lost = len(self._losses) - len(finite)
        text = observation(self._done[-1] if self._done else None, self._device, loss, seconds, lost)
        ended = self._context.epoch(
            self._epoch, device=self._device, loss=loss, accuracy=accuracy, seconds=seconds, observation=text
        )
        self._done.append(ended)
        return [{name: getattr(epoch, name) for name in COLUMNS} for epoch in self._done]


def observation(before: EpochFinished | None, device: str, loss: float, seconds: float, lost: int) -> str:
    """An observation on an epoch: the most important difference from the one before."""
    if lost:
        return f"{lost} steps had no finite loss"
    if before is None:
        return "first epoch, with the warm-up"
    simulated = "sim" in (kind_of(device), kind_of(before.device))
    if before.device != device and simulated:
        return f"moved from {shown_name(before.device)} to {shown_name(device)}, where times are the CPU's"
    if before.device != device:
        ratio = before.seconds / seconds
        if ratio >= 1:
            pace = f"{ratio:.1f}× as fast"
        else:
            pace = f"{1 / ratio:.1f}× slower"
        return f"moved from {before.device} to {device}: {pace}"
    change = 0.0
    if before.loss:
        change = (loss - before.loss) / before.loss
    if abs(change) < SETTLED or math.isnan(change):
        text = "loss stayed where it was"
    else:
        text = f"loss {'fell' if change < 0 else 'rose'} by {abs(change) * 100:.0f} %"
    if not simulated and abs(seconds - before.seconds) > NOTICEABLE * before.seconds:
        text += f"; took {format_duration(seconds)} instead of {format_duration(before.seconds)}"
    return text
