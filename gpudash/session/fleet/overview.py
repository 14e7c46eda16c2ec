"""From what exporters tell to one entry a GPU, fullest first, and what is to be looked at over the whole fleet: memory
levels, gpudash's own warnings, machines that fell silent. Nothing here asks a server."""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from gpudash.devices.health import HEAT, xid
from gpudash.memory.watching.hardware import LASTING_S
from gpudash.sources.prometheus.gpus import ReportedGpu, ReportedGpus, identity, machine_of, same_gpu
from gpudash.sources.prometheus.names import SPOKEN
from gpudash.system.settings import Settings
from gpudash.telemetry.metrics import HEALTH, SENSORS, Exporter
from gpudash.units import format_duration, format_pair, format_percent

logger = logging.getLogger(__name__)

Level = Literal["warning", "critical"]

HOLDERS = ("pod", "namespace", "container", "hpc_job")
"""Labels by which dcgm-exporter says who holds a GPU, of Kubernetes and of a batch system
(https://github.com/NVIDIA/dcgm-exporter)."""

Reporter = Exporter | Literal["ssh"]
"""Who tells of a GPU: an exporter, or the machine itself over ssh."""

_OVER_SSH = "the machine itself, over ssh"

STALE_S = 15.0
"""Age of a reading from which on its GPU is marked, at least."""

LATE = 3.0
"""Intervals between scrapes that pass before a GPU is marked, where that is longer than `STALE_S`: what is scraped once
a minute is not late after 15 s."""

LONGEST_INTERVAL_S = 120.0
"""Longest interval that is believed; a GPU that has just appeared looks as if it were scraped seldom."""

FORGET_S = 3600.0
"""A GPU of which nothing was told for so long is shown no more."""

SOON_S = 60.0
"""A memory that is foretold to be full within so long is critical."""

MOST_REPORTED = 3
"""Sentences of the server's own that are repeated."""


