"""A predicted run's memory as ribbons upon one another, before anything has run: data and shape, without a painter.

The horizontal place of a request is its number, and within a step whose stages' times are predicted its share of its
stage: how long each takes by itself is not known. A panel shows a stretch of them; `GhostPanel.columns` thins it to
columns of pixels so that no peak is lost, however many requests there are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]
Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Stretch:
    """A named stretch of a panel, from and to a share of its width.

    Attributes:
        name: of the phase, or the number of a step; "" where there is nothing to say.
    """

    name: str
    start: float
    end: float


@dataclass(frozen=True, slots=True, eq=False)
class RibbonColumns:
    """A panel thinned to columns of equal width.

    Attributes:
        edges: upper edge of each ribbon in each column, bytes, shape (ribbons, columns).
        firsts: the columns at which something changes, ascending, the first is 0; those between show the same.
    """

    edges: Floats
    firsts: Indices


@dataclass(frozen=True, eq=False)
class Ghost:
    """The ribbons of a run.

    Attributes:
        names: of the ribbons, from below; each is a name of a colour.
        edges: upper edge of each ribbon after each request, bytes, shape (ribbons, n).
        marks: where a stretch begins: its first request, its step (0 before the first), and its name.
        top: the ribbon up to which memory is in use and not only kept: its edge is the line of what is allocated.
        capacity: bytes of the device; ``None`` where that is not known.
        limit: bytes beyond which the run does not fit; ``None`` where that is not known.
        stage_seconds: how long a step is predicted to be in the stages of each name; empty where that is not known.
        unknown: bytes that convolutions may take at a time beside all that is drawn.
        copies: between the host and the device, shape (k, 4): how many requests come before each, its step, bytes, and
            whether it leaves the device. They are neither recorded nor kept by `thinned`.
    """

    names: tuple[str, ...]
    edges: Floats
    marks: tuple[tuple[int, int, str], ...] = ()
    top: int = -1
    capacity: float | None = None
    limit: float | None = None
    stage_seconds: Mapping[str, float] = field(default_factory=dict)
    unknown: float = 0.0
    copies: Integers = field(default_factory=lambda: np.empty((0, 4), np.int64))

    @classmethod
    def of(
        cls,
        ribbons: Mapping[str, Floats],
        marks: Sequence[tuple[int, int, str]] = (),
        *,
        kept: str = "",
        capacity: float | None = None,
        limit: float | None = None,
    ) -> Ghost:
        """Set ribbons upon one another.

        Args:
            ribbons: name → bytes after each request, the lowest ribbon first; those that are always empty are left out.
            marks, capacity, limit: as of the attributes.
            kept: the name of the ribbon that is only kept, the last one.
        """
        # A category that the run never has would take a colour in the legend for nothing.
        shown = {name: heights for name, heights in ribbons.items() if np.any(heights)}
        names = tuple(shown)
        edges = np.cumsum(np.array(list(shown.values()), np.float64).reshape(len(names), -1), axis=0)
        top = len(names) - 1 - (names[-1:] == (kept,))
        return cls(names, edges, tuple(marks), top, capacity, limit)

    def thinned(self, columns: int) -> Ghost:
        """The same with ``columns`` requests at most from each mark to the next: small enough to be recorded."""
        starts = sorted({0, *(min(at, self.requests) for at, _, _ in self.marks)})
        new: dict[int, int] = {}
        edges: list[Floats] = []
        count = 0
        for first, behind in zip(starts, [*starts[1:], self.requests], strict=True):
            new[first] = count
            if behind > first:
                edges.append(GhostPanel(self, first, behind, (), 0).columns(min(columns, behind - first)).edges)
                count += edges[-1].shape[1]
        if not edges:
            return self
        marks = tuple((new[min(at, self.requests)], step, name) for at, step, name in self.marks)
        return replace(self, edges=np.concatenate(edges, axis=1), marks=marks, copies=np.empty((0, 4), np.int64))

    def to_json(self) -> dict[str, Any]:
        """All of it in plain values, whole bytes; `from_json` reads it."""
        return {
            "names": list(self.names),
            "edges": np.rint(self.edges).astype(np.int64).tolist(),
            "marks": list(map(list, self.marks)),
            "top": self.top,
            "capacity": self.capacity,
            "limit": self.limit,
            "stage_seconds": dict(self.stage_seconds),
            "unknown": self.unknown,
            "predicted": True,
        }

    @classmethod
    def from_json(cls, written: Mapping[str, Any]) -> Ghost:
        """What `to_json` wrote.

        Raises:
            KeyError, TypeError, ValueError: when it is none.
        """
        edges = np.array(written["edges"], np.float64)
        names = tuple(map(str, written["names"]))
        if edges.ndim != 2 or len(names) != len(edges) or not edges.shape[1] or not np.isfinite(edges).all():
            raise ValueError("no ribbons")
        marks = tuple((int(at), int(step), str(name)) for at, step, name in written["marks"])
        top = int(written["top"])
        if not -len(edges) <= top < len(edges) or any(not 0 <= at <= edges.shape[1] for at, _, _ in marks):
            raise ValueError("no place in it")
        seconds = {str(name): float(time) for name, time in written.get("stage_seconds", {}).items()}
        if any(not 0 <= time < np.inf for time in seconds.values()):
            raise ValueError("no times in it")
        unknown = float(written.get("unknown", 0.0))
        if not 0 <= unknown < np.inf:
            raise ValueError("no size in it")
        return cls(names, edges, marks, top, written.get("capacity"), written.get("limit"), seconds, unknown)

    def above(self, name: str, size: float) -> Ghost:
        """The same upon a level ribbon of ``size`` bytes, which is called ``name``."""
        edges = np.concatenate((np.full((1, self.requests), size), self.edges + size))
        return replace(self, names=(name, *self.names), edges=edges, top=self.top + 1)

    @property
    def requests(self) -> int:
        """How many there are."""
        return int(self.edges.shape[1])

    @property
    def total(self) -> Floats:
        """What the device holds after each request, bytes, shape (n,)."""
        total: Floats = self.edges[-1]
        return total

    @cached_property
    def highest(self) -> float:
        """The highest point, bytes."""
        return float(self.total.max(initial=0.0))

    @cached_property
    def peak_at(self) -> int:
        """The request at which most is held, and of those the most in use; of several the first of the last step that
        has one: that step is as most are, and what is predicted of a peak is of the first moment that reaches it."""
        # Exact comparison: the highest is one of these very numbers.
        held = np.flatnonzero(self.total == self.highest)
        used = self.edges[self.top, held]
        tied = held[used == used.max()]
        step = max((step for at, step, _ in self.marks if at <= tied[-1]), default=0)
        begun = min((at for at, of, _ in self.marks if of == step), default=0)
        # The last step that reaches it is like most others; the first may hold buffers that come only once.
        return int(tied[np.searchsorted(tied, begun)])

    @cached_property
    def parts(self) -> dict[str, float]:
        """What each ribbon has at the peak, bytes, from below."""
        heights = np.diff(self.edges[:, self.peak_at], prepend=0.0)
        return dict(zip(self.names, heights.tolist(), strict=True))

    def prepare(self) -> None:
        """Find out now what takes a walk through all requests, on the thread that has the time for it."""
        for panel in (self.one_step, self.whole):
            panel.columns(1)  # finds the peak, and keeps the fine edges that columns of any number are thinned from

    def step_peak(self, step: int) -> tuple[float, float]:
        """Where in a step most is held, 0 to 1 of it, and how much that is, bytes."""
        panel = self.step_panel(step)
        held = self.total[panel.first : panel.behind]
        at = int(held.argmax())
        return (at + 0.5) / len(held), float(held[at])

    @property
    def steps(self) -> int:
        """Steps that are drawn."""
        return max((step for _, step, _ in self.marks), default=0)

    @cached_property
    def one_step(self) -> GhostPanel:
        """The step of the peak; the whole run where that is in none."""
        starts = [(at, step, name) for at, step, name in self.marks if step]
        step = max((step for at, step, _ in starts if at <= self.peak_at), default=0)
        own = [(at, name) for at, of, name in starts if of == step]
        # One mark says where a step begins and nothing of its stages: then the whole run shows more.
        if not step or len(own) < 2:
            return self.whole
        behind = min((at for at, of, _ in starts if of > step), default=self.requests)
        corners = _in_time(own, behind, self.stage_seconds)
        return GhostPanel(self, own[0][0], behind, _moved(_stages(own, behind), corners), step, corners)

    @cached_property
    def _panels(self) -> dict[int, GhostPanel]:
        return {}

    def step_panel(self, step: int) -> GhostPanel:
        """A step by its number, from 1."""
        if step not in self._panels:
            first = min((at for at, of, _ in self.marks if of == step), default=0)
            behind = min((at for at, of, _ in self.marks if of > step), default=self.requests)
            # A step without requests is one request wide, since no division by its width may be by nothing.
            self._panels[step] = GhostPanel(self, first, max(behind, first + 1), (), step)
        return self._panels[step]

    @cached_property
    def whole(self) -> GhostPanel:
        """All there is, by steps."""
        begun: dict[int, int] = {}
        for at, step, _ in self.marks:
            begun.setdefault(step, at)
        own = [(at, str(step) if step else "") for step, at in sorted(begun.items())]
        return GhostPanel(self, 0, self.requests, _stages(own, self.requests), 0)


@dataclass(frozen=True, eq=False)
class RunningGhost:
    """A run that goes on, as far as its ghost is drawn into its time. Times are seconds of one clock.

    Attributes:
        ghost: what was predicted.
        began: when it began.
        ended: when the steps in view ended, ascending; those that lie before the view are left out.
        step: the number of the newest step, 0 before the first has ended.
        pace: seconds that a step takes; 0 where that is not known yet.
        steps: that the run takes.
        over: whether it goes on no more.
    """

    ghost: Ghost
    began: float
    ended: Floats
    step: int
    pace: float
    steps: int
    over: bool

    def pieces(self, until: float) -> list[tuple[GhostPanel, float, float]]:
        """The stretches of requests, and from when to when each is drawn: what has been, by the ends of its steps, and
        what is to come up to ``until`` at the pace so far.
        """
        whole, ghost = self.ghost.whole, self.ghost
        if not len(self.ended) or not ghost.steps or self.pace <= 0:
            return []
        # The newest of the steps in view is the newest at all, so that the first one's number follows by counting
        # back.
        first = self.step - len(self.ended) + 1
        times = self.ended.tolist()
        found: list[tuple[GhostPanel, float, float]] = []
        start = times[0] - self.pace
        # Only where the first step is in view is there something to draw before it: building the model.
        if first == 1:
            start = max(self.began, start)
            setup = next((stage for stage in whole.stages if stage.name), None)
            if setup is not None and setup.start > 0 and start > self.began:
                behind = round(setup.start * ghost.requests)
                found.append((GhostPanel(ghost, 0, behind, (), 0), self.began, start))
        to_come = 0
        if not self.over:
            # One more than fits, so that the last ribbon is cut by the edge of the plot instead of ending before it.
            to_come = min(self.steps - self.step, MOST_TO_COME, max(0, int((until - times[-1]) / self.pace) + 1))
        times += [times[-1] + self.pace * (place + 1) for place in range(to_come)]
        for number, end in enumerate(times, first):
            # A run may take more steps than were predicted: the last one stands for all that come after it.
            found.append((ghost.step_panel(min(number, ghost.steps)), start, end))
            start = end
        return found


MOST_TO_COME = 500
"""Steps to come that are drawn at most."""


MOST_FINE = 8192
"""Requests of a panel up to which it is thinned from themselves, which is exact; several times a window's pixels."""


