"""The readings of simulated GPUs, under the names of NVML's: cards of this process, and those whose allocator
lives in another.
"""

from __future__ import annotations

import math
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

from gpudash.devices.names import SIMULATED, Gpu, simulated_gpu
from gpudash.devices.simulated_cards import card_called
from gpudash.simulator.device.simulated_gpu import OTHER_PROCESS, SimulatedGpu
from gpudash.telemetry.metrics import METRICS
from gpudash.telemetry.records import Record, Sample, State, Value

SENSOR_PERIOD_S = 0.25
"""Utilisation, as often as a GPU's sensors are read."""

PROCESS_PERIOD_S = 1.0

AHEAD_S = 1e-6
"""By this the allocator's reading is stamped before its card's, so that a recording gives them back in their order."""

MEMORY = ("used_bytes", "free_bytes", "total_bytes", "process_bytes")
UTILISATION = "gpu_utilisation"

NOT_SIMULATED = {
    metric.name: State.NOT_SUPPORTED for metric in METRICS["gpu"] if metric.name not in (*MEMORY, UTILISATION)
}
"""What a GPU has and a simulation does not: temperature, power, clocks, a link."""

Probe = Callable[[], Mapping[str, int | None]]
"""Reads an allocator; a metric that could not be had is ``None``."""


def allocator_sample(now_s: float, device: str, probe: Probe) -> Sample:
    """The reading of an allocator; where a process no longer pushes its own, it is a gap."""
    values = dict(probe())
    return Sample(now_s, "allocator", device, values, {name: State.STALE for name in values if values[name] is None})


class CardReader:
    """Reads simulated GPUs: their memory at every tick, how busy they are and who uses them less often.

    Card and allocator are read in one tick, right after each other, so that the bands made of both fit together.

    Args:
        cards: read in place; the programs that run on them need not be asked.
    """

    def __init__(self, cards: Sequence[SimulatedGpu | ShownCard]) -> None:
        self._cards = tuple(ShownCard.of(card) if isinstance(card, SimulatedGpu) else card for card in cards)
        self._left: deque[ShownCard] = deque()
        self._probes: dict[str, Probe] = {}
        self._busy: dict[str, tuple[int, float, float]] = {}
        # Due at the first tick.
        self._sensors_due_s = self._processes_due_s = -math.inf

    def show(self, cards: Sequence[ShownCard]) -> None:
        """Read these from now on. One that is not among them any more is read once more, as empty: its program has
        ended. Any thread may call.
        """
        there = {card.uuid for card in cards}
        # Replaced as a whole: the lane's thread iterates over one tuple or the other, without a lock.
        before, self._cards = self._cards, tuple(cards)
        for card in before:
            if card.uuid not in there:
                self._probes.pop(card.name, None)
                self._left.append(card)

    def attach(self, device: str, probe: Probe | None) -> bool:
        """Read the allocator of ``device`` ("sim:0") by ``probe`` from now on, or with ``None`` no longer.

        Returns:
            Whether it is one of these cards.
        """
        if device not in (card.name for card in self._cards):
            return False
        if probe is None:
            self._probes.pop(device, None)
        else:
            self._probes[device] = probe
        return True

    def read(self, now_s: float) -> list[Record]:
        """The rows of one tick."""
        sensors = now_s >= self._sensors_due_s
        if sensors:
            self._sensors_due_s = now_s + SENSOR_PERIOD_S
        found: list[Record] = [
            # A copy, for `attach` may come from another thread in between.
            allocator_sample(now_s - AHEAD_S, device, probe)
            for device, probe in tuple(self._probes.items())
        ]
        # Each card is read once a tick, so that its rows are of one moment.
        cards = [(shown.uuid, shown.now()) for shown in self._cards]
        found += [self._sample(uuid, card, now_s, sensors=sensors) for uuid, card in cards]
        # Rows of processes are many and change rarely.
        if now_s >= self._processes_due_s:
            self._processes_due_s = now_s + PROCESS_PERIOD_S
            for uuid, card in cards:
                found += _processes(uuid, card, now_s)
        # popleft by one thread and append by others need no lock.
        while self._left:
            left = self._left.popleft()
            found.append(self._sample(left.uuid, empty(left.index, left.capacity), now_s, sensors=True))
        return found

    def stale(self, now_s: float) -> Iterable[Record]:
        """The rows of a tick in which `read` does not return."""
        return [_gap(card.uuid, now_s) for card in self._cards]

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
        # The counter of another program begins anew: no share can be told between two of them.
        if before is not None and before[0] == card.pid and now_s > before[1]:
            values[UTILISATION] = min(1.0, max(0.0, (card.busy_s - before[2]) / (now_s - before[1])))
        return Sample(now_s, "gpu", uuid, values, NOT_SIMULATED)


