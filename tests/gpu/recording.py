"""What a device's allocator did, by torch's own history: on a GPU, on a simulated one and in a dry run alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Self

import torch

MOST_ENTRIES = 1_000_000

MOST_FRAMES = 14

MACHINERY = (
    "??",
    "torch::unwind",
    "torch::CapturedTraceback",
    "torch::gather",
    "torch::cuda::",
    "c10::cuda::CUDACachingAllocator",
    "c10::StorageImpl",
    "c10::intrusive_ptr",
    "Py",
    "_Py",
)
"""Beginnings of C++ names between torch's history and the code that asked, and of the interpreter's functions."""


class Allocation(NamedTuple):
    """A request: bytes asked for, and who asked, innermost first."""

    size: int
    frames: tuple[str, ...] = ()


class History:
    """torch's memory history of a device, from the beginning of the block on.

    Args:
        stacks: torch's word: "python", or "all" with C++ frames too.
    """

    def __init__(self, device: torch.device, stacks: str = "python") -> None:
        self._device = device
        self._stacks = stacks
        self._memory: Any = getattr(torch, device.type).memory

    def __enter__(self) -> Self:
        options = {"stacks": self._stacks, "max_entries": MOST_ENTRIES, "clear_history": True}
        self._memory._record_memory_history("all", **options)
        return self

    def __exit__(self, *error: object) -> None:
        self._memory._record_memory_history(None)

    def entries(self) -> list[dict[str, Any]]:
        """torch's entries of the device so far; to be read within the block."""
        traces = self._memory._snapshot()["device_traces"]
        index = self._device.index or 0
        return list(traces[index]) if index < len(traces) else []

    def dump(self, file: str) -> None:
        """Write a snapshot file as torch does."""
        self._memory._dump_snapshot(file)


def allocations(entries: Iterable[Mapping[str, Any]]) -> list[Allocation]:
    """The requests among torch's entries."""
    return [
        Allocation(entry["size"], shown(entry.get("frames", ()))) for entry in entries if entry["action"] == "alloc"
    ]


def shown(frames: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """A stack in short: no folders, and nothing of the recording itself."""
    found: list[str] = []
    for frame in frames:
        name, file = str(frame["name"]), str(frame["filename"])
        if file.endswith(".py"):
            found.append(f"{file.replace(chr(92), '/').rpartition('/')[2]}:{frame['line']} {name[:100]}")
        elif not name.startswith(MACHINERY):
            found.append(name[:140])
        if len(found) == MOST_FRAMES:
            break
    return tuple(found)


def peak(entries: Iterable[Mapping[str, Any]]) -> tuple[int, Counter[int]]:
    """The most bytes that were requested and live at once, of what the entries show, and the sizes of those blocks."""
    live: dict[int, int] = {}
    level = highest = 0
    at_highest: Counter[int] = Counter()
    rising = False
    for entry in entries:
        if entry["action"] == "alloc":
            live[entry["addr"]] = entry["size"]
            level += entry["size"]
            rising = True
        elif entry["action"] == "free_requested" and entry["addr"] in live:
            if rising and level > highest:
                highest, at_highest = level, Counter(live.values())
            rising = False
            level -= live.pop(entry["addr"])
    if level > highest:
        highest, at_highest = level, Counter(live.values())
    return highest, at_highest


LOOKED_AHEAD = 200
"""Requests within which two sequences are looked for to agree again."""

AGREEING = 3
"""Requests in a row that count as agreeing."""


def differences(real: Sequence[Allocation], predicted: Sequence[Allocation]) -> list[dict[str, Any]]:
    """Where two sequences of requests differ, up to the end of the predicted one.

    Returns:
        for each place: ``at`` (index in the real and in the predicted sequence), the requests that only one has (size,
        frames), and ``agreed``: whether the sequences come together again behind it.
    """
    found: list[dict[str, Any]] = []
    sizes = [a.size for a in real], [a.size for a in predicted]
    here, there = 0, 0
    while there < len(predicted) and here < len(real):
        if sizes[0][here] == sizes[1][there]:
            here, there = here + 1, there + 1
            continue
        ahead = _agreeing(sizes[0], sizes[1], here, there)
        more, other = ahead or (len(real) - here, len(predicted) - there)
        found.append(
            {
                "at": [here, there],
                "only_real": [_told(a) for a in real[here : here + more]][:12],
                "only_predicted": [_told(a) for a in predicted[there : there + other]][:12],
                "real_bytes": sum(sizes[0][here : here + more]),
                "predicted_bytes": sum(sizes[1][there : there + other]),
                "agreed": ahead is not None,
            }
        )
        here, there = here + more, there + other
    if there < len(predicted):
        rest = predicted[there:]
        told = {"at": [here, there], "only_real": [], "only_predicted": [_told(a) for a in rest][:12], "real_bytes": 0}
        found.append({**told, "predicted_bytes": sum(a.size for a in rest), "agreed": False})
    return found


def _agreeing(real: Sequence[int], predicted: Sequence[int], here: int, there: int) -> tuple[int, int] | None:
    """How many requests of each are to be left out so that the next ones agree: as few as possible."""
    for total in range(1, LOOKED_AHEAD):
        for more in range(total + 1):
            ours = real[here + more : here + more + AGREEING]
            theirs = predicted[there + total - more : there + total - more + AGREEING]
            if ours and theirs and ours[: len(theirs)] == theirs[: len(ours)]:
                return more, total - more
    return None


def _told(allocation: Allocation) -> dict[str, Any]:
    return {"size": allocation.size, "frames": list(allocation.frames)}


def packed(requests: Sequence[Allocation]) -> dict[str, Any]:
    """Requests as JSON, each stack once."""
    stacks: dict[tuple[str, ...], int] = {}
    of = [stacks.setdefault(request.frames, len(stacks)) for request in requests]
    return {"sizes": [request.size for request in requests], "of": of, "stacks": [list(stack) for stack in stacks]}


def unpacked(data: Mapping[str, Any]) -> list[Allocation]:
    """The requests that `packed` wrote."""
    stacks = [tuple(stack) for stack in data["stacks"]]
    return [Allocation(size, stacks[index]) for size, index in zip(data["sizes"], data["of"], strict=True)]


def followed(device: torch.device, step: Callable[[], object], stacks: str = "python") -> dict[str, Any]:
    """What a step asks for and takes.

    Returns:
        ``requests`` (`packed`), ``peak_bytes``: how far allocated memory rose above its level before, and
        ``requested_bytes``: the same of the bytes asked for, without rounding.
    """
    module: Any = getattr(torch, device.type)
    module.synchronize()
    before = module.memory_allocated(device)
    with History(device, stacks) as history:
        module.reset_peak_memory_stats(device)
        result = step()
        module.synchronize()
        highest = module.max_memory_allocated(device)
        entries = history.entries()
        del result
    return {
        "requests": packed(allocations(entries)),
        "peak_bytes": highest - before,
        "requested_bytes": peak(entries)[0],
    }
