"""What a drawing shows, in the units of its data: axes, curves, areas, bands, levels, marks and notes.

A scene says nothing of pixels but the size of its frame, and nothing of colours: `kind` names them, and the painter
knows them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

Anchor = Literal["start", "middle", "end"]


@dataclass(frozen=True, slots=True)
class SceneAxis:
    """A range, and its ticks with their labels. What lies beyond the range is drawn at its edge."""

    low: float
    high: float
    ticks: Sequence[tuple[float, str]] = ()


@dataclass(frozen=True, slots=True)
class SceneFrame:
    """Pixels of a whole drawing, and of the margins around its plot area."""

    width: float = 960
    height: float = 210
    left: float = 84
    right: float = 44
    top: float = 20
    bottom: float = 26

    @property
    def columns(self) -> int:
        """Pixels across the plot area."""
        return round(self.width - self.left - self.right)


@dataclass(frozen=True, slots=True)
class SceneCurve:
    """A line through points, x ascending, both of shape (n,); a NaN in ``y`` is a gap.

    Attributes:
        right: whether it is read on the right axis.
    """

    x: Floats
    y: Floats
    kind: str
    right: bool = False


@dataclass(frozen=True, slots=True)
class SceneArea:
    """What lies between zero and a curve, which is given as in `SceneCurve`."""

    x: Floats
    y: Floats
    kind: str
    right: bool = False


@dataclass(frozen=True, slots=True)
class SceneBand:
    """A stretch of the horizontal axis, over the whole height; `title` is shown where it is pointed at."""

    start: float
    end: float
    kind: str
    title: str = ""


@dataclass(frozen=True, slots=True)
class SceneLevel:
    """A line across the plot, at a value of the left axis."""

    value: float
    kind: str


@dataclass(frozen=True, slots=True)
class SceneMark:
    """A line from top to bottom at a place of the horizontal axis; `title` is shown where it is pointed at."""

    place: float
    kind: str
    title: str = ""


@dataclass(frozen=True, slots=True)
class SceneDot:
    """A ring at a place and a value of the left axis."""

    place: float
    value: float
    kind: str
    radius: float = 5


@dataclass(frozen=True, slots=True)
class SceneNote:
    """A text at a place and a value of the left axis, moved right and down by so many pixels."""

    place: float
    value: float
    text: str
    kind: str = ""
    anchor: Anchor = "start"
    right: float = 0
    down: float = 0


@dataclass(frozen=True, slots=True, eq=False)
class SceneRibbons:
    """Ribbons on one another, k of them in c columns side by side; see `gpudash.drawing.ribbons`.

    Attributes:
        x: edges of the columns, ascending, shape (c + 1,).
        tops: values of the left axis up to the upper edge of each, the lowest ribbon first, shape (k, c).
        kinds: of each ribbon.
        titles: of each ribbon, shown where it is pointed at.
    """

    x: Floats
    tops: Floats
    kinds: Sequence[str]
    titles: Sequence[str]


Item = SceneArea | SceneBand | SceneCurve | SceneDot | SceneLevel | SceneMark | SceneNote | SceneRibbons


@dataclass(frozen=True, slots=True)
class PlotScene:
    """A whole drawing.

    Attributes:
        description: says what is shown to those who do not see it.
        across: the horizontal axis.
        left, right: the vertical ones; each tick of the left one has a line across.
        items: those painted first lie below.
    """

    description: str
    across: SceneAxis
    left: SceneAxis
    items: Sequence[Item]
    right: SceneAxis | None = None
    frame: SceneFrame = field(default_factory=SceneFrame)

    def x(self, places: Floats | float) -> Floats:
        """Pixels from the left edge of the frame."""
        frame = self.frame
        return frame.left + (frame.width - frame.left - frame.right) * _share(self.across, places)

    def y(self, values: Floats | float, axis: SceneAxis | None = None) -> Floats:
        """Pixels from the upper edge of the frame, of values of the left axis or of another one."""
        frame = self.frame
        return frame.top + (frame.height - frame.bottom - frame.top) * (1 - _share(axis or self.left, values))


def _share(axis: SceneAxis, values: Floats | float) -> Floats:
    with np.errstate(all="ignore"):  # a recording may hold any number
        share: Floats = np.clip((np.asarray(values, np.float64) - axis.low) / (axis.high - axis.low), 0.0, 1.0)
    return share


def outline(x: Floats, low: Floats, high: Floats) -> list[tuple[Floats, Floats]]:
    """The corners of what lies between two edges that are level within each column, a shape for each part of it.

    Args:
        x: edges of the columns, shape (c + 1,).
        low, high: of each column, shape (c,); nothing lies where they are one.
    """
    there = high > low
    bounds = np.flatnonzero(np.diff(there.astype(np.int8), prepend=0, append=0)).reshape(-1, 2)
    found = []
    for begin, end in bounds.tolist():
        # corners only where an edge changes its height: in most columns neither does
        upper_x, upper_y = _stairs(x[begin : end + 1], high[begin:end])
        lower_x, lower_y = _stairs(x[begin : end + 1], low[begin:end])
        found.append((np.concatenate((upper_x, lower_x[::-1])), np.concatenate((upper_y, lower_y[::-1]))))
    return found


def _stairs(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    changes = np.flatnonzero(np.diff(y)) + 1
    begins = np.concatenate(([0], changes))
    ends = np.append(changes, len(y))
    return np.stack((x[begins], x[ends]), axis=1).ravel(), np.repeat(y[begins], 2)


def pieces(x: Floats, y: Floats) -> list[tuple[Floats, Floats]]:
    """The parts of a curve between its gaps."""
    known = np.isfinite(y)
    # Each stretch of known values begins with a rise and ends with a fall; two by two these are its ends.
    edges = np.flatnonzero(np.diff(known.astype(np.int8), prepend=0, append=0)).reshape(-1, 2)
    return [(x[begin:end], y[begin:end]) for begin, end in edges.tolist()]
