"""Which torch is installed, and which devices it sees."""

from __future__ import annotations

import ast
import ctypes
import importlib.util
import logging
import os
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpudash.memory.predicting.torch_versions import unmeasured_torch
from gpudash.system.foreign_files import read_regular_text

logger = logging.getLogger(__name__)


OWN_ENVIRONMENT = "pip install 'gpudash[torch]' in an environment of your own"


def way_to_torch() -> tuple[str, str]:
    """The sentence that torch is missing, and how to install it.

    An AppImage is mounted read-only, so nothing can be installed into its Python. It sets its folder in ``APPDIR``,
    but so does another one that only started this program, such as a terminal.
    """
    folder = os.environ.get("APPDIR")
    if folder and Path(sys.executable).is_relative_to(folder):
        return "torch is not installed, and an AppImage cannot take it in", OWN_ENVIRONMENT
    return "torch is not installed", "pip install torch"


NOT_INSTALLED = "{}; with it gpudash runs workloads, predicts what they need, simulates GPUs: {}".format(
    *way_to_torch()
)
"""What works without it, in one sentence: watching the machine, and opening recordings and snapshots."""

NO_DRIVER = ("no NVIDIA driver", "No CUDA GPUs")
"""Warnings of a CUDA build that only report that there is no GPU, which is not a fault of torch."""


@contextmanager
def variable(name: str, value: str) -> Iterator[None]:
    """Set an environment variable for a library that reads it now, unless the user has set it; not for children."""
    if name in os.environ:
        yield
        return
    os.environ[name] = value
    try:
        yield
    finally:
        os.environ.pop(name, None)


def torch_report(*, properties: bool = False) -> dict[str, Any]:
    """What torch is and sees; imports it here if necessary.

    Args:
        properties: also read the devices' properties. torch initialises CUDA for that, which may take memory on each;
            otherwise devices are only counted.

    Returns:
        ``version``, ``cuda_version`` and ``hip_version`` (``None``: not installed, a build for neither),
        ``cuda_available``, ``devices`` (list of ``name, product, uuid, total_bytes``: CUDA's, then Intel's and
        Apple's; without ``properties`` the last three are ``None`` except for Apple's), ``seconds`` for the import,
        ``simulator_problem``: a sentence if this torch cannot be given a simulated GPU, and ``problem``: a sentence if
        torch is missing, broken or cannot use CUDA; otherwise both are ``None``.
    """
    began = time.perf_counter()
    report = _without_torch()
    try:
        torch = _imported()
    except ModuleNotFoundError as error:
        if error.name not in ("torch", None):
            report["problem"] = _broken(error)
        else:
            report["problem"] = NOT_INSTALLED
    except Exception as error:  # a broken installation may fail in any way: OSError on a library, RuntimeError, …
        logger.warning("torch cannot be imported", exc_info=True)
        report["problem"] = _broken(error)
    else:
        report["version"] = str(torch.__version__)
        report["cuda_version"], report["hip_version"] = torch.version.cuda, torch.version.hip
        report["simulator_problem"] = _simulator_problem()
        report.update(_cuda_devices(properties))
        report["devices"] += other_devices(torch, properties=properties)
    report["seconds"] = time.perf_counter() - began
    return report


def quick_torch_report(*, properties: bool = False) -> dict[str, Any]:
    """`torch_report` without importing torch if its files are sufficient: a build that can see no device here.

    If a file is missing or has unknown contents, torch is imported, and reports the problem itself. "seconds" is 0 if
    it was not imported.
    """
    if "torch" not in sys.modules and sys.platform.startswith("linux"):
        build = _build_without_devices()
        if build is not None:
            return {**_without_torch(), **build, "simulator_problem": None}
    return torch_report(properties=properties)


def _without_torch() -> dict[str, Any]:
    """The report for a Python without torch, as a base for others."""
    return {
        "version": None,
        "cuda_version": None,
        "hip_version": None,
        "cuda_available": False,
        "devices": [],
        "seconds": 0.0,
        "problem": None,
        "simulator_problem": "torch cannot be imported.",
    }


LIBRARIES = ("libc10.so", "libtorch.so", "libtorch_cpu.so", "libtorch_python.so")
"""Shared libraries in ``torch/lib`` of every build for Linux; importing torch without one fails."""


LONGEST_VERSION = 65_536
"""The largest ``torch/version.py`` in bytes that is read; it has a dozen lines."""


def _build_without_devices() -> dict[str, Any] | None:
    """Version and build of an installed torch that can see no device here; ``None`` if it must be imported."""
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None or not found.submodule_search_locations:
        return None
    folder = Path(found.origin).parent
    try:
        if not all((folder / "lib" / name).stat().st_size for name in LIBRARIES):
            return None
        build = _literals(read_regular_text(folder / "version.py", LONGEST_VERSION))
    except (OSError, ValueError, SyntaxError):
        return None
    version = build.get("__version__")
    if not isinstance(version, str) or unmeasured_torch(version):
        return None  # it may lack what a simulated GPU builds on
    if build.get("hip") or build.get("xpu") or (build.get("cuda") and _has_cuda_driver()):
        return None
    return {"version": version, "cuda_version": build.get("cuda"), "hip_version": build.get("hip")}


