"""Where the operations of a program repeat: training steps ask for the same again and again."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

FEWEST = 4
"""Repetitions that are worth knowing of."""

OWN, LAST = 2**41, 2**42
"""Added to the place of a block among those of its own window, and of the window before."""

LONGEST = 8192
"""Operations of a window where nothing repeats."""

CANDIDATES = 256
"""Kinds of request that are looked at."""


@dataclass(frozen=True, slots=True)
class Windows:
    """Stretches of operations.

    Attributes:
        bounds: first operation of each window, and behind them the number of operations.
        signature: of each window; two that are equal do the same to blocks of the window itself, of the one before it
            and to blocks that have numbers of their own.
        first: the first block that each window allocates.
    """

    bounds: tuple[int, ...]
    signature: tuple[int, ...]
    first: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.signature)


def windows(operations: Ints, made: Ints, request: Ints, stack: Ints, before: int) -> Windows:
    """The windows of a program.

    Args:
        operations: as of `Program`.
        made: the block that each of them allocates, -1 where it allocates none.
        request: of each block, a number for its size, stream and pool.
        stack: of each block.
        before: blocks from before the first operation.
    """
    places = np.flatnonzero(made >= 0)
    starts = _starts(request[made[places]], stack[made[places]])
    between = places[starts] if len(starts) else np.arange(0, len(operations), LONGEST)
    bounds = np.unique(np.concatenate(([0], between, [len(operations)])))
    # blocks are numbered by their allocation
    first = (before + np.concatenate(([0], np.cumsum(made >= 0)))[bounds]).tolist()
    signature = _signatures(operations, made, request, bounds, first)
    return Windows(tuple(bounds.tolist()), tuple(signature), tuple(first))


def _starts(request: Ints, stack: Ints) -> Ints:
    """Places of the request that comes back most regularly."""
    none = np.zeros(0, np.int64)
    if len(request) < 2 * FEWEST:
        return none
    kind, place, count = np.unique(request * 2**24 + (stack + 1) % 2**24, return_inverse=True, return_counts=True)
    order = np.argsort(place, kind="stable")
    groups = np.split(order, np.cumsum(count)[:-1])
    usable = np.flatnonzero((count >= FEWEST) & (count <= max(FEWEST, len(request) // 6)))
    usable = usable[np.argsort(-count[usable], kind="stable")][:CANDIDATES]
    best, covered = none, 0
    for number in usable.tolist():
        gaps = np.diff(groups[number])
        often = int(np.median(gaps))
        length = int((gaps == often).sum()) * often
        if length > 1.02 * covered:
            best, covered = groups[number], length
    return best if covered >= len(request) // 4 and len(kind) > 1 else none


def _signatures(operations: Ints, made: Ints, request: Ints, bounds: Ints, first: list[int]) -> list[int]:
    found = []
    for number, (begin, end) in enumerate(pairwise(bounds.tolist())):
        inside, allocated = operations[begin:end], made[begin:end]
        freed = ~inside
        own, last = first[number], first[max(0, number - 1)]
        label = np.where(freed >= own, freed - own + OWN, np.where(freed >= last, freed - last + LAST, freed))
        plain = allocated == inside
        told = np.where(inside < 0, -1 - label, inside)
        told[plain] = request[inside[plain]]
        found.append(hash(told.tobytes()))
    return found
