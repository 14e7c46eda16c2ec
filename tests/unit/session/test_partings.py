"""Where a run left its prediction: by its readings, one word a step, and nothing where readings do not tell."""

from __future__ import annotations

import numpy as np
import pytest

from gpudash.drawing.ghost import Ghost, RunningGhost
from gpudash.session.predicting.deviations import LATE_S, WATCHED_LATE_S, Deviation, Readings, deviations
from gpudash.units import GIB, MIB

MARKS = ((0, 0, ""), (1, 1, "forward"), (3, 2, "forward"))


def ghost() -> Ghost:
    """300 MiB of context, and in the allocator 1 GiB in the first step and 2 GiB in those behind it, all in use."""
    level = np.ones(5)
    used = np.array([0.5, 1.0, 1.0, 1.5, 2.0]) * GIB
    ribbons = {"context": level * 300 * MIB, "activations": used}
    return Ghost.of(ribbons, MARKS, kept="idle in the allocator", capacity=8 * GIB, limit=8 * GIB)


def running(steps: int = 4) -> RunningGhost:
    """Steps of one second each, from 0 on."""
    return RunningGhost(ghost(), 0.0, np.arange(1.0, steps + 1), steps, 1.0, 10, over=False)


def read(*by_step: float, behind: float | None = None) -> Readings:
    """Ten readings a step of so many bytes, and one behind the last, when none of it can come any more."""
    values = np.repeat(np.array(by_step), 10)
    times = np.arange(len(values)) / 10 + 0.1
    return np.append(times, len(by_step) + 0.35), np.append(values, by_step[-1] if behind is None else behind)


AS_PREDICTED = (1.0 * GIB, 2.0 * GIB, 2.0 * GIB, 2.0 * GIB)


def test_a_run_that_is_as_predicted_has_none() -> None:
    assert deviations(running(), read(*AS_PREDICTED), read(*AS_PREDICTED)) == ()


def test_a_step_that_held_more_is_told_with_what_that_was() -> None:
    held = (*AS_PREDICTED[:2], 2.0 * GIB + 80 * MIB, 2.0 * GIB)
    used = (*AS_PREDICTED[:2], 2.0 * GIB + 64 * MIB, 2.0 * GIB)
    (found,) = deviations(running(), read(*held), read(*used))
    assert (found.step, found.more, found.held) == (3, 80 * MIB, 2 * GIB + 380 * MIB)
    assert 2.0 < found.at_s <= 3.0
    assert found.label == "+80 MiB"
    assert found.text == (
        "at step 3 the run held 80 MiB more than predicted: its tensors 64 MiB more, its cache 16 MiB more"
    )


def test_less_is_told_too_and_without_a_peak_of_tensors_nothing_of_them() -> None:
    held = (*AS_PREDICTED[:2], 1.5 * GIB, 1.5 * GIB)
    found = deviations(running(), read(*held), (np.empty(0), np.empty(0)))
    assert [(deviation.step, deviation.label) for deviation in found] == [(3, "−512 MiB"), (4, "−512 MiB")]
    assert found[1].text == "at step 4 the run held 512 MiB less than predicted"


@pytest.mark.parametrize(("more", "told"), [(40 * MIB, 0), (48 * MIB, 1)])
def test_two_per_cent_are_enough_where_that_is_less_than_64_mib(more: int, told: int) -> None:
    held = (*AS_PREDICTED[:3], 2.0 * GIB + more)
    assert len(deviations(running(), read(*held), read(*held))) == told


def test_what_lies_behind_the_end_of_a_step_is_not_held_against_it() -> None:
    assert deviations(running(1), read(1.0 * GIB, behind=2.0 * GIB), read(1.0 * GIB)) == ()


@pytest.mark.parametrize(("late_s", "allowed_s"), [(0.015, LATE_S), (0.2, WATCHED_LATE_S)])
def test_readings_that_come_late_make_no_step_hold_less(late_s: float, allowed_s: float) -> None:
    step_s = 0.12
    short = RunningGhost(ghost(), 0.0, np.arange(1, 5) * step_s, 4, step_s, 10, over=False)
    times = np.arange(1, 120) / 100
    true_times = times - late_s
    held = np.where(true_times < 0.0, 0.0, np.where(true_times < step_s, 1.0, 2.0)) * GIB
    for read_until in range(20, len(times)):
        known = times[:read_until], held[:read_until]
        assert deviations(short, known, known, allowed_s) == ()


def test_a_step_between_two_readings_is_not_told_of() -> None:
    sparse = np.array([0.05, 2.6, 5.0]), np.array([0.0, 9.0 * GIB, 9.0 * GIB])
    assert deviations(running(), sparse, sparse) == ()


def test_steps_behind_those_that_were_followed_are_held_against_the_last_one() -> None:
    late = RunningGhost(ghost(), 0.0, np.arange(1.0, 3.0), 40, 1.0, 50, over=False)
    found = deviations(late, read(2.0 * GIB, 3.0 * GIB), read(2.0 * GIB, 3.0 * GIB))
    assert [deviation.step for deviation in found] == [40]


def test_a_run_without_steps_or_readings_has_none() -> None:
    nothing = np.empty(0), np.empty(0)
    assert deviations(running(), nothing, nothing) == ()
    assert deviations(RunningGhost(ghost(), 0.0, np.empty(0), 0, 1.0, 10, over=False), read(GIB), read(GIB)) == ()


def test_words_are_rounded_as_everywhere() -> None:
    assert Deviation(2, 1.0, GIB, -3 * GIB, None).label == "−3.00 GiB"