def _literals(source: str) -> dict[str, Any]:
    """The names that a module assigns constants to at its top level."""
    values: dict[str, Any] = {}
    for line in ast.parse(source).body:
        target = line.targets[0] if isinstance(line, ast.Assign) else getattr(line, "target", None)
        value = getattr(line, "value", None)
        if isinstance(target, ast.Name) and isinstance(value, ast.Constant):
            values[target.id] = value.value
    return values


def _has_cuda_driver() -> bool:
    """Whether the library that connects CUDA to the driver exists; without it torch sees no CUDA device."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def _simulator_problem() -> str | None:
    from gpudash.simulator.device.probe import problem

    return problem()


def _imported() -> Any:
    """torch, imported so that warnings of its C++ code, especially the profiler's, do not go to the terminal."""
    with variable("TORCH_CPP_LOG_LEVEL", "ERROR"):
        import torch
    return torch


def torch_text(report: dict[str, Any]) -> str:
    """The report in one line: "torch 2.13.0, CUDA 13.0"."""
    if report["version"] is None:
        return str(report["problem"])
    builds = (("CUDA", report["cuda_version"]), ("ROCm", report["hip_version"]))
    build = next((f"{name} {version}" for name, version in builds if version), "CPU build")
    return f"torch {str(report['version']).partition('+')[0]}, {build}"


def gpu_uuid(properties: Any) -> str | None:
    """The UUID in torch's device properties in NVML's spelling; ``None`` if torch has none."""
    uuid = getattr(properties, "uuid", None)
    if uuid is None:
        return None
    text = str(uuid)
    if text.startswith(("GPU-", "MIG-")):
        return text
    return f"GPU-{text}"


def missing_torch(error: Exception) -> str:
    """Why something that needs torch failed, without a full stop: `NOT_INSTALLED`, or the error's message."""
    if isinstance(error, ModuleNotFoundError) and error.name == "torch":
        return NOT_INSTALLED
    return str(error).rstrip(".")


def _broken(error: Exception) -> str:
    first = next(iter(str(error).splitlines()), "")
    return f"torch cannot be imported ({type(error).__name__}: {first}); install it again with: pip install torch"


def _cuda_devices(properties: bool) -> dict[str, Any]:
    import torch

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            available = torch.cuda.is_available()
            count = 0
            if available:
                count = torch.cuda.device_count()
            devices = [_device(index, properties) for index in range(count)]
        except Exception as error:  # failures of CUDA and the driver library have no common type
            logger.warning("CUDA cannot be used", exc_info=True)
            found = {"cuda_available": False, "devices": []}
            return {**found, "problem": _unusable(str(error) or type(error).__name__)}
    messages = [str(warning.message) for warning in caught]
    faults = [text for text in messages if "CUDA" in text and not any(harmless in text for harmless in NO_DRIVER)]
    problem = None
    if faults and not available:
        problem = _unusable(faults[0])
    return {"cuda_available": available, "devices": devices, "problem": problem}


def _device(index: int, properties: bool) -> dict[str, Any]:
    import torch

    found = None
    if properties:
        found = torch.cuda.get_device_properties(index)
    return {
        "name": f"cuda:{index}",
        "product": None if found is None else found.name,
        "uuid": None if found is None else gpu_uuid(found),
        "total_bytes": None if found is None else found.total_memory,
    }


def other_devices(torch: Any, *, properties: bool) -> list[dict[str, Any]]:
    """Intel's and Apple's devices, as in `torch_report`.

    Args:
        torch: the module.
        properties: also read those of Intel's, which torch initialises for that. Apple's need no initialisation.
    """
    found = []
    try:
        for index in range(torch.xpu.device_count() if torch.xpu.is_available() else 0):
            device = None
            if properties:
                device = torch.xpu.get_device_properties(index)
            found.append(
                {
                    "name": f"xpu:{index}",
                    "product": None if device is None else str(device.name),
                    "uuid": None,
                    "total_bytes": None if device is None else int(device.total_memory),
                }
            )
        if torch.backends.mps.is_available():
            name, total = torch.backends.mps.get_name(), torch.mps.recommended_max_memory()
            found.append({"name": "mps", "product": str(name), "uuid": None, "total_bytes": int(total)})
    except (AttributeError, RuntimeError):
        pass  # torch is too old, or a driver is broken: keep the devices found so far
    return found


def _unusable(text: str) -> str:
    return f"torch cannot use CUDA: {' '.join(text.split())[:400]}"
