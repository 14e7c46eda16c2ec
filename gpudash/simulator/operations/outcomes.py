"""Caches the results of calls by size, and decides whether cuBLASLt multiplies.

A dry run repeats the same calls on the same sizes in every layer and every step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from gpudash.simulator.device.naming import DEVICE
from gpudash.simulator.step_work.work_log import LoggedCall, WorkLog

MOST = 50_000
"""How many outcomes are kept; a model has some hundreds, a search for the largest batch some thousands."""

PLAIN = frozenset((type(None), str, torch.dtype, torch.layout, torch.memory_format, torch.device))

NUMBERS = frozenset((bool, int, float, complex))
"""Compared by type as well, since equal values of different types may give different results."""

_BY_LT = frozenset((torch.float64, torch.float32, torch.float16, torch.bfloat16))


class Fresh(NamedTuple):
    """A tensor created by an operation: sizes and strides in elements."""

    card: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    stored_bytes: int


class Given(NamedTuple):
    """An argument that an operation returned: its position or name."""

    place: Any


class UnknownOutcomeError(Exception):
    """An argument or a result has properties that cannot be compared."""


Maker = Callable[[Fresh], torch.Tensor]


class Outcomes:
    """Caches the results of calls by the sizes of their arguments.

    Attributes:
        log: where calls are logged; ``None`` if they are not.
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
        """The result of ``operation``: from ``work`` the first time, later an equal one created by ``make``.

        Args:
            where: whatever else determines the result's sizes.
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
        # the key is computed again, since the work may have changed its arguments
        if _key(operation, args, kwargs, where) == key:  # otherwise it resized an argument
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
        # numbers on the CPU may determine sizes; a tensor without dimensions stands for a plain number
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
    """``result`` with every tensor replaced by a description of how to create an equal one."""
    if isinstance(result, torch.Tensor):
        # by identity: the next call must return its own argument there
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
    if kind in (list, tuple):
        return kind(_again(item, make, args, kwargs) for item in kept)
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
    """Whether torch passes an ``addmm`` to cuBLASLt, which adds a bias to every row in the same kernel
    (isInputCompliesAddmmCudaLt, ATen/native/cuda/Blas.cpp; checked with torch 2.11).

    Args:
        given: its arguments by name.
        made: its result.
        activates: whether it is ``_addmm_activation``, whose bias may be a matrix.
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
