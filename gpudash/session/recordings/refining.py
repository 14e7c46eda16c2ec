"""Reads a short part of a long recording again, sample by sample, while the window goes on drawing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

from gpudash.session.recordings.loading import read_part
from gpudash.telemetry.recording.moments import LATE_ROWS
from gpudash.telemetry.recording.reading import Recording
from gpudash.telemetry.recording.recorded_series import Span
from gpudash.telemetry.recording.recorder import RecordingError
from gpudash.telemetry.recording.schema import Rows
from gpudash.telemetry.recording.seekable_store import PositionedStore

MOST_ROWS = 40_000
"""Rows that are read again at most: less than a second's work."""

MARGIN = 0.5
"""Part of a span that is read on either side of it as well, so that a little panning finds it there."""


class Sharpening:
    """Brings what a store's series ask for. Its thread is there only while there is something to read.

    Args:
        store: whose series ask, and are told.
        reading: opens the recording for a thread of its own.
        rows: up to which each table is known.
    """

    def __init__(
        self,
        store: PositionedStore,
        reading: Callable[[], AbstractContextManager[Recording]],
        rows: Callable[[], Rows],
    ) -> None:
        self._store = store
        self._reading = reading
        self._rows = rows
        self._lock = threading.Lock()
        self._wanted: Span | None = None
        self._refused: Span | None = None
        self._thread: threading.Thread | None = None
        self._closed = False
        self.problem = ""
        store.whole.ask = self.ask

    def ask(self, t0: float, t1: float) -> None:
        """Have the span from ``t0`` to ``t1`` read; the newest request wins. Returns at once."""
        with self._lock:
            if self._closed or (t0, t1) == self._refused:
                return
            self._wanted = (t0, t1)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="gpudash-sharpen", daemon=True)
                self._thread.start()

    def wait(self, timeout_s: float) -> bool:
        """Wait until everything that was asked for has been answered; false when the time passed first."""
        thread = self._thread
        if thread is not None:
            thread.join(timeout_s)
        return thread is None or not thread.is_alive()

    def close(self) -> None:
        """Read nothing more."""
        with self._lock:
            self._closed, self._wanted = True, None

    def _work(self) -> None:
        while True:
            with self._lock:
                wanted, self._wanted = self._wanted, None
                if wanted is None:
                    self._thread = None
                    return
            try:
                if not self._read(wanted):
                    self._refused = wanted
            except RecordingError as error:
                self.problem, self._refused = str(error), wanted
            except Exception as error:  # a damaged row can hold anything
                self.problem = f"A part of the recording cannot be read again ({type(error).__name__}: {error})"
                self._refused = wanted

    def _read(self, span: Span) -> bool:
        """Read what lies in ``span`` and around it; false when it is too much."""
        margin = (span[1] - span[0]) * MARGIN
        with self._reading() as recording:
            for low, high in ((span[0] - margin, span[1] + margin), span):
                last = self._rows()
                after = {table: max(0, row - LATE_ROWS) for table, row in recording.rows_at(low, last).items()}
                until = {table: row + LATE_ROWS for table, row in recording.rows_at(high, last).items()}
                if sum(until.values()) - sum(after.values()) <= MOST_ROWS:
                    part = read_part(recording, self._store.whole, after, until, low)
                    self._store.sharpen((low, high), part)
                    return True
        return False
