"""The operators of a trace, added up as torch's own table adds them up: own and total time, kernels, memory.

An operator lies within another of its thread when its span does, as in torch.autograd.profiler_util. A kernel belongs
to the operator around the call that started it, which has its "correlation", else to the one with its "External id";
in older traces that number is no operator's. A ``[memory]`` event belongs to the innermost operator of its thread
at that moment. Times are microseconds, as in the file.
"""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpudash.memory.snapshot.reading.source import readable
from gpudash.units import format_bytes, format_count, format_duration

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

OUTSIDE = "outside operators"
"""In place of an operator's name: memory that is taken and given back between operators, by Python and autograd."""

ON_CPU = frozenset(("cpu_op", "cuda_runtime", "cuda_driver", "Operator", "Runtime"))
ON_DEVICE = frozenset(("kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset"))
"""Categories of events, with those of PyTorch before 1.13 in capitals."""

MEMORY = "[memory]"

MOST_OPERATORS = 1000
MOST_SPANS = 1500
"""Spans of the picture: the longest."""

MOST_DEPTH = 5
MOST_LANES = 8
LONGEST_NAME = 120
LARGEST_US = 1e16
"""Of any time: microseconds since 1970 have 16 digits."""

LARGEST_BYTES = 2**62


def number_of(value: object, largest: float) -> float | None:
    """A number of the file, ``None`` where it is none or beyond ``largest``; NaN is beyond."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not -largest <= value <= largest:
        return None
    return float(value)


class Names:
    """Texts, each kept once and known by a number."""

    def __init__(self) -> None:
        self.all: list[str] = []
        self._numbers: dict[str, int] = {}

    def number(self, name: object) -> int:
        """The number of a name, which is shortened to `LONGEST_NAME` characters that can be shown."""
        text = str(name)[:LONGEST_NAME]
        found = self._numbers.get(text)
        if found is None:
            found = self._numbers[text] = len(self.all)
            self.all.append(readable(text))
        return found


@dataclass(slots=True)
class Spans:
    """Operators, calls of CUDA, or kernels, as columns; 0 stands for no number."""

    name: array[int] = field(default_factory=lambda: array("q"))
    thread: array[int] = field(default_factory=lambda: array("q"))
    start: array[float] = field(default_factory=lambda: array("d"))
    duration: array[float] = field(default_factory=lambda: array("d"))
    external: array[int] = field(default_factory=lambda: array("q"))
    correlation: array[int] = field(default_factory=lambda: array("q"))

    def __len__(self) -> int:
        return len(self.name)

    def add(self, name: int, thread: int, start: float, duration: float, arguments: Mapping[str, Any]) -> None:
        self.name.append(name)
        self.thread.append(thread)
        self.start.append(start)
        self.duration.append(duration)
        self.external.append(_id(arguments, "External id", "external id"))
        self.correlation.append(_id(arguments, "correlation"))


@dataclass(slots=True)
class MemoryEvents:
    """Memory that was taken, or given back where ``bytes`` is negative, as columns."""

    thread: array[int] = field(default_factory=lambda: array("q"))
    time: array[float] = field(default_factory=lambda: array("d"))
    device: array[int] = field(default_factory=lambda: array("q"))
    bytes: array[int] = field(default_factory=lambda: array("q"))
    address: array[int] = field(default_factory=lambda: array("q"))
    allocated: array[float] = field(default_factory=lambda: array("d"))
    reserved: array[float] = field(default_factory=lambda: array("d"))

    def __len__(self) -> int:
        return len(self.time)


class Collected:
    """What of a trace's events is kept: `take` is called with each.

    Attributes:
        names: of operators and kernels.
        threads: of the CPU, and devices in the spans of kernels.
        devices: of memory, as "cpu" and "cuda:0".
        cpu, kernels: operators, and what ran on devices.
        memory: the ``[memory]`` events.
    """

    def __init__(self) -> None:
        self.names = Names()
        self.threads = Names()
        self.devices = Names()
        self.cpu = Spans()
        self.kernels = Spans()
        self.memory = MemoryEvents()
        self.shapes: defaultdict[int, Counter[str]] = defaultdict(Counter)

    def take(self, event: Mapping[str, Any]) -> None:
        """Keep an event, unless it is of a kind that is not needed or makes no sense."""
        category = event.get("cat")
        is_memory = event.get("name") == MEMORY
        if not is_memory and not (isinstance(category, str) and (category in ON_CPU or category in ON_DEVICE)):
            return
        start = number_of(event.get("ts"), LARGEST_US)
        arguments = event.get("args")
        if start is None:
            return
        if not isinstance(arguments, dict):
            arguments = {}
        if is_memory:
            self._take_memory(event, start, arguments)
        elif event.get("ph") == "X":
            self._take_span(event, str(category), start, arguments)

    def _take_span(self, event: Mapping[str, Any], category: str, start: float, arguments: Mapping[str, Any]) -> None:
        duration = max(number_of(event.get("dur"), LARGEST_US) or 0.0, 0.0)
        name = self.names.number(event.get("name"))
        if category in ON_DEVICE:
            device = self.threads.number(f"cuda:{arguments.get('device', 0)}")
            self.kernels.add(name, device, start, duration, arguments)
            return
        self.cpu.add(name, self._thread(event), start, duration, arguments)
        shapes = arguments.get("Input Dims", arguments.get("Input dims"))
        if isinstance(shapes, list):
            self.shapes[name][_shapes_text(shapes)] += 1

    def _take_memory(self, event: Mapping[str, Any], start: float, arguments: Mapping[str, Any]) -> None:
        size = number_of(arguments.get("Bytes"), LARGEST_BYTES)
        if size is None:
            return
        memory = self.memory
        memory.thread.append(self._thread(event))
        memory.time.append(start)
        memory.device.append(self.devices.number(device_of(arguments)))
        memory.bytes.append(int(size))
        memory.address.append(int(number_of(arguments.get("Addr"), LARGEST_BYTES) or 0))
        memory.allocated.append(number_of(arguments.get("Total Allocated"), LARGEST_BYTES) or 0.0)
        memory.reserved.append(number_of(arguments.get("Total Reserved"), LARGEST_BYTES) or 0.0)

    def _thread(self, event: Mapping[str, Any]) -> int:
        return self.threads.number(f"{event.get('pid')} {event.get('tid')}")


DEVICE_TYPES: Mapping[int, str] = {
    0: "cpu",
    1: "cuda",
    6: "hip",
    12: "xpu",
    13: "mps",
    15: "hpu",
    20: "privateuseone",
}
"""Those of c10/core/DeviceType.h, of which the profiler writes the number."""


def device_of(arguments: Mapping[str, Any]) -> str:
    """The device of a memory event, as "cpu" or "cuda:0"."""
    number = arguments.get("Device Type", 0)
    kind = "device"
    if isinstance(number, int):
        kind = DEVICE_TYPES.get(number, kind)
    if kind == "cpu":
        return kind
    return readable(f"{kind}:{arguments.get('Device Id', 0)}"[:LONGEST_NAME])


def _id(arguments: Mapping[str, Any], *keys: str) -> int:
    """The number that the first of these keys has; 0 without one."""
    for key in keys:
        found = number_of(arguments.get(key), 2**53)
        if found is not None:
            return int(found)
    return 0


def _shapes_text(shapes: Sequence[Any]) -> str:
    found = ("×".join(map(str, shape)) for shape in shapes[:8] if isinstance(shape, list) and shape)
    return ", ".join(found)[:LONGEST_NAME]


@dataclass(frozen=True, slots=True, eq=False)
class Nesting:
    """Which operator lies within which, and what belongs to which.

    Attributes:
        order: places of the operators, outer before inner.
        parent: place of the operator around each, -1 without one; shape (operators,).
        depth: how many are around each.
        recursive: whether one of the same name is around it.
        owner: place of the operator that each memory event belongs to, -1 without one; shape (memory events,).
    """

    order: Ints
    parent: Ints
    depth: Ints
    recursive: NDArray[np.bool_]
    owner: Ints


def nested(found: Collected) -> Nesting:
    """Follow every thread once, with the operators that are open at each moment."""
    cpu, memory = found.cpu, found.memory
    count = len(cpu)
    start, end = _columns(cpu.start), _columns(cpu.start) + _columns(cpu.duration)
    times = np.concatenate((start, _columns(memory.time)))
    threads = np.concatenate((_whole(cpu.thread), _whole(memory.thread)))
    # At one moment what is longer lies outside, and memory belongs to the innermost that has begun.
    later = np.concatenate((-_columns(cpu.duration), np.ones(len(memory))))
    slack = _slack(times)
    parent, depth = np.full(count, -1, np.int64), np.zeros(count, np.int64)
    recursive = np.zeros(count, np.bool_)
    owner = np.full(len(memory), -1, np.int64)
    order: list[int] = []
    opened: list[int] = []
    on: Counter[int] = Counter()
    names = cpu.name
    ends, thread_of = np.concatenate((end, _columns(memory.time))).tolist(), threads.tolist()
    thread = None
    for place in np.lexsort((later, times, threads)).tolist():
        if thread_of[place] != thread:
            thread = thread_of[place]
            opened.clear()
            on.clear()
        # Times are rounded, so that an operator may seem to end a little behind the one around it.
        while opened and ends[opened[-1]] < ends[place] - slack:
            on[names[opened.pop()]] -= 1
        around = opened[-1] if opened else -1
        if place >= count:
            owner[place - count] = around
            continue
        parent[place], depth[place] = around, len(opened)
        recursive[place] = on[names[place]] > 0
        order.append(place)
        opened.append(place)
        on[names[place]] += 1
    return Nesting(np.array(order, np.int64), parent, depth, recursive, owner)


def _slack(times: Floats) -> float:
    """By how much two times may differ that were one before they were rounded to the file's digits."""
    if not len(times):
        return 0.0
    return max(2e-3, 2 * float(np.spacing(np.abs(times).max())))


