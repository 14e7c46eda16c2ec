"""Data loaders in a dry run: those of a training are ended early, so that what follows an epoch is run too."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import Any

from torch.utils.data import DataLoader, dataloader

from gpudash.simulator.faults import hands_on

FETCHERS = ("lightning/pytorch/loops/fetchers.py", "pytorch_lightning/loops/fetchers.py")
EPOCHS = ("lightning.pytorch.loops.training_epoch_loop", "pytorch_lightning.loops.training_epoch_loop")

MOST_ENDED = 8
"""Loaders that are ended early, at most."""

NEAR = 8
"""Frames from where a batch is read to where Lightning asks for it, at most."""


def _is_fetched_by_lightning() -> bool:
    frame = sys._getframe(1)
    for _ in range(NEAR):
        if frame.f_back is None:
            return False
        frame = frame.f_back
        if frame.f_code.co_filename.endswith(FETCHERS):
            return True
    return False


class Loaders:
    """The data loaders of a program, from `follow` on.

    Attributes:
        ended: how many were ended early.
    """

    def __init__(self) -> None:
        self.ended = 0
        self._training: weakref.WeakSet[Any] = weakref.WeakSet()
        self._left: weakref.WeakSet[DataLoader[Any]] = weakref.WeakSet()
        self._short = False
        self._evaluates = False

    def follow(self) -> None:
        """See which loaders are read, for the rest of the process."""
        kind: Any = dataloader._BaseDataLoaderIter
        kind.__init__ = self._made(kind.__init__)
        kind.__next__ = self._read(kind.__next__)

    def end(self) -> None:
        """End those that are being read now, at their next batch, and each once."""
        self._short = True

    def lightning_imported(self, module: Any) -> None:
        """Have Lightning's Trainer evaluate once, after the batch at which others' loaders are ended.

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
            if self._short and iterator in self._training and self._may_end(iterator):
                raise StopIteration
            found = read(iterator)
            if not self._short:
                self._training.add(iterator)
            return found

        return batch

    def _may_end(self, iterator: Any) -> bool:
        """Whether its loader has not been ended yet: one that a program reads for ever is read again at once."""
        loader = iterator._gpudash_loader()
        if _is_fetched_by_lightning():
            return False  # it would take the epoch for one that was broken off, and evaluate nothing
        if self.ended >= MOST_ENDED or (loader is not None and loader in self._left):
            return False
        if loader is not None:  # one that a loop has made for itself is gone
            self._left.add(loader)
        self.ended += 1
        return True