@dataclass(frozen=True, slots=True)
class FleetGpu:
    """One GPU. What its exporter does not tell is ``None``, never 0.

    Attributes:
        key: what identifies it in the fleet: its UUID, or machine and index where no UUID is told.
        host: the machine, as its exporter or the server calls it.
        index: the driver's index on that machine.
        uuid: "GPU-…"; empty where it is not told.
        product: marketing name; empty where it is not told.
        used_bytes: as the exporter counts it, without the driver's own share where that is told apart.
        total_bytes: all of its memory.
        utilisation: share of time in which a kernel ran, 0 to 1.
        exporter: whose names the figures have; of several exporters for one GPU, the one that is shown.
        seen_s: when its memory was scraped last, in seconds since the epoch.
        stale: whether that is too long ago to go on with.
        simulated: whether nothing of it is there but its memory's bookkeeping.
        run: the workload that runs on it; empty for none, or where that is not told.
        labels: the server's labels of its series ("job", "instance", "namespace", "pod" ...), to group by.
        also: other exporters that tell of the same GPU, and are not shown.
        reserved_bytes: the driver's own share, where it is told apart.
        torch_name: what torch calls it on its machine, where gpudash tells.
        sensors: what else it tells of itself, such as its temperature: values by the names of `metrics.SENSORS`.
        health: what it tells of errors and of what slows it down: values by the names of `metrics.HEALTH`.
        drawn_j: energy that it has drawn since the fleet was opened; ``None`` where it does not tell.
        is_host: whether it is no GPU but the memory of a machine without one.
        instance: number of a MIG instance on its GPU; ``None`` of a whole one.
        profile: size of a MIG instance, such as "1g.10gb"; "" of a whole GPU, or where its product says it.
        impossible: figures that cannot be, which are left out: what is wrong with each, in words.
    """

    key: str
    host: str
    index: int | None
    uuid: str
    product: str
    used_bytes: int | None
    total_bytes: int | None
    utilisation: float | None
    exporter: Reporter
    seen_s: float
    stale: bool = False
    simulated: bool = False
    run: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    also: tuple[Exporter, ...] = ()
    reserved_bytes: int | None = None
    torch_name: str = ""
    sensors: Mapping[str, float] = field(default_factory=dict)
    health: Mapping[str, float] = field(default_factory=dict)
    drawn_j: float | None = None
    is_host: bool = False
    instance: int | None = None
    profile: str = ""
    impossible: tuple[str, ...] = ()

    @property
    def holders(self) -> tuple[str, ...]:
        """Who holds it by its labels: "pod train-0", "namespace ml", "container main"; none where they do not say.

        Where the server has labels of its own by these names, those of the exporter begin with "exported_".
        """
        named = ((name, self.labels.get(f"exported_{name}") or self.labels.get(name)) for name in HOLDERS)
        return tuple(f"{name.removeprefix('hpc_')} {value}" for name, value in named if value)

    @property
    def number(self) -> str:
        """The driver's numbering on its machine: "0", of a MIG instance "0:1"; "" where that is not told."""
        parts = (self.index, self.instance)
        return ":".join(str(part) for part in parts if part is not None)

    @property
    def taken_bytes(self) -> int | None:
        """Bytes that are not free, the driver's own share with them; ``None`` where they are not known."""
        if self.used_bytes is None:
            return None
        return self.used_bytes + (self.reserved_bytes or 0)

    @property
    def fullness(self) -> float | None:
        """How full its memory is, 0 to 1; ``None`` where it is not known."""
        taken = self.taken_bytes
        if taken is None or not self.total_bytes:
            return None
        return taken / self.total_bytes

    @property
    def where(self) -> tuple[str, str]:
        """Where the server has it from: what is scraped, and its identity there."""
        return identity(self.labels)

    @property
    def reported_by(self) -> str:
        """Whose figures are shown, and who else knows the GPU: "gpudash (dcgm-exporter knows it too)"."""
        others = " and ".join(SPOKEN[exporter] for exporter in self.also)
        verb = "know"
        if len(self.also) == 1:
            verb = "knows"
        if self.exporter == "ssh":
            reported_by = _OVER_SSH
        else:
            reported_by = SPOKEN[self.exporter]
        if others:
            return f"{reported_by} ({others} {verb} it too)"
        return reported_by

    @property
    def name(self) -> str:
        """Machine and index, as a person speaks of it."""
        if self.is_host:
            return f"{self.host}'s memory"
        number = f"{self.number} {self.profile}".rstrip()
        if self.index is not None:
            return f"{self.host} GPU {number}"
        return f"{self.host} {self.uuid[:12]}".rstrip()


@dataclass(frozen=True, slots=True)
class FleetWarning:
    """Something to look at.

    Attributes:
        key: of the GPU; empty where it concerns a whole machine, or the server.
        level: how grave it is.
        text: one sentence that begins with the machine's name.
        kind: what it is about.
    """

    key: str
    level: Level
    text: str
    kind: Literal["memory", "forecast", "hardware", "host", "stale", "server"] = "memory"


Where = tuple[str, str]
"""Instance, and identity of the GPU there."""


class EnergyMeter:
    """What GPUs draw from the first reading on. Belongs to one thread."""

    def __init__(self) -> None:
        self._since_j: dict[str, float] = {}

    def drawn_j(self, key: str, health: Mapping[str, float]) -> float | None:
        """Joules of the GPU ``key`` so far; ``None`` where it does not tell. A counter begins anew with its driver."""
        total_j = health.get("energy_j")
        if total_j is None:
            return None
        since_j = self._since_j[key] = min(total_j, self._since_j.get(key, total_j))
        return total_j - since_j


