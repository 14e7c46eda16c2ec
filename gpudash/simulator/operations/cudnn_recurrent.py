"""Recurrent layers with cuDNN, as on CUDA: the requests to the allocator follow aten/src/ATen/native/cudnn/RNN.cpp.

The CPU computes the numbers. A backward pass repeats its forward pass, with the same dropout.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from gpudash.memory.predicting.recurrent_layers import (
    RecurrentCell,
    RecurrentLayers,
    Sequences,
    algorithm,
    dropout_state_bytes,
    kept_bytes,
    working_bytes,
)
from gpudash.simulator.device.naming import DEVICE
from gpudash.simulator.device.storage import KEY, kernel_library
from gpudash.simulator.operations import autocast
from gpudash.simulator.operations.attention import recalled, remembered
from gpudash.simulator.operations.operations import Engine

CUDNN_DTYPES = (torch.float16, torch.float32, torch.float64)
"""Dtypes whose weights torch flattens for cuDNN (``CUDNN_TENSOR_DTYPES`` of torch/backends/cudnn)."""

SCATTERED = (
    "RNN module weights are not part of single contiguous chunk of memory. This means they need to be compacted at "
    "every call, possibly greatly increasing memory usage. To compact weights again call flatten_parameters()."
)
"""torch's message."""

ONLY_IN_TRAINING = "cudnn RNN backward can only be called in training mode"
"""torch's message."""

IN_C = torch._C.DispatchKey.CompositeImplicitAutograd
"""torch's C++ implementation; ``decompose`` would use the Python one."""

PACKETS: dict[RecurrentCell, Any] = {
    RecurrentCell.LSTM: torch.ops.aten.lstm,
    RecurrentCell.GRU: torch.ops.aten.gru,
    RecurrentCell.TANH: torch.ops.aten.rnn_tanh,
    RecurrentCell.RELU: torch.ops.aten.rnn_relu,
}

_network: Callable[..., tuple[torch.Tensor, ...]] = torch.ops.aten._cudnn_rnn


def install(engine: Engine) -> list[Any]:
    """Register the layers, and route torch's recurrent networks to them."""
    library = kernel_library("aten")
    kernels = Networks(engine)
    library.impl("_cudnn_rnn", kernels.forward, KEY)
    library.impl("_cudnn_rnn_backward", kernels.backward, KEY)
    library.impl("_cudnn_rnn", _in_half_precision(engine), autocast.KEY)
    for cell, packet in PACKETS.items():
        for overload in ("input", "data"):
            lead = _leading(engine, cell, getattr(packet, overload))
            for key in (KEY, f"Autograd{KEY}"):
                library.impl(f"{packet.__name__}.{overload}", lead, key)
    return [library]


def layers_of(
    cell: RecurrentCell,
    inputs: int,
    hidden: int,
    projection: int,
    layers: int,
    bidirectional: bool,
    dtype: torch.dtype,
    drops: bool,
) -> RecurrentLayers:
    """The network described by the arguments that torch passes to cuDNN."""
    directions = 1
    if bidirectional:
        directions = 2
    is_bfloat16 = dtype == torch.bfloat16
    return RecurrentLayers(cell, inputs, hidden, projection, layers, directions, dtype.itemsize, drops, is_bfloat16)


def places(layers: RecurrentLayers, has_biases: bool) -> tuple[list[int], int]:
    """Where cuDNN expects each weight, in torch's order, and the total count: all matrices, then all biases, for which
    there is space even if there are none."""
    found: list[int] = []
    gates = layers.cell.gates * layers.hidden
    # biases follow all matrices, two for each layer and direction
    at = 0
    bias_at = layers.matrices()
    for place in range(layers.layers * layers.directions):
        if place < layers.directions:
            below = layers.inputs
        else:
            below = layers.outputs * layers.directions
        found += [at, at + gates * below]
        at += gates * (below + layers.outputs)
        if has_biases:
            found += [bias_at, bias_at + gates]
        bias_at += 2 * gates
        if layers.projection:
            found.append(at)
            at += layers.projection * layers.hidden
    return found, bias_at


