"""The output of ``gpudash monitor``: for a person, a row per device and events as they happen; for a program, every
record as a line of JSON on stdout. A reader that stalls or leaves delays nothing.
"""

from __future__ import annotations

import heapq
import itertools
import json
import math
import os
import queue
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.live import Live
from rich.table import Column, Table

from gpudash.cli.terminal.output import (
    Exit,
    fitted,
    json_visible,
    leave,
    numbers,
    plain_table,
    print_json,
    print_notice,
    print_table,
    stdout,
)
from gpudash.devices.names import shown_name
from gpudash.system.threads import started
from gpudash.telemetry.metrics import SENSORS
from gpudash.telemetry.records import Record, Sample, SourceFailed, SourceRecovered, State, Warning, plain
from gpudash.telemetry.store import Store
from gpudash.units import format_pair, format_percent, format_rate

if TYPE_CHECKING:
    from pathlib import Path

    from gpudash.cli.terminal.flags import Served
    from gpudash.session import Session
    from gpudash.session.remote.machine import RemoteMachine

    Watched = Session | RemoteMachine

SPARED = tuple(metric.title for metric in reversed(SENSORS))
"""Titles of the columns dropped first in a narrow terminal."""

Key = tuple[str, str, str | None]
"""Device name, reading table, device in the store."""


class LiveTable:
    """A table that follows the readings in a terminal; elsewhere it is printed once, at the end.

    Args:
        sessions: sessions or machines over ssh to show.
        names: names of several machines, shown at the start of each row.
    """

    def __init__(self, *sessions: Watched, names: Sequence[str] = ()) -> None:
        self._sessions = sessions
        self._names = names or [""] * len(sessions)
        self._printed = [0] * len(sessions)
        self._live = Live(console=stdout(), refresh_per_second=4, transient=True) if sys.stdout.isatty() else None
        if self._live is not None:
            self._live.start()

    def refresh(self) -> None:
        """Show the newest readings, and print new warnings and lost or recovered sources on stderr."""
        for index, session in enumerate(self._sessions):
            store = session.store
            with store.lock:
                # Count from the end: the store keeps only its newest events, but counts all.
                fresh = list(islice(reversed(store.events), store.event_count - self._printed[index]))[::-1]
                self._printed[index] = store.event_count
            for event in fresh:
                if isinstance(event, (Warning, SourceFailed, SourceRecovered)):
                    print_notice(event.text)
        if self._live is not None:
            table, notice = fitted(self._table(), self._live.console, SPARED)
            self._live.update(Group(table, notice) if notice else table)

    def close(self) -> None:
        """Print the last readings for good."""
        self.refresh()
        if self._live is not None:
            self._live.stop()
        print_table(self._table(), stdout(), SPARED)
        for session in self._sessions:
            if session.gpu_problem is not None:
                stdout().print(session.gpu_problem, soft_wrap=True)

    def _table(self) -> Table:
        sensors = [metric.title for metric in SENSORS]
        whole = Column("device", no_wrap=True), Column("memory", justify="right", no_wrap=True)
        table = plain_table(*whole, *numbers("busy", *sensors, "to the GPU", "from the GPU"))
        for name, session in zip(self._names, self._sessions, strict=True):
            for device, *cells in _rows(session):
                table.add_row(f"{name} {device}".lstrip(), *cells)
        return table


def _rows(session: Watched) -> list[list[str]]:
    """The cells of every device of a machine."""
    names = {device.uuid: shown_name(device.name) for device in session.devices() if device.uuid}
    keys: list[Key] = [("cpu", "host", None)]
    keys += [(names.get(gpu.uuid, f"GPU {gpu.number}"), "gpu", gpu.uuid) for gpu in session.gpus]
    shared = {gpu.uuid for gpu in session.gpus if gpu.shared_memory}
    with session.store.lock:
        # All rows under one lock, so that they show the same moment.
        return [_cells(session.store, key, "shared" if key[2] in shared else "") for key in keys]


