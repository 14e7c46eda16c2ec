"""Records as lines of JSON on stdout, written so that a reader who stalls or leaves delays nothing."""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
from typing import Any

from gpudash.cli.terminal.output import json_visible
from gpudash.telemetry.records import Record, Sample, plain

WAITING_LINES = 20_000
"""Records that wait for a slow reader, some minutes' worth; later ones are left out of the output and counted."""


class JsonLines:
    """Writes records on a thread of its own.

    Attributes:
        reader_left: whether the other end of the pipe was closed.
        problem: why nothing could be written; "" when the reader left.
        left_out: records that were not written because the reader was too slow.
    """

    def __init__(self) -> None:
        self.reader_left = False
        self.left_out = 0
        self.problem = ""
        self._descriptor = sys.stdout.fileno()
        self._waiting: queue.Queue[Record | None] = queue.Queue(WAITING_LINES)
        self._thread = threading.Thread(target=self._write_all, name="gpudash-lines", daemon=True)
        self._thread.start()

    def put(self, record: Record) -> None:
        """Write ``record`` when its turn comes; never waits."""
        try:
            self._waiting.put_nowait(record)
        except queue.Full:
            self.left_out += 1

    def close(self, timeout_s: float) -> bool:
        """Write what is waiting, for at most ``timeout_s``; whether that was enough."""
        try:
            self._waiting.put(None, timeout=timeout_s / 2)
        except queue.Full:
            return False
        self._thread.join(timeout_s / 2)
        return not self._thread.is_alive()

    def _write_all(self) -> None:
        while (record := self._waiting.get()) is not None:
            text = json_visible(json.dumps(as_json(record), ensure_ascii=False)) + "\n"
            try:
                self._write(text.encode(errors="backslashreplace"))
            except OSError as error:
                self.reader_left = True
                self.problem = "" if isinstance(error, BrokenPipeError) else str(error.strerror)
                return

    def _write(self, data: bytes) -> None:
        # Past sys.stdout, whose lock a stalled write would hold against the flush on the way out.
        while data:
            data = data[os.write(self._descriptor, data) :]


def as_json(record: Record) -> Any:
    """The object of a record's line: an event as `Event.to_json` writes it, a reading with its values beside it."""
    if not isinstance(record, Sample):
        return json.loads(record.to_json())
    reading = {"time_s": record.time_s, "table": record.table, "device": record.device, **record.values}
    return plain({**reading, "states": record.states} if record.states else reading)