def _leading(engine: Engine, cell: RecurrentCell, operation: Any) -> Callable[..., Any]:
    """A kernel for ``operation`` that uses cuDNN where torch does on CUDA (``lstm`` of
    aten/src/ATen/native/RNN.cpp)."""
    is_packed = operation._overloadname == "data"

    def run(values: torch.Tensor, *args: Any) -> Any:
        if not _is_accepted(engine, values):
            return operation._op_dk(IN_C, values, *args)
        lengths: Sequence[int] = ()
        rest = args
        if is_packed:
            lengths = args[0].tolist()
            rest = args[1:]
        states, weights, has_biases, count, dropout, train, bidirectional, *last = rest
        hx = states
        cx = None
        if cell is RecurrentCell.LSTM:
            hx, cx = states
        hidden = hx.shape[2]
        projection = 0
        # with a projection, the resulting state is narrower than the cell's
        if cx is not None and cx.shape[2] != hx.shape[2]:
            hidden = cx.shape[2]
            projection = hx.shape[2]
        layers = layers_of(cell, values.shape[-1], hidden, projection, count, bidirectional, values.dtype, False)
        buffer = _laid_together(engine, layers, weights, has_biases)
        state = _dropout_state(engine, values, train and dropout > 0)
        # weights per layer and direction: two matrices, two biases, a projection
        each = 2
        if has_biases:
            each += 2
        if projection:
            each += 1
        batch_first = bool(last and last[0])
        settings = int(cell), hidden, projection, count, batch_first, dropout, train, bidirectional
        made = _network(values, weights, each, buffer, hx, cx, *settings, lengths, state)
        if cell is RecurrentCell.LSTM:
            return made[:3]
        return made[:2]

    return run


def _is_accepted(engine: Engine, values: torch.Tensor) -> bool:
    """``cudnn_is_acceptable``; bfloat16 since capability 8.0, as observed with torch 2.11 and 2.13."""
    if not torch.backends.cudnn.enabled or values.device.type != DEVICE or not values.numel():
        return False
    capability = engine.card(engine.index_of(values.device)).architecture.capability
    return values.dtype in CUDNN_DTYPES or (values.dtype == torch.bfloat16 and capability >= (8, 0))


def _laid_together(
    engine: Engine, layers: RecurrentLayers, weights: Sequence[torch.Tensor], has_biases: bool
) -> torch.Tensor | None:
    """The single buffer that holds all weights in cuDNN's layout; ``None`` if there is none."""
    wanted, count = places(layers, has_biases)
    storage = weights[0].untyped_storage()
    if storage.nbytes() < count * weights[0].dtype.itemsize or len(wanted) != len(weights):
        return None
    for weight, place in zip(weights, wanted):
        if weight.storage_offset() != place or weight.untyped_storage()._cdata != storage._cdata:
            return None
    if not weights[-1].is_contiguous():
        return None
    return engine.storages.tensor(storage, (count,), (1,), 0, weights[0].dtype)


def _dropout_state(engine: Engine, near: torch.Tensor, is_needed: bool) -> torch.Tensor | None:
    index = engine.index_of(near.device)
    if is_needed and index not in engine.dropout_states:
        # as on CUDA, the seed lives only until the state is created, one state after the other; the state stays
        seed = engine.empty((), torch.int64, index, None)
        size = dropout_state_bytes(engine.card(index).architecture)
        del seed
        engine.dropout_states[index] = engine.empty((size,), torch.uint8, index, None)
    return engine.dropout_states.get(index)


def _in_half_precision(engine: Engine) -> Callable[..., Any]:
    """What autocast does, for any of its dtypes: everything in float16, with weights copied at each call
    (``_cudnn_rnn_cast_reflatten`` of aten/src/ATen/cudnn/AutocastRNN.cpp)."""
    keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, autocast.KEY))

    def run(values: Any, weights: Any, each: int, buffer: Any, hx: Any, cx: Any, mode: int, *rest: Any) -> Any:
        half = torch.float16
        cast = autocast.casts.cast
        with torch._C._ExcludeDispatchKeyGuard(keys):
            if weights[0].dtype == torch.float32:
                hidden, projection, count, _batch_first, _dropout, _train, bidirectional = rest[:7]
                layers = layers_of(
                    RecurrentCell(mode), values.shape[-1], hidden, projection, count, bidirectional, half, False
                )
                wanted, numbers = places(layers, each - bool(projection) == 4)
                buffer = torch.zeros(numbers, dtype=half, device=values.device)
                weights = _copied_into(engine, buffer, wanted, weights)
            inner = [None if state is None else cast(state, half) for state in (hx, cx)]
            return _network(cast(values, half), weights, each, buffer, *inner, mode, *rest)

    return run


