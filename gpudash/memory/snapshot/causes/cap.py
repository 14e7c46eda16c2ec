"""A limit that the program set for itself prevents a request for which the GPU has room."""

from __future__ import annotations

import ast

from gpudash.memory.snapshot.causes.case import Case, ProgramCause, replayed
from gpudash.memory.snapshot.source_edits import SourceFile, keyword_of, method_of
from gpudash.telemetry.explanation import short
from gpudash.units import available, format_bytes

SETS_IT = "set_per_process_memory_fraction"


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
