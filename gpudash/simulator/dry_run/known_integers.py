"""Integers and truths that a dry run does know: code looks at masks, lengths and labels, and goes on by them.

Small tensors of integers on the device are computed on the host beside their sizes, for as long as everything they come
from is known. Whether a batch has padding, and how many of its labels count, is then known too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from gpudash.simulator.device.storage import DEVICE, Storages, lacks_numbers

MOST_INTEGERS = 2**18
"""Elements up to which a new tensor of integers or truths is computed: a batch of masks or indices."""

_CPU = torch.device("cpu")


class KnownIntegers:
    """The numbers of the device's tensors that are known in a dry run.

    Args:
        storages: of the device.
    """

    def __init__(self, storages: Storages) -> None:
        self._storages = storages

    def prepare(self, storage: torch.UntypedStorage, size: int, dtype: torch.dtype) -> None:
        """Give a new storage for ``size`` elements zeros to be known, when it is for few integers."""
        block = self._storages.block(storage)
        if block is not None and size <= MOST_INTEGERS and not is_fractional(dtype):
            block.host = torch.zeros(storage.nbytes(), dtype=torch.uint8).untyped_storage()

    def of(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """A tensor of the CPU with the numbers of ``tensor``, whose bytes it shares; ``None`` when they are unknown."""
        if tensor.device.type == "cpu":
            return None if lacks_numbers(tensor) else tensor
        if tensor.device.type != DEVICE or is_fractional(tensor.dtype):
            return None
        storage = tensor.untyped_storage()
        block = self._storages.block(storage)
        if storage.nbytes() and (block is None or block.host is None):
            return None
        made = torch.empty(0, dtype=tensor.dtype)
        return made.set_(self._storages.host(storage), tensor.storage_offset(), tensor.shape, tensor.stride())

    def forget(self, tensor: torch.Tensor) -> None:
        """What is written into ``tensor`` is not known."""
        block = self._storages.block(tensor.untyped_storage()) if tensor.device.type == DEVICE else None
        if block is not None:
            block.host = None

    def copied(self, source: torch.Tensor, target: torch.Tensor) -> bool:
        """Follow a copy between any two devices; whether its numbers are known."""
        values, place = self.of(source), self.of(target)
        if values is None or place is None or is_fractional(target.dtype) is not is_fractional(source.dtype):
            self.forget(target)
            return False
        place.copy_(values)
        return True

    def follow(self, plan: Any, args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> None:
        """Compute what an operation made of known integers, or forget what it wrote.

        Args:
            plan: of the operation, see `gpudash.simulator.operations.operations.Plan`.
            args, kwargs: what it was given.
            result: what it returned, of sizes alone.
        """
        first = next(tensors_among((*args, *kwargs.values())), None)
        if first is None or (is_fractional(first.dtype) and not plan.written):
            return
        made = () if plan.written else tuple(tensors_among((result,)))
        known = all(tensor.numel() <= MOST_INTEGERS and not is_fractional(tensor.dtype) for tensor in made)
        values = self.computed(plan, args, kwargs) if known else None
        if values is None:
            for name, value in (*zip(plan.names, args), *kwargs.items()):
                if name in plan.written:
                    for tensor in tensors_among((value,)):
                        self.forget(tensor)
            return
        for tensor, computed in zip(made, tensors_among((values,))):
            self.prepare(tensor.untyped_storage(), tensor.numel(), tensor.dtype)
            place = self.of(tensor)
            if place is not None:
                place.copy_(computed)

    def computed(self, plan: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """What an operation makes of its arguments' numbers on the CPU; ``None`` when one of them is unknown."""
        try:
            inner = [self._inward(value) for value in args]
            named = {name: self._inward(value) for name, value in kwargs.items()}
        except UnknownIntegerError:
            return None
        return plan.compute(*inner, **named)

    def places(self, indices: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None] | None:
        """``indices`` with the positions of what is true in place of masks; ``None`` when one of them is unknown."""
        found: list[torch.Tensor | None] = []
        for index in indices:
            if index is None or index.dtype not in (torch.bool, torch.uint8):
                found.append(index)
                continue
            mask = self.of(index)
            if mask is None:
                return None
            found += [place.to(index.device) for place in mask.nonzero(as_tuple=True)]
        return found

    def _inward(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            known = self.of(value)
            if known is None:
                raise UnknownIntegerError
            return known
        if isinstance(value, (list, tuple)):
            return [self._inward(item) for item in value]
        return _CPU if isinstance(value, torch.device) and value.type == DEVICE else value


class UnknownIntegerError(Exception):
    """A tensor's numbers are not known."""


def tensors_among(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    """The tensors among the arguments or results of an operation, those in lists and tuples of them included."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from tensors_among(value)


def is_fractional(dtype: torch.dtype) -> bool:
    """Whether numbers of ``dtype`` are neither integers nor truths."""
    return dtype.is_floating_point or dtype.is_complex
