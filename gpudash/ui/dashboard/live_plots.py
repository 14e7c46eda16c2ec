"""Which plots a session calls for, with which curves: a pure function of what the store holds."""

from __future__ import annotations

import math

from gpudash.devices.names import SIMULATED, Gpu, shown_name
from gpudash.telemetry.ranks.places import places_of
from gpudash.telemetry.runs import RunView
from gpudash.telemetry.store import Store
from gpudash.ui.forms.run_progress import WATCH
from gpudash.ui.plots.curve import CurveSpec, Key, LineSpec, PlotSpec, Unit


def plots_for(
    store: Store,
    *,
    selected: str,
    words: str,
    allocator: str | None,
    warn_ratio: float,
    to_capacity: bool = True,
    gpu: Gpu | None = None,
    rank: int | None = None,
) -> tuple[PlotSpec, ...]:
    """The plots of the device that is selected and of the run; called under the store's lock.

    Args:
        store: what there is to draw.
        selected: "host", or a GPU's UUID.
        words: what the device is called.
        allocator: torch's name of the device, where torch can use it.
        warn_ratio: memory level of a warning.
        to_capacity: whether the memory axis reaches to the capacity, or only as far as memory is used.
        gpu: the device that is selected, where it is a GPU: its link's limit crosses the transfer plot.
        rank: of a run with ranks, the one whose step is divided into its parts; ``None`` for the mean of all.
    """
    host = selected == "host"
    plots = [
        _host_memory(_capacity(("host", "total_bytes", None), warn_ratio, to_capacity))
        if host
        else _gpu_memory(
            store,
            selected,
            words if allocator is None else shown_name(allocator),
            allocator,
            _capacity(("gpu", "total_bytes", selected), warn_ratio, to_capacity),
            "context" if gpu is not None and gpu.simulated else "CUDA context",
        )
    ]
    transfers = _transfers(store, None if host else selected, gpu)
    if transfers is not None:
        plots.append(transfers)
    plots.append(_utilisation(None if host else selected, gpu))
    if store.series("run", "loss") is not None:
        plots.append(_loss(store.run))
    if store.series("run", "throughput") is not None:
        plots.append(_throughput(store.run))
    places = places_of(store.run)
    if not places:
        return tuple(plots)
    from gpudash.ui.dashboard.rank_plots import with_ranks  # needed by few runs, and not at the first paint

    return tuple(with_ranks(plots, store, places, rank))