def _copied_into(
    engine: Engine, buffer: torch.Tensor, wanted: Sequence[int], weights: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    made = []
    for weight, place in zip(weights, wanted):
        one = _part(engine, buffer, place, weight)
        made.append(one.copy_(weight))
    return made


def _part(engine: Engine, buffer: torch.Tensor, place: int, like: torch.Tensor) -> torch.Tensor:
    stride = torch.empty(like.shape, device="meta").stride()
    return engine.storages.tensor(buffer.untyped_storage(), like.shape, stride, place, buffer.dtype)


class Networks:
    """The kernels."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def forward(
        self,
        values: torch.Tensor,
        weights: Sequence[torch.Tensor],
        each: int,
        buffer: torch.Tensor | None,
        hx: torch.Tensor,
        cx: torch.Tensor | None,
        *how: Any,
    ) -> tuple[torch.Tensor, ...]:
        """Result, last hidden and cell state, the reserve for the backward pass, and the weights in one buffer."""
        call = _Call(self._engine, values, each, how[:-1])
        if any(one.dtype != values.dtype for one in (*weights, hx, cx) if one is not None):
            raise RuntimeError("Input, hidden and parameter tensors are not of the same dtype")
        if buffer is None:
            warnings.warn(SCATTERED, stacklevel=2)
        _check_contiguous(hx, cx)
        turned = call.turned(values).contiguous()
        layers = call.layers
        result = self._take(call.result_size, values)
        hy = self._take(call.state_size(layers.outputs), values)
        cell_size: tuple[int, ...] = (0,)
        if cx is not None:
            cell_size = call.state_size(layers.hidden)
        cy = self._take(cell_size, values)
        if buffer is None:
            buffer = self._take((places(layers, call.has_biases)[1],), values)
        if cx is not None and cx.shape != cy.shape:
            raise RuntimeError(f"Expected cell size {list(cy.shape)}, got {list(cx.shape)}")
        workspace = self._bytes(call.working_bytes(forward=True), values)
        kept = 0
        if call.train:
            kept = kept_bytes(layers, call.given)
        reserve = self._bytes(kept, values)
        if self._engine.computes:
            if layers.dropout:
                number = remembered(torch.default_generator.get_state())
                # the reserve does not hold cuDNN's numbers here, so it has space for what the backward pass needs
                self._engine.like(reserve)[:8].view(torch.int64).fill_(number)
            like = self._engine.like
            states = [like(one) for one in (hx, cx) if one is not None]
            with torch.no_grad():
                numbers = call.computed(like(values), states, list(map(like, weights)))
            for target, computed in zip((call.unturned(result), hy, cy), numbers):
                like(target).copy_(computed)
        # in this order, which is that of the frees
        del workspace, turned
        made = call.unturned(result), hy, cy, reserve, buffer
        self._engine.count(torch.ops.aten._cudnn_rnn.default, (values, weights), {}, made)
        return made

    def backward(
        self,
        values: torch.Tensor,
        weights: Sequence[torch.Tensor],
        each: int,
        buffer: torch.Tensor,
        hx: torch.Tensor,
        cx: torch.Tensor | None,
        result: torch.Tensor,
        grad_result: torch.Tensor | None,
        grad_hy: torch.Tensor | None,
        grad_cy: torch.Tensor | None,
        *how: Any,
    ) -> tuple[Any, ...]:
        """Gradients for the values, both states, and the weights.

        Raises:
            RuntimeError: as in torch, if the forward pass was not in training mode.
        """
        *settings, _dropout_state, reserve, wanted = how
        if grad_result is None and grad_hy is None and grad_cy is None:
            return None, None, None, []
        call = _Call(self._engine, values, each, settings)
        given = [grad_result, grad_hy, grad_cy]
        # torch creates zeros for missing gradients, in this order
        of_result = self._zeros(result) if grad_result is None else grad_result
        of_hy = self._zeros(hx) if grad_hy is None else grad_hy
        of_cy = grad_cy
        if cx is None:
            of_cy = None
        elif grad_cy is None:
            of_cy = self._zeros(cx)
        for_values, for_hx, for_cx = self._of_data(call, values, hx, cx, of_result, of_hy, of_cy)
        for_weights = []
        if wanted[3]:
            for_weights = self._of_weights(call, values, weights, buffer, hx, cx)
        if self._engine.computes:
            like = self._engine.like
            inner = [None if one is None else like(one) for one in given]
            states = [like(one) for one in (hx, cx) if one is not None]
            numbers = call.gradients(like(values), states, list(map(like, weights)), inner, like(reserve))
            targets = [call.unturned(for_values), for_hx]
            if for_cx is not None:
                targets.append(for_cx)
            targets += for_weights
            for target, computed in zip(targets, numbers):
                if computed is not None:
                    like(target).copy_(computed)
                else:
                    like(target).zero_()
        del of_cy, of_hy, of_result
        made = call.unturned(for_values), for_hx, for_cx, for_weights
        self._engine.count(torch.ops.aten._cudnn_rnn_backward.default, (values, weights), {}, made)
        return made

    def _of_data(
        self,
        call: _Call,
        values: torch.Tensor,
        hx: torch.Tensor,
        cx: torch.Tensor | None,
        of_result: torch.Tensor,
        of_hy: torch.Tensor,
        of_cy: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Gradients of the values and the states, after the requests of ``_cudnn_rnn_backward_input``."""
        _check_contiguous(hx, cx)
        turned = call.turned(values).contiguous()
        grad = call.turned(of_result).contiguous()
        for_values = self._take(call.turned(values).shape, values)
        of_states = of_hy.contiguous(), None if of_cy is None else of_cy.contiguous()
        for_hx = self._take(hx.shape, hx)
        for_cx = None
        if cx is not None:
            for_cx = self._take(cx.shape, cx)
        if not call.train:
            raise RuntimeError(ONLY_IN_TRAINING)
        workspace = self._bytes(call.working_bytes(forward=False), values)
        del workspace, of_states, grad, turned
        return for_values, for_hx, for_cx

    def _of_weights(
        self,
        call: _Call,
        values: torch.Tensor,
        weights: Sequence[torch.Tensor],
        buffer: torch.Tensor,
        hx: torch.Tensor,
        cx: torch.Tensor | None,
    ) -> list[torch.Tensor]:
        """The weights' gradients, in one buffer unless there are no biases (``_cudnn_rnn_backward_weight``)."""
        turned = call.turned(values).contiguous()
        whole = self._take(buffer.shape, buffer)
        workspace = self._bytes(call.working_bytes(forward=False), values)
        if call.has_biases:
            made = [_part(self._engine, whole, place, one) for one, place in zip(weights, places(call.layers, True)[0])]
        else:
            made = [self._take(one.shape, one) for one in weights]
        del workspace, turned
        return made

    def _take(self, size: Sequence[int], near: torch.Tensor) -> torch.Tensor:
        return self._engine.empty(size, near.dtype, near.device.index, None)

    def _bytes(self, count: int, near: torch.Tensor) -> torch.Tensor:
        return self._engine.empty((count,), torch.uint8, near.device.index, None)

    def _zeros(self, near: torch.Tensor) -> torch.Tensor:
        """A buffer of the same size, which is not read."""
        return self._take(near.shape, near)


class _Call:
    """Settings ``how`` of one call: cell, hidden, projection, layers, batch first, dropout, training, directions and
    the batch size at each step of packed sequences."""

    def __init__(self, engine: Engine, values: torch.Tensor, each: int, how: Sequence[Any]) -> None:
        mode, hidden, projection, count, batch_first, self._dropout, self.train, self._both, lengths = how
        self._lengths = list(lengths)
        self._batch_first = bool(batch_first)
        self.has_biases = each - bool(projection) == 4
        drops = bool(self.train and self._dropout)
        cell, inputs = RecurrentCell(mode), values.shape[-1]
        self.layers = layers_of(cell, inputs, hidden, projection, count, self._both, values.dtype, drops)
        self._architecture = engine.card(engine.index_of(values.device)).architecture
        if self._lengths:
            self.given = Sequences(len(self._lengths), self._lengths[0], values.shape[0], packed=True)
        else:
            steps, batch = self.turned(values).shape[:2]
            self.given = Sequences(steps, batch, steps * batch)

    def turned(self, values: torch.Tensor) -> torch.Tensor:
        """``values`` with the steps first."""
        if self._batch_first and not self._lengths:
            return values.transpose(0, 1)
        return values

    unturned = turned

    @property
    def result_size(self) -> tuple[int, ...]:
        """Size of the result with the steps first."""
        width = self.layers.outputs * self.layers.directions
        if self._lengths:
            return self.given.rows, width
        return self.given.steps, self.given.batch, width

    def state_size(self, width: int) -> tuple[int, ...]:
        """Size of a state over all layers."""
        return self.layers.layers * self.layers.directions, self.given.batch, width

    def working_bytes(self, *, forward: bool) -> int:
        """Size of the workspace."""
        chosen = algorithm(self.layers, self.given, self._architecture, forward=forward)
        return working_bytes(self.layers, self.given, chosen, self._architecture.capability)

    def computed(
        self, values: torch.Tensor, states: list[torch.Tensor], weights: list[torch.Tensor]
    ) -> tuple[torch.Tensor, ...]:
        """Compute the results from CPU tensors."""
        packet = PACKETS[self.layers.cell]
        given: Any = states
        if self.layers.cell is not RecurrentCell.LSTM:
            given = states[0]
        settings = self.has_biases, self.layers.layers, self._dropout, self.train, self._both
        if self._lengths:
            made = packet.data(values, torch.tensor(self._lengths), given, weights, *settings)
        else:
            made = packet.input(values, given, weights, *settings, self._batch_first)
        return tuple(made)

    def gradients(
        self,
        values: torch.Tensor,
        states: list[torch.Tensor],
        weights: list[torch.Tensor],
        given: list[torch.Tensor | None],
        reserve: torch.Tensor,
    ) -> tuple[torch.Tensor | None, ...]:
        """Gradients of the values, the states and the weights, computed on the CPU from ``given``, one per result."""
        with _autograd(), torch.enable_grad(), self._same_dropout(reserve):
            leaves = [one.detach().requires_grad_() for one in (values, *states, *weights)]
            made = self.computed(leaves[0], leaves[1 : 1 + len(states)], leaves[1 + len(states) :])
            results: list[torch.Tensor] = []
            grads: list[torch.Tensor] = []
            for one, grad in zip(made, given):
                if grad is not None:
                    results.append(one)
                    grads.append(grad)
            return torch.autograd.grad(results, leaves, grads, allow_unused=True)

    @contextmanager
    def _same_dropout(self, reserve: torch.Tensor) -> Iterator[None]:
        if not self.layers.dropout:
            yield
            return
        now = torch.default_generator.get_state()
        number = int(reserve[:8].view(torch.int64).item())
        torch.default_generator.set_state(recalled(number, "of these recurrent layers"))
        try:
            yield
        finally:
            torch.default_generator.set_state(now)


@contextmanager
def _autograd() -> Iterator[None]:
    """Let autograd record the CPU's operations, which it does not do inside a kernel."""
    # torch excludes autograd's dispatch keys while a kernel runs, and this is one
    left_out = torch._C._dispatch_tls_local_exclude_set()
    for name in ("AutogradCPU", "AutogradOther", "ADInplaceOrView"):
        left_out = left_out.remove(getattr(torch._C.DispatchKey, name))
    with torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), left_out):
        yield


def _check_contiguous(hx: torch.Tensor, cx: torch.Tensor | None) -> None:
    for name, state in (("hx", hx), ("cx", cx)):
        if state is not None and not state.is_contiguous():
            raise RuntimeError(f"rnn: {name} is not contiguous")
