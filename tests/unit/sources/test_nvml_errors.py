"""What NVML errors mean, and the sentence that says why no GPU can be watched."""

from __future__ import annotations

from pathlib import Path

import pynvml
import pytest

from gpudash.sources.nvml.errors import NVML_ERRORS, Absence, Scope, classify, why_no_gpu
from gpudash.telemetry.records import State

NO_LIBRARY = pynvml.NVML_ERROR_LIBRARY_NOT_FOUND

NOT_LOADED = pynvml.NVML_ERROR_DRIVER_NOT_LOADED


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


class Machine:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.file("proc/version", "Linux version 6.1")

    def file(self, path: str, text: str = "") -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def card(self, vendor: str, number: int = 0, kind: str = "0x030000") -> None:
        self.file(f"sys/bus/pci/devices/0000:0{number}:00.0/vendor", vendor + "\n")
        self.file(f"sys/bus/pci/devices/0000:0{number}:00.0/class", kind + "\n")

    def why(self, code: int | None, system: str = "Linux", **environ: str) -> Absence:
        fault = None if code is None else classify(pynvml.NVMLError(code))
        return why_no_gpu(fault, self.root, environ, system)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.parametrize("code", [NO_LIBRARY, NOT_LOADED, None, pynvml.NVML_ERROR_GPU_NOT_FOUND])
def test_no_card_at_all_is_no_failure(machine: Machine, code: int | None) -> None:
    machine.card("0x10de", 1, kind="0x040300")  # NVIDIA's sound device is no display
    absence = machine.why(code)
    assert absence == Absence("No NVIDIA card was found; everything runs on the CPU.", is_failure=False)


def test_another_vendors_card_is_named(machine: Machine) -> None:
    machine.card("0x1002")
    absence = machine.why(NO_LIBRARY)
    assert "AMD card is used by a build of torch for it" in absence.text and not absence.is_failure


def test_a_card_without_its_driver(machine: Machine) -> None:
    machine.card("0x10de", kind="0x030200")
    assert "driver is not loaded" in machine.why(NOT_LOADED).text
    assert "modprobe nvidia" in machine.why(NOT_LOADED).text


def test_a_missing_library_tells_where_it_was_looked_for(machine: Machine) -> None:
    machine.card("0x10de")
    text = machine.why(NO_LIBRARY, LD_LIBRARY_PATH="/opt/here").text
    assert "libnvidia-ml.so.1 was not found" in text and "/opt/here" in text
    assert "install the NVIDIA driver" in text


@pytest.mark.parametrize(
    ("beside", "mend"), [("proc/driver/nvidia/version", "libnvidia-compute"), (".dockerenv", "--gpus all")]
)
def test_beside_a_loaded_driver_the_library_alone_is_missing_and_in_a_container_the_gpu_is_to_be_passed_in(
    machine: Machine, beside: str, mend: str
) -> None:
    machine.card("0x10de")
    machine.file(beside)
    assert mend in machine.why(NO_LIBRARY).text


def test_library_and_driver_of_different_versions(machine: Machine) -> None:
    machine.card("0x10de")
    text = machine.why(pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH).text
    assert "differ in version" in text and "restart" in text


@pytest.mark.parametrize("code", [pynvml.NVML_ERROR_NO_PERMISSION, pynvml.NVML_ERROR_OPERATING_SYSTEM, None])
def test_a_hidden_gpu_shows_the_variables_that_may_hide_it(machine: Machine, code: int | None) -> None:
    machine.card("0x10de")
    text = machine.why(code, CUDA_VISIBLE_DEVICES="3", NVIDIA_VISIBLE_DEVICES="void").text
    assert "No NVIDIA GPU may be used from here" in text
    assert "CUDA_VISIBLE_DEVICES=3" in text and "NVIDIA_VISIBLE_DEVICES=void" in text


def test_a_driver_that_lists_nothing_where_no_card_can_be_seen_hides_it(machine: Machine) -> None:
    machine.file("proc/driver/nvidia/version")
    assert "may be used from here" in machine.why(None).text


def test_wsl_points_to_the_windows_driver(machine: Machine) -> None:
    machine.file("proc/version", "Linux version 5.15.167.4-microsoft-standard-WSL2")
    assert "Windows" in machine.why(NO_LIBRARY).text
    assert "wsl --shutdown" in machine.why(None).text


def test_apple_is_named(machine: Machine) -> None:
    assert "Apple" in machine.why(NO_LIBRARY, system="Darwin").text


def test_any_other_error_is_quoted(machine: Machine) -> None:
    machine.card("0x10de")
    assert "Unknown Error" in machine.why(pynvml.NVML_ERROR_UNKNOWN).text
