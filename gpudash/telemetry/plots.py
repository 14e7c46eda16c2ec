"""Descriptions of what is drawn: curves, lines across a plot, and the plots that a session needs.

The window (`plots_for`) and a run's report use the same descriptions, a pure function of the store's content. A run
with ranks has one curve for each rank, and from `LEAST_RANKS` on an envelope of all of them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from gpudash.devices.names import Gpu, badged_name, kind_of
from gpudash.drawing.axes import Style, Unit
from gpudash.telemetry.ranks.ranks import ENVELOPE, LEAST_RANKS, MEAN
from gpudash.telemetry.ranks.rows import RankPlace, places_of
from gpudash.telemetry.readings import DERIVED, Key
from gpudash.telemetry.records import OF_LOSS, Topic
from gpudash.telemetry.runs import WATCH, RunView, item_of
from gpudash.telemetry.store import Store

THIS_PROCESS = "this process"
"""Name of gpudash with its run, unless a user's program is watched instead."""


LAID_OVER = "laid over"
"""Table in the store for the series of other runs laid over the plots."""


@dataclass(frozen=True, slots=True)
class CurveSpec:
    """A curve of a plot.

    Attributes:
        key: the series that is drawn.
        name: text of the legend.
        unit: how values are written: bytes, bytes per second, a ratio from 0 to 1, a number, nats, or a loss of
            unknown unit.
        colour: name of a colour in `Palette.curves`.
        style: line style, which distinguishes curves in addition to the colour.
        width: pen width in pixels; above 1 only for curves with few points.
        stack: whether it is a band stacked on the bands before it.
        axis: axis of its values; the right one goes from 0 to 100 %.
        smoothed: whether the smoothing slider applies (loss, accuracy).
        unit_name: unit of a "number", such as "items/s".
        faint: whether it is drawn as a faint fill or line, for memory not in use.
        note: tooltip of the legend entry.
        down_to: name of another curve of the plot; the area between both is filled faintly.
        aside: whether the legend lists it last when space is short.
    """

    key: Key
    name: str
    unit: Unit
    colour: str
    style: Style = "solid"
    width: int = 1
    stack: bool = False
    axis: Literal["left", "right"] = "left"
    smoothed: bool = False
    unit_name: str = ""
    faint: bool = False
    note: str = ""
    down_to: str = ""
    aside: bool = False

    @property
    def pulses(self) -> bool:
        """Whether it consists of short bursts with gaps: drawn with edges down to 0, narrow gaps bridged."""
        return self.key[0] == "transfer"

    @property
    def is_laid_over(self) -> bool:
        """Whether it is of another run, laid over the plot."""
        return self.key[0] == LAID_OVER


@dataclass(frozen=True, slots=True)
class LineSpec:
    """A horizontal line across a plot: capacity, warning level, link limit, unigram entropy.

    Attributes:
        name: label of the line.
        colour: name of a colour in `Palette.curves`.
        value: the level, if it is fixed.
        key: otherwise the series whose newest value is the level, or
        until_s: its newest value at this session time.
        factor: factor of the level (0.85 of the capacity).
        style: line style.
        scales: whether the axis always includes the line.
        shows_value: whether the label includes the level.
    """

    name: str
    colour: str
    value: float | None = None
    key: Key | None = None
    factor: float = 1.0
    style: Style = "dash"
    scales: bool = True
    shows_value: bool = True
    until_s: float | None = None


@dataclass(frozen=True, slots=True)
class RefusedMemory:
    """Memory that a run asked for last and did not get, drawn upon what was in use.

    Attributes:
        began_s, until_s: session times of the refusal, and of the run's end.
        used_bytes: in use when it was refused.
        bytes: what was asked of the device: the segment that the request needed, if that is known.
    """

    began_s: float
    until_s: float
    used_bytes: int
    bytes: int


