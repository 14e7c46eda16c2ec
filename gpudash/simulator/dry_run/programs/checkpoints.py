"""Checkpoints of a program that is only predicted: they have no numbers, and exist as long as it runs.

A file holds only the number of its checkpoint, so the program may copy, rename and read it.
"""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Callable
from typing import IO, Any, NamedTuple

import torch
from torch import nn

from gpudash.simulator.device.storage import lacks_numbers
from gpudash.simulator.faults import hands_on

MARK = b"gpudash checkpoint without numbers "

DIGITS = 12
"""Digits of a checkpoint's number in its file."""


class _Sized(NamedTuple):
    """A tensor of a checkpoint without its numbers."""

    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    learns: bool
    is_parameter: bool

    def made(self, location: Any) -> torch.Tensor:
        """Create such a tensor where ``map_location`` says."""
        device = self.device
        if isinstance(location, dict):
            device = torch.device(location.get(str(device), device))
        elif isinstance(location, (str, int, torch.device)):
            device = torch.device(location)
        elif location is not None:
            device = torch.device("cpu")  # a function; most of them leave storages on the CPU
        made = torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=device)
        if self.is_parameter:
            return nn.Parameter(made, requires_grad=self.learns)
        return made.requires_grad_(self.learns)


class _Saved(NamedTuple):
    """A checkpoint: the saved object as a pickle, and its tensors by number."""

    pickled: bytes
    tensors: list[Any]


class _Pickler(pickle.Pickler):
    """Replaces tensors with numbers."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file)
        self.tensors: list[Any] = []
        self._numbers: dict[int, int] = {}
        self._alive: list[torch.Tensor] = []

    def persistent_id(self, value: Any) -> int | None:
        """Replace a tensor with its number."""
        if not isinstance(value, torch.Tensor):
            return None
        if id(value) not in self._numbers:
            self._numbers[id(value)] = len(self.tensors)
            self._alive.append(value)
            self.tensors.append(_sized(value))
        return self._numbers[id(value)]


class _Unpickler(pickle.Unpickler):
    """Puts tensors back."""

    def __init__(self, saved: _Saved, location: Any) -> None:
        super().__init__(io.BytesIO(saved.pickled))
        self._tensors = saved.tensors
        self._location = location
        self._made: dict[int, torch.Tensor] = {}

    def persistent_load(self, number: int) -> torch.Tensor:
        """The tensor with this number."""
        if number not in self._made:
            kept = self._tensors[number]
            if isinstance(kept, _Sized):
                self._made[number] = kept.made(self._location)
            else:
                self._made[number] = kept.clone()
        return self._made[number]


class KeptCheckpoints:
    """The checkpoints that the program has saved."""

    def __init__(self) -> None:
        self._saved: list[_Saved] = []

    def save(self, what: Any, file: Any) -> None:
        """Store the sizes of a saved object, and write its number to ``file``, a path or an open file."""
        written = io.BytesIO()
        pickler = _Pickler(written)
        pickler.dump(what)
        mark = MARK + str(len(self._saved)).zfill(DIGITS).encode()
        self._saved.append(_Saved(written.getvalue(), pickler.tensors))
        if not isinstance(file, (str, os.PathLike)):
            file.write(mark)
            return
        with open(file, "wb") as opened:  # noqa: PTH123 - this is the open that prevents writing
            opened.write(mark)

    def find(self, file: Any) -> _Saved | None:
        """The checkpoint saved in a file or in the original of a copy; ``None`` if it is another's file."""
        if isinstance(file, (str, os.PathLike)):
            with open(file, "rb") as opened:  # noqa: PTH123 - as in `save`
                return self._of(opened.read(len(MARK) + DIGITS))
        if not (hasattr(file, "seek") and hasattr(file, "tell")):
            return None
        place = file.tell()
        found = self._of(file.read(len(MARK) + DIGITS))
        if found is None:
            file.seek(place)
        return found

    @staticmethod
    def loaded(saved: _Saved, location: Any) -> Any:
        """The saved object, with tensors where ``map_location`` says."""
        return _Unpickler(saved, location).load()

    def _of(self, read: bytes) -> _Saved | None:
        number = read[len(MARK) :]
        if read.startswith(MARK) and number.isdigit():
            return self._saved[int(number)]
        return None


def _sized(tensor: torch.Tensor) -> Any:
    if tensor.device.type == "cpu" and not lacks_numbers(tensor):
        return tensor.detach().clone()
    learns = tensor.requires_grad and tensor.is_leaf
    return _Sized(tensor.shape, tensor.stride(), tensor.dtype, tensor.device, learns, isinstance(tensor, nn.Parameter))


def saving_by_python(save: Callable[..., None]) -> Callable[..., None]:
    """``torch.save`` that opens files in Python, in place of torch's own C++ writer."""

    @hands_on
    def saved(what: Any, f: Any, *args: Any, **kwargs: Any) -> None:
        if not isinstance(f, (str, os.PathLike)):
            save(what, f, *args, **kwargs)
            return
        with open(f, "wb") as file:  # noqa: PTH123 - this is the open that prevents writing
            save(what, file, *args, **kwargs)

    return saved
