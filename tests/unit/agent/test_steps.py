"""Steps and losses: what is taken for one, how often a GPU is asked, and what number blocks are born under."""

from __future__ import annotations

import gc
import math
import weakref
from typing import Any

import pytest
import torch

from gpudash.agent.stepping import steps as steps_module
from gpudash.agent.stepping.steps import MOST_WAITING, Steps


def values(steps: Steps) -> list[list[Any]]:
    return [[number, *told] for number, _time_us, *told in steps.take()]


class OnGpu:
    """A number that lies elsewhere."""

    device = "cuda:0"

    def __init__(self) -> None:
        self.read = 0

    def item(self) -> float:
        self.read += 1
        return 0.5


def test_steps_come_out_in_order_and_once() -> None:
    steps = Steps()
    for number in range(3):
        steps.note("logging", number, number / 2, epoch=1)
    assert values(steps) == [[0, 0.0, None, 1.0, None], [1, 0.5, None, 1.0, None], [2, 1.0, None, 1.0, None]]
    assert steps.take() == [] and steps.source == "logging"


@pytest.mark.parametrize("step", [None, "7", 1.0, True, [1], 2**64, object()])
def test_what_is_no_step_number_is_ignored(step: Any) -> None:
    steps = Steps()
    steps.note("logging", step, 1.0)
    assert steps.take() == [] and steps.label == 0


@pytest.mark.parametrize(
    "loss", [None, "1.0", True, b"1", [1.0], {}, object(), torch.ones(2), torch.tensor(1j), 10**400]
)
def test_what_is_no_number_is_left_out_and_the_step_stays(loss: Any) -> None:
    steps = Steps()
    steps.note("logging", 1, loss)
    assert values(steps) == [[1, None, None, None, None]]


@pytest.mark.parametrize("loss", [2, 2.0, torch.tensor(2.0), torch.tensor([2.0], requires_grad=True), torch.tensor(2)])
def test_numbers_and_tensors_of_one_element_are_numbers(loss: Any, recwarn: pytest.WarningsRecorder) -> None:
    steps = Steps()
    steps.note("logging", torch.tensor(3), loss)
    assert values(steps) == [[3, 2.0, None, None, None]] and not recwarn.list


def test_a_loss_that_is_no_number_any_more_is_told_as_such() -> None:
    steps = Steps()
    steps.note("logging", 1, math.nan)
    assert math.isnan(values(steps)[0][1])


@pytest.mark.timed
def test_a_value_on_a_gpu_is_read_twice_a_second_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(steps_module.time, "monotonic", lambda: now[0])
    steps, loss = Steps(), OnGpu()
    for number in range(1000):
        now[0] += 0.01
        steps.note("logging", number, loss)
    assert 15 <= loss.read <= 21
    assert sum(step[1] is not None for step in values(steps)) == loss.read


@pytest.mark.timed
def test_a_loss_on_a_gpu_that_was_just_read_hides_no_other_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps_module.time, "monotonic", lambda: 100.0)
    steps = Steps()
    steps.note("lightning", 1, OnGpu(), OnGpu())
    steps.note("lightning", 2, OnGpu(), val_loss=OnGpu())
    assert values(steps) == [[1, 0.5, 0.5, None, None], [2, None, None, None, 0.5]]


def test_a_loss_is_not_held_in_memory() -> None:
    steps, loss = Steps(), torch.ones(3, requires_grad=True).sum()
    steps.note("logging", 1, loss)
    gone = weakref.ref(loss)
    del loss
    gc.collect()
    assert gone() is None


def test_a_step_told_twice_is_one_with_what_is_known_of_it() -> None:
    steps = Steps()
    steps.note("transformers", 2)
    steps.note("transformers", 2, 0.5)
    steps.note("transformers", 2, None, 0.9)
    assert values(steps) == [[2, 0.5, 0.9, None, None]]
    steps.note("transformers", 2, 0.4)
    assert values(steps) == [[2, 0.4, None, None, None]], "what was taken is told again"


def test_of_too_many_steps_the_oldest_are_lost_and_counted() -> None:
    steps = Steps()
    for number in range(MOST_WAITING + 10):
        steps.note("logging", number)
    taken = steps.take()
    assert steps.lost == 10 and len(taken) == MOST_WAITING and taken[0][0] == 10


def test_blocks_are_born_under_the_number_of_the_step_that_is_going_on() -> None:
    steps, labels = Steps(), []
    steps.on_label = labels.append
    assert steps.label == 0
    steps.note("logging", 10)
    assert steps.label == 11
    for _ in range(9):
        steps.optimizer_stepped()
    assert steps.label == 20, "a script that tells every tenth step"
    assert steps.present == 11
    steps.note("logging", 20)
    assert steps.label == 21 and labels == [11, *range(12, 21), 21]


def test_without_a_word_the_optimizers_steps_are_counted() -> None:
    steps = Steps()
    for _ in range(3):
        steps.optimizer_stepped()
    assert steps.label == steps.present == 3
    assert [step[:1] + step[2:] for step in steps.take()] == [[number, None, None, None, None] for number in (1, 2, 3)]


def test_the_step_of_a_moment_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000]
    monkeypatch.setattr(steps_module.time, "time_ns", lambda: now[0] * 1000)
    steps = Steps()
    for number in (1, 2, 3):
        now[0] = 1000 * (number + 1)
        steps.note("logging", number)
    assert [steps.label_at(moment) for moment in (0, 1999, 2000, 3500, 4000, 10**9)] == [0, 0, 2, 3, 4, 4]
