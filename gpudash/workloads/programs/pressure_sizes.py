"""How much a memory pressure takes, keeps and loses: sizes alone, without torch."""

from __future__ import annotations

from collections.abc import Iterator

from gpudash.memory.allocator import AllocatorSettings
from gpudash.memory.allocator.blocks import segment_size
from gpudash.specs.training import CLASSES, FEATURES
from gpudash.units import MIB

OF_FREE = 0.80
"""Share of the memory free at the start that the default cap never exceeds."""

TEETH = 5
"""Times a sawtooth goes up to its cap."""

FIRST_TOOTH = 8
"""Steps of the first tooth where there is no cap; each further one has twice as many."""

KEPT = 16
"""Of each buffer that fragments memory, one part in so many is kept."""

OWN_SEGMENT = 10 * 2**20
"""Bytes from which torch's CUDA allocator takes a segment of its own for a request (`kMinLargeAlloc` in its source);
a smaller buffer would leave room in its segment, and what is kept would fill holes instead of making them."""

SMALL = 2**20
"""Requests up to this many bytes are placed apart from larger ones by torch's CUDA allocator (`kSmallSize`): what is
kept of a larger buffer has to be larger too."""

LONGER = 512
"""Bytes by which a buffer is longer than the one before: what torch's CUDA allocator rounds requests to
(`kMinBlockSize`), so that no hole an earlier buffer has left fits."""

WIDTH = 32
"""Width of the hidden layers: narrow, so that a step computes little for the memory it keeps."""

DEPTH = 2
"""Hidden layers: few, so that what a step of the default size keeps comes in blocks of more than 10 MiB, for which
torch's CUDA allocator takes segments of their own; smaller ones would leave part of theirs idle."""

LEARNING_RATE = 0.01

BATCH_BYTES = 4 * FEATURES + 8
"""Of a sample and its class, as they are given to the model."""

RESERVE = 2 * 20 * MIB
"""For the model, its gradients, the optimizer and the libraries' workspaces, which share segments of 2 and 20 MiB."""

SAMPLE_BYTES = 4 * (2 * DEPTH * WIDTH + CLASSES)
"""What the graph keeps of a sample, in float32: each hidden layer before and after GELU, and the log-softmax of the
outputs."""


def leak_within(most: int, step: int) -> int:
    """Bytes that may be lost by steps of ``step`` bytes so that the run takes no more than ``most`` in all.

    Beside what is lost it takes the batch, what a step needs for a moment, which is less than two steps lose, and what
    torch's allocator rounds each lost block up by.
    """
    batch = max(1, step // SAMPLE_BYTES)
    layer = batch * WIDTH * 4
    segment = segment_size(layer, AllocatorSettings())
    taken = 2 * DEPTH * (segment // (segment // layer)) + batch * CLASSES * 4
    steps = (most - 2 * taken - batch * BATCH_BYTES - RESERVE) // taken
    if steps > 0:
        return steps * batch * SAMPLE_BYTES
    return max(0, most) // 8


def kept_bytes(buffer_bytes: int) -> int:
    """Bytes kept of a buffer when memory is fragmented; all of one that is hardly larger than `SMALL`."""
    return min(buffer_bytes, max(buffer_bytes // KEPT, SMALL + LONGER if buffer_bytes > SMALL else 1))


def growing(first: int, cap: int | None) -> Iterator[int]:
    """Sizes that grow by `LONGER` from ``first`` or `OWN_SEGMENT`, as many as together stay within ``cap`` bytes.

    A cap that is smaller than the first of them is taken whole.
    """
    size = max(first, OWN_SEGMENT)
    if cap is not None:
        size = min(size, cap)
    taken = size
    while cap is None or taken <= cap:
        yield size
        size += LONGER
        taken += size
