"""The memory of a watched program, as its processes tell it: allocators, simulated cards, lines that grow."""

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
from gpudash.memory.frames import Frame
from gpudash.memory.request_log import Request, RequestLog, RequestLogs
from gpudash.memory.watching.pushed_reading import PushedReading
from gpudash.session.live.machine import Machine, measured_context
from gpudash.simulator.device.process_table import Holding, ProcessTable
from gpudash.sources.simulated_gpus import MirroredCard
from gpudash.system.foreign_files import source_line
from gpudash.telemetry.explanation import Part
from gpudash.telemetry.records import Event, Note, Topic

if TYPE_CHECKING:
    from gpudash.agent.wire import Message

STALE_S = 3.0
"""Silence of a process after which its figures are no longer taken for the present: its agent looks in seldom when
looking is expensive."""

MOST_STACK_BYTES = 128 * 2**20
"""What the stacks of all processes of a program take together, about; beyond it the older half goes of the process that
has most. A training has some thousand stacks, of which most frames are the same: a few MB."""

LONGEST_FILE, LONGEST_NAME = 4096, 1000
"""Characters of a frame that are kept: the longest path of Linux (PATH_MAX), and of a function's name."""

LONGEST_COMMAND = 60
"""Characters of a command within a sentence."""

_FRAME_BYTES, _STACK_BYTES, _PLACE_BYTES = 300, 200, 8
"""What a frame takes beside its texts, a stack beside its frames, and a frame's place in a stack (64-bit CPython)."""

MOST_DEVICES = 64
"""Of one process that are listened to."""

MOST_PROCESSES = 256
"""Whose highest figures are kept."""

_ALLOCATOR = (
    "allocated_bytes",
    "reserved_bytes",
    "peak_allocated_bytes",
    "peak_reserved_bytes",
    "allocation_retries",
)

Figures = Mapping[str, int | float]

Probe = Callable[[str, Callable[[], Mapping[str, int | None]] | None], None]
"""Reads an allocator's figures by a callable from now on, or with ``None`` no longer."""


