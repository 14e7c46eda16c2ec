"""The ranks of a run as rows of a table (from live readings, later from the result), and in words."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpudash.devices.names import kind_of
from gpudash.telemetry.ranks.ranks import PARTS
from gpudash.telemetry.records import Topic, number_in
from gpudash.telemetry.runs import RunView
from gpudash.telemetry.store import Store
from gpudash.units import format_duration, format_percent

RECENT_S = 60.0
"""Time span, in seconds, of the steps used for the figures of a current run."""

MOST_POINTS = 2000
"""Most points of a history used for a figure; more are thinned to their extremes."""

SILENT_S = 5.0
"""Time without a reading after which a rank is silent."""

STALLED_STEPS = 3.0
"""Time without a step, in usual steps (and at least `SILENT_S`), after which the ranks are waiting."""

LEAST_UNACCOUNTED = 0.05
"""Share of a rank's step without a part from which it is reported."""

FIGURES: tuple[tuple[str, str, Callable[[float | None], str]], ...] = (
    ("step", "step_seconds_median", format_duration),
    ("computing", "compute_seconds_median", format_duration),
    ("communicating", "communication_share", format_percent),
    ("waiting", "waiting_share", format_percent),
)
"""Title of each figure of a rank, its key in a run's result, and its format."""


@dataclass(frozen=True, slots=True)
class RankPlace:
    """Where a rank runs, as the run's note reports it.

    Attributes:
        rank: number of the rank, from 0.
        device: torch's name for its device.
        host: name of the machine; "" where unknown.
        capacity_bytes: memory of the device; ``None`` if unknown, or if the ranks share the machine's memory.
    """

    rank: int
    device: str
    host: str
    pid: int | None
    capacity_bytes: int | None


def places_of(run: RunView | None) -> tuple[RankPlace, ...]:
    """The ranks of a run in order, by the newest reports; empty for a run without ranks."""
    found: dict[int, RankPlace] = {}
    for report in _reports(run):
        rows = report.get("ranks")
        world = report.get("world_size")
        if not isinstance(rows, Sequence):
            rows = ()
        for row in rows:
            place = _place(row)
            if place is not None:
                found[place.rank] = place
        # An elastic run may have shrunk: ranks that have left get no row.
        if isinstance(world, int):
            found = {rank: place for rank, place in found.items() if rank < world}
    return tuple(found[rank] for rank in sorted(found))


def _reports(run: RunView | None) -> Iterator[Mapping[str, Any]]:
    """Notes about a run's ranks, newest last; each node reports its own ranks."""
    if run is not None:
        yield from (note.details for note in run.notes if note.topic == Topic.RANKS)
        yield run.result


def _place(row: Any) -> RankPlace | None:
    """A row of such a note; ``None`` if it is malformed."""
    if not isinstance(row, Mapping) or not isinstance(row.get("rank"), int):
        return None
    capacity = row.get("capacity_bytes")
    if not isinstance(capacity, int):
        capacity = None
    pid = row.get("pid")
    if not isinstance(pid, int):
        pid = None
    return RankPlace(
        rank=row["rank"],
        device=str(row.get("device") or "cpu"),
        host=str(row.get("host") or ""),
        pid=pid,
        capacity_bytes=capacity,
    )


def ranks_text(run: RunView | None) -> str:
    """The number of a run's ranks: "2 ranks", or "2 of 4 ranks" if the others are on machines not watched."""
    known = len(places_of(run))
    if not known:
        return ""
    world = [report["world_size"] for report in _reports(run) if isinstance(report.get("world_size"), int)]
    if world and world[-1] > known:
        return f"{known} of {world[-1]} ranks"
    return f"{known} ranks"


def failed_rank(run: RunView) -> int | None:
    """The rank that ended a run: the first one named in the error; ``None`` if none is."""
    if run.error is None:
        return None
    named = re.search(r"\brank (\d+)\b", run.error.message, re.IGNORECASE)
    if named is None:
        return None
    return int(named[1])


STRAGGLER, FULLEST = "straggler", "most memory"


@dataclass(frozen=True, slots=True)
class RankRow:
    """One rank; ``None`` where a value is unknown.

    Attributes:
        step: newest step that all ranks have completed.
        step_s: median of the recent steps, or of all once the run has ended.
        computing, communicating, waiting, loading: shares of the step, 0 to 1; loading is waiting for input. They add
            up to less than 1 if the rank also waited for a core.
        peak_bytes: peak memory so far: allocated on a GPU, or of the process on the CPU.
        state: running, waiting, silent, ended or failed.
        remark: how it differs from the others, in words.
    """

    rank: int
    device: str
    host: str
    step: int | None
    step_s: float | None
    computing: float | None
    communicating: float | None
    waiting: float | None
    peak_bytes: int | None
    capacity_bytes: int | None
    state: str
    remark: str
    loading: float | None = None

    @property
    def shares(self) -> Shares:
        """Shares of computing, communicating, waiting for others and waiting for input."""
        return self.computing, self.communicating, self.waiting, self.loading


