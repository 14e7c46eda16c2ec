"""From exporters' metrics to one entry for each GPU, fullest first, and the warnings over a whole fleet: of memory and
hardware, gpudash's own, and machines that fell silent. Sends no requests itself."""

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
"""Smallest age of a reading from which its GPU is marked as stale."""

LATE = 3.0
"""The same age in scrape intervals, where that is longer than `STALE_S`: metrics scraped once a minute are not late
after 15 s."""

LONGEST_INTERVAL_S = 120.0
"""Longest credible scrape interval; a GPU that has just appeared looks as if it were scraped rarely."""

USUAL_INTERVAL_S = 15.0
"""Assumed scrape interval in seconds, if unknown."""

FORGET_S = 3600.0
"""A GPU without readings for this long is removed from the overview."""

MOST_AT_ONCE = 64
"""Forecasts computed for each answer; those due longest come first. One takes about 0.3 ms."""

MOST_REPORTED = 3
"""How many of the server's own warnings are repeated."""

Where = tuple[str, str]
"""Instance, and the GPU's identity on it."""


class EnergyMeter:
    """Energy that GPUs have used since the first reading. Belongs to one thread."""

    def __init__(self) -> None:
        self._since_j: dict[str, float] = {}

    def metered(self, gpu: FleetGpu) -> FleetGpu:
        """``gpu`` with its energy so far; a counter that restarts with its driver is handled."""
        total_j = gpu.values.get("energy_j")
        if total_j is None:
            return gpu
        since_j = self._since_j[gpu.key] = min(total_j, self._since_j.get(gpu.key, total_j))
        return replace(gpu, drawn_j=total_j - since_j)


class Overview:
    """Merges the server's answers. Belongs to one thread.

    Attributes:
        intervals: scrape interval of each GPU's memory in seconds, where known.
    """

    def __init__(self) -> None:
        self.intervals: Mapping[Where, float] = {}
        self._known: dict[str, FleetGpu] = {}
        self._here: set[str] = set()
        self._unread: set[str] = set()
        self._energy = EnergyMeter()

    def take(self, reported: ReportedGpus, times: Mapping[Where, float], now_s: float) -> tuple[FleetGpu, ...]:
        """The GPUs, fullest first.

        Args:
            reported: the newest answer; a GPU missing from it is stale immediately, since the server has dropped it.
            times: time of the last scrape of each GPU's memory, in seconds since the epoch on the server's clock.
            now_s: the server's time.
        """
        for name in reported.unread:
            if name not in self._unread:
                logger.info("%s is left out: an exporter lists it without readings", name)
        self._unread = set(reported.unread)
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
        """The GPUs at ``now_s``, if no answer has arrived since."""
        self._mark(now_s)
        return self._sorted()

    def missing(self) -> dict[str, int]:
        """For each instance, the number of GPUs scraped in the last minutes that are in no answer yet."""
        known = {gpu.where for gpu in self._known.values()}
        shown = {same_gpu(which) for _instance, which in known}
        gone = (where for where in self.intervals if where not in known and same_gpu(where[1]) not in shown)
        return dict(Counter(instance for instance, _which in gone))

    def interval_s(self, key: str) -> float:
        """Scrape interval of a GPU in seconds, or the assumed one."""
        return self.intervals.get(self._known[key].where, USUAL_INTERVAL_S)

    def _mark(self, now_s: float) -> None:
        for key, gpu in list(self._known.items()):
            if now_s - gpu.seen_s > FORGET_S and (key not in self._here or gpu.seen_s > 0):  # 0: time unknown
                logger.info("%s is shown no more: last reported %.0f s ago", gpu.name, now_s - gpu.seen_s)
                del self._known[key]
            elif not gpu.stale and (key not in self._here or self._is_late(gpu, now_s)):
                _log_stale(gpu, now_s)
                self._known[key] = replace(gpu, stale=True)

    def _sorted(self) -> tuple[FleetGpu, ...]:
        return tuple(sorted(self._known.values(), key=fullest_first))

    def _choose(self, reports: list[FleetGpu], now_s: float) -> FleetGpu:
        """The report of the best exporter that is not late, else the newest report."""
        fresh = next((gpu for gpu in reports if not self._is_late(gpu, now_s)), None)
        return fresh or max(reports, key=lambda gpu: gpu.seen_s)

    def _is_late(self, gpu: FleetGpu, now_s: float) -> bool:
        interval_s = min(self.intervals.get(gpu.where, 0.0), LONGEST_INTERVAL_S)
        return now_s - gpu.seen_s > max(STALE_S, LATE * interval_s)


def _log_stale(gpu: FleetGpu, now_s: float) -> None:
    logger.info("%s is marked as stale: last reported %.0f s ago", gpu.name, now_s - gpu.seen_s)


