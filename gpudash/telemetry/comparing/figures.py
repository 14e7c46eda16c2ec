"""The figures of a run, each with its noise; and the comparison of two: B minus A, B over A, and whether the
difference exceeds the noise."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, TypeGuard

import numpy as np

from gpudash.telemetry.comparing import noise
from gpudash.telemetry.comparing.curves import ComparedRun
from gpudash.telemetry.records import OF_LOSS
from gpudash.telemetry.runs import StageView, item_of
from gpudash.telemetry.series import Floats
from gpudash.units import format_bytes

Verdict = Literal["more", "less", "same", "unclear"]
Judgement = Literal["better", "worse"]
Direction = Literal["lower", "higher"]


NOTABLE_SHARE = 0.05
"""Share of the larger figure from which a difference would matter. Within the noise such a difference is "too noisy to
tell", a smaller one "same". Chosen above the few per cent by which equal runs differ (`noise.TIME_SHARE` for each)."""

LARGEST_RATIO = 1e300
"""Largest ratio for which the ratio and its inverse are both exact in a double."""

LAST = 20
"""Number of last steps whose median is a run's final loss and accuracy, as in ``last_20_median``."""

LOSS = "final_loss"
"""Name of the figure that is missing if the loss became infinite."""

_PEAKS = (("allocated", noise.COUNTED_SHARE), ("reserved", noise.COUNTED_SHARE), ("used", noise.READ_SHARE))

_RESULTS: tuple[tuple[str, str, str, Direction], ...] = (
    ("items_per_second", "throughput, whole run", "items/s", "higher"),
    ("latency_p50_seconds", "latency, median", "s", "lower"),
    ("latency_p95_seconds", "latency, 95 of 100 below", "s", "lower"),
    ("copy_every_step_seconds", "copied every step", "s", "lower"),
    ("copy_once_seconds", "copied once", "s", "lower"),
)
"""Results measured once: name, title, unit, and which direction is better."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of a run.

    Attributes:
        name: as in the JSON document.
        title: name in words.
        unit: "bytes", "s", one of `RATES`, "1/s", "B/s", "FLOP/s", "ratio", "times", "nats" or "" for a plain number.
        value: finite.
        noise: expected difference from an equal run (see `noise`), in its unit.
        wanted: which direction is better; ``None`` if neither.
        judged: whether a worse value counts against the run.
        at_least: whether it is a lower bound: the peak of a run that ended early.
        card: the GPU it depends on, since figures of different GPUs are neither better nor worse; "" for none.
    """

    name: str
    title: str
    unit: str
    value: float
    noise: float
    wanted: Direction | None = None
    judged: bool = False
    at_least: bool = False
    card: str = ""


@dataclass(frozen=True, slots=True)
class FigureDifference:
    """The same figure of two runs."""

    a: Figure
    b: Figure

    @property
    def name(self) -> str:
        return self.a.name

    @property
    def difference(self) -> float:
        """B minus A."""
        return self.b.value - self.a.value

    @property
    def ratio(self) -> float | None:
        """B over A; ``None`` if that is not a finite number."""
        if self.a.value == 0 or self.b.value == 0:
            if self.a.value == self.b.value:
                return 1.0
            return None
        ratio = self.b.value / self.a.value
        if 1 / LARGEST_RATIO < abs(ratio) < LARGEST_RATIO:
            return ratio
        return None

    @property
    def noise(self) -> float:
        """The largest difference to expect between equal runs: the root of the sum of both squares."""
        return math.hypot(self.a.noise, self.b.noise)

    @property
    def verdict(self) -> Verdict:
        """Whether B has more or less than A by more than the noise.

        Within the noise, "same" if the difference is small, else "unclear".
        """
        if abs(self.difference) > self.noise:
            if self.difference > 0:
                return "more"
            return "less"
        least = NOTABLE_SHARE * max(abs(self.a.value), abs(self.b.value))
        if abs(self.difference) > least:
            return "unclear"
        return "same"

    @property
    def judgement(self) -> Judgement | None:
        """Whether B is better or worse. ``None`` if it is the same, if neither direction is better, or if the smaller
        value is a run's that ended early.
        """
        if self._wanted is None or self._less_is_of_a_part or self.verdict in ("same", "unclear"):
            return None
        if self._points_to_worse:
            return "worse"
        return "better"

    @property
    def strength(self) -> float:
        """Size of the difference, 0 (within the noise) to 1 (twice or half as much, or more)."""
        if self.verdict in ("same", "unclear"):
            return 0.0
        least, most = sorted((abs(self.a.value), abs(self.b.value)))
        if least == 0 or self.a.value * self.b.value < 0:
            return 1.0
        return min(1.0, math.log2(most / least))

    def exceeds(self, tolerance: float) -> bool:
        """Whether B is worse by more than ``tolerance`` (a share of A) and more than the noise."""
        return self.judgement == "worse" and abs(self.difference) > tolerance * abs(self.a.value)

    def may_exceed(self, tolerance: float) -> bool:
        """Whether B is worse by more than ``tolerance`` (a share of A), but within the noise."""
        beyond = abs(self.difference) > tolerance * abs(self.a.value)
        return self.verdict == "unclear" and self._points_to_worse and beyond and not self._less_is_of_a_part

    @property
    def _less_is_of_a_part(self) -> bool:
        """Whether the smaller value is a lower bound, from a run that ended early."""
        if self.difference < 0:
            return self.b.at_least
        return self.a.at_least

    @property
    def _wanted(self) -> Direction | None:
        if self.a.wanted != self.b.wanted or are_different_cards(self.a.card, self.b.card):
            return None
        return self.a.wanted

    @property
    def _points_to_worse(self) -> bool:
        """Whether B differs in the worse direction, by any amount."""
        return self._wanted is not None and (self.difference > 0) == (self._wanted == "lower")


