"""Comparison of two runs: their specs, where they ran, and how their figures differ, with those that are worse; all of
it in words too."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpudash.devices.known_gpus import SIMULATED_PREFIX
from gpudash.devices.names import badged_name, known_product
from gpudash.devices.simulated_cards import card_label, exact_text
from gpudash.specs import workloads
from gpudash.telemetry.comparing.curves import ComparedRun
from gpudash.telemetry.comparing.figures import LOSS, FigureDifference, are_different_cards, figures
from gpudash.telemetry.runs import RATES
from gpudash.units import format_bytes, format_duration, format_percent, format_scaled, format_throughput, listed

MOST_RUNS = 6
"""Most runs that can be told apart in one plot."""

ENDING = "status"
"""Name for a run that ended worse than the other."""

# A difference that follows from another one does not count twice.
_IMPLIED_BY = {"peak_used_bytes": ("peak_allocated_bytes", "peak_reserved_bytes")}
"""Memory in use includes other programs', so it does not count for a run whose own memory is known exactly."""

_REPORTED_BY = {"seconds": ("median_throughput", "steps_per_second")}
"""The time of a whole run includes the start of its process, which differs by a quarter between equal runs
(`noise.SET_UP_SHARE`): if the pace is known, only the pace decides what is noise."""

CROWDED = 0.05
"""Share of the processor used by others that is worth a sentence."""

_ENDINGS = {
    "running": "{} has not ended: its figures are those up to its newest record.",
    "cancelled": "{} was stopped early: its duration cannot be compared, and its peaks are those up to then.",
    "failed": "{} failed: its figures are those up to the failure.",
    "out_of_memory": "{} ran out of memory: its figures are those up to then.",
}

MINUS = "B minus A"
"""Title of the column of differences: the sign, spelt out."""

OVER = "B over A"

NO_VALUE = "-"

UNCLEAR = "too noisy to tell"
"""Verdict on a difference that would matter, but equal runs may have it too."""

_NAMED = 3
"""How many figures or fields a sentence names; more are counted."""

FIGURE_TITLES = ("figure", "A", "B", MINUS, OVER, "verdict", "noise")

LETTERS = "ABCDEF"
"""Names of the runs, for up to `MOST_RUNS`."""

RUN_CURVES = ("d2h", "h2d", "inputs", "memory_clock", "difference", "loss")
"""Colours of the runs, as names of curves: the same wherever runs lie over each other, and none of a band of memory."""


