"""From what exporters tell to one entry a GPU, fullest first, and what is to be looked at over the whole fleet: the
warnings of memory and hardware, gpudash's own, machines that fell silent. Nothing here asks a server."""

from __future__ import annotations

import logging
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from gpudash.memory.watching.growth import FAIRLY_FULL, SOON_S, Forecast
from gpudash.memory.watching.watch import MemoryWatch
from gpudash.sources.prometheus.gpus import ReportedGpus, machine_of, same_gpu
from gpudash.system.settings import Settings
from gpudash.telemetry.fleet_gpu import FleetGpu
from gpudash.telemetry.records import Level, Sample, Warning
from gpudash.units import format_duration

logger = logging.getLogger(__name__)

STALE_S = 15.0
"""Age of a reading from which on its GPU is marked, at least."""

LATE = 3.0
"""Intervals between scrapes that pass before a GPU is marked, where that is longer than `STALE_S`: what is scraped once
a minute is not late after 15 s."""

LONGEST_INTERVAL_S = 120.0
"""Longest interval that is believed; a GPU that has just appeared looks as if it were scraped seldom."""

USUAL_INTERVAL_S = 15.0
"""Seconds between scrapes where that is not known."""

FORGET_S = 3600.0
"""A GPU of which nothing was told for so long is shown no more."""

MOST_AT_ONCE = 64
"""Memories that are forecast in one answer, those first that have waited longest: one takes about 0.3 ms."""

MOST_REPORTED = 3
"""Sentences of the server's own that are repeated."""

Where = tuple[str, str]
"""Instance, and identity of the GPU there."""


class EnergyMeter:
    """What GPUs draw from the first reading on. Belongs to one thread."""

    def __init__(self) -> None:
        self._since_j: dict[str, float] = {}

    def metered(self, gpu: FleetGpu) -> FleetGpu:
        """``gpu`` with what it has drawn so far. A counter begins anew with its driver."""
        total_j = gpu.values.get("energy_j")
        if total_j is None:
            return gpu
        since_j = self._since_j[gpu.key] = min(total_j, self._since_j.get(gpu.key, total_j))
        return replace(gpu, drawn_j=total_j - since_j)


class Overview:
    """Follows the answers. Belongs to one thread.

    Attributes:
        intervals: how far apart the scrapes of a GPU's memory are, in seconds, where that is known.
    """

    def __init__(self) -> None:
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
        reports: dict[str, list[FleetGpu]] = defaultdict(list)
        for gpu in reported.gpus:
            reports[gpu.key].append(replace(gpu, seen_s=times.get(gpu.where, 0.0)))
        chosen = {key: self._choose(several, now_s) for key, several in reports.items()}
        shared = _shared(chosen.values())
        for key, gpu in chosen.items():
            instance = gpu.where[0]
            if instance and gpu.host in shared:
                gpu.host = instance
            gpu.also = tuple(dict.fromkeys(other.exporter for other in reports[key] if other.exporter != gpu.exporter))
            gpu.stale = self._is_late(gpu, now_s)
            known = self._known.get(key)
            if gpu.stale and not (known is not None and known.stale):
                _log_stale(gpu, now_s)
            self._known[key] = self._energy.metered(gpu)
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
        known = {gpu.where for gpu in self._known.values()}
        shown = {same_gpu(which) for _instance, which in known}
        gone = (where for where in self.intervals if where not in known and same_gpu(where[1]) not in shown)
        return dict(Counter(instance for instance, _which in gone))

    def interval_s(self, key: str) -> float:
        """Seconds between two scrapes of a GPU that is known."""
        return self.intervals.get(self._known[key].where, USUAL_INTERVAL_S)

    def _mark(self, now_s: float) -> None:
        for key, gpu in list(self._known.items()):
            if now_s - gpu.seen_s > FORGET_S and (key not in self._here or gpu.seen_s > 0):  # 0: no time is told
                logger.info("%s is shown no more: last reported %.0f s ago", gpu.name, now_s - gpu.seen_s)
                del self._known[key]
            elif not gpu.stale and (key not in self._here or self._is_late(gpu, now_s)):
                _log_stale(gpu, now_s)
                self._known[key] = replace(gpu, stale=True)

    def _sorted(self) -> tuple[FleetGpu, ...]:
        return tuple(sorted(self._known.values(), key=fullest_first))

    def _choose(self, reports: list[FleetGpu], now_s: float) -> FleetGpu:
        """The best exporter's telling that is not late, else the newest."""
        fresh = next((gpu for gpu in reports if not self._is_late(gpu, now_s)), None)
        return fresh or max(reports, key=lambda gpu: gpu.seen_s)

    def _is_late(self, gpu: FleetGpu, now_s: float) -> bool:
        interval_s = min(self.intervals.get(gpu.where, 0.0), LONGEST_INTERVAL_S)
        return now_s - gpu.seen_s > max(STALE_S, LATE * interval_s)


