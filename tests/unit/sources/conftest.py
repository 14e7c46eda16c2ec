"""The stub of NVML, built once, played by one test at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.nvml_stub.build import Playing, Scenario, build, playing

Play = Callable[..., Playing]


@pytest.fixture(scope="session")
def stub_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture(scope="session")
def old_stub_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As of a driver before 510: no second memory call, no third process call, no temperature by struct."""
    hidden = (
        "nvmlDeviceGetMemoryInfo_v2",
        "nvmlDeviceGetComputeRunningProcesses_v3",
        "nvmlDeviceGetGraphicsRunningProcesses_v3",
        "nvmlDeviceGetTemperatureV",
        "nvmlDeviceGetFieldValues",
    )
    return build(tmp_path_factory.mktemp("old-nvml"), hide=hidden)


@pytest.fixture(scope="session")
def addressless_stub_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As of a driver that finds no GPU by its PCI address."""
    return build(tmp_path_factory.mktemp("addressless-nvml"), hide=("nvmlDeviceGetHandleByPciBusId_v2",))


@pytest.fixture
def play(stub_library: Path, tmp_path: Path) -> Iterator[Play]:
    """Plays a scenario; the stub is what pynvml talks to until the test ends."""
    with ExitStack() as stack:

        def begin(scenario: Scenario, library: Path | None = None) -> Playing:
            return stack.enter_context(playing(library or stub_library, tmp_path / "scenario", scenario))

        yield begin
