"""Backward passes on the simulated device: run by the calling thread.

torch's engine gives each device of a registered kind a thread of its own, but counts one device of a kind that Python
registers; with threads ``sim:1`` would have none. Without them every allocation of a backward pass is also seen under
the line that called it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

Watcher = Callable[[bool], None]

watchers: list[Watcher] = []
"""Called with true when a backward pass begins, and with false when it ends."""

_passes = threading.local()


def goes_backward() -> bool:
    """Whether the calling thread is in a backward pass, for which CUDA would have a thread of its own."""
    return getattr(_passes, "depth", 0) > 0


def install() -> None:
    """Run every backward pass of this process in its own thread."""
    original = torch.autograd.graph._engine_run_backward

    def run_backward(*args: Any, **kwargs: Any) -> Any:
        for told in watchers:
            told(True)
        _passes.depth = getattr(_passes, "depth", 0) + 1
        try:
            with torch.autograd.set_multithreading_enabled(False):
                return original(*args, **kwargs)
        finally:
            _passes.depth -= 1
            for told in watchers:
                told(False)

    torch.autograd.graph._engine_run_backward = run_backward
    torch.autograd._engine_run_backward = run_backward  # type: ignore[attr-defined]