def _log_stale(gpu: FleetGpu, now_s: float) -> None:
    logger.info("%s is marked as stale: last reported %.0f s ago", gpu.name, now_s - gpu.seen_s)


def _shared(gpus: Iterable[FleetGpu]) -> set[str]:
    """Names of machines that several instances of one exporter have: those go by their instances."""
    instances: dict[tuple[str, str], set[str]] = defaultdict(set)
    for gpu in gpus:
        instances[gpu.exporter, gpu.host].add(gpu.where[0])
    return {host for (_exporter, host), names in instances.items() if len(names) > 1}


def fullest_first(gpu: FleetGpu) -> tuple[bool, float, str, int, int]:
    """A key that sorts GPUs by how full they are, those last of which that is not known."""
    fullness = gpu.fullness
    return fullness is None, -(fullness or 0.0), gpu.host, -1 if gpu.index is None else gpu.index, gpu.instance or 0


class AnyFleet:
    """What a fleet shows, whoever reports its GPUs: a server, or machines over ssh.

    Attributes:
        address: what it is called.
        asking: what is said until somebody has answered.
        trying: what is said beside what is wrong.
        days: whether the past of a GPU is known, to compare it with another day.
    """

    address: str
    asking: str
    trying: str
    days = True

    def __init__(self) -> None:
        self._version = 0
        self._gpus: tuple[FleetGpu, ...] = ()
        self._warnings: tuple[Warning, ...] = ()

    @property
    def version(self) -> int:
        """Grows with everything new."""
        return self._version

    @property
    def problem(self) -> str | None:
        """What is wrong, in sentences; ``None`` when all is well."""
        raise NotImplementedError

    def gpus(self) -> tuple[FleetGpu, ...]:
        """Every GPU, fullest first; those whose memory is not known come last."""
        return self._gpus

    def warnings(self) -> tuple[Warning, ...]:
        """What is to be looked at over all GPUs, critical first."""
        return self._warnings

    def now_s(self) -> float:
        """The fleet's time, in seconds since the epoch."""
        return time.time()

    @property
    def unlinked(self) -> tuple[str, ...] | None:
        """Names of machines that were tried and are not linked; ``None`` where nothing has to be."""
        return None

    def link_again(self) -> None:
        """Try every machine that is not linked at once."""

    def close(self) -> bool:
        """End the polling; false when that took too long."""
        raise NotImplementedError

    def _show(self, gpus: tuple[FleetGpu, ...], warnings: Iterable[Warning]) -> None:
        found = tuple(warnings)
        if (gpus, found) != (self._gpus, self._warnings):
            self._gpus = gpus
            self._warnings = found
            self._version += 1


class FleetWatch:
    """The watches of memory and hardware over the GPUs of a server. Belongs to one thread.

    Args:
        settings: memory levels of the warnings.
        overview: knows how far apart the readings of a GPU are.
    """

    def __init__(self, settings: Settings, overview: Overview) -> None:
        self._memory = MemoryWatch(settings.warn_ratio, settings.critical_ratio, settings.hysteresis_ratio)
        self._memory.is_here = False
        self._memory.interval_of = overview.interval_s
        self._gpus: dict[str, FleetGpu] = {}
        self._answers = 0
        self._forecast_in: dict[str, int] = {}
        self._memory.describe = lambda key: self._gpus[key].name

    def over(self, gpus: Sequence[FleetGpu], machines: Mapping[str, Sequence[str]], now_s: float) -> list[Warning]:
        """The warnings that stand, critical first and the fullest memory first.

        Args:
            gpus: every GPU, fullest first.
            machines: instance → levels of gpudash's warnings of its host memory.
            now_s: the server's time.
        """
        self._observe(gpus)
        found = [warning for gpu in gpus if not gpu.stale for warning in self._of(gpu)]
        found += (_of_host(instance, levels) for instance, levels in machines.items())
        found += _silent(gpus, now_s)
        return gravest_first(found)

    def _observe(self, gpus: Sequence[FleetGpu]) -> None:
        """Take in the readings that are new; of full memories those are forecast that have waited longest for it."""
        before = self._gpus
        self._gpus = {gpu.key: gpu for gpu in gpus}
        fresh = []
        for gpu in gpus:
            known = before.get(gpu.key)
            if gpu.stale:
                self._memory.forget(gpu.key)  # what it held then says nothing of now
            elif known is None or known.stale or gpu.seen_s > known.seen_s:
                fresh.append(gpu)
        self._answers += 1
        full = (gpu.key for gpu in fresh if (gpu.fullness or 0.0) >= FAIRLY_FULL)
        due = sorted(full, key=lambda key: self._forecast_in.get(key, 0))[:MOST_AT_ONCE]
        self._forecast_in |= dict.fromkeys(due, self._answers)
        for gpu in fresh:
            sample = Sample(gpu.seen_s, "gpu", gpu.key, gpu.values)
            self._memory.observe(sample, forecasts=self._forecast_in.get(gpu.key) == self._answers)
        for key in before.keys() - self._gpus.keys():
            self._memory.forget(key)
            self._forecast_in.pop(key, None)

    def _of(self, gpu: FleetGpu) -> Iterator[Warning]:
        past_a_level = False
        for warning in self._memory.present(gpu.key):
            past_a_level |= warning.ratio is not None and warning.level != "forecast"
            # a gpudash there reads many times a second what is scraped seldom: its forecast is the better one
            if warning.level != "forecast" or gpu.forecast_s is None:
                yield shown_of(gpu, warning, self._memory.forecast(gpu.key))
        warned = [level for level in gpu.warnings if level != "forecast"]
        if warned and not past_a_level:
            yield fleet_warning(f"{gpu.name}: gpudash there warns of its memory.", _gravest(warned), gpu.key)
        if gpu.forecast_s is not None:
            when = format_duration(gpu.forecast_s)
            text = f"{gpu.name} will be full in {when} if it goes on growing as it does."
            yield fleet_warning(text, "critical" if gpu.forecast_s <= SOON_S else "warning", gpu.key)