@dataclass(frozen=True, eq=False)
class GhostPanel:
    """A stretch of requests, which is drawn as wide as there is room.

    Attributes:
        first, behind: the requests.
        stages: what it is divided into.
        step: its number; 0 for the whole run.
        corners: where its width is shared out by predicted time: how many of its requests lie before, as a share of
            them, and the share of the width there, from (0, 0) to (1, 1); empty where all requests are as wide.
    """

    ghost: Ghost
    first: int
    behind: int
    stages: tuple[Stretch, ...]
    step: int
    corners: tuple[tuple[float, float], ...] = ()

    @property
    def seconds(self) -> float | None:
        """Predicted, from the left end to the right; ``None`` where its width is no time."""
        if not self.corners:
            return None
        return sum(self.ghost.stage_seconds.values())

    def share_of(self, request: int) -> float:
        """Where a request is, 0 to 1 of the width."""
        return _at((request + 0.5 - self.first) / max(1, self.behind - self.first), self.corners)

    @cached_property
    def _copied(self) -> dict[int, Floats]:
        return {}

    def copied(self, count: int) -> Floats:
        """Bytes that are copied in each of ``count`` columns of equal width, to the device and from it; shape
        (2, count)."""
        if count not in self._copied:
            self._copied[count] = self._copied_in(count)
        return self._copied[count]

    def _copied_in(self, count: int) -> Floats:
        at, step, size, outward = self.ghost.copies.T
        own = np.ones(len(at), np.bool_)
        # By its step, since a copy between two requests may be of either step.
        if self.step:
            own = step == self.step
        shares = (at[own] - self.first) / max(1, self.behind - self.first)
        if self.corners:
            requests, widths = zip(*self.corners, strict=True)
            shares = np.interp(shares, requests, widths)
        columns = np.clip(shares * count, 0, count - 1).astype(np.intp)
        found = np.zeros((2, count))
        np.add.at(found, (outward[own], columns), size[own])
        return found

    def columns(self, count: int) -> RibbonColumns:
        """Thin it to ``count`` columns: each shows the moment at which the most is in use, and of those the most held.

        What lasts from the column before counts too: a request whose memory stays is not over at the column's edge.
        """
        edges = self._columns(count)
        # NaN before the first column makes it one at which something changes.
        firsts = np.flatnonzero(np.any(np.diff(edges, axis=1, prepend=np.nan) != 0, axis=0))
        return RibbonColumns(edges, firsts)

    def _columns(self, count: int) -> Floats:
        fine = self.fine
        top = self.ghost.top
        if not self.corners:
            return _thinned(fine, top, count)
        pieces: list[Floats] = []
        first = 0
        filled = 0
        for requests, width in self.corners[1:]:
            behind = round(requests * fine.shape[1])
            until = round(width * count)
            # A stretch without a column or without a request is drawn with the one that follows.
            if until > filled and behind > first:
                pieces.append(_thinned(fine[:, first:behind], top, until - filled))
                first = behind
                filled = until
        # The last one has no follower: what is left of it joins the column before.
        if first < fine.shape[1] and pieces:
            left = _thinned(fine[:, first:], top, 1)
            if left[top, 0] > pieces[-1][top, -1]:
                pieces[-1][:, -1] = left[:, 0]
        if filled < count and pieces:
            pieces.append(np.repeat(pieces[-1][:, -1:], count - filled, axis=1))
        if not pieces:
            return _thinned(fine, top, count)
        return np.concatenate(pieces, axis=1)

    @cached_property
    def fine(self) -> Floats:
        """The upper edges of its ribbons, of so many requests at most that thinning them to any width takes no time."""
        edges = self.ghost.edges[:, self.first : self.behind]
        if edges.shape[1] <= MOST_FINE:
            return edges
        return _thinned(edges, self.ghost.top, MOST_FINE)


