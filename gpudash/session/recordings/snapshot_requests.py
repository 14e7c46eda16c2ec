"""Every memory request of a recorded program: not in its recording, but in memory snapshots that were kept."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gpudash.devices.simulated_cards import address_of
from gpudash.memory.request_log import RequestLogs
from gpudash.session.recordings.file_kinds import SNAPSHOT_NAME
from gpudash.system.threads import started
from gpudash.telemetry.records import Note, Topic

if TYPE_CHECKING:  # the reading thread imports what reads a snapshot: a live window reads none
    from gpudash.memory.snapshot.history.model import Snapshot

logger = logging.getLogger(__name__)

MOST_READ = 4
"""How many snapshots of one recording are read, the newest."""

PLACES: Mapping[str, str] = {Topic.SNAPSHOT: "path", Topic.REPORT: "folder"}
"""Topics of notes that point to a snapshot, and the detail that holds its path."""

NO_SNAPSHOT = (
    "No memory snapshot of this program was kept, so what each line held is not known. One is taken where memory runs "
    "out, or when you ask for it while the program runs (Ctrl+Shift+M)."
)
READING = "Reading the memory snapshot of this program…"
GONE = "What each line held is in {}, which is not there any more."
UNREAD = "What each line held could not be read from {}."

LONGEST_S = 120.0
"""A snapshot that takes longer to read is skipped."""


class SnapshotRequests:
    """Reads the snapshots that a recording points to, on its own thread, once they are requested.

    Args:
        began_wall_s: seconds since 1970 at the recording's session time 0.
        device_of: torch's name for the device of the run with this number.
    """

    def __init__(self, began_wall_s: float, device_of: Callable[[int | None], str | None]) -> None:
        self._began_wall_s = began_wall_s
        self._device_of = device_of
        self._logs = RequestLogs()
        self._logs.why_none = NO_SNAPSHOT
        self._waiting: list[tuple[Path, str]] = []
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()

    def take(self, note: Note) -> None:
        """Take in a note that may point to a snapshot."""
        key = PLACES.get(note.topic, "")
        where = note.details.get(key)
        device = self._device_of(note.run_id)
        if not isinstance(where, str) or device is None:
            return
        path = Path(where)
        if key == "folder":
            path = path / SNAPSHOT_NAME
        self._waiting = [*self._waiting, (path, device)][-MOST_READ:]

    @property
    def logs(self) -> RequestLogs:
        """The requests read so far; more may follow."""
        if self._waiting and self._thread is None:
            there = [(path, device) for path, device in self._waiting if path.is_file()]
            if not there:
                self._logs.why_none = GONE.format(self._waiting[-1][0])
                return self._logs
            self._logs.why_none = READING
            self._thread = started("gpudash-snapshot-requests", self._read, there)
        return self._logs

    def close(self) -> None:
        """Stop reading."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join(1.0)

    def _keep(self, snapshot: Snapshot, device: str) -> None:
        """Keep a snapshot's requests on the device, if it says when they were made."""
        from gpudash.memory.snapshot.history.history import History
        from gpudash.memory.snapshot.history.requests import log_of

        history = History(snapshot.device_called(address_of(device)), snapshot.annotations)
        if history.is_recorded and history.time_s(0) is not None:
            self._logs.put(device, log_of(history, self._began_wall_s))

    def _read(self, there: Sequence[tuple[Path, str]]) -> None:
        from gpudash.session.recordings.snapshot_opener import OpenedSnapshot

        for path, device in there:
            if self._closed.is_set():
                return
            self._logs.why_none = UNREAD.format(path)
            opened = OpenedSnapshot(path)
            try:
                opened.start()
                snapshot = opened.wait(LONGEST_S)
                if snapshot is not None:
                    self._keep(snapshot, device)
            except Exception:  # a foreign file beside the recording: without it the plot stays as it was
                logger.exception("the requests of a snapshot cannot be read")
            finally:
                opened.close()
