"""A stretch of a trace instead of the whole: which events, and the segments at its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, NamedTuple

import numpy as np

from gpudash.memory.allocator import AllocatorSettings, Segment
from gpudash.memory.allocator.rounding import Rounding
from gpudash.memory.snapshot.limits import TimeRange
from gpudash.memory.snapshot.model import NONE, Columns, EventList, SnapshotError
from gpudash.memory.undoing import Undoing


class Stretch(NamedTuple):
    """Events `begin` to before `end`."""

    begin: int
    end: int


def stretch_of(columns: Columns, times: TimeRange | None) -> Stretch:
    """Where the wanted times are; the whole where there are none, or the file keeps none."""
    count = len(columns)
    if times is None or count == 0:
        return Stretch(0, count)
    known = columns.time_us != NONE
    begin, end = 0, count
    if times.from_us is not None:
        late = known & (columns.time_us >= times.from_us)
        begin = int(late.argmax()) if late.any() else (count if known.any() else 0)
    if times.to_us is not None:
        early = known & (columns.time_us <= times.to_us)
        end = count - int(early[::-1].argmax()) if early.any() else (0 if known.any() else count)
    return Stretch(begin, max(begin, end))


def cut(columns: Columns, begin: int, end: int) -> Columns:
    """The events ``begin`` to before ``end``, copied, so that those around them need not be kept."""
    kept: dict[str, Any] = {column.name: getattr(columns, column.name) for column in fields(columns)}
    cut_out: dict[str, Any] = {
        name: value[begin:end].copy() for name, value in kept.items() if isinstance(value, np.ndarray)
    }
    return replace(columns, **cut_out)


def segments_before(
    later: Columns, segments: Sequence[Segment], settings: AllocatorSettings
) -> tuple[Segment, ...] | None:
    """The segments before the first of some events, from those after the last; ``None`` where they disagree."""
    try:
        undoing = Undoing(segments, Rounding(settings))
        for entry in reversed([*EventList(later)]):
            undoing.undo(entry)
    except SnapshotError:
        return None
    return tuple(undoing.segments())
