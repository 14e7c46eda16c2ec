"""Streams and events of the simulated device: work is over when its call returns, and nothing is waited for."""

from __future__ import annotations

import time
from typing import Any

import torch

from gpudash.simulator.storage import DEVICE


class Stream(torch.Stream):
    """``torch.cuda.Stream`` for the simulated device."""

    def __new__(cls, device: Any = None, priority: int = 0, **kwargs: Any) -> Any:
        if kwargs:
            return super().__new__(cls, priority=priority, **kwargs)
        if device is None:
            device = torch.accelerator.current_device_index()
        if isinstance(device, int):
            device = torch.device(DEVICE, device)
        return super().__new__(cls, device=device, priority=priority)

    def query(self) -> bool:
        """Whether all work is done: always."""
        return True

    def synchronize(self) -> None:
        """Nothing: all work is done."""

    def wait_stream(self, stream: Any) -> None:
        """Nothing: the other stream's work is done."""

    def wait_event(self, event: Any) -> None:
        """Nothing: the event has passed."""

    def record_event(self, event: Any = None) -> Any:
        """An event that passes now."""
        event = event or Event()
        event.record(self)
        return event


class Event:
    """``torch.cuda.Event`` for the simulated device, by the host's clock."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None:
        self.enable_timing = enable_timing
        self._at: float | None = None

    def record(self, stream: Any = None) -> None:
        """Let the event pass now."""
        self._at = time.perf_counter()

    def wait(self, stream: Any = None) -> None:
        """Nothing: the event has passed."""

    def query(self) -> bool:
        """Whether the work before it is done: always."""
        return True

    def synchronize(self) -> None:
        """Nothing: the event has passed."""

    def elapsed_time(self, end_event: Event) -> float:
        """Milliseconds of the host's time between two recorded events; not a GPU's.

        Raises:
            ValueError: torch's words, when one was not recorded or measures no time.
        """
        if not (self.enable_timing and end_event.enable_timing):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self._at is None or end_event._at is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        return (end_event._at - self._at) * 1e3


class StreamContext:
    """A context in which ``stream`` is the current one, and its device the current device."""

    def __init__(self, module: Any, stream: Stream | None) -> None:
        self._module = module
        self._stream = stream

    def __enter__(self) -> None:
        self._before = self._module.current_stream(), self._module.current_device()
        if self._stream is not None:
            self._module.set_stream(self._stream)

    def __exit__(self, *error: object) -> None:
        stream, index = self._before
        self._module.set_stream(stream)
        self._module.set_device(index)
