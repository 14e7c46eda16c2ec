"""The readings of simulated GPUs, with the names of NVML's: cards of this process, and cards whose allocator is in
another process.
"""

from __future__ import annotations

import math
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

from gpudash.devices.names import SIMULATED, Gpu, simulated_gpu
from gpudash.devices.simulated_cards import card_called
from gpudash.memory.watching.pushed_reading import READ_NS
from gpudash.simulator.device.simulated_gpu import OTHER_PROCESS, SimulatedGpu
from gpudash.telemetry.metrics import METRICS
from gpudash.telemetry.records import Record, Sample, State, Value

SENSOR_PERIOD_S = 0.25
"""Interval for utilisation, the same as for a real GPU's sensors."""

PROCESS_PERIOD_S = 1.0

IDLE_PERIOD_S = 1.0
"""Interval for a card that nothing uses and whose figures stay the same. A reading counts as current for longer, and
sixteen idle cards would otherwise fill a recording with 15 MB a minute."""

AHEAD_S = 1e-6
"""An allocator's reading is dated this much before its card's, so that a recording returns them in order."""

MEMORY = ("used_bytes", "free_bytes", "total_bytes", "process_bytes")
UTILISATION = "gpu_utilisation"

NOT_SIMULATED = {
    metric.name: State.NOT_SUPPORTED for metric in METRICS["gpu"] if metric.name not in (*MEMORY, UTILISATION)
}
"""Metrics of a GPU that a simulation lacks: temperature, power, clocks, PCIe link."""

Probe = Callable[[], Mapping[str, int | None]]
"""Reads an allocator; ``None`` for a metric that is not available."""


class AllocatorRows:
    """The rows of one allocator.

    Args:
        device: torch's name for it.
    """

    def __init__(self, device: str) -> None:
        self._device = device
        self._read_ns = -1

    def of(self, reading: Mapping[str, int | None], now_s: float) -> list[Sample]:
        """The row for a tick: a reading at its own time, and a gap if its process no longer sends figures.

        There is none if the process has sent nothing since the row before: repeated, it would be of the wrong time.
        """
        values = dict(reading)
        read_ns = values.pop(READ_NS, None)
        if read_ns is not None:
            if read_ns == self._read_ns:
                return []
            self._read_ns = read_ns
            now_s = read_ns / 1e9
        states = {name: State.STALE for name in values if values[name] is None}
        return [Sample(now_s, "allocator", self._device, values, states)]


class CardReader:
    """Reads simulated GPUs: memory at every tick, utilisation and users less often.

    Reads card and allocator in one tick, right after each other, so that the bands drawn from both agree.

    Args:
        cards: the cards; reading them involves no call to the programs that use them.
    """

    def __init__(self, cards: Sequence[SimulatedGpu | ShownCard]) -> None:
        self._cards = tuple(ShownCard.of(card) if isinstance(card, SimulatedGpu) else card for card in cards)
        self._left: deque[ShownCard] = deque()
        self._probes: dict[str, tuple[Probe, AllocatorRows]] = {}
        self._busy: dict[str, tuple[int, float, float]] = {}
        self._idle: dict[str, _Idle] = {}
        # Due at the first tick.
        self._sensors_due_s = self._processes_due_s = -math.inf

    def show(self, cards: Sequence[ShownCard]) -> None:
        """Read these cards from now on. One that is no longer among them is read once more, as empty: its program has
        ended. Any thread may call this.
        """
        there = {card.uuid for card in cards}
        # Replaced as a whole: the lane's thread iterates over the old or the new tuple, without a lock.
        before, self._cards = self._cards, tuple(cards)
        for card in before:
            if card.uuid not in there:
                self._probes.pop(card.name, None)
                self._left.append(card)

    def attach(self, device: str, probe: Probe | None) -> bool:
        """Read the allocator of ``device`` ("sim:0") with ``probe`` from now on; ``None`` stops that.

        Returns:
            Whether the device is one of these cards.
        """
        if device not in (card.name for card in self._cards):
            return False
        if probe is None:
            self._probes.pop(device, None)
        else:
            self._probes[device] = probe, AllocatorRows(device)
        return True

    def read(self, now_s: float) -> list[Record]:
        """The rows for one tick."""
        sensors = now_s >= self._sensors_due_s
        if sensors:
            self._sensors_due_s = now_s + SENSOR_PERIOD_S
        # A copy, since another thread may call `attach` meanwhile.
        probes = tuple(self._probes.values())
        found: list[Record] = [row for probe, rows in probes for row in rows.of(probe(), now_s - AHEAD_S)]
        now_s = max([now_s, *(row.time_s + AHEAD_S for row in found)])
        # Read each card once a tick, so that its rows are of the same moment.
        cards = [(shown.uuid, shown.now()) for shown in self._cards]
        used = {shown.uuid for shown in self._cards if shown.name in self._probes}
        for uuid, card in cards:
            found += self._rows(uuid, card, now_s, sensors=sensors, idle=card.is_idle and uuid not in used)
        # Process rows are many and change rarely.
        if now_s >= self._processes_due_s:
            self._processes_due_s = now_s + PROCESS_PERIOD_S
            for uuid, card in cards:
                found += _processes(uuid, card, now_s)
        # popleft on one thread and append on others need no lock.
        while self._left:
            left = self._left.popleft()
            found.append(self._sample(left.uuid, empty(left.index, left.capacity), now_s, sensors=True))
        return found

    def stale(self, now_s: float) -> Iterable[Record]:
        """The rows for a tick in which `read` does not return."""
        return [_gap(card.uuid, now_s) for card in self._cards]

    def _rows(self, uuid: str, card: CardFigures, now_s: float, *, sensors: bool, idle: bool) -> Iterator[Sample]:
        """The rows of a card: none in most ticks of one that stays idle. Once it is used, its last idle tick comes
        first, so that no curve rises before that."""
        known = self._idle.pop(uuid, None)
        if idle:
            if known is not None and known.figures == card and now_s - known.written_s < IDLE_PERIOD_S:
                self._idle[uuid] = replace(known, seen_s=now_s)
                return
            self._idle[uuid] = _Idle(card, now_s, now_s)
            sensors = True
        elif known is not None and known.seen_s > known.written_s:
            yield self._sample(uuid, known.figures, known.seen_s, sensors=False)
        yield self._sample(uuid, card, now_s, sensors=sensors)

    def _sample(self, uuid: str, card: CardFigures, now_s: float, *, sensors: bool) -> Sample:
        if not card.fresh:
            return _gap(uuid, now_s)
        values: dict[str, Value] = {
            "used_bytes": card.capacity - card.free,
            "free_bytes": card.free,
            "total_bytes": card.capacity,
            "process_bytes": card.held,
        }
        if not sensors:
            return Sample(now_s, "gpu", uuid, values)
        values.update(dict.fromkeys(NOT_SIMULATED))
        before, self._busy[uuid] = self._busy.get(uuid), (card.pid, now_s, card.busy_s)
        # Another program's counter starts at 0: no share can be computed across the two.
        if before is not None and before[0] == card.pid and now_s > before[1]:
            values[UTILISATION] = min(1.0, max(0.0, (card.busy_s - before[2]) / (now_s - before[1])))
        return Sample(now_s, "gpu", uuid, values, NOT_SIMULATED)


