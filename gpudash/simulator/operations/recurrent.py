"""Recurrent networks as on CUDA: fused cells where cuDNN is not used (aten/src/ATen/native/cuda/RNN.cu), and flattened
weights where possible (``_cudnn_rnn_flatten_weight`` of aten/src/ATen/native/cudnn/RNN.cpp)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from gpudash.memory.predicting.recurrent_layers import RecurrentCell, RecurrentLayers
from gpudash.simulator.device.naming import DEVICE, device_of
from gpudash.simulator.device.storage import KEY, kernel_library
from gpudash.simulator.operations.cudnn_recurrent import CUDNN_DTYPES, places
from gpudash.simulator.operations.operations import Engine

KEPT_BY_GRU = 5
"""What the backward pass of a GRU cell needs, in multiples of the hidden state."""


def install(engine: Engine) -> list[Any]:
    """Register the cells, and let modules flatten their weights."""
    _flatten_weights()
    library = kernel_library("aten")
    cells = Cells(engine)
    kernels: dict[str, Callable[..., Any]] = {
        "_thnn_fused_gru_cell": cells.gru,
        "_thnn_fused_gru_cell_backward": cells.gru_backward,
        "_thnn_fused_lstm_cell": cells.lstm,
        "_thnn_fused_lstm_cell_backward_impl": cells.lstm_backward,
    }
    for name, kernel in kernels.items():
        library.impl(name, engine.counting(name, kernel), KEY)
    return [library]


def _flatten_weights() -> None:
    original: Any = nn.RNNBase.flatten_parameters

    def flatten(self: nn.RNNBase) -> None:
        weights: list[Any] = list(self._flat_weights)
        if len(weights) == len(self._flat_weights_names) and _are_for_cudnn(weights):
            _lay_together(self, weights)
        else:
            original(self)

    nn.RNNBase.flatten_parameters = flatten  # type: ignore[method-assign]


def _are_for_cudnn(weights: list[Any]) -> bool:
    """Whether all weights are on the simulated device with bytes of their own, in one dtype that cuDNN supports."""
    if not torch.backends.cudnn.enabled or not all(isinstance(one, torch.Tensor) for one in weights):
        return False
    if any(device_of(one).type != DEVICE or one.dtype != weights[0].dtype for one in weights):
        return False
    starts = {(one.untyped_storage()._cdata, one.storage_offset()) for one in weights}
    return weights[0].dtype in CUDNN_DTYPES and len(starts) == len(weights)


def _lay_together(network: nn.RNNBase, weights: list[torch.Tensor]) -> None:
    """Move weights into one new tensor, which has space for biases even if there are none."""
    cell = RecurrentCell[network.mode.removeprefix("RNN_")]
    directions = 1
    if network.bidirectional:
        directions = 2
    layers = RecurrentLayers(
        cell=cell,
        inputs=network.input_size,
        hidden=network.hidden_size,
        projection=network.proj_size,
        layers=network.num_layers,
        directions=directions,
        itemsize=weights[0].dtype.itemsize,
    )
    wanted, count = places(layers, network.bias)
    with torch.no_grad():
        # the old weights exist until each is copied, so for a moment all exist twice, as on CUDA
        whole = weights[0].new_zeros(count)
        for one, at in zip(weights, wanted):
            place = whole[at : at + one.numel()].view(one.shape)
            place.copy_(one)
            one.data = place


class Cells:
    """The cells: what is saved for the backward pass is allocated before the states."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def lstm(
        self,
        input_gates: torch.Tensor,
        hidden_gates: torch.Tensor,
        cx: torch.Tensor,
        input_bias: torch.Tensor | None = None,
        hidden_bias: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, ...]:
        """Hidden state, cell state and the activated gates."""
        gates = self._like(input_gates)
        hidden = self._like(cx)
        cell = self._like(cx)
        if self._engine.computes:
            numbers = lstm_cell(*self._inner(input_gates, hidden_gates, cx, input_bias, hidden_bias))
            self._write((hidden, cell, gates), numbers)
        return hidden, cell, gates

    def lstm_backward(
        self,
        grad_hy: torch.Tensor | None,
        grad_cy: torch.Tensor | None,
        cx: torch.Tensor,
        cy: torch.Tensor,
        workspace: torch.Tensor,
        has_bias: bool,
    ) -> tuple[torch.Tensor | None, ...]:
        """Gradients for the gates' products, the cell state, and the bias."""
        if grad_hy is None and grad_cy is None:
            return None, None, None
        for_gates = self._like(workspace)
        for_cell = self._like(cx)
        if self._engine.computes:
            self._write((for_gates, for_cell), lstm_cell_backward(*self._inner(grad_hy, grad_cy, cx, cy, workspace)))
        for_bias = None
        if has_bias:
            for_bias = for_gates.sum(0)
        return for_gates, for_cell, for_bias

    def gru(
        self,
        input_gates: torch.Tensor,
        hidden_gates: torch.Tensor,
        hx: torch.Tensor,
        input_bias: torch.Tensor | None = None,
        hidden_bias: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, ...]:
        """Hidden state, and what the backward pass needs."""
        kept = hx.new_empty((hx.shape[0], KEPT_BY_GRU * hx.shape[1]))
        hidden = self._like(hx)
        if self._engine.computes:
            self._write((hidden, kept), gru_cell(*self._inner(input_gates, hidden_gates, hx, input_bias, hidden_bias)))
        return hidden, kept

    def gru_backward(
        self, grad_hy: torch.Tensor, workspace: torch.Tensor, has_bias: bool
    ) -> tuple[torch.Tensor | None, ...]:
        """Gradients for the products of input and hidden state, the previous state, and both biases."""
        size = workspace.shape[0], 3 * (workspace.shape[1] // KEPT_BY_GRU)
        for_input = workspace.new_empty(size)
        for_hidden = workspace.new_empty(size)
        for_state = self._like(grad_hy)
        if self._engine.computes:
            self._write((for_input, for_hidden, for_state), gru_cell_backward(*self._inner(grad_hy, workspace)))
        if not has_bias:
            return for_input, for_hidden, for_state, None, None
        return for_input, for_hidden, for_state, for_input.sum(0), for_hidden.sum(0)

    def _like(self, tensor: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(tensor, memory_format=torch.contiguous_format)

    def _inner(self, *tensors: torch.Tensor | None) -> list[Any]:
        return [None if tensor is None else self._engine.like(tensor) for tensor in tensors]

    def _write(self, targets: tuple[torch.Tensor, ...], numbers: tuple[torch.Tensor, ...]) -> None:
        for target, values in zip(targets, numbers):
            self._engine.like(target).copy_(values)


def lstm_cell(
    of_input: torch.Tensor,
    of_hidden: torch.Tensor,
    cell: torch.Tensor,
    input_bias: torch.Tensor | None = None,
    hidden_bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Hidden state, cell state and the four activated gates, for products of sizes (batch, 4·hidden)."""
    gates = of_input + of_hidden
    if input_bias is not None and hidden_bias is not None:
        gates = gates + input_bias + hidden_bias
    # torch's order of the gates: input, forget, cell, output
    taken, forgotten, new, shown = gates.chunk(4, 1)
    taken = taken.sigmoid()
    forgotten = forgotten.sigmoid()
    new = new.tanh()
    shown = shown.sigmoid()
    following = forgotten * cell + taken * new
    return shown * following.tanh(), following, torch.cat((taken, forgotten, new, shown), 1)


def lstm_cell_backward(
    grad_hidden: torch.Tensor | None,
    grad_cell: torch.Tensor | None,
    cell: torch.Tensor,
    following: torch.Tensor,
    gates: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients for the gates' products and the cell state."""
    taken, forgotten, new, shown = gates.chunk(4, 1)
    bent = following.tanh()
    hidden = grad_hidden
    if hidden is None:
        hidden = torch.zeros_like(bent)
    inner = hidden * shown * (1 - bent * bent)
    if grad_cell is not None:
        inner = inner + grad_cell
    for_gates = torch.cat(
        (
            inner * new * taken * (1 - taken),
            inner * cell * forgotten * (1 - forgotten),
            inner * taken * (1 - new * new),
            hidden * bent * shown * (1 - shown),
        ),
        1,
    )
    return for_gates, inner * forgotten


def gru_cell(
    of_input: torch.Tensor,
    of_hidden: torch.Tensor,
    hidden: torch.Tensor,
    input_bias: torch.Tensor | None = None,
    hidden_bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Hidden state, and what the backward pass needs: three gates, the previous state, and the new gate's product."""
    if input_bias is not None and hidden_bias is not None:
        of_input = of_input + input_bias
        of_hidden = of_hidden + hidden_bias
    # torch's order of the gates: reset, update, new
    input_reset, input_update, input_new = of_input.chunk(3, 1)
    hidden_reset, hidden_update, hidden_new = of_hidden.chunk(3, 1)
    reset = (input_reset + hidden_reset).sigmoid()
    update = (input_update + hidden_update).sigmoid()
    new = (input_new + reset * hidden_new).tanh()
    return new + update * (hidden - new), torch.cat((reset, update, new, hidden, hidden_new), 1)


def gru_cell_backward(grad: torch.Tensor, kept: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients for the products of input and hidden state, and the previous state."""
    reset, update, new, hidden, hidden_new = kept.chunk(5, 1)
    for_update = grad * (hidden - new) * (1 - update) * update
    for_new = grad * (1 - update) * (1 - new * new)
    for_reset = for_new * hidden_new * (1 - reset) * reset
    for_input = torch.cat((for_reset, for_update, for_new), 1)
    for_hidden = torch.cat((for_reset, for_update, for_new * reset), 1)
    return for_input, for_hidden, grad * update
