"""Memory that is free or idle, but that a request cannot use."""

from __future__ import annotations

import pytest

from gpudash.memory.allocator import AllocationRefused
from gpudash.units import MIB
from tests.unit.memory.snapshot.made import FORWARD, KEPT, Made, explained


def test_memory_in_pieces_is_blamed_on_the_line_whose_blocks_lie_between_them() -> None:
    made = Made(capacity=720 * MIB)
    pairs = [(made.malloc(8 * MIB, FORWARD), made.malloc(2 * MIB, KEPT)) for _ in range(60)]
    for large, _small in pairs:
        made.free(large)
    with pytest.raises(AllocationRefused):
        made.malloc(300 * MIB, FORWARD)
    found = explained(made.snapshot())
    assert found.cause == (
        "600 MiB is free or idle: 480 MiB is idle inside PyTorch but in pieces of at most 8 MiB between the blocks of "
        "train.py:44, and 300 MiB was asked."
    )
    remedy = found.remedies[0]
    assert remedy.change.startswith("train.py:44: free what is kept, 120 MiB, or move it to host memory, before train")
    assert remedy.predicted_peak_bytes == made.model.reserved_bytes == 600 * MIB
    for _large, small in pairs:
        made.free(small)
    made.malloc(300 * MIB, FORWARD)
