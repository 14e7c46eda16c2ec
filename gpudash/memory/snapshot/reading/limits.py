"""How much of a snapshot file is read, and at what cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from gpudash.units import GIB, MIB


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """What reading may take, in bytes.

    Attributes:
        file_bytes: a larger file is not opened.
        expanded_bytes: of a compressed file, once it is expanded.
        memory_bytes: for everything that reading makes; a file that needs more is read in part.
        text_bytes: of the longest text; the names in real files have a few hundred at most.
    """

    file_bytes: int = 64 * GIB
    expanded_bytes: int = 64 * GIB
    memory_bytes: int = 2 * GIB
    text_bytes: int = 16 * MIB

    def __post_init__(self) -> None:
        for name in ("file_bytes", "expanded_bytes", "memory_bytes", "text_bytes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}.")


class TimeRange(NamedTuple):
    """A part of a trace, in microseconds since 1970, both ends included; ``None``: no bound.

    What is cut out stands between the first event that is not too early and the last that is not too late: the order
    of events matters more than their clocks.
    """

    from_us: int | None = None
    to_us: int | None = None
