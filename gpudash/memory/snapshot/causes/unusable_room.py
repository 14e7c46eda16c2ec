"""Room that a request cannot use: beyond a limit that the program set for itself, or in pieces between blocks."""

from __future__ import annotations

import ast
from collections.abc import Sequence

import numpy as np

from gpudash.memory.allocator.layout import SHARED
from gpudash.memory.allocator.trace import INPUTS, TEMPORARY
from gpudash.memory.explaining.memory_state import OTHER_TENSORS
from gpudash.memory.frames import Frame
from gpudash.memory.snapshot.causes.case import Case, Ints, ProgramCause, replayed
from gpudash.memory.snapshot.source_edits import SourceFile, keyword_of, method_of
from gpudash.telemetry.explanation import Remedy, short
from gpudash.units import available, format_bytes, needed

SETS_IT = "set_per_process_memory_fraction"

MOST_HOLDERS = 3
"""Most lines whose blocks are freed together to close the segments between them."""


def capped_process(case: Case) -> ProgramCause | None:
    """The program limits itself to a fraction of the GPU, which has more."""
    allowed, found = case.found.allowed_bytes, _cap(case)
    if found is None or allowed is None or case.found.verdict != "memory cap":
        return None
    file, call, value = found
    capacity = 0
    if isinstance(value.value, int | float) and value.value:
        capacity = int(allowed / value.value)
    share = int(case.uncapped / capacity * 100) / 100 if capacity else 0
    if not capacity or share * capacity <= allowed:
        return None
    ran = case.on(int(share * capacity))
    place = f"{short(file.file)}:{call.lineno}"
    text = f"The cap of {format_bytes(allowed)} that {place} sets refused this: the GPU has more room."
    change = f"{place}: {SETS_IT}({share:g}): {available(int(share * capacity))} for PyTorch"
    return ProgramCause(text, (replayed(change, ran, file.patch_of(value, f"{share:g}")),))


def _cap(case: Case) -> tuple[SourceFile, ast.Call, ast.Constant] | None:
    for file in case.program_files:
        for node in file.nodes():
            if isinstance(node, ast.Call) and method_of(node) == SETS_IT:
                value = node.args[0] if node.args else keyword_of(node, "fraction")
                if isinstance(value, ast.Constant):
                    return file, node, value
    return None


def fragmented_memory(case: Case) -> ProgramCause | None:
    """Enough is free or idle, but the idle part lies between live blocks, which keep their segments from the card."""
    found = case.found
    if found.verdict != "fragmentation":
        return None
    pinned = _idle_by_line(case)
    if not pinned:
        return None
    holders, remedies = _freed(case, sorted(pinned, key=lambda line: -pinned[line]))
    size = case.history.state(case.moment).usable_idle
    largest = available(found.largest_free_block_bytes)
    text = (
        f"{available(size)} is idle inside PyTorch but in pieces of at most {largest} "
        f"between the blocks of {_places(holders)}, and {needed(found.requested_bytes or 0)} was asked."
    )
    free = found.part_bytes("free")
    if free:
        text = f"{available(size + free)} is free or idle: {text}"
    return ProgramCause(text, remedies)


def _idle_by_line(case: Case) -> dict[Frame, int]:
    """Idle bytes in the segments that each line's blocks keep open, where the request could have been."""
    columns = case.history.columns
    layout = case.history.layout(case.moment)
    stream = int(columns.stream[case.moment])
    found: dict[Frame, int] = {}
    for number, piece in enumerate(layout.held):
        is_here = layout.segment == number
        idle = piece.size - int(layout.size[is_here].sum())
        if piece.is_small or piece.pool != SHARED or piece.stream != stream or not idle:
            continue
        lines = {frame for life in layout.life[is_here].tolist() for frame in case.innermost(life)}
        for line in lines:
            found[line] = found.get(line, 0) + idle
    return found


def _freed(case: Case, lines: Sequence[Frame]) -> tuple[Sequence[Frame], tuple[Remedy, ...]]:
    """The fewest lines without whose blocks the request succeeds, with that as a remedy; else the first line alone.

    What a training needs later, such as its weights, cannot be freed: only other tensors are.
    """
    movable = case.groups(case.of_category(OTHER_TENSORS, INPUTS, TEMPORARY), case.innermost)
    none: Ints = np.zeros(0, np.int64)
    for count in range(1, min(MOST_HOLDERS, len(lines)) + 1):
        holders = lines[:count]
        lives = np.concatenate([movable.get(line, none) for line in holders])
        ran = case.freed_sooner(dict.fromkeys(lives.tolist(), case.moment))
        if not len(lives) or not ran.fits:
            continue
        before = "before this request"
        if case.refused_frames:
            before = f"before {_places(case.refused_frames[:1])} asks"
        change = f"{_places(holders)}: free what is kept, {needed(case.bytes_of(lives))}, or move it to host memory, "
        return holders, (replayed(change + before, ran),)
    return lines[:1], ()


def _places(lines: Sequence[Frame]) -> str:
    """Lines as "a.py:7 and b.py:9"."""
    return " and ".join(f"{short(line.file)}:{line.line}" for line in lines)
