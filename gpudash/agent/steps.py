"""Steps and losses of the program, as its own code or its trainer tells them."""

from __future__ import annotations

import sys
import time
from _collections import deque  # type: ignore[import-not-found]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Step = list[Any]
    """Number, time in microseconds since 1970, loss, accuracy, epoch; what is not known is ``None``."""

MOST_WAITING = 4096
"""Steps between two messages; of more the oldest are lost."""

BETWEEN_WAITS_S = 0.5
"""A value that lies on a GPU is read no more often: reading it makes the program wait for the GPU."""

MOST_MARKS = 10_000
"""Steps whose times are known."""

OPTIMIZER = "optimizer"
"""The source of steps that nobody has told: the optimizer's are counted, from 1 on."""


class Steps:
    """Collects them until they are taken.

    Attributes:
        label: number of the step that is going on: one more than the newest that was told, and one more for every
            step of the optimizer since; where none was told, as many as the optimizer has made; 0 before the first.
        present: the step that is going on as the program would call it: one more than the newest that was told; where
            none was, `label`.
        lost: steps that were dropped.
        began_us: when the first step began, in microseconds since 1970, where the program's trainer told it: of other
            programs nobody knows, and what they do before their first step is none of it.
        source: who told the newest: "logging", "transformers", "lightning", or `OPTIMIZER` until one of these does.
        on_label: called with every new label.
    """

    def __init__(self) -> None:
        self.label = 0
        self.lost = 0
        self.began_us: int | None = None
        self.source = OPTIMIZER
        self._newest: int | None = None
        self._first: Step | None = None
        self.on_label: Callable[[int], None] | None = None
        self._marks: deque[tuple[int, int]] = deque(maxlen=MOST_MARKS)
        self._waiting: deque[Step] = deque()
        self._next_wait_s = 0.0
        self._told: tuple[float | None, float | None] = (None, None)

    def note(self, source: str, step: Any, loss: Any = None, accuracy: Any = None, epoch: Any = None) -> None:
        """A step ended; values that are no numbers are left out. No value is kept: it may hold a graph in memory."""
        number = _whole(step)
        if number is None:
            return
        if self._newest is None:  # what was counted so far had numbers of its own
            self._first = None
            self._waiting.clear()
        self.source = source
        self._newest = number
        self._begin(number + 1)
        told = [self._number(loss), self._number(accuracy), self._number(epoch)]
        if told[0] is not None or told[1] is not None:
            self._told = (told[0], told[1])
        last = self._waiting[-1] if self._waiting else None
        if last is not None and last[0] == number:
            last[2:] = [new if new is not None else old for new, old in zip(told, last[2:])]
            if self._waiting and self._waiting[-1] is last:
                return
        self._waiting.append([number, time.time_ns() // 1000, *told])
        if len(self._waiting) > MOST_WAITING:
            self._waiting.popleft()
            self.lost += 1

    def begins(self) -> None:
        """A step begins."""
        if self.began_us is None and not self.label:
            self.began_us = time.time_ns() // 1000

    @property
    def present(self) -> int:
        return self.label if self._newest is None else self._newest + 1

    def optimizer_stepped(self, made: int = 1) -> None:
        """The program's optimizer made steps. They are told until somebody tells steps that have a number and a loss.

        The first waits for the second: of most programs the line that tells the first step comes in between.
        """
        self._begin(self.label + made)
        if self._newest is not None:
            return
        step: Step = [self.label, time.time_ns() // 1000, None, None, None]
        if self.label == 1:
            self._first = step
            return
        if self._first is not None:
            self._waiting.append(self._first)
            self._first = None
        self._waiting.append(step)
        if len(self._waiting) > MOST_WAITING:  # one that is left out holds nothing that the next does not tell
            self._waiting.popleft()

    def newest_told(self) -> tuple[float | None, float | None]:
        """Loss and accuracy that were told since it was last asked for."""
        found, self._told = self._told, (None, None)
        return found

    def label_at(self, time_us: int) -> int:
        """The label at a time in microseconds since 1970; 0 before the first."""
        from bisect import bisect_right

        marks = list(self._marks)
        place = bisect_right(marks, (time_us, sys.maxsize)) - 1
        return marks[place][1] if place >= 0 else 0

    def take(self, *, last: bool = False) -> list[Step]:
        """What has come since it was last asked for.

        Args:
            last: whether nobody will ask again.
        """
        found: list[Step] = []
        if last and self._first is not None:
            self._waiting.append(self._first)
            self._first = None
        while self._waiting:
            found.append(self._waiting.popleft())
        return found

    def _begin(self, label: int) -> None:
        self.label = label
        self._marks.append((time.time_ns() // 1000, label))
        if self.on_label is not None:
            self.on_label(label)

    def _number(self, value: Any) -> float | None:
        if value is None or isinstance(value, (bool, str, bytes)):
            return None
        if isinstance(value, (int, float)):
            return _float(value.__float__)
        device = getattr(value, "device", None)
        if device is not None and str(device) != "cpu":
            now = time.monotonic()
            if now < self._next_wait_s:
                return None
            self._next_wait_s = now + BETWEEN_WAITS_S
        # item() rather than float(), which warns of a tensor that has a gradient
        item = getattr(value, "item", None)
        return None if item is None else _float(item)


def _whole(value: Any) -> int | None:
    if isinstance(value, bool):
        return None
    try:
        number = int(value.__index__())
    except Exception:
        return None
    return number if abs(number) < 2**63 else None


def _float(item: Callable[[], Any]) -> float | None:
    try:
        return float(item())
    except Exception:
        return None