def rows(found: Collected, nesting: Nesting) -> tuple[list[dict[str, Any]], int]:
    """The operators by own time, as `gpudash.workloads.profiling.operators` has them, and how many are left out."""
    own = _own(found, nesting)
    total = {name: values.copy() for name, values in own.items()}
    total["cpu_seconds"] = _columns(found.cpu.duration).copy()
    # Inner ones come later in the order: backwards each is whole before it is added to the one around it.
    around = nesting.parent.tolist()
    backwards = [place for place in nesting.order[::-1].tolist() if around[place] >= 0]
    for name in ("device_seconds", "cpu_bytes", "device_bytes"):
        sums = total[name].tolist()
        for place in backwards:
            sums[around[place]] += sums[place]
        total[name] = np.array(sums)
    names = _whole(found.cpu.name)
    count = len(found.names.all)
    figures: dict[str, Floats] = {}
    for name in own:
        where, unit = name.split("_")
        figures[f"{where}_self_{unit}"] = _sums(names, own[name], count)
        # One that calls itself would have its inner time counted twice.
        outer = ~nesting.recursive
        figures[f"{where}_total_{unit}"] = _sums(names[outer], total[name][outer], count)
    calls = np.bincount(names[~_doubled(names, nesting.parent)], minlength=count)
    made = [_row(found, number, int(calls[number]), figures) for number in np.flatnonzero(calls).tolist()]
    made += _outside(found, nesting)
    made.sort(key=lambda row: (-row["device_self_seconds"], -row["cpu_self_seconds"]))
    return made[:MOST_OPERATORS], max(0, len(made) - MOST_OPERATORS)


