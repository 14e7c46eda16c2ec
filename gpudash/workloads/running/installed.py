"""Which torch is installed, and which devices it sees."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gpudash.workloads.running.sim_backend import problem as simulator_problem

NO_DRIVER = ("no NVIDIA driver", "No CUDA GPUs")
"""Warnings of a CUDA build that only say there is no GPU, which is no fault of torch."""


@contextmanager
def variable(name: str, value: str) -> Iterator[None]:
    """An environment variable for a library that reads it now, unless the user has set it; no child is to have it."""
    if name in os.environ:
        yield
        return
    os.environ[name] = value
    try:
        yield
    finally:
        os.environ.pop(name, None)


def torch_report(*, properties: bool = False) -> dict[str, Any]:
    """What torch is and sees; importing it here if nobody has.

    Args:
        properties: also read the devices' properties. torch initialises CUDA for that, which may cost memory on each;
            otherwise the devices are only counted.

    Returns:
        ``version``, ``cuda_version`` and ``hip_version`` (``None``: not installed, a build for neither),
        ``cuda_available``, ``devices`` (list of ``name, product, uuid, total_bytes``: CUDA's, then Intel's and Apple's;
        without ``properties`` the last three are ``None`` but of Apple's), ``seconds`` the import took,
        ``simulator_problem``: one sentence when this torch cannot be given a simulated GPU, and ``problem``: one when
        torch is missing, broken or cannot use CUDA; else both are ``None``.
    """
    began = time.perf_counter()
    report: dict[str, Any] = {
        "version": None,
        "cuda_version": None,
        "hip_version": None,
        "cuda_available": False,
        "devices": [],
        "seconds": 0.0,
        "problem": None,
        "simulator_problem": "torch cannot be imported.",
    }
    try:
        torch = _imported()
    except ModuleNotFoundError as error:
        if error.name not in ("torch", None):
            report["problem"] = _broken(error)
        else:
            report["problem"] = "torch is not installed; install it with: pip install torch"
    except Exception as error:  # a broken installation fails in any way: OSError on a library, RuntimeError, …
        report["problem"] = _broken(error)
    else:
        report["version"] = str(torch.__version__)
        report["cuda_version"], report["hip_version"] = torch.version.cuda, torch.version.hip
        report["simulator_problem"] = simulator_problem()
        report.update(_cuda_devices(properties))
        report["devices"] += other_devices(torch, properties=properties)
    report["seconds"] = time.perf_counter() - began
    return report


def _imported() -> Any:
    """torch, which learns at its import that warnings of its C++ code, a profiler's above all, are for no terminal."""
    with variable("TORCH_CPP_LOG_LEVEL", "ERROR"):
        import torch
    return torch


def torch_words(report: dict[str, Any]) -> str:
    """The report in one line: "torch 2.13.0, CUDA 13.0"."""
    if report["version"] is None:
        return str(report["problem"])
    builds = (("CUDA", report["cuda_version"]), ("ROCm", report["hip_version"]))
    build = next((f"{name} {version}" for name, version in builds if version), "CPU build")
    return f"torch {str(report['version']).partition('+')[0]}, {build}"


def gpu_uuid(properties: Any) -> str | None:
    """NVML's spelling of the UUID in torch's device properties; ``None`` where torch gives none."""
    uuid = getattr(properties, "uuid", None)
    if uuid is None:
        return None
    text = str(uuid)
    return text if text.startswith(("GPU-", "MIG-")) else f"GPU-{text}"


def _broken(error: Exception) -> str:
    first = next(iter(str(error).splitlines()), "")
    return f"torch cannot be imported ({type(error).__name__}: {first}); install it again with: pip install torch"


def _cuda_devices(properties: bool) -> dict[str, Any]:
    import torch

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            available = torch.cuda.is_available()
            count = torch.cuda.device_count() if available else 0
            devices = [_device(index, properties) for index in range(count)]
        except Exception as error:  # CUDA's and the driver library's failures have no common type
            found = {"cuda_available": False, "devices": []}
            return {**found, "problem": _unusable(str(error) or type(error).__name__)}
    words = [str(warning.message) for warning in told]
    faults = [text for text in words if "CUDA" in text and not any(harmless in text for harmless in NO_DRIVER)]
    problem = _unusable(faults[0]) if faults and not available else None
    return {"cuda_available": available, "devices": devices, "problem": problem}


def _device(index: int, properties: bool) -> dict[str, Any]:
    import torch

    found = torch.cuda.get_device_properties(index) if properties else None
    return {
        "name": f"cuda:{index}",
        "product": None if found is None else found.name,
        "uuid": None if found is None else gpu_uuid(found),
        "total_bytes": None if found is None else found.total_memory,
    }


def other_devices(torch: Any, *, properties: bool) -> list[dict[str, Any]]:
    """Intel's and Apple's devices, as of `torch_report`.

    Args:
        torch: the module.
        properties: also read those of Intel's, for which torch initialises them. Apple's take nothing.
    """
    found = []
    try:
        for index in range(torch.xpu.device_count() if torch.xpu.is_available() else 0):
            told = torch.xpu.get_device_properties(index) if properties else None
            found.append(
                {
                    "name": f"xpu:{index}",
                    "product": None if told is None else str(told.name),
                    "uuid": None,
                    "total_bytes": None if told is None else int(told.total_memory),
                }
            )
        if torch.backends.mps.is_available():
            name, total = torch.backends.mps.get_name(), torch.mps.recommended_max_memory()
            found.append({"name": "mps", "product": str(name), "uuid": None, "total_bytes": int(total)})
    except (AttributeError, RuntimeError):
        pass  # a torch too old to tell, or a driver that is broken: what it has told by then is what there is
    return found


def _unusable(words: str) -> str:
    return f"torch cannot use CUDA: {' '.join(words.split())[:400]}"
