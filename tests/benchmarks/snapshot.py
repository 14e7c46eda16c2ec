"""Cost of a reading of GPU and host beside nvitop's, on the stand-in driver, and of the monitor at its default rate."""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from gpudash.sources.host import HostReader
from gpudash.sources.monitor import Monitor
from gpudash.sources.nvml.gpu_reader import GpuReader
from gpudash.sources.nvml.library import Nvml
from tests.nvml_stub.build import Scenario, StubGpu, build, playing

ROUNDS = 400
SAMPLER_S = 5.0


def measure() -> dict[str, float]:
    """Median µs of a snapshot on either side, their ratio, and the monitor's share of a core in per cent."""
    folder = Path(tempfile.mkdtemp())
    with playing(build(folder), folder / "scenario", Scenario(gpus=[StubGpu(0)])):
        ours, theirs = _snapshots()
        percent = _sampler()
    return {
        "ours_us": ours,
        "nvitop_us": theirs,
        "over_nvitop": ours / theirs,
        "sampler_core_percent": percent,
    }


def _snapshots() -> tuple[float, float]:
    import nvitop
    import psutil

    nvml = Nvml()
    nvml.open()
    gpu, host = GpuReader(nvml.gpus()[0], nvml), HostReader()
    peer = nvitop.Device(0)

    def ours(now_s: float) -> None:
        gpu.read_fast(now_s)
        host.read(now_s)

    def theirs(_now_s: float) -> None:
        peer.as_snapshot()
        psutil.virtual_memory()
        psutil.cpu_percent()
        psutil.swap_memory()

    found = _medians(ours, theirs)
    gpu.close()
    host.close()
    nvml.close()
    return found


def _medians(*sides: Callable[[float], None]) -> tuple[float, float]:
    """In turns; every round is a second later for the readers, so that everything is due each time."""
    took: list[list[float]] = [[] for _side in sides]
    for number in range(ROUNDS):
        for times, side in zip(took, sides, strict=True):
            began = time.perf_counter()
            side(float(number))
            times.append((time.perf_counter() - began) * 1e6)
    return statistics.median(took[0]), statistics.median(took[1])


def _sampler() -> float:
    began = time.monotonic()
    monitor = Monitor(lambda _record: None, lambda: time.monotonic() - began)
    monitor.start()
    threading.Event().wait(1.0)
    before = sum(lane.cpu_s for lane in monitor.statistics())
    threading.Event().wait(SAMPLER_S)
    used = sum(lane.cpu_s for lane in monitor.statistics()) - before
    monitor.stop()
    return used / SAMPLER_S * 100
