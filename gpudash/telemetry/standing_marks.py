"""Which marks stand: the user can take one back, and make it again."""

from __future__ import annotations

from collections.abc import Iterable

from gpudash.telemetry.records import REMOVED, Marker


def standing_marks(markers: Iterable[Marker]) -> list[Marker]:
    """The marks that stand behind ``markers``, which are in the order they were made."""
    standing: list[Marker] = []
    for marker in markers:
        if marker.category != REMOVED:
            standing.append(marker)
        elif (taken := next((mark for mark in standing if _takes_back(marker, mark)), None)) is not None:
            standing.remove(taken)
    return standing


def _takes_back(removed: Marker, mark: Marker) -> bool:
    return (mark.time_s, mark.label, mark.category) == (removed.time_s, removed.label, "user")
