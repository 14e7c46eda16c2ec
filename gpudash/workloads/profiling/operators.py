"""What a profile says of its operators, small enough to live in a recording: a table, and a picture of the time."""

from __future__ import annotations

import sysconfig
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpudash.memory.explaining.memory_state import PROGRAMS
from gpudash.workloads.profiling.call_frames import CallFrames, Frame

MOST_ROWS = 40
"""Operators kept of each ranking: own time on the CPU, own time on the device, own memory."""

MOST_FRAMES = 8
"""Functions kept of a stack, the innermost first."""

MOST_SPANS = 1500
"""Operators drawn on the timeline: the longest."""

MOST_DEPTH = 5
"""Operators within operators that the timeline shows."""

LONGEST_NAME = 120
"""Characters kept of an operator's name: a kernel's may fill pages."""

_STDLIB = sysconfig.get_path("stdlib")
_GPUDASH = str(Path(__file__).parents[2])


_FIGURES = (
    "cpu_self_seconds",
    "cpu_total_seconds",
    "device_self_seconds",
    "device_total_seconds",
    "cpu_self_bytes",
    "cpu_total_bytes",
    "device_self_bytes",
    "device_total_bytes",
)


@dataclass(slots=True)
class _Tally:
    """One operator, added up over its calls. Times in µs, as torch has them."""

    calls: int = 0
    figures: dict[str, float] = field(default_factory=lambda: dict.fromkeys(_FIGURES, 0.0))
    shapes: Counter[str] = field(default_factory=Counter)
    stacks: Counter[tuple[Frame, ...]] = field(default_factory=Counter)


def operators(events: Sequence[Any], frames: CallFrames, origin_ns: int) -> dict[str, Any]:
    """The operators of a profile, ranked.

    Args:
        events: torch's `FunctionEvent`; their times are µs since ``origin_ns``.
        frames: the Python functions that were on meanwhile.
        origin_ns: Unix time of the events' zero.

    Returns:
        ``operators``: rows of ``name, calls``, own and total seconds and bytes on CPU and device, ``shapes`` and
        ``stack`` (the most frequent of each; the user's own functions, else all, innermost first), by own time.
        ``operators_left_out``: how many are missing. ``timeline``: as `timeline` returns.
    """
    on_cpu = sorted((event for event in events if _on_cpu(event)), key=lambda event: event.time_range.start)
    moments = (origin_ns + int(event.time_range.start * 1e3) for event in on_cpu)
    tallies: dict[str, _Tally] = {}
    for event, stack in zip(on_cpu, frames.at(moments), strict=True):
        if not event.is_user_annotation:
            _add(tallies.setdefault(event.name, _Tally()), event, stack)
    rows = [_row(name, tally) for name, tally in tallies.items()]
    kept = _ranked(rows)
    return {"operators": kept, "operators_left_out": len(rows) - len(kept), "timeline": timeline(events)}


def _on_cpu(event: Any) -> bool:
    return str(event.device_type) == "DeviceType.CPU" and event.name != "[memory]"


def _add(tally: _Tally, event: Any, stack: tuple[Frame, ...]) -> None:
    tally.calls += 1
    own: dict[str, float] = {
        "cpu_self_seconds": event.self_cpu_time_total / 1e6,
        "device_self_seconds": event.self_device_time_total / 1e6,
        "cpu_self_bytes": event.self_cpu_memory_usage,
        "device_self_bytes": event.self_device_memory_usage,
    }
    if not _within_itself(event):
        own |= {
            "cpu_total_seconds": event.cpu_time_total / 1e6,
            "device_total_seconds": event.device_time_total / 1e6,
            "cpu_total_bytes": event.cpu_memory_usage,
            "device_total_bytes": event.device_memory_usage,
        }
    for name, value in own.items():
        tally.figures[name] += value
    tally.shapes[_shapes(event.input_shapes)] += 1
    tally.stacks[stack] += 1


def _within_itself(event: Any) -> bool:
    """Whether an operator has called itself: the outer call's total holds the inner one's already."""
    parent = event.cpu_parent
    while parent is not None:
        if parent.name == event.name:
            return True
        parent = parent.cpu_parent
    return False


def _shapes(shapes: Sequence[Any] | None) -> str:
    return ", ".join("×".join(map(str, shape)) for shape in shapes or () if shape)[:LONGEST_NAME]


