"""Lines that grow are told once it is sure, once for each."""

from __future__ import annotations

from dataclasses import replace

from gpudash.memory.explaining.call_sites import GrowthNotice, growth_warning
from gpudash.memory.explaining.wording import headline
from gpudash.telemetry.explanation import Growth
from gpudash.units import MIB
from tests.unit.memory.test_explain import state


def growth(line: int = 31) -> Growth:
    return Growth("/home/me/train.py", line, "step", "losses.append(loss)", 2.0 * MIB, 40 * MIB, 20, 3)


def test_lines_that_grow_are_told_at_the_second_look_and_not_again() -> None:
    notice = GrowthNotice()
    assert [notice.is_due([growth()]) for _ in range(4)] == [False, True, False, False]


def test_a_look_without_growth_begins_anew_and_another_line_is_told_as_well() -> None:
    notice = GrowthNotice()
    assert not notice.is_due([growth()])
    assert not notice.is_due([])
    assert not notice.is_due([growth()])
    assert notice.is_due([growth()])
    assert notice.is_due([growth(50), growth()])


def test_a_number_kept_of_every_step_is_told_once_it_comes_to_a_mebibyte() -> None:
    notice = GrowthNotice()
    numbers = replace(growth(), bytes_per_step=512.0, bytes=68 * 512)
    assert not any(notice.is_due([numbers]) for _ in range(4))
    assert [notice.is_due([replace(numbers, bytes=MIB)]) for _ in range(2)] == [False, True]


def test_the_warning_names_the_line_its_rate_and_since_when() -> None:
    warning = growth_warning([growth()], "GPU-1", 12.0, 3)
    assert warning.text == ("train.py:31 (losses.append(loss)) keeps 2 MiB of every step since step 3.")
    assert (warning.device, warning.run_id, warning.level) == ("GPU-1", 3, "note")
    assert warning.cause == "train.py:31 (losses.append(loss)), 2 MiB a step"


def test_a_line_that_keeps_something_of_every_nth_step_is_told_next_to_one_of_every_step() -> None:
    evaluated = replace(growth(50), text="cache.append(out)", bytes_per_step=1.0 * MIB, stride=5.0)
    notice = GrowthNotice()
    assert [notice.is_due([growth()]) for _ in range(2)] == [False, True]
    assert notice.is_due([growth(), evaluated])
    warning = growth_warning([growth(), evaluated], "GPU-1", 12.0, 3)
    assert warning.text == (
        "train.py:31 (losses.append(loss)) keeps 2 MiB of every step since step 3. "
        "train.py:50 (cache.append(out)) keeps 5 MiB of every 5 steps since step 3."
    )
    assert warning.cause == (
        "train.py:31 (losses.append(loss)), 2 MiB a step; train.py:50 (cache.append(out)), 5 MiB every 5 steps"
    )


def test_the_text_of_the_line_is_read_for_the_warning_alone() -> None:
    unread = replace(growth(), text="")
    warning = growth_warning([unread], "GPU-1", 12.0, 3, lambda _file, line: f"  line {line}")
    assert warning.text.startswith("train.py:31 (line 31) keeps")


def test_where_it_is_known_the_statement_that_keeps_is_named_before_the_line_that_allocates() -> None:
    warning = growth_warning([growth()], "GPU-1", 12.0, 3, keeper=lambda _growth: "train.py:44 (history.append(out))")
    assert warning.text == (
        "train.py:44 (history.append(out)) keeps 2 MiB of every step since step 3, allocated at train.py:31."
    )
    assert warning.cause == "train.py:44 (history.append(out)), 2 MiB a step, allocated at train.py:31"


def test_the_warning_and_the_headline_afterwards_name_the_same_line_and_bytes_of_several_lines() -> None:
    keeper = "train.py:44 (history.append(out))"
    lines = [replace(growth(), kept_by=keeper), replace(growth(), line=32)]
    warning = growth_warning(lines, "GPU-1", 12.0, 3, keeper=lambda _growth: keeper)
    says = f"{keeper} keeps 4 MiB"
    allocated = ", allocated at train.py:31 and 1 other line"
    assert warning.text == f"{says} of every step since step 3{allocated}."
    assert headline("leak", state(), {}, (), lines).startswith(f"{says} alive per step{allocated}: ")
