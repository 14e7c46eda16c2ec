"""Passes on what a watched program prints, from its pipes to where it would have gone, with a copy for the dashboard.

A process of its own, run as a file by an interpreter without site-packages: the program's output goes on when the
dashboard is killed, and only whoever reads it can hold it up, never the dashboard.

Arguments: descriptors of the program's output and error pipes, and of a socket to the dashboard; and "lines" where both
streams go to one place, so that their lines are kept whole there. Its own output and error are where the program's go.
Each packet on the socket is a `HEADER` (stream, 1 or 2, and how many lines were left
out before it) and what was printed; nothing was while whoever reads there, such as a pager, lets the stream wait.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import sys
import threading
from collections import deque

HEADER = struct.Struct(">BQ")

CHUNK = 65_536

WAITING_BYTES = 1_048_576
"""Of each stream that wait for the dashboard to read them; beyond, the oldest are left out."""

UNFINISHED_S = 0.2
"""How long the end of a line is waited for before its beginning is written, where lines are kept whole."""

HELD_UP_S = 0.25
"""How often the dashboard hears that somebody reads on later, as a pager does."""

LAST_WORDS_S = 60.0
"""How long the dashboard has, after the program's end, to read what waits; of one that is gone it is known at once."""


class Copies:
    """What is on its way to the dashboard, sent by a thread of its own."""

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
        """Send a copy when the dashboard reads; never waits for it. It is about to be written, until `written`."""
        with self._wake:
            if self._gone:
                return
            self._written = stream
            self._waiting.append((stream, data))
            self._bytes[stream] += len(data)
            if self._bytes[stream] > WAITING_BYTES:
                self._drop_oldest(stream)
            self._wake.notify()

    def written(self) -> None:
        """What was put last has been read where the program's output goes."""
        with self._wake:
            self._written = 0

    def close(self) -> None:
        """No more comes; what waits has time to be read."""
        with self._wake:
            self._ended = True
            self._wake.notify()
        self._thread.join(LAST_WORDS_S)

    def _drop_oldest(self, stream: int) -> None:
        place = next(place for place, (of, _data) in enumerate(self._waiting) if of == stream)
        data = self._waiting[place][1]
        del self._waiting[place]
        self._bytes[stream] -= len(data)
        self._left_out[stream] += data.count(b"\n")

    def _send(self) -> None:
        while True:
            with self._wake:
                while not self._waiting and not self._ended:
                    if not self._wake.wait(HELD_UP_S if self._written else None) and self._written:
                        break
                if self._waiting:
                    stream, data = self._waiting.popleft()
                elif self._ended:
                    return
                else:
                    stream, data = self._written, b""
                self._bytes[stream] -= len(data)
                left_out, self._left_out[stream] = self._left_out[stream], 0
            try:
                self._connection.send(HEADER.pack(stream, left_out) + data)
            except OSError:
                with self._wake:
                    self._gone = True
                    self._waiting.clear()
                return


class Lines:
    """Lets what a stream brings pass in whole lines, where the other stream goes to the same place.

    What no line's end follows within `UNFINISHED_S`, such as a prompt or a progress bar, passes as it is. The other
    stream then goes on in a line of its own.
    """

    def __init__(self) -> None:
        self._begun = {1: b"", 2: b""}
        self._newest = 1
        self._newest_byte = b"\n"

    @property
    def timeout_ms(self) -> float | None:
        """Longest that the next piece of a line may be waited for; ``None`` where none is begun."""
        return UNFINISHED_S * 1000 if any(self._begun.values()) else None

    def passed(self, stream: int, data: bytes) -> bytes:
        """What is to be written now that a stream has brought ``data``: its lines that are whole."""
        whole, end, begun = (self._begun[stream] + data).rpartition(b"\n")
        if len(begun) > CHUNK:
            whole, end, begun = whole + end + begun, b"", b""
        self._begun[stream] = begun
        return self._after_newest(stream, whole + end)

    def unfinished(self, stream: int) -> bytes:
        """What is to be written of a line that a stream has begun, and not ended."""
        begun, self._begun[stream] = self._begun[stream], b""
        return self._after_newest(stream, begun)

    def _after_newest(self, stream: int, data: bytes) -> bytes:
        if not data:
            return b""
        cut = stream != self._newest and self._newest_byte != b"\n"
        self._newest, self._newest_byte = stream, data[-1:]
        return b"\n" + data if cut else data


def relay(sources: dict[int, int], copies: Copies, lines: Lines | None = None) -> None:
    """Copy until the program has closed both streams, or nobody reads any more what it prints.

    Args:
        sources: descriptor that is read → stream, which is the descriptor that is written as well.
        lines: keeps lines whole; ``None`` where each stream has a place of its own, or a terminal shows them.
    """
    poll = select.poll()
    for source in sources:
        poll.register(source, select.POLLIN)
    while sources:
        # errors first: they are written at once, and what stands before them in the other stream mostly is not
        ready = sorted(poll.poll(None if lines is None else lines.timeout_ms), key=lambda ready: -sources[ready[0]])
        if lines is not None and not ready:
            for stream in (2, 1):
                _written(stream, lines.unfinished(stream))
        for source, _event in ready:
            stream = sources[source]
            data = os.read(source, CHUNK)
            if data:
                copies.put(stream, data)
            passed = data
            if lines is not None:
                passed = lines.passed(stream, data) if data else lines.unfinished(stream)
            whole = _written(stream, passed) and bool(data)
            copies.written()
            if not whole:
                poll.unregister(source)
                os.close(source)  # where the reader went away the program learns that from its own pipe
                del sources[source]


def _written(target: int, data: bytes) -> bool:
    """Write all of ``data``; false when nobody reads it."""
    left = memoryview(data)
    while left:
        try:
            left = left[os.write(target, left) :]
        except BlockingIOError:  # a terminal that somebody has made non-blocking
            select.select([], [target], [])
        except OSError:
            return False
    return True


def main(output: int, error: int, connection: int, *, in_lines: bool) -> None:
    """Relay both streams to their ends."""
    copies = Copies(socket.socket(fileno=connection))
    relay({output: 1, error: 2}, copies, Lines() if in_lines else None)
    copies.close()
    os._exit(0)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]), in_lines="lines" in sys.argv[4:])
