"""Where a run on CUDA and its dry run part: which allocations only one of them has, and who asked for them."""

from __future__ import annotations

import difflib
import sys
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from gpudash.memory.allocator import AllocatorSettings
from gpudash.memory.allocator.trace import TEMPORARY, Trace
from gpudash.memory.predicting.fit import peaks
from gpudash.simulator.device.simulated_gpu import SimulatedGpu
from gpudash.simulator.dry_run.dry_run import DryRun
from tests.allocator_matrix.configurations import ALLOCATORS, Configuration
from tests.allocator_matrix.predicting import trace_of

SHOWN = 12
"""Kinds of differences that are listed, the most frequent first."""

MOST_FRAMES = 4


def drift(measured: Mapping[str, Any], one: Configuration) -> str:
    """What `measuring.measure` told, with its requests and stacks, against the dry run of the same configuration."""
    if "problem" in measured:
        return str(measured["problem"])
    trace, askers = _followed(one)
    settings = AllocatorSettings.parse(ALLOCATORS[one.allocator])
    real = Trace(array("q", measured["events"]), array("q", measured["sizes"]), [TEMPORARY] * len(measured["sizes"]))
    ours, replayed = peaks(trace, settings), peaks(real, settings)
    lines = [
        one.name,
        f"  on CUDA     allocated {measured['allocated']}, reserved {measured['reserved']}",
        f"  replayed    allocated {replayed.allocated}, reserved {replayed.reserved}: the same requests in the model",
        f"  dry run     allocated {ours.allocated}, reserved {ours.reserved}",
    ]
    sizes = [_rounded(size) for size in real.sizes], [_rounded(size) for size in trace.sizes]
    found: Counter[str] = Counter()
    for tag, first, behind, begin, end in difflib.SequenceMatcher(None, *sizes, autojunk=False).get_opcodes():
        if tag != "equal":
            asker = measured["stacks"][first][:MOST_FRAMES] if first < behind else askers[begin]
            words = f"only on CUDA {sizes[0][first:behind][:8]}, only in the dry run {sizes[1][begin:end][:8]}"
            found[f"{words}, by {' < '.join(asker) or 'a backward pass'}"] += 1
    if not found and list(real.events) != list(trace.events):
        at = next(at for at, pair in enumerate(zip(real.events, trace.events, strict=False)) if len(set(pair)) > 1)
        words = [_event(trace, askers, events[at]) for events in (real.events, trace.events)]
        found[f"the same requests, given back in another order: on CUDA {words[0]}, in the dry run {words[1]}"] += 1
    lines += [f"  {count} × {words}" for words, count in found.most_common(SHOWN)]
    return "\n".join(lines)


def _event(trace: Trace, askers: Sequence[Sequence[str]], event: int) -> str:
    block = abs(event) - 1
    return f"{'allocates' if event > 0 else 'frees'} {trace.sizes[block]} bytes of {' < '.join(askers[block])}"


def _followed(one: Configuration) -> tuple[Trace, list[list[str]]]:
    """The dry run's trace, and who asked for each allocation, innermost first."""
    askers: list[list[str]] = []
    allocate = SimulatedGpu.allocate

    def noting(card: SimulatedGpu, size: int, label: str | None = None) -> int:
        askers.append(_asker())
        return allocate(card, size, label)

    dry = DryRun()
    SimulatedGpu.allocate = noting  # type: ignore[method-assign]
    try:
        trace = trace_of(one, dry)
    finally:
        SimulatedGpu.allocate = allocate  # type: ignore[method-assign]
    return trace, askers


def _asker() -> list[str]:
    found: list[str] = []
    frame: Any = sys._getframe(2)
    while frame is not None and len(found) < MOST_FRAMES:
        operation = frame.f_locals.get("operation") if frame.f_code.co_name == "run" else None
        if operation is not None:
            found = [str(operation)]
        elif "simulator" not in frame.f_code.co_filename:
            found.append(f"{frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno} {frame.f_code.co_name}")
        frame = frame.f_back
    return found


def _rounded(size: int) -> int:
    return max(512, -(-size // 512) * 512)
