"""Shapes of what the variables of a training hold are read at few of its steps, and hold nothing alive."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import torch
from torch import nn

from gpudash.agent.stepping.batch_shapes import MOST_READINGS, BatchShapes


def seen(rows: list[Any]) -> list[tuple[str, str, list[int], int, int]]:
    """Function, variable, shape and bytes of the rows of this file's functions of a training."""
    return [(row[2], *row[3:]) for row in rows if row[1] == __file__ and row[2] in ("train", "step")]


def step(shapes: BatchShapes, batch: dict[str, torch.Tensor], pair: tuple[torch.Tensor, ...]) -> None:
    """Of a training."""
    length = 3
    assert length and batch and pair
    shapes.step_ended()


def train(lengths: range, *, fails: bool = False) -> list[Any]:
    """Steps with batches of these lengths; what is told when memory runs out in the next one."""
    shapes = BatchShapes(torch)
    layer, weight = nn.Linear(2, 2), nn.Parameter(torch.zeros(9))
    for length in lengths:
        tokens = torch.zeros(2, length)
        step(shapes, {"ids": tokens}, (tokens[:, 1:], tokens))
    if fails:
        tokens = torch.zeros(2, 100)
    assert layer is not None and weight is not None
    return shapes.at_failure()


def test_shapes_are_read_with_the_bytes_of_elements_and_storage() -> None:
    rows = train(range(5, 6), fails=True)
    assert seen(rows) == [
        ("step", "batch['ids']", [2, 5], 40, 40),
        ("step", "pair[0]", [2, 4], 32, 40),
        ("step", "pair[1]", [2, 5], 40, 40),
        ("train", "tokens", [2, 5], 40, 40),
        # Of the functions that run now.
        ("train", "tokens", [2, 100], 800, 800),
    ]
    times = [row[0] for row in rows]
    assert times == sorted(times) and times[0] < times[-1]


def test_they_are_read_after_the_first_steps_the_newest_of_them_and_at_the_failure() -> None:
    lengths = [shape[1] for function, _name, shape, *_ in seen(train(range(1, 301))) if function == "train"]
    assert lengths == [1, 2, 4, 8, 16, 256, 300] and len(lengths) == MOST_READINGS + 1


def test_nothing_is_told_before_the_first_step() -> None:
    assert train(range(0)) == []


def test_a_variable_that_is_let_go_of_is_not_held_by_the_reading() -> None:
    shapes = BatchShapes(torch)
    tensor = torch.zeros(4)
    alive = weakref.ref(tensor)
    shapes.step_ended()
    shapes.at_failure()
    del tensor
    gc.collect()
    assert alive() is None


def test_what_the_program_has_asked_of_its_own_variables_stays_as_it_is() -> None:
    shapes = BatchShapes(torch)
    tensor = torch.zeros(4)
    variables = locals()
    shapes.step_ended()
    assert variables["tensor"] is tensor