def _gap(uuid: str, now_s: float) -> Sample:
    return Sample(now_s, "gpu", uuid, dict.fromkeys(MEMORY), dict.fromkeys(MEMORY, State.STALE))


def _processes(uuid: str, card: CardFigures, now_s: float) -> Iterator[Sample]:
    """One row for each process that holds memory on ``card``."""
    for pid, (name, held) in card.users.items():
        yield _row(uuid, now_s, pid, name, held)
    for pid, held in card.others.items():
        yield _row(uuid, now_s, pid, f"another process, {SIMULATED}", held)


def _row(uuid: str, now_s: float, pid: int, name: str, held: int) -> Sample:
    return Sample(now_s, "process", uuid, {"pid": pid, "name": name, "user": None, "memory_bytes": held})


STALE_S = 1.0
"""Silence of the other process after which its card's figures no longer count as current."""


@dataclass(frozen=True, slots=True)
class CardFigures:
    """A card at one moment; sizes in bytes.

    Attributes:
        index: index in ``sim:index``.
        capacity: memory of the card.
        free: free memory of the card.
        reserved: memory reserved by the allocator, or by those of all processes that share the card.
        context: size of the context, or of those of all processes.
        others: memory of simulated other processes, by their number.
        busy_s: seconds spent in operations so far.
        pid, name: the process with the allocator.
        fresh: whether the figures are current; false once the process has gone silent.
        sharing: for each process that shares the card, by PID, its name and all its memory; empty if ``pid`` is the
            only one.
    """

    index: int
    capacity: int
    free: int
    reserved: int = 0
    context: int = 0
    others: Mapping[int, int] = field(default_factory=dict)
    busy_s: float = 0.0
    pid: int = 0
    name: str = ""
    fresh: bool = True
    sharing: Mapping[int, tuple[str, int]] = field(default_factory=dict)

    @property
    def users(self) -> Mapping[int, tuple[str, int]]:
        """For each process that uses the card, by PID, its name and all its memory; without simulated processes."""
        if self.sharing or not self.held:
            return self.sharing
        return {self.pid: (self.name, self.held)}

    @property
    def is_idle(self) -> bool:
        """Whether nothing uses the card."""
        return self.fresh and not self.users and not self.others

    @property
    def held(self) -> int:
        """All memory of the process, or of all that share the card: contexts, and what allocators have reserved."""
        return self.context + self.reserved


