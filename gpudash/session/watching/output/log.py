"""What a watched program prints: read in bounded pieces for the recording, and as lines for people, the newest
ones.
"""

from __future__ import annotations

import itertools
import re
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Literal, NamedTuple

from gpudash.session.watching.output.relay import CHUNK, HEADER
from gpudash.system.threads import started
from gpudash.telemetry.records import Output

Stream = Literal["stdout", "stderr"]

MOST_LINES = 20_000
"""Most lines kept; the oldest are dropped."""

MOST_BYTES = 16 * 2**20
"""Largest total size of the lines kept."""

LONGEST_LINE = 4096
"""Bytes kept of a line; the rest is dropped."""

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-_])")
"""Terminal control sequences (ECMA-48): colours, cursor movements, titles."""

_UNSEEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


class OutputLine(NamedTuple):
    """A printed line, without its end."""

    stream: Stream
    text: str


class OutputLog:
    """Lines of the newest program, numbered since the session began. Any thread may add and read."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lines: deque[OutputLine] = deque()
        self._bytes = 0
        self._first = 0
        self._begin = 0
        self._unread = 0

    def begin(self) -> None:
        """Another program starts: drop the previous one's lines."""
        with self._lock:
            # Numbers continue across programs: a view that asks for lines since the previous one gets those of this
            # program.
            self._first += len(self._lines)
            self._begin, self._unread, self._bytes = self._first, 0, 0
            self._lines.clear()

    def add(self, lines: Sequence[OutputLine]) -> None:
        """Add printed lines."""
        with self._lock:
            self._lines.extend(lines)
            self._bytes += sum(len(line.text) for line in lines)
            while len(self._lines) > MOST_LINES or self._bytes > MOST_BYTES:
                self._bytes -= len(self._lines.popleft().text)
                self._first += 1

    def leave_out(self, count: int) -> None:
        """Count lines that were printed faster than they could be read."""
        with self._lock:
            self._unread += count

    def since(self, number: int) -> tuple[tuple[OutputLine, ...], int, int]:
        """Lines from ``number`` on.

        Returns:
            The lines that are still kept, the number to ask for next, and how many lines since ``number`` were
            dropped.
        """
        with self._lock:
            # Numbers below `_first` have been dropped; below `_begin` they were another program's.
            start = max(number, self._first)
            kept = tuple(self._lines[place] for place in range(start - self._first, len(self._lines)))
            return kept, self._first + len(self._lines), max(0, self._first - max(number, self._begin))

    def newest(self, count: int) -> tuple[OutputLine, ...]:
        """The last ``count`` lines that are kept."""
        with self._lock:
            whole = len(self._lines)
            return tuple(self._lines[place] for place in range(max(0, whole - count), whole))

    @property
    def left_out(self) -> int:
        """Number of this program's lines that were dropped, or never kept."""
        with self._lock:
            return self._first - self._begin + self._unread


