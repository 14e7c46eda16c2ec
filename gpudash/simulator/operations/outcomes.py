"""What a call of an operation comes to: what it makes of which sizes, since in a dry run the same ones come again in
every layer and in every step; and whether cuBLASLt multiplies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from gpudash.simulator.device.naming import DEVICE
from gpudash.simulator.step_work.work_log import LoggedCall, WorkLog

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
    """Remembers what calls returned whose arguments had the same sizes.

    Attributes:
        log: where calls are written down; ``None`` where nobody asks for them.
    """

    def __init__(self) -> None:
        self._known: dict[Any, Any] = {}
        self.log: WorkLog | None = None

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
            result = work()
            self._note(operation, args, kwargs, result)
            return result
        found = self._known.get(key)
        if found is not None:
            kept, call = found
            if self.log is not None:
                self.log.note(call)
            return _again(kept, make, args, kwargs)
        result = work()
        # the key is worked out once more, since the work may have changed what it was made of
        if _key(operation, args, kwargs, where) == key:  # else it gave an argument another size
            try:
                kept = _kept(result, args, kwargs)
            except UnknownOutcomeError:
                self._note(operation, args, kwargs, result)
                return result
            if len(self._known) >= MOST:
                self._known.clear()
            call = LoggedCall.of(operation, args, kwargs, result)
            self._known[key] = kept, call
            if self.log is not None:
                self.log.note(call)
        else:
            self._note(operation, args, kwargs, result)
        return result

    def _note(self, operation: Any, args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> None:
        if self.log is not None:
            self.log.note_call(operation, args, kwargs, result)


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


def one_of_each(args: Sequence[Any]) -> Sequence[Any]:
    """The arguments of an operation on lists of tensors, with one of all elements that are alike.

    An optimizer has hundreds of parameters of a few sizes, and torch's Python works out each of them. The lists stay as
    they are where their elements lie on several devices, or are not as many in each.
    """
    lists = [value for value in args if isinstance(value, (list, tuple))]
    count = len(lists[0]) if lists else 0
    if any(len(inner) != count for inner in lists) or any(isinstance(value, torch.Tensor) for value in args):
        return args
    devices: set[torch.device] = set()
    places: dict[Any, int] = {}
    for place in range(count):
        elements = [inner[place] for inner in lists]
        devices.update(element.device for element in elements if isinstance(element, torch.Tensor))
        try:
            alike = tuple(map(_described, elements))
        except UnknownOutcomeError:
            return args
        places.setdefault(alike, place)
    if len(devices) != 1 or len(places) == count:
        return args
    chosen = places.values()
    return [[value[place] for place in chosen] if isinstance(value, (list, tuple)) else value for value in args]


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
