"""Explains a device's memory: what fills it, who allocated that, and why a request failed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from gpudash.memory.allocator.trace import CATEGORIES
from gpudash.memory.explaining.call_sites import SourceLine, growing_lines, no_source, owners
from gpudash.memory.explaining.memory_state import KV_CACHE, OTHER_TENSORS, MemoryState, RefusedRequest
from gpudash.memory.explaining.wording import cap_text, capacity_text, headline, others_text, request_words
from gpudash.memory.frames import site_of
from gpudash.telemetry.explanation import Evidence, Explanation, Growth, Part, Verdict, Where
from gpudash.units import summed_bytes


def explain(state: MemoryState, source: SourceLine = no_source, growing: Sequence[Growth] | None = None) -> Explanation:
    """Why the request of ``state`` failed; without a request, what uses the memory.

    Args:
        state: content of the device's memory.
        source: reads lines of the program, to quote them.
        growing: lines known to leave memory behind at every step; by default those visible in the state.
    """
    if growing is None:
        growing = growing_lines(state.groups, state.step, source)
    else:
        growing = tuple(growing)
    found = verdict(state, growing)
    parts, beyond = parts_of(state)
    by_category = categories(state)
    sites, rest_owners, rest_bytes = owners(state.groups, growing, source)
    request = state.request
    if request is None:
        where = Where()
    else:
        where = _where(request, source)
    return Explanation(
        device=state.device,
        product=state.product,
        simulated=state.simulated,
        time_s=state.time_s,
        step=state.step,
        headline=headline(found, state, by_category, sites, growing),
        request_words=request_words(state, where),
        verdict=found,
        requested_bytes=None if request is None else request.bytes,
        segment_bytes=None if request is None else request.segment_bytes,
        missing_bytes=state.missing,
        where=where,
        capacity_bytes=state.capacity,
        parts=parts,
        beyond_bytes=beyond,
        largest_free_block_bytes=state.largest_free_block,
        by_category=by_category,
        owners=sites,
        rest_owners=rest_owners,
        rest_bytes=rest_bytes,
        growing=growing,
        evidence=_evidence(state),
        allowed_bytes=state.allowed,
        blocks=state.blocks if found == "fragmentation" else None,
    )


def categories(state: MemoryState) -> Mapping[str, int]:
    """Live bytes by category, in the order of the bar."""
    sizes: dict[str, int] = defaultdict(int)
    for group in state.groups:
        sizes[group.category] += group.bytes
    order = [*CATEGORIES, KV_CACHE, OTHER_TENSORS, *sizes]
    return {name: sizes[name] for name in dict.fromkeys(order) if sizes.get(name)}


def parts_of(state: MemoryState) -> tuple[tuple[Part, ...], int]:
    """The content of the device's memory, and the bytes by which it exceeds the capacity."""
    parts = [Part("category", name, size) for name, size in categories(state).items()]
    rest = state.reserved - state.allocated - state.pending - state.private_idle
    parts += [
        Part("pending", "freed, in use by another stream", state.pending),
        Part("private", "idle in private pools", state.private_idle),
        Part("idle", "idle inside PyTorch", max(0, rest)),
        Part("context", "context", state.context_bytes or 0),
        *state.processes,
    ]
    taken = summed_bytes(parts)
    free = min(state.device_free, max(0, state.capacity - taken))
    if state.allowed is None:
        to_be_had = free
    else:
        to_be_had = min(free, max(0, state.allowed - state.reserved))
    parts.append(Part("unattributed", "unattributed", max(0, state.capacity - taken - free)))
    parts.append(Part("free", "free" if to_be_had == free else "free under the memory cap", to_be_had))
    parts.append(Part("barred", "barred by the memory cap", free - to_be_had))
    return tuple(part for part in parts if part.bytes), max(0, taken - state.capacity)


def _where(request: RefusedRequest, source: SourceLine) -> Where:
    site = site_of(request.stack)
    return Where(
        stage=request.stage,
        phase=request.phase,
        step=request.step,
        module=request.module,
        file=None if site is None else site.file,
        line=None if site is None else site.line,
        name="" if site is None else site.name,
        text="" if site is None else source(site.file, site.line).strip(),
    )