def _shared(gpus: Iterable[FleetGpu]) -> set[str]:
    """Machine names that several instances of one exporter share; instances tell those apart."""
    instances: dict[tuple[str, str], set[str]] = defaultdict(set)
    for gpu in gpus:
        instances[gpu.exporter, gpu.host].add(gpu.where[0])
    return {host for (_exporter, host), names in instances.items() if len(names) > 1}


def fullest_first(gpu: FleetGpu) -> tuple[bool, float, str, int, int]:
    """Sort key: fullest first, unknown memory last."""
    fullness = gpu.fullness
    return fullness is None, -(fullness or 0.0), gpu.host, -1 if gpu.index is None else gpu.index, gpu.instance or 0


class AnyFleet:
    """What a fleet shows, whether its GPUs are reported by a server or by machines over ssh.

    Attributes:
        address: its name.
        asking: text shown until the first answer.
        trying: text shown with a problem.
        days: whether a GPU's history is available, to compare days.
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
        """Counter that grows with every change."""
        return self._version

    @property
    def problem(self) -> str | None:
        """What is wrong, in sentences; ``None`` if nothing is."""
        raise NotImplementedError

    def gpus(self) -> tuple[FleetGpu, ...]:
        """Every GPU, fullest first; those of unknown memory come last."""
        return self._gpus

    def warnings(self) -> tuple[Warning, ...]:
        """The warnings over all GPUs, critical ones first."""
        return self._warnings

    def now_s(self) -> float:
        """The fleet's time, in seconds since the epoch."""
        return time.time()

    @property
    def unlinked(self) -> tuple[str, ...] | None:
        """Names of machines whose connection failed or was lost; ``None`` if the fleet needs no connections."""
        return None

    def link_again(self) -> None:
        """Retry every machine without a connection now."""

    def close(self) -> bool:
        """Stop polling; false if a thread did not end in time."""
        raise NotImplementedError

    def _show(self, gpus: tuple[FleetGpu, ...], warnings: Iterable[Warning]) -> None:
        found = tuple(warnings)
        if (gpus, found) != (self._gpus, self._warnings):
            self._gpus = gpus
            self._warnings = found
            self._version += 1


class FleetWatch:
    """Memory and hardware warnings for a server's GPUs. Belongs to one thread.

    Args:
        settings: memory levels of the warnings.
        overview: provides each GPU's scrape interval.
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
        """The current warnings, critical ones first, then by the fullest memory.

        Args:
            gpus: every GPU, fullest first.
            machines: for each instance, the levels of gpudash's warnings about its host memory.
            now_s: the server's time.
        """
        self._observe(gpus)
        found = [warning for gpu in gpus if not gpu.stale for warning in self._of(gpu)]
        found += (_of_host(instance, levels) for instance, levels in machines.items())
        found += _silent(gpus, now_s)
        return gravest_first(found)

    def _observe(self, gpus: Sequence[FleetGpu]) -> None:
        """Process new readings; of full memories, the ones whose forecast is oldest get a new one."""
        before = self._gpus
        self._gpus = {gpu.key: gpu for gpu in gpus}
        fresh = []
        for gpu in gpus:
            known = before.get(gpu.key)
            if gpu.stale:
                self._memory.forget(gpu.key)  # its old readings say nothing about now
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
            # A gpudash there reads many times a second what is rarely scraped, so its forecast is better.
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
    """A warning for a fleet: with the GPU's name; a forecast's level depends on how near it is."""
    if warning.level != "forecast":
        return replace(warning, device=gpu.key)
    near = ahead is not None and ahead.seconds <= SOON_S
    return replace(warning, device=gpu.key, level="critical" if near else "warning")


def gravest_first(warnings: Iterable[Warning]) -> list[Warning]:
    """Critical ones first, otherwise in the given order."""
    return sorted(warnings, key=lambda warning: warning.level != "critical")


def fleet_warning(text: str, level: Level = "warning", key: str = "") -> Warning:
    """A current warning about the GPU ``key``; "" for a machine or the server."""
    return Warning(time_s=0.0, level=level, device=key, text=text)


def of_server(sentences: Iterable[str]) -> list[Warning]:
    """The server's own warnings about incomplete answers."""
    return [fleet_warning(f"The server says: {text}") for text in list(sentences)[:MOST_REPORTED]]


def silent_before(missing: Mapping[str, int]) -> list[Warning]:
    """Warnings for instances that were scraped minutes ago but were silent when the fleet was opened."""
    return [
        fleet_warning(f"{machine_of(instance)}: {_gpus(count)} told of a few minutes ago and not now.")
        for instance, count in sorted(missing.items())
    ]


def odd_entries(reported: ReportedGpus) -> list[Warning]:
    """The warning that part of an answer could not be read."""
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
    """A warning for every machine that has been silent for too long."""
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
