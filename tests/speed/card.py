"""How long operations and steps took on a card, beside what is predicted: ``python -m tests.speed card FILE``.

FILE is the ``measurements.json`` of ``python -m tests.gpu.collect``. The work is followed here, without the card.
"""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpudash.devices.card_performance import CardPerformance, performance_of
from gpudash.speed.prediction import predict
from gpudash.speed.work import HostSpeed, StepTime, StepWork
from tests.gpu import speed
from tests.gpu.child import asked

SHORT = 1.1
"""A call that takes less than so many times the host's time waited for the host: it says nothing of a kernel."""

INSTANT = HostSpeed(operation_s=1e-9, backward_operation_s=1e-9)

FOLLOWED_S = 300.0


@dataclass(frozen=True)
class Row:
    """What was measured beside what is predicted, in seconds.

    Attributes:
        name: of the operation or the step.
        kind: of operation that takes most of it, or "step".
        taken_s: on the card.
        predicted: of it.
    """

    name: str
    kind: str
    taken_s: float
    predicted: StepTime

    @property
    def error(self) -> float:
        """Predicted over taken, less one."""
        return self.predicted.median_s / self.taken_s - 1


def rows(measured: Mapping[str, Any]) -> Iterator[Row]:
    """Each that was measured, could be followed, and did not only wait for the host.

    Raises:
        ValueError: where nothing is known of the card.
    """
    product = str(measured["hardware"]["product"])
    card = performance_of(product)
    if card is None:
        raise ValueError(f"What a {product} can do is not known.")
    times = {**measured["operation_times"]["operations"], **measured["step_times"]["steps"]}
    taken = {name: found for name, found in times.items() if "error" not in found}
    names = {
        "operations": [name for name in taken if name in speed.OPERATIONS],
        "steps": [name for name in taken if name in speed.STEPS],
    }
    works = asked(speed.follow, "none", names, limit_s=FOLLOWED_S)
    for name in [*names["operations"], *names["steps"]]:
        work = works.get(name, {"error": "it was not followed"})
        if "error" not in work:
            yield from _row(name, StepWork.from_dict(work), taken[name], card)


def _row(name: str, work: StepWork, taken: Mapping[str, float], card: CardPerformance) -> Iterator[Row]:
    if name in speed.STEPS:
        operations = sum(work.operations.values())
        host_s = taken["host_s"] / max(operations, 1)
        yield Row(name, "step", taken["seconds"], predict(work, card, HostSpeed(host_s, host_s, "measured there")))
        return
    if taken["seconds"] < SHORT * taken["host_s"]:
        return
    predicted = predict(work, card, INSTANT)
    kind = max(predicted.by_kind, key=predicted.by_kind.__getitem__, default="copy")
    yield Row(name, kind, taken["seconds"], predicted)


def table(found: list[Row]) -> list[str]:
    """The errors by kind, and the furthest off."""
    by_kind: defaultdict[str, list[Row]] = defaultdict(list)
    for row in found:
        by_kind[row.kind].append(row)
    lines = ["| kind | measured | median error | 90 % within | in the interval |", "|---|---|---|---|---|"]
    for kind, of_kind in sorted(by_kind.items()):
        errors = sorted(abs(row.error) for row in of_kind)
        inside = sum(row.predicted.low_s <= row.taken_s <= row.predicted.high_s for row in of_kind)
        most = errors[min(len(errors) - 1, int(0.9 * len(errors)))]
        median = statistics.median(errors)
        lines.append(f"| {kind} | {len(errors)} | {median:.1%} | {most:.1%} | {inside / len(errors):.0%} |")
    furthest = sorted(found, key=lambda row: -abs(row.error))[:12]
    lines += ["", *(f"* {row.name}: {row.error:+.0%} ({1e3 * row.taken_s:.3g} ms)" for row in furthest)]
    return lines


def report(file: Path) -> None:
    """Print the table of one file."""
    print("\n".join(table(list(rows(json.loads(file.read_text(encoding="utf-8")))))))
