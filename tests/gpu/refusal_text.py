"""torch's words when memory runs out, beside those of the allocator's model for the same figures."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Any

import torch

from gpudash.memory.allocator.refusal import AllocationRefused, message
from gpudash.units import GIB, MIB
from tests.gpu.child import Report, asked

PROCESSES = re.compile(r"is free\. (?P<words>.*?)(?:[\d.]+ (?:bytes|[KMG]iB) allowed; )?Of the allocated memory")

CASES = ("capped", "capped with idle memory", "beyond the card", "beyond everything", "private pools")


def refuse(device: torch.device, argument: Mapping[str, str], tell: Report) -> None:
    """Run out of memory in one of `CASES`, and put torch's text beside the model's."""
    case = argument["case"]
    module: Any = getattr(torch, device.type)
    total = module.get_device_properties(device).total_memory
    kept: list[Any] = [torch.empty(100 * MIB, dtype=torch.uint8, device=device)]
    asked_for = 1536 * MIB
    if case.startswith("capped") or case == "private pools":
        module.set_per_process_memory_fraction(GIB / total, device)
    if case == "capped with idle memory":
        kept.append(torch.empty(200 * MIB, dtype=torch.uint8, device=device)[:1])
        # two halves of one segment, of which one stays: idle memory that cannot be given back
        first = torch.empty(6 * MIB, dtype=torch.uint8, device=device)
        kept.append(torch.empty(6 * MIB, dtype=torch.uint8, device=device))
        del first
    if case == "private pools":
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            inner = torch.empty(30 * MIB, dtype=torch.uint8, device=device) + 1
        kept += [graph, inner]
    if case == "beyond the card":
        asked_for = total + GIB
    if case == "beyond everything":
        asked_for = 2**60
    try:
        torch.empty(asked_for, dtype=torch.uint8, device=device)
    except torch.OutOfMemoryError as error:
        text = str(error)
    else:
        raise AssertionError("There was memory for it.")
    tell("text", text)
    free, _total = module.mem_get_info(device)
    model = message(_figures(device, text, asked_for, free, total), device.type.upper(), _processes(text))
    tell("model", model)
    tell("same", _first_line(text) == model)
    tell("differences", [part for part in difflib.ndiff(text.split(" "), model.split(" ")) if part[0] in "+-?"])
    del kept


def _figures(device: torch.device, text: str, asked_for: int, free: int, total: int) -> AllocationRefused:
    """What the model would have known; private pools by what torch's snapshot says of them."""
    module: Any = getattr(torch, device.type)
    statistics = module.memory_stats(device)
    private = [s for s in module.memory_snapshot() if tuple(s.get("segment_pool_id", (0, 0))) != (0, 0)]
    held = sum(segment["total_size"] for segment in private)
    idle = held - sum(segment["active_size"] for segment in private)
    return AllocationRefused(
        requested=-(-asked_for // (2 * MIB)) * 2 * MIB,
        size=asked_for,
        device=device.index or 0,
        capacity=total,
        device_free=free,
        allowed=int(GIB / total * total) if " allowed; " in text else None,
        allocated=statistics["allocated_bytes.all.current"],
        reserved=statistics["reserved_bytes.all.current"],
        private_reserved=held,
        private_idle=idle,
        pending=0,
        stream=0,
    )


def _processes(text: str) -> str:
    found = PROCESSES.search(text)
    return "" if found is None else found["words"]


def _first_line(text: str) -> str:
    """Without the C++ stack that some builds add."""
    return text.partition("\n")[0]


def measure(device: str, *, limit_s: float = 40.0) -> dict[str, Any]:
    """Every case, each in a process of its own and alone, since the text tells of other processes too."""
    cases = CASES if device.startswith("cuda") else CASES[:-1]
    return {case: asked(refuse, device, {"case": case}, limit_s=limit_s) for case in cases}
