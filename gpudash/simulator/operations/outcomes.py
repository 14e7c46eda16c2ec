"""What a call of an operation comes to: what it makes of which sizes, since in a dry run the same ones come again in
every layer and in every step; how much it multiplies, as torch's own counter has it; and whether cuBLASLt does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from gpudash.simulator.device.naming import DEVICE

MOST = 50_000
"""Outcomes that are kept; there are some hundreds in a model, and some thousands in a search for the largest batch."""

PLAIN = frozenset((type(None), str, torch.dtype, torch.layout, torch.memory_format, torch.device))

NUMBERS = frozenset((bool, int, float, complex))
"""Told apart by their type, since equal ones may give results of different types."""

_BY_LT = frozenset((torch.float64, torch.float32, torch.float16, torch.bfloat16))


class Fresh(NamedTuple):
    """A tensor that an operation made: sizes and strides in elements."""

    card: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    stored_bytes: int


class Given(NamedTuple):
    """A tensor that an operation was given and returned: the argument's position or name."""

    place: Any


class UnknownOutcomeError(Exception):
    """An argument or a result of which more matters than can be compared."""


Maker = Callable[[Fresh], torch.Tensor]


class Outcomes:
    """Remembers what calls returned whose arguments had the same sizes."""

    def __init__(self) -> None:
        self._known: dict[Any, Any] = {}

    def call(
        self,
        work: Callable[[], Any],
        make: Maker,
        operation: Any,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        where: Any,
    ) -> Any:
        """The result of ``operation``: of ``work`` at the first time, and from then on its like, made by ``make``.

        Args:
            where: whatever else the result's sizes depend on.
        """
        key = _key(operation, args, kwargs, where)
        if key is None:
            return work()
        found = self._known.get(key)
        if found is not None:
            return _again(found[0], make, args, kwargs)
        result = work()
        # the key is worked out once more, since the work may have changed what it was made of
        if _key(operation, args, kwargs, where) == key:  # else it gave an argument another size
            try:
                kept = _kept(result, args, kwargs)
            except UnknownOutcomeError:
                return result
            if len(self._known) >= MOST:
                self._known.clear()
            self._known[key] = (kept,)
        return result


def _key(operation: Any, args: Sequence[Any], kwargs: dict[str, Any], where: Any) -> Any | None:
    try:
        given = tuple(map(_described, args))
        named: tuple[Any, ...] = ()
        if kwargs:
            named = tuple((name, _described(value)) for name, value in kwargs.items())
    except UnknownOutcomeError:
        return None
    return operation, where, given, named


def _described(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        # numbers of the CPU may decide about sizes; a tensor without dimensions stands for a plain number
        if value.device.type != DEVICE and value.dim():
            raise UnknownOutcomeError
        if value.dtype.is_complex:
            return value.shape, value.stride(), value.dtype, value.device, value.is_conj(), value.is_neg()
        return value.shape, value.stride(), value.dtype, value.device
    kind = type(value)
    if kind in NUMBERS:
        return kind, value
    if kind in PLAIN:
        return value
    if kind is list or kind is tuple:
        return tuple(map(_described, value))
    raise UnknownOutcomeError


def _kept(result: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """``result`` with every tensor replaced by what tells how to come by its like."""
    if isinstance(result, torch.Tensor):
        # by identity: the next call has to return its own argument there
        for place, value in [*enumerate(args), *kwargs.items()]:
            if value is result:
                return Given(place)
        if result.device.type != DEVICE or result.is_conj() or result.is_neg():
            raise UnknownOutcomeError
        return Fresh(
            card=result.device.index,
            size=tuple(result.shape),
            stride=result.stride(),
            offset=int(result.storage_offset()),
            dtype=result.dtype,
            stored_bytes=result.untyped_storage().nbytes(),
        )
    if type(result) in (list, tuple):
        inner: list[Any] = [_kept(item, args, kwargs) for item in result]
        if type(result) is list:
            return inner
        return tuple(inner)
    if type(result) in NUMBERS or type(result) in PLAIN:
        return result
    raise UnknownOutcomeError


def _again(kept: Any, make: Maker, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    kind = type(kept)
    if kind is Fresh:
        return make(kept)
    if kind is Given:
        if isinstance(kept.place, str):
            return kwargs[kept.place]
        return args[kept.place]
    if kind is list:
        return [_again(item, make, args, kwargs) for item in kept]
    if kind is tuple:
        return tuple(_again(item, make, args, kwargs) for item in kept)
    return kept


def call_flops(operation: Any, args: Sequence[Any], kwargs: Mapping[str, Any], made: Any) -> int:
    """Floating-point operations of one call, a multiplication with its addition counted as two.

    Those of matrix products, convolutions and attention are counted (``torch.utils.flop_counter``), and of products in
    groups, as a mixture of experts has them, and of cuDNN's recurrent layers; 0 of all others.

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
    if packet in _RECURRENT:
        return _RECURRENT[packet] * _in_recurrent_layers(args[0], args[1])
    if packet is getattr(torch.ops.aten, "_grouped_mm", None):
        return _in_groups(args[0], args[1])
    return 0


_RECURRENT = {torch.ops.aten._cudnn_rnn: 1, torch.ops.aten._cudnn_rnn_backward: 2}
"""Products with each matrix."""


def _in_recurrent_layers(values: torch.Tensor, weights: Sequence[torch.Tensor]) -> int:
    """Of a forward pass: every step meets every matrix."""
    rows = values.numel() // values.shape[-1]
    return 2 * rows * sum(weight.numel() for weight in weights if weight.dim() > 1)


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
