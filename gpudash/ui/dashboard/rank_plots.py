"""The plots of a run with several ranks: a curve a rank, and from five ranks on what lies between all of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from gpudash.devices.names import kind_of
from gpudash.telemetry.ranks.envelope import ENVELOPE, LEAST_RANKS
from gpudash.telemetry.ranks.places import RankPlace
from gpudash.telemetry.ranks.shares import MEAN
from gpudash.telemetry.store import Store
from gpudash.ui.plots.curve import CurveSpec, LineSpec, PlotSpec, Style, Unit

LOOKS: tuple[tuple[str, Style], ...] = (("gpu", "solid"), ("d2h", "dash"), ("d2d", "dot"), ("link", "dashdot"))
"""Colour and line style of each rank, as far as ranks have curves of their own; loss and accuracy have others."""

SHARES = (
    ("compute_share", "computing", "gpu"),
    ("communication_share", "communicating", "loss"),
    ("waiting_share", "waiting for others", "link"),
)
"""Parts of a step: series, name and colour."""

REST = "What is missing to 100 % is time in which the rank waited for a processor core"

EXTRA = frozenset({"transfer", "utilisation", "throughput"})
"""Plots that a run with ranks leaves out until they are asked for: they tell of one device, or of the joined run."""


ORDER = ("memory", "rank_memory", "rank_step", "loss", "rank_share", "transfer", "utilisation", "throughput")
"""Plots of a run with ranks, from top to bottom."""


def with_ranks(
    plots: Sequence[PlotSpec], store: Store, places: Sequence[RankPlace], shown_rank: int | None
) -> list[PlotSpec]:
    """The plots of a run with ranks: those by rank among ``plots``, of which some become extras.

    Args:
        plots: of the device and of the run as a whole.
        store: what there is to draw; the caller holds its lock.
        places: the run's ranks.
        shown_rank: see `rank_plots`.
    """
    there = {plot.id: replace(plot, extra=True) if plot.id in EXTRA else plot for plot in plots}
    if "loss" in there:
        there["loss"] = with_loss(there["loss"], store, places)
    there |= {plot.id: plot for plot in rank_plots(store, places, shown_rank)}
    if "rank_memory" in there and all(kind_of(place.device) == "cpu" for place in places):
        there["memory"] = replace(there["memory"], extra=True)  # there is one memory, and its card says how full it is
    return [there[name] for name in ORDER if name in there]


def rank_plots(store: Store, places: Sequence[RankPlace], shown_rank: int | None) -> list[PlotSpec]:
    """Memory, step time and shares by rank, as far as something is known; called under the store's lock.

    Args:
        store: what there is to draw.
        places: the run's ranks.
        shown_rank: whose step is divided into its parts; ``None`` for the mean of all.
    """
    plots = [_memory(places), _step_time(places), _shares(places, shown_rank)]
    return [plot for plot in plots if any(store.series(*curve.key) is not None for curve in plot.curves)]


def with_loss(loss: PlotSpec, store: Store, places: Sequence[RankPlace]) -> PlotSpec:
    """The plot of the run's loss with that of each rank's part of the batch, where the ranks tell it."""
    curves = _curves(places, "loss", loss.unit)
    if all(store.series(*curve.key) is None for curve in curves):
        return loss
    title = loss.title.replace(" (solid)", "").replace(" (dashed)", "")
    if len(places) < LEAST_RANKS:
        curves = tuple(replace(curve, smoothed=True) for curve in curves)
        return replace(loss, title=title, curves=(*curves, *loss.curves))
    return replace(loss, title=f"{title}{many_words(places)}", curves=(*loss.curves, *curves))


def _curves(places: Sequence[RankPlace], metric: str, unit: Unit, unit_name: str = "") -> tuple[CurveSpec, ...]:
    """A curve a rank, or the envelope of many."""
    if len(places) >= LEAST_RANKS:
        return _envelope(metric, unit, unit_name)
    return tuple(
        CurveSpec(
            ("rank", metric, str(place.rank)),
            f"rank {place.rank}",
            unit,
            LOOKS[number][0],
            style=LOOKS[number][1],
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


def many_words(places: Sequence[RankPlace]) -> str:
    """How many ranks the curves are of, for a title; "" where each rank has its own."""
    return f" · {len(places)} ranks" if len(places) >= LEAST_RANKS else ""


def _memory(places: Sequence[RankPlace]) -> PlotSpec:
    title = f"MEMORY BY RANK{many_words(places)}"
    if all(kind_of(place.device) == "cpu" for place in places):
        return PlotSpec(id="rank_memory", title=title, curves=_curves(places, "used_bytes", "bytes"), unit="bytes")
    curves = (*_curves(places, "allocated_bytes", "bytes"), *_reserved(places))
    return PlotSpec(id="rank_memory", title=title, curves=curves, unit="bytes", lines=_capacity(places))


def _reserved(places: Sequence[RankPlace]) -> Iterator[CurveSpec]:
    """What the allocators hold, used or not."""
    if len(places) >= LEAST_RANKS:
        yield CurveSpec(("rank", "reserved_bytes", ENVELOPE[-1]), "highest reserved", "bytes", "link", style="dash")
        return
    for number, place in enumerate(places):
        colour, style = LOOKS[number]
        key = ("rank", "reserved_bytes", str(place.rank))
        yield CurveSpec(key, f"rank {place.rank} reserved", "bytes", colour, style=style, faint=True)


def _capacity(places: Sequence[RankPlace]) -> tuple[LineSpec, ...]:
    """The capacity of the ranks' devices; of unlike ones the smallest, which decides what fits."""
    known = {place.capacity_bytes for place in places if place.capacity_bytes}
    if not known:
        return ()
    name = "capacity" if len(known) == 1 else "smallest capacity"
    return (LineSpec(name, "capacity", value=float(min(known)), scales=False),)


def _step_time(places: Sequence[RankPlace]) -> PlotSpec:
    return PlotSpec(
        id="rank_step",
        title=f"STEP TIME BY RANK{many_words(places)}",
        curves=_curves(places, "step_s", "number", "s"),
        unit="number",
        unit_name="s",
    )


def _shares(places: Sequence[RankPlace], shown_rank: int | None) -> PlotSpec:
    device = MEAN if shown_rank is None else str(shown_rank)
    whose = f"mean of {len(places)} ranks" if shown_rank is None else f"rank {shown_rank}"
    curves = (
        CurveSpec(("rank", metric, device), name, "ratio", colour, stack=True, note=REST)
        for metric, name, colour in SHARES
    )
    return PlotSpec(id="rank_share", title=f"SHARE OF THE STEP · {whose}", curves=tuple(curves), unit="ratio")
