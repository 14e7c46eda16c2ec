"""The past of one GPU of a fleet in a tab: the usual plots, and a row that chooses which part of the past."""

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
"""What is looked at first: the last hour."""

NARROWEST, BUTTONS_PX = 200, 330
"""Fewest points that are asked for, and pixels of the window that are beside the plots."""

ROLL_S = 5.0
"""Least seconds between two looks at a part that moves on with the time."""


def points_for(width: int) -> int:
    """Points a curve that are worth asking for in a window so wide: one a pixel column of the plots."""
    return max(NARROWEST, width - BUTTONS_PX)


class GpuDocument(Document):
    """One GPU over any part of the past.

    The tab asks for itself: it stays, and can be moved through the past, when the overview is closed. A part that is
    zoomed into is asked for in more detail by the view as soon as it is drawn.

    Args:
        view: the look at the GPU's past; it is closed with the document.
        gpu: which.
        palette: colours in force.
        settings: in force.
        wall_clock: seconds since the epoch.
        clock: any clock, in seconds.

    Signals:
        ready: the plots are there.
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
        self.bar.whole.clicked.connect(lambda _checked=False: self.show_whole())
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
        """The plots, on which keys act."""
        return self.past

    @property
    def points(self) -> int:
        """Points that are worth asking for: one a pixel column."""
        return points_for(self.width())

    def ask(self) -> None:
        """Ask for the part that the row says."""
        began, ended = self.bar.range.at(self._wall_clock())
        self._requested_s, self._span, self._awaited = self._clock(), ended - began, True
        self.view.show_range(began, ended, self.points)
        self._show_text()

    def refresh(self) -> None:
        """Draw what is new; called by the window's timer while it is in front."""
        if self._awaited and not self.view.loading:
            self._awaited = False
            self._end = self.past.shown_until(self._span)
            if self._end < self._span:
                self.view.seek(self._end)  # what is told without a cursor is the newest reading, not what follows it
            if not self._whole:
                self.show_whole()
        if self._frame % SLOW_REFRESH == 0:
            self._show_text()
        self._roll()
        self.past.refresh()
        self._frame += 1

    def show_whole(self) -> None:
        """Show everything that was asked for, after zooming into a part of it."""
        self.past.view.show(0.0, self._end)

    def _roll(self) -> None:
        """Ask again where the part moves on with the time, once a pixel's worth has passed; not while it is studied."""
        studied = self.past.view.selection is not None or not self._whole
        if self.bar.range.ended_wall_s is not None or self._awaited or self.view.loading or studied:
            return
        if self._clock() - self._requested_s >= max(ROLL_S, self._span / self.points):
            self.ask()

    @property
    def _whole(self) -> bool:
        """Whether everything that was asked for is shown."""
        return self.past.view.range() == (0.0, self._end)

    def _show_text(self) -> None:
        began, ended = self.bar.range.at(self._wall_clock())
        if not self._awaited:
            began, ended = self.view.began_wall_s, self.view.began_wall_s + self._span
        gpu = self._gpu
        product = gpu.product + (f" ({SIMULATED})" if gpu.simulated else "")
        text = " · ".join(filter(None, (self.title, product, range_text(began, ended))))
        if self.head.text() != text:
            self.head.setText(text)
        self.bar.whole.setEnabled(not self._whole)
        self.bar.show_state("Loading…" if self.view.loading else self._cursor_text())
        self.problem.report(self.view.notices)

    @property
    def why_no_saving(self) -> str:
        return "This is a server's past, not a recording; export its curves with File > Export."

    def _cursor_text(self) -> str:
        """The cursor's moment by the clock, for the axis counts from the beginning."""
        cursor = self.past.view.cursor_s
        if cursor is None:
            return ""
        return f"cursor at {clock_text(self.view.began_wall_s + cursor)}"

    def set_palette(self, palette: Palette) -> None:
        """Redraw in other colours."""
        self.past.set_palette(palette)

    def copy_values(self) -> None:
        """Copy the selection of the plots."""
        self.past.copy_values()

    def copy_picture(self) -> None:
        """Copy a picture of the plots."""
        self.past.copy_picture()

    def close_document(self) -> None:
        """End what asks the server."""
        self.view.close()


NEAR = 0.9
"""Part of a range that must have been told of for it to be shown as far as that."""


def past_plots(store: Store, device: str, name: str, warn_ratio: float, *, to_capacity: bool) -> list[PlotSpec]:
    """The usual plots of a GPU, with its sensors', without curves of which nothing was told.

    Called under the store's lock. Memory stays also where nothing was told, so that the empty range can be seen.

    Args:
        store: what was told.
        device: the GPU's UUID.
        name: what the GPU is called.
        warn_ratio: memory level of a warning.
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
            # torch's name says nothing elsewhere
            if plot.id == "memory":
                title = f"MEMORY {name}"
            else:
                title = plot.title
            kept.append(replace(plot, title=title, curves=curves))
    return kept


def _other_sensors(device: str, drawn: Container[Key]) -> Iterator[PlotSpec]:
    """A plot of each sensor that is not drawn already."""
    for metric in SENSORS:
        key = ("gpu", metric.name, device)
        if key in drawn:
            continue
        title, scale, unit = metric.title, metric.scale, metric.unit
        curve = CurveSpec(key, title, scale, metric.colour, unit_name=unit)
        yield PlotSpec(id=title, title=title.upper(), curves=(curve,), unit=scale, unit_name=unit)


class PastPlots(PlotsPage):
    """Plots of the past of one GPU.

    Args:
        view: the look at the past.
        palette: colours at the start.
        name: what the GPU is called.
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
        """The one GPU there is."""
        return self.session.gpus[0].uuid

    def shown_until(self, seconds: float) -> float:
        """Where a range so long is shown to: its newest reading where that is near its end, so that it can be read."""
        store = self.session.store
        with store.lock:
            series = store.series("gpu", "used_bytes", self.selected)
            last = None
            if series is not None:
                last = series.last()
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