@dataclass(frozen=True, slots=True)
class PlotSpec:
    """One plot.

    Attributes:
        id: name that stays the same as long as the plot is shown; identifies its widget.
        title: heading, such as "MEMORY cuda:0".
        curves: the curves, bottom band first.
        unit: unit of the left axis.
        lines: horizontal lines across the plot.
        stretch: relative height.
        may_log: whether a logarithmic axis is allowed (only where 0 cannot occur).
        unit_name: unit of a "number".
        extra: whether it is hidden by default.
        nested: whether each curve is part of the next one, so that all can be filled down to zero.
        least_share: smallest share of the total height, until the user drags the heights.
        refused: the request for which memory did not suffice; ``None`` if all were met.
    """

    id: str
    title: str
    curves: tuple[CurveSpec, ...]
    unit: Unit
    lines: tuple[LineSpec, ...] = ()
    stretch: int = 1
    may_log: bool = False
    unit_name: str = ""
    extra: bool = False
    nested: bool = False
    least_share: float = 0.0
    refused: RefusedMemory | None = None


def plots_for(
    store: Store,
    *,
    selected: str,
    device_name: str,
    allocator: str | None,
    warn_ratio: float,
    to_capacity: bool = True,
    gpu: Gpu | None = None,
    rank: int | None = None,
    span: tuple[float, float] | None = None,
    warned: bool = False,
    own: str = THIS_PROCESS,
) -> tuple[PlotSpec, ...]:
    """The plots for the selected device and the run. Call it under the store's lock.

    For a range of time they are sorted by relevance: the run in view first; plots without data for it become extras.

    Args:
        store: source of the data.
        selected: "host", or a GPU's UUID.
        device_name: name of the device.
        allocator: torch's name for the device, if torch can use it.
        warn_ratio: memory level of the warning.
        to_capacity: whether the memory axis goes up to the capacity, or only as far as memory is used.
        gpu: the selected device, if it is a GPU: its link's limit is drawn in the transfer plot.
        rank: for a run with ranks, the rank whose step is divided into parts; ``None`` for the mean of all.
        span: visible range of session time; ``None`` for all, in the usual order.
        warned: whether there is a current memory warning.
        own: name of the process whose own memory and CPU time are shown.
    """
    host = selected == "host"
    seen = None
    if span is not None:
        seen = run_in_view(store, span)
    until, refused = None, None
    if seen is not None and seen.device == allocator:
        until = seen.ended_s
        refused = refused_memory(seen)
    memory = memory_plot(
        store,
        selected,
        device_name,
        allocator,
        warn_ratio,
        to_capacity=to_capacity,
        gpu=gpu,
        until_s=until,
        own=own,
    )
    plots = [replace(memory, refused=refused)]
    if halves := devices_of_halves(store.run):
        plots.append(memory_by_device(halves))
    rates = transfers(store, None if host else selected, gpu)
    if rates is not None:
        plots.append(rates)
    plots.append(utilisation(None if host else selected, gpu))
    plots += derived_plots(store, None if host else selected)
    if _several_losses(store.run) or any(store.series("run", name) is not None for name in ("loss", "val_loss")):
        plots.append(loss(store.run))
    if store.series("run", "throughput") is not None:
        plots.append(throughput(store.run))
    places = places_of(store.run)
    if places:
        plots = with_ranks(plots, store, places, rank)
    if span is None or (places and seen is store.run):
        return tuple(with_room_for_memory(plots) if warned else plots)
    return tuple(by_relevance(plots, store, span, warned=warned))


def refused_memory(run: RunView) -> RefusedMemory | None:
    """The request for which memory did not suffice; ``None`` unless the run ran out of it at a known request."""
    if run.error is None or run.error.explanation is None:
        return None
    found = run.error.explanation
    if found.requested_bytes is None:
        return None
    size = found.segment_bytes or found.requested_bytes
    return RefusedMemory(found.time_s, run.error.time_s, found.used_bytes, size)


