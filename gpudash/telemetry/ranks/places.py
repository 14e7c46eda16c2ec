"""Where the ranks of a run are, as the run has told."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpudash.telemetry.runs import RunView


@dataclass(frozen=True, slots=True)
class RankPlace:
    """Where a rank of a run is, as the run's note tells it.

    Attributes:
        rank: from 0.
        device: torch's name.
        host: name of the machine; "" where nobody told it.
        capacity_bytes: of the device; ``None`` where it is not known, or the ranks share the machine's memory.
    """

    rank: int
    device: str
    host: str
    pid: int | None
    capacity_bytes: int | None


def places_of(run: RunView | None) -> tuple[RankPlace, ...]:
    """The ranks of a run in order, the newest word on each; empty for a run without ranks."""
    found: dict[int, RankPlace] = {}
    for told in _told(run):
        rows, world = told.get("ranks"), told.get("world_size")
        for row in rows if isinstance(rows, Sequence) else ():
            place = _place(row)
            if place is not None:
                found[place.rank] = place
        if isinstance(world, int):
            found = {rank: place for rank, place in found.items() if rank < world}
    return tuple(found[rank] for rank in sorted(found))


def _told(run: RunView | None) -> Iterator[Mapping[str, Any]]:
    """What a run has told of its ranks, the newest last; every node tells of its own."""
    if run is not None:
        yield from (note.details for note in run.notes if note.topic == "ranks")
        yield run.result


def _place(row: Any) -> RankPlace | None:
    """A row of such a list; ``None`` where it is none."""
    if not isinstance(row, Mapping) or not isinstance(row.get("rank"), int):
        return None
    capacity, pid = row.get("capacity_bytes"), row.get("pid")
    return RankPlace(
        rank=row["rank"],
        device=str(row.get("device") or "cpu"),
        host=str(row.get("host") or ""),
        pid=pid if isinstance(pid, int) else None,
        capacity_bytes=capacity if isinstance(capacity, int) else None,
    )


def ranks_words(run: RunView | None) -> str:
    """How many ranks a run has: "2 ranks", or "2 of 4 ranks" where the others are on machines not looked at."""
    known = len(places_of(run))
    if not known:
        return ""
    world = [told["world_size"] for told in _told(run) if isinstance(told.get("world_size"), int)]
    return f"{known} of {world[-1]} ranks" if world and world[-1] > known else f"{known} ranks"


def failed_rank(run: RunView) -> int | None:
    """The rank that ended a run, by its result, else by the sentence that names it first; ``None`` where none did."""
    found = run.result.get("failed_rank")
    if isinstance(found, int):
        return found
    named = None if run.error is None else re.search(r"\brank (\d+)\b", run.error.message, re.IGNORECASE)
    return None if named is None else int(named[1])
