"""What an operation makes of which sizes: in a dry run the same ones come again in every layer and in every step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from gpudash.simulator.device.naming import DEVICE

MOST = 50_000
"""Outcomes that are kept; there are some hundreds in a model, and some thousands in a search for the largest batch."""

PLAIN = frozenset((type(None), str, torch.dtype, torch.layout, torch.memory_format, torch.device))

NUMBERS = frozenset((bool, int, float, complex))
"""Told apart by their type, since equal ones may give results of different types."""


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
        named = tuple((name, _described(value)) for name, value in kwargs.items()) if kwargs else ()
    except UnknownOutcomeError:
        return None
    return operation, where, given, named


def _described(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
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
        for place, value in [*enumerate(args), *kwargs.items()]:
            if value is result:
                return Given(place)
        if result.device.type != DEVICE or result.is_conj() or result.is_neg():
            raise UnknownOutcomeError
        size, stride, offset = tuple(result.shape), result.stride(), int(result.storage_offset())
        stored = result.untyped_storage().nbytes()
        return Fresh(result.device.index, size, stride, offset, result.dtype, stored)
    if type(result) in (list, tuple):
        inner: list[Any] = [_kept(item, args, kwargs) for item in result]
        return inner if type(result) is list else tuple(inner)
    if type(result) in NUMBERS or type(result) in PLAIN:
        return result
    raise UnknownOutcomeError


def _again(kept: Any, make: Maker, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    kind = type(kept)
    if kind is Fresh:
        return make(kept)
    if kind is Given:
        return kwargs[kept.place] if isinstance(kept.place, str) else args[kept.place]
    if kind is list:
        return [_again(item, make, args, kwargs) for item in kept]
    if kind is tuple:
        return tuple(_again(item, make, args, kwargs) for item in kept)
    return kept