def shown_of(gpu: FleetGpu, warning: Warning, ahead: Forecast | None) -> Warning:
    """A warning as a fleet shows it: of the GPU, and a forecast as grave as it is near."""
    if warning.level != "forecast":
        return replace(warning, device=gpu.key)
    near = ahead is not None and ahead.seconds <= SOON_S
    return replace(warning, device=gpu.key, level="critical" if near else "warning")


def gravest_first(warnings: Iterable[Warning]) -> list[Warning]:
    """In their order, but critical ones first."""
    return sorted(warnings, key=lambda warning: warning.level != "critical")


def fleet_warning(text: str, level: Level = "warning", key: str = "") -> Warning:
    """A warning that stands, of the GPU ``key``; of a machine or the server where that is empty."""
    return Warning(time_s=0.0, level=level, device=key, text=text)


def of_server(sentences: Iterable[str]) -> list[Warning]:
    """What the server says of answers that are not whole."""
    return [fleet_warning(f"The server says: {text}") for text in list(sentences)[:MOST_REPORTED]]


def silent_before(missing: Mapping[str, int]) -> list[Warning]:
    """Instances that told of GPUs a few minutes ago and were silent when the fleet was opened, with their GPUs."""
    return [
        fleet_warning(f"{machine_of(instance)}: {_gpus(count)} told of a few minutes ago and not now.")
        for instance, count in sorted(missing.items())
    ]


def odd_entries(reported: ReportedGpus) -> list[Warning]:
    """That a part of an answer could not be read."""
    if not reported.odd:
        return []
    entries = f"{reported.odd} entries that cannot be read; they are left out"
    if reported.odd == 1:
        entries = "1 entry that cannot be read; it is left out"
    return [fleet_warning(f"The server's answer holds {entries}.")]


def _gravest(levels: Sequence[str]) -> Level:
    if "critical" in levels:
        return "critical"
    return "warning"


def _of_host(instance: str, levels: Sequence[str]) -> Warning:
    what = "warns of host memory"
    if levels == ("forecast",):
        what = "foretells that host memory runs out"
    return fleet_warning(f"{machine_of(instance)}: gpudash there {what}.", _gravest(levels))


def _silent(gpus: Iterable[FleetGpu], now_s: float) -> Iterator[Warning]:
    """One for every machine that was not heard of for too long."""
    machines: dict[str, list[FleetGpu]] = defaultdict(list)
    for gpu in gpus:
        if gpu.stale:
            machines[gpu.host].append(gpu)
    for host, stale in sorted(machines.items()):
        seen_s = max(gpu.seen_s for gpu in stale)
        ago = "at an unknown time"
        if seen_s > 0:
            ago = f"{format_duration(max(0.0, now_s - seen_s))} ago"
        key = ""
        if len(stale) == 1:
            key = stale[0].key
        yield fleet_warning(f"{host}: {_gpus(len(stale))} last heard of {ago}.", key=key)


def _gpus(count: int) -> str:
    if count == 1:
        return "1 GPU"
    return f"{count} GPUs"