def are_different_cards(a: str, b: str) -> bool:
    """Whether two runs are known to have used different cards (`ComparedRun.card`)."""
    return bool(a and b and a != b)


def figures(run: ComparedRun) -> dict[str, Figure]:
    """All figures of ``run`` by name, the most important first."""
    found = [*_pace(run), *_peaks(run), *_ends(run), *_sensible(_results(run)), *_stages(run)]
    return {figure.name: figure for figure in found if math.isfinite(figure.value)}


def _pace(run: ComparedRun) -> Iterator[Figure]:
    view, steps = run.view, run.steps
    metric = view.metrics.get("throughput")
    if metric is not None and metric.median is not None:
        own, name = noise.spread(steps.throughput, _median), "median_throughput"
        unit = f"{item_of(view.workload)}/s"
        yield _timed(run, name, "throughput, median", unit, metric.median, own, "higher", judged=True)
    unsteady = _unsteadiness(run)
    pace = view.result.get("steps_per_second")
    if _number(pace):
        yield _timed(run, "steps_per_second", "steps a second", "1/s", pace, unsteady * pace, "higher")
    if view.seconds is not None:
        stepping = min(float(np.nansum(steps.seconds)), view.seconds)
        whole = math.hypot(unsteady * stepping, noise.SET_UP_SHARE * (view.seconds - stepping))
        ended = view.status == "finished"  # a run stopped early is not faster
        wanted: Direction | None = None
        if ended:
            wanted = "lower"
        yield _timed(run, "seconds", "whole run", "s", view.seconds, whole, wanted, judged=ended)


def _unsteadiness(run: ComparedRun) -> float:
    """Noise of a step's time, as a share of it; `noise.ALONE_SHARE` if the steps are too few."""
    seconds = run.steps.seconds[np.isfinite(run.steps.seconds)]
    mean = 0.0
    if len(seconds):
        mean = float(seconds.mean())
    own = noise.spread(seconds, _mean)
    if own is None or mean <= 0:
        return noise.ALONE_SHARE
    return own / mean


def _peaks(run: ComparedRun) -> Iterator[Figure]:
    early = run.view.status != "finished"
    for name, share in _PEAKS:
        size = getattr(run.view.memory, f"{name}_bytes")
        if size is not None:
            yield Figure(
                f"peak_{name}_bytes",
                f"peak {name}",
                "bytes",
                float(size),
                share * size,
                "lower",
                judged=True,
                at_least=early,
                card="" if name == "allocated" else run.card,
            )


