"""What a run would have requested after a failed request, taken from an earlier step of the same trace.

A recording that ends with an out-of-memory contains the last step only up to the failed request. In a training loop,
the same requests occurred one step earlier: what followed them there would have followed here.
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
    SPECIAL,
    WAIT,
    TraceProgram,
    Windows,
    compiled,
)
from gpudash.memory.snapshot.replay.what_if import WhatIf

Ints = NDArray[np.int64]

LEAST_CONTEXT = 8
"""Fewest requests before the failed one that must match an earlier sequence, unless the trace begins with them."""

MOST_CONTEXT = 4096
"""Most requests that are compared: more than the layers of a model that resemble each other."""

PERIODS = 3
"""Number of steps that are added: each fragments the free memory differently, until that no longer changes."""

MOST_PLACES = 512
"""Most earlier requests of the same size and line that are compared, the newest."""


def ends_refused(columns: Columns) -> bool:
    """Whether nothing was allocated after the last failed request."""
    action = columns.action
    refused = np.flatnonzero(action == OOM)
    return bool(len(refused)) and not bool((action[refused[-1] :] == ALLOC).any())


def what_if_of(device: DeviceSnapshot, history: Callable[[], History]) -> WhatIf:
    """What-if questions on a trace, which continues with the rest of an earlier step if it ends with a failure.

    Args:
        device: device of a snapshot.
        history: creates its history, which is only needed if the trace ends with a failure.
    """
    if not ends_refused(device.trace.columns):
        return WhatIf(device)
    known = history()
    rest = None
    if not known.disagreeing:
        rest = with_rest_of_step(known)
    return WhatIf(device, rest, ends_refused=rest is None)


def with_rest_of_step(history: History) -> TraceProgram | None:
    """The trace up to its last failed request, followed by what came after that request one step earlier, up to the
    same request again, for some steps; ``None`` if no earlier step reached this request in the same way.

    The earlier place must be in another step, and all requests since that step began must match in order, lines and
    sizes.
    """
    if not ends_refused(history.columns):
        return None
    # Steps are given in events, but the program counts operations: look up the last beginning before the failure.
    begun = history.steps[history.steps <= history.ooms[-1]]
    if not len(begun):
        return None
    program, lives, order = compiled(history.device)
    end = program.last_refusal
    begin = int(np.searchsorted(program.events[:end], begun[-1]))
    gradients = set(np.flatnonzero(history.lives.category[order] == CATEGORIES.index(GRADIENTS)).tolist())
    run = _Run(program, end, begin, _kinds(program, lives.stack[order], history), gradients)
    longer = None
    # Each iteration searches again: blocks of the step just added are now the earlier ones.
    for _ in range(PERIODS):
        cycle = _Cycle.found(run)
        if cycle is None:
            break
        run = longer = _continued(run, cycle)
    if longer is None:
        return None
    return longer.program


def _kinds(program: TraceProgram, stack: Ints, history: History) -> Ints:
    """A number for each block that stands for its size, stream and stack, followed by that of the failed request."""
    event = int(history.ooms[-1])
    columns = history.columns
    # Equal rows are one kind: the request is a row like the blocks', so that it can be found among them.
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
    """The requests up to one that failed.

    Attributes:
        program: program with these requests.
        end: index of the failed operation.
        begin: index of the first operation of its step.
        kinds: a number for each block that stands for its size, stream and stack, followed by that of the request.
        gradients: blocks of gradients.
    """

    program: TraceProgram
    end: int
    begin: int
    kinds: Ints
    gradients: set[int]


@dataclass(frozen=True, slots=True)
class _Cycle:
    """The occurrence of the failed request one step earlier.

    Attributes:
        begin: index of the operation that made it.
        later: block → its counterpart one step later, past or future; for blocks that occur in every step.
        freed: blocks that are freed before the failure.
        renewed: gradients of the earlier step that are still alive: freed before the backward pass creates new ones.
    """

    begin: int
    later: dict[int, int]
    freed: set[int]
    renewed: list[int]

    @classmethod
    def found(cls, run: _Run) -> _Cycle | None:
        """The cycle; ``None`` if no earlier step reached the request in the same way."""
        program = run.program
        end = run.end
        begin = run.begin
        kinds = run.kinds
        freed = _freed_before(program, end)
        made = list(_made(program, end))
        # What an earlier step created and kept, such as optimizer state and workspaces, is created once.
        recurring = [(place, block) for place, block in made if place >= begin or block in freed]
        blocks = np.array([block for _, block in recurring], np.int64)
        first = sum(place < begin for place, _ in recurring)
        place = _earlier(kinds[np.append(blocks, len(kinds) - 1)], first)
        if place is None:
            return None
        period = len(blocks) - place
        # Shifted by one period, each request is next to its counterpart one step later.
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
    """The earlier request whose preceding requests match those of the last of ``kinds`` for longest.

    Args:
        kinds: kinds of all requests, the failed one last.
        begin: first request of its step.
    """
    count = len(kinds) - 1
    of_step = min(count - begin, MOST_CONTEXT)
    # Backwards from the failed request: the match ends at the first difference.
    before = kinds[:count][::-1]
    best = None
    longest = of_step
    for place in np.flatnonzero(kinds[:begin] == kinds[count])[-MOST_PLACES:].tolist():
        length = min(place, MOST_CONTEXT)
        differs = np.flatnonzero(kinds[place - length : place][::-1] != before[:length])
        alike = length
        if len(differs):
            alike = int(differs[0])
        # `>=`, not `>`: of equally long matches prefer the later one, whose layout is closer to that at the failure.
        if alike >= longest and (alike >= LEAST_CONTEXT or alike == place):
            best = place
            longest = alike
    return best


def _continued(run: _Run, cycle: _Cycle) -> _Run:
    """A run up to its failed request, followed by what it did from the beginning of a cycle on."""
    repeated = _Repetition(run, cycle)
    begin = run.end
    for place, operation in enumerate(run.program.operations[cycle.begin : run.end], cycle.begin):
        if place == run.begin:
            begin = len(repeated.operations)
        repeated.add(operation)
    # The failed request comes again, after a whole step: it may fail again, or succeed.
    repeated.operations.append(run.program.operations[run.end])
    # A copy has the kind of its original; the request stays last.
    kinds = np.concatenate((run.kinds[:-1], run.kinds[repeated.copies], run.kinds[-1:]))
    blocks = len(run.program.size)
    fresh = {blocks + number for number, block in enumerate(repeated.copies) if block in run.gradients}
    return _Run(repeated.program(), len(repeated.operations) - 1, begin, kinds, run.gradients | fresh)


class _Repetition:
    """A program that is continued with operations of its own, each for the counterparts of its blocks.

    Attributes:
        operations: those up to the failed request, then the added ones.
        copies: the block that each added block is a counterpart of.
    """

    def __init__(self, run: _Run, cycle: _Cycle) -> None:
        self._run = run
        self._cycle = cycle
        whole = run.program
        self.operations = whole.operations[: run.end]
        self.copies: list[int] = []
        self._specials = list(whole.specials)
        self._size = list(whole.size)
        self._stream = list(whole.stream)
        self._pool = list(whole.pool)
        # Of each block of the cycle its counterpart; one that is still alive is its own from the start.
        self._counterparts = {block: after for block, after in cycle.later.items() if after not in cycle.freed}
        # What the cycle created and never freed, and no later step created again, is created once: it is not repeated.
        self._repeated = cycle.freed | set(cycle.later.values()) | set(cycle.renewed)
        self._frees_gradients = True

    def add(self, operation: int) -> None:
        """Repeat an operation of the program."""
        if operation < 0:
            self._free(~operation)
            return
        if operation < SPECIAL:
            self._allocate(operation)
            return
        kind, block, address, amount = self._run.program.specials[operation - SPECIAL]
        if kind == AT:
            self._allocate(block)
        elif kind not in (WAIT, DONE):
            self.operations.append(operation)
        elif block in self._counterparts:
            # A wait or its end is repeated for the counterpart of its block.
            self.operations.append(SPECIAL + len(self._specials))
            self._specials.append((kind, self._counterparts[block], address, amount))

    def _allocate(self, block: int) -> None:
        # As in `zero_grad`, before the step's first gradient: the remaining gradients are all freed together.
        if block in self._cycle.renewed and self._frees_gradients:
            self.operations += [~gradient for gradient in self._cycle.renewed]
            self._frees_gradients = False
        if block not in self._repeated:
            return
        self._counterparts[block] = len(self._size)
        self.copies.append(block)
        self.operations.append(len(self._size))
        self._size.append(self._size[block])
        self._stream.append(self._stream[block])
        self._pool.append(self._pool[block])

    def _free(self, block: int) -> None:
        # Blocks from before the cycle have been freed already.
        if block in self._counterparts:
            self.operations.append(~self._counterparts.pop(block))

    def program(self) -> TraceProgram:
        """The program with what was added."""
        whole = self._run.program
        end = self._run.end
        # Added operations have no events of their own: if one fails, it counts at the failed request.
        events = np.full(len(self.operations), whole.events[end])
        events[:end] = whole.events[:end]
        return replace(
            whole,
            operations=self.operations,
            events=events,
            specials=self._specials,
            size=self._size,
            stream=self._stream,
            pool=self._pool,
            windows=_windows(whole.windows, end, len(self.operations), len(whole.size)),
        )


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
    """The windows up to ``end``, and one for what was added, which begins with block ``first``."""
    kept = sum(bound < end for bound in whole.bounds[:-1])
    other = min(whole.signature, default=0) - 1
    # The trace's last window was cut short: it equals no other.
    signature = (*whole.signature[: kept - 1], other, other - 1)
    return Windows((*whole.bounds[:kept], end, total), signature, (*whole.first[:kept], first))