def with_room_for_memory(plots: Sequence[PlotSpec]) -> list[PlotSpec]:
    """The plots of a run with ranks during a warning: guarantees the height of the device's memory, or else that by
    rank."""
    shown = [plot.id for plot in plots if not plot.extra]
    large = next((name for name in ("memory", "rank_memory") if name in shown), "")
    return [replace(plot, least_share=MEMORY_SHARE) if plot.id == large else plot for plot in plots]


MOST_ABOUT = {"training": "loss", "transfer": "transfer", "matmul": "throughput"}
"""Workload → its main plot, unless that is memory."""

ABOUT_MEMORY = frozenset({"pressure", WATCH})
"""Workloads whose memory plot gets `MEMORY_SHARE` of the height, as during a warning."""

MEMORY_SHARE = 0.4

CROWDED = 4
"""Number of plots from which the memory plot gets that share for any run: among so many it would be too small."""


def run_in_view(store: Store, span: tuple[float, float]) -> RunView | None:
    """The newest run within the range. Call it under the store's lock."""
    for run in reversed(store.runs):
        if run.began_s <= span[1] and (run.ended_s is None or run.ended_s >= span[0]):
            return run
    return None


def by_relevance(plots: Sequence[PlotSpec], store: Store, span: tuple[float, float], *, warned: bool) -> list[PlotSpec]:
    """The plots for the run in view, the most relevant first and highest; those without data for it become extras.

    Without a run in view these are memory and utilisation; readings of the link alone do not justify a plot.
    """
    run = run_in_view(store, span)
    if run is None:
        first = "memory"
        since, until = span
    else:
        first = MOST_ABOUT.get(run.workload, "memory")
        since, until = (run.began_s, math.inf if run.ended_s is None else run.ended_s)
    large = warned or (run is not None and run.workload in ABOUT_MEMORY)
    found = []
    for plot in plots:
        always = plot.id in ("memory", "utilisation")
        filled = always or any(
            series.has_value(since, until)
            for curve in plot.curves
            if curve.key[0] != "gpu" and (series := store.series(*curve.key)) is not None
        )
        if plot.id == first:
            stretch = 3
        elif plot.id == "memory" or run is None:
            stretch = 2
        else:
            stretch = 1
        found.append(replace(plot, extra=plot.extra or not filled, stretch=stretch, least_share=0.0))
    if large or sum(not plot.extra for plot in found) >= CROWDED:
        found = [replace(plot, least_share=MEMORY_SHARE) if plot.id == "memory" else plot for plot in found]
    return sorted(found, key=lambda plot: (plot.id != first, plot.id != "memory"))


def memory_plot(
    store: Store,
    selected: str,
    device_name: str,
    allocator: str | None,
    warn_ratio: float,
    *,
    to_capacity: bool = True,
    gpu: Gpu | None = None,
    until_s: float | None = None,
    own: str = THIS_PROCESS,
) -> PlotSpec:
    """The memory of one device. Call it under the store's lock. See `plots_for`.

    Args:
        until_s: when the displayed run ended; draws the capacity at that time, because a user's program may have
            simulated a card of another size than the session's.
        own: as in `plots_for`.
    """
    if selected == "host":
        return _host_memory(store, _capacity(("host", "total_bytes", None), warn_ratio, to_capacity), own)
    return _gpu_memory(
        store,
        selected,
        device_name if allocator is None else badged_name(allocator),
        allocator,
        _capacity(("gpu", "total_bytes", selected), warn_ratio, to_capacity, until_s),
        "context" if gpu is not None and (gpu.simulated or gpu.by_torch) else "CUDA context",
    )


def _host_memory(store: Store, lines: tuple[LineSpec, ...], own: str) -> PlotSpec:
    """Used memory as one band, where no process's own part is known, as over ssh."""
    whole = _has_value(store, ("host", "used_bytes", None)) and not _has_value(store, ("host", "process_bytes", None))
    if whole:
        used: tuple[CurveSpec, ...] = (CurveSpec(("host", "used_bytes", None), "used", "bytes", "used", stack=True),)
    else:
        used = (
            CurveSpec(("host", "process_bytes", None), own, "bytes", "process", stack=True),
            CurveSpec(("host", "others_bytes", None), "other processes", "bytes", "other", stack=True),
        )
    return PlotSpec(
        id="memory",
        title="MEMORY cpu",
        curves=used,
        unit="bytes",
        lines=lines,
        stretch=2,
    )