def _doubled(names: Ints, parent: Ints) -> NDArray[np.bool_]:
    """Which operators are all that one of the same name does: torch's table counts both as one call."""
    within = np.flatnonzero(parent >= 0)
    around = parent[within]
    inner_count = np.bincount(around, minlength=len(parent))
    doubled = np.zeros(len(parent), np.bool_)
    doubled[within] = (names[within] == names[around]) & (inner_count[around] == 1)
    return doubled


def _own(found: Collected, nesting: Nesting) -> dict[str, Floats]:
    """Of each operator without those within it: µs on the CPU and of its kernels, bytes on either."""
    cpu, memory = found.cpu, found.memory
    count = len(cpu)
    duration = _columns(cpu.duration)
    within = nesting.parent >= 0
    inner = _sums(nesting.parent[within], duration[within], count)
    own = {"cpu_seconds": np.maximum(duration - inner, 0.0), "device_seconds": _of_kernels(found, nesting)}
    on_cpu = np.array([name == "cpu" for name in found.devices.all], np.bool_)
    sizes = _whole(memory.bytes).astype(np.float64)
    inside = nesting.owner >= 0
    for name, wanted in (("cpu_bytes", True), ("device_bytes", False)):
        chosen = inside & (on_cpu[_whole(memory.device)] == wanted)
        own[name] = _sums(nesting.owner[chosen], sizes[chosen], count)
    return own


def _of_kernels(found: Collected, nesting: Nesting) -> Floats:
    """µs of the kernels that each operator started itself."""
    cpu, kernels = found.cpu, found.kernels
    if not len(cpu) or not len(kernels):
        return np.zeros(len(cpu))
    # A call of CUDA has a correlation, an operator none.
    is_call = _whole(cpu.correlation) != 0
    started = _places(_whole(cpu.correlation), _whole(kernels.correlation))
    for _level in range(MOST_DEPTH):
        inside = (started >= 0) & is_call[started] & (nesting.parent[started] >= 0)
        started = np.where(inside, nesting.parent[started], started)
    named = _places(np.where(is_call, 0, _whole(cpu.external)), _whole(kernels.external))
    owner = np.where(started >= 0, started, named)
    known = owner >= 0
    return _sums(owner[known], _columns(kernels.duration)[known], len(cpu))