@dataclass(frozen=True, slots=True)
class Field:
    """A fact about each of several runs, such as a field of the spec; ``None`` for a run without it."""

    name: str
    values: tuple[Any, ...]
    size: bool = False

    @property
    def differs(self) -> bool:
        return any(value != self.values[0] for value in self.values)

    @property
    def labels(self) -> list[str]:
        """The values in words."""
        return list(map(self._label, self.values))

    @property
    def short_labels(self) -> list[str]:
        """The same, each path in them with only the end that tells it from the others: "…/b/train.py".

        Of commands and devices that differ, what all begin or end with is left out.
        """
        labels = self.labels
        if self.differs and self.name in ("command", "device", "GPU") and None not in self.values:
            labels = [" ".join(parts) for parts in _apart([label.split() for label in labels])]
        paths = {path for label in labels for path in _PATH.findall(label)}
        short = [_PATH.sub(lambda found: _path_end(found[0], paths), label) for label in labels]
        return [text.replace("… …", "…") for text in short]

    def _label(self, value: Any) -> str:
        if self.name == "simulate" and isinstance(value, list | tuple):
            return " ".join(map(_card_text, value)) or NO_VALUE
        if self.name == "simulate":
            return _card_text(value)
        if self.name == "device" and isinstance(value, str):
            return badged_name(value)
        if self.name == "GPU" and isinstance(value, str) and value.startswith(SIMULATED_PREFIX):
            return f"{known_product(value) or 'own size'} (simulated)"
        if self.size and isinstance(value, int) and not isinstance(value, bool):
            return format_bytes(value)
        if self.name == "edit" and isinstance(value, str):
            return _edit_text(value)
        return field_text(value)


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """The comparison of B with A; every difference is B minus A.

    Attributes:
        a, b: the runs.
        differences: the figures that both have.
        specs: all fields of the specs, with workload, device and whether it was simulated; differing ones first.
        machine: facts about the machines; differing ones first.
        notes: sentences about the comparison's limits.
    """

    a: ComparedRun
    b: ComparedRun
    differences: Sequence[FigureDifference]
    specs: Sequence[Field]
    machine: Sequence[Field]
    notes: Sequence[str]

    @property
    def changed(self) -> list[Field]:
        """The spec fields that differ."""
        return [field for field in self.specs if field.differs]

    def worse(self, tolerance: float = 0.0) -> list[str]:
        """Names of judged figures that are worse in B by more than ``tolerance``, a share of A, and more than the
        noise."""
        found = [difference.name for difference in self._judged(_IMPLIED_BY) if difference.exceeds(tolerance)]
        if (
            # Only if A finished and B did not.
            self.a.view.status == "finished" != self.b.view.status
        ):  # a run without a recorded end did not complete
            found.append(ENDING)
        # A loss that became NaN or infinite has no median of its last values.
        if _has_loss(self.a) and _diverged(self.b):
            found.append(LOSS)
        return found

    def unclear(self, tolerance: float = 0.0) -> list[str]:
        """Names of judged figures that are worse in B by more than ``tolerance``, a share of A, but within the
        noise."""
        implied_by = {**_IMPLIED_BY, **_REPORTED_BY}
        return [difference.name for difference in self._judged(implied_by) if difference.may_exceed(tolerance)]

    def _judged(self, implied_by: Mapping[str, Sequence[str]]) -> Iterator[FigureDifference]:
        """Figures that are judged, except those covered by another figure in ``implied_by``."""
        names = {difference.name for difference in self.differences}
        for difference in self.differences:
            counts = difference.a.judged and difference.b.judged
            if counts and not names.intersection(implied_by.get(difference.name, ())):
                yield difference

    def document(self, tolerance: float | None = None) -> dict[str, Any]:
        """The JSON of ``gpudash compare --json``."""
        return {
            "a": _run(self.a),
            "b": _run(self.b),
            "figures": list(map(_figure, self.differences)),
            "specs": _pairs(self.changed),
            "machine": _pairs(field for field in self.machine if field.differs),
            "worse": self.worse(tolerance or 0.0),
            "unclear": self.unclear(tolerance or 0.0),
            "tolerance": tolerance,
            "notes": list(self.notes),
        }


def compare(a: ComparedRun, b: ComparedRun) -> Comparison:
    """Compare ``b`` with ``a``. Omits figures that only one has, or that count different items."""
    of_a, of_b = figures(a), figures(b)
    return Comparison(
        a,
        b,
        [
            FigureDifference(figure, of_b[name])
            for name, figure in of_a.items()
            # Rates of different items are not comparable.
            if name in of_b and (figure.unit not in RATES or _item(a) == _item(b))
        ],
        spec_fields((a, b)),
        machines((a, b)),
        [*_limits(a, b), *_crowds(a, b), *_own(a, b)],
    )


def _spec_fields(run: ComparedRun) -> Mapping[str, Any]:
    view = run.view
    return {"workload": view.workload, "device": view.device, "simulated": view.simulated, **view.spec}


def spec_fields(runs: Sequence[ComparedRun]) -> list[Field]:
    """The fields of the runs' specs, differing ones first."""
    sizes = {name for run in runs for name in _sizes(run.view.workload)}
    return _fields(list(map(_spec_fields, runs)), sizes)


def machines(runs: Sequence[ComparedRun]) -> list[Field]:
    """Facts about the runs' machines, differing ones first."""
    return _fields([run.machine for run in runs], ())


def _fields(rows: Sequence[Mapping[str, Any]], sizes: Collection[str]) -> list[Field]:
    # In the order of the first run; fields of later runs follow.
    names = dict.fromkeys(name for fields in rows for name in fields)
    found = [Field(name, tuple(fields.get(name) for fields in rows), name in sizes) for name in names]
    return sorted(found, key=lambda field: not field.differs)


def _sizes(workload: str) -> Iterator[str]:
    """Names of a workload's fields that are sizes in bytes."""
    spec = workloads().get(workload)
    for name, field in spec.model_fields.items() if spec is not None else ():
        extra = field.json_schema_extra
        if isinstance(extra, dict) and extra.get("unit") == "bytes":
            yield name


def _item(run: ComparedRun) -> tuple[str, Any]:
    """The item that the run's throughput counts."""
    return run.view.workload, run.view.result.get("item")