def _gpu_memory(
    store: Store, uuid: str, name: str, allocator: str | None, lines: tuple[LineSpec, ...], context: str
) -> PlotSpec:
    known = allocator is not None and store.series("allocator", "reserved_bytes", allocator) is not None
    if known:
        curves: tuple[CurveSpec, ...] = (
            *_not_ours(store, uuid, context),
            CurveSpec(("gpu", "allocated_bytes", uuid), "allocated", "bytes", "allocated", stack=True),
            CurveSpec(("gpu", "idle_bytes", uuid), "idle inside PyTorch", "bytes", "idle", stack=True),
        )
    else:
        curves = (CurveSpec(("gpu", "used_bytes", uuid), "used", "bytes", "used", stack=True),)
    return PlotSpec(
        id="memory",
        title=f"MEMORY {name}",
        curves=curves,
        unit="bytes",
        lines=lines,
        stretch=2,
    )


def devices_of_halves(run: RunView | None) -> tuple[str, ...]:
    """torch's names for the devices over which the model of ``run`` is split; empty for other runs."""
    devices = "" if run is None or run.spec.get("parallel") != "split" else run.spec.get("devices")
    if isinstance(devices, str) and devices:
        return tuple(devices.split(","))
    return ()


def memory_by_device(devices: Sequence[str]) -> PlotSpec:
    """Memory reserved by torch's allocators on the devices over which a model is split."""
    curves: list[CurveSpec] = []
    for device, (colour, style) in zip(devices, STYLES, strict=False):
        name = badged_name(device)
        curves += [
            CurveSpec(("allocator", "allocated_bytes", device), f"{name} allocated", "bytes", colour, style=style),
            CurveSpec(
                ("allocator", "reserved_bytes", device), f"{name} reserved", "bytes", colour, style=style, faint=True
            ),
        ]
    return PlotSpec(id="device_memory", title="MEMORY BY DEVICE", curves=tuple(curves), unit="bytes")


def memory_levels(device: str, uuid: str | None, own: str = THIS_PROCESS) -> PlotSpec:
    """Memory as levels, each containing the one before it, under the capacity.

    Args:
        device: torch's name for the device.
        uuid: UUID of the GPU; ``None`` for the CPU.
        own: as in `plots_for`.
    """
    if uuid is None:
        table = "host"
        levels = [CurveSpec(("host", "process_bytes", None), own, "bytes", "process")]
    else:
        table = "gpu"
        levels = [
            CurveSpec(("allocator", "allocated_bytes", device), "allocated", "bytes", "allocated"),
            CurveSpec(("allocator", "reserved_bytes", device), "reserved", "bytes", "reserved"),
        ]
    return PlotSpec(
        id="memory",
        title="MEMORY",
        curves=(*levels, CurveSpec((table, "used_bytes", uuid), "used by all", "bytes", "other")),
        unit="bytes",
        lines=(LineSpec("capacity", "capacity", key=(table, "total_bytes", uuid), scales=False),),
        nested=True,
    )


def _not_ours(store: Store, uuid: str, name: str) -> tuple[CurveSpec, ...]:
    """The bands below the allocator's: a single one if the driver never reports our process's memory.

    Once it has, each part keeps its band, even after a gap: otherwise the past of the context would disappear too.
    """
    context, other = (_has_value(store, ("gpu", f"{name}_bytes", uuid)) for name in ("context", "other"))
    if other and not context:
        text = f"{name} and other processes"
        return (CurveSpec(("gpu", "other_bytes", uuid), text, "bytes", "other", stack=True, aside=True),)
    return (
        CurveSpec(("gpu", "other_bytes", uuid), "other processes", "bytes", "other", stack=True, aside=True),
        CurveSpec(("gpu", "context_bytes", uuid), name, "bytes", "context", stack=True, aside=True),
    )


