"""What NVML says of the device that torch means."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

import torch

from gpudash.workloads.running.installed import gpu_uuid


def handle_of(device: torch.device) -> Any:
    """NVML's handle of a CUDA device; NVML has to be initialised."""
    import pynvml

    uuid = gpu_uuid(torch.cuda.get_device_properties(device))
    assert uuid is not None
    for spelling in (uuid, uuid.encode()):  # versions of NVML's bindings differ
        with suppress(TypeError, AttributeError):
            return pynvml.nvmlDeviceGetHandleByUUID(spelling)
    raise RuntimeError(f"NVML's bindings take {uuid} in no spelling.")


def process_bytes(device: torch.device) -> int | None:
    """What NVML says that this process holds; ``None`` where it cannot be told, or not on this device."""
    if device.type != "cuda":
        return None
    import pynvml

    pynvml.nvmlInit()
    try:
        own = [
            process.usedGpuMemory
            for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle_of(device))
            if process.pid == os.getpid()
        ]
    except pynvml.NVMLError:
        return None
    finally:
        pynvml.nvmlShutdown()
    return int(own[0]) if own and own[0] is not None else None


def used_bytes(device: torch.device) -> int:
    """What is used on the device by whomever, without the driver's reserved share where NVML tells it apart."""
    if device.type != "cuda":
        free, total = getattr(torch, device.type).mem_get_info(device)
        return int(total - free)
    import pynvml

    pynvml.nvmlInit()
    try:
        handle = handle_of(device)
        try:
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
        except (pynvml.NVMLError, AttributeError):
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
        return int(memory.used)
    finally:
        pynvml.nvmlShutdown()


def has_context() -> bool | None:
    """Whether NVML counts this process among those that compute on any device; ``None`` where NVML is not there."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        running = [process for handle in handles for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)]
        return any(process.pid == os.getpid() for process in running)
    except pynvml.NVMLError:
        return None
    finally:
        pynvml.nvmlShutdown()
