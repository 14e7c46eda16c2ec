"""Matrix products: how much they multiply, as torch's own counter has it, and which of them cuBLASLt does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

_BY_LT = frozenset((torch.float64, torch.float32, torch.float16, torch.bfloat16))


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


def adds_bias_by_lt(given: Mapping[str, Any], made: torch.Tensor, *, activates: bool) -> bool:
    """Whether torch gives an ``addmm`` to cuBLASLt, which adds a bias to every row on its way
    (isInputCompliesAddmmCudaLt, ATen/native/cuda/Blas.cpp; torch 2.11 was asked).

    Args:
        given: its arguments by name.
        made: its result.
        activates: whether it is ``_addmm_activation``, for which the bias may be a matrix.
    """
    bias: torch.Tensor = given["self"]
    factors: torch.Tensor = given["mat2"]
    if given.get("beta", 1) != 1 or not made.numel() or not made.is_contiguous():
        return False
    if factors.dtype not in _BY_LT or min(factors.shape) < 2:
        return False
    if bias.dim() == 2 and activates:
        return True
    is_row = bias.dim() > 0 and bias.shape[-1] == bias.numel() == factors.shape[1]
    return is_row and bias.is_contiguous()


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
