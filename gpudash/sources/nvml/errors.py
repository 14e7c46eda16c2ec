"""What an NVML error means for a metric, a GPU or the whole library; and why no NVIDIA GPU can be watched.

Codes are ``nvmlReturn_t`` of nvml.h.
"""

from __future__ import annotations

import enum
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pynvml

from gpudash.sources.pci import VENDORS, displays
from gpudash.system.files import text_of
from gpudash.telemetry.records import State

# NVMLLibraryMismatchError (the driver lacks the function behind the unversioned call) is not an NVMLError.
NVML_ERRORS: tuple[type[Exception], ...] = (pynvml.NVMLError, pynvml.NVMLLibraryMismatchError)

_NOT_SUPPORTED = {
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
    pynvml.NVML_ERROR_DEPRECATED,
}

_GPU = {
    pynvml.NVML_ERROR_GPU_IS_LOST,
    pynvml.NVML_ERROR_RESET_REQUIRED,
    pynvml.NVML_ERROR_OPERATING_SYSTEM,
    pynvml.NVML_ERROR_IRQ_ISSUE,
    pynvml.NVML_ERROR_INSUFFICIENT_POWER,
}

_LIBRARY = {
    pynvml.NVML_ERROR_UNINITIALIZED,
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
    pynvml.NVML_ERROR_GPU_NOT_FOUND,
}

_ON_CPU = "everything runs on the CPU"

_HIDDEN = (pynvml.NVML_ERROR_NO_PERMISSION, pynvml.NVML_ERROR_OPERATING_SYSTEM)

_NOTHING_THERE = (
    None,
    pynvml.NVML_ERROR_UNINITIALIZED,
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
    pynvml.NVML_ERROR_GPU_NOT_FOUND,
)
"""Errors of NVML that a machine without a card gives, among other causes; ``None``: it opened and lists no GPU."""


class Scope(enum.Enum):
    """What an error affects."""

    METRIC = "metric"
    GPU = "gpu"
    LIBRARY = "library"


@dataclass(frozen=True, slots=True)
class Fault:
    """An NVML error, classified.

    Attributes:
        code: ``nvmlReturn_t``; ``None`` for errors that have none.
        scope: what has stopped responding.
        state: state for the requested metrics.
        text: NVML's own message.
    """

    code: int | None
    scope: Scope
    state: State
    text: str

    @property
    def permanent(self) -> bool:
        """Whether retries must fail until the library is initialised again."""
        return self.state is State.NOT_SUPPORTED


