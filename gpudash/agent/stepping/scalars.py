"""Losses and accuracies that the program writes for TensorBoard, heard as it writes them.

Checked with torch.utils.tensorboard of torch 2.13 and tensorboardX 2.6; a writer that is built otherwise is left alone.
"""

from __future__ import annotations

import time
from _collections import deque  # type: ignore[import-not-found]  # of C, and in no stub
from functools import wraps

from ..guest import guarded
from .steps import float_of, restoring, undo_nothing, whole_number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Row = list[Any]
    """Tag, step as the program counts them or ``None``, time in microseconds since 1970, value."""

MOST_WAITING = 2048
"""Scalars between two messages; of more the oldest are lost."""

LONGEST_TAG = 200
"""Characters of a tag that are told."""

NAMED = ("loss", "acc")
"""What a tag has in it, in small letters, of a scalar that is told."""


class Scalars:
    """Collects them until they are taken. The writer has read each value by then, so that no GPU is waited for."""

    def __init__(self) -> None:
        self._waiting: deque[Row] = deque(maxlen=MOST_WAITING)

    def note(self, tag: Any, value: Any, step: Any = None) -> None:
        """The program has written a scalar. No value is kept: it may hold a graph in memory."""
        if not isinstance(tag, str) or isinstance(value, (str, bytes, bool)):
            return
        folded = tag.lower()
        if not any(name in folded for name in NAMED):
            return
        # item() rather than float(), which warns of a tensor that has a gradient
        number = float_of(getattr(value, "item", None) or value.__float__)
        if number is not None:
            self._waiting.append([tag[:LONGEST_TAG], whole_number(step), time.time_ns() // 1000, number])

    def take(self) -> list[Row]:
        """What has come since it was last asked for."""
        found: list[Row] = []
        # one by one, and not by a copy and a clear: the program's thread may append in between
        while self._waiting:
            found.append(self._waiting.popleft())
        return found


def follow_writer(module: Any, scalars: Scalars) -> Callable[[], None]:
    """Hear the scalars of ``SummaryWriter`` in a module; returns what undoes it."""
    writer: Any = getattr(module, "SummaryWriter", None)
    if not hasattr(writer, "add_scalar") or not hasattr(writer, "add_scalars"):
        return undo_nothing
    note = guarded(scalars.note)
    note_each = guarded(_note_each)
    add_one = writer.add_scalar
    add_several = writer.add_scalars

    @wraps(add_one)
    def add_scalar(self: Any, tag: Any, scalar_value: Any, global_step: Any = None, *more: Any, **named: Any) -> Any:
        result = add_one(self, tag, scalar_value, global_step, *more, **named)
        note(tag, scalar_value, global_step)
        return result

    @wraps(add_several)
    def add_scalars(
        self: Any, main_tag: Any, tag_scalar_dict: Any, global_step: Any = None, *more: Any, **named: Any
    ) -> Any:
        result = add_several(self, main_tag, tag_scalar_dict, global_step, *more, **named)
        note_each(scalars, main_tag, tag_scalar_dict, global_step)
        return result

    return restoring(writer, {"add_scalar": add_scalar, "add_scalars": add_scalars})


def _note_each(scalars: Scalars, main_tag: Any, values: Any, step: Any) -> None:
    for tag, value in values.items():
        scalars.note(f"{main_tag}/{tag}", value, step)
