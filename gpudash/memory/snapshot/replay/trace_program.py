"""A trace's requests to the allocator, compiled for a replay by the model: requests, frees and empty_cache.

Training steps repeat the same requests: it also finds where the operations repeat.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from gpudash.memory.allocator import AllocatorSettings, Segment
from gpudash.memory.allocator.layout import SHARED
from gpudash.memory.snapshot.history.layout import placed
from gpudash.memory.snapshot.history.lives import Lives
from gpudash.memory.snapshot.history.model import (
    NONE,
    OOM,
    SEGMENT_ALLOC,
    SEGMENT_FREE,
    SEGMENT_MAP,
    SEGMENT_UNMAP,
    Columns,
    DeviceSnapshot,
    Stack,
)

Ints = NDArray[np.int64]

FEWEST = 4
"""Fewest repetitions that are useful."""

OWN, LAST = 2**41, 2**42
"""Offsets for a block's index within its own window, and within the previous one."""

LONGEST = 8192
"""Number of operations in a window if nothing repeats."""

CANDIDATES = 256
"""Kinds of request that are considered."""


@dataclass(frozen=True, slots=True)
class Windows:
    """Intervals of operations.

    Attributes:
        bounds: first operation of each window, followed by the number of operations.
        signature: signature of each window; two equal windows do the same to their own blocks, to those of the
            previous window, and to blocks with their own numbers.
        first: first block that each window allocates.
    """

    bounds: tuple[int, ...]
    signature: tuple[int, ...]
    first: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.signature)


def windows(operations: Ints, made: Ints, request: Ints, stack: Ints, before: int) -> Windows:
    """The windows of a program.

    Args:
        operations: as in `Program`.
        made: block that each operation allocates; -1 for none.
        request: a number for each block that stands for its size, stream and pool.
        stack: stack of each block.
        before: number of blocks from before the first operation.
    """
    # Only requests: Python's garbage collector frees at varying places of a step.
    places = np.flatnonzero(made >= 0)
    starts = _starts(request[made[places]], stack[made[places]])
    if len(starts):
        between = places[starts]
    else:
        between = np.arange(0, len(operations), LONGEST)
    bounds = np.unique(np.concatenate(([0], between, [len(operations)])))
    # Blocks are numbered in order of allocation.
    first = (before + np.concatenate(([0], np.cumsum(made >= 0)))[bounds]).tolist()
    signature = _signatures(operations, made, request, bounds, first)
    return Windows(tuple(bounds.tolist()), tuple(signature), tuple(first))