@dataclass(frozen=True, slots=True)
class _Idle:
    """An idle card's figures, when they were last written, and when they were last seen to be the same."""

    figures: CardFigures
    written_s: float
    seen_s: float


class MirroredCard:
    """A simulated card whose allocator is in another process, which sends its figures. Thread-safe.

    Args:
        index: index in ``sim:index``.
        capacity: memory in bytes, until a `put` changes it.
        clock: seconds, monotonic.
        pid, name: of the other process.
        stale_s: age in seconds after which figures are stale.

    Attributes:
        index, pid, name: as given.
    """

    def __init__(
        self,
        index: int,
        capacity: int,
        clock: Callable[[], float],
        pid: int,
        name: str,
        stale_s: float = STALE_S,
    ) -> None:
        self.index = index
        self.pid = pid
        self.name = name
        self._clock = clock
        self._stale_s = stale_s
        self._lock = threading.Lock()
        self._put_s: float | None = None
        self._newest = CardFigures(index, capacity, capacity, pid=pid, name=name, fresh=False)

    def put(
        self,
        *,
        reserved_bytes: int,
        context_bytes: int = 0,
        others_bytes: int | Mapping[int, int] = 0,
        busy_s: float = 0.0,
        capacity_bytes: int | None = None,
        sharing: Mapping[int, tuple[str, int]] | None = None,
    ) -> None:
        """Store current figures.

        Args:
            reserved_bytes, context_bytes: sums over all processes that share the card.
            others_bytes: memory of simulated other processes: the sum, or by their number.
            busy_s: seconds spent in operations so far.
            sharing: as in `CardFigures`.
        """
        if isinstance(others_bytes, int):
            if others_bytes:
                others_bytes = {OTHER_PROCESS: others_bytes}
            else:
                others_bytes = {}
        with self._lock:
            if capacity_bytes is None:
                capacity = self._newest.capacity
            else:
                capacity = capacity_bytes
            used = reserved_bytes + context_bytes + sum(others_bytes.values())
            self._put_s = self._clock()
            self._newest = CardFigures(
                self.index,
                capacity,
                # Figures of several processes are not simultaneous, and may add up to more than the capacity.
                max(0, capacity - used),
                reserved_bytes,
                context_bytes,
                dict(others_bytes),
                busy_s,
                self.pid,
                self.name,
                sharing=dict(sharing or {}),
            )

    def now(self) -> CardFigures:
        """The newest figures; not `fresh` before the first, and once they are stale."""
        with self._lock:
            found, put_s = self._newest, self._put_s
            stale = put_s is None or self._clock() - put_s > self._stale_s
        if not stale:
            return found
        return CardFigures(found.index, found.capacity, found.free, pid=found.pid, name=found.name, fresh=False)

    @property
    def newest(self) -> CardFigures:
        """The figures of the last `put`, whatever their age."""
        return self._newest

    @property
    def capacity(self) -> int:
        """Bytes of the card."""
        return self._newest.capacity


class ShownCard:
    """A simulated card as it is shown: this process's own card, or another process's that is mirrored in its place.

    Args:
        name: torch's name for it, or a unique one if there are two of that name.
        gpu: description of the card.
        own: this process's card; ``None`` for a card that only programs use.

    Attributes:
        name, gpu, own: as given.
        uuid: UUID of the card.
        mirror: card shown instead of the own one; ``None`` for none.
    """

    def __init__(self, name: str, gpu: Gpu, own: SimulatedGpu | None = None) -> None:
        self.name = name
        self.gpu = gpu
        self.own = own
        self.uuid = gpu.uuid
        self.mirror: MirroredCard | None = None

    @classmethod
    def of(cls, own: SimulatedGpu) -> ShownCard:
        """For a card of this process."""
        card = card_called(own.product, own.capacity)
        return cls(f"sim:{own.index}", simulated_gpu(own.index, card), own)

    @property
    def index(self) -> int:
        """Its index in the program that uses it: ``sim:index``."""
        return self.gpu.nvml_index

    @property
    def capacity(self) -> int:
        """Bytes of the card."""
        return self.gpu.total_bytes or 0

    def now(self) -> CardFigures:
        """The figures to show; an empty card if no program uses it now."""
        # Read once: another thread may remove the mirror meanwhile.
        mirror = self.mirror
        if mirror is not None:
            return mirror.now()
        if self.own is None:
            return empty(self.index, self.capacity)
        return figures(self.own)


def empty(index: int, capacity: int) -> CardFigures:
    """An unused card."""
    return CardFigures(index, capacity, capacity)


def figures(card: SimulatedGpu) -> CardFigures:
    """The present figures of a card of this process."""
    free, capacity = card.free_and_total()
    reserved, context = card.reserved_bytes(), card.context_bytes
    return CardFigures(
        card.index, capacity, free, reserved, context, card.others, card.busy_s, os.getpid(), _our_name()
    )


@cache
def _our_name() -> str:
    import psutil

    return str(psutil.Process().name())
