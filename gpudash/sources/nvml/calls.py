"""Single NVML calls in gpudash's units. Each raises pynvml's exceptions (`nvml_errors.NVML_ERRORS`)."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple, TypeVar

import pynvml

from gpudash.sources.nvml.errors import NVML_ERRORS, Scope, classify
from gpudash.telemetry.records import Value

T = TypeVar("T")

_MEMORY_V2 = ctypes.c_ulonglong * 5
"""nvmlMemory_v2_t: version, total, reserved, free and used."""

_FIELD = struct.Struct("=IIqqIIQ")
"""nvmlFieldValue_t: field, scope, timestamp, latency, type of the value, return code of the field, value."""


class Memory(NamedTuple):
    """A GPU's memory in bytes.

    Attributes:
        version: version of the call. With 1, `used` includes the driver's reserved memory and `reserved` is unknown;
            with 2 it does not (nvml.h says otherwise; measurements agree with nvidia-smi).
    """

    version: int
    total: int
    used: int
    free: int
    reserved: int | None


def read_memory(handle: Any, version: int | None = None) -> Memory:
    """Memory by the call's given version; ``None`` tries version 2, then version 1.

    Some drivers report a total of 0 if the memory is the host's: that counts as not supported.
    """
    if version is None:
        try:
            return read_memory(handle, 2)
        except NVML_ERRORS as error:
            # Only if the call itself is refused: a lost GPU is lost with version 1 too.
            if classify(error).scope is not Scope.METRIC:
                raise
            return read_memory(handle, 1)
    if version == 2:
        info_v2 = _MEMORY_V2(pynvml.nvmlMemory_v2)
        _call("nvmlDeviceGetMemoryInfo_v2", handle, info_v2)
        _version, total, reserved, free, used = info_v2
        memory = Memory(2, total, used, free, reserved)
    else:
        info = pynvml.nvmlDeviceGetMemoryInfo(handle)
        memory = Memory(1, int(info.total), int(info.used), int(info.free), None)
    if memory.total == 0:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
    return memory


def utilisation(handle: Any) -> dict[str, Value]:
    """Shares of time in which the GPU computed, and in which its memory was accessed (not how full it is)."""
    rates = pynvml.nvmlDeviceGetUtilizationRates(handle)
    return {"gpu_utilisation": rates.gpu / 100, "memory_utilisation": rates.memory / 100}


def temperature(handle: Any) -> dict[str, Value]:
    try:
        degrees = pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU)
    except pynvml.NVMLError_FunctionNotFound:
        degrees = pynvml.nvmlDeviceGetTemperatureV(handle, pynvml.NVML_TEMPERATURE_GPU)
    return {"temperature_c": float(degrees)}


def power(handle: Any) -> dict[str, Value]:
    return {"power_w": pynvml.nvmlDeviceGetPowerUsage(handle) / 1000}


def energy(handle: Any) -> dict[str, Value]:
    """Joules since the driver was loaded."""
    return {"energy_j": pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000}


HEAT = pynvml.nvmlClocksEventReasonSwThermalSlowdown | pynvml.nvmlClocksEventReasonHwThermalSlowdown
BRAKE = pynvml.nvmlClocksEventReasonHwSlowdown
POWER = pynvml.nvmlClocksEventReasonSwPowerCap | pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown
"""Reasons for lower clocks (nvml.h, nvmlClocksEventReasons). The hardware's brake reacts to heat or power: other bits
say which; without one it counts as heat."""


def slowdown(handle: Any) -> dict[str, Value]:
    """Whether clocks are reduced because of heat, or of power, and NVML's bits for the reasons."""
    try:
        reasons = pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle)
    except pynvml.NVMLError_FunctionNotFound:
        reasons = pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
    power = bool(reasons & POWER)
    heat = bool(reasons & HEAT) or (bool(reasons & BRAKE) and not power)
    return {"slowed_by_heat": int(heat), "slowed_by_power": int(power), "clocks_event_reasons": int(reasons)}


def ecc_errors(handle: Any) -> dict[str, Value]:
    """Uncorrected memory errors since the driver was loaded."""
    found = pynvml.nvmlDeviceGetTotalEccErrors(
        handle, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC
    )
    return {"ecc_uncorrected_errors": int(found)}


def sm_clock(handle: Any) -> dict[str, Value]:
    return {"sm_clock_hz": pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM) * 1e6}


def memory_clock(handle: Any) -> dict[str, Value]:
    return {"memory_clock_hz": pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_MEM) * 1e6}


def pcie_generation(handle: Any) -> dict[str, Value]:
    """The PCIe link's current generation; an idle link runs at a lower one."""
    return {"pcie_generation": int(pynvml.nvmlDeviceGetCurrPcieLinkGeneration(handle))}


def pcie_width(handle: Any) -> dict[str, Value]:
    return {"pcie_width": int(pynvml.nvmlDeviceGetCurrPcieLinkWidth(handle))}


def pcie_throughput(handle: Any) -> dict[str, Value]:
    """Rates, each over a window of 20 ms, one after the other: blocks for about 40 ms. NVML's unit is KB/s."""
    received = pynvml.nvmlDeviceGetPcieThroughput(handle, pynvml.NVML_PCIE_UTIL_RX_BYTES)
    sent = pynvml.nvmlDeviceGetPcieThroughput(handle, pynvml.NVML_PCIE_UTIL_TX_BYTES)
    return {"pcie_rx_bytes_per_second": received * 1e3, "pcie_tx_bytes_per_second": sent * 1e3}


class ByteCounter(NamedTuple):
    """A byte counter, and the width in bits of its type."""

    value: int
    bits: int