def rank_rows(store: Store, places: Sequence[RankPlace]) -> list[RankRow]:
    """One row for each rank, in order. Call it under the store's lock."""
    run = store.run
    if run is None:
        return []
    results = {row.get("rank"): row for row in _results(run)}
    states = _states(store, run, places)
    marks = marked(run)
    rows = []
    for place in places:
        remark = marks.get(place.rank, "")
        rows.append(_row(store, run, place, results.get(place.rank, {}), states[place.rank], remark))
    return rows


def marked(run: RunView) -> dict[int, str]:
    """Remarks by rank, in words: the straggler, and the rank with the fullest memory."""
    found: dict[int, str] = {}
    for topic, text in ((Topic.STRAGGLER, STRAGGLER), (Topic.IMBALANCE, FULLEST)):
        rank, details = _named(run, topic)
        if rank is None:
            continue
        slower = details.get("slower")
        more = ""
        if isinstance(slower, float):
            more = f", {slower * 100:.0f} % slower"
        found[rank] = "; ".join(filter(None, (found.get(rank), f"{text}{more}")))
    return found


def sentence(run: RunView | None, places: Sequence[RankPlace]) -> str:
    """A summary of the ranks in a sentence."""
    if run is None or not places:
        return ""
    sentences = [text for topic in (Topic.STRAGGLER, Topic.IMBALANCE) if (text := _text(run, topic))]
    if sentences:
        return " ".join(sentences)
    hosts = len({place.host for place in places if place.host})
    where = ""
    if hosts > 1:
        where = f" on {hosts} machines"
    sentence = f"{ranks_text(run)}{where}; none is clearly slower than the others."
    equal = run.result.get("parameters_equal")
    if equal is None:
        return sentence
    if equal:
        return f"{sentence} Their parameters are equal."
    return f"{sentence} Their parameters are NOT equal."


def _results(run: RunView) -> Iterator[Mapping[str, Any]]:
    # A result may come from an untrusted file.
    rows = run.result.get("ranks")
    if isinstance(rows, Sequence):
        yield from (row for row in rows if isinstance(row, Mapping))


def _named(run: RunView, topic: Topic) -> tuple[int | None, Mapping[str, Any]]:
    """The rank named by the result, else by the newest note on a topic, and what is reported about it."""
    key: str = topic
    if topic == Topic.IMBALANCE:
        key = "memory_imbalance"
    found = None
    note = run.note(topic)
    # The result covers all steps, so it counts even if it names no rank.
    if key in run.result:
        found = run.result[key]
    elif note is not None:
        found = note.details
    if not isinstance(found, Mapping) or not isinstance(found.get("rank"), int):
        return None, {}
    return found["rank"], found


def _text(run: RunView, topic: Topic) -> str:
    rank, details = _named(run, topic)
    if rank is None:
        return ""
    if details.get("text"):
        return str(details["text"])
    note = run.note(topic)
    if note is None:
        return ""
    return note.text


def _states(store: Store, run: RunView, places: Sequence[RankPlace]) -> dict[int, str]:
    """The state of each rank, as far as its readings show it."""
    if not run.running:
        states = {place.rank: "ended" for place in places}
        failed = failed_rank(run)
        if failed is not None and failed in states:
            states[failed] = "failed"
        return states
    silent = {place.rank for place in places if store.newest_s - _heard_s(store, place.rank, run.began_s) > SILENT_S}
    stalled = _stalled(store, run, places)
    states = {}
    for place in places:
        if place.rank in silent:
            states[place.rank] = "silent"
        elif stalled:
            states[place.rank] = "waiting"
        else:
            states[place.rank] = "running"
    return states


def _heard_s(store: Store, rank: int, began_s: float) -> float:
    """Time of a rank's last reading."""
    ends = [began_s]
    for metric in ("used_bytes", "allocated_bytes", "step"):
        last = store.last("rank", metric, str(rank))
        if last is not None:
            ends.append(last[0])
    return max(ends)


def _stalled(store: Store, run: RunView, places: Sequence[RankPlace]) -> bool:
    """Whether the ranks have completed no step together for clearly longer than one takes."""
    last = store.last("rank", "step_s", str(places[0].rank))
    if last is None or last[0] <= run.began_s:
        return False
    usual = 0.0
    if last[1] == last[1]:
        usual = last[1]
    return store.newest_s - last[0] > max(SILENT_S, STALLED_STEPS * usual)


