"""When memory is about to run out: the forecast on its card and in its plot."""

from __future__ import annotations

from dataclasses import replace

from gpudash.memory.watching.growth import Forecast
from gpudash.memory.watching.watch import ends_in
from gpudash.session.source import DashboardSource
from gpudash.telemetry.records import Table
from gpudash.ui.dashboard.cards import CardContent
from gpudash.ui.plots.stack import PlotStack

SHOWN_S = 60.0
"""Remaining seconds below which the plot shows the forecast."""


def in_time(content: CardContent, ahead: Forecast | None) -> CardContent:
    """A card's content with the remaining time as its first fact once the plot shows the forecast."""
    if ahead is None or ahead.seconds > SHOWN_S:
        return content
    return replace(content, facts=[ends_in(ahead), *content.facts])


def draw_forecast(session: DashboardSource, plots: PlotStack, selected: str, ahead: Forecast | None) -> None:
    """Draw the forecast of the memory ``selected`` ("host" or a GPU's UUID), or remove it."""
    if ahead is None or ahead.seconds > SHOWN_S:
        plots.set_forecast("memory", None)
        return
    table: Table = "gpu"
    if selected == "host":
        table = "host"
    with session.store.lock:
        reading = session.store.latest(table, "used_bytes", None if selected == "host" else selected)
    if isinstance(reading.value, (int, float)) and reading.time_s is not None:
        begin = (reading.time_s, float(reading.value))
        end = (reading.time_s + ahead.seconds, begin[1] + ahead.bytes_per_second * ahead.seconds)
        plots.set_forecast("memory", [begin, end])