def counters_wanted(fields: Iterable[tuple[int, int]]) -> bytes:
    """The request for `counters`: a (field, scope) pair each, NVML's ``NVML_FI_…`` and the part, such as a link."""
    return b"".join(_FIELD.pack(field, scope, 0, 0, 0, 0, 0) for field, scope in fields)


_PCIE = counters_wanted(
    (field, 0) for field in (pynvml.NVML_FI_DEV_PCIE_COUNT_RX_BYTES, pynvml.NVML_FI_DEV_PCIE_COUNT_TX_BYTES)
)


def pcie_counters(handle: Any) -> tuple[ByteCounter, ByteCounter]:
    """(received, sent) bytes since some time in the past; for drivers from 555 on."""
    received, sent = (_counter(*field) for field in _fields(handle, _PCIE))
    return received, sent


def counters(handle: Any, wanted: bytes) -> list[ByteCounter | None]:
    """Values of counters, in one call; ``None`` for those that this GPU or driver lacks."""
    found: list[ByteCounter | None] = []
    for field in _fields(handle, wanted):
        _field, _scope, _timestamp, _latency, kind, answer, _value = field
        # A double is a rate, not a counter.
        if answer == pynvml.NVML_SUCCESS and kind != pynvml.NVML_VALUE_TYPE_DOUBLE:
            found.append(_counter(*field))
        else:
            found.append(None)
    return found


def _fields(handle: Any, wanted: bytes) -> Iterable[tuple[int, int, int, int, int, int, int]]:
    """The call succeeds if any field does, so check each field's own return code."""
    # A copy, since NVML writes the answers into the request.
    values = (ctypes.c_char * len(wanted)).from_buffer_copy(wanted)
    _call("nvmlDeviceGetFieldValues", handle, len(wanted) // _FIELD.size, values)
    return _FIELD.iter_unpack(values.raw)


def _counter(
    _field: int, _scope: int, _timestamp: int, _latency: int, kind: int, answer: int, value: int
) -> ByteCounter:
    if answer != pynvml.NVML_SUCCESS:
        raise pynvml.NVMLError(answer)
    if kind == pynvml.NVML_VALUE_TYPE_UNSIGNED_INT:
        return ByteCounter(value % (1 << 32), 32)
    return ByteCounter(value, 64)


def _call(function: str, *arguments: Any) -> None:
    """NVML call for frequent readings: pynvml runs a Python function for every field of its structures."""
    try:
        call = getattr(pynvml.nvmlLib, function)
    except AttributeError:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND) from None
    answer = call(*arguments)
    if answer != pynvml.NVML_SUCCESS:
        raise pynvml.NVMLError(answer)


def fullest_link(handle: Any) -> tuple[int | None, int | None]:
    """(generation, lanes) that the PCIe link to this GPU can have at most; ``None`` if the driver does not report
    it."""
    generation = optional(lambda: pynvml.nvmlDeviceGetMaxPcieLinkGeneration(handle))
    width = optional(lambda: pynvml.nvmlDeviceGetMaxPcieLinkWidth(handle))
    if generation is not None:
        generation = int(generation)
    # A driver that does not know reports 0 lanes.
    if width:
        return generation, int(width)
    return generation, None


class Instance(NamedTuple):
    """A MIG instance of a GPU: its number, its handle, its multiprocessors and its profile ("3g.40gb")."""

    number: int
    handle: Any
    multiprocessors: int | None
    profile: str


def instances(handle: Any) -> list[Instance]:
    """The MIG instances of a GPU; none if it is not divided, or its driver does not support MIG."""
    mode = optional(lambda: pynvml.nvmlDeviceGetMigMode(handle))
    if mode is None or mode[0] != pynvml.NVML_DEVICE_MIG_ENABLE:
        return []
    found = []
    for number in range(optional(lambda: pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)) or 0):
        part = optional(partial(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, number))
        if part is not None:  # numbers of destroyed instances stay unused
            size = optional(partial(pynvml.nvmlDeviceGetAttributes_v2, part))
            profile = ""
            multiprocessors = None
            if size is not None:
                profile = f"{size.gpuInstanceSliceCount}g.{round(size.memorySizeMB / 1024)}gb"
                multiprocessors = int(size.multiprocessorCount)
            found.append(Instance(number, part, multiprocessors, profile))
    return found


def processes(handle: Any) -> dict[int, int | None]:
    """Memory in bytes by PID (in the driver's PID namespace), ``None`` where it is not reported.

    A process that both computes and draws is in both lists, with the same figure.
    """
    found: dict[int, int | None] = {}
    for kind in ("Compute", "Graphics"):
        for process in _listed(kind, handle):
            pid = int(process.pid)
            used = process.usedGpuMemory
            before = found.get(pid)
            if used is None:
                found[pid] = before
            else:
                found[pid] = max(int(used), before or 0)
    return found


def _listed(kind: str, handle: Any) -> Any:
    try:
        return getattr(pynvml, f"nvmlDeviceGet{kind}RunningProcesses")(handle)
    except pynvml.NVMLLibraryMismatchError:
        return getattr(pynvml, f"nvmlDeviceGet{kind}RunningProcesses_v2")(handle)


def optional(call: Callable[[], T]) -> T | None:
    """The result of ``call``; ``None`` if NVML does not support it for this card or version.

    Raises:
        Exception: one of `NVML_ERRORS`, if the GPU or the library has stopped responding.
    """
    try:
        return call()
    except NVML_ERRORS as error:
        if classify(error).scope is Scope.METRIC:
            return None
        raise