def _has_value(store: Store, key: Key) -> bool:
    """Whether a series has any number."""
    return store.statistics(key) is not None


def _capacity(
    key: tuple[str, str, str | None], warn_ratio: float, scales: bool, until_s: float | None = None
) -> tuple[LineSpec, ...]:
    capacity = LineSpec("capacity", "capacity", key=key, scales=scales, until_s=until_s)
    return (
        capacity,
        replace(
            capacity,
            name=f"warning at {warn_ratio * 100:.0f} %",
            colour="warning",
            factor=warn_ratio,
            style="dot",
        ),
    )


NEAR_RATIO, FAR_RATIO = 0.4, 0.25
"""How full memory must be for its axis to go up to the capacity, and how empty for it to follow the usage again."""


def reaches_to_capacity(store: Store, selected: str, reached: bool) -> bool:
    """Whether the memory axis of a device should go up to its capacity. Call it under the store's lock.

    Args:
        store: source of the data.
        selected: "host", or a GPU's UUID.
        reached: the previous answer, which stays valid between the two ratios.
    """
    if selected == "host":
        table, device = ("host", None)
    else:
        table, device = ("gpu", selected)
    used, total = (store.latest(table, metric, device).value for metric in ("used_bytes", "total_bytes"))
    if not isinstance(used, int) or not isinstance(total, int) or not total:
        return True
    ratio = used / total
    return ratio > NEAR_RATIO or (reached and ratio > FAR_RATIO)


_DIRECTIONS = (
    ("h2d", "H2D", "h2d", "solid"),
    ("d2h", "D2H", "d2h", "dash"),
    ("h2h", "host → host", "h2h", "solid"),
    ("d2d", "D2D", "d2d", "dot"),
)


def transfers(store: Store, uuid: str | None, gpu: Gpu | None) -> PlotSpec | None:
    """Copies of the run by direction, and traffic on a GPU's link; ``None`` if nothing was copied."""
    curves = [
        CurveSpec(("transfer", metric, None), name, "rate", colour, style=style)  # type: ignore[arg-type]  # a Style
        for metric, name, colour, style in _DIRECTIONS
        if store.series("transfer", metric) is not None
    ]
    if uuid is not None and not (gpu is not None and gpu.simulated):
        curves += [
            CurveSpec(("gpu", f"pcie_{way}_bytes_per_second", uuid), name, "rate", colour, style="dot")
            for way, name, colour in (("rx", "PCIe to the GPU", "h2d"), ("tx", "PCIe from the GPU", "d2h"))
            if store.series("gpu", f"pcie_{way}_bytes_per_second", uuid) is not None
        ]
    if not curves:
        return None
    return PlotSpec(id="transfer", title="TRANSFER BANDWIDTH", curves=tuple(curves), unit="rate", lines=_link(gpu))


def _link(gpu: Gpu | None) -> tuple[LineSpec, ...]:
    """The link's maximum; its present rate means little, since an idle link reports a lower generation."""
    if gpu is None or gpu.link_bytes_per_second is None:
        return ()
    name = f"link Gen{gpu.pcie_generation} x{gpu.pcie_width}"
    return (LineSpec(name, "link", value=gpu.link_bytes_per_second, scales=False),)


def utilisation(uuid: str | None, gpu: Gpu | None) -> PlotSpec:
    """Utilisation of GPU, memory controller and CPU; none for a simulated GPU, which computes nothing."""
    curves = []
    if uuid is not None and not (gpu is not None and gpu.simulated):
        curves = [
            CurveSpec(("gpu", "gpu_utilisation", uuid), "GPU", "ratio", "gpu"),
            CurveSpec(
                ("gpu", "memory_utilisation", uuid), "memory controller", "ratio", "memory_controller", style="dash"
            ),
        ]
    curves.append(CurveSpec(("host", "cpu_utilisation", None), "CPU", "ratio", "cpu"))
    return PlotSpec(id="utilisation", title="UTILISATION", curves=tuple(curves), unit="ratio")


