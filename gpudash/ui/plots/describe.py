"""A plot in words, for those who hear it."""

from __future__ import annotations

import math

from gpudash.telemetry.store import Store
from gpudash.ui.plots.curve import CurveSpec, PlotSpec, format_value
from gpudash.ui.plots.reading import PlotData, Row, value_at
from gpudash.units import format_bytes, format_pair

SLOPE_S = 5.0
"""How far back a trend is measured."""

_STEADY = 1024 * 1024
"""Bytes a second below which memory counts as steady."""


def describe_plot(store: Store, spec: PlotSpec, data: PlotData, rows: list[Row]) -> str:
    """One sentence: what the plot shows now. The caller holds ``store.lock``.

    Args:
        store: for the trend.
        spec: the plot.
        data: as drawn, for the capacity.
        rows: newest values of the visible curves.
    """
    bands = [row for row in rows if row.curve.stack and not row.curve.faint]
    if bands:
        return f"{spec.title}, {_memory(store, spec, data, bands)}"
    words = [f"{row.curve.name} {format_value(row.curve.unit, row.value, row.curve.unit_name)}" for row in rows]
    return f"{spec.title}, now {', '.join(words) if words else 'every curve hidden'}"


def _memory(store: Store, spec: PlotSpec, data: PlotData, bands: list[Row]) -> str:
    known = [row.value for row in bands if row.value is not None]
    if not known:
        return "no reading now"
    used = sum(known)
    capacity = next((v for line, v in zip(spec.lines, data.levels, strict=False) if line.colour == "capacity"), None)
    text = f"now {format_bytes(used)}" if capacity is None else f"now {format_pair(used, capacity)}"
    before = _total(store, [row.curve for row in bands], store.newest_s - SLOPE_S)
    if before is None:
        return text
    slope = (used - before) / SLOPE_S
    if abs(slope) < _STEADY:
        return f"{text}, steady"
    return f"{text}, {'rising' if slope > 0 else 'falling'} {format_bytes(abs(slope))}/s"


def _total(store: Store, curves: list[CurveSpec], time_s: float) -> float | None:
    total = 0.0
    for curve in curves:
        series = store.series(*curve.key)
        value = None if series is None else value_at(series, time_s)
        if value is not None:
            total += value
    return None if total == 0.0 or math.isnan(total) else total
