"""An error that code raises in the midst of a backward pass arrives where the pass was begun."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch

from gpudash.simulator.device import autograd
from gpudash.simulator.device.backend import Backend


class NoticedError(Exception):
    """Raised by a hook of these tests."""


def refuse(*_args: Any) -> None:
    raise NoticedError("seen")


class Refusing(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        raise NoticedError("seen")


def with_hook(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y.register_hook(refuse)
    return y


def with_hook_of_the_leaf(x: torch.Tensor) -> torch.Tensor:
    x.register_hook(refuse)
    return x * 2


def with_hook_after_the_gradient(x: torch.Tensor) -> torch.Tensor:
    x.register_post_accumulate_grad_hook(refuse)
    return x * 2


def with_hook_of_the_node(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    assert y.grad_fn is not None
    y.grad_fn.register_hook(refuse)
    return y


WAYS = [with_hook, with_hook_of_the_leaf, with_hook_after_the_gradient, with_hook_of_the_node, Refusing.apply]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_an_error_in_a_backward_pass_is_the_one_that_is_caught(
    sim: Backend, way: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    x = torch.ones(4, device="sim", requires_grad=True)
    with pytest.raises(NoticedError, match="seen"):
        way(x).sum().backward()
    assert not autograd.goes_backward()


def test_the_next_backward_pass_works(sim: Backend) -> None:
    x = torch.ones(4, device="sim", requires_grad=True)
    with pytest.raises(NoticedError):
        with_hook(x).sum().backward()
    (x * 3).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [3.0] * 4


def test_an_error_keeps_nothing_on_the_card(sim: Backend) -> None:
    def step() -> None:
        x = torch.ones(1000, device="sim", requires_grad=True)
        with_hook(x).sum().backward()

    for _ in range(2):
        with suppress(NoticedError):
            step()
        assert torch.sim.memory_allocated() == 0  # type: ignore[attr-defined]


def test_running_out_of_memory_in_a_backward_pass_is_told(sim: Backend) -> None:
    weight = torch.empty(150 * 2**20, 1, device="sim").requires_grad_()  # 600 MiB of 1 GiB; its gradient is as large
    places = torch.zeros(3, dtype=torch.int64, device="sim")
    loss = torch.nn.functional.embedding(places, weight).sum()
    with pytest.raises(torch.OutOfMemoryError, match="600"):
        loss.backward()
