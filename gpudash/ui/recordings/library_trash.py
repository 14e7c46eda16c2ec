"""Ways back and forth between the folder of recordings and its trash, as undoing needs them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from gpudash.session.recordings.library import LibraryEntry
from gpudash.telemetry.recording.recorder import RecordingError


class Moves:
    """Recordings that were moved to the trash together, and the ways between their two places.

    Args:
        delete: moves one to the trash; gives its place there.
        restore: moves one from its place in the trash to another; gives the place it was moved to.
        moved: each recording as it was, with its place in the trash.
    """

    def __init__(
        self,
        delete: Callable[[Path], Path],
        restore: Callable[[Path, Path], Path],
        moved: list[tuple[LibraryEntry, Path]],
    ) -> None:
        self._delete, self._restore = delete, restore
        self.places = [entry.path for entry, _place in moved]
        self._trashed = [place for _entry, place in moved]

    def back(self) -> None:
        """Out of the trash.

        Raises:
            RecordingError: a sentence for each of them that cannot be moved; the others are.
        """
        ways = zip(self._trashed, self.places, strict=True)
        self.places = _moved([partial(self._restore, trashed, place) for trashed, place in ways])

    def forth(self) -> None:
        """Into the trash.

        Raises:
            RecordingError: a sentence for each of them that cannot be moved; the others are.
        """
        self._trashed = _moved([partial(self._delete, place) for place in self.places])


def _moved(moves: Iterable[Callable[[], Path]]) -> list[Path]:
    """Make every move; returns the new places."""
    places, problems = [], []
    for move in moves:
        try:
            places.append(move())
        except RecordingError as error:
            problems.append(str(error))
    if problems:
        raise RecordingError(" ".join(problems))
    return places
