"""How much a call of an operation multiplies, as torch's own counter has it."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch


def call_flops(operation: Any, args: Sequence[Any], kwargs: Mapping[str, Any], made: Any) -> int:
    """Floating-point operations of one call, a multiplication with its addition counted as two.

    Those of matrix products, convolutions and attention are counted (``torch.utils.flop_counter``), and of products in
    groups, as a mixture of experts has them, and of cuDNN's recurrent layers; 0 of all others.

    Args:
        operation: one of `torch.ops`, or an overload of it.
        args, kwargs: what it was given.
        made: its result.
    """
    packet = getattr(operation, "_overloadpacket", operation)
    formula = _formulas().get(packet)
    if formula is not None:
        try:
            return int(formula(*args, **kwargs, out_val=made))
        except AssertionError:  # torch 2.11 counts no attention whose heads share keys
            return int(formula(*_with_own_keys(args), **kwargs, out_val=made))
    if packet in _RECURRENT:
        return _RECURRENT[packet] * _in_recurrent_layers(args[0], args[1])
    if packet is getattr(torch.ops.aten, "_grouped_mm", None):
        return _in_groups(args[0], args[1])
    return 0


@functools.cache
def _formulas() -> Mapping[Any, Callable[..., int]]:
    """torch's, by operation. Imported late: that takes a while, and few ask."""
    # It warns that Triton is missing where torch.version.cuda is set, as a simulated card that answers for CUDA has it.
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
"""Products with each matrix."""


def _in_recurrent_layers(values: torch.Tensor, weights: Sequence[torch.Tensor]) -> int:
    """Of a forward pass: every step meets every matrix."""
    rows = values.numel() // values.shape[-1]
    return 2 * rows * sum(weight.numel() for weight in weights if weight.dim() > 1)


def _with_own_keys(args: Sequence[Any]) -> list[Any]:
    """The arguments of attention with keys and values for each head, which are multiplied as often as shared ones."""
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
    """Of a product whose groups share its rows, its columns or what is summed over, or have a matrix each."""
    whole = 2 * first.numel() * second.shape[-1]
    if (first.dim(), second.dim()) == (3, 2):
        return whole // first.shape[0]
    return whole
