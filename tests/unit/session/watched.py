"""A session that watches a program; what stands in for one around a program, and for an agent inside one."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gpudash.agent.wire import PROTOCOL, Decoder, encode
from gpudash.devices.names import Gpu, Simulation
from gpudash.session import Session, WatchRequest
from gpudash.session.live.machine import Machine
from gpudash.session.live.simulated_gpus import SimulatedGpus
from gpudash.session.watching.output.log import OutputLog
from gpudash.session.watching.wiring import Wiring
from gpudash.sources.discovery import HostSurvey
from gpudash.system.settings import Settings
from gpudash.telemetry.records import Event, Note, Record
from gpudash.telemetry.runs import RunView
from gpudash.telemetry.store import Store
from gpudash.units import GIB

Read = Callable[[], Mapping[str, int | None]]


PATIENCE_S = 120.0


class Watcher:
    """A session that keeps every record."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.records: list[Record] = []
        self.session = Session()
        self.session.on_record = self.records.append
        self.session.start(worker=False)

    def watch(self, program: str, **facts: Any) -> None:
        """Start a program that is given as text."""
        script = self.folder / "script.py"
        script.write_text(program)
        self.session.watch(WatchRequest([sys.executable, str(script)], self.folder, **facts))

    def run(self, program: str, **facts: Any) -> RunView:
        """The run of a program, once it has ended."""
        self.watch(program, **facts)
        return self.ended()

    def ended(self) -> RunView:
        assert self.session.runs.wait(PATIENCE_S)
        run = self.session.store.run
        assert run is not None
        return run

    def printed(self) -> list[str]:
        return [line.text for line in self.session.output.since(0)[0]]

    def notes(self, topic: str) -> list[str]:
        return [record.text for record in self.records if isinstance(record, Note) and record.topic == topic]

    def until(self, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not holds():
            assert time.monotonic() < deadline
            self.session.runs.wait(0.02)


class NoMonitor:
    """Knows the GPUs it is given."""

    host_capacity_source = "RAM"
    problem = "No NVIDIA card was found; everything runs on the CPU."

    def __init__(self, gpus: tuple[Gpu, ...] = ()) -> None:
        self.gpus = gpus


class Surrounded:
    """A session's wiring without a session.

    Attributes:
        told: every record, in order.
        probes: what is read, by device.
        now_s: session time.
    """

    def __init__(self, *sizes: int, gpus: tuple[Gpu, ...] = (), settings: Settings | None = None) -> None:
        self.reported: list[Record] = []
        self.probes: dict[str, Read] = {}
        self.followed: Callable[[], Mapping[int, int]] | None = None
        self.now_s = 10.0
        self.ended = threading.Event()
        self.store = Store()
        self.output = OutputLog()
        simulated = SimulatedGpus(Simulation(sizes))
        simulated.start()
        self.machine = Machine(HostSurvey("CPU", 2, 16 * GIB, 8 * GIB, "RAM"), NoMonitor(gpus), self.store, simulated)  # type: ignore[arg-type]
        for gpu in self.machine.gpus:
            self.store.link(f"{'sim' if gpu.simulated else 'cuda'}:{gpu.nvml_index}", gpu.uuid)
        self.settings = settings or Settings()

    @property
    def wiring(self) -> Wiring:
        return Wiring(
            emit=self.emit,
            clock=lambda: self.now_s,
            began_wall_s=1_000.0,
            machine=self.machine,
            store=self.store,
            probe=self.probe,
            follow=self.follow,
            settings=self.settings,
            output=self.output,
        )

    def emit(self, record: Record) -> None:
        self.reported.append(record)
        self.store.apply(record)

    def probe(self, device: str, read: Read | None) -> None:
        if read is None:
            self.probes.pop(device, None)
        else:
            self.probes[device] = read

    def follow(self, program: Callable[[], Mapping[int, int]] | None) -> None:
        self.followed = program

    def events(self, kind: type[Any], **facts: Any) -> list[Any]:
        """Events of a kind with these facts, in order."""
        return [
            record
            for record in self.reported
            if isinstance(record, kind) and all(getattr(record, name) == value for name, value in facts.items())
        ]

    def texts(self, topic: str) -> list[str]:
        """Texts of the notes of a topic."""
        return [
            event.text for event in self.reported if isinstance(event, Event) and getattr(event, "topic", "") == topic
        ]  # type: ignore[attr-defined]


class Agent:
    """The program's end of the socket, which says what the test tells it to."""

    def __init__(self, path: Path, *, hello: bool = True, **facts: Any) -> None:
        self.connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.connection.settimeout(5.0)
        self.connection.connect(str(path))
        self._decoder = Decoder()
        if hello:
            self.say("hello", protocol=PROTOCOL, argv=["train.py"], python="3.11.7", **facts)

    def say(self, kind: str, **facts: Any) -> None:
        """Send one message."""
        self.connection.sendall(encode({"type": kind, "pid": os.getpid(), "time_us": 1_005_000_000, **facts}))

    def heard(self) -> list[dict[str, Any]]:
        """The messages of the next packet."""
        return self._decoder.feed(self.connection.recv(65_536))

    def close(self) -> None:
        self.connection.close()