class Overview:
    """Follows the answers. Belongs to one thread; what it gives out is frozen.

    Attributes:
        reported: key → what the answers said last.
        intervals: how far apart the scrapes of a GPU's memory are, in seconds, where that is known.
    """

    def __init__(self) -> None:
        self.reported: dict[str, ReportedGpu] = {}
        self.intervals: Mapping[Where, float] = {}
        self._known: dict[str, FleetGpu] = {}
        self._here: set[str] = set()
        self._energy = EnergyMeter()

    def take(self, reported: ReportedGpus, times: Mapping[Where, float], now_s: float) -> tuple[FleetGpu, ...]:
        """The GPUs, fullest first.

        Args:
            reported: the newest answer; what is missing from it is stale at once, for the server says so.
            times: when each GPU's memory was scraped last, in the server's seconds since the epoch.
            now_s: the server's time.
        """
        reports: dict[str, list[ReportedGpu]] = defaultdict(list)
        for gpu in reported.gpus:
            reports[gpu.key].append(gpu)
        chosen = {key: self._choose(several, times, now_s) for key, several in reports.items()}
        shared = _shared(gpu for gpu, _seen_s in chosen.values())
        for key, (gpu, seen_s) in chosen.items():
            instance = gpu.where[0]
            also = tuple({other.exporter: None for other in reports[key] if other.exporter != gpu.exporter})
            stale = now_s - seen_s > self._patience(gpu)
            if instance and gpu.host in shared:
                host = instance
            else:
                host = gpu.host
            made = _made(gpu, host, seen_s, also, stale=stale)
            self._known[key] = replace(made, drawn_j=self._energy.drawn_j(key, made.health))
            self.reported[key] = gpu
        self._here = set(chosen)
        if len(self._known) > len(chosen):
            self._mark(now_s)
        return self._sorted()

    def marked(self, now_s: float) -> tuple[FleetGpu, ...]:
        """The GPUs as they stand at ``now_s`` when no answer has come since."""
        self._mark(now_s)
        return self._sorted()

    def missing(self) -> dict[str, int]:
        """Instance → GPUs there that were scraped within the last minutes, and of which no answer has told yet."""
        known = {gpu.where for gpu in self.reported.values()}
        shown = {same_gpu(which) for _instance, which in known}
        gone = (where for where in self.intervals if where not in known and same_gpu(where[1]) not in shown)
        return dict(Counter(instance for instance, _which in gone))

    def _mark(self, now_s: float) -> None:
        for key, gpu in list(self._known.items()):
            if now_s - gpu.seen_s > FORGET_S and (key not in self._here or gpu.seen_s > 0):  # 0: no time is told
                logger.info("%s is shown no more: last reported %.0f s ago", gpu.name, now_s - gpu.seen_s)
                del self._known[key]
                del self.reported[key]
            elif not gpu.stale and (key not in self._here or now_s - gpu.seen_s > self._patience(self.reported[key])):
                logger.info("%s is marked as stale: last reported %.0f s ago", gpu.name, now_s - gpu.seen_s)
                self._known[key] = replace(gpu, stale=True)

    def _sorted(self) -> tuple[FleetGpu, ...]:
        return tuple(sorted(self._known.values(), key=fullest_first))

    def _choose(
        self, reports: list[ReportedGpu], times: Mapping[Where, float], now_s: float
    ) -> tuple[ReportedGpu, float]:
        """The best exporter's telling that is not late, else the newest; and when it was scraped."""
        seen = [(gpu, times.get(gpu.where, 0.0)) for gpu in reports]
        fresh = next(((gpu, seen_s) for gpu, seen_s in seen if now_s - seen_s <= self._patience(gpu)), None)
        return fresh or max(seen, key=lambda telling: telling[1])

    def _patience(self, gpu: ReportedGpu) -> float:
        return max(STALE_S, LATE * min(self.intervals.get(gpu.where, 0.0), LONGEST_INTERVAL_S))


def _shared(gpus: Iterable[ReportedGpu]) -> set[str]:
    """Names of machines that several instances of one exporter have: those go by their instances."""
    instances: dict[tuple[str, str], set[str]] = defaultdict(set)
    for gpu in gpus:
        instances[gpu.exporter, gpu.host].add(gpu.where[0])
    return {host for (_exporter, host), names in instances.items() if len(names) > 1}


