"""What happened, as rows of the events table."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from gpudash.devices import shown_name
from gpudash.telemetry.records import (
    REMOVED,
    EpochFinished,
    Event,
    Marker,
    Note,
    OutOfMemory,
    RunFailed,
    RunFinished,
    RunStarted,
    SourceFailed,
    SourceRecovered,
    Warning,
)
from gpudash.units import format_duration, format_percent


def event_row(event: Event, origin_s: float) -> Sequence[str] | None:
    """What happened, in words; ``None`` for what the plots and the stages tell."""
    told = _tell(event)
    if told is None:
        return None
    clock = datetime.fromtimestamp(origin_s + event.time_s).astimezone()
    return (f"{event.time_s:.3f} s", f"{clock:%H:%M:%S}", *told)


def _tell(event: Event) -> tuple[str, str] | None:
    match event:
        case RunStarted():
            return "run", f"{event.workload} started on {shown_name(event.device)}"
        case RunFinished():
            words = "finished" if event.status == "finished" else "stopped"
            return "run", f"{words} after {event.steps} steps, {format_duration(event.seconds)}"
        case RunFailed() | OutOfMemory():
            return "run", f"{event.message} {event.remedy}".strip()
        case Warning():
            return {"passed": "passed", "note": "note"}.get(event.level, f"{event.level}"), event.text
        case Marker():
            return "mark removed" if event.category == REMOVED else "mark", event.label
        case Note():
            return event.topic, event.text
        case EpochFinished():
            return "epoch", f"{event.epoch}: loss {event.loss:.4f}, accuracy {format_percent(event.accuracy)}"
        case SourceFailed() | SourceRecovered():
            return "source", event.text
    return None
