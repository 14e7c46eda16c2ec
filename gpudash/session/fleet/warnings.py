"""What is to be looked at over a whole fleet: memory levels, gpudash's own warnings, machines that fell silent."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from gpudash.session.fleet.gpu import FleetGpu, FleetWarning, Level
from gpudash.settings import Settings
from gpudash.sources.prometheus.gpus import Told, ToldGpu, machine_of
from gpudash.units import format_duration, format_pair, format_percent

SOON_S = 60.0
"""A memory that is foretold to be full within so long is critical."""

MOST_TOLD = 3
"""Sentences of the server's own that are repeated."""


class FleetWarnings:
    """Belongs to one thread. A level that was passed stands until memory has fallen by the hysteresis below it."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._heights: dict[str, int] = {}

    def over(
        self,
        gpus: Sequence[FleetGpu],
        told: Mapping[str, ToldGpu],
        machines: Mapping[str, Sequence[str]],
        now_s: float,
        forecasts: Mapping[str, float] | None = None,
    ) -> list[FleetWarning]:
        """The warnings that stand, critical first and the fullest memory first.

        Args:
            gpus: every GPU, fullest first.
            told: key → what its exporter told.
            machines: instance → levels of gpudash's warnings of its host memory.
            now_s: the server's time.
            forecasts: key → seconds until a memory is full, where its exporter foretells nothing.
        """
        found: list[FleetWarning] = []
        for gpu in gpus:
            if gpu.stale:
                self._heights.pop(gpu.key, None)  # what it held then says nothing of now
            else:
                found += self._of(gpu, told.get(gpu.key), (forecasts or {}).get(gpu.key))
        found += [_of_host(instance, levels) for instance, levels in machines.items()]
        found += _silent(gpus, now_s)
        return sorted(found, key=lambda warning: warning.level != "critical")

    def _of(self, gpu: FleetGpu, told: ToldGpu | None, ahead_s: float | None) -> list[FleetWarning]:
        found: list[FleetWarning] = []
        level: Level
        fullness = gpu.fullness
        height = self._height(gpu.key, fullness)
        if height and fullness is not None and gpu.used_bytes is not None and gpu.total_bytes is not None:
            pair = format_pair(gpu.used_bytes + (gpu.reserved_bytes or 0), gpu.total_bytes)
            words = f"{gpu.name} is {format_percent(fullness)} full: {pair}"
            found.append(FleetWarning(gpu.key, "critical" if height == 2 else "warning", words))
        elif told is not None and any(level != "forecast" for level in told.warnings):
            level = _gravest(told.warnings)
            found.append(FleetWarning(gpu.key, level, f"{gpu.name}: gpudash there warns of its memory"))
        ahead_s = ahead_s if told is None or told.forecast_s is None else told.forecast_s
        if ahead_s is not None:
            level = "critical" if ahead_s <= SOON_S else "warning"
            when = format_duration(ahead_s)
            words = f"{gpu.name} will be full in {when} if it goes on growing as it does"
            found.append(FleetWarning(gpu.key, level, words, "forecast"))
        return found

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
    return [FleetWarning("", "warning", f"The server says: {text}", "server") for text in list(sentences)[:MOST_TOLD]]


def silent_before(missing: Mapping[str, int]) -> list[FleetWarning]:
    """Instances that told of GPUs a few minutes ago and were silent when the fleet was opened, with their GPUs."""
    return [
        FleetWarning(
            "", "warning", f"{machine_of(instance)}: {_gpus(count)} told of a few minutes ago and not now", "stale"
        )
        for instance, count in sorted(missing.items())
    ]


def odd_entries(told: Told) -> list[FleetWarning]:
    """That a part of an answer could not be read."""
    if not told.odd:
        return []
    entries = "1 entry" if told.odd == 1 else f"{told.odd} entries"
    words = (
        f"The server's answer holds {entries} that cannot be read; {'it is' if told.odd == 1 else 'they are'} left out"
    )
    return [FleetWarning("", "warning", words, "server")]


def _gravest(levels: Sequence[str]) -> Level:
    return "critical" if "critical" in levels else "warning"


def _of_host(instance: str, levels: Sequence[str]) -> FleetWarning:
    what = "foretells that host memory runs out" if levels == ("forecast",) else "warns of host memory"
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
        ago = f"{format_duration(max(0.0, now_s - seen_s))} ago" if seen_s > 0 else "at an unknown time"
        key = stale[0].key if len(stale) == 1 else ""
        found.append(FleetWarning(key, "warning", f"{host}: {count} last heard of {ago}", "stale"))
    return found


def _gpus(count: int) -> str:
    return "1 GPU" if count == 1 else f"{count} GPUs"