def _made(gpu: ReportedGpu, host: str, seen_s: float, also: tuple[Exporter, ...], *, stale: bool) -> FleetGpu:
    values = gpu.values
    used, total, free = values.get("used_bytes"), values.get("total_bytes"), values.get("free_bytes")
    reserved = values.get("driver_reserved_bytes")
    if total is None and used is not None and free is not None:
        total = used + free + (reserved or 0)
    impossible = list(gpu.impossible)
    if used is not None and total is not None and used > total:
        impossible.append(f"used {format_pair(used, total)} is more than there is")
        used = None
    return FleetGpu(
        key=gpu.key,
        host=host,
        index=gpu.index,
        uuid=gpu.uuid,
        product=gpu.product,
        used_bytes=None if used is None else round(used),
        total_bytes=None if total is None else round(total),
        utilisation=values.get("gpu_utilisation"),
        exporter=gpu.exporter,
        seen_s=seen_s,
        stale=stale,
        also=also,
        simulated=gpu.simulated,
        run=gpu.run,
        labels=gpu.labels,
        reserved_bytes=None if reserved is None else round(reserved),
        torch_name=gpu.torch_name,
        instance=gpu.instance,
        profile=gpu.profile,
        impossible=tuple(impossible),
        sensors={metric.name: values[metric.name] for metric in SENSORS if metric.name in values},
        health={metric.name: values[metric.name] for metric in HEALTH if metric.name in values},
    )


def fullest_first(gpu: FleetGpu) -> tuple[bool, float, str, int, int]:
    """A key that sorts GPUs by how full they are, those last of which that is not known."""
    fullness = gpu.fullness
    return fullness is None, -(fullness or 0.0), gpu.host, -1 if gpu.index is None else gpu.index, gpu.instance or 0


