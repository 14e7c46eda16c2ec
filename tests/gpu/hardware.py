"""Which hardware and software this is, what a CUDA context takes, and rates measured without the program."""

from __future__ import annotations

import platform
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from gpudash.workloads.running.installed import torch_report
from tests.gpu.child import Report
from tests.gpu.readings import process_bytes, used_bytes

COPY_BYTES = 256 * 2**20


def describe(device: torch.device, _argument: None, tell: Report) -> None:
    """The device, its driver, and the versions."""
    module: Any = getattr(torch, device.type)
    properties = module.get_device_properties(device)
    tell("product", properties.name)
    tell("total_bytes", properties.total_memory)
    tell("free_bytes", module.mem_get_info(device)[0])
    tell("capability", [properties.major, properties.minor])
    tell("python", sys.version.partition(" ")[0])
    tell("system", platform.release())
    tell("torch", torch_report(properties=True))
    if device.type == "cuda":
        tell("cudnn", torch.backends.cudnn.version())
        tell("nvml", nvml())


def nvml() -> dict[str, Any]:
    """What NVML says, and how long each of its calls takes (median of 20, seconds)."""
    import pynvml

    pynvml.nvmlInit()
    handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
    calls: dict[str, Callable[[Any], Any]] = {
        "memory_v1": pynvml.nvmlDeviceGetMemoryInfo,
        "memory_v2": lambda handle: pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2),
        "utilisation": pynvml.nvmlDeviceGetUtilizationRates,
        "temperature": lambda handle: pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU),
        "power": pynvml.nvmlDeviceGetPowerUsage,
        "energy": pynvml.nvmlDeviceGetTotalEnergyConsumption,
        "sm_clock": lambda handle: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM),
        "pcie_generation": pynvml.nvmlDeviceGetCurrPcieLinkGeneration,
        "pcie_width": pynvml.nvmlDeviceGetCurrPcieLinkWidth,
        "pcie_rx": lambda handle: pynvml.nvmlDeviceGetPcieThroughput(handle, pynvml.NVML_PCIE_UTIL_RX_BYTES),
        "processes": pynvml.nvmlDeviceGetComputeRunningProcesses,
    }
    gpus = []
    for handle in handles:
        gpu: dict[str, Any] = {"uuid": pynvml.nvmlDeviceGetUUID(handle), "name": pynvml.nvmlDeviceGetName(handle)}
        for name, call in calls.items():
            gpu[name] = _timed(lambda call=call, handle=handle: call(handle))
        gpus.append({key: _plain(value) for key, value in gpu.items()})
    found = {"driver": _plain(pynvml.nvmlSystemGetDriverVersion()), "gpus": gpus}
    pynvml.nvmlShutdown()
    return found


def _plain(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


def _timed(call: Callable[[], Any]) -> dict[str, Any]:
    seconds = []
    value: Any = None
    try:
        for _ in range(20):
            began = time.perf_counter()
            value = call()
            seconds.append(time.perf_counter() - began)
    except Exception as error:  # every call may be refused in its own way
        return {"error": f"{type(error).__name__}: {error}"}
    return {"value": str(value)[:300], "seconds_median": statistics.median(seconds)}


def context(device: torch.device, _argument: None, tell: Report) -> None:
    """What this process takes outside the allocator, as libraries are loaded one after another, in bytes.

    Each level is what the device has in use above the level before the first call, less what torch has reserved.
    """
    module: Any = getattr(torch, device.type)
    if device.type == "cuda":
        torch.cuda.init()  # reads properties; the context itself is made by the first allocation
    began = used_bytes(device)
    values = [torch.empty(1, device=device)]

    def tell_level(name: str) -> None:
        module.synchronize()
        reserved = module.memory_reserved(device)
        own = process_bytes(device)
        level = {"device": used_bytes(device) - began - reserved, "process": None if own is None else own - reserved}
        tell(name, level | {"reserved_bytes": reserved})

    tell_level("context")
    values.append(values[0] + 1)
    tell_level("kernels")
    matrix = torch.ones(512, 512, device=device)
    values.append(matrix @ matrix)
    tell_level("cublas")
    half = matrix.to(torch.bfloat16)
    values.append(functional.linear(half, half, half[0]))
    tell_level("cublaslt")
    values.append(functional.conv2d(torch.ones(2, 8, 32, 32, device=device), torch.ones(8, 8, 3, 3, device=device)))
    tell_level("cudnn")
    parts = [torch.ones(2, 4, 128, 64, device=device, dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]
    functional.scaled_dot_product_attention(*parts).sum().backward()
    tell_level("attention")


def bare_copy(source: torch.Tensor, target: torch.Tensor) -> float:
    """Bytes per second of a copy, measured by CUDA events and by nothing of gpudash: median of 10."""
    rates = []
    for _ in range(12):
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        began.record()
        target.copy_(source, non_blocking=True)
        ended.record()
        ended.synchronize()
        rates.append(source.nbytes / (began.elapsed_time(ended) / 1e3))
    return statistics.median(rates[2:])


def copies(device: str) -> dict[str, float]:
    """Independent copy rates in bytes per second, to hold the transfer workload's against."""
    there = torch.empty(COPY_BYTES, dtype=torch.uint8, device=device)
    found = {}
    for memory in ("pageable", "pinned"):
        here = torch.ones(COPY_BYTES, dtype=torch.uint8, pin_memory=memory == "pinned")
        found[f"h2d_{memory}"] = bare_copy(here, there)
        found[f"d2h_{memory}"] = bare_copy(there, here)
    return found


def measure_copies(device: torch.device, _argument: None, tell: Report) -> None:
    """`copies`, for the file."""
    tell("bytes_per_second", copies(str(device)))
