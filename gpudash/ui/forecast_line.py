"""The line that extends the memory plot to where memory is going, when its end is near."""

from __future__ import annotations

from gpudash.session import Replay, Session
from gpudash.telemetry.records import Table
from gpudash.ui.plots.stack import PlotStack

SHOWN_S = 60.0
"""Remaining time below which the plot shows where memory is going."""


def draw_forecast(session: Session | Replay, plots: PlotStack, selected: str) -> None:
    """Draw the forecast of the memory ``selected`` ("host" or a GPU's UUID), or take the line away."""
    ahead = session.forecast(selected)
    if ahead is None or ahead.seconds > SHOWN_S:
        plots.set_forecast("memory", None)
        return
    table: Table = "host" if selected == "host" else "gpu"
    with session.store.lock:
        reading = session.store.latest(table, "used_bytes", None if selected == "host" else selected)
    if isinstance(reading.value, (int, float)) and reading.time_s is not None:
        begin = (reading.time_s, float(reading.value))
        end = (reading.time_s + ahead.seconds, begin[1] + ahead.bytes_per_second * ahead.seconds)
        plots.set_forecast("memory", [begin, end])
