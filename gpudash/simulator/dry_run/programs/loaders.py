"""Data loaders in a dry run: those of a training end early, so that the code after an epoch runs too.

If batches differ in size, as padded texts do, the last batch is the largest of those that would have come.
"""

from __future__ import annotations

import sys
import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader, dataloader

from gpudash.simulator.faults import hands_on

FETCHERS = ("lightning/pytorch/loops/fetchers.py", "pytorch_lightning/loops/fetchers.py")
EPOCHS = ("lightning.pytorch.loops.training_epoch_loop", "pytorch_lightning.loops.training_epoch_loop")

MOST_ENDED = 8
"""The most loaders that are ended early."""

MOST_AHEAD = 4096
EQUAL_AHEAD = 8
AHEAD_S = 4.0
AHEAD_CLOCK_S = 15.0
"""Limits for reading batches ahead: the most batches, how many of equal size suggest that all are equal, and seconds
of the reading thread's processor time and of wall-clock time."""

NEAR = 8
"""The most frames between the call that reads a batch and Lightning's."""


def _is_fetched_by_lightning() -> bool:
    frame = sys._getframe(1)
    for _ in range(NEAR):
        if frame.f_back is None:
            return False
        frame = frame.f_back
        if frame.f_code.co_filename.endswith(FETCHERS):
            return True
    return False


def _bytes_of(batch: Any) -> int:
    """Bytes of the tensors in a batch."""
    if isinstance(batch, torch.Tensor):
        return batch.numel() * batch.element_size()
    if isinstance(batch, Mapping):
        return sum(map(_bytes_of, batch.values()))
    if isinstance(batch, (list, tuple)):
        return sum(map(_bytes_of, batch))
    return 0


class Loaders:
    """The data loaders of a program, from `follow` on.

    Attributes:
        ended: how many were ended early.
        ahead: how many batches were read ahead to find the largest, which was used.
    """

    def __init__(self) -> None:
        self.ended = 0
        self.ahead = 0
        self._training: weakref.WeakKeyDictionary[Any, set[int]] = weakref.WeakKeyDictionary()
        self._closing: weakref.WeakSet[Any] = weakref.WeakSet()
        self._left: weakref.WeakSet[DataLoader[Any]] = weakref.WeakSet()
        self._short = False
        self._evaluates = False

    def follow(self) -> None:
        """Watch which loaders are read, for the rest of the process."""
        kind: Any = dataloader._BaseDataLoaderIter
        kind.__init__ = self._made(kind.__init__)
        kind.__next__ = self._read(kind.__next__)

    def end(self) -> None:
        """End the loaders that are being read at their next batch, each of them once."""
        self._short = True

    def lightning_imported(self, module: Any) -> None:
        """Make Lightning's Trainer evaluate once, after the batch at which other loaders are ended.

        Args:
            module: one of `EPOCHS`.
        """
        kind: Any = module._TrainingEpochLoop
        ask = getattr(kind, "_should_check_val_fx", None)
        if ask is None:
            return

        @hands_on
        def should_check(loop: Any, *args: Any, **kwargs: Any) -> bool:
            if self._short and not self._evaluates:
                self._evaluates = True
                self.ended += 1
                return bool(loop._should_check_val_epoch())
            return bool(ask(loop, *args, **kwargs))

        kind._should_check_val_fx = should_check

    def _made(self, make: Callable[..., None]) -> Callable[..., None]:
        @hands_on
        def made(iterator: Any, loader: DataLoader[Any], *args: Any, **kwargs: Any) -> None:
            iterator._gpudash_loader = weakref.ref(loader)
            make(iterator, loader, *args, **kwargs)

        return made

    def _read(self, read: Callable[[Any], Any]) -> Callable[[Any], Any]:
        @hands_on
        def batch(iterator: Any) -> Any:
            if iterator in self._closing:
                raise StopIteration
            if self._short and iterator in self._training and self._may_end(iterator):
                self._closing.add(iterator)
                larger = self._largest_ahead(iterator, read)
                if larger is None:
                    raise StopIteration
                return larger
            found = read(iterator)
            if not self._short:
                self._training.setdefault(iterator, set()).add(_bytes_of(found))
            return found

        return batch

    def _largest_ahead(self, iterator: Any, read: Callable[[Any], Any]) -> Any:
        """The largest batch of those still to come, ``None`` if none is larger than those so far."""
        seen = self._training[iterator]
        largest = None
        largest_bytes = max(seen)
        began_s = time.thread_time()
        clock_s = time.monotonic()
        for number in range(MOST_AHEAD):
            late = time.thread_time() - began_s > AHEAD_S or time.monotonic() - clock_s > AHEAD_CLOCK_S
            if late or (number >= EQUAL_AHEAD and len(seen) == 1):
                break
            try:
                batch = read(iterator)
            except StopIteration:
                break
            size = _bytes_of(batch)
            seen.add(size)
            if size > largest_bytes:
                largest = batch
                largest_bytes = size
        if largest is not None:
            self.ahead = max(self.ahead, number)
        return largest

    def _may_end(self, iterator: Any) -> bool:
        """Whether its loader has not been ended yet: one that a program reads forever is read again at once."""
        loader = iterator._gpudash_loader()
        if _is_fetched_by_lightning():
            return False  # it would treat the epoch as interrupted, and evaluate nothing
        if self.ended >= MOST_ENDED or (loader is not None and loader in self._left):
            return False
        if loader is not None:  # a loader that a loop created for itself is gone
            self._left.add(loader)
        self.ended += 1
        return True
