"""From what exporters tell to one entry a GPU, fullest first: nothing here asks a server."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace

from gpudash.session.fleet.gpu import FleetGpu
from gpudash.sources.prometheus.gpus import Told, ToldGpu, same_gpu
from gpudash.telemetry.metrics import SENSORS, Exporter

STALE_S = 15.0
"""Age of a reading from which on its GPU is marked, at least."""

LATE = 3.0
"""Intervals between scrapes that pass before a GPU is marked, where that is longer than `STALE_S`: what is scraped once
a minute is not late after 15 s."""

LONGEST_INTERVAL_S = 120.0
"""Longest interval that is believed; a GPU that has just appeared looks as if it were scraped seldom."""

FORGET_S = 3600.0
"""A GPU of which nothing was told for so long is shown no more."""

Where = tuple[str, str]
"""Instance, and identity of the GPU there."""


class Overview:
    """Follows the answers. Belongs to one thread; what it gives out is frozen.

    Attributes:
        told: key → what the answers said last.
        intervals: how far apart the scrapes of a GPU's memory are, in seconds, where that is known.
    """

    def __init__(self) -> None:
        self.told: dict[str, ToldGpu] = {}
        self.intervals: Mapping[Where, float] = {}
        self._known: dict[str, FleetGpu] = {}
        self._here: set[str] = set()

    def take(self, told: Told, times: Mapping[Where, float], now_s: float) -> tuple[FleetGpu, ...]:
        """The GPUs, fullest first.

        Args:
            told: the newest answer; what is missing from it is stale at once, for the server says so.
            times: when each GPU's memory was scraped last, in the server's seconds since the epoch.
            now_s: the server's time.
        """
        tellings: dict[str, list[ToldGpu]] = defaultdict(list)
        for gpu in told.gpus:
            tellings[gpu.key].append(gpu)
        chosen = {key: self._choose(several, times, now_s) for key, several in tellings.items()}
        shared = _shared(gpu for gpu, _seen_s in chosen.values())
        for key, (gpu, seen_s) in chosen.items():
            instance = gpu.where[0]
            also = tuple({other.exporter: None for other in tellings[key] if other.exporter != gpu.exporter})
            stale = now_s - seen_s > self._patience(gpu)
            host = instance if instance and gpu.host in shared else gpu.host
            self._known[key] = _made(gpu, host, seen_s, also, stale=stale)
            self.told[key] = gpu
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
        known = {gpu.where for gpu in self.told.values()}
        shown = {same_gpu(which) for _instance, which in known}
        gone = (where for where in self.intervals if where not in known and same_gpu(where[1]) not in shown)
        return dict(Counter(instance for instance, _which in gone))

    def _mark(self, now_s: float) -> None:
        for key, gpu in list(self._known.items()):
            if now_s - gpu.seen_s > FORGET_S and (key not in self._here or gpu.seen_s > 0):  # 0: no time is told
                del self._known[key]
                del self.told[key]
            elif not gpu.stale and (key not in self._here or now_s - gpu.seen_s > self._patience(self.told[key])):
                self._known[key] = replace(gpu, stale=True)

    def _sorted(self) -> tuple[FleetGpu, ...]:
        return tuple(sorted(self._known.values(), key=_fullest_first))

    def _choose(self, tellings: list[ToldGpu], times: Mapping[Where, float], now_s: float) -> tuple[ToldGpu, float]:
        """The best exporter's telling that is not late, else the newest; and when it was scraped."""
        seen = [(gpu, times.get(gpu.where, 0.0)) for gpu in tellings]
        fresh = next(((gpu, seen_s) for gpu, seen_s in seen if now_s - seen_s <= self._patience(gpu)), None)
        return fresh or max(seen, key=lambda telling: telling[1])

    def _patience(self, gpu: ToldGpu) -> float:
        return max(STALE_S, LATE * min(self.intervals.get(gpu.where, 0.0), LONGEST_INTERVAL_S))


def _shared(gpus: Iterable[ToldGpu]) -> set[str]:
    """Names of machines that several instances of one exporter have: those go by their instances."""
    instances: dict[tuple[str, str], set[str]] = defaultdict(set)
    for gpu in gpus:
        instances[gpu.exporter, gpu.host].add(gpu.where[0])
    return {host for (_exporter, host), names in instances.items() if len(names) > 1}


def _made(gpu: ToldGpu, host: str, seen_s: float, also: tuple[Exporter, ...], *, stale: bool) -> FleetGpu:
    values = gpu.values
    used, total, free = values.get("used_bytes"), values.get("total_bytes"), values.get("free_bytes")
    reserved = values.get("driver_reserved_bytes")
    if total is None and used is not None and free is not None:
        total = used + free + (reserved or 0)
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
        sensors={metric.name: values[metric.name] for metric in SENSORS if metric.name in values},
    )


def _fullest_first(gpu: FleetGpu) -> tuple[bool, float, str, int]:
    fullness = gpu.fullness
    return fullness is None, -(fullness or 0.0), gpu.host, -1 if gpu.index is None else gpu.index
