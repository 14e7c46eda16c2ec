"""Tries that ran out of memory, and whose tensors an exception holds while a smaller one is made."""

from __future__ import annotations

from contextlib import suppress

import pytest

from gpudash.memory.allocator import AllocationRefused
from gpudash.telemetry.explanation import Explanation
from gpudash.units import MIB
from tests.unit.memory.snapshot.made import FORWARD, TRAIN, WEIGHTS, Made, explained

PROGRAM = {
    40: "def step(model, data):",
    41: "    return model(data)",
    88: "while True:",
    89: "    try:",
    90: "        step(model, data[:batch])",
    91: "        break",
    92: "    except torch.OutOfMemoryError as e:",
    93: "        error = e",
    94: "        batch //= 2",
    95: "print(batch, error)",
}


def tried_again(lines: dict[int, str]) -> Explanation:
    """Two layers of 70 MiB do not fit, nor does half of them beside the first one of the earlier try."""
    made = Made(capacity=130 * MIB)
    made.malloc(20 * MIB, WEIGHTS)
    for layer in (70 * MIB, 35 * MIB):
        with suppress(AllocationRefused):
            made.malloc(layer, FORWARD)
            made.malloc(layer, FORWARD)

    def source(file: str, line: int) -> str:
        return lines.get(line, "") if file == TRAIN else ""

    return explained(made.snapshot(), source=source)


def test_tensors_of_an_earlier_try_are_blamed_on_the_statement_that_keeps_its_exception() -> None:
    found = tried_again(PROGRAM)
    assert found.cause == (
        "train.py:93 (error = e) keeps 70 MiB of earlier tries, as the traceback of an exception refers to the "
        "variables of the functions that it left."
    )
    remedy = found.remedies[0]
    assert "-        error = e\n+        error = str(e)\n" in remedy.patch
    # The cache of the earlier try is released for the second layer of the smaller one.
    assert remedy.verified_by == "replay"
    assert remedy.predicted_peak_bytes == 92 * MIB


@pytest.mark.parametrize("line", ["raise error", "print(error.args)"])
def test_an_exception_that_the_program_needs_later_is_kept_without_its_traceback(line: str) -> None:
    patch = tried_again({**PROGRAM, 95: line}).remedies[0].patch
    assert "+        error = e.with_traceback(None)\n" in patch


@pytest.mark.parametrize("line", ["error = str(e)", "print(e)"])
def test_an_exception_that_is_not_kept_holds_nothing_of_an_earlier_try(line: str) -> None:
    assert "earlier tries" not in tried_again({**PROGRAM, 93: f"        {line}"}).cause
