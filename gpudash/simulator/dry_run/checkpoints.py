"""Checkpoints of a program that is only predicted: they have no numbers, and are there for as long as it runs.

A file says only which of them it stands for, so that the program may copy, rename and read it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_map

from gpudash.simulator.device.storage import lacks_numbers
from gpudash.simulator.faults import hands_on

MARK = b"gpudash checkpoint without numbers "


class _Sized(NamedTuple):
    """A tensor of a checkpoint: all but its numbers."""

    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    def made(self, location: Any) -> torch.Tensor:
        """One like it, where ``map_location`` says."""
        device = self.device
        if isinstance(location, dict):
            device = torch.device(location.get(str(device), device))
        elif isinstance(location, (str, int, torch.device)):
            device = torch.device(location)
        elif location is not None:
            device = torch.device("cpu")  # a function, most of which leave storages there
        return torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=device)


class KeptCheckpoints:
    """What the program has saved."""

    def __init__(self) -> None:
        self._saved: list[Any] = []

    def save(self, what: Any, path: str | os.PathLike[str]) -> None:
        """Keep the sizes of what is saved, and leave a file that says so."""
        self._saved.append(tree_map(_sized, what))
        with open(path, "wb") as file:  # noqa: PTH123 - it is the one that holds writing back
            file.write(MARK + str(len(self._saved) - 1).encode())

    def find(self, path: Any) -> Any:
        """What was saved in a file, or in one that it is a copy of; ``None`` where that is another's."""
        if not isinstance(path, (str, os.PathLike)):
            return None
        with open(path, "rb") as file:  # noqa: PTH123 - as in `save`
            read = file.read(len(MARK) + 20)
        number = read[len(MARK) :]
        return self._saved[int(number)] if read.startswith(MARK) and number.isdigit() else None

    @staticmethod
    def loaded(found: Any, location: Any) -> Any:
        """Tensors in place of what was kept of them."""

        def made(value: Any) -> Any:
            return value.made(location) if isinstance(value, _Sized) else value

        return tree_map(made, found, is_leaf=lambda value: isinstance(value, _Sized))


def _sized(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    if value.device.type == "cpu" and not lacks_numbers(value):
        return value.detach().clone()
    return _Sized(value.shape, value.stride(), value.dtype, value.device)


def saving_by_python(save: Callable[..., None]) -> Callable[..., None]:
    """``torch.save`` that opens files as Python does, in place of torch's own writer in C++."""

    @hands_on
    def saved(what: Any, f: Any, *args: Any, **kwargs: Any) -> None:
        if not isinstance(f, (str, os.PathLike)):
            save(what, f, *args, **kwargs)
            return
        with open(f, "wb") as file:  # noqa: PTH123 - it is the one that holds writing back
            save(what, file, *args, **kwargs)

    return saved
