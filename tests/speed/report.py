"""The blind tables of the guide: predicted against taken, where neither model nor card was in the fit."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import log
from statistics import median

from gpudash.devices.card_performance import CARD_PERFORMANCE
from gpudash.speed.prediction import predict
from gpudash.speed.work import HostSpeed, StepTime, StepWork
from tests.speed import traces
from tests.speed.tables import Row, in_fit


@dataclass(frozen=True)
class Outcome:
    """One measured step and its prediction."""

    row: Row
    time: StepTime

    @property
    def error(self) -> float:
        """Predicted over taken, less one."""
        return self.time.median_s / self.row.step_s - 1

    @property
    def covered(self) -> bool:
        """Whether the interval holds what was taken."""
        return self.time.low_s <= self.row.step_s <= self.time.high_s

    @property
    def main_kind(self) -> str:
        """Where the device's time goes most."""
        return max(self.time.by_kind, key=lambda kind: self.time.by_kind[kind])


def outcomes(rows: Sequence[Row], works: dict[traces.Key, StepWork], host: HostSpeed) -> list[Outcome]:
    """Of all rows that were traced."""
    return [
        Outcome(row, predict(works[traces.key(row)], CARD_PERFORMANCE[row.table.card], host))
        for row in rows
        if traces.key(row) in works
    ]


def summary(found: Sequence[Outcome]) -> str:
    """A row of a table: how many, median error, nine in ten, bias, coverage."""
    size = sorted(abs(outcome.error) for outcome in found)
    bias = median(outcome.error for outcome in found)
    nine = size[min(int(0.9 * len(size)), len(size) - 1)]
    covered = sum(outcome.covered for outcome in found) / len(found)
    return (
        f"{len(found)} | {100 * median(size):.1f} % | {100 * nine:.1f} % | {100 * bias:+.1f} % | {100 * covered:.0f} %"
    )


def table(found: Sequence[Outcome], title: str, group: Callable[[Outcome], Hashable]) -> Iterator[str]:
    """In Markdown, a row for each group."""
    yield f"| {title} | steps | median error | 90 % within | bias | in the interval |"
    yield "|---|---|---|---|---|---|"
    groups: defaultdict[Hashable, list[Outcome]] = defaultdict(list)
    for outcome in found:
        groups[group(outcome)].append(outcome)
    for name, members in sorted(groups.items(), key=lambda item: str(item[0])):
        yield f"| {name} | {summary(members)} |"


def pairs(found: Sequence[Outcome]) -> tuple[int, int]:
    """Of pairs of cards on one model whose rates differ by over a tenth: how many, and how many in the right order."""
    by_model: defaultdict[tuple[str, int], list[Outcome]] = defaultdict(list)
    for outcome in found:
        by_model[outcome.row.model, outcome.row.image].append(outcome)
    right = 0
    counted = 0
    for members in by_model.values():
        for one, other in combinations(members, 2):
            taken = _rate(one) / _rate(other)
            if abs(log(taken)) <= log(1.1):
                continue
            counted += 1
            right += (taken > 1) == (one.time.items_per_s > other.time.items_per_s)
    return counted, right


def _rate(outcome: Outcome) -> float:
    return outcome.row.batch / outcome.row.step_s


def blind(rows: Sequence[Row], works: dict[traces.Key, StepWork], host: HostSpeed) -> Iterator[str]:
    """Everything that the guide shows."""
    found = outcomes([row for row in rows if not row.for_fit], works, host)

    def name(outcome: Outcome) -> str:
        row = outcome.row
        what = "training" if row.table.training else "inference"
        layout = ", channels last" if row.table.channels_last else ""
        families = "families of the fit" if in_fit(row.family) else "unseen families"
        return f"{row.table.card}, {what}{layout}: {families}"

    yield from table(found, "card, step, families", name)
    yield ""
    inference = [outcome for outcome in found if not outcome.row.table.training]
    yield from table(inference, "inference, by where most of the time goes", lambda outcome: outcome.main_kind)
    yield ""
    flat = [outcome for outcome in inference if not outcome.row.table.channels_last]
    counted, right = pairs(flat)
    yield f"Pairs of cards that differ by over 10 %: {right} of {counted} in the right order ({right / counted:.1%})."
    yield ""
    yield "Furthest off:"
    furthest = sorted(found, key=lambda outcome: -abs(log(1 + outcome.error)))[:12]
    for outcome in furthest:
        row = outcome.row
        yield f"* {row.model} at {row.image}, {name(outcome)}: {100 * outcome.error:+.0f} %"