def _places(of: Ints, wanted: Ints) -> Ints:
    """Where each wanted number is; -1 where it is 0 or nowhere."""
    order = np.argsort(of, kind="stable")
    at = np.minimum(np.searchsorted(of[order], wanted), len(of) - 1)
    place = order[at]
    return np.where((of[place] == wanted) & (wanted != 0), place, -1)


def _row(found: Collected, number: int, calls: int, figures: Mapping[str, Floats]) -> dict[str, Any]:
    row: dict[str, Any] = {"name": found.names.all[number], "calls": calls}
    for name, values in figures.items():
        value = float(values[number])
        row[name] = int(value)
        if name.endswith("seconds"):
            row[name] = value / 1e6
    shapes = found.shapes.get(number)
    row["shapes"] = ""
    if shapes:
        row["shapes"] = shapes.most_common(1)[0][0]
    row["stack"] = []
    return row


def _outside(found: Collected, nesting: Nesting) -> list[dict[str, Any]]:
    """A row for memory that belongs to no operator, where there is some: with it the bytes of the table add up."""
    free = nesting.owner < 0
    if not free.any():
        return []
    row: dict[str, Any] = {"name": OUTSIDE, "calls": int(free.sum()), "shapes": "", "stack": []}
    sizes, devices = _whole(found.memory.bytes)[free], _whole(found.memory.device)[free]
    on_cpu = np.array([name == "cpu" for name in found.devices.all], np.bool_)[devices]
    for where, chosen in (("cpu", on_cpu), ("device", ~on_cpu)):
        for kind in ("self", "total"):
            row[f"{where}_{kind}_seconds"] = 0.0
            row[f"{where}_{kind}_bytes"] = int(sizes[chosen].sum())
    return [row]


def timeline(found: Collected, nesting: Nesting) -> dict[str, Any]:
    """When which operator ran, for a picture, as `gpudash.workloads.profiling.timeline` has it."""
    cpu, kernels = found.cpu, found.kernels
    shallow = np.flatnonzero(nesting.depth <= MOST_DEPTH)
    start = np.concatenate((_columns(cpu.start)[shallow], _columns(kernels.start)))
    duration = np.concatenate((_columns(cpu.duration)[shallow], _columns(kernels.duration)))
    name = np.concatenate((_whole(cpu.name)[shallow], _whole(kernels.name)))
    thread = np.concatenate((_whole(cpu.thread)[shallow], _whole(kernels.thread)))
    depth = np.concatenate((nesting.depth[shallow], np.zeros(len(kernels), np.int64)))
    if not len(start):
        return {"lanes": [], "names": [], "spans": [], "seconds": 0.0, "left_out": 0}
    lanes = _lanes(_whole(cpu.thread), _whole(kernels.thread), found.threads.all)
    drawn = np.flatnonzero(np.isin(thread, list(lanes)))
    longest = drawn[np.argsort(-duration[drawn], kind="stable")[:MOST_SPANS]]
    longest = longest[np.argsort(start[longest], kind="stable")]
    began = began_us(found)
    ended = max(float((start + duration).max()), float(_columns(found.memory.time).max(initial=began)))
    shown = Names()
    places = list(lanes)
    spans = [
        [
            places.index(int(thread[place])),
            int(depth[place]),
            shown.number(found.names.all[int(name[place])]),
            round(float(start[place]) - began),
            max(1, round(float(duration[place]))),
        ]
        for place in longest.tolist()
    ]
    return {
        "lanes": list(lanes.values()),
        "names": shown.all,
        "spans": spans,
        "seconds": (ended - began) / 1e6,
        "left_out": len(start) - len(longest),
    }


def _lanes(threads: Ints, devices: Ints, names: Sequence[str]) -> dict[int, str]:
    """The threads of the CPU, the busiest first, and behind them the devices: number and what each is called."""
    busiest = [number for number, _count in Counter(threads.tolist()).most_common(MOST_LANES)]
    lanes = {number: "CPU" if place == 1 else f"CPU thread {place}" for place, number in enumerate(busiest, 1)}
    for number in sorted(set(devices.tolist()))[:MOST_LANES]:
        lanes[number] = names[number]
    return lanes


