"""How moments of a history are told."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpudash.units import format_count, format_duration

if TYPE_CHECKING:
    from gpudash.memory.snapshot.history import History


def moment_words(history: History, moment: int) -> str:
    """A moment: by its time since the first event, else by its event."""
    if moment < 0:
        return "the begin of the recording"
    seconds = history.time_s(moment)
    if seconds is None:
        return f"event {format_count(moment)}"
    return format_duration(seconds)
