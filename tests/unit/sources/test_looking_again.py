from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pynvml

from gpudash.sources.nvml.errors import Fault, NvmlUnavailableError, classify
from gpudash.sources.nvml.gpu_watch import GpuWatch
from gpudash.sources.timing import Timing

TIMING = Timing(tend=1.0, longest_retry=64.0)


class NoDriver:
    """A library whose driver is not loaded.

    Attributes:
        opened: how often it was tried.
    """

    usable = False

    def __init__(self) -> None:
        self.opened = 0
        self.fault: Fault | None = classify(pynvml.NVMLError(pynvml.NVML_ERROR_DRIVER_NOT_LOADED))

    def open(self) -> None:
        self.opened += 1
        assert self.fault is not None
        raise NvmlUnavailableError(self.fault)

    def abandon(self, fault: Fault) -> None:
        """Nothing is open."""

    def silent(self, patience_s: float = 0.0) -> Sequence[str]:
        return ()


def watch(nvml: NoDriver, root: Path) -> GpuWatch:
    return GpuWatch(nvml, lambda _record: None, lambda: 0.0, 0.1, TIMING, root, frozenset)  # type: ignore[arg-type]


def test_a_look_that_is_asked_for_does_not_wait_for_the_next_attempt(tmp_path: Path) -> None:
    nvml = NoDriver()
    watching = watch(nvml, tmp_path)
    for now_s in range(40):
        watching._tend(float(now_s))
    patient = nvml.opened
    assert patient < 10  # the waits between the attempts double
    watching._tend(40.0)
    assert nvml.opened == patient
    watching.look_again()
    watching._tend(40.5)
    assert nvml.opened == patient + 1
    watching._tend(42.0)
    assert nvml.opened == patient + 2  # and it is looked for often again


def test_the_library_is_told_in_its_own_words(tmp_path: Path) -> None:
    nvml = NoDriver()
    watching = watch(nvml, tmp_path)
    assert watching.nvml_words == "Driver Not Loaded"
    nvml.fault = None
    assert watching.nvml_words == "answers"