class NvmlUnavailableError(Exception):
    """An NVML call failed for a whole GPU or for the library."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.text)
        self.fault = fault


def classify(error: Exception) -> Fault:
    """Classify one of `NVML_ERRORS`.

    An unknown error costs the metric this one reading (``STALE``); the metric is read again.
    """
    if isinstance(error, pynvml.NVMLLibraryMismatchError):
        return Fault(None, Scope.METRIC, State.NOT_SUPPORTED, "Function Not Found")
    code = int(getattr(error, "value", pynvml.NVML_ERROR_UNKNOWN))
    text = str(error)
    if code in _NOT_SUPPORTED:
        return Fault(code, Scope.METRIC, State.NOT_SUPPORTED, text)
    if code == pynvml.NVML_ERROR_NO_PERMISSION:
        return Fault(code, Scope.METRIC, State.NO_PERMISSION, text)
    if code in _GPU:
        return Fault(code, Scope.GPU, State.LOST, text)
    if code in _LIBRARY:
        return Fault(code, Scope.LIBRARY, State.LOST, text)
    return Fault(code, Scope.METRIC, State.STALE, text)


@dataclass(frozen=True, slots=True)
class Absence:
    """Why there is no GPU.

    Attributes:
        text: one sentence.
        is_failure: whether there is something to fix; false if the machine simply has no NVIDIA card.
    """

    text: str
    is_failure: bool = True


def why_no_gpu(
    fault: Fault | None, root: Path = Path("/"), environ: Mapping[str, str] | None = None, system: str | None = None
) -> Absence:
    """The cause, by NVML's error and the state of the system.

    Args:
        fault: why NVML could not be opened; ``None`` if it opened and lists no GPU.
        root: parent folder of ``proc``, ``sys`` and ``dev``.
        environ: environment variables.
        system: the system, as in `platform.system`.
    """
    environ = environ or {}
    code = None
    if fault is not None:
        code = fault.code
    if (system or platform.system()) == "Darwin":
        return Absence(f"An Apple GPU is used where torch has mps, else {_ON_CPU}.", is_failure=False)
    vendors = [card.vendor for card in displays(root)]
    nvidia = any(VENDORS.get(vendor) == "NVIDIA" for vendor in vendors) or _driver_loaded(root)
    if code == pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH:
        text = "The NVIDIA library and the loaded driver differ in version, as after an update; restart the machine."
    elif _is_wsl(root):
        text = _wsl(code)
    elif code in _HIDDEN:
        text = _hidden(environ)
    elif not nvidia and code in _NOTHING_THERE:
        return _no_card(vendors)
    elif code == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND:
        text = _no_library(root, environ)
    elif code == pynvml.NVML_ERROR_DRIVER_NOT_LOADED:
        text = "An NVIDIA card is present, but its driver is not loaded; load it with: sudo modprobe nvidia"
    elif code in _NOTHING_THERE:
        text = _hidden(environ)
    else:
        text = f"The NVIDIA driver does not work ({fault.text if fault else ''}); see: sudo dmesg | grep -i nvrm"
    return Absence(text)


def _no_card(vendors: list[int]) -> Absence:
    others = sorted({VENDORS[vendor] for vendor in vendors if vendor in VENDORS})
    if others:
        used = f"the {' and '.join(others)} card is used by a build of torch for it"
        text = f"No NVIDIA card was found; {used}, else {_ON_CPU}."
    else:
        text = f"No NVIDIA card was found; {_ON_CPU}."
    return Absence(text, is_failure=False)


def _no_library(root: Path, environ: Mapping[str, str]) -> str:
    searched = environ.get("LD_LIBRARY_PATH", "")
    where = "the system's library folders"
    if searched:
        where = f"LD_LIBRARY_PATH={searched} and {where}"
    if _in_container(root, environ):
        fix = "start the container with GPU access, such as: docker run --gpus all"
    elif _driver_loaded(root):
        fix = "install the driver's libraries, such as the package libnvidia-compute"
    else:
        fix = "install the NVIDIA driver"
    return f"An NVIDIA card is present, but libnvidia-ml.so.1 was not found in {where}; {fix}."


def _hidden(environ: Mapping[str, str]) -> str:
    names = ("NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "SLURM_JOB_GPUS")
    shown = ", ".join(f"{name}={environ[name]}" for name in names if name in environ)
    settings = ""
    if shown:
        settings = f" ({shown})"
    return f"No NVIDIA GPU may be used from here{settings}; give this container, job or user access to /dev/nvidia*."


def _wsl(code: int | None) -> str:
    if code == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND:
        return "WSL shows no NVIDIA library in /usr/lib/wsl/lib; install or update the NVIDIA driver in Windows."
    return "WSL shows no NVIDIA GPU; update the NVIDIA driver in Windows, then run: wsl --shutdown"


def _is_wsl(root: Path) -> bool:
    return "microsoft" in text_of(root / "proc/version").lower()


def _driver_loaded(root: Path) -> bool:
    return (root / "proc/driver/nvidia/version").exists()


def _in_container(root: Path, environ: Mapping[str, str]) -> bool:
    marks = (root / ".dockerenv", root / "run/.containerenv")
    return "KUBERNETES_SERVICE_HOST" in environ or any(mark.exists() for mark in marks)