@dataclass(frozen=True, slots=True)
class TracedMemory:
    """The memory of one device over the time of a trace.

    Attributes:
        device: "cpu" or as "cuda:0".
        times_s: seconds since the trace began, ascending; at most about `MOST_POINTS`, with every extreme.
        allocated, reserved: bytes at these times; what is reserved is 0 where nothing is kept for later.
        peak_bytes, peak_s: most that was allocated, and when.
        held: what held it then, as name and bytes, the most first; what was taken before the trace is not in it.
        event_count: how many times memory was taken or given back.
    """

    device: str
    times_s: Sequence[float]
    allocated: Sequence[float]
    reserved: Sequence[float]
    peak_bytes: int
    peak_s: float
    held: Sequence[tuple[str, int]]
    event_count: int


MOST_POINTS = 2000
MOST_HELD = 20


def memory_of(found: Collected, nesting: Nesting) -> list[TracedMemory]:
    """The memory of every device, the GPUs first."""
    devices = _whole(found.memory.device)
    numbers = sorted(range(len(found.devices.all)), key=lambda number: (found.devices.all[number] == "cpu", number))
    return [_memory(found, nesting, number, np.flatnonzero(devices == number)) for number in numbers]


def _memory(found: Collected, nesting: Nesting, device: int, chosen: Ints) -> TracedMemory:
    memory = found.memory
    chosen = chosen[np.argsort(_columns(memory.time)[chosen], kind="stable")]
    times = (_columns(memory.time)[chosen] - began_us(found)) / 1e6
    allocated, reserved = _columns(memory.allocated)[chosen], _columns(memory.reserved)[chosen]
    if not allocated.any():
        # Some versions tell no totals: from the changes, as if nothing had been allocated at the lowest point.
        allocated = np.cumsum(_whole(memory.bytes)[chosen].astype(np.float64))
        allocated -= min(float(allocated.min()), 0.0)
    peak = int(np.argmax(allocated))
    points = _extremes(allocated, MOST_POINTS)
    return TracedMemory(
        device=found.devices.all[device],
        times_s=times[points].tolist(),
        allocated=allocated[points].tolist(),
        reserved=reserved[points].tolist(),
        peak_bytes=int(allocated[peak]),
        peak_s=float(times[peak]),
        held=_held(found, nesting, chosen[: peak + 1]),
        event_count=len(chosen),
    )


def _held(found: Collected, nesting: Nesting, until: Ints) -> list[tuple[str, int]]:
    """What is live behind the memory events up to a moment, by the operator that took it."""
    sizes, addresses = _whole(found.memory.bytes), _whole(found.memory.address)
    live: dict[int, int] = {}
    for place in until.tolist():
        if sizes[place] > 0:
            live[int(addresses[place])] = place
        else:
            live.pop(int(addresses[place]), None)
    held: Counter[str] = Counter()
    for place in live.values():
        owner = int(nesting.owner[place])
        name = OUTSIDE
        if owner >= 0:
            name = found.names.all[found.cpu.name[owner]]
        held[name] += int(sizes[place])
    return held.most_common(MOST_HELD)


def _extremes(values: Floats, most: int) -> Ints:
    """Places of at most about ``most`` values: of every stretch the highest and the lowest, and both ends."""
    if len(values) <= most:
        return np.arange(len(values))
    edges = np.linspace(0, len(values), most // 2 + 1).astype(np.int64)
    kept = {0, len(values) - 1}
    for low, high in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        kept.add(low + int(np.argmax(values[low:high])))
        kept.add(low + int(np.argmin(values[low:high])))
    return np.array(sorted(kept), np.int64)


def figure_text(field: str, value: Any) -> str:
    """A figure of an operator's row; nothing where there was none, which makes what there was stand out."""
    if field == "calls":
        return format_count(value)
    if not field.endswith(("seconds", "bytes")):
        return str(value)
    if not value:
        return ""
    if field.endswith("seconds"):
        return format_duration(value)
    if value < 0:
        return f"−{format_bytes(-value)}"
    return format_bytes(value)


def _sums(places: Ints, values: Floats, count: int) -> Floats:
    """The values of each place, added up; shape (count,)."""
    return np.bincount(places, values, count).astype(np.float64)


def _columns(values: array[float]) -> Floats:
    return np.frombuffer(values, np.float64) if len(values) else np.zeros(0)


def _whole(values: array[int]) -> Ints:
    return np.frombuffer(values, np.int64) if len(values) else np.zeros(0, np.int64)


def began_us(found: Collected) -> float:
    """When the first of what is kept began; 0 where nothing is kept."""
    starts = np.concatenate([_columns(found.cpu.start), _columns(found.kernels.start), _columns(found.memory.time)])
    if len(starts):
        return float(starts.min())
    return 0.0
