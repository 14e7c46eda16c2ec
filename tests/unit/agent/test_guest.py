"""What goes wrong in the agent: the program sees nothing of it, and the dashboard is told."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gpudash.agent import guest
from gpudash.agent.guest import LONGEST_FAULT, MOST_FAULTS, guarded, note_fault, take_faults


@pytest.fixture(autouse=True)
def no_fault_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guest, "_faults", [])
    monkeypatch.setattr(guest, "_reported", set())


def fail(text: str) -> None:
    raise ValueError(text)


def faults(count: int) -> Iterator[BaseException]:
    """Exceptions of as many kinds."""
    for number in range(count):
        try:
            raise type(f"Kind{number}Error", (Exception,), {})("so it is")
        except Exception as error:
            yield error


def test_a_guarded_call_raises_nothing_and_its_exception_is_kept_with_the_place() -> None:
    guarded(fail)("it is odd")
    (text,) = take_faults()
    first, *_, last = text.splitlines()
    assert first.endswith(" in safe") and "test_guest.py" in text and " in fail" in text
    assert last == "ValueError: it is odd"
    assert take_faults() == []


def test_what_goes_wrong_at_the_same_place_again_is_told_once() -> None:
    for number in range(3):
        guarded(fail)(str(number))
    assert len(take_faults()) == 1
    guarded(fail)("once more")
    assert take_faults() == []


def test_so_many_kinds_of_faults_are_told_and_no_more() -> None:
    for error in faults(MOST_FAULTS + 5):
        note_fault(error)
    assert len(take_faults()) == MOST_FAULTS


def test_of_a_long_fault_the_end_is_told() -> None:
    guarded(fail)("x" * 2 * LONGEST_FAULT + "end")
    (text,) = take_faults()
    assert len(text) == LONGEST_FAULT and text.endswith("xend")
