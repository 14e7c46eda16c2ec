"""A session on another machine, received through a pipe as lines of ``gpudash monitor --json-lines``."""

from __future__ import annotations

import json
import logging
import os
import select
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import IO, Any

from gpudash.session.recordings.loading import take_links
from gpudash.session.recordings.replay import Replay, origin
from gpudash.system.threads import started
from gpudash.telemetry.metrics import METRICS
from gpudash.telemetry.recording import schema
from gpudash.telemetry.recording.reading import LONGEST_S, KnownDevices
from gpudash.telemetry.recording.recorder import Recorder
from gpudash.telemetry.records import LARGEST, Note, Record, Sample, State, Topic, Value, event_from_json
from gpudash.telemetry.store import Store

logger = logging.getLogger(__name__)

LONGEST_LINE = 4 * 2**20
"""Bytes of a line; a longer one is skipped without being stored."""

CHUNK = 2**16
"""Bytes read at a time."""

WAIT_S = 0.1
"""Longest wait for a line, so that commits stay on time."""

JOIN_S = 2.0
"""How long closing waits for the reading thread."""


class Incoming(Replay):
    """A stream, recorded to a private file and followed there, with everything a replay can do.

    An invalid line is counted and left out; after the end of the stream the records so far remain.

    Args:
        stream: JSON lines, as text or bytes; read on its own thread until it ends.

    Raises:
        RecordingError: when there is no space for the private file.
    """

    def __init__(self, stream: IO[Any]) -> None:
        self._stream = stream
        self._folder = tempfile.TemporaryDirectory(prefix="gpudash-")
        self._bad = 0
        self._known_devices = KnownDevices()
        self._ended = ""
        self._stop = threading.Event()
        try:
            # The private file first: the replay follows it like any other recording that is being written.
            self._recorder = Recorder(Path(self._folder.name) / "stream.gpudash", meta={})
            try:
                super().__init__(self._recorder.path)
            except BaseException:
                self._recorder.close()
                raise
        except BaseException:
            self._folder.cleanup()
            raise
        self._thread = started("gpudash-incoming", self._pump)

    @property
    def notices(self) -> list[str]:
        """What could not be read, and whether the stream has ended, a sentence each."""
        bad = []
        if self._bad:
            bad = [f"{self._bad} lines of the stream make no sense and are left out"]
        return [*super().notices, *bad, *filter(None, (self._recorder.failed, self._ended))]

    def close(self) -> bool:
        """Stop reading and remove the private file; false if a thread did not end in time."""
        self._stop.set()
        self._thread.join(JOIN_S)
        # The thread before the file, because it may still write.
        ended = super().close() and not self._thread.is_alive()
        if ended:
            self._folder.cleanup()
        return ended

    def _pump(self) -> None:
        store = Store()
        # A separate store for the recorder's summaries; the displayed one follows the file.
        self._recorder.summarise(store)
        try:
            for line in self._lines():
                if line is not None:
                    self._line(line, store)
                self._recorder.tick()
            self._ended = "The stream has ended; what came is shown"
        except Exception as error:
            logger.exception("a stream cannot be read any more")
            self._ended = f"The stream cannot be read any more ({type(error).__name__}: {error})"
        finally:
            self._recorder.close()

    def _line(self, line: bytes, store: Store) -> None:
        try:
            record = record_from_line(line)
            # A stream may name any number of devices, each of which would become a table of curves.
            if isinstance(record, Sample) and not self._known_devices.admits(record.table, record.device):
                raise ValueError("one device too many")
            # Applied before it is recorded: what the store refuses must not get into the file.
            store.apply(record)
        except Exception:  # the other end may send anything
            if not self._bad:
                logger.warning("a line of the stream makes no sense; later ones are counted", exc_info=True)
            self._bad += 1
            return
        if isinstance(record, Note) and record.topic == Topic.SESSION:
            self._introduce(record)
        if isinstance(record, Note):
            take_links(store, record)
        self._recorder.add(record)

    def _introduce(self, note: Note) -> None:
        details = note.details
        self.began_wall_s = origin(str(details.get("wall_clock_origin")), self.recording_path)
        self._product = str(details.get("host_product", self._product))
        self.host_capacity_source = str(details.get("host_capacity_source", self.host_capacity_source))
        self._recorder.describe({key: details[key] for key in details if key not in ("format_version", "status")})

    def _lines(self) -> Iterator[bytes | None]:
        """Lines without their ends; ``None`` if none arrived for a while."""
        begun, too_long = b"", False
        for data in self._chunks():
            if data is None:
                yield None
                continue
            # The last part is incomplete.
            *whole, begun = (begun + data).split(b"\n")
            for line in whole:
                if too_long:
                    too_long = False
                    self._bad += 1
                elif line.strip():
                    yield line
            if len(begun) > LONGEST_LINE:
                begun, too_long = b"", True
        if too_long or begun.strip():
            self._bad += 1  # cut off in the middle

    def _chunks(self) -> Iterator[bytes | None]:
        try:
            # Duplicated, so that closing here leaves the caller's stream open.
            descriptor = os.dup(self._stream.fileno())
        except (OSError, ValueError):  # not a file of the operating system
            while not self._stop.is_set() and (data := self._stream.read(CHUNK)):
                yield data if isinstance(data, bytes) else str(data).encode()
            return
        with closing(os.fdopen(descriptor, "rb", buffering=0)) as file:
            while not self._stop.is_set():
                # With a time limit: the thread must notice the end, and the recorder must commit.
                if not select.select([descriptor], [], [], WAIT_S)[0]:
                    yield None
                elif data := file.read(CHUNK):
                    yield data
                else:
                    return


def record_from_line(line: bytes) -> Record:
    """The record in a line of ``gpudash monitor --json-lines``; unknown parts are left out.

    Raises:
        ValueError: when the line is not a record.
    """
    data = json.loads(line)
    if not isinstance(data, dict):
        raise ValueError("not an object")
    time_s = data.get("time_s")
    # Times beyond this would make axes and summaries arbitrarily long.
    if not isinstance(time_s, int | float) or not 0 <= time_s < LONGEST_S:
        raise ValueError("no time")
    if "table" not in data:
        event = event_from_json(line.decode())
        if event.run_id is not None and not _fits(event.run_id):
            raise ValueError("no number of a run")
        return event
    table, device = data["table"], data.get("device")
    if table not in schema.TABLES or not isinstance(device, str | None):
        raise ValueError("not a reading")
    raw = data.get("states")
    states = {}
    if isinstance(raw, dict):
        states = {name: _state(word) for name, word in raw.items()}
    values: dict[str, Value] = {}
    for metric in METRICS[table]:
        value = data.get(metric.name)
        if isinstance(value, str) if metric.type == "TEXT" else _fits(value):
            values[metric.name] = value
        # A key without a value is a gap, not a reading that was never taken.
        elif metric.name in data:
            values[metric.name] = None
            states.setdefault(metric.name, State.STALE)
    # A state explains a missing value; beside a value it would contradict it.
    known = {name: state for name, state in states.items() if name in values and values[name] is None}
    return Sample(float(time_s), table, device, values, known)


def _fits(value: object) -> bool:
    """Whether a recording can hold ``value`` as a number."""
    return isinstance(value, float) or (isinstance(value, int) and -LARGEST <= value <= LARGEST)


def _state(word: object) -> State:
    try:
        return State(str(word))
    except ValueError:
        return State.STALE