def derived_plots(store: Store, uuid: str | None) -> Iterator[PlotSpec]:
    """The plots of `DERIVED` for a GPU, or the host if ``None``, that have a value; hidden until they are chosen."""
    table = "host" if uuid is None else "gpu"
    for derived in DERIVED:
        plot = derived.plot
        keys = [(derived.table, metric, uuid) for metric in derived.metrics]
        if plot is None or derived.table != table or not any(_has_value(store, key) for key in keys):
            continue
        curves = tuple(
            CurveSpec(key, name, plot.unit, colour) for key, (name, colour) in zip(keys, plot.curves, strict=True)
        )
        yield PlotSpec(id=plot.id, title=plot.title, curves=curves, unit=plot.unit, extra=True)


def throughput(run: RunView | None) -> PlotSpec:
    """Items per second; steps for a watched program."""
    item = item_of("" if run is None else run.workload)
    key = ("run", "throughput", None)
    curve = CurveSpec(key, f"{item} a second", "number", "throughput", unit_name=f"{item}/s")
    return PlotSpec(id="throughput", title="THROUGHPUT", curves=(curve,), unit="number", unit_name=f"{item}/s")


def _several_losses(run: RunView | None) -> list[str]:
    """Names of the metrics that are losses, for a run with several."""
    return [] if run is None else [name for name in run.metrics if name.startswith(OF_LOSS)]


_STYLES_OF_LOSSES: tuple[tuple[str, Style], ...] = (
    ("d2h", "solid"),
    ("d2d", "solid"),
    ("h2d", "dot"),
    ("link", "solid"),
    ("d2h", "dash"),
    ("d2d", "dash"),
)
"""Colour and line style for each of several losses."""


def loss(run: RunView | None) -> PlotSpec:
    """Training loss, validation loss and each of several losses, as reported; accuracy on the right axis."""
    own = run is None or run.workload != WATCH  # the unit of a user's loss is unknown
    unit: Unit = "nats" if own else "loss"
    whence = ""
    if run is not None and _is_from_output(run):
        whence = " from the output"
    curves = list(_losses(run, unit, whence))
    untold = own and (run is None or "loss" not in run.metrics)
    title = "LOSS"
    if untold or (run is not None and "accuracy" in run.metrics):
        accuracy = ("run", "accuracy", None)
        name = f"accuracy{whence}"
        curves.append(CurveSpec(accuracy, name, "ratio", "accuracy", style="dash", axis="right", smoothed=True))
        title = "LOSS (solid) · ACCURACY (dashed)"
    lines: tuple[LineSpec, ...] = ()
    entropy = _unigram_entropy(run)
    if isinstance(entropy, (int, float)):
        lines = (LineSpec("unigram entropy", "reference", value=float(entropy)),)
    return PlotSpec(
        id="loss",
        title=f"{title} · {whence.strip()}" if whence else title,
        curves=tuple(curves),
        unit=unit,
        lines=lines,
        stretch=2,
        may_log=True,
    )


def _losses(run: RunView | None, unit: Unit, whence: str) -> Iterator[CurveSpec]:
    """Training loss and validation loss, and each of several losses."""
    loss = CurveSpec(("run", "loss", None), f"loss{whence}", unit, "loss", smoothed=True)
    metrics: Collection[str] = () if run is None else run.metrics
    several = _several_losses(run)
    validates = "val_loss" in metrics
    if validates:
        loss = replace(loss, name=f"training loss{whence}")
    if "loss" in metrics or not (validates or several):
        yield loss
    if validates:
        yield CurveSpec(("run", "val_loss", None), f"validation loss{whence}", unit, "val_loss", width=2)
    for name, (colour, style) in zip(several, _STYLES_OF_LOSSES, strict=False):
        title = f"{name.removeprefix(OF_LOSS)}{whence}"
        yield CurveSpec(("run", name, None), title, unit, colour, style, smoothed=True)


