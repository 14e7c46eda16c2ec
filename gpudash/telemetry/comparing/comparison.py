"""Two runs compared: what was asked of each, where they ran, how their figures differ, and which of them are worse."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpudash.telemetry.comparing.differences import FigureDifference
from gpudash.telemetry.comparing.figures import LOSS, figures
from gpudash.telemetry.comparing.run import ComparedRun
from gpudash.units import format_percent

ENDING = "status"
"""Name under which a run that did not end as well as the other one is worse."""

_BESIDE = {"peak_used_bytes": ("peak_allocated_bytes", "peak_reserved_bytes")}
"""Memory in use, other programs' included, does not count against a run whose own memory is counted exactly."""

_TOLD_BY = {"seconds": ("median_throughput", "steps_per_second")}
"""A whole run's time holds the start of its process, which differs by a quarter between equal runs
(`noise.SET_UP_SHARE`): where the pace is known it is that which is too noisy or not."""

CROWDED = 0.05
"""Share of the processor taken by others that is worth a sentence."""


@dataclass(frozen=True, slots=True)
class FieldPair:
    """What was asked of, or is known of, both runs; ``None`` where one has no such field."""

    field: str
    a: Any
    b: Any

    @property
    def differs(self) -> bool:
        return bool(self.a != self.b)


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """B beside A; every difference is B minus A.

    Attributes:
        a, b: the runs.
        differences: of each figure that both have.
        specs: every field of the specs, with workload, device and whether that was simulated; differing ones first.
        machine: where the runs ran; differing ones first.
        notes: sentences on what limits the comparison.
    """

    a: ComparedRun
    b: ComparedRun
    differences: Sequence[FigureDifference]
    specs: Sequence[FieldPair]
    machine: Sequence[FieldPair]
    notes: Sequence[str]

    @property
    def changed(self) -> list[FieldPair]:
        """What was asked of B and not of A, or otherwise."""
        return [pair for pair in self.specs if pair.differs]

    def worse(self, tolerance: float = 0.0) -> list[str]:
        """Names of what counts and is worse in B by more than ``tolerance``, a share of A, and more than the noise."""
        found = [difference.name for difference in self._judged(_BESIDE) if difference.exceeds(tolerance)]
        if (
            self.a.view.status == "finished" != self.b.view.status
        ):  # one whose end is not recorded has not done its work
            found.append(ENDING)
        if _has_loss(self.a) and _diverged(self.b):
            found.append(LOSS)
        return found

    def unclear(self, tolerance: float = 0.0) -> list[str]:
        """Names of what counts and is worse in B by more than ``tolerance``, a share of A, but within the noise."""
        beside = {**_BESIDE, **_TOLD_BY}
        return [difference.name for difference in self._judged(beside) if difference.may_exceed(tolerance)]

    def _judged(self, beside: Mapping[str, Sequence[str]]) -> Iterator[FigureDifference]:
        """What counts against a run, but for figures ``beside`` others, by name, which tell better."""
        names = {difference.name for difference in self.differences}
        for difference in self.differences:
            counts = difference.a.judged and difference.b.judged
            if counts and not names.intersection(beside.get(difference.name, ())):
                yield difference

    def document(self, tolerance: float | None = None) -> dict[str, Any]:
        """The comparison as ``gpudash compare --json`` prints it."""
        return {
            "a": _run(self.a),
            "b": _run(self.b),
            "figures": [_figure(difference) for difference in self.differences],
            "specs": _pairs(self.changed),
            "machine": _pairs(pair for pair in self.machine if pair.differs),
            "worse": self.worse(tolerance or 0.0),
            "unclear": self.unclear(tolerance or 0.0),
            "tolerance": tolerance,
            "notes": list(self.notes),
        }