def _limits(a: ComparedRun, b: ComparedRun) -> Iterator[str]:
    if a.view.workload != b.view.workload:
        yield (
            f"A is {a.view.workload} and B is {b.view.workload}: only figures that both have are compared, and the "
            "work is not the same."
        )
    # No remark if one of them does not say what it counts.
    elif _item(a) != _item(b) and None not in (_item(a)[1], _item(b)[1]):
        yield f"A counts {_item(a)[1]}s and B counts {_item(b)[1]}s: their throughput is not compared."
    if a.view.simulated or b.view.simulated:
        if a.view.simulated and b.view.simulated:
            which = "Both ran"
        elif a.view.simulated:
            which = "A ran"
        else:
            which = "B ran"
        yield f"{which} on a simulated GPU, whose speed is not that of a GPU."
    if are_different_cards(a.card, b.card) and "cpu" not in (a.card, b.card):
        yield f"Different cards: {a.card} in A, {b.card} in B; what was reserved and used is neither better nor worse."
    for name, run in (("A", a), ("B", b)):
        if run.view.status != "finished":
            yield _ENDINGS[run.view.status].format(name)
        if _diverged(run):
            yield f"{name} has no loss that is a number."


def _crowds(a: ComparedRun, b: ComparedRun) -> Iterator[str]:
    shares = (a.crowding, b.crowding)
    if max(shares) >= CROWDED:
        taken = " and ".join(f"{format_percent(share)} from {name}" for share, name in zip(shares, "AB", strict=True))
        yield f"Other programs used the processor ({taken}), so times and rates compare no closer than that."


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


def _pairs(fields: Iterable[Field]) -> list[dict[str, Any]]:
    return [{"field": field.name, "a": field.values[0], "b": field.values[1]} for field in fields]


def headline(comparison: Comparison) -> str:
    """The differences, in one or two sentences."""
    sentences = [_spec_text(comparison.changed)]
    found = comparison.differences
    for judgement in ("worse", "better"):
        # Worse before better: that is what a reader must act on.
        named = [difference for difference in found if difference.judgement == judgement]
        if named:
            sentences.append(f"{judgement.capitalize()} in B: {listed(list(map(_change, named)), _NAMED)}.")
    neither = [difference for difference in found if difference.verdict in ("more", "less")]
    neither = [difference for difference in neither if difference.judgement not in ("worse", "better")]
    if neither:
        sentences.append(f"Different in B: {listed(list(map(_change, neither)), _NAMED)}.")
    same, unclear = (sum(difference.verdict == verdict for difference in found) for verdict in ("same", "unclear"))
    if not found:
        sentences.append("They have no figure in common.")
    elif same == len(found):
        sentences.append(f"All {same} figures are the same within the noise.")
    else:
        sentences.append(f"{same} of {len(found)} figures are the same within the noise.")
    if unclear:
        sentences.append(f"{unclear} {'is' if unclear == 1 else 'are'} too noisy to tell.")
    return " ".join(sentences)


_PATH = re.compile(r"(?<![^\s=:,'\"])(?:/[^\s=:,'\"/]+){2,}")
"""A whole path with a folder, in a command or as the value of a flag."""


def _apart(rows: Sequence[Sequence[str]]) -> list[Sequence[str]]:
    """The rows without what all of them begin and end with, for which there is "…".

    At least one part stays of each, and the name of a flag whose value differs.
    """
    shortest = min(map(len, rows))
    begin = 0
    while begin < shortest - 1 and len({row[begin] for row in rows}) == 1:
        begin += 1
    if begin and rows[0][begin - 1].startswith("-"):
        begin -= 1
    end = 0
    while end < shortest - 1 - begin and len({row[-1 - end] for row in rows}) == 1:
        end += 1
    return [["…"][:begin] + list(row[begin : len(row) - end]) + ["…"][:end] for row in rows]


def _path_end(path: str, others: Collection[str]) -> str:
    """The shortest end of a path, in whole names, that none of the others has."""
    names = path.split("/")
    for count in range(1, len(names) - 1):
        end = "/".join(["", *names[-count:]])
        if not any(other.endswith(end) for other in others if other != path):
            return f"…{end}"
    return path


def _edit_text(patch: str) -> str:
    """A diff in a line: the first line it adds."""
    added = [row[1:].strip() for row in patch.split("\n") if row.startswith("+") and not row.startswith("+++ ")]
    if not added:
        return "lines taken away"
    if len(added) == 1:
        return added[0]
    return f"{added[0]} and more"


DIFFERENT_PROGRAMS = "Different programs; only memory compares."


def _spec_text(changed: Sequence[Field]) -> str:
    if not changed:
        return "Both were asked the same."
    if _are_different_programs(changed):
        return DIFFERENT_PROGRAMS
    return f"They differ in {listed(_field_texts(changed), _NAMED)}."