def _unigram_entropy(run: RunView | None) -> object:
    """The entropy of single tokens of what is trained on; ``None`` where it is not known."""
    if run is None:
        return None
    entropy = run.result.get("unigram_entropy")
    if entropy is not None:
        return entropy
    return next((note.details.get("unigram_entropy") for note in run.notes if note.topic == Topic.CORPUS), None)


def _is_from_output(run: RunView) -> bool:
    """Whether loss and accuracy are parsed from a program's output."""
    newest = run.note(Topic.FROM_OUTPUT)
    return newest is not None and bool(newest.details.get("reads"))


STYLES: tuple[tuple[str, Style], ...] = (("gpu", "solid"), ("d2h", "dash"), ("d2d", "dot"), ("link", "dashdot"))
"""Colour and line style for each rank, as long as ranks have their own curves; loss and accuracy use others."""

SHARES = (
    ("compute_share", "computing", "gpu"),
    ("communication_share", "communicating", "loss"),
    ("waiting_share", "waiting for others", "link"),
    ("input_share", "waiting for input", "h2d"),
)
"""Parts of a step: series, name and colour."""

REST = "What is missing to 100 % is time in which the rank waited for a processor core"

EXTRA = frozenset({"transfer", "utilisation", "throughput"})
"""Plots that are hidden by default for a run with ranks: they are about one device, or about the joined run."""


ORDER = ("memory", "rank_memory", "rank_step", "loss", "rank_share", "transfer", "utilisation", "throughput")
"""Plots of a run with ranks, from top to bottom; others follow below."""


def with_ranks(
    plots: Sequence[PlotSpec], store: Store, places: Sequence[RankPlace], shown_rank: int | None
) -> list[PlotSpec]:
    """The plots of a run with ranks: adds those by rank to ``plots``, some of which become extras.

    Args:
        plots: plots of the device and of the run as a whole.
        store: source of the data; the caller holds its lock.
        places: the run's ranks.
        shown_rank: as in `rank_plots`.
    """
    there = {plot.id: replace(plot, extra=True) if plot.id in EXTRA else plot for plot in plots}
    if "loss" in there:
        there["loss"] = with_loss(there["loss"], store, places)
    there |= {plot.id: plot for plot in rank_plots(store, places, shown_rank)}
    if "rank_memory" in there and all(kind_of(place.device) == "cpu" for place in places):
        there["memory"] = replace(there["memory"], extra=True)  # a single memory, whose card shows how full it is
    return sorted(there.values(), key=lambda plot: ORDER.index(plot.id) if plot.id in ORDER else len(ORDER))


def rank_plots(store: Store, places: Sequence[RankPlace], shown_rank: int | None) -> list[PlotSpec]:
    """Memory, step time and shares by rank, as far as known. Call it under the store's lock.

    Args:
        store: source of the data.
        places: the run's ranks.
        shown_rank: rank whose step is divided into parts; ``None`` for the mean of all.
    """
    plots = [_rank_memory(places), _rank_step_time(places), _rank_shares(store, places, shown_rank)]
    return [plot for plot in plots if any(store.series(*curve.key) is not None for curve in plot.curves)]


def with_loss(run_loss: PlotSpec, store: Store, places: Sequence[RankPlace]) -> PlotSpec:
    """The plot of the run's loss, with the losses of the ranks' parts of the batch if they report them."""
    curves = rank_curves(places, "loss", run_loss.unit)
    if all(store.series(*curve.key) is None for curve in curves):
        return run_loss
    title = run_loss.title.replace(" (solid)", "").replace(" (dashed)", "")
    if len(places) < LEAST_RANKS:
        curves = tuple(replace(curve, smoothed=True) for curve in curves)
        return replace(run_loss, title=title, curves=(*curves, *run_loss.curves))
    return replace(run_loss, title=f"{title}{count_text(places)}", curves=(*run_loss.curves, *curves))


