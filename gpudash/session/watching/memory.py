"""The memory of a watched program, as its processes report it: allocators, simulated cards, growing lines."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gpudash.devices.names import MOST_SIMULATED, SIMULATED, badged_name, kind_of
from gpudash.devices.simulated_cards import address_of
from gpudash.memory.explaining.call_sites import GrowthNotice, growing_lines, growth_warning
from gpudash.memory.explaining.memory_state import AllocationGroup, Surroundings, other_process
from gpudash.memory.explaining.wording import holders_text
from gpudash.memory.frames import Frame, site_of
from gpudash.memory.request_log import Request, RequestLog, RequestLogs
from gpudash.memory.snapshot.leak_edits import keeper_of
from gpudash.memory.watching.pushed_reading import READ_NS, PushedReading
from gpudash.session.live.machine import Machine, measured_context
from gpudash.simulator.device.process_table import Holding, ProcessTable
from gpudash.sources.simulated_gpus import MirroredCard
from gpudash.system.foreign_files import source_line
from gpudash.telemetry.explanation import Growth, Part
from gpudash.telemetry.records import Event, Note, Topic, number_in
from gpudash.units import summed_bytes

if TYPE_CHECKING:
    from gpudash.agent.wire import Message

STALE_S = 3.0
"""Silence of a process after which its figures are out of date: its agent reads rarely if reading is expensive."""

MOST_STACK_BYTES = 128 * 2**20
"""Approximate memory for the stacks of all processes of a program; beyond it, the process with most loses its older
half. A training has some thousand stacks with mostly the same frames: a few MB."""

LONGEST_FILE, LONGEST_NAME = 4096, 1000
"""Longest path and function name of a frame, in characters: Linux's PATH_MAX, and our own limit."""

LONGEST_COMMAND = 60
"""Longest command within a sentence, in characters."""

_FRAME_BYTES, _STACK_BYTES, _PLACE_BYTES = 300, 200, 8
"""Memory for a frame besides its strings, for a stack besides its frames, and for a frame's entry in it (64-bit
CPython)."""

MOST_DEVICES = 64
"""Most devices accepted from one process."""

MOST_PROCESSES = 256
"""Most processes whose peaks are kept."""

_ALLOCATOR = (
    "allocated_bytes",
    "reserved_bytes",
    "peak_allocated_bytes",
    "peak_reserved_bytes",
    "allocation_retries",
)

Figures = Mapping[str, int | float]

Probe = Callable[[str, Callable[[], Mapping[str, int | None]] | None], None]
"""Starts to read an allocator's figures by a callable; ``None`` stops that."""


