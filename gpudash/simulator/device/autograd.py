"""Runs backward passes on the simulated device in the calling thread.

torch's engine gives each registered device a thread of its own, but counts only one device for a backend registered
from Python, so ``sim:1`` would have none. Without device threads, every allocation of a backward pass also has the
line that called it in its stack.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any

import torch

from gpudash.simulator.faults import hands_on

Watcher = Callable[[bool], None]

watchers: list[Watcher] = []
"""Called with true when a backward pass starts, and with false when it ends."""

_passes = threading.local()


def goes_backward() -> bool:
    """Whether the calling thread is in a backward pass, which CUDA would run in a thread of its own."""
    return getattr(_passes, "depth", 0) > 0


_pending_error = ctypes.pythonapi.PyErr_Occurred
_pending_error.restype = ctypes.c_void_p


def device_guard() -> Any:
    """The object that reports the simulated device's type to torch's engine.

    The engine also calls it while an exception from a hook propagates, and then any Python call that succeeds ends the
    process. So the exception is set aside here, and raised again after the pass.
    """

    class DeviceGuard(torch._C._acc.DeviceGuard):  # missing in older versions of torch
        def type_(self) -> Any:
            try:
                _pending_error()  # raises a pending exception
            except BaseException as error:
                _passes.error = error
            return torch._C._autograd.DeviceType.PrivateUse1

    return DeviceGuard()


def install() -> None:
    """Run every backward pass of this process in the thread that calls it."""
    original = torch.autograd.graph._engine_run_backward

    @hands_on
    def run_backward(*args: Any, **kwargs: Any) -> Any:
        for watcher in watchers:
            watcher(True)
        _passes.depth = getattr(_passes, "depth", 0) + 1
        _passes.error = None
        try:
            with torch.autograd.set_multithreading_enabled(False):
                return original(*args, **kwargs)
        except SystemError:  # an exception was lost: see `device_guard`
            if _passes.error is None:
                raise
            raise _passes.error from None
        finally:
            _passes.depth -= 1
            _passes.error = None
            for watcher in watchers:
                watcher(False)

    torch.autograd.graph._engine_run_backward = run_backward
    torch.autograd._engine_run_backward = run_backward  # type: ignore[attr-defined]