def rank_curves(places: Sequence[RankPlace], metric: str, unit: Unit, unit_name: str = "") -> tuple[CurveSpec, ...]:
    """A curve for each rank, or the envelope of many."""
    if len(places) >= LEAST_RANKS:
        return _envelope(metric, unit, unit_name)
    return tuple(
        CurveSpec(
            ("rank", metric, str(place.rank)),
            f"rank {place.rank}",
            unit,
            STYLES[number][0],
            style=STYLES[number][1],
            unit_name=unit_name,
            note=_where(place),
        )
        for number, place in enumerate(places)
    )


def _envelope(metric: str, unit: Unit, unit_name: str) -> tuple[CurveSpec, ...]:
    lowest, median, highest = ENVELOPE
    return (
        CurveSpec(("rank", metric, lowest), lowest, unit, "gpu", unit_name=unit_name, faint=True),
        CurveSpec(("rank", metric, median), median, unit, "gpu", unit_name=unit_name),
        CurveSpec(
            ("rank", metric, highest),
            highest,
            unit,
            "gpu",
            unit_name=unit_name,
            faint=True,
            down_to=lowest,
            note="The area reaches from the lowest rank to the highest",
        ),
    )


def _where(place: RankPlace) -> str:
    return " on ".join(filter(None, (place.device, place.host)))


def count_text(places: Sequence[RankPlace]) -> str:
    """Number of ranks behind an envelope, for a title; "" if each rank has its own curve."""
    if len(places) >= LEAST_RANKS:
        return f" · {len(places)} ranks"
    return ""


def _rank_memory(places: Sequence[RankPlace]) -> PlotSpec:
    title = f"MEMORY BY RANK{count_text(places)}"
    if all(kind_of(place.device) == "cpu" for place in places):
        return PlotSpec(id="rank_memory", title=title, curves=rank_curves(places, "used_bytes", "bytes"), unit="bytes")
    curves = (*rank_curves(places, "allocated_bytes", "bytes"), *_rank_reserved(places))
    return PlotSpec(id="rank_memory", title=title, curves=curves, unit="bytes", lines=_rank_capacity(places))


def _rank_reserved(places: Sequence[RankPlace]) -> Iterator[CurveSpec]:
    """Memory reserved by the allocators."""
    if len(places) >= LEAST_RANKS:
        yield CurveSpec(("rank", "reserved_bytes", ENVELOPE[-1]), "highest reserved", "bytes", "link", style="dash")
        return
    for number, place in enumerate(places):
        colour, style = STYLES[number]
        key = ("rank", "reserved_bytes", str(place.rank))
        yield CurveSpec(key, f"rank {place.rank} reserved", "bytes", colour, style=style, faint=True)


def _rank_capacity(places: Sequence[RankPlace]) -> tuple[LineSpec, ...]:
    """The capacity of the ranks' devices; if they differ, the smallest, which decides what fits."""
    known = {place.capacity_bytes for place in places if place.capacity_bytes}
    if not known:
        return ()
    name = "smallest capacity"
    if len(known) == 1:
        name = "capacity"
    return (LineSpec(name, "capacity", value=float(min(known)), scales=False),)


def _rank_step_time(places: Sequence[RankPlace]) -> PlotSpec:
    return PlotSpec(
        id="rank_step",
        title=f"STEP TIME BY RANK{count_text(places)}",
        curves=rank_curves(places, "step_s", "number", "s"),
        unit="number",
        unit_name="s",
    )


def _rank_shares(store: Store, places: Sequence[RankPlace], shown_rank: int | None) -> PlotSpec:
    if shown_rank is None:
        device = MEAN
        whose = f"mean of {len(places)} ranks"
    else:
        device = str(shown_rank)
        whose = f"rank {shown_rank}"
    curves = (
        CurveSpec(("rank", metric, device), name, "ratio", colour, stack=True, note=REST)
        for metric, name, colour in SHARES
        if metric != "input_share" or store.series("rank", metric, device) is not None
    )
    return PlotSpec(id="rank_share", title=f"SHARE OF THE STEP · {whose}", curves=tuple(curves), unit="ratio")
