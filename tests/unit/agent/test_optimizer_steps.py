"""Steps that nobody tells are those of the optimizer, until somebody does."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.optim import optimizer as optimizers

from gpudash.agent.stepping.steps import MOST_WAITING, OPTIMIZER, PATIENCE, OptimizerSteps, Steps


class Optimizer:
    """Something that can be counted."""


def numbers(steps: Steps, *, last: bool = False) -> list[int]:
    return [step[0] for step in steps.take(last=last)]


@pytest.fixture
def hooks() -> Iterator[None]:
    before = dict(optimizers._global_optimizer_post_hooks)
    yield
    optimizers._global_optimizer_post_hooks.clear()
    optimizers._global_optimizer_post_hooks.update(before)


def test_torch_tells_of_the_steps_of_any_optimizer(hooks: None) -> None:
    steps = Steps()
    OptimizerSteps(steps).follow()
    for kind in (torch.optim.SGD, torch.optim.Adam):
        weight = torch.ones(2, requires_grad=True)
        weight.sum().backward()
        optimizer = kind([weight], lr=0.1)
        for _ in range(5):
            optimizer.step()
        del optimizer
        gc.collect()
    assert numbers(steps) == list(range(1, 11)) and steps.source == OPTIMIZER


def test_a_torch_that_tells_of_none_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = Steps()
    monkeypatch.setitem(sys.modules, "torch.optim.optimizer", ModuleType("torch.optim.optimizer"))
    OptimizerSteps(steps).follow()
    monkeypatch.delitem(sys.modules, "torch.optim.optimizer")
    OptimizerSteps(steps).follow()
    assert steps.label == 0


@pytest.mark.parametrize("turns", [1, PATIENCE - 1])
def test_of_two_that_take_turns_the_first_is_counted(turns: int) -> None:
    steps = Steps()
    first, second, counter = Optimizer(), Optimizer(), OptimizerSteps(steps)
    for _ in range(10):
        counter.stepped(first, (), {})
        for _ in range(turns):
            counter.stepped(second, (), {})
    assert numbers(steps) == list(range(1, 11))


def test_another_is_counted_once_the_first_rests() -> None:
    steps = Steps()
    first, second, counter = Optimizer(), Optimizer(), OptimizerSteps(steps)
    for optimizer in [first] * 4 + [second] * 6:
        counter.stepped(optimizer, (), {})
    assert numbers(steps) == [1, 2, 3, 4, 4 + PATIENCE, *range(5 + PATIENCE, 11)]


def test_an_optimizer_is_not_kept_alive_and_the_next_goes_on() -> None:
    steps: Steps = Steps()
    counter = OptimizerSteps(steps)
    for _ in range(3):
        made: Any = Optimizer()
        counter.stepped(made, (), {})
        del made
        gc.collect()
    assert numbers(steps) == [1, 2, 3]


def test_the_first_step_waits_for_the_line_that_tells_it() -> None:
    steps = Steps()
    steps.optimizer_stepped()
    assert numbers(steps) == []
    steps.note("logging", 0, 0.5)
    steps.optimizer_stepped()
    steps.note("logging", 1, 0.4)
    assert numbers(steps) == [0, 1] and steps.source == "logging"


def test_the_only_step_is_told_at_the_end() -> None:
    steps = Steps()
    steps.optimizer_stepped()
    assert numbers(steps, last=True) == [1] and numbers(steps, last=True) == []


def test_what_was_counted_goes_when_steps_are_told() -> None:
    steps = Steps()
    for _ in range(9):
        steps.optimizer_stepped()
    steps.note("transformers", 10)
    assert numbers(steps) == [10] and steps.label == steps.present == 11


def test_counted_steps_that_are_left_out_are_no_loss() -> None:
    steps = Steps()
    for _ in range(MOST_WAITING + 10):
        steps.optimizer_stepped()
    found = numbers(steps)
    assert (steps.lost, len(found), found[-1]) == (0, MOST_WAITING, MOST_WAITING + 10)
