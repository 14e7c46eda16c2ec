"""The history of one GPU of a fleet in a tab: the usual plots, and a row of controls that selects the time range."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from PySide6.QtCore import Signal

from gpudash.devices.names import SIMULATED
from gpudash.telemetry.metrics import SENSORS
from gpudash.telemetry.plots import CurveSpec, PlotSpec, plots_for
from gpudash.ui.dashboard.document import Document
from gpudash.ui.dashboard.plots_page import SLOW_REFRESH, PlotsPage
from gpudash.ui.fleet.header import ProblemStrip, Range, RangeBar, range_text
from gpudash.ui.fleet.labels import clock_text, gpu_name
from gpudash.ui.widgets.layouts import in_column
from gpudash.ui.widgets.plain_text import PlainLabel

if TYPE_CHECKING:
    from gpudash.session.fleet import FleetView
    from gpudash.system.settings import Settings
    from gpudash.telemetry.fleet_gpu import FleetGpu
    from gpudash.telemetry.readings import Key
    from gpudash.telemetry.store import Store
    from gpudash.ui.colours import Palette


FIRST = Range()
"""The range shown at first: the last hour."""

NARROWEST, BUTTONS_PX = 200, 330
"""Minimum number of points to query, and the width of the window around the plots in pixels."""

ROLL_S = 5.0
"""Minimum seconds between queries of a range that ends now."""


def points_for(width: int) -> int:
    """Points per curve to query for a window of this width: one per pixel column of the plots."""
    return max(NARROWEST, width - BUTTONS_PX)


class GpuDocument(Document):
    """One GPU over any time range of its history.

    The tab sends its own queries, so it stays and can change its range after the overview is closed. When a part is
    zoomed
    into, drawing it makes the view query it in more detail.

    Args:
        view: view of the GPU's history; closed with the document.
        gpu: the GPU.
        palette: current colours.
        settings: current settings.
        wall_clock: seconds since the epoch.
        clock: any clock, in seconds.

    Signals:
        ready: the plots exist.
    """

    ready = Signal()

    def __init__(
        self,
        view: FleetView,
        gpu: FleetGpu,
        palette: Palette,
        settings: Settings,
        *,
        wall_clock: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self.title = gpu_name(gpu)
        self.setAccessibleName(f"Past of {self.title}")
        self._gpu, self._wall_clock, self._clock = gpu, wall_clock, clock
        self._frame = 0
        self._requested_s = clock()
        self._span = self._end = FIRST.seconds
        self._awaited = True
        self.view = view
        view.settings = settings
        self.past = past = PastPlots(view, palette, self.title)
        self.bar = RangeBar(FIRST, wall_clock)
        self.bar.changed.connect(self.ask)
        self.bar.whole_wanted.connect(self.show_whole)
        self.problem = ProblemStrip()
        self.head = PlainLabel(role="figure-small", selectable=True)
        past.rows.insertWidget(0, self.head)
        past.rows.insertWidget(1, self.bar)
        past.rows.insertWidget(2, self.problem)
        in_column(past, parent=self, margins=(0, 0, 0, 0))
        past.view.show(0.0, self._span)
        self._show_text()

    @property
    def plots_page(self) -> PlotsPage:
        """The plots; keys act on them."""
        return self.past

    @property
    def points(self) -> int:
        """Points per curve to query: one per pixel column."""
        return points_for(self.width())

    def ask(self) -> None:
        """Query the range that is set in the row of controls."""
        began, ended = self.bar.range.at(self._wall_clock())
        self._requested_s, self._span, self._awaited = self._clock(), ended - began, True
        self.view.show_range(began, ended, self.points)
        self._show_text()

    def refresh(self) -> None:
        """Draw what is new; called by the window's timer while the tab is in front."""
        if self._awaited and not self.view.loading:
            self._awaited = False
            self._end = self.past.shown_until(self._span)
            if self._end < self._span:
                self.view.seek(self._end)  # so that the readout without a cursor shows the newest reading
            if not self._whole:
                self.show_whole()
        if self._frame % SLOW_REFRESH == 0:
            self._show_text()
        self._roll()
        self.past.refresh()
        self._frame += 1

    def show_whole(self) -> None:
        """Show the whole range, after zooming into a part of it."""
        self.past.view.show(0.0, self._end)

    def _roll(self) -> None:
        """Query a range that ends now again once it has moved by a pixel; not while the user studies a part of it."""
        studied = self.past.view.selection is not None or not self._whole
        if self.bar.range.ended_wall_s is not None or self._awaited or self.view.loading or studied:
            return
        if self._clock() - self._requested_s >= max(ROLL_S, self._span / self.points):
            self.ask()

    @property
    def _whole(self) -> bool:
        """Whether the whole range is shown."""
        return self.past.view.range() == (0.0, self._end)

    def _show_text(self) -> None:
        began, ended = self.bar.range.at(self._wall_clock())
        if not self._awaited:
            began, ended = self.view.began_wall_s, self.view.began_wall_s + self._span
        gpu = self._gpu
        product = gpu.product + (f" ({SIMULATED})" if gpu.simulated else "")
        text = " · ".join(filter(None, (self.title, product, range_text(began, ended))))
        self.head.setText(text)
        self.bar.whole.setEnabled(not self._whole)
        self.bar.show_state("Loading…" if self.view.loading else self._cursor_text())
        self.problem.report(self.view.notices)

    @property
    def why_no_saving(self) -> str:
        return "This is a server's past, not a recording; export its curves with File > Export."

    def _cursor_text(self) -> str:
        """The clock time at the cursor; the axis itself counts from the start of the range."""
        cursor = self.past.view.cursor_s
        if cursor is None:
            return ""
        return f"cursor at {clock_text(self.view.began_wall_s + cursor)}"

    def close_document(self) -> None:
        """Stop querying the server."""
        self.view.close()