def _host_memory(lines: tuple[LineSpec, ...]) -> PlotSpec:
    return PlotSpec(
        id="memory",
        title="MEMORY cpu",
        curves=(
            CurveSpec(("host", "process_bytes", None), "this process", "bytes", "process", stack=True),
            CurveSpec(("host", "others_bytes", None), "other processes", "bytes", "other", stack=True),
            CurveSpec(
                ("host", "file_cache_bytes", None),
                "file cache",
                "bytes",
                "cache",
                stack=True,
                faint=True,
                note="What the system keeps of files; given back when a program needs it",
            ),
        ),
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


def _not_ours(store: Store, uuid: str, name: str) -> tuple[CurveSpec, ...]:
    """The bands below the allocator's: one in all where the driver never says what our process uses.

    Once it has, each has its band, also after a gap: what was drawn of the context would vanish with its band.
    """
    context, other = (_has_value(store, ("gpu", f"{name}_bytes", uuid)) for name in ("context", "other"))
    if other and not context:
        words = f"{name} and other processes"
        return (CurveSpec(("gpu", "other_bytes", uuid), words, "bytes", "other", stack=True),)
    return (
        CurveSpec(("gpu", "other_bytes", uuid), "other processes", "bytes", "other", stack=True),
        CurveSpec(("gpu", "context_bytes", uuid), name, "bytes", "context", stack=True),
    )


def _has_value(store: Store, key: Key) -> bool:
    """Whether a series has a number at all."""
    series = store.series(*key)
    return series is not None and series.statistics(-math.inf, math.inf) is not None


def _capacity(key: tuple[str, str, str | None], warn_ratio: float, scales: bool) -> tuple[LineSpec, ...]:
    return (
        LineSpec("capacity", "capacity", key=key, scales=scales),
        LineSpec(
            f"warning at {warn_ratio * 100:.0f} %", "warning", key=key, factor=warn_ratio, style="dot", scales=scales
        ),
    )


NEAR_RATIO, FAR_RATIO = 0.4, 0.25
"""How full a memory must be for its axis to reach to the capacity, and how empty for it to follow the use again."""


def reaches_to_capacity(store: Store, selected: str, reached: bool) -> bool:
    """Whether the memory axis of a device should reach to its capacity; called under the store's lock.

    Args:
        store: what is known.
        selected: "host", or a GPU's UUID.
        reached: what was answered before, which stays in force between the two ratios.
    """
    table, device = ("host", None) if selected == "host" else ("gpu", selected)
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


def _transfers(store: Store, uuid: str | None, gpu: Gpu | None) -> PlotSpec | None:
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
    title = _marked("TRANSFER BANDWIDTH", store.run)
    return PlotSpec(id="transfer", title=title, curves=tuple(curves), unit="rate", lines=_link(gpu))


def _link(gpu: Gpu | None) -> tuple[LineSpec, ...]:
    """What the link can carry at most; an idle one reports a lower generation, so its present one says little."""
    if gpu is None or gpu.link_bytes_per_second is None:
        return ()
    name = f"link Gen{gpu.pcie_generation} x{gpu.pcie_width}"
    return (LineSpec(name, "link", value=gpu.link_bytes_per_second, scales=False),)


def _marked(title: str, run: RunView | None) -> str:
    """The title of a plot of speeds, which says so when they were taken on a simulated GPU."""
    return f"{title} ({SIMULATED})" if run is not None and run.simulated else title


def _utilisation(uuid: str | None, gpu: Gpu | None) -> PlotSpec:
    simulated = gpu is not None and gpu.simulated
    curves = [
        CurveSpec(("gpu", metric, uuid), name, "ratio", colour, style=style)  # type: ignore[arg-type]  # a Style
        for metric, name, colour, style in (
            ("gpu_utilisation", f"GPU ({SIMULATED})" if simulated else "GPU", "gpu", "solid"),
            ("memory_utilisation", "memory controller", "memory_controller", "dash"),
        )
        if uuid is not None and not (simulated and metric == "memory_utilisation")
    ]
    curves.append(CurveSpec(("host", "cpu_utilisation", None), "CPU", "ratio", "cpu"))
    curves.append(
        CurveSpec(
            ("host", "process_cpu_utilisation", None),
            "this process, of one core",
            "ratio",
            "process_cpu",
            style="dot",
        )
    )
    return PlotSpec(id="utilisation", title="UTILISATION", curves=tuple(curves), unit="ratio")


def _throughput(run: RunView | None) -> PlotSpec:
    curve = CurveSpec(("run", "throughput", None), "items a second", "number", "throughput", unit_name="items/s")
    title = _marked("THROUGHPUT", run)
    return PlotSpec(id="throughput", title=title, curves=(curve,), unit="number", unit_name="items/s")


def _loss(run: RunView | None) -> PlotSpec:
    entropy = run.result.get("unigram_entropy") if run is not None else None
    if entropy is None and run is not None:
        entropy = next((note.details.get("unigram_entropy") for note in run.notes if note.topic == "corpus"), None)
    lines: tuple[LineSpec, ...] = ()
    if isinstance(entropy, (int, float)):
        lines = (LineSpec("unigram entropy", "reference", value=float(entropy)),)
    own = run is None or run.workload != WATCH  # a program of the user's does not tell what its loss counts
    unit: Unit = "nats" if own else "loss"
    curves = [CurveSpec(("run", "loss", None), "loss", unit, "loss", smoothed=True)]
    if own or (run is not None and "accuracy" in run.metrics):
        accuracy = ("run", "accuracy", None)
        curves.append(CurveSpec(accuracy, "accuracy", "ratio", "accuracy", style="dash", axis="right", smoothed=True))
    return PlotSpec(
        id="loss",
        title="LOSS (solid) · ACCURACY (dashed)" if len(curves) > 1 else "LOSS",
        curves=tuple(curves),
        unit=unit,
        lines=lines,
        stretch=2,
        may_log=True,
    )
