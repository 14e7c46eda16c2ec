"""A watched program that is refused memory before it has any: its context is named, and no history is asked for."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from gpudash.memory.allocator import AllocationRefused
from gpudash.memory.explaining.explanation_text import report
from gpudash.memory.explaining.memory_state import Surroundings, other_process
from gpudash.memory.snapshot.explaining import NOTHING_BEFORE
from gpudash.memory.snapshot.history.model import Snapshot
from gpudash.session.watching.out_of_memory import Refused, explanation_of
from gpudash.telemetry.explanation import Explanation
from gpudash.units import MIB
from tests.unit.memory.snapshot.made import FORWARD, Made, explained

CONTEXT = 300 * MIB
REFUSED = Refused(
    "sim:0",
    None,
    1.0,
    capacity_bytes=310 * MIB,
    requested_bytes=16 * MIB,
    free_bytes=10 * MIB,
    around=Surroundings((), CONTEXT),
)


def first(capacity: int = 10 * MIB, asked: int = 16 * MIB) -> Snapshot:
    made = Made(capacity=capacity)
    with suppress(AllocationRefused):
        made.malloc(asked, FORWARD)
    return made.snapshot()


def asks_for_no_history(found: Explanation) -> None:
    words = "\n".join(report(found))
    assert found.remedies_note.startswith(NOTHING_BEFORE)
    assert "_record_memory_history" not in words and "no history was recorded" not in words
    assert "unattributed" not in words


def test_a_card_that_its_context_nearly_fills_is_told_with_the_context() -> None:
    found = explanation_of(first(), REFUSED)
    assert found.headline.endswith("the card has 310 MiB, 300 MiB of them the context's.")
    assert [(part.kind, part.bytes) for part in found.parts] == [("context", CONTEXT), ("free", 10 * MIB)]
    asks_for_no_history(found)


def test_a_context_that_others_leave_no_room_for_is_what_was_refused() -> None:
    others = Surroundings((other_process(450 * MIB, 7, "another process"),), 0)
    context = replace(
        REFUSED,
        capacity_bytes=700 * MIB,
        requested_bytes=CONTEXT,
        free_bytes=250 * MIB,
        around=others,
        is_context=True,
    )
    found = explanation_of(Made(capacity=MIB).snapshot(), context)
    assert found.headline.startswith("another process (pid 7) holds 450 of 700 MiB.")
    assert found.request_words.startswith("The first use of the device makes its context of 300 MiB")
    asks_for_no_history(found)


def test_a_file_that_begins_with_a_refusal_asks_for_no_history_either() -> None:
    asks_for_no_history(explained(first()))