class FleetWarnings:
    """Belongs to one thread. A level that was passed stands until memory has fallen by the hysteresis below it."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._heights: dict[str, int] = {}
        self._hot_since_s: dict[str, float] = {}

    def over(
        self,
        gpus: Sequence[FleetGpu],
        reported: Mapping[str, ReportedGpu],
        machines: Mapping[str, Sequence[str]],
        now_s: float,
        forecasts: Mapping[str, float] | None = None,
    ) -> list[FleetWarning]:
        """The warnings that stand, critical first and the fullest memory first.

        Args:
            gpus: every GPU, fullest first.
            reported: key → what its exporter said.
            machines: instance → levels of gpudash's warnings of its host memory.
            now_s: the server's time.
            forecasts: key → seconds until a memory is full, where its exporter foretells nothing.
        """
        found: list[FleetWarning] = []
        for gpu in gpus:
            if gpu.stale:
                self._heights.pop(gpu.key, None)  # what it held then says nothing of now
            else:
                found += self._of(gpu, reported.get(gpu.key), (forecasts or {}).get(gpu.key))
                found += self._of_hardware(gpu, now_s)
        found += [_of_host(instance, levels) for instance, levels in machines.items()]
        found += _silent(gpus, now_s)
        return sorted(found, key=lambda warning: warning.level != "critical")

    def _of(self, gpu: FleetGpu, reported: ReportedGpu | None, ahead_s: float | None) -> list[FleetWarning]:
        found: list[FleetWarning] = []
        level: Level
        fullness = gpu.fullness
        height = self._height(gpu.key, fullness)
        if height and fullness is not None:
            pair = format_pair(gpu.taken_bytes, gpu.total_bytes)
            text = f"{gpu.name} is {format_percent(fullness)} full: {pair}"
            found.append(FleetWarning(gpu.key, "critical" if height == 2 else "warning", text))
        elif reported is not None and any(level != "forecast" for level in reported.warnings):
            level = _gravest(reported.warnings)
            found.append(FleetWarning(gpu.key, level, f"{gpu.name}: gpudash there warns of its memory"))
        if not (reported is None or reported.forecast_s is None):
            ahead_s = reported.forecast_s
        if ahead_s is not None:
            level = "warning"
            if ahead_s <= SOON_S:
                level = "critical"
            when = format_duration(ahead_s)
            text = f"{gpu.name} will be full in {when} if it goes on growing as it does"
            found.append(FleetWarning(gpu.key, level, text, "forecast"))
        return found

    def _of_hardware(self, gpu: FleetGpu, now_s: float) -> Iterable[FleetWarning]:
        """Errors until the driver is loaded anew, but for those that a program causes; and heat that lasts."""
        code = int(gpu.health.get("last_xid", 0))
        meaning = xid(code)
        if code and meaning.level != "program":
            text = f"{gpu.name} reported XID error {code}: {meaning.label}"
            yield FleetWarning(gpu.key, meaning.level, text, "hardware")
        errors = int(gpu.health.get("ecc_uncorrected_errors", 0))
        if errors:
            if errors == 1:
                counted = "1 memory error"
            else:
                counted = f"{errors} memory errors"
            text = f"{gpu.name} has had {counted} that ECC could not correct"
            yield FleetWarning(gpu.key, "warning", text, "hardware")
        if not int(gpu.health.get("clocks_event_reasons", 0)) & HEAT:
            self._hot_since_s.pop(gpu.key, None)
        elif now_s - self._hot_since_s.setdefault(gpu.key, now_s) >= LASTING_S:
            yield FleetWarning(gpu.key, "warning", f"{gpu.name} clocks lower because it is too hot", "hardware")

    def _height(self, key: str, fullness: float | None) -> int:
        """0 calm, 1 past the warning level, 2 past the critical one; as it was where nothing is known."""
        before = self._heights.get(key, 0)
        if fullness is None:
            return 0
        settings, height = self._settings, 0
        for rank, level in ((1, settings.warn_ratio), (2, settings.critical_ratio)):
            if fullness >= level - (settings.hysteresis_ratio if before >= rank else 0.0):
                height = rank
        self._heights[key] = height
        return height


def of_server(sentences: Iterable[str]) -> list[FleetWarning]:
    """What the server says of answers that are not whole."""
    return [
        FleetWarning("", "warning", f"The server says: {text}", "server") for text in list(sentences)[:MOST_REPORTED]
    ]


def silent_before(missing: Mapping[str, int]) -> list[FleetWarning]:
    """Instances that told of GPUs a few minutes ago and were silent when the fleet was opened, with their GPUs."""
    return [
        FleetWarning(
            "", "warning", f"{machine_of(instance)}: {_gpus(count)} told of a few minutes ago and not now", "stale"
        )
        for instance, count in sorted(missing.items())
    ]


def odd_entries(reported: ReportedGpus) -> list[FleetWarning]:
    """That a part of an answer could not be read."""
    if not reported.odd:
        return []
    if reported.odd == 1:
        entries = "1 entry"
    else:
        entries = f"{reported.odd} entries"
    left_out = "they are left out"
    if reported.odd == 1:
        left_out = "it is left out"
    text = f"The server's answer holds {entries} that cannot be read; {left_out}"
    return [FleetWarning("", "warning", text, "server")]


def _gravest(levels: Sequence[str]) -> Level:
    if "critical" in levels:
        return "critical"
    return "warning"


def _of_host(instance: str, levels: Sequence[str]) -> FleetWarning:
    what = "warns of host memory"
    if levels == ("forecast",):
        what = "foretells that host memory runs out"
    return FleetWarning("", _gravest(levels), f"{machine_of(instance)}: gpudash there {what}", "host")


def _silent(gpus: Iterable[FleetGpu], now_s: float) -> list[FleetWarning]:
    """One for every machine that was not heard of for too long."""
    machines: dict[str, list[FleetGpu]] = defaultdict(list)
    for gpu in gpus:
        if gpu.stale:
            machines[gpu.host].append(gpu)
    found = []
    for host, stale in sorted(machines.items()):
        count = _gpus(len(stale))
        seen_s = max(gpu.seen_s for gpu in stale)
        ago = "at an unknown time"
        if seen_s > 0:
            ago = f"{format_duration(max(0.0, now_s - seen_s))} ago"
        key = ""
        if len(stale) == 1:
            key = stale[0].key
        found.append(FleetWarning(key, "warning", f"{host}: {count} last heard of {ago}", "stale"))
    return found


def _gpus(count: int) -> str:
    if count == 1:
        return "1 GPU"
    return f"{count} GPUs"
