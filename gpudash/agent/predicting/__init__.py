"""A predicted program from inside: its torch gets a GPU that does not exist, and the result is sent.

Every Python that the program starts runs this. It is connected to the gpudash that predicts, and ends with it.
"""

from __future__ import annotations

import atexit
import os
import sys

from ..importing import PostImport

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

VARIABLE = "GPUDASH_PREDICT"
"""Variable with the socket of the gpudash that predicts."""

ENDING = "ending"
"""Name of a file in the predicting gpudash's folder, which exists once it ends the program."""

LONGEST_CONFIG = 2**20
"""Largest settings, in bytes."""

MOST_CHARACTERS = 300
"""Longest sentence about an unexpected error."""


def begin(environment: Mapping[str, str]) -> None:
    """Let this process be predicted.

    Raises:
        OSError: if the predicting process has ended.
    """
    Predicted(environment[VARIABLE]).start()


class Predicted:
    """This process's connection to the gpudash that predicts.

    Args:
        path: path of the socket.

    Raises:
        OSError: if nobody listens.
    """

    def __init__(self, path: str) -> None:
        import json
        import socket

        self._json = json
        self._pid = os.getpid()
        self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._connection.connect(path)
        self._imports = PostImport()
        self.send({"type": "hello", "pid": self._pid, "ppid": os.getppid(), "executable": sys.executable})
        self._config = self._received()

    def start(self) -> None:
        """Hold back writes, and wait for torch."""
        import faulthandler
        import signal

        stack = open(os.path.join(self._config["folder"], f"stack-{self._pid}"), "w")  # noqa: SIM115 - kept to the end
        faulthandler.register(signal.SIGUSR2, file=stack, all_threads=False)
        self._end_with(signal.SIGINT)
        scratch = self._config.get("scratch")
        if scratch:
            from .held_writes import HeldWrites

            sys.dont_write_bytecode = True
            held = HeldWrites(scratch, self._config["caches"], self._config["temporary"])
            held.install()
            self._imports.call("tokenizers", held.tokenizers_imported)
        self._imports.call("torch", self._torch_imported)

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message; does nothing in a forked child, which has inherited the connection."""
        if os.getpid() == self._pid:
            self._connection.sendall(self._json.dumps(message).encode() + b"\n")

    def when_imported(self, name: str, call: Callable[[Any], None]) -> None:
        """Call ``call(module)`` once a module has been imported; immediately if it already is."""
        self._imports.call(name, call)

    def _received(self) -> dict[str, Any]:
        read = b""
        while not read.endswith(b"\n") and len(read) < LONGEST_CONFIG:
            part = self._connection.recv(65536)
            if not part:
                raise OSError("The gpudash that asks has gone.")
            read += part
        found: dict[str, Any] = self._json.loads(read)
        return found

    def _end_with(self, number: int) -> None:
        """Have the system send a signal to this process when the other end of the connection closes (fcntl(2))."""
        import fcntl

        descriptor = self._connection.fileno()
        fcntl.fcntl(descriptor, fcntl.F_SETOWN, self._pid)
        fcntl.fcntl(descriptor, getattr(fcntl, "F_SETSIG", 10), number)
        fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_ASYNC)

    def _torch_imported(self, _torch: Any) -> None:
        try:
            self._lend(self._config["package"])
            from gpudash.simulator.dry_run.programs import program

            found = program.begin(self._config, self.send, self.when_imported)
        except Exception as error:  # a newer torch may differ; without a card the program must not go on
            self.send({"type": "unavailable", "message": f"{type(error).__name__}: {error}"[:MOST_CHARACTERS]})
            return
        before = sys.excepthook

        def excepthook(kind: Any, error: Any, traceback: Any) -> None:
            ours = found.raised(error) or os.path.exists(os.path.join(self._config["folder"], ENDING))
            if not ours:  # caused by the prediction, which reports it in a sentence
                before(kind, error, traceback)

        sys.excepthook = excepthook
        atexit.register(found.ended)

    def _lend(self, folder: str) -> None:
        """Make ``import gpudash`` use this installation, whatever the program's Python has."""
        from importlib.util import module_from_spec, spec_from_file_location

        if "gpudash" in sys.modules:
            return
        spec: Any = spec_from_file_location("gpudash", f"{folder}/__init__.py", submodule_search_locations=[folder])
        package = sys.modules["gpudash"] = module_from_spec(spec)
        spec.loader.exec_module(package)
