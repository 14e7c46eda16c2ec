"""How much operations multiply, as torch's own counter has it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch


def call_flops(operation: Any, args: Sequence[Any], kwargs: Mapping[str, Any], made: Any) -> int:
    """Floating-point operations of one call, a multiplication with its addition counted as two.

    Those of matrix products, convolutions and attention are counted (``torch.utils.flop_counter``), and of products in
    groups, as a mixture of experts has them; 0 of all others.

    Args:
        operation: one of `torch.ops`, or an overload of it.
        args, kwargs: what it was given.
        made: its result.
    """
    from torch.utils.flop_counter import flop_registry  # takes a while to import, and few ask

    packet = getattr(operation, "_overloadpacket", operation)
    formula = flop_registry.get(packet)
    if formula is not None:
        try:
            return int(formula(*args, **kwargs, out_val=made))
        except AssertionError:  # torch 2.11 counts no attention whose heads share keys
            return int(formula(*_with_own_keys(args), **kwargs, out_val=made))
    return _in_groups(args[0], args[1]) if packet is getattr(torch.ops.aten, "_grouped_mm", None) else 0


def _with_own_keys(args: Sequence[Any]) -> list[Any]:
    """The arguments of attention with keys and values for each head, which are multiplied as often as shared ones."""
    shapes = [one.shape if isinstance(one, torch.Tensor) and one.dim() == 4 else None for one in args]
    heads = max((shape[1] for shape in shapes if shape is not None), default=1)
    return [
        one if shape is None else torch.empty((shape[0], heads, *shape[2:]), device="meta")
        for one, shape in zip(args, shapes)
    ]


def _in_groups(first: torch.Tensor, second: torch.Tensor) -> int:
    """Of a product whose groups share its rows, its columns or what is summed over, or have a matrix each."""
    whole = 2 * first.numel() * second.shape[-1]
    return whole // first.shape[0] if (first.dim(), second.dim()) == (3, 2) else whole
