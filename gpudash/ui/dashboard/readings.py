"""From the store's latest readings to what cards and tables say. No widgets here."""

from __future__ import annotations

import math

from gpudash.devices.names import Device, Gpu, short_product
from gpudash.telemetry.metrics import GPU_METRICS, METRICS, SENSORS, Metric
from gpudash.telemetry.records import State, Table
from gpudash.telemetry.store import Store
from gpudash.ui.dashboard.cards import CardContent
from gpudash.units import (
    NOT_REPORTED,
    format_bytes,
    format_pair,
    format_percent,
)

STATE_WORDS = {
    State.LOST: "stopped answering",
    State.ASLEEP: "asleep, not woken",
    State.STALE: "driver does not answer",
    State.NO_PERMISSION: "not permitted",
    State.NOT_SUPPORTED: "not reported",
}


def host_card(store: Store, device: Device, capacity_source: str, warn_ratio: float) -> CardContent:
    """The card of the CPU and its memory."""
    used, total = _number(store, "host", "used_bytes"), _number(store, "host", "total_bytes")
    own = _number(store, "host", "process_bytes")
    cpu, swap = _number(store, "host", "cpu_utilisation"), _number(store, "host", "swap_used_bytes")
    cache = _number(store, "host", "file_cache_bytes")
    bands: list[tuple[str, float, str]] = []
    if used is not None and own is not None:
        bands = [
            ("process", own, "this process"),
            ("other", max(0.0, used - own), "other processes"),
            ("cache", min(cache or 0.0, max(0.0, (total or 0.0) - used)), "file cache"),
        ]
    facts = [f"CPU {format_percent(cpu)}"] if cpu is not None else []
    if swap is not None:
        facts.append(f"swap {format_bytes(swap)}" if swap else "swap 0")
    words = "RAM" if capacity_source in ("", "RAM") else "of a limit"
    details = [f"{name}: {format_bytes(size)}" for _colour, size, name in bands]
    details.append(f"capacity: {format_bytes(total)} ({capacity_source or 'RAM'})")
    return CardContent(
        key="host",
        device="cpu",
        product=short_product(device.product),
        used=used,
        total=total,
        memory_words=words,
        bands=bands,
        mark_ratio=warn_ratio,
        facts=facts,
        details="\n".join(details),
    )


def gpu_card(store: Store, gpu: Gpu, name: str, warn_ratio: float) -> CardContent:
    """The card of a GPU."""
    key = gpu.uuid
    used, total = _number(store, "gpu", "used_bytes", key), _number(store, "gpu", "total_bytes", key)
    state = store.latest("gpu", "used_bytes", key).state
    bands = _gpu_bands(store, key, used, "context" if gpu.simulated else "CUDA context")
    shown = (GPU_METRICS["gpu_utilisation"], *SENSORS)
    facts = [metric.brief(value) for metric in shown if (value := _number(store, "gpu", metric.name, key)) is not None]
    generation, width = _number(store, "gpu", "pcie_generation", key), _number(store, "gpu", "pcie_width", key)
    if generation is not None and width is not None:
        facts.append(f"Gen{generation:.0f} x{width:.0f}")
    details = [f"{words}: {format_bytes(size)}" for _colour, size, words in bands]
    if gpu.simulated:
        details.append("nothing of this GPU is there but its memory's bookkeeping; the CPU computes")
    else:
        details.append(f"driver reserved: {format_bytes(_number(store, 'gpu', 'driver_reserved_bytes', key))}")
    details.append(f"free: {format_bytes(_number(store, 'gpu', 'free_bytes', key))}")
    return CardContent(
        key=key,
        device=name,
        product=short_product(gpu.product),
        used=used,
        total=total,
        memory_words="VRAM",
        bands=bands,
        mark_ratio=warn_ratio,
        facts=facts,
        state="" if state in (State.OK, State.NOT_SUPPORTED) else STATE_WORDS[state],
        details="\n".join(details),
        simulated=gpu.simulated,
    )


def _gpu_bands(store: Store, key: str, used: float | None, context: str) -> list[tuple[str, float, str]]:
    """The bands the plot draws, at their newest; a band that is a gap is left out."""
    if used is None:
        return []
    found: dict[str, float] = {}
    for name in ("other", "context", "allocated", "idle"):
        series = store.series("gpu", f"{name}_bytes", key)
        last = None if series is None else series.last()
        if last is not None and not math.isnan(last[1]):
            found[name] = last[1]
    others = "other processes" if "context" in found else f"{context} and other processes"
    words = {"other": others, "context": context, "allocated": "allocated", "idle": "idle inside PyTorch"}
    return [(name, size, words[name]) for name, size in found.items()]


def device_rows(store: Store, devices: list[tuple[str, Table, str | None]]) -> list[tuple[str, str, str, str]]:
    """(device, metric, value, state) for every metric of every device, for the devices table."""
    return [
        (name, metric.title, _words(metric, value.value), value.state.value)
        for name, table, key in devices
        for metric in METRICS[table]
        if (value := store.latest(table, metric.name, key)).time_s is not None
    ]


def _words(metric: Metric, value: object) -> str:
    if not isinstance(value, (int, float)):
        return NOT_REPORTED if value is None else str(value)
    return metric.words(value)


def memory_words(store: Store, table: Table, key: str | None) -> str:
    """ "11.2 of 24.0 GiB" for a device."""
    return format_pair(_number(store, table, "used_bytes", key), _number(store, table, "total_bytes", key))


def _number(store: Store, table: Table, metric: str, device: str | None = None) -> float | None:
    value = store.latest(table, metric, device).value
    return float(value) if isinstance(value, (int, float)) else None