class LineCutter:
    """Splits a stream into lines as a terminal shows them: text overwritten after a carriage return is dropped."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._begun = b""

    def feed(self, data: bytes) -> list[OutputLine]:
        """The lines that are now complete."""
        *whole, begun = (self._begun + data).split(b"\n")
        # Drop overwritten text immediately: a progress bar may print for hours without a line end.
        if b"\r" in begun:
            last = begun.rstrip(b"\r").rpartition(b"\r")[2]
            # A carriage return at the very end may be half of "\r
            # ".
            if begun.endswith(b"\r"):
                begun = last + b"\r"
            else:
                begun = last
        self._begun = begun[:LONGEST_LINE]
        return [OutputLine(self._stream, shown(line)) for line in whole]

    def end(self) -> list[OutputLine]:
        """The incomplete line at the end of the stream."""
        begun, self._begun = self._begun, b""
        if begun.strip(b"\r"):
            return [OutputLine(self._stream, shown(begun))]
        return []


def shown(line: bytes) -> str:
    """A line for display: without control sequences and characters, limited in length."""
    # Cut before decoding, so that a line's length limits the work.
    text = line.rstrip(b"\r").rpartition(b"\r")[2][:LONGEST_LINE].decode("utf-8", "replace")
    if text.isprintable():
        return text
    return _UNSEEN.sub("", _ESCAPES.sub("", text))


MOST_AT_ONCE = 2000
"""Most lines waiting to be recorded; beyond that, the oldest are dropped."""

PIECE_LINES = 200
"""Most lines of one record."""

LINES_PER_SECOND = 200
"""Most lines recorded per second for a program that prints continuously; `MOST_AT_ONCE` may come together."""

LINE_BYTES = 128
"""A longer line counts as several."""

JOIN_S = 0.05
"""Interval of the checks whether everything has been read."""

HURRIED_S = 0.5
"""Longest wait for the rest of the output while the dashboard is closing."""

LAST_LINES = 200
"""Number of last lines that are always recorded: they say why a program ended."""


class OutputReader:
    """Reads packets of `relay` on a thread of its own until there are no more.

    Args:
        connection: socket with the packets.
        log: stores the lines.
        clock: session time in seconds.
        run_id: of the run.
        heard: callback on that thread for each piece: its stream, its data (``None`` if lines are missing) and the
            time.
    """

    def __init__(
        self,
        connection: socket.socket,
        log: OutputLog,
        clock: Callable[[], float],
        run_id: int,
        heard: Callable[[int, bytes | None, float], None],
    ) -> None:
        self._connection = connection
        self._log = log
        self._clock = clock
        self._run_id = run_id
        self._heard = heard
        self._cutters = {1: LineCutter("stdout"), 2: LineCutter("stderr")}
        self._lock = threading.Lock()
        self._fresh: deque[OutputLine] = deque()
        self._lost = 0
        self._pieces = self._held_up = 0
        self._allowed = float(MOST_AT_ONCE)
        self._taken_s = clock()
        self._thread = started("gpudash-output", self._read)

    def take(self, *, last: bool = False) -> list[Output]:
        """Output since the last call, as records; some lines are dropped if there are too many.

        Args:
            last: whether the program has ended: its last lines are always included.
        """
        now_s = self._clock()
        with self._lock:
            # A token bucket of lines, with a capacity of `MOST_AT_ONCE`.
            gained = (now_s - self._taken_s) * LINES_PER_SECOND
            self._allowed, self._taken_s = min(MOST_AT_ONCE, self._allowed + gained), now_s
            taken: deque[OutputLine] = deque()
            while self._fresh and (self._allowed >= 1 or (last and len(taken) < LAST_LINES)):
                # Newest first: dropped lines are older, and the last lines say why a program ended.
                line = self._fresh.pop()
                self._allowed -= 1 + len(line.text) // LINE_BYTES
                taken.appendleft(line)
            lost = self._lost + len(self._fresh)
            if taken:
                self._lost = 0
            else:
                # There is no record now: report the loss with the next one.
                self._lost, lost = lost, 0
            self._fresh.clear()
        return list(self._records(taken, lost, now_s))

    def end(self, quiet_s: float, at_most_s: float, hurried: Callable[[], bool]) -> bool:
        """Wait until everything has been read; returns whether it was.

        Time in which a reader blocks the output, such as a pager, does not count: dropped output would be lost.

        Args:
            quiet_s: time without new output after which the rest is dropped: some process keeps the stream open.
            at_most_s: time limit even if more arrives.
            hurried: returns whether to wait no longer than `HURRIED_S`; called repeatedly.
        """
        began_s = heard_s = time.monotonic()
        seen, held_up = self._pieces, self._held_up
        hurry_s: float | None = None
        while self._thread.is_alive():
            self._thread.join(JOIN_S)
            now_s = time.monotonic()
            if self._pieces != seen:
                seen, heard_s = self._pieces, now_s
            if self._held_up != held_up:
                # A reader blocks the stream, such as a pager: restart the time limit.
                held_up, began_s = self._held_up, now_s
            if hurry_s is None and hurried():
                hurry_s = now_s
            if now_s - heard_s > quiet_s or now_s - began_s > at_most_s:
                break
            if hurry_s is not None and now_s - hurry_s > HURRIED_S:
                break
        whole = not self._thread.is_alive()
        with suppress(OSError):
            # This wakes the thread in `recv`; closing alone does not.
            self._connection.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._connection.close()
        return whole

    def _records(self, lines: Sequence[OutputLine], lost: int, now_s: float) -> list[Output]:
        records = []
        for stream, run in itertools.groupby(lines, lambda line: line.stream):
            texts = [line.text for line in run]
            for begin in range(0, len(texts), PIECE_LINES):
                piece = texts[begin : begin + PIECE_LINES]
                records.append(Output(time_s=now_s, run_id=self._run_id, stream=stream, lines=piece, lost=lost))
                lost = 0
        return records

    def _read(self) -> None:
        while True:
            try:
                packet = self._connection.recv(CHUNK + HEADER.size)
            except OSError:
                packet = b""
            if len(packet) < HEADER.size:
                break
            self._pieces += 1
            # A header without data means that a reader blocks the stream (`Copies._send`).
            self._held_up += len(packet) == HEADER.size
            stream, left_out = HEADER.unpack_from(packet)
            cutter = self._cutters[stream]
            if left_out:
                # The missing part belongs to its line: neither half is a printed line.
                cutter.end()
                self._leave_out(left_out)
                self._heard(stream, None, self._clock())
            self._keep(cutter.feed(packet[HEADER.size :]))
            self._heard(stream, packet[HEADER.size :], self._clock())
        for cutter in self._cutters.values():
            self._keep(cutter.end())

    def _leave_out(self, count: int) -> None:
        self._log.leave_out(count)
        with self._lock:
            self._lost += count

    def _keep(self, lines: list[OutputLine]) -> None:
        self._log.add(lines)
        with self._lock:
            self._fresh.extend(lines)
            while len(self._fresh) > MOST_AT_ONCE:
                self._fresh.popleft()
                self._lost += 1
