"""Machines over ssh as a fleet: an entry for every GPU, or for the memory of a machine without GPUs, and the warnings
about them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from gpudash.devices.names import Gpu
from gpudash.memory.watching.levels import HOST
from gpudash.session.fleet.overview import (
    AnyFleet,
    EnergyMeter,
    fleet_warning,
    fullest_first,
    gravest_first,
    shown_of,
)
from gpudash.session.remote.machine import QUIET_S, RemoteMachine
from gpudash.session.remote.memory_views import memory_entry
from gpudash.sources.ssh.address import PREFIX, SshHost, read_host
from gpudash.system.settings import Settings
from gpudash.telemetry.fleet_gpu import FleetGpu
from gpudash.telemetry.recording.schema import numbered, recording_name
from gpudash.telemetry.records import Warning

PERIOD_S = 0.5
"""Interval between updates, in seconds."""

STALE_S = 3.0
"""Age of a reading from which its GPU is marked as stale."""

MOST_HOSTS = 64

AGAIN = "What was lost is linked again by itself; what needs something done is tried again by Reconnect."


class SshFleet(AnyFleet):
    """The machines, each with its own thread, and what is shown of them. Belongs to the window's thread.

    Args:
        hosts: addresses of the machines.
        settings: memory levels, and readings per second.
        recordings: file to record each machine in; private files by default.
        clock: any clock, in seconds.

    Raises:
        ValueError: one sentence, if there are too many.
        RecordingError, OSError: if a recording cannot be written.

    Attributes:
        hosts: as given.
        machines: one for each host.
    """

    trying = AGAIN
    days = False

    def __init__(
        self,
        hosts: Sequence[SshHost],
        settings: Settings,
        *,
        recordings: Sequence[Path] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        if len(hosts) > MOST_HOSTS:
            raise ValueError(f"{len(hosts)} machines are too many to be read over ssh; {MOST_HOSTS} are the most.")
        self.hosts = tuple(hosts)
        if len(hosts) == 1:
            self.address = hosts[0].name
        else:
            self.address = f"{len(hosts)} machines over ssh"
        self.asking = f"Linking {', '.join(host.name for host in hosts)}…"
        self.machines: list[RemoteMachine] = []
        self._clock = clock
        self._energy = EnergyMeter()
        self._polled_s = -PERIOD_S
        self._closed = False
        try:
            files: Sequence[Path | None] = recordings or [None] * len(hosts)
            self.machines += (RemoteMachine(host, settings, file) for host, file in zip(hosts, files, strict=True))
        except BaseException:
            self.close()
            raise

    def start(self, *, asks: bool = True) -> None:
        """Start to connect to all of them at the same time; ssh never asks in a terminal.

        Args:
            asks: whether ssh's questions can be shown; see `RemoteMachine.question`.
        """
        for machine in self.machines:
            machine.start(asks=asks)

    def start_in_terminal(self, waiting: Callable[[RemoteMachine], object]) -> None:
        """Start to connect to one after the other, so that ssh can ask for passwords in the terminal.

        Args:
            waiting: callback for a machine that takes longer than `QUIET_S`, perhaps because ssh waits for an answer.
        """
        for machine in self.machines:
            machine.start(prompt=True)
            if not machine.settled.wait(QUIET_S):
                waiting(machine)
                machine.settled.wait()

    @property
    def unlinked(self) -> tuple[str, ...] | None:
        """The machines whose connection failed or was lost."""
        return tuple(machine.name for machine in self.machines if machine.problem is not None)

    def link_again(self) -> None:
        """Retry every machine without a connection now; ssh may ask."""
        for machine in self.machines:
            if machine.problem is not None:
                machine.link_again()

    def save_recordings(self, folder: Path) -> list[Path]:
        """Save a copy of every machine's recording so far; existing files are not overwritten.

        Returns:
            The files, such as "2026-03-01-120000-a.gpudash" for machine "a" at noon of that day.

        Raises:
            RecordingError: if one cannot be written; those before it remain.
        """
        written = []
        for machine in self.machines:
            names = numbered(recording_name(folder, machine.recording.stem))
            target = next(path for path in names if not path.exists())
            machine.save_recording(target)
            written.append(target)
        return written

    @property
    def version(self) -> int:
        """Counter that grows with changes, at most once in `PERIOD_S`."""
        now = self._clock()
        if now - self._polled_s >= PERIOD_S:
            self._polled_s = now
            self._poll()
        return self._version

    @property
    def problem(self) -> str | None:
        """Why nothing is shown, one reason a line; ``None`` if something is: failed connections are then warnings."""
        if self._gpus:
            return None
        return "\n".join(machine.problem for machine in self.machines if machine.problem) or None

    def machine_of(self, key: str) -> RemoteMachine | None:
        """The machine with this GPU; ``None`` if no machine has it."""
        return next((machine for machine in self.machines if key.startswith(f"{machine.host}/")), None)

    def close(self) -> bool:
        """Close all connections at the same time, except those with other holders; false if one took too long."""
        if self._closed:
            return True
        self._closed = True
        for machine in self.machines:
            if machine.held == 1:
                machine.stop()  # all of them, before waiting for the first
        released = [machine.release() for machine in self.machines]  # even after one that took too long
        return all(released)

    def _poll(self) -> None:
        found = (gpu for machine in self.machines for gpu in _gpus(machine))
        gpus = tuple(sorted(map(self._energy.metered, found), key=fullest_first))
        warnings = [warning for gpu in gpus if not gpu.stale for warning in self._of(gpu)]
        if gpus:
            warnings += _of_hosts(self.machines)  # without GPUs, `problem` has the reason
        self._show(gpus, gravest_first(warnings))

    def _of(self, gpu: FleetGpu) -> Iterator[Warning]:
        """The warnings of its machine."""
        machine, memory = self.machine_of(gpu.key), gpu.uuid or HOST
        assert machine is not None
        for warning in machine.present_warnings(memory):
            yield shown_of(gpu, warning, machine.forecast(memory))


def read_machines(given: Iterable[str]) -> list[SshHost]:
    """The machines at these addresses ("ssh://user@host:2222", "host"), without duplicates.

    Raises:
        ValueError: one sentence, if one is not an address.
    """
    texts = (text if text.startswith(PREFIX) else f"{PREFIX}//{text}" for text in given)
    return list(dict.fromkeys(map(read_host, texts)))


def _gpus(machine: RemoteMachine) -> Iterable[FleetGpu]:
    """A machine's GPUs, with MIG instances in place of a divided GPU; its memory if it has no GPU; nothing before the
    first connection."""
    if machine.greeting is None:
        return
    whole = [gpu for gpu in machine.gpus if not gpu.instances]
    if not whole and machine.gpu_problem is None:
        return  # its GPUs are not known yet
    memories: Iterable[Gpu | None] = whole or [None]
    for known in memories:
        gpu = memory_entry(str(machine.host), machine.name, known, machine.store)
        if gpu is None:
            continue  # its first reading has not arrived yet
        late = machine.clock() - gpu.seen_s > STALE_S
        gpu.stale = gpu.used_bytes is None or machine.state != "linked" or late
        gpu.seen_s += machine.began_wall_s
        if gpu.is_host:
            gpu.product = machine.greeting.processor
        yield gpu


def _of_hosts(machines: Iterable[RemoteMachine]) -> Iterator[Warning]:
    """Warnings about a whole machine: its driver does not work, or it is not connected."""
    for machine in machines:
        for text in (machine.gpu_problem if machine.driver_fails else None, machine.problem):
            if text is not None:
                yield fleet_warning(text)
