"""A run's own process, as seen by the one that started it."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

from gpudash.agent.wire import PROTOCOL, Decoder, Message, WireError, encode
from gpudash.system.processes import end_group

PROGRAM = (
    "import sys; sys.path[:] = sys.argv[4:]; from gpudash.workloads.running.hosted.host_process import main; main()"
)
"""``python -m`` would put the working directory in front of all packages; the process is to find what this one does."""

SEND_S = 0.5
"""Longest that sending waits for a process that does not read."""

DYING_S = 2.0
"""How long a process that was killed, or has closed its connection, is waited for: a driver may take its time."""

_CHUNK = 1 << 18
_MOST_FAULTS = 20_000


class Host:
    """Starts the process. Only one thread may use it, and must live as long: the process ends with that thread.

    It leads a process group of its own: a Ctrl+C in the terminal does not reach it, and what it starts ends with it.

    Raises:
        OSError: when it cannot be started.

    Attributes:
        gone: whether it has ended, or will never tell anything again.
        ready: whether it waits for a request.
        torch: what torch is and sees there (`torch_report`); ``None`` before it is ready.
    """

    def __init__(self) -> None:
        self.gone = False
        self.ready = False
        self.torch: Mapping[str, Any] | None = None
        self._decoder = Decoder()
        self._faults = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `end`
        self._link, theirs = socket.socketpair()
        try:
            numbers = str(theirs.fileno()), str(os.getpid()), str(self._faults.fileno())
            self._process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, *numbers, *sys.path],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), self._faults.fileno()),
                start_new_session=True,
            )
        except OSError:
            self._close()
            raise
        finally:
            theirs.close()
        self._link.settimeout(SEND_S)

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process has not ended."""
        return not self.gone and self._process.poll() is None

    @property
    def lingers(self) -> bool:
        """Whether the process has not ended though it was killed: a driver's call holds it."""
        return self._process.poll() is None

    def send(self, message: Message) -> None:
        """Send one message; a process that does not read is `gone`."""
        try:
            self._link.sendall(encode(message))
        except OSError:
            self.gone = True

    def receive(self, timeout_s: float) -> list[Message]:
        """The messages that have come, waiting for the first at most ``timeout_s``."""
        if self.gone or not select.select([self._link], [], [], timeout_s)[0]:
            return []
        try:
            data = self._link.recv(_CHUNK)
            messages = self._decoder.feed(data)
        except (OSError, WireError):
            data, messages = b"", []
        self.gone = not data
        for message in messages:
            if message["type"] == "ready":
                self.ready, self.torch = message.get("protocol") == PROTOCOL, message["torch"]
                self.gone = self.gone or not self.ready
        return messages

    def end(self, *, patience_s: float = 0.0) -> int | None:
        """End the process with all it has started.

        Args:
            patience_s: how long it may take to end by itself.

        Returns:
            its exit code as `subprocess` has it, or ``None`` when it was killed here.
        """
        self.gone = True
        return end_group(self._process, patience_s=patience_s, dying_s=DYING_S)

    def faults(self) -> str:
        """Where it was when it crashed, innermost line first; "" when it did not say."""
        if self._faults.closed:
            return ""
        self._faults.seek(0)
        return self._faults.read(_MOST_FAULTS).decode(errors="replace").strip()

    def close(self) -> None:
        """`end` it, if nobody has, and give back what it took here."""
        if self._process.returncode is None:
            self.end()
        self._close()

    def _close(self) -> None:
        self._link.close()
        self._faults.close()
