"""What one rank tells of itself, and what becomes of it when all ranks have told the same step."""

from __future__ import annotations

from dataclasses import dataclass

from gpudash.telemetry.records import Sample


@dataclass(frozen=True, slots=True)
class RankStep:
    """One step of one rank.

    Attributes:
        rank: its number, from 0.
        step: the step's number, the same in every rank.
        time_s: session time of the step's end.
        step_s: from the end of the step before to the end of this one.
        compute_s: of that, what the rank computed itself; ``None`` where it cannot tell. A rank that can tell how long
            it waited for a core leaves that out; the logger in a watched script cannot, and there it is all that was
            not blocked.
        blocked_s: of that, what it did not compute but was blocked in collectives: communicating, and waiting for the
            ranks that came to them later; ``None`` where it cannot tell.
        loss: of the rank's own share of the batch, in nats.
        accuracy: of that share, 0 to 1.
    """

    rank: int
    step: int
    time_s: float
    step_s: float
    compute_s: float | None = None
    blocked_s: float | None = None
    loss: float | None = None
    accuracy: float | None = None


@dataclass(frozen=True, slots=True)
class RankMemory:
    """Memory of one rank at a session time, in bytes: of its process or device, and what its allocator says.

    The peaks are those since the process began, where its allocator keeps them; else the readings' own are told.
    """

    rank: int
    time_s: float
    used_bytes: int | None = None
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class JoinedStep:
    """A step that every rank has told.

    Attributes:
        step: its number.
        time_s: session time at which the last rank ended it.
        seconds: of the rank that took longest.
        loss: mean over the ranks that told one.
        accuracy: likewise.
        samples: rows of the reading table ``rank``, with the envelope from five ranks on.
    """

    step: int
    time_s: float
    seconds: float
    loss: float | None
    accuracy: float | None
    samples: tuple[Sample, ...]
