"""Follows a recording that is still being written, by whichever process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from gpudash.telemetry.reading import open_recording
from gpudash.telemetry.recorder import RecordingError, being_written
from gpudash.telemetry.records import Record
from gpudash.telemetry.schema import Rows

POLL_S = 0.25
"""Seconds between two looks: as often as the recorder commits."""

MOST_RECORDS = 5000
"""Records that are handed on at a time."""


class Following:
    """A thread that hands on new records until the writer ends.

    It opens the file anew for every look: a reader that stayed would keep the writer from leaving one tidy file.

    Args:
        path: the recording.
        rows: up to which each table is known.
        take: is given new records, in order of time, and the rows up to which they go.

    Attributes:
        on: whether the recording may still grow.
        problem: why following ended early, in one sentence.
    """

    def __init__(self, path: Path, rows: Rows, take: Callable[[Sequence[Record], Rows], None]) -> None:
        self.on = True
        self.problem = ""
        self._path = path
        self._rows = rows
        self._take = take
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="gpudash-follow", daemon=True)
        self._thread.start()

    def close(self, timeout_s: float = 2.0) -> bool:
        """End the thread; false when it did not end in time."""
        self._stop.set()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _follow(self) -> None:
        try:
            while not self._stop.wait(POLL_S):
                written = being_written(self._path)
                self._look()
                if not written:
                    break
        except RecordingError as error:
            self.problem = str(error)
        except Exception as error:  # a damaged row can hold anything
            self.problem = f"{self._path} cannot be followed any more ({type(error).__name__}: {error})"
        finally:
            self.on = False

    def _look(self) -> None:
        with open_recording(self._path) as recording:
            last = recording.last_rows()
            waiting: list[Record] = []
            for record in recording.records(self._rows, last):
                waiting.append(record)
                if len(waiting) >= MOST_RECORDS:
                    self._take(waiting, self._rows)
                    waiting = []
            self._rows = last
            self._take(waiting, last)