# The upper edge is thinned by itself: where memory is kept, its peak may be at another request than that in use.
def _thinned(edges: Floats, top: int, count: int) -> Floats:
    """The edges in ``count`` columns, as `GhostPanel.columns` says."""
    thinned = edges[:, _highest(edges[top], count)]
    if top < len(edges) - 1:
        thinned[-1] = edges[-1, _highest(edges[-1], count)]
    return thinned


def _highest(values: Floats, count: int) -> Indices:
    """The place of the highest value in each of ``count`` columns, of those that begin in it and the one before."""
    n = len(values)
    # Ceiling division: a column has the values that begin in it, and no value begins in two.
    begins = -(-(np.arange(count + 1) * n) // count)  # the first value that begins in each column: whole, and n at last
    carried = np.clip(begins[:-1] - 1, 0, n - 1)
    found: Indices = carried.copy()
    full = np.flatnonzero(begins[1:] > begins[:-1])  # values are there in these; without one what is carried is shown
    if not len(full):
        return found
    starts = begins[:-1][full]
    # reduceat takes each stretch up to the next start, which is why empty columns are left out before.
    most = np.maximum.reduceat(values, starts)
    lengths = np.diff(np.append(starts, n))
    places = np.flatnonzero(values[starts[0] :] == np.repeat(most, lengths)) + starts[0]
    groups = np.searchsorted(starts, places, "right") - 1
    # Of equal values in a column the first.
    best = places[np.flatnonzero(np.diff(groups, prepend=-1))]
    # the first column has nothing before it
    higher = (values[carried[full]] > most) & (begins[:-1][full] > 0)
    found[full] = np.where(higher, carried[full], best)
    return found


LEAST_STAGE = 0.02
"""Share of a step's width that a stage has at least: an optimizer of a microsecond is seen, and what it holds."""


def _in_time(
    begun: Sequence[tuple[int, str]], behind: int, seconds: Mapping[str, float]
) -> tuple[tuple[float, float], ...]:
    """`GhostPanel.corners` of a step that begins its stages so; empty where the time of none is known.

    A stage that comes several times, as forward passes of an accumulation do, shares its time out by its requests.
    """
    places = np.array([*(at for at, _ in begun), behind])
    lengths = np.diff(places)
    names, stage = np.unique([name for _, name in begun], return_inverse=True)
    requests = np.bincount(stage, lengths)
    times = np.array([seconds.get(name, 0.0) for name in names])
    whole = times.sum()
    if not whole or not requests.all():
        return ()
    # A stage as often as it comes: each time as much of its seconds as of its requests.
    shares = times[stage] / whole * lengths / requests[stage]
    widths = np.maximum(shares, LEAST_STAGE)
    right = np.cumsum(widths) / widths.sum()
    across = (places - places[0]) / (behind - places[0])
    return tuple(zip(across.tolist(), [0.0, *right.tolist()], strict=True))


def _at(share: float, corners: Sequence[tuple[float, float]]) -> float:
    """The share of the width at a share of the requests."""
    if not corners:
        return share
    requests, widths = zip(*corners, strict=True)
    return float(np.interp(share, requests, widths))


def _moved(stages: Sequence[Stretch], corners: Sequence[tuple[float, float]]) -> tuple[Stretch, ...]:
    return tuple(Stretch(stage.name, _at(stage.start, corners), _at(stage.end, corners)) for stage in stages)


def _stages(begun: Sequence[tuple[int, str]], behind: int) -> tuple[Stretch, ...]:
    """The stretches from each beginning to the next, as shares of all; neighbours of one name are one."""
    first = 0
    if begun:
        first = begun[0][0]
    width = max(1, behind - first)
    found: list[Stretch] = []
    for place, (at, name) in enumerate(begun):
        end = behind
        if place + 1 < len(begun):
            end = begun[place + 1][0]
        if found and found[-1].name == name:
            found[-1] = Stretch(name, found[-1].start, (end - first) / width)
        else:
            found.append(Stretch(name, (at - first) / width, (end - first) / width))
    return tuple(found)
