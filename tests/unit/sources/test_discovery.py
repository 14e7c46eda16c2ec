from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gpudash.sources.discovery import survey
from gpudash.telemetry.records import State
from tests.nvml_stub.build import GIB, MISMATCH, NO_PERMISSION, NOT_SUPPORTED, Playing, Scenario, StubGpu
from tests.programs import python
from tests.unit.sources.collecting import PATIENCE_S

pytestmark = pytest.mark.process

Play = Callable[..., Playing]


def test_a_survey_has_every_gpu_with_its_readings_and_versions(play: Play) -> None:
    scenario = Scenario([StubGpu(number, used=number * GIB, processes=[(1, GIB, "C")]) for number in range(3)])
    scenario.fault("nvmlDeviceGetPowerUsage", NO_PERMISSION, 1).fault("nvmlDeviceGetMemoryInfo_v2", NOT_SUPPORTED, 2)
    play(scenario)
    found = survey()
    assert [looked.gpu.uuid for looked in found.gpus] == [gpu.uuid for gpu in scenario.gpus]
    assert (found.driver_version, found.nvml_version) == ("580.65.06", "13.580.65.06")
    assert found.cuda_driver_version == "13.0"
    assert found.problem is None
    assert [looked.memory_version for looked in found.gpus] == [2, 2, 1]
    assert found.gpus[0].readings["used_bytes"] == 0
    assert found.gpus[0].readings["pcie_rx_bytes_per_second"] == 0
    assert found.gpus[1].states["power_w"] is State.NO_PERMISSION
    assert found.gpus[0].states["power_w"] is State.OK
    assert found.gpus[0].processes[0]["memory_bytes"] == GIB
    assert found.gpus[0].gpu.cuda_capability == (9, 0)
    assert found.gpus[0].gpu.multiprocessors == 132


def test_the_library_of_wsl_is_found_where_the_linker_does_not_look(stub_library: Path, tmp_path: Path) -> None:
    library = tmp_path / "usr/lib/wsl/lib/libnvidia-ml.so.1"
    library.parent.mkdir(parents=True)
    shutil.copy(stub_library, library)
    Scenario([StubGpu(0, name="NVIDIA GeForce RTX 4070 Laptop GPU")]).write(tmp_path / "scenario")
    code = (
        "import sys; from pathlib import Path; from gpudash.sources.nvml.library import Nvml\n"
        "nvml = Nvml(Path(sys.argv[1])); nvml.open(); print(nvml.gpus(20)[0].product)"
    )
    outside = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
    env = {**outside, "NVML_STUB_SCENARIO": str(tmp_path / "scenario"), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = python("-c", code, str(tmp_path), env=env)
    assert (done.stdout.strip(), done.stderr) == ("NVIDIA GeForce RTX 4070 Laptop GPU", "")


def test_the_host_is_there_whatever_the_driver_does(play: Play) -> None:
    play(Scenario([StubGpu(0)]).fault("nvmlInit", MISMATCH))
    found = survey()
    assert found.gpus == ()
    assert found.problem is not None and "differ in version" in found.problem
    assert found.host.cores >= 1 and found.host.total_bytes >= found.host.available_bytes > 0
    assert found.host.product and found.host.capacity_source


def test_a_driver_that_hangs_gives_a_sentence_instead_of_a_hang(play: Play) -> None:
    scenario = Scenario([StubGpu(0)]).hang("nvmlInit")
    stub = play(scenario)
    try:
        found = survey(timeout_s=0.2)
        assert found.gpus == () and found.problem is not None
        assert found.problem.startswith("The NVIDIA driver has not answered for 200 ms")
    finally:
        stub.play(scenario.mend())


def test_a_gpu_that_hangs_is_named_and_the_others_are_read(play: Play) -> None:
    scenario = Scenario([StubGpu(0), StubGpu(1)]).hang("nvmlDeviceGetTotalEnergyConsumption", 1)
    stub = play(scenario)
    try:
        silent = survey(timeout_s=0.4)
        assert silent.gpus[0].readings["energy_j"] is not None
        assert silent.gpus[1].readings == {} and set(silent.gpus[1].states.values()) == {State.STALE}
        stub.play(scenario.mend().hang("nvmlDeviceGetName", 1))
        unnamed = survey(timeout_s=0.4)
        assert [looked.gpu.uuid for looked in unnamed.gpus] == [scenario.gpus[0].uuid]
        assert unnamed.problem is not None and unnamed.problem.startswith("GPU 1 does not answer the driver")
    finally:
        stub.play(scenario.mend())


def test_a_machine_of_files_has_its_own_processor_and_memory(tmp_path: Path) -> None:
    files = {
        "proc/cpuinfo": "processor : 0\nmodel name\t: AMD   EPYC 9654\n",
        "proc/meminfo": "MemTotal: 4096 kB\nMemFree: 1024 kB\nMemAvailable: 2048 kB\n",
        "proc/self/statm": "1 1 1\n",
        "proc/stat": "cpu 1 0 0 1 0 0 0 0\n",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    host = survey(PATIENCE_S, tmp_path).host
    assert (host.product, host.total_bytes, host.available_bytes) == ("AMD EPYC 9654", 4096 * 1024, 2048 * 1024)
