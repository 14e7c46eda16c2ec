"""cuBLAS workspaces, recognised by size: a trace with only Python frames has no C++ frame that names them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from gpudash.memory.predicting.architecture import USUAL_WORKSPACE_BYTES
from gpudash.memory.snapshot.history.lives import Lives
from gpudash.memory.snapshot.history.model import ALLOC, OOM, Columns
from gpudash.memory.snapshot.history.phases import BACKWARD


def workspace_requests(columns: Columns, lives: Lives, phase: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Events that request a workspace of torch's usual size, which hardly any tensor has.

    torch requests it right after the result of a product, at the same line, once for each stream and each of its two
    threads, the program's and the autograd engine's (getNewWorkspace, ATen/cuda/CublasHandlePool.cpp); torch 2.15
    frees it and requests it again. Hopper's larger one has the size of many tensors, and is not detected.

    Args:
        columns: events of the trace.
        lives: blocks of the trace.
        phase: phase of each event.
    """
    return np.fromiter(_found(columns, lives, phase), np.int64)


def _found(columns: Columns, lives: Lives, phase: NDArray[np.uint8]) -> Iterator[int]:
    asks = np.flatnonzero((columns.action == ALLOC) | (columns.action == OOM))
    if len(asks) < 2:
        return
    before = asks[:-1]
    after = asks[1:]
    fits = columns.size[after] == USUAL_WORKSPACE_BYTES
    fits &= columns.stack[before] == columns.stack[after]
    fits &= columns.stream[before] == columns.stream[after]
    candidates = after[fits]
    freed = dict(zip(lives.born.tolist(), lives.freed.tolist(), strict=True))
    # A thread has one at a time: another block of that size beside it is a tensor.
    until: dict[tuple[int, bool], int] = {}
    for event in candidates.tolist():
        thread = int(columns.stream[event]), bool(phase[event] == BACKWARD)
        if until.get(thread, -1) < event:
            yield event
            # A failed request did not get one.
            if columns.action[event] == ALLOC:
                until[thread] = freed.get(event, len(columns))
