"""Recurrent networks by cuDNN on the simulated GPU: the CPU's numbers, and torch's refusals."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

from gpudash.simulator.device.backend import Backend
from gpudash.simulator.operations.cudnn_recurrent import ONLY_IN_TRAINING, SCATTERED

pytestmark = pytest.mark.usefixtures("sim")

NETWORKS: list[tuple[Any, dict[str, Any]]] = [
    *((kind, {}) for kind in (nn.LSTM, nn.GRU, nn.RNN)),
    (nn.RNN, {"nonlinearity": "relu", "num_layers": 2}),
    (nn.LSTM, {"num_layers": 2, "bidirectional": True, "dropout": 0.5}),
    (nn.GRU, {"num_layers": 3, "dropout": 0.5, "bias": False}),
    (nn.LSTM, {"proj_size": 3, "num_layers": 2}),
    (nn.LSTM, {"proj_size": 3, "bias": False, "bidirectional": True}),
]


def outcome(network: nn.Module, values: torch.Tensor, *, packed: bool, batch_first: bool) -> list[torch.Tensor]:
    """Results and gradients, those of the weights last."""
    values = values.clone().requires_grad_()
    given: Any = pack_padded_sequence(values, [5, 4, 4, 2], batch_first) if packed else values
    torch.manual_seed(1)
    result, states = network(given)
    results = [result.data if packed else result, *(states if isinstance(states, tuple) else (states,))]
    sum(one.sin().sum() for one in results).backward()
    assert values.grad is not None
    return [one.detach().cpu() for one in (*results, values.grad, *(weight.grad for weight in network.parameters()))]


@pytest.mark.parametrize(("packed", "batch_first"), list(itertools.product((False, True), repeat=2)))
@pytest.mark.parametrize(("kind", "options"), NETWORKS)
def test_results_and_gradients_are_the_cpu_s(
    kind: Any, options: dict[str, Any], packed: bool, batch_first: bool
) -> None:
    torch.manual_seed(0)
    network = kind(6, 8, batch_first=batch_first, dtype=torch.float64, **options)
    values = torch.randn(4, 5, 6, dtype=torch.float64)
    values = values if batch_first else values.transpose(0, 1).contiguous()
    expected = outcome(network, values, packed=packed, batch_first=batch_first)
    there = copy.deepcopy(network).to("sim")
    found = outcome(there, values.to("sim"), packed=packed, batch_first=batch_first)
    for one, other in zip(expected, found, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-12, atol=1e-14)


def test_what_comes_between_the_passes_leaves_the_dropout_of_a_backward_pass_alone() -> None:
    torch.manual_seed(0)
    network = nn.GRU(6, 8, 2, dropout=0.5)
    grads = []
    for device in ("cpu", "sim"):
        module = copy.deepcopy(network).to(device)
        torch.manual_seed(1)
        results = [module(torch.ones(3, 2, 6, device=device))[0].sum() for _ in range(3)]
        torch.rand(5)
        results[1].backward(retain_graph=True)
        results[1].backward()
        results[0].backward()
        grads.append([weight.grad.cpu() for weight in module.parameters() if weight.grad is not None])
    torch.testing.assert_close(grads[1], grads[0])


def test_no_gradients_in_evaluation_nor_of_gradients() -> None:
    network, values = nn.LSTM(4, 4, device="sim"), torch.ones(2, 3, 4, device="sim")
    with pytest.raises(RuntimeError, match=ONLY_IN_TRAINING):
        network.eval()(values)[0].sum().backward()
    result = network.train()(values)[0].sum()
    (grad,) = torch.autograd.grad(result, network.weight_ih_l0, create_graph=True)
    with pytest.raises(RuntimeError, match="_cudnn_rnn_backward"):
        grad.sum().backward()


def test_scattered_weights_are_gathered_at_each_call_with_torch_s_warning() -> None:
    network, values = nn.LSTM(4, 4, device="sim"), torch.ones(2, 3, 4, device="sim")
    expected = network(values)[0]
    network.weight_ih_l0.data = network.weight_ih_l0.data.clone()
    with pytest.warns(UserWarning, match=SCATTERED[:40]):
        found = network(values)[0]
    assert torch.equal(found, expected)


def test_without_cudnn_the_cells_run_and_make_the_same_numbers(sim: Backend) -> None:
    network, values = nn.LSTM(4, 4, device="sim"), torch.ones(2, 3, 4, device="sim")
    with torch.backends.cudnn.flags(enabled=False):
        native = network(values)[0]
    by_cudnn = network(values)[0]
    torch.testing.assert_close(native, by_cudnn)
    assert native.grad_fn is not None and by_cudnn.grad_fn is not None
    assert "Cudnn" in by_cudnn.grad_fn.name() and "Cudnn" not in native.grad_fn.name()
    network.zero_grad()
    del native, by_cudnn
    assert sim.cards[0].statistics()["allocated_bytes.all.current"] < 16_000_000
