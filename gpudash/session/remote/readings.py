"""From the lines of a machine's reader to records. The input is untrusted: numbers, names and amounts are limited, and
times are converted to this computer's clock."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from gpudash.devices.names import Gpu
from gpudash.session.remote.stream import record_from_line
from gpudash.telemetry.records import Note, Sample, State, Topic

VERSION = 1
"""Version of the reader, which is sent with every connection."""

MOST_GPUS, MOST_PROCESSES = 64, 256
"""Most GPUs of a machine, and most processes of one list, that are accepted."""

MOST_RECORDS = 2000
"""Most readings accepted in one second; the rest is ignored."""

LARGEST = 1e18
"""Largest number accepted as a reading: an exabyte."""

LONGEST_NAME = 200

LATE_S = 5.0
"""How far a reading's own time may be off its arrival; beyond that, the arrival counts."""


@dataclass(slots=True)
class Clock:
    """Converts times of a machine's clock, whatever it shows, to session time. Distances are kept; the result is never
    before the previous reading and never after the arrival."""

    _offset_s: float | None = None
    last_s: float = 0.0

    def begin(self) -> None:
        """Start anew: the machine's clock may have changed."""
        self._offset_s = None

    def here(self, there_s: float, arrival_s: float) -> float:
        """Session time of a reading with the remote time ``there_s`` that arrived at ``arrival_s``."""
        lead_s = arrival_s - there_s
        if self._offset_s is None or lead_s < self._offset_s or lead_s - self._offset_s > LATE_S:
            self._offset_s = lead_s  # the fastest message has the smallest delay
        self.last_s = min(arrival_s, max(self.last_s, there_s + self._offset_s))
        return self.last_s


@dataclass(frozen=True, slots=True)
class Greeting:
    """A machine's description of itself, its first message.

    Attributes:
        product: processor; "CPU" if unknown.
        cores: number of cores of all processors; 0 if unknown.
        capacity_source: what limits its memory.
    """

    product: str
    cores: int
    capacity_source: str

    @property
    def processor(self) -> str:
        """The processor in words, as for this computer."""
        if self.cores:
            return f"{self.product}, {self.cores} cores"
        return self.product


@dataclass(slots=True)
class Readings:
    """Parses one machine's lines; belongs to one thread.

    Attributes:
        gpus: the GPUs it reported last.
        gpu_problem: why it has no GPU, in words; ``None`` if it has some, or before that is known.
        driver_fails: whether the cause is a broken driver.
        left_out: number of lines ignored because they were malformed or too many.
    """

    gpus: tuple[Gpu, ...] = ()
    gpu_problem: str | None = None
    driver_fails: bool = False
    left_out: int = 0
    _clock: Clock = field(default_factory=Clock)
    _second: tuple[int, int] = (0, 0)
    _lists: dict[str | None, tuple[float, float, int]] = field(default_factory=dict)

    def begin(self) -> None:
        """Reset for a new connection: the machine may have been restarted."""
        self._clock.begin()

    def arrived(self, time_s: float) -> None:
        """Date no later reading before ``time_s``."""
        self._clock.last_s = max(self._clock.last_s, time_s)

    def take(self, line: bytes, arrival_s: float) -> Greeting | Note | Sample | None:
        """The content of a line; ``None`` if it is malformed.

        Args:
            line: the line as received.
            arrival_s: session time of its arrival.
        """
        second, count = self._second
        self._second = (int(arrival_s), 1 + (count if second == int(arrival_s) else 0))
        if self._second[1] <= MOST_RECORDS:
            try:
                return self._read(line, arrival_s)
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
                pass
        self.left_out += 1
        return None

    def _read(self, line: bytes, arrival_s: float) -> Greeting | Note | Sample | None:
        data = json.loads(line)
        if "gpudash" in data:
            return _greeting(data)
        if "gpus" in data:
            return self._devices(data, arrival_s)
        sample = record_from_line(line)
        if not isinstance(sample, Sample) or sample.table not in ("host", "gpu", "process"):
            raise ValueError("no reading")
        known = {gpu.uuid for gpu in self.gpus}
        of: dict[str, set[str | None]] = {"host": {None}, "gpu": {*known}, "process": {None, *known}}
        if sample.device not in of[sample.table]:
            raise ValueError("of no device")
        return self._checked(sample, arrival_s)

    def _checked(self, sample: Sample, arrival_s: float) -> Sample:
        listed = sample.table == "process"
        if listed:
            time_s = self._listed_s(sample, arrival_s)
        else:
            time_s = self._clock.here(sample.time_s, arrival_s)
        values, states = dict(sample.values), dict(sample.states)
        for name, value in values.items():
            if isinstance(value, str):
                values[name] = plain(value)
            elif value is not None and not (math.isfinite(value) and 0 <= value <= LARGEST):
                values[name], states[name] = None, State.STALE
        return replace(sample, time_s=time_s, values=values, states=states)

    def _listed_s(self, sample: Sample, arrival_s: float) -> float:
        """The common time of all rows of a process list.

        Raises:
            ValueError: if the list is full.
        """
        there_s, time_s, count = self._lists.get(sample.device, (-1.0, 0.0, 0))
        if there_s != sample.time_s:
            there_s, time_s, count = sample.time_s, self._clock.here(sample.time_s, arrival_s), 0
        if count >= MOST_PROCESSES:
            raise ValueError("too many processes")
        self._lists[sample.device] = there_s, time_s, count + 1
        return time_s

    def _devices(self, data: Mapping[str, Any], arrival_s: float) -> Note:
        self.gpus = tuple(map(_gpu, list(data["gpus"])[:MOST_GPUS]))
        code = data.get("problem")
        if self.gpus:
            self.gpu_problem = None
            text = ", ".join(f"GPU {gpu.number} {gpu.product}" for gpu in self.gpus)
        else:
            self.gpu_problem = _why_none(code)
            text = f"no GPU: {self.gpu_problem}"
        self.driver_fails = not self.gpus and code not in _NOTHING_THERE
        names = {f"GPU {gpu.number}": gpu.uuid for gpu in self.gpus}  # torch's names for them there are unknown
        details = {"gpus": list(map(asdict, self.gpus)), "torch_names": names}
        self.arrived(arrival_s)
        return Note(time_s=arrival_s, topic=Topic.GPUS, text=text, details=details)


