"""Losses of micro-batches are added up, so that all their graphs are kept until one backward pass."""

from __future__ import annotations

from collections import Counter

import numpy as np

from gpudash.memory.allocator.trace import ACTIVATIONS, TEMPORARY
from gpudash.memory.explaining.memory_state import OTHER_TENSORS
from gpudash.memory.snapshot.causes.activations import checkpointed, still_to_come
from gpudash.memory.snapshot.causes.case import Case, Ints, ProgramCause, replayed
from gpudash.memory.snapshot.causes.needless_graphs.sum_edits import LossSum, loss_sums
from gpudash.memory.snapshot.source_edits import lines_of
from gpudash.telemetry.explanation import Remedy, short
from gpudash.units import available, format_bytes

SHARE_OF_LIVE = 0.3
"""Part of the live bytes that the graphs must hold."""

FEWEST_ROUNDS = 2
"""Fewest micro-batches whose graphs must be alive."""


def summed_losses(case: Case) -> ProgramCause | None:
    """A loop whose iterations each leave a graph, for the backward pass over the sum of their losses."""
    held = case.of_category(ACTIVATIONS, TEMPORARY, OTHER_TENSORS)
    files = [*case.program_files, *case.imported_files]
    for found in (found for file in case.program_files for found in loss_sums(file, files)):
        place = short(found.file)
        lives = held[case.with_frames([(found.file, line) for line in lines_of(found.loop)])[held]]
        lives = lives[np.argsort(case.lives.born[lives])]
        size = case.bytes_of(lives)
        begins = _begins(case, lives)
        if len(begins) < FEWEST_ROUNDS or size < SHARE_OF_LIVE * case.live_bytes or _shares_a_graph(case, found):
            continue
        text = (
            f"{place}:{found.line} adds up losses with their graphs: those of {len(begins)} micro-batches, "
            f"{format_bytes(size)}, are kept until one backward pass at {place}:{found.backward_line}."
        )
        edit = _remedy(case, found, lives, begins)
        return ProgramCause(text, (*edit, *checkpointed(case)), is_waste=bool(edit))
    return None


def _begins(case: Case, lives: Ints) -> list[int]:
    """The event at which each iteration requested the first block it keeps; a layer's line may run often in one."""
    counts = Counter(case.lives.stack[lives].tolist())
    rounds = min((count for count in counts.values() if count >= FEWEST_ROUNDS), default=0)
    # The iteration that failed has run some of the lines, and others not.
    once = {stack for stack, count in counts.items() if rounds <= count <= rounds + 1}
    first = next((stack for stack in case.lives.stack[lives].tolist() if stack in once), None)
    return [int(case.lives.born[life]) for life in lives.tolist() if int(case.lives.stack[life]) == first]


def _remedy(case: Case, found: LossSum, lives: Ints, begins: list[int]) -> tuple[Remedy, ...]:
    """A backward pass in each iteration, replayed: its graph is freed before the next one begins."""
    if not found.patch:
        return ()
    places = np.searchsorted(begins, case.lives.born[lives], side="right").tolist()
    ends = {life: begins[place] for life, place in zip(lives.tolist(), places, strict=True) if place < len(begins)}
    saved = case.bytes_of(np.array(list(ends), np.int64))
    place = short(found.file)
    text = (
        f"{place}:{found.line}: a backward pass on each micro-batch's loss, in place of one on their sum at "
        f"{place}:{found.backward_line}, with the same gradients up to rounding: up to {available(saved)} less at this "
        "moment"
    )
    ran = case.freed_sooner(ends)
    # The first of these passes creates gradients that the trace does not have yet.
    if not ran.fits or ran.peak_reserved + still_to_come(case) > case.capacity:
        return (Remedy(text, patch=found.patch),)
    return (replayed(text, ran, found.patch),)


def _shares_a_graph(case: Case, found: LossSum) -> bool:
    """Whether something with a graph was created before the loop, which the first backward pass would free."""
    lines = lines_of(found.loop)
    in_module = case.through("torch/nn/modules/module.py", "_call_impl")
    of_modules = case.of_category(TEMPORARY, OTHER_TENSORS)
    for life in (*case.of_category(ACTIVATIONS).tolist(), *of_modules[in_module[of_modules]].tolist()):
        frames = [one for one in case.frames(life) if one.file == found.file and one.name == found.function]
        if frames and not any(frame.line in lines for frame in frames):
            return True
    return False
