"""An explanation's sentences: the cause first, the figures that prove it, and fixed terms for each kind of memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpudash.memory.allocator.trace import WORKSPACE
from gpudash.memory.explaining.call_sites import by_stride, who_keeps
from gpudash.memory.explaining.memory_state import MemoryState, RefusedRequest
from gpudash.memory.frames import site_of
from gpudash.telemetry.explanation import (
    Growth,
    Owner,
    Part,
    Verdict,
    Where,
    every_steps,
    request_size,
    segment_text,
    short,
)
from gpudash.units import available, format_bytes, format_pair, needed, summed_bytes


def headline(
    verdict: Verdict,
    state: MemoryState,
    by_category: Mapping[str, int],
    owners: Sequence[Owner],
    growing: Sequence[Growth],
) -> str:
    """The cause in the user's words; a cap on the process comes first if the device had room."""
    text = _cause(verdict, state, by_category, owners, growing)
    if not state.capped or verdict == "impossible request":
        return text
    return f"{cap_text(state.limit, state.device_free, state.capacity)} {text}"


def cap_text(allowed: int, free: int, capacity: int) -> str:
    """The sentence that a cap on the process caused the failure, not the device.

    Args:
        allowed: the cap, bytes.
        free: free bytes of the device.
        capacity: bytes of the device.
    """
    there = format_pair(free, capacity)
    return f"The memory cap of {format_bytes(allowed)} refused this, not the device: {there} of it were free."


def _cause(
    verdict: Verdict,
    state: MemoryState,
    by_category: Mapping[str, int],
    owners: Sequence[Owner],
    growing: Sequence[Growth],
) -> str:
    match verdict:
        case "impossible request":
            return _impossible(state)
        case "fragmentation":
            return _fragments(state)
        case "leak":
            return _leak(state, growing)
        case "other process":
            return others_text(state.processes, state.capacity, state.reserved + (state.context_bytes or 0))
        case "pending frees":
            return (
                f"{format_bytes(state.pending)} was freed but other streams still use it (record_stream), so it could "
                "not be given out again."
            )
        case "private pools":
            return (
                f"{format_bytes(state.private_idle)} lies idle in private pools, which serve CUDA graphs only; "
                f"{needed(state.missing)} was missing elsewhere."
            )
        case "headroom" | "no failure":
            return _now(state, by_category)
        case "real capacity" | "memory cap":
            assert state.request is not None
            if state.capped:
                free = min(state.device_free, max(0, state.limit - state.reserved))
                context = 0
            else:
                free = state.device_free
                context = state.context_bytes or 0
            return capacity_text(state.limit, free, by_category, owners, state.request, context)


def request_words(state: MemoryState, where: Where) -> str:
    """The last request, its origin and what was missing; without a request, what is still available."""
    request = state.request
    if request is None:
        if state.allowed is None:
            room = state.device_free
        else:
            room = min(state.device_free, state.allowed - state.reserved)
        idle = ""
        if state.idle:
            idle = f", and what lies idle inside PyTorch, {available(state.idle)}, is used again"
        return f"{available(max(0, room))} is still free{idle}."
    subject = "The last request was"
    if request.is_context:
        subject = "The first use of the device makes its context of"
    parts = [f"{subject} {needed(request.bytes)}{' for the workspace of cuBLAS' if request.is_workspace else ''}"]
    place = place_of(where)
    if place:
        parts.append(f" ({place})")
    missing = state.missing
    if missing:
        parts.append(f"{segment_text(request.bytes, request.segment_bytes)}; {needed(missing)} too little was free")
    return f"{''.join(parts)}."


def place_of(where: Where) -> str:
    """Time and place of a request: "step 12, backward, train.py:41"; "" if unknown."""
    parts = [f"step {where.step}" if where.step else "", where.phase or where.stage, innermost(where.module)]
    if where.file is not None:
        parts.append(f"{short(where.file)}:{where.line}")
    return ", ".join(filter(None, parts))


def innermost(module: str) -> str:
    """The class of the innermost of dotted modules."""
    return module.rpartition(".")[2]


def _now(state: MemoryState, by_category: Mapping[str, int]) -> str:
    """What uses the memory if nothing failed."""
    used = format_pair(state.capacity - state.device_free, state.capacity)
    mostly = max(by_category, key=lambda name: by_category[name], default="")
    allocated = f"{format_bytes(state.allocated)} allocated{f', mostly {mostly}' if mostly else ''}"
    return f"{used} is in use: {allocated}, and {format_bytes(state.idle)} idle inside PyTorch."


def _impossible(state: MemoryState) -> str:
    request, context = state.request, state.context_bytes or 0
    assert request is not None
    if request.is_context:
        return (
            f"The card is too small for the context of {needed(request.bytes)} itself: it has "
            f"{available(state.capacity)}."
        )
    asker = "one tensor"
    if request.is_workspace:
        asker = "the workspace of cuBLAS"
    need = f"{asker} needs {request_size(request.bytes, request.segment_bytes)}"
    if state.allowed is not None and state.allowed < state.capacity - context:
        return f"The cap cannot be kept: {need}, and this process may have {available(state.allowed)}."
    of_context = ""
    if context:
        of_context = f", {needed(context)} of them the context's"
    return f"No allocator setting helps: {need}, and the card has {available(state.capacity)}{of_context}."


