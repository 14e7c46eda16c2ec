"""An evaluation without ``no_grad``: how many passes keep a graph, and what remains without it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest

from gpudash.memory.allocator import AllocationRefused
from gpudash.memory.snapshot.explaining import explain_history
from gpudash.memory.snapshot.history.history import History
from gpudash.telemetry.explanation import Explanation
from gpudash.units import MIB
from tests.unit.memory.snapshot.made import FORWARD, KEPT, MOVED_GRADIENT, TRAIN, WEIGHTS, Made, called

EVALUATE = {
    39: "def step(model, batches):",
    40: "    for x in batches:",
    41: "        outputs.append(model(x.to('cuda')))",
    90: "step(model, batches)",
}
COPIES_BEFORE = {
    38: "def step(model, batches):",
    39: "    for x in batches:",
    40: "        x = x.to('cuda')",
    41: "        outputs.append(model(x))",
    90: "step(model, batches)",
}
RESULT = called((TRAIN, 12, "forward"), *FORWARD[:-1])

WEIGHT = 20 * MIB
LAYERS = 7
LAYER = 2 * MIB


def evaluated(lines: dict[int, str], copies_at: int | None) -> tuple[Explanation, int]:
    """Passes of equal layers until memory is full, and how many there were.

    Args:
        lines: the program.
        copies_at: line that copies the inputs; ``None`` if nothing is copied.
    """
    made = Made(capacity=360 * MIB)
    made.malloc(WEIGHT, WEIGHTS)
    passes = 0
    with suppress(AllocationRefused):
        while True:
            if copies_at is not None:
                made.malloc(LAYER, KEPT)
            for _ in range(LAYERS):
                made.malloc(LAYER, FORWARD)
            made.malloc(LAYER, MOVED_GRADIENT)
            passes += 1
    device = made.device()
    # In place of stacks of a training: the copy of an input, and the result of the whole model.
    places = {MOVED_GRADIENT: RESULT}
    if copies_at is not None:
        places[KEPT] = called((TRAIN, copies_at, "step"))
    stacks = [places.get(stack, stack) for stack in device.stacks]

    def source(file: str, line: int) -> str:
        return lines.get(line, "") if file == TRAIN else ""

    return explain_history(History(replace(device, stacks=stacks), ()), source=source), passes


@pytest.mark.parametrize(
    ("lines", "copies_at"),
    [
        (EVALUATE, None),
        (EVALUATE, 41),
        (COPIES_BEFORE, 40),
        ({**COPIES_BEFORE, 40: "        x, y = x[0].to('cuda'), x[1]"}, 40),
    ],
)
def test_passes_of_equal_layers_are_counted_and_only_their_results_stay_without_the_graph(
    lines: dict[int, str], copies_at: int | None
) -> None:
    found, passes = evaluated(lines, copies_at)
    # The last one was refused within a pass.
    assert found.cause.startswith(f"{passes + 1} forward passes at train.py:41 keep their graph")
    peak = found.remedies[0].predicted_peak_bytes
    # One pass at a time, with the results so far, in segments of 20 MiB.
    assert peak is not None and peak <= WEIGHT + passes * LAYER + (LAYERS + 2) * LAYER + 20 * MIB


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (41, "        outputs.append((x, model(x)))"),
        (40, "        x = kept[x] = x.to('cuda')"),
    ],
)
def test_inputs_that_the_program_keeps_itself_stay_without_the_graph(line: int, text: str) -> None:
    found, passes = evaluated({**COPIES_BEFORE, line: text}, 40)
    peak = found.remedies[0].predicted_peak_bytes
    assert peak is not None and peak >= WEIGHT + 2 * passes * LAYER
