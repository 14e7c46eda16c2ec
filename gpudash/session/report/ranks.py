"""The ranks of a run in its report: their memory, step time and loss as curves, and a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from gpudash.devices import shown_name
from gpudash.memory.snapshot.report_html import table
from gpudash.session.report.curves import Curve, Plot, Unit
from gpudash.telemetry.ranks.envelope import ENVELOPE, LEAST_RANKS
from gpudash.telemetry.runs import RunView
from gpudash.telemetry.store import Store
from gpudash.units import format_bytes, format_duration, format_percent

COLOURS = ("sky", "orange", "green", "purple")

_WANTED: tuple[tuple[str, Unit, tuple[str, ...]], ...] = (
    ("Memory by rank", "bytes", ("allocated_bytes", "used_bytes")),
    ("Step time by rank", "seconds", ("step_s",)),
    ("Loss by rank", "nats", ("loss",)),
)
"""Title, unit, and metrics of which the first is drawn that there is."""

_FIGURES = ("step", "computing", "communicating", "waiting", "peak allocated", "peak of the process")
_HEAD = (("rank", True), ("host", False), ("device", False), *((title, True) for title in _FIGURES))


def rank_plots(store: Store, run: RunView | None) -> list[Plot]:
    """The plots of which there is anything, one curve a rank, or the envelope of many; under the store's lock."""
    if run is None or not any(note.topic == "ranks" for note in run.notes):
        return []
    devices = {device for (name, _metric, device), _series in store.curves() if name == "rank" and device is not None}
    numbers = sorted(int(device) for device in devices if device.isdecimal())
    shown = [str(number) for number in numbers] if len(numbers) < LEAST_RANKS else [*ENVELOPE]
    found = []
    for title, unit, metrics in _WANTED:
        for metric in metrics:
            curves = tuple(
                _curve(place, device, metric)
                for place, device in enumerate(shown)
                if store.series("rank", metric, device) is not None
            )
            if curves:
                found.append(Plot(title, unit, curves))
                break
    return found


def rank_table(result: Mapping[str, Any] | None) -> list[str]:
    """The ranks of a run's result, and whether their parameters are equal; nothing of a run without."""
    rows = (result or {}).get("ranks")
    if result is None or not isinstance(rows, list):
        return []
    parts = ["<h3>Ranks</h3>", table(_HEAD, [_cells(row) for row in rows if isinstance(row, dict)])]
    equal = result.get("parameters_equal")
    if isinstance(equal, bool):
        parts.append(f"<p>The parameters are {'equal' if equal else 'NOT equal'} across the ranks.</p>")
    return parts


def _curve(place: int, device: str, metric: str) -> Curve:
    name = f"rank {device}" if device.isdecimal() else f"{device} of the ranks"
    return Curve(("rank", metric, device), name, COLOURS[place % len(COLOURS)], "dashed" if place % 2 else "line")


def _cells(row: Mapping[str, Any]) -> Sequence[str]:
    def cell(key: str, write: Any) -> str:
        value = row.get(key)
        known = isinstance(value, int | float) and not isinstance(value, bool)
        return escape(str(write(value))) if known else ""

    return [
        cell("rank", str),
        escape(str(row.get("host") or "")),
        escape(shown_name(str(row.get("device") or ""))),
        cell("step_seconds_median", format_duration),
        cell("compute_seconds_median", format_duration),
        cell("communication_share", format_percent),
        cell("waiting_share", format_percent),
        cell("peak_allocated_bytes", format_bytes),
        cell("peak_used_bytes", format_bytes),
    ]