class _Stacks:
    """The stacks reported by one process, by number. Stacks share equal frames.

    Attributes:
        bytes: approximate memory that they use.
    """

    def __init__(self) -> None:
        self.bytes = 0
        self._stacks: dict[str, tuple[Frame, ...]] = {}
        self._frames: dict[Frame, Frame] = {}

    def __len__(self) -> int:
        return len(self._stacks)

    def get(self, number: str) -> tuple[Frame, ...]:
        """The stack of this number; an empty one if it is no longer known."""
        return self._stacks.get(number, ())

    def add(self, number: str, frames: Iterable[Frame]) -> None:
        """Store a stack."""
        stack = tuple(map(self._shared, frames))
        self._stacks.pop(number, None)  # a reused number is among the newest
        self._stacks[number] = stack
        self.bytes += _STACK_BYTES + len(number) + _PLACE_BYTES * len(stack)

    def drop_older_half(self) -> None:
        """Drop the older half of the stacks, and unused frames."""
        kept = list(self._stacks.items())[(len(self._stacks) + 1) // 2 :]
        self._stacks = {}
        self._frames = {}
        self.bytes = 0
        for number, stack in kept:
            self.add(number, stack)

    def _shared(self, frame: Frame) -> Frame:
        # Use the equal object that is already in the dict, so that this one can be freed.
        found = self._frames.setdefault(frame, frame)
        if found is frame:
            self.bytes += _FRAME_BYTES + len(frame.file) + len(frame.name)
        return found


@dataclass(slots=True)
class _Process:
    """The reports of one process: figures by device, stacks by number.

    Attributes:
        name: name of the process.
        command: command with which the program started it; "" for the program's own process, and its ranks.
        steady: by device, the reserved bytes, and the session time since when they are unchanged.
        contexts: by device, the bytes of its CUDA context.
    """

    name: str = ""
    command: str = ""
    figures: dict[str, Figures] = field(default_factory=dict)
    steady: dict[str, tuple[int, float]] = field(default_factory=dict)
    contexts: dict[str, int] = field(default_factory=dict)
    stacks: _Stacks = field(default_factory=_Stacks)
    notices: dict[str, GrowthNotice] = field(default_factory=dict)


class WatchedMemory:
    """Passes on what the processes of a run report about their memory. Belongs to one thread.

    Args:
        run_id: of the run.
        machine: the devices.
        probe: starts and stops the reading of a device's allocator.
        emit: callback for notes and warnings.
        clock: session time in seconds.
        cards: names of the simulated cards for the program, its ``sim:0`` first; shown empty until a process reports
            its own.
        others: bytes of simulated other processes on the first one.
        as_cuda: whether the program calls them ``cuda:0`` and so on.
        requests: stores all requests to their allocators.

    Attributes:
        peaks: device → peaks of its allocator, including the program's own; bytes.
        table: table of the processes' memory on their simulated cards; ``None`` if only their own reports are
            available.
    """

    def __init__(
        self,
        run_id: int,
        machine: Machine,
        probe: Probe,
        emit: Callable[[Event], None],
        clock: Callable[[], float],
        cards: Sequence[str] = (),
        others: int = 0,
        as_cuda: bool = False,
        requests: RequestLogs | None = None,
    ) -> None:
        self.peaks: dict[str, dict[str, int]] = {}
        self.table: ProcessTable | None = None
        self._as_cuda = as_cuda
        self._requests = requests or RequestLogs()
        self._run_id = run_id
        self._machine = machine
        self._probe = probe
        self._emit = emit
        self._clock = clock
        self._processes: dict[int, _Process] = {}
        self._highest: dict[tuple[int, str], dict[str, Any]] = {}
        self._busy: dict[str, dict[int, float]] = {}
        self._allocators: dict[str, PushedReading] = {}
        self._before: dict[str, dict[str, int]] = {}
        self._cards: dict[str, MirroredCard] = {}
        self._unshown: set[tuple[str, int]] = set()
        self._reported: set[tuple[str, int]] = set()
        self._idle: dict[str, MirroredCard] = {}
        self._names: dict[str, str] = {}
        sizes = {device.name: device.total_bytes or 0 for device in machine.devices()}
        for index, name in enumerate(cards):
            self._names[f"sim:{index}"] = name
            card = self._idle[name] = MirroredCard(index, sizes[name], clock, 0, "", math.inf)
            card.put(reserved_bytes=0, others_bytes=0 if index else others)
            self._show(name, None)

    def take_allocator(self, pid: int, name: str, message: Message) -> None:
        """Process a report of a process's allocators.

        Args:
            name: name of the process.
        """
        devices = message.get("devices")
        if not isinstance(devices, dict):
            return
        for device, found in devices.items():
            figures = _figures(found)
            if figures is None or kind_of(str(device)) == "cpu":
                continue
            device = self.name_of(str(device), found.get("uuid"), figures.get("capacity_bytes"))
            process = self._processes.setdefault(pid, _Process())
            process.name = name
            if device not in process.figures and not figures["reserved_bytes"] + figures.get("context_bytes", 0):
                continue  # it has a device but does not use it, like a launcher of ranks
            if len(process.figures) < MOST_DEVICES or device in process.figures:
                process.figures[device] = figures
                self._note_highest(device, pid, name, figures)
                self._measure_context(process, pid, device)
                self._read(device, pid, name)

    def note_command(self, pid: int, command: str) -> None:
        """Store the command with which the program started a process.

        Args:
            command: the command in words.
        """
        text = " ".join(command.split())
        if len(text) > LONGEST_COMMAND:
            text = f"{text[:LONGEST_COMMAND]}…"
        self._processes.setdefault(pid, _Process()).command = text

    def take_stacks(self, pid: int, message: Message) -> None:
        """Store stacks by their numbers, for later reports."""
        stacks = message.get("stacks")
        known = self._processes.setdefault(pid, _Process()).stacks
        for number, frames in stacks.items() if isinstance(stacks, dict) else ():
            known.add(str(number), _frames(frames))
        self._bound_stacks()

    def _bound_stacks(self) -> None:
        """Drop older stacks if all of them exceed `MOST_STACK_BYTES`."""
        stacks = [process.stacks for process in self._processes.values()]
        while summed_bytes(stacks) > MOST_STACK_BYTES:
            max(stacks, key=lambda one: one.bytes).drop_older_half()

    def take_held(self, pid: int, message: Message) -> None:
        """Process a report of live memory, and warn about lines that keep memory from every step."""
        process = self._processes.setdefault(pid, _Process())
        device = self.name_of(str(message.get("device")))
        step = message.get("step")
        if not isinstance(step, int):
            return
        groups = list(_groups(message.get("holdings"), process.stacks))
        growing = growing_lines(groups, step)
        notice = process.notices.setdefault(device, GrowthNotice())
        if notice.is_due(growing) and (growing[0].file, growing[0].line) not in self._reported:
            self._reported.add((growing[0].file, growing[0].line))  # ranks grow alike
            memory = self._machine.memory_of(device) or device

            def keeper(growth: Growth) -> str:
                stacks = dict.fromkeys(group.stack for group in groups if _is_at(group, growth))
                return keeper_of(growth, stacks, source_line)

            self._emit(growth_warning(growing, memory, self._clock(), self._run_id, source_line, keeper))

    def take_requests(self, pid: int, message: Message, time_of: Callable[[Any], float]) -> None:
        """Process a process's requests to an allocator, and its frees.

        Args:
            time_of: session time for microseconds since 1970.
        """
        rows = message.get("rows")
        if not isinstance(rows, list) or not all(type(number) is int for number in rows):
            return
        log = self._requests.made(self.name_of(str(message.get("device"))))
        stacks = self._processes.setdefault(pid, _Process()).stacks
        columns = [rows[place::4] for place in range(4)]
        requests = [
            Request(time_of(time_us), (pid, address), size, stacks.get(str(stack)))
            for time_us, address, size, stack in zip(*columns, strict=False)
        ]
        live = message.get("live")
        if not isinstance(live, list) or not all(type(number) is int for number in live) or not requests:
            log.take(requests)
            return
        # Earlier requests were missed: compare with the live blocks to see which have gone or appeared.
        blocks = [((pid, address), size, str(stack)) for address, size, stack in zip(*[iter(live)] * 3, strict=False)]
        there = {owner for owner, _size, _stack in blocks} | {request.owner for request in requests}
        log.end(requests[0].time_s, [owner for owner in _owned(log, pid) if owner not in there])
        log.take(requests)
        known = set(log.live())
        time_s = requests[-1].time_s
        log.take(
            [Request(time_s, owner, size, stacks.get(stack)) for owner, size, stack in blocks if owner not in known]
        )

    def _end_requests(self, pid: int, time_s: float) -> None:
        for device in self._requests.devices:
            log = self._requests.made(device)
            log.end(time_s, _owned(log, pid))

    def forget(self, pid: int) -> None:
        """Free the memory of a process that has ended while the program goes on."""
        self._end_requests(pid, self._clock())
        process = self._processes.pop(pid, None)
        for device in process.figures if process is not None else ():
            if any(device in other.figures for other in self._processes.values()):
                self._forget_user(device, pid)
                continue
            # No process of the program uses the device any more: 0 is a value, not a gap.
            self._allocators[device].put(dict.fromkeys(_ALLOCATOR, 0))
            self._before.pop(device, None)
            self._show(device, None)
            if device == self.device:
                self._turn_to(device, f"pid {pid} has ended, and no process of the program uses {device} now.")

    def _forget_user(self, device: str, pid: int) -> None:
        """Remove one of several processes that use a device."""
        card = self._cards.get(device)
        if card is None:
            return
        left = self._sharing(device, card)
        if not left:
            if card.pid == pid:
                self._show(device, None)
            return
        if card.pid == pid:
            # The card was shown as that process's: show it as another one's that shares it.
            heir = next(iter(left))
            name = self._processes[heir].name
            card = self._cards[device] = MirroredCard(card.index, card.capacity, self._clock, heir, name, STALE_S)
        left = self._put_shared(device, card, left)
        self._show(device, card)
        self._allocators[device].put(self._reading(device, left))

    def end_readings(self) -> None:
        """The program's processes have ended: what a GPU still holds is not theirs, and their simulated cards are
        empty."""
        for allocator in self._allocators.values():
            allocator.end()  # keep reading it: the last figures must not count as current
        shown = {*self._allocators, *self._idle}
        self._idle = {}
        for device in shown:
            self._show(device, None)
        self._allocators.clear()

    def close(self) -> None:
        """The run has ended: report nothing more."""
        self.end_readings()
        self._processes.clear()

    def surroundings(self, device: str, pid: int | None = None, others: Any = None) -> Surroundings:
        """Memory on a device outside of the program's allocators, or outside of one of its processes.

        Args:
            pid: PID of that process.
            others: other processes on its simulated card by its own report: bytes by number, as text.
        """
        device = self.name_of(device)
        card = self._cards.get(device)
        if card is not None:
            held = dict(card.newest.others)
            held.update((user, size) for user, (_name, size) in card.newest.sharing.items() if user != pid)
            # The process's own figures are of the moment of failure; the newest ones here are later.
            if isinstance(others, dict):
                held = {int(user): size for user, size in others.items() if isinstance(size, int) and size >= 0}
            found = tuple(self._other(user, size) for user, size in held.items())
            own = self._processes.get(card.pid if pid is None else pid)
            if own is None:
                return Surroundings(found, card.newest.context)
            return Surroundings(found, int(own.figures.get(device, {}).get("context_bytes", 0)))
        memory = self._machine.memory_of(device)
        around = Surroundings()
        if memory is not None:
            around = self._machine.surroundings(memory)
        using = {user: process for user, process in self._processes.items() if device in process.figures}
        # For one process, those that the program started next to it are others.
        started = {}
        if pid is not None:
            started = {user: one for user, one in using.items() if user != pid and one.command}
        listed = {process.pid: process.bytes for process in around.processes}
        usual = measured_context(memory)
        children = tuple(
            self._other(user, listed.get(user) or _held(one, device, one.contexts.get(device, usual)))
            for user, one in started.items()
        )
        ours = [one for one in around.processes if one.pid in self._processes and one.pid not in started]
        users = [process for user, process in using.items() if user not in started]
        reserved = sum(int(process.figures[device]["reserved_bytes"]) for process in users)
        context = None
        if ours:
            context = summed_bytes(ours) - reserved
        strangers = (one for one in around.processes if one not in ours and one.pid not in started)
        others = (*children, *strangers)
        # If known for all, this is better than the difference of two readings of different moments.
        known = [found.contexts.get(device, usual) for found in users]
        if known and None not in known:
            context = sum(size for size in known if size is not None)
        if context is not None:
            context = max(0, context)
        return Surroundings(others, context)

    def held_by_others(self) -> str:
        """Which other processes use a GPU's memory, on the one where they use most, in a sentence; "" for none."""
        fullest = 0.0
        text = ""
        for gpu in self._machine.gpus:
            around = self._machine.surroundings(gpu.uuid)
            others = [one for one in around.processes if one.pid not in self._processes]
            if not gpu.total_bytes or not others:
                continue
            share = summed_bytes(others) / gpu.total_bytes
            if share > fullest:
                fullest = share
                text = holders_text(others, gpu.total_bytes)
        return text

    @property
    def processes(self) -> list[dict[str, Any]]:
        """Peaks of every process on every device used by several, in order of appearance."""
        devices = [device for _pid, device in self._highest]
        return [
            {"pid": pid, "device": device, **found}
            for (pid, device), found in self._highest.items()
            if devices.count(device) > 1
        ]

    @property
    def device(self) -> str | None:
        """The first device with reported memory."""
        return next(iter(self.peaks), None)

    def name_of(self, device: str, uuid: Any = None, capacity: float | None = None) -> str:
        """The name here of a program's device: it may number GPUs differently, and its simulated card may not be the
        session's of that name.

        Args:
            uuid: UUID reported by the program.
            capacity: bytes of a simulated card, which the program may have created itself.
        """
        if kind_of(device) != "sim":
            found = (known.name for known in self._machine.devices() if uuid and known.uuid == uuid)
            return next(found, device)
        if device not in self._names and capacity and _index(device) < MOST_SIMULATED:
            self._names[device] = self._machine.simulated.provide_reported(_index(device), int(capacity))
        return self._names.get(device, device)

    def _other(self, pid: int, size: int) -> Part:
        """A process that holds the given bytes, with its command if the program started it."""
        known = self._processes.get(pid)
        return other_process(size, pid, self._name_of(pid), command="" if known is None else known.command)

    def _name_of(self, pid: int) -> str:
        """The name of a process on a simulated card."""
        known = self._processes.get(pid)
        if known is None:
            return f"another process, {SIMULATED}"
        return known.name

    def _note_highest(self, device: str, pid: int, name: str, figures: Figures) -> None:
        if len(self._highest) >= MOST_PROCESSES and (pid, device) not in self._highest:
            return
        row = self._highest.setdefault((pid, device), {"name": name})
        for key in ("allocated_bytes", "reserved_bytes"):
            peak = max(int(figures[key]), int(figures.get(f"peak_{key}", 0)))
            row[f"peak_{key}"] = max(row.get(f"peak_{key}", 0), peak)
        if "context_bytes" in figures:
            row["context_bytes"] = int(figures["context_bytes"])
        else:
            row["context_bytes"] = None

    def _measure_context(self, process: _Process, pid: int, device: str) -> None:
        """Measure a process's context, once the driver has listed it while its reserved memory was unchanged.

        At another time, the difference from the reserved memory would mean nothing.
        """
        reserved, now_s = int(process.figures[device]["reserved_bytes"]), self._clock()
        before, since_s = process.steady.setdefault(device, (reserved, now_s))
        if before != reserved:
            process.steady[device] = reserved, now_s
            return
        memory = self._machine.memory_of(device)
        found = None
        if memory is not None:
            found = self._machine.listed(memory, pid)
        if found is not None and since_s < found[0] <= now_s:
            process.contexts[device] = max(0, found[1] - reserved)

    def _read(self, device: str, pid: int, name: str) -> None:
        """Start to read the figures of ``device``, of which ``pid`` has sent new ones."""
        by_process = {of: found.figures[device] for of, found in self._processes.items() if device in found.figures}
        if device not in self._allocators:
            self._allocators[device] = PushedReading(self._clock, STALE_S, lasts=True)
            self._probe(device, self._allocators[device])
            if not self.peaks:
                called = ""
                if self._as_cuda:
                    called = f", which it calls {address_of(device).replace('sim', 'cuda')}"
                self._turn_to(device, f"The program allocates on {badged_name(device)}{called}.")
        if kind_of(device) == "sim":
            by_process = self._shown_card(device, pid, name, by_process)
        self._allocators[device].put(self._reading(device, by_process))

    def _turn_to(self, device: str, text: str) -> None:
        """Report which memory the run uses; its history so far does not apply to that device."""
        details = {"device": device, "simulated": kind_of(device) == "sim"}
        self._emit(Note(time_s=self._clock(), run_id=self._run_id, topic=Topic.DEVICE, text=text, details=details))

    def _shown_card(self, device: str, pid: int, name: str, by_process: dict[int, Figures]) -> dict[int, Figures]:
        """Show a simulated card with the figures of its users.

        They are the first process that reported one, and all that share it. Another process may have its own card of
        this name, unlike a GPU: it simulates another size, or has an older simulator.
        """
        card = self._cards.get(device)
        if card is None:
            capacity = int(by_process[pid].get("capacity_bytes", 0)) or 1
            card = self._cards[device] = MirroredCard(_index(device), capacity, self._clock, pid, name, STALE_S)
            self._show(device, card)
        sharing = self._sharing(device, card)
        if pid in sharing:
            return self._put_shared(device, card, sharing)
        if pid != card.pid:
            if (device, pid) not in self._unshown:
                self._unshown.add((device, pid))
                text = f"pid {pid} has a {device} of its own; the one of pid {card.pid} is shown."
                self._emit(Note(time_s=self._clock(), run_id=self._run_id, topic=Topic.SIMULATED, text=text))
        else:
            figures = by_process[pid]
            card.put(
                reserved_bytes=int(figures["reserved_bytes"]),
                context_bytes=int(figures.get("context_bytes", 0)),
                others_bytes=int(figures.get("others_bytes", 0)),
                busy_s=float(figures.get("busy_s", 0.0)),
                capacity_bytes=int(figures.get("capacity_bytes", card.capacity)),
            )
        if card.pid in by_process:
            return {card.pid: by_process[card.pid]}
        return sharing or by_process

    def _sharing(self, device: str, card: MirroredCard) -> dict[int, Figures]:
        """Figures of the processes that share a card, by PID."""
        sharing = {}
        for pid, process in self._processes.items():
            figures = process.figures.get(device, {})
            if figures.get("shared") and figures.get("capacity_bytes") == card.capacity:
                sharing[pid] = figures
        return sharing

    def _put_shared(self, device: str, card: MirroredCard, sharing: Mapping[int, Figures]) -> dict[int, Figures]:
        """Show a card with the figures of those who share it; returns those that are still running."""
        busy = self._busy.setdefault(device, {})  # including ended ones: time spent does not shrink
        busy.update((pid, float(figures.get("busy_s", 0.0))) for pid, figures in sharing.items())
        listed: dict[int, Holding] = {}
        if self.table is not None:
            listed = self.table.held_by_others(card.index, card.capacity, living=True)
        living = [pid for pid in sharing if pid in listed] or list(sharing)  # a killed process cannot report its end
        # A process sends these figures together with its allocator's, by which the card is divided into bands.
        held: dict[int, Holding] = {}
        for pid in living:
            figures = sharing[pid]
            held[pid] = Holding(int(figures.get("context_bytes", 0)), int(figures["reserved_bytes"]))
        if sum(map(sum, held.values())) > card.capacity and listed:  # figures of several processes are not simultaneous
            held = {pid: listed[pid] for pid in living if pid in listed}
        card.put(
            reserved_bytes=sum(found.reserved for found in held.values()),
            context_bytes=sum(found.context for found in held.values()),
            others_bytes=max(int(figures.get("others_bytes", 0)) for figures in sharing.values()),
            busy_s=sum(busy.values()),
            sharing={pid: (self._processes[pid].name, sum(found)) for pid, found in held.items()},
        )
        return {pid: sharing[pid] for pid in held}

    def _show(self, device: str, card: MirroredCard | None) -> None:
        """Show a card, or an unused one for ``None``; at the end the session's own."""
        if card is None:
            self._cards.pop(device, None)
            card = self._idle.get(device)
        if kind_of(device) == "sim":
            self._machine.simulated.mirror(device, card)

    def _reading(self, device: str, by_process: Mapping[int, Figures]) -> dict[str, int | None]:
        """The figures of all processes together.

        A program's own peaks are since its start, since only the program may reset them: if one has risen, it was
        reached since the last reading.
        """
        sums: dict[str, int] = {}
        for key in ("allocated_bytes", "reserved_bytes", "allocation_retries"):
            sums[key] = sum(int(figures.get(key, 0)) for figures in by_process.values())
        highest = self.peaks.setdefault(device, {})
        before = self._before.get(device, {})
        reading: dict[str, int | None] = {**sums, READ_NS: round(self._clock() * 1e9)}
        cards = [figures for figures in by_process.values() if "free_bytes" in figures and "capacity_bytes" in figures]
        if cards:  # a GPU without a driver's readings: each process reports all of it
            reading["free_bytes"] = min(int(figures["free_bytes"]) for figures in cards)
            reading["total_bytes"] = max(int(figures["capacity_bytes"]) for figures in cards)
        peaks: dict[str, int] = {}
        for key in ("allocated_bytes", "reserved_bytes"):
            # Exact for one process; peaks of several need not be simultaneous.
            peak = peaks[key] = max(int(figures.get(f"peak_{key}", 0)) for figures in by_process.values())
            risen = 0
            if peak > before.get(key, 0):
                risen = peak
            reading[f"peak_{key}"] = max(sums[key], risen)
            highest[key] = max(highest.get(key, 0), sums[key], peak)
        self._before[device] = peaks
        return reading


def _owned(log: RequestLog, pid: int) -> list[Hashable]:
    """Live blocks of a process."""
    return [owner for owner in log.live() if isinstance(owner, tuple) and owner[0] == pid]


def _held(process: _Process, device: str, context: int | None) -> int:
    """A process's memory on a device, by its own report."""
    return int(process.figures[device]["reserved_bytes"]) + (context or 0)


def _index(device: str) -> int:
    number = address_of(device).partition(":")[2]
    if number.isdecimal():
        return int(number)
    return 0


def _is_at(group: AllocationGroup, growth: Growth) -> bool:
    site = site_of(group.stack)
    return site is not None and (site.file, site.line) == (growth.file, growth.line)


def _figures(found: Any) -> Figures | None:
    """The numbers in a report; ``None`` without the two required ones."""
    if not isinstance(found, dict):
        return None
    # It comes from the program and is untrusted: drop what is not a 64-bit number.
    figures: dict[str, int | float] = {}
    for key, value in found.items():
        number = number_in(value)
        if number is not None and 0 <= number < 2**63:
            figures[str(key)] = number
    if "allocated_bytes" in figures and "reserved_bytes" in figures:
        return figures
    return None


def _frames(found: Any) -> Iterator[Frame]:
    for frame in found if isinstance(found, list) else ():
        if isinstance(frame, list) and len(frame) == 3 and isinstance(frame[1], int):
            yield Frame(str(frame[0])[:LONGEST_FILE], frame[1], str(frame[2])[:LONGEST_NAME])


def _groups(found: Any, stacks: _Stacks) -> Iterator[AllocationGroup]:
    for row in found if isinstance(found, list) else ():
        if isinstance(row, list) and len(row) == 4 and all(isinstance(number, int) for number in row[:3]):
            yield AllocationGroup(bytes=row[0], count=row[1], step=row[2], stack=stacks.get(str(row[3])))
