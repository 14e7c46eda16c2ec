"""How much a memory pressure allocates, keeps and leaks: sizes only, without torch."""

from __future__ import annotations

from collections.abc import Iterator

from gpudash.memory.allocator import AllocatorSettings
from gpudash.memory.allocator.blocks import segment_size
from gpudash.specs.training import CLASSES, FEATURES
from gpudash.units import MIB

OF_FREE = 0.80
"""Fraction of the memory free at the start that the default limit never exceeds."""

TEETH = 5
"""How often a sawtooth rises to its limit."""

FIRST_TOOTH = 8
"""Steps in the first tooth if there is no limit; each further tooth has twice as many."""

KEPT = 16
"""To fragment memory, one part in so many is kept of each buffer."""

OWN_SEGMENT = 10 * 2**20
"""Bytes from which torch's CUDA allocator uses a separate segment for a request (`kMinLargeAlloc` in its source). A
smaller buffer would leave room in its segment, and what is kept would fill holes instead of making them."""

SMALL = 2**20
"""Requests up to this many bytes are placed separately from larger ones by torch's CUDA allocator (`kSmallSize`), so
what is kept of a larger buffer must be larger too."""

LONGER = 512
"""By how many bytes a buffer exceeds the one before: the size torch's CUDA allocator rounds requests to
(`kMinBlockSize`), so that it fits no hole of an earlier buffer."""

WIDTH = 32
"""Width of the hidden layers: narrow, so that a step computes little for the memory it keeps."""

DEPTH = 2
"""Hidden layers: few, so that a step of the default size keeps blocks of more than 10 MiB, for which torch's CUDA
allocator uses separate segments; smaller blocks would leave part of theirs idle."""

LEARNING_RATE = 0.01

BATCH_BYTES = 4 * FEATURES + 8
"""Bytes of a sample and its class, the model's input."""

RESERVE = 2 * 20 * MIB
"""Bytes for the model, its gradients, the optimizer and workspaces, which share segments of 2 and 20 MiB."""

SAMPLE_BYTES = 4 * (2 * DEPTH * WIDTH + CLASSES)
"""Bytes that the graph keeps of a sample, in float32: each hidden layer before and after GELU, and the log-softmax of
the outputs."""


def leak_within(most: int, step: int) -> int:
    """Bytes that steps of ``step`` bytes may leak so that the run takes at most ``most`` in total.

    Besides the leak it takes the batch, a step's temporary memory, which is less than two steps leak, and the rounding
    of each leaked block in torch's allocator.
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
    """Bytes kept of a buffer when fragmenting memory; the whole of one that is hardly larger than `SMALL`."""
    return min(buffer_bytes, max(buffer_bytes // KEPT, SMALL + LONGER if buffer_bytes > SMALL else 1))


def growing(first: int, cap: int | None) -> Iterator[int]:
    """Sizes that grow by `LONGER` from ``first`` or `OWN_SEGMENT`, as many as fit together within ``cap`` bytes.

    A limit smaller than the first size is used whole.
    """
    size = max(first, OWN_SEGMENT)
    if cap is not None:
        size = min(size, cap)
    taken = size
    while cap is None or taken <= cap:
        yield size
        size += LONGER
        taken += size
