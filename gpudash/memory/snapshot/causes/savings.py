"""Changes that save memory without changing the result; one alone may be too little, but two may be enough."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gpudash.memory.allocator.settings import EXPANDABLE, assignment
from gpudash.memory.allocator.trace import WEIGHTS, WORKSPACE
from gpudash.memory.explaining.remedies import SMALL_WORKSPACE, workspace_remedy
from gpudash.memory.predicting.architecture import workspace_bytes
from gpudash.memory.snapshot.causes.activations import of_batch, scaled_lives
from gpudash.memory.snapshot.causes.batch_size import batch_sizes
from gpudash.memory.snapshot.causes.case import Case
from gpudash.memory.snapshot.causes.optimizer_state import STATES
from gpudash.memory.snapshot.source_edits import SourceFile, Splice, keyword_of, method_of
from gpudash.telemetry.explanation import Remedy, short

SMALLER = 8
"""Factor by which the proposed batch is smaller."""

SMALLEST = 2
"""Smallest proposed batch: with a single sample a program may fail, as BatchNorm does."""

Saving = tuple[int, Remedy]
"""A change, and approximately how many bytes it saves."""


def savings(case: Case) -> tuple[Remedy, ...]:
    """Such changes of the program, its command or its variables, the largest first."""
    found = [*_workspace(case), *_batch(case), *_foreach(case), *_segments(case)]
    return tuple(remedy for saved, remedy in sorted(found, key=lambda one: -one[0]) if saved > 0)


def _workspace(case: Case) -> Iterator[Saving]:
    taken = case.bytes_of(case.of_category(WORKSPACE))
    if case.history.asks_for_workspace(case.moment):
        taken += case.found.requested_bytes or 0
    yield taken - workspace_bytes(SMALL_WORKSPACE), workspace_remedy(taken)


def _batch(case: Case) -> Iterator[Saving]:
    for batch in batch_sizes(case)[:1]:
        value = max(SMALLEST, batch.value // SMALLER)
        held = case.bytes_of(scaled_lives(case))
        if value < batch.value:
            yield held - held * value // batch.value, of_batch(case, batch, value)


def _foreach(case: Case) -> Iterator[Saving]:
    """An optimizer's temporaries for all weights together, by its ``_multi_tensor_`` functions (torch/optim)."""
    for file in case.program_files:
        calls = [node for node in file.nodes() if isinstance(node, ast.Call) and _works_at_once(node)]
        splices = [splice for call in calls for splice in _one_by_one(call)]
        if not splices:
            continue
        places = " and ".join(f"{short(file.file)}:{call.lineno}" for call in calls)
        change = f"{places}: foreach=False for the optimizer, which then updates one parameter at a time"
        saved = case.bytes_of(case.of_category(WEIGHTS))
        yield saved, Remedy(change, patch=_patched(file, splices))
        return


def _works_at_once(call: ast.Call) -> bool:
    is_given = any(keyword_of(call, name) is not None for name in ("foreach", "fused"))
    return method_of(call) in STATES and not is_given and all(word.arg is not None for word in call.keywords)


def _one_by_one(call: ast.Call) -> Iterator[Splice]:
    if call.end_lineno is None or call.end_col_offset is None or not (call.args or call.keywords):
        return
    end = call.end_col_offset - 1
    yield Splice(call.end_lineno, end, end, ", foreach=False")


def _patched(file: SourceFile, splices: list[Splice]) -> str:
    changed = file.spliced(splices)
    after = [line for number, old in enumerate(file.lines, 1) for line in changed.get(number, (old,))]
    try:
        ast.parse("\n".join(after))
    except SyntaxError:  # a trailing comma in the arguments
        return ""
    return file.patch(changed)


def _segments(case: Case) -> Iterator[Saving]:
    """Idle memory in segments, which expandable segments avoid."""
    if not case.history.device.settings.expandable_segments:
        idle = case.found.part_bytes("idle")
        yield idle, Remedy("expandable segments", allocator=EXPANDABLE, flags=assignment(EXPANDABLE))