def compare(a: ComparedRun, b: ComparedRun) -> Comparison:
    """``b`` beside ``a``. Figures that only one of them has, or that count different items, are left out."""
    of_a, of_b = figures(a), figures(b)
    return Comparison(
        a,
        b,
        [
            FigureDifference(figure, of_b[name])
            for name, figure in of_a.items()
            if name in of_b and (figure.unit != "items/s" or _item(a) == _item(b))
        ],
        _beside(_asked(a), _asked(b)),
        _beside(a.machine, b.machine),
        [*_limits(a, b), *_crowds(a, b), *_own(a, b)],
    )


def _asked(run: ComparedRun) -> Mapping[str, Any]:
    view = run.view
    return {"workload": view.workload, "device": view.device, "simulated": view.simulated, **view.spec}


def _beside(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[FieldPair]:
    pairs = [FieldPair(name, a.get(name), b.get(name)) for name in (*a, *(name for name in b if name not in a))]
    return sorted(pairs, key=lambda pair: not pair.differs)


def _item(run: ComparedRun) -> tuple[str, Any]:
    """What the run's throughput counts."""
    return run.view.workload, run.view.result.get("item")


def _limits(a: ComparedRun, b: ComparedRun) -> Iterator[str]:
    if a.view.workload != b.view.workload:
        yield (
            f"A is {a.view.workload} and B is {b.view.workload}: only figures that both have are compared, and the "
            "work is not the same."
        )
    elif _item(a) != _item(b) and None not in (_item(a)[1], _item(b)[1]):
        yield f"A counts {_item(a)[1]}s and B counts {_item(b)[1]}s: their throughput is not compared."
    if a.view.simulated or b.view.simulated:
        which = "Both ran" if a.view.simulated and b.view.simulated else "A ran" if a.view.simulated else "B ran"
        yield f"{which} on a simulated GPU, whose speed is not that of a GPU."
    for name, run in (("A", a), ("B", b)):
        if run.view.status != "finished":
            yield _ENDINGS[run.view.status].format(name)
        if _diverged(run):
            yield f"{name} has no loss that is a number."


_ENDINGS = {
    "running": "{} has not ended: its figures are those up to its newest record.",
    "cancelled": "{} was stopped early: how long it took says nothing.",
    "failed": "{} failed: its figures are those up to the failure.",
    "out_of_memory": "{} ran out of memory: its figures are those up to then.",
}


def _crowds(a: ComparedRun, b: ComparedRun) -> Iterator[str]:
    shares = (a.crowding, b.crowding)
    if max(shares) >= CROWDED:
        taken = " and ".join(f"{format_percent(share)} from {name}" for share, name in zip(shares, "AB", strict=True))
        yield f"Other programs took time on the processor, {taken}: times and rates are the same within that."


def _own(a: ComparedRun, b: ComparedRun) -> Iterator[str]:
    for name, run in (("A", a), ("B", b)):
        for note in run.notes:
            yield f"{name}: {note.removesuffix('.')}."


def _has_loss(run: ComparedRun) -> bool:
    metric = run.view.metrics.get("loss")
    return metric is not None and metric.last_20_median is not None


def _diverged(run: ComparedRun) -> bool:
    return run.view.metrics.get("loss") is not None and not _has_loss(run)


def _run(run: ComparedRun) -> dict[str, Any]:
    view = run.view
    return {
        "recording": run.recording,
        "workload": view.workload,
        "device": view.device,
        "simulated": view.simulated,
        "status": view.status,
    }


def _figure(difference: FigureDifference) -> dict[str, Any]:
    return {
        "name": difference.name,
        "unit": difference.a.unit,
        "a": difference.a.value,
        "b": difference.b.value,
        "difference": difference.difference,
        "ratio": difference.ratio,
        "noise": difference.noise,
        "verdict": difference.verdict,
        "better": difference.judgement,
    }


def _pairs(pairs: Sequence[FieldPair] | Iterator[FieldPair]) -> list[dict[str, Any]]:
    return [{"field": pair.field, "a": pair.a, "b": pair.b} for pair in pairs]
