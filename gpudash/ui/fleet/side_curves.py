"""The curves of two looks at GPUs over one axis, and what they say of one another. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpudash.telemetry.comparing.curves import EMPTY, Curve
from gpudash.ui.plots.curve import NO_VALUE, Unit, format_value

if TYPE_CHECKING:
    from gpudash.telemetry.series import Statistics
    from gpudash.telemetry.store import Store

NOISE = 0.02
"""Share of the larger mean below which two means are called the same."""


@dataclass(frozen=True, slots=True)
class Metric:
    """What is drawn of each side: column of the reading table, title, unit."""

    column: str
    title: str
    unit: Unit
    unit_name: str = ""


METRICS = (
    Metric("used_bytes", "MEMORY USED", "bytes"),
    Metric("gpu_utilisation", "UTILISATION", "ratio"),
    Metric("temperature_c", "TEMPERATURE", "number", "°C"),
    Metric("power_w", "POWER", "number", "W"),
)

AXES = ((600.0, 1.0, "seconds"), (3 * 3600.0, 60.0, "minutes"), (3 * 86_400.0, 3600.0, "hours"))
"""Longest range, seconds in a unit of its axis, and that unit's name; days beyond."""


def axis_of(seconds: float) -> tuple[float, str]:
    """Seconds in a unit of the axis of a range, and the unit's name."""
    return next(((unit, name) for longest, unit, name in AXES if seconds <= longest), (86_400.0, "days"))


def has(store: Store, device: str, metric: Metric) -> bool:
    """Whether a look holds anything of a metric; called under the store's lock."""
    series = store.series("gpu", metric.column, device)
    return series is not None and series.statistics(-math.inf, math.inf) is not None


def curve_of(store: Store, device: str, metric: Metric, begin: float, end: float, columns: int) -> Curve:
    """What is drawn of a metric between two times on so many pixel columns; called under the store's lock."""
    series = store.series("gpu", metric.column, device)
    if series is None:
        return EMPTY
    x, y = series.window(begin, end, columns)
    return Curve(np.asarray(x, dtype=float), np.asarray(y, dtype=float))


def statistics_of(store: Store, device: str, metric: Metric, begin: float, end: float) -> Statistics | None:
    """Figures of a metric between two times; called under the store's lock."""
    series = store.series("gpu", metric.column, device)
    return None if series is None else series.statistics(begin, end)


def comparison_words(metric: Metric, a: Statistics | None, b: Statistics | None) -> str:
    """Mean and highest of both sides, and B against A in a word: more, less or the same."""
    if a is None or b is None:
        parts = [f"{letter}: {_figures(metric, found)}" for letter, found in (("A", a), ("B", b))]
        return "   ".join(parts)
    apart = b.mean - a.mean
    larger = max(abs(a.mean), abs(b.mean))
    if abs(apart) <= NOISE * larger:
        verdict = "the same on average"
    else:
        amount = f"{abs(apart) * 100:.0f} points" if metric.unit == "ratio" else _words(metric, abs(apart))
        verdict = f"B has {amount} {'more' if apart > 0 else 'less'} on average"
    return f"A: {_figures(metric, a)}   B: {_figures(metric, b)}   {verdict}"


def _figures(metric: Metric, found: Statistics | None) -> str:
    if found is None:
        return NO_VALUE
    return f"mean {_words(metric, found.mean)}, highest {_words(metric, found.max)}"


def _words(metric: Metric, value: float) -> str:
    return format_value(metric.unit, value, metric.unit_name)