def _cells(store: Store, key: Key, remark: str) -> list[str]:
    name, table, device = key
    used = store.latest(table, "used_bytes", device)
    # Without a value, show the state; before the first reading, nothing is known.
    if used.value is None and used.state is not State.OK:
        return [name, used.state.value if used.time_s is not None else "not read yet"]
    memory = f"{memory_text(store, table, device)} {remark}".rstrip()
    if table == "host":
        return [name, memory, _text(_number(store, key, "cpu_utilisation"), format_percent)]
    return [
        name,
        memory,
        _text(_number(store, key, "gpu_utilisation"), format_percent),
        *(_text(_number(store, key, metric.name), metric.distinguished) for metric in SENSORS),
        _text(_number(store, key, "pcie_rx_bytes_per_second"), format_rate),
        _text(_number(store, key, "pcie_tx_bytes_per_second"), format_rate),
    ]


def memory_text(store: Store, table: str, device: str | None) -> str:
    """Used and total memory, including the driver's own share, as in the overview of machines."""
    key = "", table, device
    taken = _number(store, key, "used_bytes")
    if taken is not None:
        taken += _number(store, key, "driver_reserved_bytes") or 0
    return format_pair(taken, _number(store, key, "total_bytes"))


def _number(store: Store, key: Key, metric: str) -> float | None:
    return store.latest(key[1], metric, key[2]).number


def _text(value: float | None, write: Callable[[float], str]) -> str:
    if value is None:
        return "–"
    return write(value)


def follow(
    seconds: float | None,
    ended: Callable[[], bool],
    table: LiveTable | None,
    begun: Callable[[], bool] = lambda: True,
) -> None:
    """Wait for the time to pass or for ``ended``, updating the table; the time counts from when ``begun`` is true."""
    until = math.inf
    while not ended() and (left := until - time.monotonic()) > 0:
        # The clock starts when watching has begun, which may take a while for a machine over ssh.
        if until == math.inf and seconds is not None and begun():
            until = time.monotonic() + seconds
            continue
        time.sleep(min(left, POLL_S))
        if table is not None:
            table.refresh()


def watch(
    table: LiveTable | None,
    served: Served,
    begin: Callable[[], None],
    *,
    seconds: float | None,
    ended: Callable[[], bool],
    begun: Callable[[], bool] = lambda: True,
) -> None:
    """Serve figures and follow them, like `follow`; the last ones stay in the terminal.

    Args:
        table: table for a person; ``None`` if a program reads the output.
        served: closed at the end, also if nothing can be printed.
        begin: starts serving.
    """
    try:
        begin()
        follow(seconds, ended, table, begun)
    finally:
        try:
            if table is not None:
                # Stop serving even if the terminal accepts no more text.
                table.close()
        finally:
            served.close()


def finish(
    summary: dict[str, Any] | None,
    recordings: Iterable[Path],
    lines: JsonLines | None,
    *,
    joined: bool,
    failed: bool,
    interrupted: bool,
) -> int:
    """Print what is due at the end of watching; return the exit code.

    Args:
        summary: printed as a document; ``None`` if none was requested.
        recordings: listed for a person.
        lines: closed; if they could not be written, that is a failure.
        joined: whether every thread has ended.
        failed: whether watching failed.
        interrupted: whether Ctrl+C ended it early.
    """
    joined = end_lines(lines) and joined
    if summary is not None:
        print_json(summary)
    for path in recordings:
        print_notice(f"Recording: {path}")
    if failed or (lines is not None and lines.problem):
        return leave(Exit.FAILED, joined)
    return leave(Exit.INTERRUPTED if interrupted else Exit.FINISHED, joined)


POLL_S = 0.1
"""Seconds between checks for Ctrl+C and for a reader that has left."""

LINES_TIMEOUT_S = 0.5
"""Seconds for the last lines to be read when watching ends."""

WAITING_LINES = 20_000
"""Maximum number of records that wait for a slow reader, some minutes' worth; later ones are dropped and counted."""


REORDERED_S = 0.25
"""Seconds that a line waits for earlier ones: a reading has the time at which it was requested, so one that takes
longer arrives late."""


