"""Operations that CUDA has and the CPU lacks, written in ones that the CPU has; they also serve for sizes alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch


def of(operation: Any) -> Callable[..., Any]:
    """What computes ``operation``: itself, unless it has a substitute."""
    compute: Callable[..., Any] = SUBSTITUTES.get(operation._schema.name.replace("aten::", ""), operation._op)
    return compute


def rms_norm_backward(
    grad: torch.Tensor,
    values: torch.Tensor,
    normalized_shape: Sequence[int],
    rstd: torch.Tensor,
    weight: torch.Tensor | None,
    output_mask: list[bool],
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Gradients of ``y = x · rstd · weight`` with ``rstd = (mean(x²) + ε)^-1/2`` over the last dimensions."""
    axes = list(range(values.dim() - len(normalized_shape), values.dim()))
    outer = list(range(values.dim() - len(normalized_shape)))
    normal = values.to(rstd.dtype) * rstd
    inner = grad.to(rstd.dtype)
    for_weight = None
    if output_mask[1] and weight is not None:
        product = inner * normal
        for_weight = (product.sum(outer) if outer else product).to(weight.dtype)
    if not output_mask[0]:
        return None, for_weight
    if weight is not None:
        inner = inner * weight.to(rstd.dtype)
    for_values = rstd * (inner - normal * (inner * normal).mean(axes, keepdim=True))
    return for_values.to(values.dtype), for_weight


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
    taken, forgotten, new, shown = gates.chunk(4, 1)
    taken, forgotten, new, shown = taken.sigmoid(), forgotten.sigmoid(), new.tanh(), shown.sigmoid()
    following = forgotten * cell + taken * new
    return shown * following.tanh(), following, torch.cat((taken, forgotten, new, shown), 1)


def lstm_cell_backward(
    grad_hidden: torch.Tensor | None,
    grad_cell: torch.Tensor | None,
    cell: torch.Tensor,
    following: torch.Tensor,
    gates: torch.Tensor,
    has_bias: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Gradients for the gates' products, the cell state, and the bias."""
    taken, forgotten, new, shown = gates.chunk(4, 1)
    bent = following.tanh()
    hidden = torch.zeros_like(bent) if grad_hidden is None else grad_hidden
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
    return for_gates, inner * forgotten, for_gates.sum(0) if has_bias else None


def gru_cell(
    of_input: torch.Tensor,
    of_hidden: torch.Tensor,
    hidden: torch.Tensor,
    input_bias: torch.Tensor | None = None,
    hidden_bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Hidden state, and what the backward pass needs: three gates, the state before, and the new gate's product."""
    if input_bias is not None and hidden_bias is not None:
        of_input, of_hidden = of_input + input_bias, of_hidden + hidden_bias
    input_reset, input_update, input_new = of_input.chunk(3, 1)
    hidden_reset, hidden_update, hidden_new = of_hidden.chunk(3, 1)
    reset, update = (input_reset + hidden_reset).sigmoid(), (input_update + hidden_update).sigmoid()
    new = (input_new + reset * hidden_new).tanh()
    return new + update * (hidden - new), torch.cat((reset, update, new, hidden, hidden_new), 1)


def gru_cell_backward(grad: torch.Tensor, kept: torch.Tensor, has_bias: bool) -> tuple[torch.Tensor | None, ...]:
    """Gradients for the input's and the hidden state's products, the state before, and both biases."""
    reset, update, new, hidden, hidden_new = kept.chunk(5, 1)
    for_update = grad * (hidden - new) * (1 - update) * update
    for_new = grad * (1 - update) * (1 - new * new)
    for_reset = for_new * hidden_new * (1 - reset) * reset
    for_input = torch.cat((for_reset, for_update, for_new), 1)
    for_hidden = torch.cat((for_reset, for_update, for_new * reset), 1)
    biases = (for_input.sum(0), for_hidden.sum(0)) if has_bias else (None, None)
    return (for_input, for_hidden, grad * update, *biases)


SUBSTITUTES: dict[str, Callable[..., Any]] = {
    "_fused_rms_norm_backward": rms_norm_backward,
    "_thnn_fused_gru_cell": gru_cell,
    "_thnn_fused_gru_cell_backward": gru_cell_backward,
    "_thnn_fused_lstm_cell": lstm_cell,
    "_thnn_fused_lstm_cell_backward_impl": lstm_cell_backward,
}
