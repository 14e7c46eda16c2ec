"""A dashboard for the agent to talk to: it keeps what it hears."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import gpudash
from gpudash.agent.wire import PROTOCOL, Decoder, Message, encode

PACKAGE = Path(gpudash.__file__).parent
INJECT = PACKAGE / "agent" / "inject"
SCRIPTS = Path(__file__).parents[2] / "end_to_end" / "watched_scripts"
OTHERS = [
    *sorted(Path.home().glob(".pyenv/versions/*/bin/python")),
    *sorted(path for path in Path("/usr/bin").glob("python[23].*") if re.search(r"[.]\d+$", path.name)),
]
"""Other Pythons of this machine, as far as they are where they usually are."""

LIMIT_S = 90
"""Longest time a watched program may take."""


class Dashboard:
    """Listens on a socket in ``folder``.

    Args:
        folder: for the socket and the snapshots.
        answers: what each program is sent as soon as it connects.
    """

    def __init__(self, folder: Path, answers: Sequence[Message] = ({"type": "welcome", "protocol": PROTOCOL},)) -> None:
        self.folder = folder
        self.path = folder / "socket"
        self.messages: list[Message] = []
        self._answers = answers
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(self.path))
        self._socket.listen(1024)
        self._heard = threading.Condition()
        self._threads: list[threading.Thread] = []
        self._connections: list[socket.socket] = []
        self._open = 0
        self._calls = 0  # of our own, which have a name
        self._begin(self._accept)

    def close(self) -> None:
        """Let every connection go; all threads end."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(5)

    def environment(self, **config: Any) -> dict[str, str]:
        """Of a program that is watched."""
        wanted = {"report": str(self.folder), "period_s": 0.02, "gpudash": str(PACKAGE), **config}
        return {
            **os.environ,
            "GPUDASH_SOCKET": str(self.path),
            "GPUDASH_AGENT": json.dumps(wanted),
            "PYTHONPATH": str(INJECT),
            "OMP_NUM_THREADS": "1",
        }

    def run(
        self, *command: str, python: str = sys.executable, environment: dict[str, str] | None = None, **config: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run Python with these arguments and wait until every process it started has let go of its connection."""
        used = {**self.environment(**config), **(environment or {})}
        done = subprocess.run(
            [python, *command], env=used, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
        self._let_everyone_in()
        self.wait_until(lambda: not self._open)
        return done

    def _let_everyone_in(self) -> None:
        """Wait for all who have called: a program may be over before its connection is so much as accepted."""
        with socket.socket(socket.AF_UNIX) as last:
            wanted = self._calls + 1
            last.bind(str(self.folder / f"last-{wanted}"))
            last.connect(str(self.path))
            self.wait_until(lambda: self._calls == wanted)

    def of(self, kind: str, pid: int | None = None) -> list[Message]:
        """Messages of a type."""
        with self._heard:
            return [one for one in self.messages if one["type"] == kind and pid in (None, one["pid"])]

    def wait_until(self, true: Any) -> None:
        """Wait until a condition holds; it is looked at after every message."""
        with self._heard:
            assert self._heard.wait_for(true, LIMIT_S), f"never came; heard {self.messages[-3:]}"

    def send(self, message: Message) -> None:
        """To every program that is connected."""
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.sendall(encode(message))

    def _begin(self, work: Any, *args: Any) -> None:
        thread = threading.Thread(target=work, args=args, name="Thread-dashboard")
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, caller = self._socket.accept()
            except OSError:
                return
            if caller:
                connection.close()
                with self._heard:
                    self._calls += 1
                    self._heard.notify_all()
                continue
            self._connections.append(connection)
            with self._heard:
                self._open += 1
            self._begin(self._listen, connection)

    def _listen(self, connection: socket.socket) -> None:
        decoder = Decoder()
        with connection:
            for answer in self._answers:
                with contextlib.suppress(OSError):
                    connection.sendall(encode(answer))
            while True:
                try:
                    data = connection.recv(2**16)
                except OSError:
                    data = b""
                found = decoder.feed(data)
                with self._heard:
                    self.messages += found
                    self._open -= not data
                    self._heard.notify_all()
                if not data:
                    return


@cache
def unwatched(*command: str, python: str = sys.executable, **environment: str) -> subprocess.CompletedProcess[str]:
    """What the same command does without anybody watching; it does so once."""
    used = {**{key: value for key, value in os.environ.items() if key != "PYTHONPATH"}, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [python, *command], env={**used, **environment}, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )


def version_of(python: str) -> tuple[int, ...]:
    """Major and minor of a Python."""
    told = unwatched("-c", "import sys; print(*sys.version_info[:2])", python=python)
    return tuple(map(int, told.stdout.split()))
