"""A single survey of the machine: its hardware, the readings of each GPU, and why something is missing."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil

from gpudash.devices.names import Gpu
from gpudash.sources.host import HostReader
from gpudash.sources.nvml.errors import NvmlUnavailableError, why_no_gpu
from gpudash.sources.nvml.gpu_reader import GpuReader
from gpudash.sources.nvml.library import Nvml, PendingCall, wait_for
from gpudash.system.files import text_of
from gpudash.telemetry.metrics import METRICS
from gpudash.telemetry.records import Sample, State, Value
from gpudash.units import format_duration


@dataclass(frozen=True, slots=True)
class GpuSurvey:
    """The readings of one GPU.

    Attributes:
        gpu: the GPU.
        readings: metric of the ``gpu`` table → value.
        states: metric → why it has no value; metrics that have one are ``OK``.
        memory_version: version of NVML's memory call; with 1, `used_bytes` includes the driver's reserved memory.
        processes: rows of the ``process`` table.
    """

    gpu: Gpu
    readings: Mapping[str, Value]
    states: Mapping[str, State]
    memory_version: int | None
    processes: tuple[Mapping[str, Value], ...] = ()


@dataclass(frozen=True, slots=True)
class HostSurvey:
    """The host: processor model, logical cores, memory capacity in bytes and what limits it."""

    product: str
    cores: int
    total_bytes: int
    available_bytes: int
    capacity_source: str


@dataclass(frozen=True, slots=True)
class Survey:
    """The machine's hardware.

    Attributes:
        host: processor and memory.
        gpus: each GPU with its readings, in NVML's order.
        problem: why there is no GPU, or which one does not respond, in one sentence; else ``None``.
        driver_version: such as "580.65.06".
        nvml_version: version of NVML.
        cuda_driver_version: the newest CUDA version that the driver supports, such as "13.0".
    """

    host: HostSurvey
    gpus: tuple[GpuSurvey, ...] = ()
    problem: str | None = None
    driver_version: str | None = None
    nvml_version: str | None = None
    cuda_driver_version: str | None = None


def survey(timeout_s: float = 3.0, root: Path = Path("/")) -> Survey:
    """Survey the machine once.

    Args:
        timeout_s: time limit for the NVIDIA driver. A GPU that identifies itself and then hangs is listed without
            readings; a GPU that does not, or a driver that hangs, is reported in `Survey.problem`.
        root: parent folder of ``proc`` and ``sys``.
    """
    deadline = time.monotonic() + timeout_s
    nvml = Nvml(root)
    opened = PendingCall(partial(_open, nvml, timeout_s / 2), "survey")
    host = survey_host(root)
    opened.wait(timeout_s)
    first = opened.answer()
    if first is None:
        silence = f"The NVIDIA driver has not answered for {format_duration(timeout_s)}"
        return Survey(host, problem=f"{silence}; restart the machine if it stays so.")
    pending = [(gpu, PendingCall(partial(_survey_gpu, gpu, nvml, root), f"survey {gpu.uuid}")) for gpu in first.gpus]
    wait_for([call for _, call in pending], max(0.1, deadline - time.monotonic()))
    gpus = tuple(call.answer() or _silent(gpu) for gpu, call in pending)
    problem = None
    if nvml.silent():
        problem = f"GPU {' and '.join(nvml.silent())} does not answer the driver; restart the machine if it stays so."
    elif not gpus:
        problem = why_no_gpu(nvml.fault, root, os.environ).text
    if not nvml.silent() and all(call.answered for _, call in pending):
        PendingCall(nvml.close, "survey close").wait(deadline - time.monotonic())
    return Survey(host, gpus, problem, first.driver_version, first.nvml_version, first.cuda_driver_version)


def survey_host(root: Path = Path("/")) -> HostSurvey:
    """Processor and memory, without calling any driver."""
    reader = HostReader(root)
    try:
        values = reader.read(0.0)[0].values
        return HostSurvey(
            product=_processor(root),
            cores=psutil.cpu_count() or os.cpu_count() or 1,
            total_bytes=reader.capacity_bytes,
            available_bytes=int(values["available_bytes"] or 0),
            capacity_source=reader.capacity_source,
        )
    finally:
        reader.close()


@dataclass(frozen=True, slots=True)
class _Opened:
    gpus: tuple[Gpu, ...] = ()
    driver_version: str | None = None
    nvml_version: str | None = None
    cuda_driver_version: str | None = None


def _open(nvml: Nvml, patience_s: float) -> _Opened:
    try:
        nvml.open()
        versions = nvml.driver_version(), nvml.library_version(), nvml.cuda_version()
        return _Opened(tuple(nvml.gpus(patience_s)), *versions)
    except NvmlUnavailableError as failure:
        nvml.abandon(failure.fault)
        return _Opened()


def _silent(gpu: Gpu) -> GpuSurvey:
    return GpuSurvey(gpu, {}, {metric.name: State.STALE for metric in METRICS["gpu"]}, None)


def _survey_gpu(gpu: Gpu, nvml: Nvml, root: Path) -> GpuSurvey:
    reader = GpuReader(gpu, nvml, root=root)
    try:
        began_s = time.monotonic()
        records = [*reader.read_fast(0.0), *reader.read_slow(0.0)]
        records += reader.read_fast(time.monotonic() - began_s)  # a counter's rate needs two readings
    finally:
        reader.close()
    samples = [record for record in records if isinstance(record, Sample)]
    readings: dict[str, Value] = {}
    for sample in samples:
        if sample.table == "gpu":
            readings.update(sample.values)
    rows = tuple(sample.values for sample in samples if sample.table == "process")
    return GpuSurvey(gpu, readings, dict(reader.states), reader.memory_version, rows)


def _processor(root: Path) -> str:
    """The processor's name as the kernel reports it, else the architecture."""
    for line in text_of(root / "proc/cpuinfo").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return " ".join(value.split())
    return platform.processor() or platform.machine() or "CPU"