NEAR = 0.9
"""Fraction of a range that must have readings for the view to end at the newest one."""


def past_plots(store: Store, device: str, name: str, warn_ratio: float, *, to_capacity: bool) -> list[PlotSpec]:
    """The usual plots of a GPU and those of its sensors, without curves that have no readings.

    The caller holds the store's lock. Memory is kept even without readings, to show that the range is empty.

    Args:
        store: store of the readings.
        device: UUID of the GPU.
        name: display name of the GPU.
        warn_ratio: memory level at which a warning is raised.
        to_capacity: whether the memory axis reaches to the capacity.
    """
    usual = plots_for(
        store,
        selected=device,
        device_name=name,
        allocator=store.torch_name(device),
        warn_ratio=warn_ratio,
        to_capacity=to_capacity,
    )
    kept = []
    drawn = {curve.key for plot in usual for curve in plot.curves}
    for plot in (*usual, *_other_sensors(device, drawn)):
        curves = tuple(curve for curve in plot.curves if plot.id == "memory" or store.series(*curve.key) is not None)
        if curves:
            # The usual title has torch's name of the device, which means nothing on another machine.
            if plot.id == "memory":
                title = f"MEMORY {name}"
            else:
                title = plot.title
            kept.append(replace(plot, title=title, curves=curves))
    return kept


def _other_sensors(device: str, drawn: Container[Key]) -> Iterator[PlotSpec]:
    """A plot for each sensor that has none yet."""
    for metric in SENSORS:
        key = ("gpu", metric.name, device)
        if key in drawn:
            continue
        title, scale, unit = metric.title, metric.scale, metric.unit
        curve = CurveSpec(key, title, scale, metric.colour, unit_name=unit)
        yield PlotSpec(id=title, title=title.upper(), curves=(curve,), unit=scale, unit_name=unit)


class PastPlots(PlotsPage):
    """Plots of one GPU's history.

    Args:
        view: view of the history.
        palette: colours at the start.
        name: display name of the GPU.
    """

    def __init__(self, view: FleetView, palette: Palette, name: str) -> None:
        super().__init__(view, palette)
        self._name = name
        self.view.wall_origin_s = lambda: view.began_wall_s
        self.rows.addWidget(self.plots, 1)
        self.rows.addWidget(self.status_line)
        self.setLayout(self.rows)

    @property
    def selected(self) -> str:
        """The only GPU there is."""
        return self.session.gpus[0].uuid

    def shown_until(self, seconds: float) -> float:
        """Right end of the view of a range of this length: the newest reading if it is near the end, else the range's
        end."""
        store = self.session.store
        with store.lock:
            last = store.last("gpu", "used_bytes", self.selected)
        near = last is not None and not math.isnan(last[1]) and last[0] > NEAR * seconds
        if last is not None and near:
            return last[0]
        return seconds

    @property
    def _simulated(self) -> str:
        if self.session.gpus[0].simulated:
            return f" ({SIMULATED})"
        return ""

    def wanted_plots(self) -> Sequence[PlotSpec]:
        store, warn_ratio = self.session.store, self.session.settings.warn_ratio
        with store.lock:
            to_capacity = self.memory_to_capacity()
            return past_plots(
                store, self.selected, f"{self._name}{self._simulated}", warn_ratio, to_capacity=to_capacity
            )

    def captions(self) -> tuple[str, str]:
        return self._name, self.session.gpus[0].product + self._simulated