class _Stacks:
    """The stacks that one process has told, by number. Those that have a frame in common share it.

    Attributes:
        bytes: that they take, about.
    """

    def __init__(self) -> None:
        self.bytes = 0
        self._stacks: dict[str, tuple[Frame, ...]] = {}
        self._frames: dict[Frame, Frame] = {}

    def __len__(self) -> int:
        return len(self._stacks)

    def get(self, number: str) -> tuple[Frame, ...]:
        """The stack of this number; an empty one where it is not known any more."""
        return self._stacks.get(number, ())

    def add(self, number: str, frames: Iterable[Frame]) -> None:
        """Keep a stack."""
        stack = tuple(self._shared(frame) for frame in frames)
        self._stacks.pop(number, None)  # a number that is given again is among the newest
        self._stacks[number] = stack
        self.bytes += _STACK_BYTES + len(number) + _PLACE_BYTES * len(stack)

    def drop_older_half(self) -> None:
        """Keep the newer half of the stacks, and no frame that is in none of them."""
        kept = list(self._stacks.items())[(len(self._stacks) + 1) // 2 :]
        self._stacks = {}
        self._frames = {}
        self.bytes = 0
        for number, stack in kept:
            self.add(number, stack)

    def _shared(self, frame: Frame) -> Frame:
        # what is in the dict already is another object that is equal: that one is used, and this one goes
        found = self._frames.setdefault(frame, frame)
        if found is frame:
            self.bytes += _FRAME_BYTES + len(frame.file) + len(frame.name)
        return found


@dataclass(slots=True)
class _Process:
    """What one process has told: figures by device, stacks by number.

    Attributes:
        name: of the process.
        command: with which the program started it; "" of the program's own process, and of its ranks.
        steady: by device, what the process has reserved, and the session time since when it is the same.
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
    """Passes on what the processes of one run tell of their memory. Belongs to one thread.

    Args:
        run_id: of the run.
        machine: the devices.
        probe: has a device's allocator read.
        emit: takes notes and warnings.
        clock: session time in seconds.
        cards: names of the simulated cards that the program is given, its ``sim:0`` first; shown empty while no process
            tells of its own.
        others: bytes that simulated other processes hold of the first.
        as_cuda: whether the program calls them ``cuda:0`` and so on.
        requests: takes every request to their allocators.

    Attributes:
        peaks: device → the highest figures of its allocator, the program's own peaks among them; bytes.
        table: what the program's processes hold of their simulated cards; ``None`` where only they themselves tell.
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
        """Take in the figures of a process's allocators.

        Args:
            name: of the process.
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
                continue  # it has a device and uses it not, as the process that starts all ranks
            if len(process.figures) < MOST_DEVICES or device in process.figures:
                process.figures[device] = figures
                self._note_highest(device, pid, name, figures)
                self._measure_context(process, pid, device)
                self._read(device, pid, name)

    def note_command(self, pid: int, command: str) -> None:
        """Keep with what command the program started a process.

        Args:
            command: as it is said in a sentence.
        """
        text = " ".join(command.split())
        if len(text) > LONGEST_COMMAND:
            text = f"{text[:LONGEST_COMMAND]}…"
        self._processes.setdefault(pid, _Process()).command = text

    def take_stacks(self, pid: int, message: Message) -> None:
        """Take in stacks by their numbers, for what is held later."""
        stacks = message.get("stacks")
        known = self._processes.setdefault(pid, _Process()).stacks
        for number, frames in stacks.items() if isinstance(stacks, dict) else ():
            known.add(str(number), _frames(frames))
        self._bound_stacks()

    def _bound_stacks(self) -> None:
        """Let go of older stacks where all of them take more than `MOST_STACK_BYTES`."""
        stacks = [process.stacks for process in self._processes.values()]
        while sum(one.bytes for one in stacks) > MOST_STACK_BYTES:
            max(stacks, key=lambda one: one.bytes).drop_older_half()

    def take_held(self, pid: int, message: Message) -> None:
        """Take in what is live in a process, and warn of lines that keep something of every step."""
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
            self._emit(growth_warning(growing, memory, self._clock(), self._run_id, source_line))

    def take_requests(self, pid: int, message: Message, time_of: Callable[[Any], float]) -> None:
        """Take in what a process asked of an allocator, and what it freed.

        Args:
            time_of: session time of microseconds since 1970.
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
        # some requests before these were missed: what is live tells which blocks have gone, and which have come
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
        """A process has ended, and the program goes on: the memory it had is free again."""
        self._end_requests(pid, self._clock())
        process = self._processes.pop(pid, None)
        for device in process.figures if process is not None else ():
            if any(device in other.figures for other in self._processes.values()):
                self._forget_user(device, pid)
                continue
            # nobody of the program uses the device any more: 0 is known, and is no gap
            self._allocators[device].put(dict.fromkeys(_ALLOCATOR, 0))
            self._before.pop(device, None)
            self._show(device, None)
            if device == self.device:
                self._turn_to(device, f"pid {pid} has ended, and no process of the program uses {device} now.")

    def _forget_user(self, device: str, pid: int) -> None:
        """One of several processes that use a device has ended."""
        card = self._cards.get(device)
        if card is None:
            return
        left = self._sharing(device, card)
        if not left:
            if card.pid == pid:
                self._show(device, None)
            return
        if card.pid == pid:
            # the card was shown as that process's: another of those that share it takes its place
            heir = next(iter(left))
            name = self._processes[heir].name
            card = self._cards[device] = MirroredCard(card.index, card.capacity, self._clock, heir, name, STALE_S)
        left = self._put_shared(device, card, left)
        self._show(device, card)
        self._allocators[device].put(self._reading(device, left))

    def close(self) -> None:
        """The run has ended: nothing more is reported, and what a GPU still holds is not the program's."""
        for allocator in self._allocators.values():
            allocator.end()  # and is read on, else what it held last would stand for now
        shown = {*self._allocators, *self._idle}
        self._idle = {}
        for device in shown:
            self._show(device, None)
        self._allocators.clear()
        self._processes.clear()

    def surroundings(self, device: str, pid: int | None = None, others: Any = None) -> Surroundings:
        """What else holds memory of a device than the program's allocators, or than one process of the program.

        Args:
            pid: of that process.
            others: what it knew of others on its simulated card: bytes by their number, as text.
        """
        device = self.name_of(device)
        card = self._cards.get(device)
        if card is not None:
            held = dict(card.newest.others)
            held.update((user, size) for user, (_name, size) in card.newest.sharing.items() if user != pid)
            # What the process knew when it was refused is of that moment; the newest figures here are of a later one.
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
        # seen from one process, those that the program has started beside it are others
        started = {}
        if pid is not None:
            started = {user: one for user, one in using.items() if user != pid and one.command}
        listed = {process.pid: process.bytes for process in around.processes}
        usual = None
        if memory is not None:
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
            context = sum(process.bytes for process in ours) - reserved
        strangers = (one for one in around.processes if one not in ours and one.pid not in started)
        others = (*children, *strangers)
        # better than the difference of two readings of different moments, where it is known of all of them
        known = [found.contexts.get(device, usual) for found in users]
        if known and None not in known:
            context = sum(size for size in known if size is not None)
        if context is not None:
            context = max(0, context)
        return Surroundings(others, context)

    def held_by_others(self) -> str:
        """Who else holds memory of a GPU, of the one that is fullest of it, in a sentence; "" where nobody does."""
        fullest = 0.0
        text = ""
        for gpu in self._machine.gpus:
            around = self._machine.surroundings(gpu.uuid)
            others = [one for one in around.processes if one.pid not in self._processes]
            if not gpu.total_bytes or not others:
                continue
            share = sum(one.bytes for one in others) / gpu.total_bytes
            if share > fullest:
                fullest = share
                text = holders_text(others, gpu.total_bytes)
        return text

    @property
    def processes(self) -> list[dict[str, Any]]:
        """The highest figures of every process on every device where several used one, in the order of their coming."""
        devices = [device for _pid, device in self._highest]
        return [
            {"pid": pid, "device": device, **found}
            for (pid, device), found in self._highest.items()
            if devices.count(device) > 1
        ]

    @property
    def device(self) -> str | None:
        """The first device whose memory was reported."""
        return next(iter(self.peaks), None)

    def name_of(self, device: str, uuid: Any = None, capacity: float | None = None) -> str:
        """What a program's device is called here: it may number the GPUs in another way, and its simulated card may be
        another than the session's of that name.

        Args:
            uuid: that the program tells of it.
            capacity: in bytes of a simulated card, which the program may have made itself.
        """
        if kind_of(device) != "sim":
            found = (known.name for known in self._machine.devices() if uuid and known.uuid == uuid)
            return next(found, device)
        if device not in self._names and capacity and _index(device) < MOST_SIMULATED:
            self._names[device] = self._machine.simulated.provide_reported(_index(device), int(capacity))
        return self._names.get(device, device)

    def _other(self, pid: int, size: int) -> Part:
        """A process that holds so many bytes, with its command where the program started it."""
        known = self._processes.get(pid)
        return other_process(size, pid, self._name_of(pid), command="" if known is None else known.command)

    def _name_of(self, pid: int) -> str:
        """What a process of a simulated card is called."""
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
        """Learn how large a process's context is, once the driver has listed it while what it reserved stayed the same.

        In a list of another moment the difference to what is reserved now says nothing.
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
        """Have the figures of ``device`` read, which ``pid`` has told anew."""
        by_process = {of: found.figures[device] for of, found in self._processes.items() if device in found.figures}
        if device not in self._allocators:
            self._allocators[device] = PushedReading(self._clock, STALE_S)
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
        """Tell whose memory the run's is; what it did so far says nothing about what it will do there."""
        details = {"device": device, "simulated": kind_of(device) == "sim"}
        self._emit(Note(time_s=self._clock(), run_id=self._run_id, topic=Topic.DEVICE, text=text, details=details))

    def _shown_card(self, device: str, pid: int, name: str, by_process: dict[int, Figures]) -> dict[int, Figures]:
        """Show a simulated card: the figures of those who have it.

        It is that of the first process that reported one, and of all that share it. Another process may have a card of
        its own of this name, unlike a GPU: it simulates one of another size, or by an older simulator.
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
        """Figures of the processes that share a card, by process number."""
        sharing = {}
        for pid, process in self._processes.items():
            figures = process.figures.get(device, {})
            if figures.get("shared") and figures.get("capacity_bytes") == card.capacity:
                sharing[pid] = figures
        return sharing

    def _put_shared(self, device: str, card: MirroredCard, sharing: Mapping[int, Figures]) -> dict[int, Figures]:
        """Show a card by the figures of those who share it; those of them that are still there."""
        busy = self._busy.setdefault(device, {})  # of those that have ended too: time spent does not shrink
        busy.update((pid, float(figures.get("busy_s", 0.0))) for pid, figures in sharing.items())
        listed: dict[int, Holding] = {}
        if self.table is not None:
            listed = self.table.held_by_others(card.index, card.capacity, living=True)
        living = [pid for pid in sharing if pid in listed] or list(sharing)  # one that was killed sends nothing more
        # what a process sends is of one moment with its allocator's reading, by which the card is divided into bands
        held: dict[int, Holding] = {}
        for pid in living:
            figures = sharing[pid]
            held[pid] = Holding(int(figures.get("context_bytes", 0)), int(figures["reserved_bytes"]))
        if sum(map(sum, held.values())) > card.capacity and listed:  # of several processes the moments differ
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
        """Show a card, or with ``None`` that it is unused; at the end this session's own."""
        if card is None:
            self._cards.pop(device, None)
            card = self._idle.get(device)
        if kind_of(device) == "sim":
            self._machine.simulated.mirror(device, card)

    def _reading(self, device: str, by_process: Mapping[int, Figures]) -> dict[str, int | None]:
        """The figures of all processes together.

        A program's own peaks are those since its beginning, since none but it may reset them: one that has risen was
        reached since the last reading.
        """
        sums: dict[str, int] = {}
        for key in ("allocated_bytes", "reserved_bytes", "allocation_retries"):
            sums[key] = sum(int(figures.get(key, 0)) for figures in by_process.values())
        highest = self.peaks.setdefault(device, {})
        before = self._before.get(device, {})
        reading: dict[str, int | None] = dict(sums)
        cards = [figures for figures in by_process.values() if "free_bytes" in figures and "capacity_bytes" in figures]
        if cards:  # of a GPU that no driver is read for; every process tells of the whole of it
            reading["free_bytes"] = min(int(figures["free_bytes"]) for figures in cards)
            reading["total_bytes"] = max(int(figures["capacity_bytes"]) for figures in cards)
        peaks: dict[str, int] = {}
        for key in ("allocated_bytes", "reserved_bytes"):
            # of one process it is exact; of several the peaks need not have come at the same time
            peak = peaks[key] = max(int(figures.get(f"peak_{key}", 0)) for figures in by_process.values())
            risen = 0
            if peak > before.get(key, 0):
                risen = peak
            reading[f"peak_{key}"] = max(sums[key], risen)
            highest[key] = max(highest.get(key, 0), sums[key], peak)
        self._before[device] = peaks
        return reading


def _owned(log: RequestLog, pid: int) -> list[Hashable]:
    """Blocks of a process that are there."""
    return [owner for owner in log.live() if isinstance(owner, tuple) and owner[0] == pid]


def _held(process: _Process, device: str, context: int | None) -> int:
    """Bytes that a process holds of a device, as it sends them itself."""
    return int(process.figures[device]["reserved_bytes"]) + (context or 0)


def _index(device: str) -> int:
    number = address_of(device).partition(":")[2]
    if number.isdecimal():
        return int(number)
    return 0


def _figures(found: Any) -> Figures | None:
    """What is a number of what was told; ``None`` without the two that count."""
    if not isinstance(found, dict):
        return None
    # it comes from the program, which may be anybody's: what is no number of 64 bits is left out
    figures: dict[str, int | float] = {}
    for key, value in found.items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number and 0 <= value < 2**63:
            figures[str(key)] = value
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
