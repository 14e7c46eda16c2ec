"""Passes a watched program's output from its pipes to its destination, with a copy for the dashboard.

It is a separate process, run as a file by an interpreter without site-packages: the program's output continues if the
dashboard is killed, and only the reader of the output can block it, never the dashboard.

Arguments: descriptors of the program's output and error pipes, and of a socket to the dashboard; and "lines" where both
streams go to one place, so that their lines are kept whole there, or the descriptor of a socket that brings a status
line for the terminal (`STATUS`, `NOTICE`). Its own output and error are where the program's go.
Each packet on the socket is a `HEADER` (stream, 1 or 2, and how many lines were left
out before it) and what was printed; nothing was while a reader, such as a pager, holds the stream up.
"""

from __future__ import annotations

import os
import re
import select
import socket
import struct
import sys
import threading
import time
from collections import deque

HEADER = struct.Struct(">BQ")

CHUNK = 65_536

WAITING_BYTES = 1_048_576
"""Bytes of each stream that may wait for the dashboard; beyond that, the oldest are dropped."""

UNFINISHED_S = 0.2
"""Longest wait for the rest of a line before its beginning is written, if lines are kept whole."""

STATUS, NOTICE = b"S", b"N"
"""First byte of a packet for the terminal: a status line (empty for none), or a line that stays, above it."""

PAUSE_S = 0.1
"""Shortest interval between two updates of the status line, so that it does not slow down the output."""

ERASE = b"\r\x1b[2K"
"""Clears the cursor's line and moves the cursor to its start."""

HELD_UP_S = 0.25
"""Interval at which the dashboard is told that a reader, such as a pager, blocks the output."""

LAST_OUTPUT_S = 60.0
"""Time for the dashboard to read the rest after the program's end; a dashboard that has ended is noticed
immediately."""


class Copies:
    """Data for the dashboard, sent by a thread of its own."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._wake = threading.Condition()
        self._waiting: deque[tuple[int, bytes]] = deque()
        self._bytes = {1: 0, 2: 0}
        self._left_out = {1: 0, 2: 0}
        self._written = 0
        self._ended = self._gone = False
        self._thread = threading.Thread(target=self._send, daemon=True)
        self._thread.start()

    def put(self, stream: int, data: bytes) -> None:
        """Send a copy when the dashboard reads; never blocks. The data are about to be written, until `written`."""
        with self._wake:
            # The dashboard has ended: the program's output continues without copies.
            if self._gone:
                return
            self._written = stream
            self._waiting.append((stream, data))
            self._bytes[stream] += len(data)
            if self._bytes[stream] > WAITING_BYTES:
                self._drop_oldest(stream)
            self._wake.notify()

    def written(self) -> None:
        """The last data have been accepted by the output's destination."""
        with self._wake:
            self._written = 0

    def close(self) -> None:
        """There are no more data; allow time to read what waits."""
        with self._wake:
            self._ended = True
            self._wake.notify()
        self._thread.join(LAST_OUTPUT_S)

    def _drop_oldest(self, stream: int) -> None:
        # Of the stream that is too large: the other one must not lose lines for it.
        place = next(place for place, (of, _data) in enumerate(self._waiting) if of == stream)
        data = self._waiting[place][1]
        del self._waiting[place]
        self._bytes[stream] -= len(data)
        self._left_out[stream] += data.count(b"\n")

    def _send(self) -> None:
        while True:
            with self._wake:
                while not self._waiting and not self._ended:
                    # Woken by the timeout `HELD_UP_S`: a reader blocks the stream; an empty packet tells the
                    # dashboard.
                    if not self._wake.wait(HELD_UP_S if self._written else None) and self._written:
                        break
                if self._waiting:
                    stream, data = self._waiting.popleft()
                elif self._ended:
                    return
                else:
                    stream, data = self._written, b""
                # Taken under the lock but sent outside of it: `put` never waits for the dashboard.
                self._bytes[stream] -= len(data)
                left_out, self._left_out[stream] = self._left_out[stream], 0
            try:
                self._connection.send(HEADER.pack(stream, left_out) + data)
            except OSError:
                with self._wake:
                    self._gone = True
                    self._waiting.clear()
                return


class WholeLines:
    """Passes a stream on in complete lines, if the other stream has the same destination.

    Text without a line end within `UNFINISHED_S`, such as a prompt or a progress bar, passes as it is; the other
    stream then continues on a new line.
    """

    def __init__(self) -> None:
        self._begun = {1: b"", 2: b""}
        self._newest = 1
        self._newest_byte = b"\n"

    @property
    def timeout_ms(self) -> float | None:
        """Longest wait for the rest of a line; ``None`` if none is incomplete."""
        if any(self._begun.values()):
            return UNFINISHED_S * 1000
        return None

    def passed(self, stream: int, data: bytes) -> bytes:
        """The data to write after a stream has received ``data``: its complete lines."""
        whole, end, begun = (self._begun[stream] + data).rpartition(b"\n")
        # A line without an end must not be held forever.
        if len(begun) > CHUNK:
            whole, end, begun = whole + end + begun, b"", b""
        self._begun[stream] = begun
        return self._after_newest(stream, whole + end)

    def unfinished(self, stream: int) -> bytes:
        """The data to write for a stream's incomplete line."""
        begun, self._begun[stream] = self._begun[stream], b""
        return self._after_newest(stream, begun)

    def _after_newest(self, stream: int, data: bytes) -> bytes:
        if not data:
            return b""
        # The other stream has an incomplete line: this one continues below.
        cut = stream != self._newest and self._newest_byte != b"\n"
        self._newest, self._newest_byte = stream, data[-1:]
        if cut:
            return b"\n" + data
        return data


