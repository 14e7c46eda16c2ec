"""What an NVML error means: for one metric, for one GPU, or for the whole library.

Codes are those of ``nvmlReturn_t`` in nvml.h.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

import pynvml

from gpudash.telemetry.records import State

# NVMLLibraryMismatchError (the driver lacks the function that the unversioned call stands for) is no NVMLError.
NVML_ERRORS: tuple[type[Exception], ...] = (pynvml.NVMLError, pynvml.NVMLLibraryMismatchError)


class Scope(enum.Enum):
    """How far an error reaches."""

    METRIC = "metric"
    GPU = "gpu"
    LIBRARY = "library"


@dataclass(frozen=True, slots=True)
class Fault:
    """An NVML error, judged.

    Attributes:
        code: ``nvmlReturn_t``; ``None`` for errors that have none.
        scope: what stopped answering.
        state: what the metrics asked for are to say.
        text: NVML's own words.
    """

    code: int | None
    scope: Scope
    state: State
    text: str

    @property
    def permanent(self) -> bool:
        """Whether asking again before the library is initialised anew is in vain."""
        return self.state is State.NOT_SUPPORTED


class NvmlUnavailableError(Exception):
    """An NVML call that failed for a whole GPU or for the library."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.text)
        self.fault = fault


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


def classify(error: Exception) -> Fault:
    """Judges an error of `NVML_ERRORS`.

    An error that is none of the known ones costs the metric this one reading (``STALE``) and is asked again.
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