def _row(name: str, tally: _Tally) -> dict[str, Any]:
    figures: dict[str, Any] = {
        key: int(value) if key.endswith("bytes") else round(value, 9) for key, value in tally.figures.items()
    }
    return {
        "name": name[:LONGEST_NAME],
        "calls": tally.calls,
        **figures,
        "shapes": tally.shapes.most_common(1)[0][0],
        "stack": stack_words(tally.stacks.most_common(1)[0][0]),
    }


def _ranked(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    chosen: dict[int, dict[str, Any]] = {}
    for key in ("cpu_self_seconds", "device_self_seconds", "cpu_self_bytes", "device_self_bytes"):
        for row in sorted(rows, key=lambda row: -abs(row[key]))[:MOST_ROWS]:
            if row[key]:
                chosen[id(row)] = row
    by_time = ("device_self_seconds", "cpu_self_seconds")
    return sorted(chosen.values(), key=lambda row: [-row[key] for key in by_time])


def stack_words(stack: Sequence[Frame]) -> list[str]:
    """Functions as ``file:line function``, innermost first: the user's and the workload's own, else all there are."""
    own = [frame for frame in stack if _is_own(frame[0].co_filename)]
    return [_frame_words(frame) for frame in list(reversed(own or list(stack)))[:MOST_FRAMES]]


def _is_own(file: str) -> bool:
    if file.startswith(_GPUDASH):
        return f"/{PROGRAMS}/" in file
    return not file.startswith(("<", _STDLIB)) and "site-packages" not in file


def _frame_words(frame: Frame) -> str:
    code, line = frame
    return f"{'/'.join(Path(code.co_filename).parts[-2:])}:{line} {code.co_qualname}"[:LONGEST_NAME]


def timeline(events: Sequence[Any]) -> dict[str, Any]:
    """When which operator ran, for a picture: the longest `MOST_SPANS`.

    Returns:
        ``lanes`` (threads of the CPU, then the device), ``names``, ``spans`` (``lane, depth, name, start µs,
        duration µs``, whole numbers; lane and name are places in their lists; by start), ``seconds`` from the first to
        the last and ``left_out``, how many are not there.
    """
    drawn = [(event, depth) for event in events if (depth := _depth(event)) <= MOST_DEPTH and event.name != "[memory]"]
    if not drawn:
        return {"lanes": [], "names": [], "spans": [], "seconds": 0.0, "left_out": 0}
    began = min(event.time_range.start for event, _depth in drawn)
    ended = max(event.time_range.end for event, _depth in drawn)
    longest = sorted(drawn, key=lambda item: item[0].time_range.start - item[0].time_range.end)[:MOST_SPANS]
    longest.sort(key=lambda item: item[0].time_range.start)
    lanes = _lanes(drawn)
    names: dict[str, int] = {}
    spans = [
        [
            list(lanes).index(_lane(event)),
            depth,
            names.setdefault(event.name[:LONGEST_NAME], len(names)),
            round(event.time_range.start - began),
            max(1, round(event.time_range.end - event.time_range.start)),
        ]
        for event, depth in longest
    ]
    return {
        "lanes": list(lanes.values()),
        "names": list(names),
        "spans": spans,
        "seconds": (ended - began) / 1e6,
        "left_out": len(drawn) - len(longest),
    }


def _depth(event: Any) -> int:
    depth, parent = 0, event.cpu_parent
    while parent is not None:
        depth, parent = depth + 1, parent.cpu_parent
    return depth


def _lane(event: Any) -> tuple[str, Any]:
    kind = str(event.device_type).rpartition(".")[2]
    return kind, event.thread if kind == "CPU" else event.device_index


def _lanes(drawn: Sequence[tuple[Any, int]]) -> Mapping[tuple[str, Any], str]:
    """The lanes in order, the busiest thread of the CPU first, and what each is called."""
    found = Counter(_lane(event) for event, _depth in drawn)
    threads = [lane for lane, _count in found.most_common() if lane[0] == "CPU"]
    words = {lane: "CPU" if number == 1 else f"CPU thread {number}" for number, lane in enumerate(threads, 1)}
    return words | {lane: f"{lane[0].lower()}:{lane[1]}" for lane in sorted(found) if lane[0] != "CPU"}
