"""Which plots a dashboard shows, and what stands in them beside the readings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gpudash.devices.names import known_product
from gpudash.session.recordings.run_names import process_text
from gpudash.session.source import DashboardSource
from gpudash.telemetry.plots import PlotSpec, memory_plot, plots_for, run_in_view
from gpudash.telemetry.runs import RunView
from gpudash.ui.dashboard.showing.devices import ShownDevice, key_of
from gpudash.ui.dashboard.showing.overlay import ShownOverlay
from gpudash.ui.dashboard.showing.prediction import ShownPrediction
from gpudash.ui.plots.view import TimeView


class ShownPlots:
    """The plots of the device, the run and the prediction that are shown."""

    def __init__(
        self,
        session: DashboardSource,
        view: TimeView,
        device: ShownDevice,
        prediction: ShownPrediction,
        overlay: ShownOverlay,
    ) -> None:
        self._session = session
        self._view = view
        self._device = device
        self._prediction = prediction
        self._overlay = overlay

    def specs(self, *, to_capacity: bool, rank: int | None, warned: bool) -> list[PlotSpec]:
        """The plots, the memory of the device first. The caller holds the store's lock.

        Args:
            to_capacity: whether the memory axis reaches to the capacity.
            rank: the rank whose curves are shown; ``None`` for all.
            warned: whether a warning is shown.
        """
        session, store, view = self._session, self._session.store, self._view
        selected = self._device.key
        warn = session.settings.warn_ratio
        by_key = {key_of(device): device.name for device in session.devices()}
        gpus = {gpu.uuid: gpu for gpu in session.gpus}
        run = run_in_view(store, view.range())
        compared = self._compared(run)
        if compared and selected not in compared:
            selected = compared[-1]
        plots: Sequence[PlotSpec] = plots_for(
            store,
            selected=selected,
            device_name=session.device_text(selected),
            allocator=None if selected == "host" else by_key.get(selected),
            warn_ratio=warn,
            to_capacity=to_capacity,
            gpu=gpus.get(selected),
            rank=rank,
            span=view.range(),
            warned=warned,
            own=process_text(run, store.newest_s, view.drawn()[0]),
        )
        plots = self._prediction.with_peak(plots, run)
        plots = [self._of_memory(plot, selected) if plot.id == "memory" else plot for plot in plots]
        first, *others = self._prediction.on(self._overlay.on(plots))
        compared_memory = []
        for key in compared:
            if key != selected:
                name = by_key[key]
                plot = memory_plot(store, key, name, name, warn, to_capacity=False, gpu=gpus.get(key))
                compared_memory.append(replace(plot, id=f"{plot.id} {plot.title}"))
        return [first, *compared_memory, *others]

    def _compared(self, run: RunView | None) -> list[str]:
        """The devices ("host" or a GPU's UUID) of the comparison in view."""
        if run is None or run.workload != "comparison":
            return []
        names = dict.fromkeys(str(run.spec.get("devices", "")).split(","))
        keys = {device.name: key_of(device) for device in self._session.devices()}
        return [keys[name] for name in names if name in keys]

    def _of_memory(self, plot: PlotSpec, selected: str) -> PlotSpec:
        """The memory plot, with a simulated card named as its chip does."""
        live = self._session.live
        if live is not None and selected in live.machine.simulated.chosen:
            found = (known_product(one.product) for one in self._session.devices() if one.uuid == selected)
            product = next(found, "")
            if product:
                plot = replace(plot, title=f"{plot.title} · {product}")
        return plot
