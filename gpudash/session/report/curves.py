"""Which plots a run's report shows, with which curves: what the window shows of the same run, as lines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from gpudash.devices.names import SIMULATED
from gpudash.telemetry.runs import RunView
from gpudash.telemetry.store import WATCH, Key, Store
from gpudash.units import format_bytes, format_duration, format_percent, format_rate, format_throughput

Unit = Literal["bytes", "rate", "ratio", "nats", "items", "seconds"]

WORDS: dict[Unit, Callable[[float], str]] = {
    "bytes": format_bytes,
    "rate": format_rate,
    "ratio": format_percent,
    "nats": lambda value: f"{value:.3g}",
    "items": format_throughput,
    "seconds": format_duration,
}
"""How a value on an axis is written."""


@dataclass(frozen=True, slots=True)
class Curve:
    """A series to draw: where it is in the store, what it is called, its colour, and how it is drawn.

    Attributes:
        colour: name of a colour of the page's style.
        style: "area" is filled down to zero, so that areas of which each holds the one before it are bands; "pulses"
            stand on zero, so that the narrowest is seen; "limit" is a dashed line that need not be on the plot.
        right: whether it is drawn against the right axis, a ratio from 0 to 1.
    """

    key: Key
    name: str
    colour: str
    style: Literal["line", "area", "dashed", "pulses", "limit"] = "line"
    right: bool = False


@dataclass(frozen=True, slots=True)
class Plot:
    """Curves over one another."""

    title: str
    unit: Unit
    curves: tuple[Curve, ...]


def plots(store: Store, device: str, uuid: str | None, run: RunView | None) -> list[Plot]:
    """The plots of which there is anything; called under the store's lock.

    Args:
        store: what is known.
        device: torch's name of the device.
        uuid: of the GPU, ``None`` for the CPU.
        run: that is shown; ``None`` where the machine was only watched.
    """
    found = (
        Plot(title, unit, tuple(curve for curve in curves if store.series(*curve.key) is not None))
        for title, unit, curves in _wanted(device, uuid, run)
    )
    return [plot for plot in found if any(curve.style != "limit" for curve in plot.curves)]


def _wanted(device: str, uuid: str | None, run: RunView | None) -> Iterator[tuple[str, Unit, Sequence[Curve]]]:
    simulated = f" ({SIMULATED})" if run is not None and run.simulated else ""
    yield "Memory", "bytes", _host_memory() if uuid is None else _gpu_memory(device, uuid)
    if run is not None:
        yield (
            "Loss and accuracy" if run.workload == WATCH else "Loss (nats) and accuracy",
            "nats",
            (
                Curve(("run", "loss", None), "loss", "orange"),
                Curve(("run", "accuracy", None), "accuracy", "green", "dashed", right=True),
            ),
        )
        yield f"Throughput{simulated}", "items", (Curve(("run", "throughput", None), "items a second", "sky"),)
    yield (
        f"Transfer bandwidth{simulated}",
        "rate",
        (
            Curve(("transfer", "h2d", None), "H2D", "green", "pulses"),
            Curve(("transfer", "d2h", None), "D2H", "purple", "pulses"),
            Curve(("transfer", "h2h", None), "host → host", "sky", "pulses"),
            Curve(("transfer", "d2d", None), "D2D", "grey", "pulses"),
        ),
    )
    gpu = (
        Curve(("gpu", "gpu_utilisation", uuid), "GPU", "sky"),
        Curve(("gpu", "memory_utilisation", uuid), "memory controller", "orange", "dashed"),
    )
    yield (
        "Utilisation",
        "ratio",
        (*(gpu if uuid is not None else ()), Curve(("host", "cpu_utilisation", None), "CPU", "green")),
    )


def _host_memory() -> tuple[Curve, ...]:
    return (
        Curve(("host", "process_bytes", None), "this process", "sky", "area"),
        Curve(("host", "used_bytes", None), "used by all", "grey", "area"),
        Curve(("host", "total_bytes", None), "capacity", "red", "limit"),
    )


def _gpu_memory(device: str, uuid: str) -> tuple[Curve, ...]:
    return (
        Curve(("allocator", "allocated_bytes", device), "allocated", "sky", "area"),
        Curve(("allocator", "reserved_bytes", device), "reserved", "blue", "area"),
        Curve(("gpu", "used_bytes", uuid), "used by all", "grey", "area"),
        Curve(("gpu", "total_bytes", uuid), "capacity", "red", "limit"),
    )
