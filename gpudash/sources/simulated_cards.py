"""The readings of simulated GPUs, under the names of NVML's."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from gpudash.devices import SIMULATED
from gpudash.simulator.card import Card
from gpudash.sources.mirrored_card import CardFigures, ShownCard, figures
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
        cards: read in place; whoever runs on them need not be asked.
    """

    def __init__(self, cards: Sequence[Card | ShownCard]) -> None:
        self._cards = tuple(cards)
        self._probes: dict[str, Probe] = {}
        self._busy: dict[int, tuple[int, float, float]] = {}
        self._sensors_due_s = self._processes_due_s = -math.inf

    def attach(self, device: str, probe: Probe | None) -> bool:
        """Read the allocator of ``device`` ("sim:0") by ``probe`` from now on, or with ``None`` no longer.

        Returns:
            Whether it is one of these cards.
        """
        if device not in (f"sim:{card.index}" for card in self._cards):
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
            allocator_sample(now_s - AHEAD_S, device, probe) for device, probe in tuple(self._probes.items())
        ]
        cards = [figures(card) if isinstance(card, Card) else card.now() for card in self._cards]
        found += [self._sample(card, now_s, sensors=sensors) for card in cards]
        if now_s >= self._processes_due_s:
            self._processes_due_s = now_s + PROCESS_PERIOD_S
            for card in cards:
                found += _processes(card, now_s)
        return found

    def stale(self, now_s: float) -> Iterable[Record]:
        """The rows of a tick in which `read` does not return."""
        return [_gap(f"SIM-{card.index}", now_s) for card in self._cards]

    def _sample(self, card: CardFigures, now_s: float, *, sensors: bool) -> Sample:
        if not card.fresh:
            return _gap(card.uuid, now_s)
        values: dict[str, Value] = {
            "used_bytes": card.capacity - card.free,
            "free_bytes": card.free,
            "total_bytes": card.capacity,
            "process_bytes": card.held,
        }
        if not sensors:
            return Sample(now_s, "gpu", card.uuid, values)
        values.update(dict.fromkeys(NOT_SIMULATED))
        before, self._busy[card.index] = self._busy.get(card.index), (card.pid, now_s, card.busy_s)
        if before is not None and before[0] == card.pid and now_s > before[1]:
            values[UTILISATION] = min(1.0, max(0.0, (card.busy_s - before[2]) / (now_s - before[1])))
        return Sample(now_s, "gpu", card.uuid, values, NOT_SIMULATED)


def _gap(uuid: str, now_s: float) -> Sample:
    return Sample(now_s, "gpu", uuid, dict.fromkeys(MEMORY), dict.fromkeys(MEMORY, State.STALE))


def _processes(card: CardFigures, now_s: float) -> Iterator[Sample]:
    """One row for each process that holds memory of ``card``."""
    if card.held:
        yield _row(card, now_s, card.pid, card.name, card.held)
    for pid, held in card.others.items():
        yield _row(card, now_s, pid, f"another process, {SIMULATED}", held)


def _row(card: CardFigures, now_s: float, pid: int, name: str, held: int) -> Sample:
    return Sample(now_s, "process", card.uuid, {"pid": pid, "name": name, "user": None, "memory_bytes": held})
