"""An evaluation without ``no_grad``: how many passes keep a graph, and what remains without it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest

from gpudash.memory.allocator import AllocationRefused
from gpudash.memory.snapshot.explaining import explain_history
from gpudash.memory.snapshot.history.history import History
from gpudash.units import MIB
from tests.unit.memory.snapshot.made import FORWARD, KEPT, MOVED_GRADIENT, TRAIN, WEIGHTS, Made, called

EVALUATE = {
    39: "def step(model, batches):",
    40: "    for x in batches:",
    41: "        outputs.append(model(x.to('cuda')))",
    90: "step(model, batches)",
}
AT_THE_LINE = {
    KEPT: called((TRAIN, 41, "step")),
    MOVED_GRADIENT: called((TRAIN, 12, "forward"), *FORWARD[:-1]),
}
"""In place of stacks of a training: the copy of an input, and the result of the whole model."""

WEIGHT = 20 * MIB
LAYERS = 7
LAYER = 2 * MIB


@pytest.mark.parametrize("copies_inputs", [True, False])
def test_passes_of_equal_layers_are_counted_and_only_their_results_stay_without_the_graph(copies_inputs: bool) -> None:
    made = Made(capacity=360 * MIB)
    made.malloc(WEIGHT, WEIGHTS)
    passes = 0
    with suppress(AllocationRefused):
        while True:
            if copies_inputs:
                made.malloc(LAYER, KEPT)
            for _ in range(LAYERS):
                made.malloc(LAYER, FORWARD)
            made.malloc(LAYER, MOVED_GRADIENT)
            passes += 1
    device = made.device()
    stacks = [AT_THE_LINE.get(stack, stack) for stack in device.stacks]

    def source(file: str, line: int) -> str:
        return EVALUATE.get(line, "") if file == TRAIN else ""

    found = explain_history(History(replace(device, stacks=stacks), ()), source=source)
    # The last one was refused within a pass.
    assert found.cause.startswith(f"{passes + 1} forward passes at train.py:41 keep their graph")
    peak = found.remedies[0].predicted_peak_bytes
    # One pass at a time, with the results so far, in segments of 20 MiB.
    assert peak is not None and peak <= WEIGHT + passes * LAYER + 2 * (LAYERS + 2) * LAYER + 20 * MIB
