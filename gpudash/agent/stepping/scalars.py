"""Losses and accuracies that the program writes for a tracker of experiments, heard as it writes them.

Checked with torch.utils.tensorboard of torch 2.13 and tensorboardX 2.6, wandb 0.31 and mlflow-skinny 3.17; a tracker
that is built otherwise is left alone.
"""

from __future__ import annotations

import sys
import time
from _collections import deque  # type: ignore[import-not-found]  # of C, and in no stub
from functools import wraps

from ..guest import guarded, restoring, undo_nothing
from .steps import float_of, whole_number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    Row = list[Any]
    """Tag, step as the program counts them or ``None``, time in microseconds since 1970, value."""

MOST_WAITING = 2048
"""Scalars between two messages; of more the oldest are lost."""

LONGEST_TAG = 200
"""Characters of a tag that are told."""

NAMED = ("loss", "acc")
"""What a tag has in it, in small letters, of a scalar that is told."""

MOST_IN_A_ROW = 1000
"""Values that are looked at of what is written in one call."""

MOST_LEVELS = 4
"""Dictionaries within one another that are looked into."""


class Scalars:
    """Collects them until they are taken. The tracker has read each value by then, so that no GPU is waited for.

    Attributes:
        tracker: where the first of them was written, "tensorboard", "wandb" or "mlflow"; "" before. A program that
            writes for several writes the same losses: those of the others are left out.
    """

    def __init__(self) -> None:
        self.tracker = ""
        self._waiting: deque[Row] = deque(maxlen=MOST_WAITING)
        self._left = False

    def note(self, tracker: str, tag: Any, value: Any, step: Any = None) -> None:
        """The program has written a scalar. No value is kept: it may hold a graph in memory."""
        if self._left or self.tracker not in ("", tracker):
            return
        if not isinstance(tag, str) or isinstance(value, (str, bytes, bool)):
            return
        folded = tag.lower()
        if not any(name in folded for name in NAMED):
            return
        # item() rather than float(), which warns of a tensor that has a gradient; a picture or a table has neither
        read = getattr(value, "item", None) or getattr(value, "__float__", None)
        if read is None:
            return
        number = float_of(read)
        if number is not None:
            self.tracker = tracker
            self._waiting.append([tag[:LONGEST_TAG], whole_number(step), time.time_ns() // 1000, number])

    def leave(self) -> None:
        """Note no more: the program may have kept a method from before it was restored."""
        self._left = True
        self._waiting.clear()

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
    note_several = guarded(_note_several)
    add_one = writer.add_scalar
    add_several = writer.add_scalars

    @wraps(add_one)
    def add_scalar(self: Any, tag: Any, scalar_value: Any, global_step: Any = None, *more: Any, **named: Any) -> Any:
        result = add_one(self, tag, scalar_value, global_step, *more, **named)
        note("tensorboard", tag, scalar_value, global_step)
        return result

    @wraps(add_several)
    def add_scalars(
        self: Any, main_tag: Any, tag_scalar_dict: Any, global_step: Any = None, *more: Any, **named: Any
    ) -> Any:
        result = add_several(self, main_tag, tag_scalar_dict, global_step, *more, **named)
        note_several(scalars, main_tag, tag_scalar_dict, global_step)
        return result

    return restoring(writer, {"add_scalar": add_scalar, "add_scalars": add_scalars})


def _note_several(scalars: Scalars, main_tag: Any, values: Any, step: Any) -> None:
    for tag, value in values.items():
        scalars.note("tensorboard", f"{main_tag}/{tag}", value, step)


def follow_wandb(module: Any, scalars: Scalars) -> Callable[[], None]:
    """Hear what ``Run.log`` of ``wandb.sdk.wandb_run`` is given; returns what undoes it.

    ``wandb.log`` is that method of the run in progress, and is replaced with it. A run of ``mode="disabled"`` has a
    method of its own and writes nothing.
    """
    run: Any = getattr(module, "Run", None)
    before = getattr(run, "log", None)
    if before is None:
        return undo_nothing
    note_row = guarded(_note_row)

    @wraps(before)
    def log(self: Any, *args: Any, **named: Any) -> Any:
        result = before(self, *args, **named)
        # Without a step, that of W&B counts its own rows: it is none of the program's.
        note_row(scalars, _given(args, named, 0, "data"), _given(args, named, 1, "step"))
        return result

    restore = restoring(run, {"log": log})
    _rebind(before, log)

    def undo() -> None:
        restore()
        _rebind(log, before)

    return undo


def _rebind(from_function: Any, to_function: Any) -> None:
    """Let ``wandb.log`` of a run in progress be another method of that run."""
    package: Any = sys.modules.get("wandb")
    bound: Any = getattr(package, "log", None)
    if getattr(bound, "__func__", None) is from_function:
        package.log = to_function.__get__(bound.__self__)


def _note_row(scalars: Scalars, row: Any, step: Any) -> None:
    for tag, value in _flat(row, "", MOST_LEVELS):
        scalars.note("wandb", tag, value, step)


def _flat(row: Any, prefix: str, levels: int) -> Iterator[tuple[str, Any]]:
    """The values of a row, those of dictionaries within it by the names that W&B gives them: ``train.loss``."""
    for key, value in list(row.items())[:MOST_IN_A_ROW]:
        if not isinstance(value, dict):
            yield f"{prefix}{key}", value
        elif levels > 1:
            yield from _flat(value, f"{prefix}{key}.", levels - 1)


def follow_mlflow(module: Any, scalars: Scalars) -> Callable[[], None]:
    """Hear the metrics of ``MlflowClient`` in ``mlflow.tracking.client``, which ``mlflow.log_metric`` and
    ``mlflow.log_metrics`` write by, as do autologging and the loggers of trainers; returns what undoes it."""
    client: Any = getattr(module, "MlflowClient", None)
    if not hasattr(client, "log_metric") or not hasattr(client, "log_batch"):
        return undo_nothing
    note_metric = guarded(_note_metric)
    note_batch = guarded(_note_batch)
    log_one = client.log_metric
    log_several = client.log_batch

    @wraps(log_one)
    def log_metric(self: Any, *args: Any, **named: Any) -> Any:
        result = log_one(self, *args, **named)
        key, value = _given(args, named, 1, "key"), _given(args, named, 2, "value")
        note_metric(scalars, key, value, _given(args, named, 4, "step"))
        return result

    @wraps(log_several)
    def log_batch(self: Any, *args: Any, **named: Any) -> Any:
        result = log_several(self, *args, **named)
        note_batch(scalars, _given(args, named, 1, "metrics"))
        return result

    return restoring(client, {"log_metric": log_metric, "log_batch": log_batch})


def _note_metric(scalars: Scalars, key: Any, value: Any, step: Any) -> None:
    # What has no step is written at 0.
    scalars.note("mlflow", key, value, step or None)


def _note_batch(scalars: Scalars, metrics: Any) -> None:
    # One that belongs to several models is there once for each.
    by_key = {metric.key: metric for metric in list(metrics or ())[:MOST_IN_A_ROW]}
    for metric in by_key.values():
        _note_metric(scalars, metric.key, metric.value, metric.step)


def _given(args: Any, named: Any, place: int, name: str) -> Any:
    """An argument of a call, by its place or its name; ``None`` where it was not given."""
    if len(args) > place:
        return args[place]
    return named.get(name)