def _are_different_programs(changed: Sequence[Field]) -> bool:
    """Whether runs with these differing fields have hardly any field in common."""
    return any(field.name == "workload" for field in changed)


def _field_texts(changed: Sequence[Field]) -> list[str]:
    """Each field with its value in each run."""
    texts = []
    for field in changed:
        values = ", ".join(f"{label} in {letter}" for label, letter in zip(field.short_labels, LETTERS, strict=False))
        texts.append(f"{field.name.replace('_', ' ')} ({values})")
    return texts


def differences_text(runs: Sequence[ComparedRun]) -> str:
    """The differences between more than two runs, in a sentence."""
    changed = [field for field in spec_fields(runs) if field.differs]
    if not changed:
        return f"All {len(runs)} were asked the same."
    if _are_different_programs(changed):
        return DIFFERENT_PROGRAMS
    return f"The {len(runs)} runs differ in {listed(list(map(_difference_text, changed)), _NAMED)}."


def _difference_text(field: Field) -> str:
    """What a field is called after "differ in"."""
    if field.name == "simulated":
        return "whether they are simulated"
    return field.name.replace("_", " ")


def _change(difference: FigureDifference) -> str:
    return f"{difference.a.title} ({signed(difference.a.unit, difference.difference)})"


def value_text(unit: str, value: float | None) -> str:
    """``value`` with its unit, formatted by `gpudash.units`."""
    if value is None or math.isnan(value):
        return NO_VALUE
    if unit == "bytes":
        return format_bytes(value)
    if unit == "s":
        return format_duration(value)
    if unit in RATES:
        return format_throughput(value, unit.removesuffix("/s"))
    if unit == "ratio":
        return f"{value * 100:.1f} %"
    if unit == "times":
        return f"{value:.2f} times"
    if unit in ("nats", ""):
        if 1e-3 <= abs(value) < 1000 or value == 0:
            digits = f"{value:.4f}"
        else:
            digits = f"{value:.3g}"
        return f"{digits} {unit}".strip()
    return format_scaled(value, unit)


def signed(unit: str, value: float) -> str:
    """A difference with its sign: "+12 MiB", "−3.1 ms", "0" for none. For ratios, in percentage points."""
    if value == 0:
        return "0"
    if unit == "ratio":
        text = f"{abs(value) * 100:.1f} points"
    else:
        text = value_text(unit, abs(value))
    return f"{'+' if value > 0 else '−'}{text}"


def ratio_text(ratio: float | None) -> str:
    """A ratio: "1.20×", without decimals from ten on; "-" for none."""
    if ratio is None:
        return NO_VALUE
    if abs(ratio) >= 9.995:
        return f"{ratio:.0f}×"
    if abs(ratio) >= 0.0995:
        return f"{ratio:.2f}×"
    return f"{ratio:.2g}×"


def verdict_text(difference: FigureDifference) -> str:
    """ "same", "more", "less" or "too noisy to tell", and whether that is better or worse."""
    if difference.verdict == "unclear":
        return UNCLEAR
    judgement = difference.judgement
    if judgement is None:
        return difference.verdict
    return f"{difference.verdict}, {judgement}"


def field_text(value: Any) -> str:
    """The value of a spec's field; "-" if the run has no such field."""
    if value is None:
        return NO_VALUE
    if isinstance(value, bool):
        if value:
            return "yes"
        return "no"
    if isinstance(value, (list, tuple)):
        return " ".join(map(str, value))
    return str(value)


def figure_row(difference: FigureDifference) -> list[str]:
    """The cells of a row of figures: title, A, B, B minus A, B over A, verdict, noise."""
    unit = difference.a.unit
    return [
        difference.a.title,
        value_text(unit, difference.a.value),
        value_text(unit, difference.b.value),
        signed(unit, difference.difference),
        ratio_text(difference.ratio),
        verdict_text(difference),
        f"± {signed(unit, difference.noise).lstrip('+')}",
    ]


def _card_text(card: Any) -> str:
    """A simulated card of a spec in words: "24 GiB", "h100"."""
    size = ""
    if isinstance(card, int) and not isinstance(card, bool):
        size = card_label(exact_text(card))
    return size or field_text(card)


def field_row(field: Field) -> list[str]:
    """The cells of a row of fields: name, whether the runs differ, and each run's value."""
    return [field.name.replace("_", " "), "differs" if field.differs else "same", *field.labels]
