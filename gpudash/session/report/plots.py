"""Which plots a run's report shows: those of the window, of which there is anything, in the words of a page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gpudash.devices.names import SIMULATED
from gpudash.telemetry.plots import (
    CurveSpec,
    PlotSpec,
    loss,
    memory_levels,
    rank_curves,
    rank_plots,
    throughput,
    transfers,
    utilisation,
)
from gpudash.telemetry.ranks.places import places_of
from gpudash.telemetry.runs import RunView
from gpudash.telemetry.store import WATCH, Store

TITLES = {
    "memory": "Memory",
    "throughput": "Throughput",
    "transfer": "Transfer bandwidth",
    "utilisation": "Utilisation",
    "rank_memory": "Memory by rank",
    "rank_step": "Step time by rank",
}
"""Plot → what the page calls it; a loss also says its unit, where it is known."""

LEFT_OUT = frozenset({("host", "process_cpu_utilisation"), ("rank", "reserved_bytes")})
"""Tables and metrics of the window's plots that a page does without."""

RANK_COLOURS = ("sky", "orange", "green", "purple")
"""Colours of the page for the curves by rank, one after another; every other one is dashed."""


def page_plots(store: Store, device: str, uuid: str | None, run: RunView | None) -> list[PlotSpec]:
    """The plots of which there is anything, with their titles on the page; called under the store's lock.

    Args:
        store: what is known.
        device: torch's name of the device.
        uuid: of the GPU, ``None`` for the CPU.
        run: that is shown; ``None`` where the machine was only watched.
    """
    simulated = f" ({SIMULATED})" if run is not None and run.simulated else ""
    found = []
    for plot in _wanted(store, device, uuid, run):
        known = tuple(
            curve for curve in plot.curves if curve.key[:2] not in LEFT_OUT and store.series(*curve.key) is not None
        )
        if known:
            speeds = simulated if plot.id in ("throughput", "transfer") else ""
            found.append(replace(plot, title=f"{TITLES.get(plot.id, plot.title)}{speeds}", curves=known))
    return found


def _wanted(store: Store, device: str, uuid: str | None, run: RunView | None) -> Iterator[PlotSpec]:
    yield memory_levels(device, uuid)
    if run is not None:
        title = "Loss and accuracy" if run.workload == WATCH else "Loss (nats) and accuracy"
        yield replace(loss(run), title=title, lines=())
        yield throughput(run)
    copies = transfers(store, None, None)
    if copies is not None:
        yield copies
    yield utilisation(uuid, None)
    places = places_of(run)
    if places:
        losses = rank_curves(places, "loss", "nats")
        plots = [plot for plot in rank_plots(store, places, None) if plot.id in TITLES]
        for plot in (*plots, PlotSpec(id="rank_loss", title="Loss by rank", curves=losses, unit="nats")):
            curves = tuple(_by_rank(curve, number) for number, curve in enumerate(plot.curves))
            yield replace(plot, lines=(), curves=curves)


def _by_rank(curve: CurveSpec, number: int) -> CurveSpec:
    """A curve of one rank, or of the envelope of many, as a page tells it from the one before."""
    device = curve.key[2] or ""
    return replace(
        curve,
        name=curve.name if device.isdecimal() else f"{device} of the ranks",
        colour=RANK_COLOURS[number % len(RANK_COLOURS)],
        style="dash" if number % 2 else "solid",
    )
