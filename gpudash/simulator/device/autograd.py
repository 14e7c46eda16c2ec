"""Backward passes on the simulated device: run by the calling thread.

torch's engine gives each device of a registered kind a thread of its own, but counts one device of a kind that Python
registers; with threads ``sim:1`` would have none. Without them every allocation of a backward pass is also seen under
the line that called it.
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
"""Called with true when a backward pass begins, and with false when it ends."""

_passes = threading.local()


def goes_backward() -> bool:
    """Whether the calling thread is in a backward pass, for which CUDA would have a thread of its own."""
    return getattr(_passes, "depth", 0) > 0


_pending_error = ctypes.pythonapi.PyErr_Occurred
_pending_error.restype = ctypes.c_void_p


def device_guard() -> Any:
    """What tells torch's engine of which kind of device the simulated one is.

    The engine also asks while an error that a hook raised is on its way through it, and then a call of Python that
    succeeds ends the process. The error is therefore taken aside here, and raised again when the pass is over.
    """

    class DeviceGuard(torch._C._acc.DeviceGuard):  # older versions of torch lack it
        def type_(self) -> Any:
            try:
                _pending_error()  # raises what is pending
            except BaseException as error:
                _passes.error = error
            return torch._C._autograd.DeviceType.PrivateUse1

    return DeviceGuard()


def install() -> None:
    """Run every backward pass of this process in its own thread."""
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
        except SystemError:  # an error was lost on its way: see `device_guard`
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