def _row(store: Store, run: RunView, place: RankPlace, result: Mapping[str, Any], state: str, remark: str) -> RankRow:
    device = str(place.rank)
    shares = _shares_of(result) or _recent_shares(store, run, device)
    step_s = result.get("step_seconds_median")
    if not isinstance(step_s, float):
        step_s = _median(_recent(store, run, "step_s", device))
    # The store keeps the readings of earlier runs: ignore a step from before this run's start.
    newest = store.latest("rank", "step", device)
    step = result.get("steps")
    if newest.time_s is not None and newest.time_s >= run.began_s and newest.size is not None:
        step = newest.size
    return RankRow(
        rank=place.rank,
        device=place.device,
        host=place.host,
        step=step,
        step_s=step_s,
        computing=shares[0],
        communicating=shares[1],
        waiting=shares[2],
        loading=shares[3],
        peak_bytes=_peak(store, run, place, result),
        capacity_bytes=place.capacity_bytes,
        state=state,
        remark=remark,
    )


Floats = NDArray[np.float64]
Shares = tuple[float | None, float | None, float | None, float | None]


def _shares_of(result: Mapping[str, Any]) -> Shares | None:
    computing, communicating, waiting, loading = _shares(result)
    if communicating is None or waiting is None:
        return None
    if computing is None:
        computing = 1.0 - communicating - waiting - (loading or 0.0)
    return max(0.0, computing), communicating, waiting, loading


def _recent_shares(store: Store, run: RunView, device: str) -> Shares:
    parts = (_recent(store, run, f"{part}_share", device) for part in PARTS)
    weights = _recent(store, run, "step_s", device)
    computing, communicating, waiting, loading = (_weighted(part, weights) for part in parts)
    return computing, communicating, waiting, loading


def _weighted(shares: Floats, seconds: Floats) -> float | None:
    """The mean of a share, weighted by the steps' durations; unweighted if some are unknown."""
    if not len(shares):
        return None
    if len(seconds) == len(shares) and seconds.sum() > 0:
        return float(np.average(shares, weights=seconds))
    return float(np.average(shares))


def _recent(store: Store, run: RunView, metric: str, device: str) -> Floats:
    """The newest values of a metric of this run, without gaps."""
    series = store.series("rank", metric, device)
    last = store.last("rank", metric, device)
    if series is None or last is None:
        return np.empty(0)
    end = last[0]
    if run.ended_s is not None:
        end = min(end, run.ended_s)
    begin = max(run.began_s, end - RECENT_S)
    if not begin < end:
        return np.empty(0)
    times, values = series.window(begin, end, MOST_POINTS)
    return values[np.isfinite(values) & (times >= run.began_s)]


def _median(values: Floats) -> float | None:
    if len(values):
        return float(np.median(values))
    return None


def _peak(store: Store, run: RunView, place: RankPlace, result: Mapping[str, Any]) -> int | None:
    metric = "allocated_bytes"
    if kind_of(place.device) == "cpu":
        metric = "used_bytes"
    found = result.get(f"peak_{metric}")
    if isinstance(found, int):
        return found
    figures = store.statistics(("rank", metric, str(place.rank)), run.began_s, store.newest_s)
    if figures is None:
        return None
    return int(figures.max)


def rest_text(shares: Iterable[Sequence[float | None]]) -> str:
    """The part of a step that belongs to no category, in words; "" if negligible.

    Args:
        shares: for each rank: computing, communicating, waiting for others and for input, 0 to 1; ``None`` if unknown.
            If one of the first three is unknown, the result is "".
    """
    known = [[share or 0.0 for share in parts] for parts in shares if None not in parts[:3]]
    rest = max((1.0 - sum(parts) for parts in known), default=0.0)
    if rest < LEAST_UNACCOUNTED:
        return ""
    return f"Up to {format_percent(rest)} of a rank's time is none of these: it waited for a processor core."


def parameters_text(result: Mapping[str, Any]) -> str:
    """Whether the ranks ended with equal parameters, in words; "" if the result does not say."""
    equal = result.get("parameters_equal")
    if not isinstance(equal, bool):
        return ""
    if equal:
        return "The parameters are equal across the ranks."
    return "The parameters are NOT equal across the ranks."


def rank_sentences(result: Mapping[str, Any]) -> Iterator[str]:
    """Remarkable facts about the ranks of a result: slow ranks, full memory, equal parameters, restarts."""
    for key in ("straggler", "memory_imbalance"):
        if found := result.get(key):
            yield str(found["text"])
    if rest := rest_text(map(_shares, result["ranks"])):
        yield rest
    if parameters := parameters_text(result):
        yield parameters
    restarts = result.get("restarts")
    if restarts == 1:
        yield "All ranks were started again once."
    elif restarts:
        yield f"All ranks were started again {restarts} times."


def _shares(row: Mapping[str, Any]) -> list[float | None]:
    """The shares of a rank's parts of a step, in the order of `PARTS`."""
    return [number_in(row.get(f"{part}_share")) for part in PARTS]
