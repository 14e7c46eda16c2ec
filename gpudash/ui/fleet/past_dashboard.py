"""The dashboard over one GPU's past as a server tells it: the plots alone, with what was told and nothing else."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from PySide6.QtWidgets import QWidget

from gpudash.devices import SIMULATED
from gpudash.ui.dashboard import Dashboard
from gpudash.ui.live_plots import plots_for, reaches_to_capacity
from gpudash.ui.plots.curve import CurveSpec, PlotSpec

if TYPE_CHECKING:
    from gpudash.session import Replay
    from gpudash.telemetry.store import Store
    from gpudash.ui.theme import Palette


THERE = "gpudash there"
"""What the dashboard of this computer calls "this process"."""

NEAR = 0.9
"""Part of a range that must have been told of for it to be shown as far as that."""


def past_plots(store: Store, device: str, words: str, warn_ratio: float, *, to_capacity: bool) -> list[PlotSpec]:
    """The usual plots of a GPU, with temperature and power, without curves of which nothing was told.

    Called under the store's lock. Memory stays also where nothing was told, so that the empty range can be seen.

    Args:
        store: what was told.
        device: the GPU's UUID.
        words: what the GPU is called.
        warn_ratio: memory level of a warning.
        to_capacity: whether the memory axis reaches to the capacity.
    """
    usual = plots_for(
        store,
        selected=device,
        words=words,
        allocator=store.torch_name(device),
        warn_ratio=warn_ratio,
        to_capacity=to_capacity,
    )
    kept = []
    for plot in (*usual, *_further(device)):
        told = tuple(curve for curve in plot.curves if plot.id == "memory" or store.series(*curve.key) is not None)
        if told:
            title = f"MEMORY {words}" if plot.id == "memory" else plot.title  # torch's name says nothing elsewhere
            kept.append(replace(plot, title=title, curves=tuple(_elsewhere(curve) for curve in told)))
    return kept


def _elsewhere(curve: CurveSpec) -> CurveSpec:
    return replace(curve, name=curve.name.replace("this process", THERE))


def _further(device: str) -> tuple[PlotSpec, PlotSpec]:
    temperature = CurveSpec(("gpu", "temperature_c", device), "temperature", "number", "temperature", unit_name="°C")
    power = CurveSpec(("gpu", "power_w", device), "power", "number", "power", unit_name="W")
    return (
        PlotSpec(id="temperature", title="TEMPERATURE", curves=(temperature,), unit="number", unit_name="°C"),
        PlotSpec(id="power", title="POWER", curves=(power,), unit="number", unit_name="W"),
    )


class PastDashboard(Dashboard):
    """Plots of the past of one GPU.

    Args:
        view: the look at the past.
        palette: colours at the start.
        name: what the GPU is called.
    """

    def __init__(self, view: Replay, palette: Palette, name: str) -> None:
        super().__init__(view, palette, live=False)
        self._name = name
        self.view.time_words = "from the beginning of the range"
        self._closet = QWidget(self)
        self._closet.hide()
        for part in (self.panel, self.cards, self.view_bar, self.tabs):  # they ask for a run, or tell of this computer
            part.setParent(self._closet)

    @property
    def device(self) -> str:
        """What the GPU's readings are called in the store."""
        return self.session.gpus[0].uuid

    @property
    def selected(self) -> str:
        """The one GPU there is."""
        return self.device

    def told_until(self, seconds: float) -> float:
        """Where a range so long is shown to: its newest reading where that is near its end, so that it can be read."""
        store = self.session.store
        with store.lock:
            series = store.series("gpu", "used_bytes", self.device)
            last = None if series is None else series.last()
        near = last is not None and not math.isnan(last[1]) and last[0] > NEAR * seconds
        return last[0] if last is not None and near else seconds

    def _choose_plots(self) -> None:
        session, store, device = self.session, self.session.store, self.device
        simulated = f" ({SIMULATED})" if session.gpus[0].simulated else ""
        with store.lock:
            self._to_capacity = reaches_to_capacity(store, device, self._to_capacity)
            specs = past_plots(
                store, device, f"{self._name}{simulated}", session.settings.warn_ratio, to_capacity=self._to_capacity
            )
        if specs != self.layout_key:
            self.layout_key = specs
            self.plots.set_plots(specs)
            self.plots.set_caption(self._name, session.gpus[0].product + simulated)

    def refresh_figures(self) -> None:
        """Nothing here is told in figures beside the plots."""
        self.refreshed.emit()
