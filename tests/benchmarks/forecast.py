"""The forecast against warning at a threshold and against vramtop's predictor, on labelled series.

One definition for all. An alarm is raised when a contestant begins to warn, and again only after it has been silent for
2 s. Memory that is exhausted was warned of when an alarm was raised between 120 s and 1 s before; its lead time is that
of the earliest such alarm. Every alarm that is raised at any other time is false.

Constants of the forecast were chosen on the development series; what `measure` returns comes from the evaluation
series, of which no constant knows.
"""

from __future__ import annotations

import importlib.util
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from gpudash.memory.watching.forecaster import Forecaster
from gpudash.memory.watching.growth import Forecast, is_due
from gpudash.units import MIB
from tests.benchmarks.forecast_series import DEVELOPMENT_SEED, EVALUATION_SEED, KINDS, Series, series

PER_KIND = 40
LEAD_LEAST_S = 1.0
LEAD_MOST_S = 120.0
CALM_S = 2.0
VRAMTOP_PERIOD_S = 1.0
"""vramtop's own default refresh rate."""

TOLD_APART_S = 0.1
"""Steps that follow each other faster are told together, as in a run."""

Contestant = Callable[[Series], list[float]]


@dataclass
class Score:
    """Counts over many series; times in seconds."""

    fatal: int = 0
    warned: int = 0
    false_alarms: int = 0
    watched_s: float = 0.0
    leads: list[float] = field(default_factory=list)

    @property
    def recall(self) -> float:
        """Part of the exhaustions that were warned of."""
        return self.warned / self.fatal if self.fatal else 1.0

    @property
    def false_per_hour(self) -> float:
        """False alarms in an hour of watching."""
        return self.false_alarms / self.watched_s * 3600

    @property
    def lead_s(self) -> float:
        """Median time between the first alarm and the exhaustion it warned of."""
        return statistics.median(self.leads) if self.leads else 0.0

    def add(self, one: Series, alarms: Sequence[float]) -> None:
        """Count one series and the alarms raised in it."""
        self.watched_s += one.seconds
        leads = [] if one.exhausted_s is None else [one.exhausted_s - alarm for alarm in alarms]
        true = [lead for lead in leads if LEAD_LEAST_S <= lead <= LEAD_MOST_S]
        late = sum(lead < LEAD_LEAST_S for lead in leads)
        self.false_alarms += len(alarms) - len(true) - late
        if one.exhausted_s is not None:
            self.fatal += 1
            self.warned += bool(true)
            self.leads += true[:1]


def raised(warnings: Iterator[tuple[float, bool]]) -> list[float]:
    """Times at which alarms are raised, from (time, whether it warns) of every reading."""
    alarms: list[float] = []
    last = -CALM_S * 2
    for time_s, warns in warnings:
        if warns:
            if time_s - last > CALM_S:
                alarms.append(time_s)
            last = time_s
    return alarms


def threshold(ratio: float) -> Contestant:
    """Warns while the memory is that full, until it is 5 % below, as the thresholds of the window do."""

    def warnings(one: Series) -> Iterator[tuple[float, bool]]:
        stands = False
        for time_s, used in zip(one.times, one.used, strict=True):
            stands = used >= (ratio - 0.05 * stands) * one.capacity
            yield float(time_s), stands

    return lambda one: raised(warnings(one))


def vramtop(one: Series) -> list[float]:
    """vramtop's predictor with its defaults, fed as its window does: once a second, in MiB; any alert counts."""
    from vramtop.analysis.oom_predictor import OOMPredictor, Severity

    def warnings() -> Iterator[tuple[float, bool]]:
        predictor, total = OOMPredictor(), one.capacity / MIB
        every = round(VRAMTOP_PERIOD_S / statistics.median(b - a for a, b in pairwise(one.times)))
        before_s, before = float(one.times[0]) - VRAMTOP_PERIOD_S, float(one.used[0]) / MIB
        for time_s, size in zip(one.times[::every].tolist(), (one.used[::every] / MIB).tolist(), strict=True):
            said = predictor.update(size, total - size, total, size - before, time_s - before_s)
            before_s, before = time_s, size
            yield time_s, said.severity is not Severity.NONE

    return raised(warnings())