def _fragments(state: MemoryState) -> str:
    assert state.request is not None
    return (
        f"{available(state.usable_idle)} is idle inside PyTorch but in pieces; the largest is "
        f"{available(state.largest_free_block)}, and {needed(state.request.bytes)} was asked."
    )


def _leak(state: MemoryState, growing: Sequence[Growth]) -> str:
    lines = {(growth.file, growth.line) for growth in growing}
    # As in the table of owners: includes the incomplete step.
    held = 0
    for group in state.groups:
        site = site_of(group.stack)
        if site and group.category != WORKSPACE and (site.file, site.line) in lines:
            held += group.bytes
    groups = by_stride(growing)
    kept = _kept_alive(groups[0])
    for others in groups[1:]:
        kept += f", and {_kept_alive(others)}"
    steps = growing[0].steps
    if any(growth.stride > 1.0 for growth in growing):
        steps = state.step - min(growth.first_step for growth in growing)
    return f"{kept}: {format_pair(held, state.limit)} after {steps} steps."


def _kept_alive(growing: Sequence[Growth]) -> str:
    """What lines keep equally often: "train.py:41 and 1 other line keep 6 MiB alive per step"."""
    who, allocated = who_keeps(growing, growing[0].kept_by)
    size = format_bytes(sum(growth.bytes_at_once for growth in growing))
    return f"{who} {size} alive {every_steps(growing[0].stride, 'per step')}{allocated}"


def others_text(processes: Sequence[Part], capacity: int, ours: int) -> str:
    """The sentence that other processes hold what is missing.

    Args:
        processes: other processes.
        capacity: bytes of the device.
        ours: bytes of this process.
    """
    return f"{holders_text(processes, capacity)} This process uses {format_bytes(ours)}."


def holders_text(processes: Sequence[Part], capacity: int) -> str:
    """Which processes hold memory of a device; names the largest.

    Args:
        processes: one or more processes.
        capacity: bytes of the device.
    """
    largest = max(processes, key=lambda process: process.bytes)
    together = format_bytes(summed_bytes(processes))
    many = ""
    if len(processes) > 1:
        many = f", the {len(processes)} others together {together}"
    held = format_pair(largest.bytes, capacity)
    return f"{process_text(largest)} holds {held}{many}."


def process_text(process: Part) -> str:
    """A process that holds memory: "python (pid 4711, user mia)"; with its command if the program started it."""
    if process.command:
        return f"A process that this program started, {process.command} (pid {process.pid}),"
    known = [f"pid {process.pid}" if process.pid is not None else "", f"user {process.user}" if process.user else ""]
    details = ", ".join(filter(None, known))
    name = process.name or "another process"
    text = name
    if details:
        text = f"{name} ({details})"
    if not process.name:
        return text[:1].upper() + text[1:]
    return text


def capacity_text(
    limit: int,
    free: int,
    by_category: Mapping[str, int],
    owners: Sequence[Owner],
    request: RefusedRequest,
    context: int = 0,
) -> str:
    """What most of the memory is used for.

    Args:
        limit: bytes available to the process.
        free: free bytes on the device.
        by_category: live bytes.
        owners: call sites, the largest first.
        request: the failed request.
        context: its context in bytes, if that counts against the limit.
    """
    mostly_context = 2 * context > limit - free
    if not by_category and mostly_context:
        return f"The context alone takes {format_pair(context, limit)}, before any tensor."
    if not by_category:
        return f"Memory was full before this run: {format_pair(limit - free, limit)}."
    name, size = max(by_category.items(), key=lambda item: item[1])
    if mostly_context and request.bytes <= size:
        most = f"{name}: {format_bytes(size)}{mostly_from(name, owners)}"
        return f"The context takes {format_pair(context, limit)}; most of the rest was {most}."
    verb = "Memory was full of"
    if request.bytes > size:
        size_text = needed(request.bytes)
        if request.is_workspace:
            size_text += " for the workspace of cuBLAS"
        verb = f"One request of {size_text} was too much beside"
    return f"{verb} {name}: {format_pair(size, limit)}{mostly_from(name, owners)}."


def mostly_from(category: str, owners: Sequence[Owner]) -> str:
    """The main origin of a category: ", most from train.py:41"; "" if unknown.

    Args:
        category: category of memory.
        owners: call sites, the largest first.
    """
    first = next((owner for owner in owners if owner.category == category), None)
    if first is None or first.file is None:
        return ""
    module = innermost(first.module)
    place = f"{short(first.file)}:{first.line}"
    if module:
        return f", most from {module} ({place})"
    return f", most from {place}"
