"""The store of a fleet's drill-down: a range of one GPU's past, and parts of it in more detail."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TypeVar

from gpudash.sources.prometheus.history import RUN, Past
from gpudash.telemetry.moments import KNOWN_ROWS, Moment
from gpudash.telemetry.positioned import DETAIL_BUCKETS, Detail, Everything, PositionedStore
from gpudash.telemetry.recorded_series import RecordedSeries, Span
from gpudash.telemetry.records import Sample
from gpudash.telemetry.series import Series
from gpudash.telemetry.store import Key, Store

_S = TypeVar("_S", bound=Store)


class PastSeries(RecordedSeries):
    """A history that may be known in more detail elsewhere: its extremes are exact, its times those of steps."""

    def exact_from(self) -> float:
        """From when on every sample is kept as it came: here a server may know more of all of it."""
        return math.inf

    def _exact(self, t0: float, t1: float) -> Series | None:
        """What is known in more detail from ``t0`` to ``t1``; more still is asked for, and may be refused at once."""
        raw = super()._exact(t0, t1)
        if raw is not None:
            self.ask(t0, t1)
        return raw


class _Filled(Store):
    """A store that is filled at once."""

    def fill(self, past: Past, since_s: float = 0.0) -> None:
        """Take in what was fetched, ``since_s`` later; the caller holds the lock where others read already."""
        for sample in past.samples:
            self._take(replace(sample, time_s=sample.time_s + since_s) if since_s else sample)
        for column, points in past.curves.items():
            for time_s, value in points:
                self._append((RUN, column, None), time_s + since_s, value)


class PastStore(Everything, _Filled):
    """All that was fetched of a range."""

    def _begun(self, key: Key) -> Series:
        series = PastSeries(buckets=DETAIL_BUCKETS)
        self._sharpen(key, series)
        return series


class PastDetail(Detail, _Filled):
    """A part of it, in more detail."""


class FleetStore(PositionedStore):
    """The store of a `FleetView`: the same object, whichever range it holds.

    Args:
        device: UUID that the GPU's readings have.
        torch_name: what torch calls it on its machine; empty where that is not known.
    """

    def __init__(self, device: str, torch_name: str) -> None:
        self._device, self._torch_name = device, torch_name
        self._samples: list[Sample] = []
        super().__init__(self._linked(PastStore()))

    def hold(self, past: Past, length_s: float) -> None:
        """Hold another range from now on: what was there is forgotten."""
        whole = self._linked(PastStore())
        whole.fill(past)
        whole.newest_s = length_s
        whole.lock, whole.ask = self.lock, self.whole.ask
        with self.lock:
            self.whole, self._samples = whole, past.samples
            self._seen.clear()
            self._views.clear()
            self._show_end()
            self.rewound += 1
            self.sharpened += 1

    def add_detail(self, past: Past, span: Span) -> None:
        """Answer within ``span`` from ``past``, whose times begin with it."""
        detail = self._linked(PastDetail())
        detail.fill(past, span[0])
        self.sharpen(span, detail)

    def moment(self, time_s: float) -> Moment:
        """The newest readings at ``time_s``; the caller does not hold the lock."""
        moment = self._linked(Moment())
        moment.newest_s = time_s
        with self.lock:
            samples = self._samples
        known = 0
        for sample in reversed(samples):
            if sample.time_s > time_s:
                continue
            known = 0 if moment.take_older(sample) else known + 1
            if known >= KNOWN_ROWS:
                break
        moment.add_bands()
        return moment

    def _linked(self, store: _S) -> _S:
        if self._torch_name:
            store.link(self._torch_name, self._device)
        return store
