"""The floating-point operations of a call, as torch's own counter counts them."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch


def call_flops(operation: Any, args: Sequence[Any], kwargs: Mapping[str, Any], made: Any) -> int:
    """Floating-point operations of one call, a multiplication with its addition counted as two.

    Counts matrix products, convolutions and attention (``torch.utils.flop_counter``), and also grouped products, as in
    a mixture of experts, and cuDNN's recurrent layers; 0 for all others.
    Args:
        operation: one of `torch.ops`, or an overload of it.
        args, kwargs: its arguments.
        made: its result.
    """
    packet = getattr(operation, "_overloadpacket", operation)
    formula = _formulas().get(packet)
    if formula is not None:
        try:
            return int(formula(*args, **kwargs, out_val=made))
        except AssertionError:  # torch 2.11 cannot count attention whose heads share keys
            return int(formula(*_with_own_keys(args), **kwargs, out_val=made))
    if packet in _RECURRENT:
        return _RECURRENT[packet] * _in_recurrent_layers(args[0], args[1])
    if packet is getattr(torch.ops.aten, "_grouped_mm", None):
        return _in_groups(args[0], args[1])
    return 0


@functools.cache
def _formulas() -> Mapping[Any, Callable[..., int]]:
    """torch's formulas by operation. Imported late, because that takes a while and is rarely needed."""
    # The module warns about a missing Triton if torch.version.cuda is set, as it is when simulating CUDA.
    logger = logging.getLogger("torch.utils.flop_counter")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        from torch.utils.flop_counter import flop_registry
    finally:
        logger.setLevel(level)
    registry: Mapping[Any, Callable[..., int]] = flop_registry
    return registry


_RECURRENT = {torch.ops.aten._cudnn_rnn: 1, torch.ops.aten._cudnn_rnn_backward: 2}
"""How many products there are with each matrix."""


def _in_recurrent_layers(values: torch.Tensor, weights: Sequence[torch.Tensor]) -> int:
    """Operations in a forward pass, where every step uses every matrix."""
    rows = values.numel() // values.shape[-1]
    return 2 * rows * sum(weight.numel() for weight in weights if weight.dim() > 1)


def _with_own_keys(args: Sequence[Any]) -> list[Any]:
    """The arguments of attention with keys and values repeated for each head, which takes as many operations."""
    # (batch, heads, length, width); queries have the most heads
    of_heads = [one for one in args if isinstance(one, torch.Tensor) and one.dim() == 4]
    heads = max((one.shape[1] for one in of_heads), default=1)
    given = []
    for one in args:
        if isinstance(one, torch.Tensor) and one.dim() == 4:
            one = torch.empty((one.shape[0], heads, *one.shape[2:]), device="meta")
        given.append(one)
    return given


def _in_groups(first: torch.Tensor, second: torch.Tensor) -> int:
    """Operations of a product in groups, which split its rows, its columns or the sum, or have a matrix each."""
    whole = 2 * first.numel() * second.shape[-1]
    if (first.dim(), second.dim()) == (3, 2):
        return whole // first.shape[0]
    return whole
