"""Running configurations on CUDA and reading what torch's allocator did; each line of JSON is one of them.

``python -m tests.allocator_matrix.measuring NAME…`` is run in a process of its own for each allocator and each card;
``NAME@BYTES`` alone in one, on a card with so much room.
"""

from __future__ import annotations

import gc
import json
import sys
import traceback
from array import array
from typing import Any

import torch

from tests.allocator_matrix.configurations import Configuration, named
from tests.allocator_matrix.program import STEPS, build

MOST_ENTRIES = 2_000_000


def measure(one: Configuration, *, requests: bool = False, stacks: bool = False) -> dict[str, Any]:
    """What torch's allocator came to, in bytes, from an empty one on.

    Args:
        one: the configuration.
        requests: whether to tell every allocation and free too, as `gpudash.memory.allocator.trace.Trace` has them.
        stacks: and where each allocation was asked for.
    """
    device = torch.device("cuda", 0)
    _empty()
    torch.manual_seed(0)
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.reset_accumulated_memory_stats()
    if requests:
        torch.cuda.memory._record_memory_history(
            "all", context="alloc" if stacks else None, stacks="python", max_entries=MOST_ENTRIES, clear_history=True
        )
    step = build(one, device)
    for _ in range(STEPS):
        step()
    found = torch.cuda.memory_stats()
    told: dict[str, Any] = {
        "name": one.name,
        "allocated": found["allocated_bytes.all.peak"],
        "reserved": found["reserved_bytes.all.peak"],
        "retries": found["num_alloc_retries"],
        "allocations": found["allocation.all.allocated"],
        "torch": torch.__version__,
    }
    if requests:
        entries = torch._C._cuda_memorySnapshot(None)["device_traces"][0]
        told |= _requests(entries, stacks=stacks)
        torch.cuda.memory._record_memory_history(None)
    del step
    _empty()
    return told


def in_room(one: Configuration, room: int) -> dict[str, Any]:
    """How a configuration ends on this card, whose allocator can have ``room`` bytes; after it the process is over."""
    try:
        measure(one)
        fits = True
    except torch.OutOfMemoryError:
        fits = False
    found = torch.cuda.memory_stats()
    reserved, retries = found["reserved_bytes.all.peak"], found["num_alloc_retries"]
    return {"name": one.name, "room": room, "fits": fits, "retries": retries, "reserved": reserved}


def _empty() -> None:
    """Give everything back: the next configuration begins as in a process of its own."""
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    if torch.cuda.is_initialized() and (left := torch.cuda.memory_reserved()):  # type: ignore[no-untyped-call]
        raise RuntimeError(f"{left} bytes are still reserved, so that the next figures would not be its own")


def _requests(entries: list[dict[str, Any]], *, stacks: bool) -> dict[str, Any]:
    sizes, events, where = array("q"), array("q"), []
    living: dict[int, int] = {}
    for entry in entries:
        if entry["action"] == "alloc":
            sizes.append(entry["size"])
            living[entry["addr"]] = len(sizes)
            events.append(len(sizes))
            if stacks:
                where.append(
                    [f"{f['filename'].rpartition('/')[2]}:{f['line']} {f['name']}" for f in entry["frames"]][:12]
                )
        elif entry["action"] == "free_completed" and entry["addr"] in living:
            events.append(-living.pop(entry["addr"]))
    return {"sizes": list(sizes), "events": list(events), "stacks": where}


def main(names: list[str]) -> None:
    """Tell what each came to, one line of JSON each, as soon as it is known."""
    torch.set_num_threads(1)
    wants = "--requests" in names
    stacks = "--stacks" in names
    for name in names:
        if name.startswith("--"):
            continue
        chosen, _at, room = name.partition("@")
        try:
            told = in_room(named(chosen), int(room)) if room else measure(named(name), requests=wants, stacks=stacks)
        except Exception:
            told = {"name": name, "problem": traceback.format_exc()}
        sys.stdout.write(json.dumps(told) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
