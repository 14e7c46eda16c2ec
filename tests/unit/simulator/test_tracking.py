"""What a block is for, as the modules and optimizers at work tell it: also 8-bit state, and state within state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from gpudash.simulator.device.backend import Backend
from gpudash.simulator.device.tracking import Tracker


class EightBits(torch.Tensor):
    """A tensor of floats that is kept as codes of a byte each, and scales of blocks of them."""

    @staticmethod
    def __new__(cls, codes: torch.Tensor, scales: torch.Tensor) -> Self:
        return torch.Tensor._make_wrapper_subclass(cls, codes.shape, dtype=torch.float32, device=codes.device)

    def __init__(self, codes: torch.Tensor, scales: torch.Tensor) -> None:
        self.codes, self.scales = codes, scales

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["codes", "scales"], None

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotImplementedError(func)


def eight_bits(weight: torch.Tensor) -> EightBits:
    return EightBits(torch.zeros_like(weight, dtype=torch.uint8), torch.zeros(4, device=weight.device))


def nested(weight: torch.Tensor) -> dict[str, list[torch.Tensor]]:
    return {"moments": [torch.zeros_like(weight, dtype=torch.uint8), torch.zeros(4, device=weight.device)]}


class Optimizer(torch.optim.Optimizer):
    """Keeps state of some kind, and changes nothing."""

    def __init__(self, weights: Any, state: Callable[[torch.Tensor], Any]) -> None:
        super().__init__(weights, {})
        self._state_of = state

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for weight in group["params"]:
                self.state[weight]["kept"] = self._state_of(weight)


@pytest.mark.parametrize("state", [eight_bits, nested])
def test_the_parts_of_state_are_optimizer_state(sim: Backend, state: Callable[[torch.Tensor], Any]) -> None:
    tracker = Tracker(sim.engine)
    tracker.start()
    try:
        model = nn.Linear(64, 64, bias=False, device="sim:0")
        model(torch.ones(2, 64, device="sim:0")).sum().backward()
        optimizer = Optimizer(model.parameters(), state)
        optimizer.step()
        found = sorted(tracker.categories().values())
    finally:
        tracker.stop()
    assert found == ["gradients", "optimizer state", "optimizer state", "weights"]


def test_what_moves_with_a_module_is_weights_before_the_module_has_been_at_work(sim: Backend) -> None:
    card, labels = sim.engine.cards[0], list[str | None]()
    tracker = Tracker(sim.engine)
    tracker.start()
    try:
        model = nn.Sequential(nn.Linear(64, 64, bias=False), nn.BatchNorm1d(64)).to("sim:0")
        batch = torch.ones(2, 64).to("sim:0")
        for tensor in (*model.parameters(), *model.buffers(), batch):
            block = sim.engine.storages.block(tensor.untyped_storage())
            assert block is not None
            labels.append(card.label_of(block.address))
    finally:
        tracker.stop()
    assert labels == [*["weights"] * 6, "inputs"]


class Checkpointed(nn.Module):
    """Three layers that run again in the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32, bias=False, device="sim:0") for _layer in range(3))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            values = checkpoint(layer, values, use_reentrant=False)
        return values


def test_what_layers_that_run_again_in_a_backward_pass_have_new_is_gradients(sim: Backend) -> None:
    tracker = Tracker(sim.engine)
    walked: list[str] = []
    tracker.on_roots.append(lambda: walked.append(" ".join(sorted(tracker.categories().values()))))
    tracker.on_gradients.append(lambda: walked.append(f"gradients {len(tracker.gradients())}"))
    model = Checkpointed()
    tracker.start()
    try:
        model(torch.ones(8, 32, device="sim:0", requires_grad=True)).sum().backward()
    finally:
        tracker.stop()
    weights = "weights weights weights"
    # The last layer is the first to run again; each finds the gradients of those that came before it.
    assert walked == [weights, "gradients 0", "gradients 1", "gradients 2", f"gradients gradients gradients {weights}"]
