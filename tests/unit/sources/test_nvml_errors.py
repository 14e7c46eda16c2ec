from __future__ import annotations

import pynvml
import pytest

from gpudash.sources.nvml.errors import NVML_ERRORS, Scope, classify
from gpudash.telemetry.records import State


@pytest.mark.parametrize(
    ("code", "scope", "state"),
    [
        (pynvml.NVML_ERROR_NOT_SUPPORTED, Scope.METRIC, State.NOT_SUPPORTED),
        (pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, Scope.METRIC, State.NOT_SUPPORTED),
        (pynvml.NVML_ERROR_DEPRECATED, Scope.METRIC, State.NOT_SUPPORTED),
        (pynvml.NVML_ERROR_NO_PERMISSION, Scope.METRIC, State.NO_PERMISSION),
        (pynvml.NVML_ERROR_UNKNOWN, Scope.METRIC, State.STALE),
        (pynvml.NVML_ERROR_TIMEOUT, Scope.METRIC, State.STALE),
        (pynvml.NVML_ERROR_NO_DATA, Scope.METRIC, State.STALE),
        (pynvml.NVML_ERROR_GPU_IS_LOST, Scope.GPU, State.LOST),
        (pynvml.NVML_ERROR_RESET_REQUIRED, Scope.GPU, State.LOST),
        (pynvml.NVML_ERROR_OPERATING_SYSTEM, Scope.GPU, State.LOST),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, Scope.LIBRARY, State.LOST),
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, Scope.LIBRARY, State.LOST),
        (pynvml.NVML_ERROR_UNINITIALIZED, Scope.LIBRARY, State.LOST),
    ],
)
def test_an_error_reaches_as_far_as_its_code_says(code: int, scope: Scope, state: State) -> None:
    fault = classify(pynvml.NVMLError(code))
    assert (fault.code, fault.scope, fault.state) == (code, scope, state)
    assert fault.text


def test_an_error_of_a_code_nobody_knows_costs_one_reading() -> None:
    assert classify(pynvml.NVMLError(4242)).state is State.STALE


def test_a_library_mismatch_is_caught_although_it_is_no_nvml_error() -> None:
    error = pynvml.NVMLLibraryMismatchError("Unversioned function called")
    assert not isinstance(error, pynvml.NVMLError)
    assert isinstance(error, NVML_ERRORS)
    assert classify(error).state is State.NOT_SUPPORTED
