"""A series of a recording: known whole in buckets, and sample by sample where that has been read again."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Self

import numpy as np

from gpudash.telemetry.series import Series, Statistics
from gpudash.telemetry.thinning import Floats

Span = tuple[float, float]
Ask = Callable[[float, float], None]


def ask_nobody(t0: float, t1: float) -> None:
    """What is not known more exactly stays as it is."""


class RecordedSeries(Series):
    """A series that answers from raw samples wherever they have been read, else from its buckets.

    What a drawing or a selection needs more exactly is asked for with `ask`, which must return at once; it is there
    when `sharpen` brings it. Until then extremes are exact and times are those of the buckets' extremes.
    """

    ask: Ask = staticmethod(ask_nobody)
    _raw: Sequence[tuple[Span, Series]] = ()
    _end: tuple[float, float] | None = None

    def sharpen(self, raw: Sequence[tuple[Span, Series]]) -> None:
        """From now on answer within each span from the series beside it, which has every sample there."""
        self._raw = raw

    def until(self, t: float, seen: Series | None = None) -> Self:
        """The series as it was at ``t``, see `Series.until`."""
        view: Self = super().until(t, seen)
        view._raw = [(span, raw.until(t)) for span, raw in self._raw]
        return view

    def end_with(self, t: float, v: float) -> None:
        """The newest sample of a view, where the buckets do not say what it was."""
        if t > self._newest:
            self._end, self._newest = (t, v), t

    def last(self) -> tuple[float, float] | None:
        """Time and value of the newest sample, see `Series.last`."""
        return super().last() if self._end is None else self._end

    def window(self, t0: float, t1: float, columns: int) -> tuple[Floats, Floats]:
        """Times and values to draw, see `Series.window`."""
        raw = self._exact(t0, t1) if t0 < t1 else None
        if raw is not None:
            return raw.window(t0, t1, columns)
        times, values = super().window(t0, t1, columns)
        if self._end is None or not t0 <= self._end[0] <= t1:
            return times, values
        return np.append(times, self._end[0]), np.append(values, self._end[1])

    def statistics(self, t0: float, t1: float) -> Statistics | None:
        """Figures of the samples from ``t0`` to ``t1``: of the samples themselves once they have been read.

        Until then, and for ranges of more samples than are read again, they come from the buckets: `min` and `max`
        are those of samples, and a bucket that the range cuts counts whole when its centre lies inside.
        """
        raw = self._exact(t0, t1)
        return super().statistics(t0, t1) if raw is None else raw.statistics(t0, t1)

    def at(self, t: float, max_gap: float = math.inf) -> float | None:
        """Value of the newest known sample at or before ``t``, see `Series.at`."""
        raw = self._known_within(t, t)
        if raw is not None:
            return raw.at(t, max_gap)
        if self._end is None or t < self._end[0]:
            return super().at(t, max_gap)
        return None if math.isnan(self._end[1]) or t - self._end[0] > max_gap else self._end[1]

    def neighbour(self, t: float, steps: int) -> float | None:
        """Time of the known sample ``steps`` after or before ``t``, see `Series.neighbour`."""
        raw = self._known_within(t, t)
        found = None if raw is None else raw.neighbour(t, steps)
        return super().neighbour(t, steps) if found is None or self._known_within(found, found) is None else found

    def _exact(self, t0: float, t1: float) -> Series | None:
        """What has every sample from ``t0`` to ``t1``, where this series itself has not; asks for it otherwise."""
        extent = self.extent()
        if extent is None or t0 >= self.exact_from() or t1 <= extent[0] or t0 >= extent[1]:
            return None
        raw = self._known_within(max(t0, extent[0]), min(t1, extent[1]))
        if raw is None and math.isfinite(t0) and math.isfinite(t1):
            self.ask(t0, t1)
        return raw

    def _known_within(self, t0: float, t1: float) -> Series | None:
        return next((raw for span, raw in self._raw if span[0] <= t0 and t1 <= span[1] and len(raw)), None)