class JsonLines:
    """Writes records in order of time, on its own thread.

    Attributes:
        reader_left: whether the other end of the pipe was closed.
        problem: why nothing could be written; "" if the reader left.
        left_out: number of records dropped because the reader was too slow.
    """

    def __init__(self) -> None:
        self.reader_left = False
        self.left_out = 0
        self.problem = ""
        self._descriptor = sys.stdout.fileno()
        self._waiting: queue.Queue[tuple[Record, str] | None] = queue.Queue(WAITING_LINES)
        self._thread = started("gpudash-lines", self._write_all)

    def put(self, record: Record, machine: str = "") -> None:
        """Queue ``record`` for writing; never blocks.

        Args:
            record: record to write.
            machine: one of several machines that it is from; its line starts with that.
        """
        try:
            self._waiting.put_nowait((record, machine))
        except queue.Full:
            self.left_out += 1

    def close(self, timeout_s: float) -> bool:
        """Write what is queued, for at most ``timeout_s``; return whether that was enough."""
        try:
            self._waiting.put(None, timeout=timeout_s / 2)
        except queue.Full:
            return False
        self._thread.join(timeout_s / 2)
        return not self._thread.is_alive()

    def _write_all(self) -> None:
        # Readings come from several threads with the time of their request, so they do not arrive in order.
        held: list[tuple[float, int, tuple[Record, str]]] = []  # a heap, by time, then by arrival
        arrivals: deque[tuple[float, float, int]] = deque()  # arrival time of each, and its key in the heap
        for number in itertools.count():
            wait_s = None
            if arrivals:
                wait_s = arrivals[0][0] + REORDERED_S - time.monotonic()
            try:
                waiting = self._waiting.get(timeout=None if wait_s is None else max(0.0, wait_s))
            except queue.Empty:
                pass
            else:
                # Nothing follows, so the rest of the heap can be written in order.
                if waiting is None:
                    self._write_lines(heapq.heappop(held)[-1] for _ in range(len(held)))
                    return
                record_s = waiting[0].time_s
                heapq.heappush(held, (record_s, number, waiting))
                arrivals.append((time.monotonic(), record_s, number))
            due = (0.0, -1)
            # A record that has waited long enough releases itself and everything earlier, even if that arrived later.
            while arrivals and arrivals[0][0] <= time.monotonic() - REORDERED_S:
                due = max(due, arrivals.popleft()[1:])
            ready = []
            while held and held[0][:2] <= due:
                ready.append(heapq.heappop(held)[-1])
            if not self._write_lines(ready):
                return

    def _write_lines(self, records: Iterable[tuple[Record, str]]) -> bool:
        """Write records; return false once the reader has left."""
        for record, machine in records:
            if machine:
                line = {"machine": machine, **as_json(record)}
            else:
                line = as_json(record)
            text = json_visible(json.dumps(line, ensure_ascii=False)) + "\n"
            try:
                self._write(text.encode(errors="backslashreplace"))
            except OSError as error:
                self.reader_left = True
                if isinstance(error, BrokenPipeError):
                    self.problem = ""
                else:
                    self.problem = str(error.strerror)
                return False
        return True

    def _write(self, data: bytes) -> None:
        # Bypass sys.stdout: a stalled write would hold its lock against the flush at exit.
        while data:
            # A pipe may accept only a part.
            data = data[os.write(self._descriptor, data) :]


def end_lines(lines: JsonLines | None) -> bool:
    """Let the last lines be read; return false if their thread could not be joined."""
    if lines is None:
        return True
    joined = lines.close(LINES_TIMEOUT_S)
    if lines.problem:
        print_notice(f"What was to be printed cannot be written: {lines.problem}.")
    if lines.left_out:
        print_notice(f"{lines.left_out} lines were left out because they were not read in time.")
    return joined


def as_json(record: Record) -> Any:
    """The JSON object of a record: an event as in `Event.to_json`, a reading with its values as keys."""
    if not isinstance(record, Sample):
        return json.loads(record.to_json())
    reading = {"time_s": record.time_s, "table": record.table, "device": record.device, **record.values}
    return plain({**reading, "states": record.states} if record.states else reading)
