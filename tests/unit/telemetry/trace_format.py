"""The rules of the Trace Event Format, as its document states them, for traces of the JSON object form."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

REQUIRED = {
    "X": {"name", "ts", "dur", "pid", "tid"},
    "i": {"name", "ts", "pid", "tid", "s"},
    "C": {"name", "ts", "pid", "args"},
    "M": {"name", "pid", "args"},
}
"""Keys each phase needs: complete events, instants, counters, metadata."""

METADATA = {
    "process_name": ("name", str),
    "thread_name": ("name", str),
    "process_sort_index": ("sort_index", int),
    "thread_sort_index": ("sort_index", int),
}

Entry = dict[str, Any]


def validate(trace: Any) -> None:
    """Check a parsed trace.

    Raises:
        AssertionError: naming the first entry that breaks a rule.
    """
    assert isinstance(trace, dict)
    assert trace.get("displayTimeUnit") in ("ms", "ns")
    entries = trace["traceEvents"]
    assert isinstance(entries, list)
    for entry in entries:
        _check_entry(entry)
    _check_names(entries)
    _check_nesting(entries)


def _check_entry(entry: Entry) -> None:
    phase = entry["ph"]
    assert phase in REQUIRED, f"unknown phase in {entry}"
    assert REQUIRED[phase] <= set(entry), f"{REQUIRED[phase] - set(entry)} missing in {entry}"
    assert isinstance(entry["name"], str), entry
    assert all(isinstance(entry[key], int) for key in ("pid", "tid") if key in entry), entry
    for key in ("ts", "dur"):
        if key in entry:
            assert isinstance(entry[key], int | float), entry
            assert math.isfinite(entry[key]), entry
            assert entry[key] >= 0, entry
    assert isinstance(entry.get("args", {}), dict), entry
    if phase == "i":
        assert entry["s"] in ("g", "p", "t"), entry
    if phase == "C":
        assert entry["args"], entry
        assert all(isinstance(v, int | float) and math.isfinite(v) for v in entry["args"].values()), entry
    if phase == "M":
        key, kind = METADATA[entry["name"]]
        assert isinstance(entry["args"][key], kind), entry


def _check_names(entries: list[Entry]) -> None:
    """Every process and thread that something happens in has a name, told once."""
    told = [(e["name"], e["pid"], e["tid"]) for e in entries if e["ph"] == "M"]
    assert len(told) == len(set(told))
    processes = {pid for name, pid, _ in told if name == "process_name"}
    threads = {(pid, tid) for name, pid, tid in told if name == "thread_name"}
    for entry in entries:
        if entry["ph"] != "M":
            assert entry["pid"] in processes, entry
        if entry["ph"] in "Xi":
            assert (entry["pid"], entry["tid"]) in threads, entry


def _check_nesting(entries: list[Entry]) -> None:
    """In a thread, of two slices one holds the other or they do not meet."""
    for thread, slices in threads_of(entries):
        open_until: list[float] = []
        for entry in sorted(slices, key=lambda e: (e["ts"], -e["dur"])):
            end = entry["ts"] + entry["dur"]
            while open_until and open_until[-1] <= entry["ts"] + 1e-6:
                open_until.pop()
            assert not open_until or end <= open_until[-1] + 1e-3, f"{entry} crosses another in {thread}"
            open_until.append(end)


def threads_of(entries: list[Entry]) -> Iterator[tuple[tuple[int, int], list[Entry]]]:
    """The slices of every thread."""
    found: dict[tuple[int, int], list[Entry]] = defaultdict(list)
    for entry in entries:
        if entry["ph"] == "X":
            found[entry["pid"], entry["tid"]].append(entry)
    yield from found.items()