def _starts(request: Ints, stack: Ints) -> Ints:
    """Positions of the request that recurs most regularly."""
    none = np.zeros(0, np.int64)
    if len(request) < 2 * FEWEST:
        return none
    # Request and stack as one number: 24 bits are enough for the stacks of any readable file.
    kind, place, count = np.unique(request * 2**24 + (stack + 1) % 2**24, return_inverse=True, return_counts=True)
    # Positions of one kind are adjacent and in order, since the sort is stable.
    order = np.argsort(place, kind="stable")
    groups = np.split(order, np.cumsum(count)[:-1])
    # A kind that is too frequent belongs to a layer, not to a step.
    usable = np.flatnonzero((count >= FEWEST) & (count <= max(FEWEST, len(request) // 6)))
    usable = usable[np.argsort(-count[usable], kind="stable")][:CANDIDATES]
    best = none
    covered = 0
    for number in usable.tolist():
        gaps = np.diff(groups[number])
        often = int(np.median(gaps))
        # Requests between repetitions at the usual distance: the more of the trace they cover, the better.
        length = int((gaps == often).sum()) * often
        # The most frequent are considered first: a rarer kind must be clearly better.
        if length > 1.02 * covered:
            best = groups[number]
            covered = length
    if covered >= len(request) // 4 and len(kind) > 1:
        return best
    return none


def _signatures(operations: Ints, made: Ints, request: Ints, bounds: Ints, first: list[int]) -> list[int]:
    found = []
    for number, (begin, end) in enumerate(pairwise(bounds.tolist())):
        inside = operations[begin:end]
        allocated = made[begin:end]
        freed = ~inside
        own = first[number]
        last = first[max(0, number - 1)]
        # A freed block by its index in its window, so that the same free looks the same in the next step; older
        # blocks, such as weights, by their own number.
        label = np.where(freed >= own, freed - own + OWN, np.where(freed >= last, freed - last + LAST, freed))
        plain = allocated == inside
        # Allocations are identified by their request; special operations keep their own numbers, so that no two
        # windows with any are equal.
        signature = np.where(inside < 0, -1 - label, inside)
        signature[plain] = request[inside[plain]]
        found.append(hash(signature.tobytes()))
    return found


Pool = tuple[int, ...]

SPECIAL = 2**40
"""Operations from here on are indices into `TraceProgram.specials`."""

WAIT, DONE, AT, REFUSED, EMPTY = range(5)
"""Free while another stream uses it; end of that use; allocate where the card gave a segment at a known address; a
failed request; empty the cache."""


@dataclass(frozen=True, slots=True, eq=False)
class TraceProgram:
    """A trace's operations on numbered blocks: first those from before the trace, then in order of allocation.

    Attributes:
        operations: ``n`` allocates block n, ``~n`` frees it; values from `SPECIAL` on are special operations.
        events: event of each operation.
        specials: kind, block, address and size.
        size, stream, pool: of each block; the pool is ``None`` for the shared pools.
        begin: layout before the trace.
        block_at: address → block, for those in `begin`.
        highest: largest total of whole blocks alive at one time, in bytes.
        windows: where the operations repeat.
        settings: recorded settings.
        unrecorded_slack: by address, bytes of blocks in `begin` that only later placements show.
        disagreeing: number of events and blocks for which the trace and the segments are inconsistent.
    """

    operations: list[int]
    events: Ints
    specials: list[tuple[int, int, int, int]]
    size: list[int]
    stream: list[int]
    pool: list[Pool | None]
    begin: list[Segment]
    block_at: dict[int, int]
    highest: int
    windows: Windows
    settings: AllocatorSettings
    unrecorded_slack: dict[int, int]
    disagreeing: int

    @property
    def last_refusal(self) -> int:
        """Index of the last operation that is a failed request.

        Raises:
            ValueError: if there is none.
        """
        for place in range(len(self.operations) - 1, -1, -1):
            operation = self.operations[place]
            if operation >= SPECIAL and self.specials[operation - SPECIAL][0] == REFUSED:
                return place
        raise ValueError("The trace has no request that was refused.")

    def without_late(self, late: dict[int, int]) -> TraceProgram:
        """A copy with some blocks freed earlier.

        Args:
            late: block → index of the operation before which it is freed.
        """
        freed: list[int] = []
        is_kept: list[bool] = []
        for operation in self.operations:
            stays = operation >= 0 or ~operation not in late
            is_kept.append(stays)
            if stays:
                freed.append(operation)
        kept = np.array(is_kept, bool)
        events = self.events[kept]
        # New index of each operation once the late frees are removed.
        shifted = np.cumsum(kept) - kept
        sooner: list[tuple[int, int]] = []
        for block, place in late.items():
            if place < len(shifted):
                sooner.append((int(shifted[place]), block))
            else:
                sooner.append((len(freed), block))
        sooner.sort()
        operations: list[int] = []
        of_event: list[int] = []
        done = 0
        for place, block in sooner:
            operations += freed[done:place]
            of_event += events[done:place].tolist()
            operations.append(~block)
            of_event.append(int(events[min(place, len(events) - 1)]))
            done = place
        operations += freed[done:]
        of_event += events[done:].tolist()
        # With moved frees, repetitions are unknown: everything is one window.
        alone = Windows((0, len(operations)), (0,), (len(self.block_at),))
        return replace(self, operations=operations, events=np.array(of_event, np.int64), windows=alone)


def compiled(device: DeviceSnapshot) -> tuple[TraceProgram, Lives, Ints]:
    """The program of a device's trace, its lives, and the index of the life of each block."""
    columns = device.trace.columns
    found = placed(device, with_slack=True)
    lives = found.lives
    before = found.layout(-1)
    # A block's number is its index here: first those from before the trace, by address, then by allocation.
    made = np.flatnonzero(lives.born >= 0)
    order = np.concatenate((before.life, made[np.argsort(lives.born[made], kind="stable")]))
    operations, events, specials = _operations(columns, lives, order, device)
    pool = _pools(columns, lives, order, device)
    known = len(before.life)
    made = _made(operations, specials)
    program = TraceProgram(
        operations=operations.tolist(),
        events=events,
        specials=specials,
        size=lives.requested[order].tolist(),
        stream=lives.stream[order].tolist(),
        pool=pool,
        begin=before.segments(),
        block_at={address: number for number, address in enumerate(before.address.tolist())},
        highest=_highest(lives, len(columns)),
        windows=windows(operations, made, _requests(lives, order, pool), lives.stack[order], known),
        settings=device.settings,
        unrecorded_slack={int(lives.address[life]): more for life, more in found.slack.items()},
        disagreeing=found.disagreeing,
    )
    return program, lives, order


def _made(operations: Ints, specials: list[tuple[int, int, int, int]]) -> Ints:
    """The block that each operation allocates; -1 for none."""
    made = np.where(operations >= 0, operations, -1)
    for place in np.flatnonzero(operations >= SPECIAL).tolist():
        kind, block = specials[int(operations[place]) - SPECIAL][:2]
        if kind == AT:
            made[place] = block
        else:
            made[place] = -1
    return made


def _requests(lives: Lives, order: Ints, pool: list[Pool | None]) -> Ints:
    """A number for each block that stands for its size, stream and pool."""
    number_of: dict[Pool | None, int] = {}
    pools = np.array([number_of.setdefault(identity, len(number_of)) for identity in pool], np.int64)
    sizes = np.unique(lives.requested[order], return_inverse=True)[1]
    streams, stream = np.unique(lives.stream[order], return_inverse=True)
    return np.asarray((sizes * len(streams) + stream) * max(1, len(number_of)) + pools, np.int64)


def _highest(lives: Lives, count: int) -> int:
    changes = np.zeros(count + 2, np.int64)
    # Shifted by one, since -1 means before the trace; `add.at`, since an index may occur several times.
    np.add.at(changes, lives.born + 1, lives.bytes)
    np.add.at(changes, lives.freed + 1, -lives.bytes)
    return int(np.cumsum(changes)[: count + 1].max(initial=0))


def _operations(
    columns: Columns, lives: Lives, order: Ints, device: DeviceSnapshot
) -> tuple[Ints, Ints, list[tuple[int, int, int, int]]]:
    """Operations, the event of each, and the special ones."""
    count = len(columns)
    number = np.full(len(lives), -1, np.int64)
    number[order] = np.arange(len(order))
    known = np.flatnonzero(number >= 0)
    born = known[lives.born[known] >= 0]
    # torch writes free_requested and free_completed one after the other, unless another stream used the block.
    at_once = lives.done - lives.freed <= 1
    ended = known[(lives.freed[known] < count) & (lives.freed[known] >= 0)]
    plain = ended[at_once[ended]]
    waiting = ended[~at_once[ended]]
    done = known[(lives.done[known] < count) & ~at_once[known]]
    specials: list[tuple[int, int, int, int]] = []
    # Events and operations of each kind; sorted by event at the end, they form the program.
    parts = [
        (lives.born[born], number[born]),
        (lives.freed[plain], ~number[plain]),
        (lives.freed[waiting], _special(specials, WAIT, number[waiting])),
        (lives.done[done], _special(specials, DONE, number[done])),
    ]
    _placed(parts, specials, columns)
    refused = np.flatnonzero(columns.action == OOM)
    begin = len(specials)
    specials += [(REFUSED, int(columns.stream[event]), 0, int(columns.size[event])) for event in refused]
    parts.append((refused, SPECIAL + begin + np.arange(len(refused))))
    emptied = np.array([release.end - 1 for release in releases(device) if not release.is_retry], np.int64)
    parts.append((emptied, _special(specials, EMPTY, np.zeros(len(emptied), np.int64))))
    event = np.concatenate([part[0] for part in parts])
    operation = np.concatenate([part[1] for part in parts])
    # Within an event, a block that makes room is freed first.
    order_of = np.lexsort((operation >= 0, event))
    return operation[order_of], event[order_of], specials


def _special(specials: list[tuple[int, int, int, int]], kind: int, blocks: Ints) -> Ints:
    begin = len(specials)
    specials += [(kind, block, 0, 0) for block in blocks.tolist()]
    return SPECIAL + begin + np.arange(len(blocks))


def _placed(parts: list[tuple[Ints, Ints]], specials: list[tuple[int, int, int, int]], columns: Columns) -> None:
    """Make requests for which the card gave a segment ask for one at the same address."""
    born, blocks = parts[0]
    came = np.flatnonzero(columns.action == SEGMENT_ALLOC)
    if not len(came) or not len(born):
        return
    by_birth = np.argsort(born, kind="stable")
    # The segment was for the first request after it.
    following = np.searchsorted(born[by_birth], came)
    within = following < len(born)
    operation = blocks.copy()
    for event, place in zip(came[within].tolist(), by_birth[following[within]].tolist(), strict=True):
        address = int(columns.address[event])
        size = int(columns.size[event])
        operation[place] = SPECIAL + len(specials)
        specials.append((AT, int(blocks[place]), address, size))
    parts[0] = (born, operation)


@dataclass(frozen=True, slots=True)
class Release:
    """Consecutive frees of segments, from event `begin` to before `end`.

    Attributes:
        is_retry: whether a request to the card had failed; otherwise the program emptied the cache.
    """

    begin: int
    end: int
    is_retry: bool


def releases(device: DeviceSnapshot) -> list[Release]:
    """When segments were freed. A retry then asks the card again; ``empty_cache`` is recognised by its stack."""
    columns = device.trace.columns
    action = columns.action
    gone = np.flatnonzero((action == SEGMENT_FREE) | (action == SEGMENT_UNMAP))
    if not len(gone):
        return []
    # Consecutive events belong to one release.
    begins = gone[np.append(True, np.diff(gone) > 1)]
    ends = gone[np.append(np.diff(gone) > 1, True)] + 1
    found = []
    for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
        # A retry is directly followed by a segment, or by the failure.
        goes_on = end < len(action) and action[end] in (SEGMENT_ALLOC, SEGMENT_MAP, OOM)
        stack = int(columns.stack[begin])
        empties = stack != NONE and _empties_cache(device.stacks[stack])
        found.append(Release(begin, end, goes_on and not empties))
    return found


def _empties_cache(stack: Stack) -> bool:
    """Whether a stack contains ``torch.cuda.empty_cache``, by its Python or C++ name."""
    for _file, _line, function in stack:
        name = function.lower()
        if "empty_cache" in name or "emptycache" in name:
            return True
    return False


def _pools(columns: Columns, lives: Lives, order: Ints, device: DeviceSnapshot) -> list[Pool | None]:
    """Private pool of each block: as its event says, or that of the file's segment at its address."""
    private = sorted((s for s in device.segments if s.pool_id != SHARED), key=lambda segment: segment.address)
    if not private and not any(pool != SHARED for pool in columns.pools):
        return [None] * len(order)
    begins = np.array([segment.address for segment in private], np.int64)
    ends = np.array([segment.address + segment.total_size for segment in private], np.int64)
    found: list[Pool | None] = []
    # The last private segment at or below each address; whether it extends that far is checked below.
    place = np.searchsorted(begins, lives.address[order], side="right") - 1
    rows = zip(lives.born[order].tolist(), lives.address[order].tolist(), place.tolist(), strict=True)
    for born, address, at in rows:
        number = NONE
        if born >= 0:
            number = int(columns.pool[born])
        if number != NONE:
            identity: object = columns.pools[number]
        else:
            identity = SHARED
            if at >= 0 and address < ends[at]:
                identity = private[at].pool_id
        if isinstance(identity, tuple) and identity != SHARED:
            found.append(identity)
        else:
            found.append(None)
    return found
