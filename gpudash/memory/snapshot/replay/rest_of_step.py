"""What a run would have gone on to ask after a refused request, taken from an earlier step of the same trace.

A recording that ends at its out-of-memory holds the step only up to the refused request. In a training loop the same
requests have come before, one step earlier: what followed them there is what would have followed here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gpudash.memory.allocator.trace import GRADIENTS
from gpudash.memory.snapshot.history.history import History
from gpudash.memory.snapshot.history.model import ALLOC, OOM, Columns, DeviceSnapshot
from gpudash.memory.snapshot.history.phases import CATEGORIES
from gpudash.memory.snapshot.replay.trace_program import (
    AT,
    DONE,
    REFUSED,
    SPECIAL,
    WAIT,
    TraceProgram,
    Windows,
    compiled,
)
from gpudash.memory.snapshot.replay.what_if import WhatIf

Ints = NDArray[np.int64]

LEAST_CONTEXT = 8
"""Requests before the refused one that must have come before in the same order, at the least, unless the trace begins
with them."""

MOST_CONTEXT = 4096
"""Requests that are compared at most: longer than the layers of a model that resemble each other."""

PERIODS = 3
"""Steps that are added: with each the free memory lies in other pieces, until it does not change any more."""

MOST_PLACES = 512
"""Earlier requests of the same size and line that are compared, the newest."""


def ends_refused(columns: Columns) -> bool:
    """Whether nothing was allocated any more after the last request that was refused."""
    action = columns.action
    refused = np.flatnonzero(action == OOM)
    return bool(len(refused)) and not bool((action[refused[-1] :] == ALLOC).any())


def what_if_of(device: DeviceSnapshot, history: Callable[[], History]) -> WhatIf:
    """What-if questions on a trace, which goes on with the rest of an earlier step where it ends refused.

    Args:
        device: of a snapshot.
        history: makes or gives its history, which is asked for only where the trace ends refused.
    """
    if not ends_refused(device.trace.columns):
        return WhatIf(device)
    known = history()
    rest = None
    if not known.disagreeing:
        rest = with_rest_of_step(known)
    return WhatIf(device, rest, ends_refused=rest is None)


def with_rest_of_step(history: History) -> TraceProgram | None:
    """The trace up to its last refused request, and then what followed that request one step earlier, up to the same
    request again, for some steps; ``None`` where no earlier step of the trace came to this request in the same way.

    The earlier place must lie in another step, and all that was asked since the step began must have been asked there
    in the same order, by the same lines and with the same sizes.
    """
    if not ends_refused(history.columns):
        return None
    # steps are found in events; the program counts operations, so the last begin before the refusal is looked
    # up there
    begun = history.steps[history.steps <= history.ooms[-1]]
    if not len(begun):
        return None
    program, lives, order = compiled(history.device)
    end = _last_refusal(program)
    begin = int(np.searchsorted(program.events[:end], begun[-1]))
    gradients = set(np.flatnonzero(history.lives.category[order] == CATEGORIES.index(GRADIENTS)).tolist())
    run = _Run(program, end, begin, _kinds(program, lives.stack[order], history), gradients)
    longer = None
    # each round looks for the cycle anew: blocks of the step just added are now the earlier ones
    for _ in range(PERIODS):
        cycle = _Cycle.found(run)
        if cycle is None:
            break
        run = longer = _continued(run, cycle)
    if longer is None:
        return None
    return longer.program


def _last_refusal(program: TraceProgram) -> int:
    """Index of the last operation that was refused."""
    operations = program.operations
    for place in range(len(operations) - 1, -1, -1):
        operation = operations[place]
        if operation >= SPECIAL and program.specials[operation - SPECIAL][0] == REFUSED:
            return place
    raise ValueError("The trace has no request that was refused.")


def _kinds(program: TraceProgram, stack: Ints, history: History) -> Ints:
    """For each block a number that stands for its size, stream and stack; behind them that of the refused request."""
    event = int(history.ooms[-1])
    columns = history.columns
    # equal rows are one kind: the request is a row like those of blocks, so that it can be looked for among them
    rows = np.stack(
        (
            [*program.size, int(columns.size[event])],
            [*program.stream, int(columns.stream[event])],
            [*stack.tolist(), int(columns.stack[event])],
        ),
        axis=1,
    )
    return np.asarray(np.unique(rows, axis=0, return_inverse=True)[1].reshape(-1), np.int64)


@dataclass(frozen=True, slots=True)
class _Run:
    """What was asked up to a request that is refused.

    Attributes:
        program: of all that.
        end: index of the operation that is refused.
        begin: index of the first operation of its step.
        kinds: for each block a number that stands for its size, stream and stack; behind them that of the request.
        gradients: blocks of gradients.
    """

    program: TraceProgram
    end: int
    begin: int
    kinds: Ints
    gradients: set[int]


@dataclass(frozen=True, slots=True)
class _Cycle:
    """Where the refused request came a step earlier.

    Attributes:
        begin: index of the operation that made it then.
        later: block → the one that came in its place a step later, or is to come; for blocks that come every step.
        freed: blocks that are freed before the refusal.
        renewed: gradients of the earlier step that are still there: dropped before the backward pass makes new ones.
    """

    begin: int
    later: dict[int, int]
    freed: set[int]
    renewed: list[int]

    @classmethod
    def found(cls, run: _Run) -> _Cycle | None:
        """The cycle; ``None`` where no earlier step came to the request in the same way."""
        program = run.program
        end = run.end
        begin = run.begin
        kinds = run.kinds
        freed = _freed_before(program, end)
        made = list(_made(program, end))
        # what an earlier step made and left, such as the optimizer's state and workspaces, is made once
        recurring = [(place, block) for place, block in made if place >= begin or block in freed]
        blocks = np.array([block for _, block in recurring], np.int64)
        first = sum(place < begin for place, _ in recurring)
        place = _earlier(kinds[np.append(blocks, len(kinds) - 1)], first)
        if place is None:
            return None
        period = len(blocks) - place
        # shifted by one period, each request stands beside the one that came in its place a step later
        pairs = zip(blocks[:-period].tolist(), blocks[period:].tolist(), strict=True)
        later = {block: after for block, after in pairs if kinds[block] == kinds[after]}
        first_of_cycle = recurring[place][0]
        kept = [block for place, block in made if first_of_cycle <= place < begin and block not in freed]
        return cls(first_of_cycle, later, freed, [block for block in kept if block in run.gradients])


def _made(program: TraceProgram, end: int) -> Iterator[tuple[int, int]]:
    """Indices of the operations before ``end`` that allocate, and their blocks."""
    for place, operation in enumerate(program.operations[:end]):
        if 0 <= operation < SPECIAL:
            yield place, operation
        elif operation >= SPECIAL and program.specials[operation - SPECIAL][0] == AT:
            yield place, program.specials[operation - SPECIAL][1]


def _earlier(kinds: Ints, begin: int) -> int | None:
    """The earlier request before which the same came in the same order as before the last of ``kinds``, for longest.

    Args:
        kinds: of all requests, the refused one last.
        begin: the first request of its step.
    """
    count = len(kinds) - 1
    of_step = min(count - begin, MOST_CONTEXT)
    # backwards from the refused request: how far two pasts agree is where they first differ
    before = kinds[:count][::-1]
    best = None
    longest = of_step
    for place in np.flatnonzero(kinds[:begin] == kinds[count])[-MOST_PLACES:].tolist():
        length = min(place, MOST_CONTEXT)
        differs = np.flatnonzero(kinds[place - length : place][::-1] != before[:length])
        alike = length
        if len(differs):
            alike = int(differs[0])
        # not only longer: of pasts that agree equally the later one, whose layout is nearer to the one at the
        # refusal
        if alike >= longest and (alike >= LEAST_CONTEXT or alike == place):
            best = place
            longest = alike
    return best


def _continued(run: _Run, cycle: _Cycle) -> _Run:
    """A run up to its refused request, and then again what it did from the begin of a cycle on."""
    program = run.program
    end = run.end
    operations = program.operations[:end]
    specials = list(program.specials)
    size = list(program.size)
    stream = list(program.stream)
    pool = list(program.pool)
    before = set(cycle.later.values())
    # block of the cycle → the one that stands for it in the step that is added; those still alive stand from the start
    now = {block: after for block, after in cycle.later.items() if after not in cycle.freed}
    renewed = set(cycle.renewed)
    dropped = False
    copies: list[int] = []
    begin = end

    for place, operation in enumerate(program.operations[cycle.begin : end], cycle.begin):
        if place == run.begin:
            begin = len(operations)
        special = None
        if operation >= SPECIAL:
            special = program.specials[operation - SPECIAL]
        if 0 <= operation < SPECIAL or (special is not None and special[0] == AT):
            if special is None:
                block = operation
            else:
                block = special[1]
            # as `zero_grad` does, before the first gradient of the step: the gradients still there go all at
            # once
            if block in renewed and not dropped:
                operations += [~gradient for gradient in cycle.renewed]
                dropped = True
            # what the cycle made and never freed, and no later step made again, is made once: it is not asked
            # for anew
            if block in cycle.freed or block in before or block in renewed:
                now[block] = len(size)
                copies.append(block)
                operations.append(len(size))
                size.append(size[block])
                stream.append(stream[block])
                pool.append(pool[block])
        elif operation < 0:
            # frees of blocks from before the cycle have happened already
            if ~operation in now:
                operations.append(~now.pop(~operation))
        elif special is not None and special[0] in (WAIT, DONE):
            kind, block, address, amount = special
            # a wait or its end is told again of the block that stands for the one it was of
            if block in now:
                operations.append(SPECIAL + len(specials))
                specials.append((kind, now[block], address, amount))
        else:
            operations.append(operation)
    # the refused request comes again, behind a whole step: it may be refused again, or pass
    operations.append(program.operations[end])
    # what is added has no events of its own: whatever of it fails, fails at the refused request
    events = np.full(len(operations), program.events[end])
    events[:end] = program.events[:end]
    longer = replace(
        program,
        operations=operations,
        events=events,
        specials=specials,
        size=size,
        stream=stream,
        pool=pool,
        windows=_windows(program.windows, end, len(operations), len(program.size)),
    )
    # a copy is of the kind of its original; the request stays the last
    kinds = np.concatenate((run.kinds[:-1], run.kinds[copies], run.kinds[-1:]))
    fresh = {len(program.size) + number for number, block in enumerate(copies) if block in run.gradients}
    return _Run(longer, len(operations) - 1, begin, kinds, run.gradients | fresh)


def _freed_before(program: TraceProgram, end: int) -> set[int]:
    """Blocks that are freed before an operation."""
    found = set()
    for operation in program.operations[:end]:
        if operation < 0:
            found.add(~operation)
        elif operation >= SPECIAL:
            kind, block = program.specials[operation - SPECIAL][:2]
            if kind == WAIT:
                found.add(block)
    return found


def _windows(whole: Windows, end: int, total: int, first: int) -> Windows:
    """The windows up to ``end``, and one of what was added, which begins with block ``first``."""
    kept = sum(bound < end for bound in whole.bounds[:-1])
    other = min(whole.signature, default=0) - 1
    # the last one of the trace was cut short: it is like no other
    signature = (*whole.signature[: kept - 1], other, other - 1)
    return Windows((*whole.bounds[:kept], end, total), signature, (*whole.first[:kept], first))