def _ends(run: ComparedRun) -> Iterator[Figure]:
    ends: tuple[tuple[str, str, str, Direction], ...] = (
        ("loss", LOSS, "nats" if run.view.workload != "watch" else "", "lower"),
        ("accuracy", "final_accuracy", "ratio", "higher"),
    )
    for metric, name, unit, wanted in ends:
        of_end = run.view.metrics.get(metric)
        if of_end is not None and of_end.last_20_median is not None:
            own = noise.trending(run.steps.metric(metric), LAST)
            value = of_end.last_20_median
            if own is None:
                spread = noise.ALONE_SHARE * abs(value)
            else:
                spread = own
            title = f"{metric}, last {LAST} steps"
            yield Figure(name, title, unit, value, spread, wanted, judged=metric == "loss")
    for metric, view in run.view.metrics.items():
        newest = view.last_20_median
        if metric.startswith(OF_LOSS) and newest is not None:
            title = f"{metric.removeprefix(OF_LOSS)}, last {LAST} times"
            yield Figure(metric, title, "", newest, noise.ALONE_SHARE * abs(newest), "lower", judged=False)


def _sensible(figures: Iterator[Figure]) -> Iterator[Figure]:
    """``figures`` up to the first malformed one: a recording can contain anything as a result."""
    with suppress(ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        yield from figures


def _results(run: ComparedRun) -> Iterator[Figure]:
    result = run.view.result
    for name, title, unit, wanted in _RESULTS:
        if _number(value := result.get(name)):
            yield _timed(run, name, title, unit, value, _unsteadiness(run) * value, wanted)
    median, spread = result.get("seconds_median"), result.get("seconds_iqr")
    if _number(median) and _number(spread) and median > 0:
        yield _timed(run, "seconds_median", "one product, median", "s", median, spread, "lower")
        if _number(rate := result.get("flops_per_second")):
            own = rate * spread / median
            yield _timed(run, "flops_per_second", "arithmetic rate", "FLOP/s", rate, own, "higher")
    ratio, interval = result.get("ratio"), result.get("interval")
    if _number(ratio) and isinstance(interval, (list, tuple)) and len(interval) == 2 and all(map(_number, interval)):
        own = (interval[1] - interval[0]) / 2
        yield Figure("ratio", "speedup of the second device", "times", float(ratio), own, "higher")
    for rate in result.get("rates") or ():
        yield from _transfer(run, rate)


def _transfer(run: ComparedRun, rate: Mapping[str, Any]) -> Iterator[Figure]:
    median, spread = rate.get("bytes_per_second_median"), rate.get("bytes_per_second_iqr")
    if not (_number(median) and _number(spread)):
        return
    way = f"{rate['from']} → {rate['to']}, {rate['memory']}"
    kind = "blocking"
    if not rate["blocking"]:
        way = f"{way}, overlapped"
        kind = "overlapped"
    name = f"rate.{rate['from']}.{rate['to']}.{rate['memory']}.{kind}.{rate['block_bytes']}"
    yield _timed(run, name, f"{way}, {format_bytes(rate['block_bytes'])}", "B/s", median, spread, "higher")


def _stages(run: ComparedRun) -> Iterator[Figure]:
    for stage in run.view.stages.values():
        if stage.count and stage.seconds > 0:
            yield from _stage(run, stage, run.stages.get(stage.name, np.empty(0)))


def _stage(run: ComparedRun, stage: StageView, samples: Floats) -> Iterator[Figure]:
    """Time of one execution. Stages reported a few times a second hide their spread, so use at least that of the
    steps."""
    each = stage.seconds / stage.count
    own = max(noise.spread(samples, _mean) or 0.0, _unsteadiness(run) * each, noise.TIMER_S)
    yield _timed(run, f"stage.{stage.name}.seconds", f"{stage.name}, each", "s", each, own, "lower")
    rate = stage.bytes_per_second
    if rate is not None:
        speed, name = rate * own / each, f"stage.{stage.name}.bytes_per_second"
        yield _timed(run, name, f"{stage.name}, rate", "B/s", rate, speed, "higher")


def _timed(
    run: ComparedRun,
    name: str,
    title: str,
    unit: str,
    value: float,
    own: float | None,
    wanted: Direction | None,
    *,
    judged: bool = False,
) -> Figure:
    """A time or rate, with noise that includes other programs on the same processor."""
    noise_of = noise.of_time if unit == "s" else noise.of_rate
    return Figure(name, title, unit, float(value), noise_of(value, own, run.crowding), wanted, judged=judged)


def _number(value: Any) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _median(values: Floats) -> float:
    return float(np.median(values))


def _mean(values: Floats) -> float:
    return float(np.mean(values))