def _gap(uuid: str, now_s: float) -> Sample:
    return Sample(now_s, "gpu", uuid, dict.fromkeys(MEMORY), dict.fromkeys(MEMORY, State.STALE))


def _processes(uuid: str, card: CardFigures, now_s: float) -> Iterator[Sample]:
    """One row for each process that holds memory of ``card``."""
    for pid, (name, held) in card.users.items():
        yield _row(uuid, now_s, pid, name, held)
    for pid, held in card.others.items():
        yield _row(uuid, now_s, pid, f"another process, {SIMULATED}", held)


def _row(uuid: str, now_s: float, pid: int, name: str, held: int) -> Sample:
    return Sample(now_s, "process", uuid, {"pid": pid, "name": name, "user": None, "memory_bytes": held})


STALE_S = 1.0
"""Silence of the other process after which its card's newest figures are no longer taken for the present."""


@dataclass(frozen=True, slots=True)
class CardFigures:
    """A card at one moment; sizes in bytes.

    Attributes:
        index: of ``sim:index``.
        capacity: of the card.
        free: of it.
        reserved: by the allocator; by those of all processes that share it.
        context: that the context takes; that all of theirs take.
        others: that simulated other processes hold, by their number.
        busy_s: seconds spent in operations so far.
        pid, name: of the process whose allocator it is.
        fresh: whether these are figures of now; not once the process has gone silent.
        sharing: name of each process that shares it, and what it holds in all, by number; empty where ``pid`` has it
            alone.
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
        """Name of each process that uses it, simulated ones apart, and what it holds in all, by number."""
        if self.sharing or not self.held:
            return self.sharing
        return {self.pid: (self.name, self.held)}

    @property
    def held(self) -> int:
        """What the process holds in all, or all that share it: contexts, and what allocators have reserved."""
        return self.context + self.reserved


class MirroredCard:
    """A simulated card whose allocator lives in another process, which pushes its figures. Any thread may do anything.

    Args:
        index: of ``sim:index``.
        capacity: bytes, until a `put` says otherwise.
        clock: seconds, monotonic.
        pid, name: of the other process.
        stale_s: after so long without figures there are none.

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
        """Take in figures of now.

        Args:
            reserved_bytes, context_bytes: of all processes that share it.
            others_bytes: what simulated other processes hold: of all together, or by their number.
            busy_s: seconds spent in operations so far.
            sharing: of `CardFigures`.
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
                # Pushed figures of several processes are not of one moment and may add up to more than there is.
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
        """The newest figures; not `fresh` before the first and once they are stale."""
        with self._lock:
            found, put_s = self._newest, self._put_s
            stale = put_s is None or self._clock() - put_s > self._stale_s
        if not stale:
            return found
        return CardFigures(found.index, found.capacity, found.free, pid=found.pid, name=found.name, fresh=False)

    @property
    def newest(self) -> CardFigures:
        """The figures that were put last, however long ago."""
        return self._newest

    @property
    def capacity(self) -> int:
        """Bytes of the card."""
        return self._newest.capacity


class ShownCard:
    """What is read of one simulated card: the card of this process, or another process's that is mirrored in its place.

    Args:
        name: torch's name of it, or the one it has here beside another of that name.
        gpu: what it is.
        own: the card of this process; ``None`` of one that programs alone use.

    Attributes:
        name, gpu, own: as given.
        uuid: the identity of the card.
        mirror: what is shown in place of the own one; ``None`` for nothing.
    """

    def __init__(self, name: str, gpu: Gpu, own: SimulatedGpu | None = None) -> None:
        self.name = name
        self.gpu = gpu
        self.own = own
        self.uuid = gpu.uuid
        self.mirror: MirroredCard | None = None

    @classmethod
    def of(cls, own: SimulatedGpu) -> ShownCard:
        """A card of this process."""
        card = card_called(own.product, own.capacity)
        return cls(f"sim:{own.index}", simulated_gpu(own.index, card), own)

    @property
    def index(self) -> int:
        """What the program that uses it calls it: ``sim:index``."""
        return self.gpu.nvml_index

    @property
    def capacity(self) -> int:
        """Bytes of the card."""
        return self.gpu.total_bytes or 0

    def now(self) -> CardFigures:
        """The figures to show; of a card that no program uses now, that it is empty."""
        # Read once: the mirror may be taken away by another thread between two looks.
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
    """What a card of this process holds now."""
    free, capacity = card.free_and_total()
    reserved, context = card.reserved_bytes(), card.context_bytes
    return CardFigures(
        card.index, capacity, free, reserved, context, card.others, card.busy_s, os.getpid(), _our_name()
    )


@cache
def _our_name() -> str:
    import psutil

    return str(psutil.Process().name())