def _evidence(state: MemoryState) -> Evidence:
    return replace(
        state.recorded,
        live_bytes=state.allocated,
        without_stack_bytes=sum(group.bytes for group in state.groups if not group.stack),
    )


def rejudged(found: Explanation, minimum_capacity: int, peak_allocated: int | None = None) -> Explanation:
    """``found`` updated by the needs of the whole run: whether something other than the capacity is the cause.

    Args:
        minimum_capacity: capacity with which the run succeeds if no other process holds memory, by a dry run; bytes.
        peak_allocated: peak of the run's allocated bytes; if it exceeds the limit, no arrangement fits.
    """
    request = found.requested_bytes
    processes = [part for part in found.parts if part.kind == "process"]
    room = found.capacity_bytes - found.part_bytes("context", "unattributed")
    limit = found.allowed_bytes or found.capacity_bytes
    if request is None or found.verdict not in ("other process", "real capacity", "fragmentation"):
        return found
    if found.verdict == "fragmentation":
        to_be_had = min(limit, room - summed_bytes(processes))
        if peak_allocated is None or peak_allocated <= to_be_had:
            return found
    elif not processes:
        return found
    if processes and minimum_capacity <= room and found.allowed_bytes is None:
        ours = found.part_bytes("category", "idle", "pending", "private", "context")
        text = others_text(processes, found.capacity_bytes, ours)
        return replace(found, verdict="other process", headline=text)
    refused = RefusedRequest(request, found.segment_bytes or request)
    if found.allowed_bytes is not None:
        context = 0
    else:
        context = found.part_bytes("context")
    text = capacity_text(limit, found.part_bytes("free"), found.by_category, found.owners, refused, context)
    free = found.part_bytes("free", "barred")
    if found.allowed_bytes is not None and refused.segment_bytes <= free:
        return replace(found, verdict="memory cap", headline=f"{cap_text(limit, free, found.capacity_bytes)} {text}")
    return replace(found, verdict="real capacity", headline=text)


SHARE_OF_FRAGMENTS = 0.1
"""Part of the reserved memory that must be idle for fragmentation to be the cause: a few MiB of fragments are
normal."""

SHARE_OF_OTHERS = 0.25
"""Part of the capacity that other processes must hold to be the cause, if this process would otherwise fit."""

SHARE_OF_LEAK = 0.25
"""Part of the live bytes that growing lines must hold to be the cause."""

SHARE_OF_MISSING = 0.1
"""The same if they hold as much as was missing: without them the request would have succeeded."""


def verdict(state: MemoryState, growing: Sequence[Growth]) -> Verdict:
    """Why the request of ``state`` failed; "headroom" if there was none.

    Checked in this order: no device of this size is large enough; the request fits in the fragments, which are larger
    than what grows; lines of the program keep memory from every step; other processes hold what is missing, and a
    significant amount; freed memory waits for a stream; private pools hold idle memory; otherwise the cap on this
    process, or the capacity.
    """
    request = state.request
    if request is None:
        return "headroom"
    if request.segment_bytes > attainable(state):
        return "impossible request"
    missing = max(1, state.missing)
    grown = summed_bytes(growing)
    if _in_pieces(state, request.bytes) and state.usable_idle > grown:
        return "fragmentation"
    if grown >= SHARE_OF_LEAK * max(1, state.allocated) or grown >= max(missing, SHARE_OF_MISSING * state.allocated):
        return "leak"
    others = summed_bytes(state.processes)
    if others >= missing and others >= SHARE_OF_OTHERS * state.capacity and not state.capped:
        return "other process"
    if state.pending >= missing:
        return "pending frees"
    if state.private_idle >= missing:
        return "private pools"
    if state.capped:
        return "memory cap"
    return "real capacity"


def attainable(state: MemoryState) -> int:
    """The most that the allocator can reserve, in bytes: the cap is its own, the context is not under it."""
    for_torch = state.capacity - (state.context_bytes or 0)
    if state.allowed is None:
        return for_torch
    return min(for_torch, state.allowed)


def _in_pieces(state: MemoryState, requested: int) -> bool:
    enough = state.usable_idle >= requested > state.largest_free_block
    return enough and state.usable_idle >= SHARE_OF_FRAGMENTS * state.reserved
