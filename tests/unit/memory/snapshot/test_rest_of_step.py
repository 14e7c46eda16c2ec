"""A trace that ends refused goes on with the rest of an earlier step: what that comes to, whatever the program does."""

from __future__ import annotations

from contextlib import suppress

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gpudash.memory.allocator import AllocationRefused
from gpudash.memory.snapshot.history.history import History
from gpudash.memory.snapshot.replay.rest_of_step import ends_refused, what_if_of, with_rest_of_step
from gpudash.memory.snapshot.replay.what_if import WhatIf
from gpudash.units import MIB
from tests.unit.memory.snapshot.made import BACKWARD, FORWARD, KEPT, OPTIMIZER, WEIGHTS, Made

LAYERS = st.lists(st.integers(1, 40), min_size=3, max_size=10)


def step(made: Made, layers: list[int], keeps: list[int]) -> None:
    """A step of layers of so many MiB; what it keeps is let go in the next one."""
    held = [made.malloc(size * MIB, FORWARD) for size in layers]
    while keeps:
        made.free(keeps.pop(), FORWARD)
    for address, size in zip(reversed(held), reversed(layers), strict=True):
        keeps.append(made.malloc(size * MIB // 2, BACKWARD))
        made.free(address, BACKWARD)
    for size in layers:
        made.free(made.malloc(size * MIB, OPTIMIZER), OPTIMIZER)


def trained(layers: list[int], capacity: int, steps: int = 4, state: int = 0) -> Made:
    made = Made(capacity=capacity * MIB)
    keeps: list[int] = []
    with suppress(AllocationRefused):
        made.malloc(20 * MIB, WEIGHTS)
        for number in range(steps):
            step(made, layers, keeps)
            if state and not number:
                made.malloc(state * MIB, OPTIMIZER)
    return made


@given(layers=LAYERS, state=st.integers(40, 400), less=st.integers(1, 40))
@settings(max_examples=60)
def test_a_run_has_room_in_what_the_whole_step_takes(layers: list[int], state: int, less: int) -> None:
    needs = WhatIf(trained(layers, 4096, state=state).device()).smallest_capacity() // MIB
    made = trained(layers, max(2, needs - less), state=state)
    history = History(made.device())
    rest = with_rest_of_step(history)
    assume(rest is not None)
    assert ends_refused(history.columns)
    whole = WhatIf(made.device(), rest).smallest_capacity()
    assert whole >= WhatIf(made.device()).smallest_capacity()
    assert not ends_refused(History(trained(layers, whole // MIB, state=state).device()).columns)


def test_a_request_of_the_first_step_has_no_rest() -> None:
    made = trained([30, 30, 30], 90)
    assert with_rest_of_step(History(made.device())) is None
    asked = what_if_of(made.device(), lambda: History(made.device()))
    assert asked.describe(asked.run(None), None) == (
        "Without a limit: gets past the refused request, 110 MiB reserved at most; what came after it is not in the "
        "file."
    )
    assert asked.answer(None).sentence.endswith(" It takes at least 110 MiB to get there.")


def test_a_trace_that_goes_on_after_the_refusal_is_replayed_as_it_is() -> None:
    made = trained([30, 30, 30], 90)
    made.malloc(MIB, KEPT)
    assert not ends_refused(History(made.device()).columns)
    asked = what_if_of(made.device(), lambda: History(made.device()))
    assert not asked.ends_refused and not asked.goes_on
