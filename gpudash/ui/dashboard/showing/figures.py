"""The figures of a session's devices: on their cards and in the table, with the forecast of when memory runs out."""

from __future__ import annotations

from dataclasses import replace

from gpudash.devices.names import shown_name
from gpudash.memory.watching.growth import Forecast
from gpudash.memory.watching.watch import ends_in
from gpudash.session.source import DashboardSource
from gpudash.telemetry.records import Table
from gpudash.telemetry.store import Store
from gpudash.ui.dashboard.cards import CardContent, device_rows, gpu_card, host_card
from gpudash.ui.plots.stack import PlotStack

SHOWN_S = 60.0
"""Remaining seconds below which the plot shows the forecast."""


class ShownFigures:
    """What is known of every device now.

    Attributes:
        contents: what the devices' cards say, except for the time that remains.
        forecasts: memory ("host" or a GPU's UUID) → its forecast; empty for a recording.
    """

    def __init__(self, session: DashboardSource) -> None:
        self._session = session
        self.contents: list[CardContent] = []
        self.forecasts: dict[str, Forecast | None] = {}

    def refresh_forecasts(self) -> None:
        """Ask when each memory runs out."""
        live = self._session.live
        if live is not None:
            memories = ("host", *(gpu.uuid for gpu in self._session.gpus))
            self.forecasts = {key: live.forecast(key) for key in memories}

    def refresh(self, store: Store) -> list[tuple[str, str, str, str]]:
        """Read the figures of the session's ``store``, at any moment, and return the rows of their table. The caller
        holds the store's lock."""
        session = self._session
        devices = session.devices()
        warn = session.settings.warn_ratio
        names = {device.uuid: device.name for device in devices if device.uuid}
        self.contents = [host_card(store, devices[0], session.host_capacity_source, warn)]
        rows: list[tuple[str, Table, str | None]] = [("cpu", "host", None)]
        for gpu in session.gpus:
            name = names.get(gpu.uuid) or f"GPU {gpu.number}"
            self.contents.append(gpu_card(store, gpu, name, warn))
            rows.append((shown_name(name), "gpu", gpu.uuid))
        return device_rows(store, rows)

    def on_cards(self) -> list[CardContent]:
        """The contents, with the time that remains as their first fact once the plot shows the forecast."""
        found = []
        for content in self.contents:
            ahead = self._soon(content.key)
            if ahead is not None:
                content = replace(content, facts=[ends_in(ahead), *content.facts])
            found.append(content)
        return found

    def draw_forecast(self, plots: PlotStack, selected: str) -> None:
        """Draw the forecast of the memory ``selected`` ("host" or a GPU's UUID), or remove it."""
        ahead = self._soon(selected)
        if ahead is None:
            plots.set_forecast("memory", None)
            return
        store = self._session.store
        with store.lock:
            if selected == "host":
                reading = store.latest("host", "used_bytes", None)
            else:
                reading = store.latest("gpu", "used_bytes", selected)
        if isinstance(reading.value, (int, float)) and reading.time_s is not None:
            begin = (reading.time_s, float(reading.value))
            end = (reading.time_s + ahead.seconds, begin[1] + ahead.bytes_per_second * ahead.seconds)
            plots.set_forecast("memory", [begin, end])

    def _soon(self, memory: str) -> Forecast | None:
        """The forecast of a memory, if the plot shows it."""
        ahead = self.forecasts.get(memory)
        if ahead is None or ahead.seconds > SHOWN_S:
            return None
        return ahead
