"""Machines over ssh as the tests look at them: a fleet that links, a command in a terminal of its own."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Self

import psutil

from gpudash.session.remote.fleet import SshFleet, read_machines
from gpudash.session.remote.machine import RemoteMachine
from gpudash.system.settings import Settings
from tests.nvml_stub.build import Scenario, StubGpu, build, variables
from tests.programs import program
from tests.ssh_server.server import Server

PATIENCE_S = 120.0


@contextmanager
def linking(*addresses: str, asks: bool = False) -> Iterator[SshFleet]:
    """A fleet that links these; nothing of it is left behind, neither process nor thread.

    Args:
        asks: whether the test answers what ssh asks.
    """
    with closing(SshFleet(read_machines(addresses), Settings())) as fleet:
        fleet.start(asks=asks)
        yield fleet
        assert fleet.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("gpudash ssh")]
    assert not [child for child in psutil.Process().children() if child.name() == "ssh"]


def until(fleet: SshFleet, holds: Callable[[], object]) -> None:
    """Look at the fleet again and again until it is so."""
    end, never = time.monotonic() + PATIENCE_S, threading.Event()
    while not (fleet.version >= 0 and holds()):
        assert time.monotonic() < end, ([machine.problem for machine in fleet.machines], fleet.gpus(), fleet.warnings())
        never.wait(0.05)


def with_gpus(folder: Path, gpus: Sequence[StubGpu]) -> dict[str, str]:
    """What a machine's programs see where these are its GPUs."""
    library = build(folder / "stub")
    Scenario(gpus=list(gpus)).write(folder / "scenario")
    return variables(library, folder / "scenario")


def problem(fleet: SshFleet) -> str:
    """What is wrong with the one machine, once that is known."""
    machine, told = fleet.machines[0], list[str]()

    def known() -> bool:
        told.extend(filter(None, [machine.problem]))  # it may be tried again meanwhile, and linked
        return bool(told)

    until(fleet, known)
    assert told[0].count("\n") == 0
    return told[0]


def log_of(machine: RemoteMachine) -> list[object]:
    with machine.store.lock:
        return list(machine.store.events)


def until_gone(*servers: Server) -> None:
    """Wait until nobody is logged in any more: the readers there end by themselves."""
    end, never = time.monotonic() + PATIENCE_S, threading.Event()
    while any(server.sessions() for server in servers):
        assert time.monotonic() < end, [server.sessions() for server in servers]
        never.wait(0.05)


class Terminal:
    """A command in a terminal of its own, which ends with the block.

    Args:
        arguments: of ``gpudash``.
        environment: of it.
    """

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        self._end, other = os.openpty()
        command = [program("setsid"), "--ctty", sys.executable, "-m", "gpudash", *arguments]
        self.process = subprocess.Popen(command, stdin=other, stdout=other, stderr=other, env=environment)
        os.close(other)
        self.text = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_failure: object) -> None:
        self.process.kill()
        self.process.wait(PATIENCE_S)
        os.close(self._end)

    def until(self, words: str, count: int = 1) -> None:
        """Wait until these have been shown so often."""
        end = time.monotonic() + PATIENCE_S
        while self.text.count(words) < count:
            assert time.monotonic() < end, self.text
            if select.select([self._end], [], [], 0.1)[0]:
                self._read()

    def answer(self, text: str) -> None:
        """Type a line."""
        os.write(self._end, f"{text}\n".encode())

    def ended(self) -> int:
        """Its exit code, once everything that it shows has been read."""
        while self._read():
            pass
        return self.process.wait(PATIENCE_S)

    def _read(self) -> bool:
        try:
            data = os.read(self._end, 4096)
        except OSError:  # nobody has the other side open any more
            return False
        self.text += data.decode(errors="replace")
        return True