def forecasts(one: Series) -> Iterator[tuple[float, Forecast | None]]:
    """What the forecast says after every reading, in the order in which a session takes things in."""
    forecaster = Forecaster()
    step, told_s = 0, -1.0
    for number, (time_s, used) in enumerate(zip(one.times.tolist(), one.used.tolist(), strict=True)):
        while step < len(one.steps) and one.steps[step] <= time_s:
            step += 1
            if one.steps[step - 1] - told_s >= TOLD_APART_S:
                told_s = float(one.steps[step - 1])
                forecaster.observe_step(told_s, step, one.total_steps)
        if one.allocated is not None and one.reserved is not None and one.peak is not None:
            peak = float(one.peak[number])
            forecaster.observe_allocator(time_s, float(one.allocated[number]), float(one.reserved[number]), peak)
        forecaster.observe(time_s, used, one.capacity)
        yield time_s, forecaster.forecast()


@dataclass
class Ranges:
    """Whether ranges held the truth, of all forecasts in series that were exhausted, and of those worth a notice."""

    all: list[bool] = field(default_factory=list)
    due: list[bool] = field(default_factory=list)


def ours(one: Series, ranges: Ranges | None = None) -> list[float]:
    """Alarms by the rule of the window's notices."""

    def warnings() -> Iterator[tuple[float, bool]]:
        stands = False
        ended_s = 0.0
        for time_s, ahead in forecasts(one):
            due = ahead is not None and is_due(ahead)
            if ahead is not None:
                ended_s = time_s
            stands = due or (stands and time_s - ended_s < CALM_S)
            if ahead is not None and ranges is not None and one.exhausted_s is not None:
                held = ahead.seconds_low <= one.exhausted_s - time_s <= ahead.seconds_high
                ranges.all.append(held)
                if due:
                    ranges.due.append(held)
            yield time_s, stands

    return raised(warnings())


def contestants() -> dict[str, Contestant]:
    """The baselines that can be run here."""
    found = {f"threshold_{percent}": threshold(percent / 100) for percent in (85, 90, 95)}
    if importlib.util.find_spec("vramtop") is not None:
        found["vramtop"] = vramtop
    return found


def score(some: Sequence[Series], contestant: Contestant) -> Score:
    """All of ``some`` in one count."""
    found = Score()
    for one in some:
        found.add(one, contestant(one))
    return found


def compare(some: Sequence[Series]) -> dict[str, float]:
    """Flat figures of every contestant on ``some``."""
    ranges = Ranges()
    began = time.perf_counter()
    own = score(some, lambda one: ours(one, ranges))
    spent_us = (time.perf_counter() - began) / sum(len(one.times) for one in some) * 1e6
    scores = {"forecast": own, **{name: score(some, contestant) for name, contestant in contestants().items()}}
    figures = {"series": float(len(some)), "exhausted": float(own.fatal), "hours": own.watched_s / 3600}
    for name, found in scores.items():
        figures[f"{name}_recall"] = found.recall
        figures[f"{name}_false_per_hour"] = found.false_per_hour
        figures[f"{name}_lead_s"] = found.lead_s
    rivals = [found for name, found in scores.items() if name in ("threshold_85", "vramtop")]
    figures["recall_over_best"] = own.recall / max(found.recall for found in rivals)
    figures["false_over_best"] = own.false_per_hour / min(found.false_per_hour for found in rivals)
    figures["coverage"] = statistics.fmean(ranges.due) if ranges.due else 0.0
    figures["coverage_of_all"] = statistics.fmean(ranges.all) if ranges.all else 0.0
    figures["reading_us"] = spent_us
    return figures


def measure() -> dict[str, float]:
    """Recall, false alarms an hour, median lead time, and how often the range held the truth."""
    return compare(series(PER_KIND, EVALUATION_SEED))


def main() -> None:
    """Print what every contestant makes of every kind of the development series."""
    some = series(int(sys.argv[1]) if len(sys.argv) > 1 else PER_KIND, DEVELOPMENT_SEED)
    everyone: dict[str, Contestant] = {"forecast": ours, **contestants()}
    for kind in KINDS:
        for name, contestant in everyone.items():
            found = score([one for one in some if one.kind == kind], contestant)
            sys.stdout.write(
                f"{kind:22} {name:13} recall {found.warned:3}/{found.fatal:3}  "
                f"false {found.false_alarms:3} ({found.false_per_hour:5.1f}/h)  lead {found.lead_s:5.1f} s\n"
            )
    for name, value in compare(some).items():
        sys.stdout.write(f"{name:28} {value:.4g}\n")


if __name__ == "__main__":
    main()
