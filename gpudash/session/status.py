"""What the status line says of a live session."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Status:
    """Figures of a live session, its own cost included.

    Attributes:
        recording: the file being written, ``None`` when nothing is recorded.
        recording_bytes: its size.
        rate_hz: memory readings a second.
        missed: readings that could not be taken in time since the start.
        own_cpu_ratio: share of one core the monitor uses.
        driver: NVML driver version, or ``None``.
        torch: what torch this is, or that there is none, or ``None`` while it loads.
    """

    recording: Path | None
    recording_bytes: int
    rate_hz: float
    missed: int
    own_cpu_ratio: float
    driver: str | None
    torch: str | None
