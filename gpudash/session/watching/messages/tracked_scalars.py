"""What a program writes for a tracker of experiments while it is watched, as losses of its run."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from gpudash.agent.wire import number_in
from gpudash.session.trackers.scalar_names import is_accuracy, is_loss, is_validation
from gpudash.session.watching.output.printed_metrics import Printed
from gpudash.telemetry.runs import MOST_LOSSES

MOST_AT_ONCE = 1000
"""Scalars of one message that are taken, the newest; they come ten times a second."""

MOST_TAGS = 100
"""Names that are remembered."""

_TRACKERS = {"tensorboard": "TensorBoard", "wandb": "Weights & Biases", "mlflow": "MLflow"}
"""What the agent calls a tracker → its name."""


def tracker_label(tracker: object) -> str:
    """The name of the tracker that a message of scalars is of."""
    if not isinstance(tracker, str):
        return "a tracker"
    return _TRACKERS.get(tracker, "a tracker")


class TrackedScalars:
    """Gives each name a place: the first loss of a training is the run's, the first of a validation that of its
    validation, and others are losses with a name of their own. Belongs to one thread.
    """

    def __init__(self) -> None:
        self._places: dict[str, str] = {}

    def take(self, rows: Any, time_of: Callable[[int], float]) -> list[Printed]:
        """The scalars of a message that are plotted, those written at one step together.

        Args:
            rows: each a tag, a step or ``None``, a time in microseconds since 1970, and a value.
            time_of: session time in seconds of such a time.
        """
        if not isinstance(rows, list):
            return []
        found: list[Printed] = []
        step: int | None = None
        values: dict[str, tuple[str, float]] = {}
        time_s = -math.inf
        for row in rows[-MOST_AT_ONCE:]:
            tag, at, time_us, value = _checked(row)
            place = self._place(tag)
            if not place or value is None:
                continue
            # one that comes again, or at another step, is of the next row
            if values and (at != step or place in values):
                found.append(_together(values, step, time_s))
                values = {}
            values[place] = (tag, value)
            step = at
            time_s = max(time_s, time_of(time_us))
        if values:
            found.append(_together(values, step, time_s))
        return found

    def _place(self, tag: str) -> str:
        """Where a scalar is plotted: "loss", "val_loss", "accuracy", its own name, or nowhere."""
        if tag not in self._places and len(self._places) < MOST_TAGS:
            self._places[tag] = self._free_place(tag)
        return self._places.get(tag, "")

    def _free_place(self, tag: str) -> str:
        taken = set(self._places.values())
        if is_loss(tag):
            place = "loss"
            if is_validation(tag):
                place = "val_loss"
            if place not in taken:
                return place
            if len(taken - {"", "loss", "val_loss", "accuracy"}) < MOST_LOSSES:
                return tag
            return ""
        if is_accuracy(tag) and "accuracy" not in taken:
            return "accuracy"
        return ""


def _checked(row: Any) -> tuple[str, int | None, int, float | None]:
    """Raises: ValueError: when it is no row."""
    tag, step, time_us, value = row
    if not isinstance(tag, str) or not isinstance(time_us, int):
        raise ValueError("a scalar has no name or no time")
    if not isinstance(step, int) or isinstance(step, bool):
        step = None
    return tag, step, time_us, number_in(value)


def _together(values: dict[str, tuple[str, float]], step: int | None, time_s: float) -> Printed:
    own = {place: value for place, (_tag, value) in values.items()}
    return Printed(
        time_s=time_s,
        step=step,
        loss=own.pop("loss", None),
        val_loss=own.pop("val_loss", None),
        accuracy=own.pop("accuracy", None),
        losses=own,
        fields=tuple(tag for tag, _value in values.values()),
    )