class TerminalStatus:
    """A line at the bottom of a terminal, below the program's output; it is erased before more output is written.

    It is only shown when the program's own line is complete, to leave prompts and progress bars alone, and never again
    once the program has moved the cursor to other lines: it then has the screen for itself.

    Args:
        connection: socket with the packets, whose texts fit in one line of the terminal.

    Attributes:
        ended: whether no more will be sent.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._text = b""
        self._shown = b""
        self._newest = b"\n"
        self._drawn_s = 0.0
        self._moves_cursor = False
        self.ended = False

    @property
    def descriptor(self) -> int:
        """File descriptor that is readable when a packet has arrived."""
        return self._connection.fileno()

    def receive(self) -> None:
        """Read a packet."""
        try:
            packet = self._connection.recv(CHUNK)
        except OSError:
            packet = b""
        if packet.startswith(STATUS):
            self._text = packet[1:]
        elif packet.startswith(NOTICE):
            self.erase()
            begin = b"\n"
            if self._newest.endswith(b"\n"):
                begin = b""
            self.passed(begin + packet[1:] + b"\n")
            _written(2, begin + packet[1:] + b"\n")
        else:
            self.ended, self._text = True, b""
            self.erase()

    def passed(self, data: bytes) -> None:
        """The program's output continues with these data; the line has been erased."""
        self.erase()
        self._moves_cursor = self._moves_cursor or _MOVES.search(self._newest + data) is not None
        self._newest = (self._newest + data)[-_LONGEST_SEQUENCE:]

    def refresh(self) -> float | None:
        """Show the newest text, if possible; returns the milliseconds until the next attempt."""
        # Not in the middle of the program's own line.
        if self._text == self._shown or self._moves_cursor or not self._newest.endswith(b"\n"):
            return None
        wait_s = self._drawn_s + PAUSE_S - time.monotonic()
        if wait_s > 0:
            return wait_s * 1000
        # Back to the start of the line, where the program's next output replaces it.
        _written(2, ERASE + self._text + (b"\r" if self._text else b""))
        self._shown, self._drawn_s = self._text, time.monotonic()
        return None

    def erase(self) -> None:
        """Erase the line."""
        if self._shown:
            _written(2, ERASE)
            self._shown = b""


_MOVES = re.compile(rb"\x1b(?:\[[0-9;]*[ABEFHJSTdfr]|\[\?1049h|[78M]|\[[su])")
"""Sequences with which a program writes to other lines than the current one (ECMA-48, DEC's save and restore)."""

_LONGEST_SEQUENCE = 16


def relay(
    sources: dict[int, int], copies: Copies, lines: WholeLines | None = None, status: TerminalStatus | None = None
) -> None:
    """Copy until the program has closed both streams, or its output is no longer read.

    Args:
        sources: descriptor to read → stream, which is also the descriptor to write.
        lines: keeps lines whole; ``None`` if each stream has its own destination, or is on a terminal.
        status: status line below the output on a terminal; ``None`` for none.
    """
    poll = select.poll()
    for source in (*sources, *([] if status is None else [status.descriptor])):
        poll.register(source, select.POLLIN)
    timeout_ms: float | None = None
    while sources:
        events = [source for source, _event in poll.poll(timeout_ms if lines is None else lines.timeout_ms)]
        # Errors first: they are written immediately, while what precedes them in the other stream is mostly delayed.
        ready = sorted((source for source in events if source in sources), key=lambda source: -sources[source])
        if status is not None and status.descriptor in events:
            status.receive()
            if status.ended:
                poll.unregister(status.descriptor)
                status = None
        if lines is not None and not ready:
            # Nothing arrived for `UNFINISHED_S`: an incomplete line is a prompt or a bar, and is shown as it is.
            for stream in (2, 1):
                _written(stream, lines.unfinished(stream))
        for source in ready:
            # Its pipe has ended, or has no reader: close it immediately, so that the program gets SIGPIPE as it would
            # without us.
            if not _relay_once(source, sources[source], copies, lines, status):
                poll.unregister(source)
                os.close(source)  # if the reader has gone, the program notices on its own pipe
                del sources[source]
        timeout_ms = None
        if status is not None:
            timeout_ms = status.refresh()


def _relay_once(
    source: int, stream: int, copies: Copies, lines: WholeLines | None, status: TerminalStatus | None
) -> bool:
    """Copy what is there; false if that is the end, or its reader has gone."""
    passed = data = os.read(source, CHUNK)
    if data:
        # Before it is written: a reader such as a pager may block the write, and the dashboard need not wait for that.
        copies.put(stream, data)
    if lines is not None:
        passed = lines.passed(stream, data) if data else lines.unfinished(stream)
    if status is not None and passed:
        status.passed(passed)
    whole = _written(stream, passed) and bool(data)
    copies.written()
    return whole


def _written(target: int, data: bytes) -> bool:
    """Write all of ``data``; false if the reader has gone."""
    left = memoryview(data)
    while left:
        try:
            left = left[os.write(target, left) :]
        except BlockingIOError:  # a terminal in non-blocking mode
            select.select([], [target], [])
        except OSError:
            return False
    return True


def main(output: int, error: int, connection: int, mode: str = "") -> None:
    """Relay both streams to their end."""
    copies = Copies(socket.socket(fileno=connection))
    status = None
    if mode.isdecimal():
        status = TerminalStatus(socket.socket(fileno=int(mode)))
    relay({output: 1, error: 2}, copies, WholeLines() if mode == "lines" else None, status)
    if status is not None:
        status.erase()
    copies.close()
    # Skip the interpreter's shutdown: a thread of `copies` may still be in `send`.
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:5])
