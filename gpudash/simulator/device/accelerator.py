"""``torch.accelerator`` on the simulated device.

Its functions ask torch's C++ side, where a device registered from Python has no memory figures, no current device and
nothing to wait for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gpudash.simulator.device.device_module import DeviceModule


def install(module: DeviceModule) -> None:
    """Answer for the simulated device what ``torch.accelerator`` asks."""

    def exchange(index: int) -> int:
        before = module.current_device()
        if index >= 0:
            module.set_device(index)
        return before

    def set_stream(stream: Any) -> None:
        module.set_device(stream.device)

    answers: dict[str, Callable[..., Any]] = {
        "emptyCache": module.empty_cache,
        "emptyHostCache": lambda: None,
        "exchangeDevice": exchange,
        "getDeviceCapability": lambda _index: {"supported_dtypes": module.supported_dtypes()},
        "getDeviceIndex": module.current_device,
        "getDeviceStats": module.memory_stats,
        "getMemoryInfo": module.mem_get_info,
        "getStream": module.current_stream,
        "isAllocatorInitialized": lambda: True,
        "maybeExchangeDevice": exchange,
        "resetAccumulatedStats": module.reset_accumulated_memory_stats,
        "resetPeakStats": module.reset_peak_memory_stats,
        "setDeviceIndex": exchange,
        "setStream": set_stream,
        "synchronizeDevice": module.synchronize,
    }
    for name, answer in answers.items():
        if hasattr(torch._C, f"_accelerator_{name}"):
            setattr(torch._C, f"_accelerator_{name}", answer)
