"""Telling a run's copies without a record for every one of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from gpudash.telemetry.records import Event, Transfer

REPORT_PERIOD_S = 0.05
"""Shortest time between two events of the same kind of copy: as fine as memory is read by default."""

Kind = tuple[str, str, Literal["pageable", "pinned"], bool]
"""From, to, memory of the host's end, blocking."""


@dataclass(slots=True)
class _Sum:
    told_s: float | None = None
    bytes: int = 0
    seconds: float = 0.0


class Traffic:
    """The copies of one run, those of one kind added up between two events."""

    def __init__(self, emit: Callable[[Event], None], clock: Callable[[], float], run_id: int) -> None:
        self._emit = emit
        self._clock = clock
        self._run_id = run_id
        self._sums: dict[Kind, _Sum] = {}

    def add(self, kind: Kind, size: int, seconds: float) -> None:
        """Take in a copy of ``size`` bytes that took ``seconds``."""
        total = self._sums.setdefault(kind, _Sum())
        total.bytes += size
        total.seconds += seconds
        now = self._clock()
        if total.told_s is None or now - total.told_s >= REPORT_PERIOD_S:
            self._tell(kind, total, now)

    def flush(self) -> None:
        """Tell what has not been told."""
        for kind, total in self._sums.items():
            if total.bytes:
                self._tell(kind, total, self._clock())

    def _tell(self, kind: Kind, total: _Sum, now_s: float) -> None:
        source, target, memory, blocking = kind
        self._emit(
            Transfer(
                time_s=now_s,
                run_id=self._run_id,
                from_device=source,
                to_device=target,
                memory=memory,
                blocking=blocking,
                bytes=total.bytes,
                seconds=total.seconds,
            )
        )
        total.told_s, total.bytes, total.seconds = now_s, 0, 0.0