def plain(text: str, longest: int = LONGEST_NAME) -> str:
    """Text from another machine, made safe to display: short and printable."""
    kept = "".join(character if character.isprintable() else "\ufffd" for character in text[:longest])
    if len(text) <= longest:
        return kept
    return f"{kept[:-1]}…"


def _greeting(data: Mapping[str, Any]) -> Greeting:
    if data["gpudash"] != VERSION:
        raise ValueError("another reader")
    cores = data.get("cores")
    return Greeting(
        plain(str(data.get("product") or "")) or "CPU",
        cores if isinstance(cores, int) and 0 < cores < 100_000 else 0,
        plain(str(data.get("capacity_source") or "RAM")),
    )


def _gpu(facts: Mapping[str, Any]) -> Gpu:
    """A GPU from the reader's description.

    Raises:
        ValueError: if it has no UUID.
    """
    uuid = plain(str(facts["uuid"]), 96)
    if not uuid:
        raise ValueError("no identity")
    major, minor = map(_small, facts.get("cuda_capability") or (None, None))
    generation, width, index = (_small(facts.get(name)) for name in ("pcie_generation", "pcie_width", "nvml_index"))
    return Gpu(
        nvml_index=index or 0,
        uuid=uuid,
        pci_bus_id=plain(str(facts.get("pci_bus_id") or ""), 32),
        product=plain(str(facts.get("product") or "GPU")),
        cuda_capability=None if major is None or minor is None else (major, minor),
        pcie_generation=generation or None,
        pcie_width=width or None,
        multiprocessors=_small(facts.get("multiprocessors")) or None,
        shared_memory=facts.get("shared_memory") is True,
        instances=_small(facts.get("instances")) or 0,
        parent=plain(str(facts.get("parent") or ""), 96),
        instance=_small(facts.get("instance")) or 0,
    )


def _small(value: object) -> int | None:
    if isinstance(value, int) and 0 <= value < 1000:
        return value
    return None


_NOTHING_THERE = (-1, -2, 6)
"""Codes of a machine that has no card, or whose card is asleep."""


def _why_none(code: object) -> str:
    """Why a machine has no GPU to read, by the reader's code."""
    known = {
        -1: "no NVIDIA driver (libnvidia-ml.so.1) was found there; its memory and processor are shown",
        -2: "its NVIDIA card sleeps, and is not woken by being watched",
        6: "its NVIDIA driver lists no GPU; its memory and processor are shown",
        9: "its NVIDIA driver is not loaded; load it there with: sudo modprobe nvidia",
        18: "its NVIDIA library and driver differ in version, as after an update; restart that machine",
    }
    if isinstance(code, int) and code in known:
        return known[code]
    return f"its NVIDIA driver does not answer (code {'?' if _small(code) is None else code}); see nvidia-smi there"
