"""Limits for a prediction: a maximum, or the stored result of an earlier one.

Annotations are evaluated at run time, as in `gpudash.cli.terminal.flags`.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from gpudash.cli.terminal.flags import CardSize, parse_tolerance
from gpudash.cli.terminal.output import RequestError, numbers, one_line, plain_table, print_table, stdout
from gpudash.devices.names import shown_name
from gpudash.system.foreign_files import read_regular_text
from gpudash.units import SizeScale, format_bytes

if TYPE_CHECKING:
    from gpudash.memory.predicting.estimate import Estimate
    from gpudash.telemetry.comparing.baseline import Footprint, FootprintChange
    from gpudash.telemetry.comparing.budget_report import CheckedBudget


BUDGET = Parameter(group="A budget")

MOST_SOURCE_BYTES = 4 * 2**20
"""Maximum size of a source file that is searched for a function."""


@Parameter(name="*")
@dataclass(kw_only=True)
class BudgetOptions:
    """Flags that make a prediction fail, for CI."""

    max: Annotated[CardSize | None, BUDGET] = None
    """Exit with 1 if the run needs more memory of a device than this, including the context (20GiB, or that of a GPU
    by name: l4)."""

    baseline: Annotated[Path | None, BUDGET] = None
    """Exit with 1 if the run needs more than is stored here by --write-baseline, and show what changed."""

    tolerance: Annotated[str | None, Parameter(metavar="SHARE", allow_leading_hyphen=True), BUDGET] = None
    """Growth over the baseline that is tolerated (2% or 0.02); default: 1%."""

    write_baseline: Annotated[Path | None, Parameter(negative=""), BUDGET] = None
    """Store what the run needs in this file, beside other workloads stored there."""

    junit: Annotated[Path | None, Parameter(negative=""), BUDGET] = None
    """Write the verdict to a JUnit file, for CI servers."""

    sarif: Annotated[Path | None, Parameter(negative=""), BUDGET] = None
    """Write what exceeds the budget to a SARIF file for code scanning, at the line that allocates most, or at the
    named function."""

    def refuse_budget(self, why: str) -> None:
        """Reject a budget where none applies.

        Args:
            why: beginning of the sentence.

        Raises:
            RequestError: if a budget was given.
        """
        given = {"--max": self.max, "--baseline": self.baseline, "--write-baseline": self.write_baseline}
        given |= {"--junit": self.junit, "--sarif": self.sarif}
        named = [flag for flag, value in given.items() if value is not None]
        if named:
            raise RequestError(f"{why}, so that {named[0]} does not apply.", f"Leave {named[0]} out.")

    def budget(self) -> "Budget":
        """The budget that was given, with the baseline loaded.

        Raises:
            RequestError: if it is not valid, or a file cannot be used.
        """
        if self.max == 0:
            raise RequestError("--max 0 leaves nothing to run in.", "Write for example --max 20GiB.")
        if self.tolerance is not None and self.baseline is None:
            raise RequestError("--tolerance is for comparing with a baseline.", "Give --baseline FILE as well.")
        share = parse_tolerance(self.tolerance)
        if self.baseline is None and self.write_baseline is None:
            return Budget(self.max, junit=self.junit, sarif=self.sarif)
        from gpudash.telemetry.comparing.baseline import TOLERANCE, BaselineError, read_baselines

        try:
            stored = None
            if self.baseline is not None:
                stored = read_baselines(self.baseline)
            if self.write_baseline is not None and self.write_baseline.exists():
                read_baselines(self.write_baseline)  # refuse to replace any other file, before the work
        except BaselineError as error:
            raise RequestError(str(error), "--write-baseline FILE writes one.") from None
        except OSError as error:
            raise RequestError(f"{self.write_baseline} cannot be written: {error.strerror}.") from None
        tolerance = TOLERANCE if share is None else share
        return Budget(self.max, self.baseline, stored, tolerance, self.write_baseline, self.junit, self.sarif)


@dataclass(frozen=True)
class Budget:
    """What a prediction is compared with.

    Attributes:
        most: bytes; ``None`` for no limit.
        file, stored: the baseline's file, and its content by workload; ``None`` without one.
        tolerance: as in `FootprintChange`.
        target: file to store the prediction in.
        junit, sarif: files to write the verdict to.
    """

    most: int | None = None
    file: Path | None = None
    stored: "dict[str, Footprint] | None" = None
    tolerance: float = 0.0
    target: Path | None = None
    junit: Path | None = None
    sarif: Path | None = None

    def judge(self, estimate: "Estimate") -> "Judged":
        """Judge a prediction, and store it if requested.

        Raises:
            RequestError: if the baseline does not contain the workload, or the prediction or a report cannot be
                stored.
        """
        judged = self._judged(estimate)
        self._write_reports(judged, estimate)
        return judged

    def _write_reports(self, judged: "Judged", estimate: "Estimate") -> None:
        if self.junit is None and self.sarif is None:
            return
        from gpudash.telemetry.comparing.budget_report import junit_text, sarif_text, write_text

        checks = [_checked(judged, estimate)]
        try:
            if self.junit is not None:
                write_text(self.junit, junit_text(checks, "gpudash estimate"))
            if self.sarif is not None:
                write_text(self.sarif, sarif_text(checks))
        except ValueError as error:
            raise RequestError(str(error), "Name another file.") from None

    def _judged(self, estimate: "Estimate") -> "Judged":
        needed, sentences, change = estimate.needed_bytes, [], None
        if estimate.model is None:
            name = estimate.workload
        else:
            name = f"{estimate.workload} {estimate.model.architecture}"
        # An unknown need exceeds every limit.
        within = None
        if self.most is not None:
            within = needed is not None and needed <= self.most
        if self.most is not None and not within:
            sentences.append(_beyond(name, needed, self.most))
        if self.file is None and self.target is None:
            return Judged(self.most, within, None, tuple(sentences))
        if needed is None:
            raise RequestError(
                # Only a run until out-of-memory has an unknown need.
                f"{name} takes all the memory there is, so there is nothing to compare or store.",
                "Give a run that ends by itself.",
            )
        now = _footprint(estimate, needed)
        # Compare before storing: both may be the same file.
        if self.stored is not None:
            change = self._change(now, name)
            sentences.append(change.headline)
        if self.target is not None:
            self._store(self.target, name, now)
            sentences.append(f"Stored in {self.target}: {name}, {format_bytes(needed)}.")
        return Judged(self.most, within, change, tuple(sentences))

    def _change(self, now: "Footprint", workload: str) -> "FootprintChange":
        from gpudash.telemetry.comparing.baseline import FootprintChange

        before = (self.stored or {}).get(workload)
        if before is None:
            has = ", ".join(self.stored or {}) or "nothing"
            raise RequestError(
                f"The baseline {self.file} has no entry {workload!r}, but {has}.", "--write-baseline FILE adds it."
            )
        return FootprintChange(workload, before, now, self.tolerance)

    def _store(self, target: Path, workload: str, now: "Footprint") -> None:
        from gpudash.telemetry.comparing.baseline import BaselineError, write_baselines

        try:
            write_baselines(target, {workload: now})
        except BaselineError as error:
            raise RequestError(str(error), "Name another file.") from None


def _checked(judged: "Judged", estimate: "Estimate") -> "CheckedBudget":
    """A verdict in the form that the reports use."""
    from gpudash.telemetry.comparing.budget_report import CheckedBudget, Outcome

    outcome: Outcome = "passed"
    stored = None
    if judged.change is not None:
        stored = judged.change.before.bytes
        if judged.change.grown:
            outcome = "grown"
    if judged.within is False:
        outcome = "over"
    needed = estimate.needed_bytes or 0
    file, line = _place(estimate)
    return CheckedBudget(
        name=estimate.workload,
        outcome=outcome,
        message=" ".join(judged.sentences) or f"{estimate.workload} needs {format_bytes(needed)}.",
        peak_bytes=estimate.peak_allocated_bytes or 0,
        needed_bytes=needed,
        allowed_bytes=judged.most,
        stored_bytes=stored,
        file=file,
        line=line,
        lines=estimate.by_line,
    )


def _place(estimate: "Estimate") -> tuple[str, int]:
    """Where a reader should look: the line that holds most, else the named function; "" and 0 if there is neither."""
    for place in estimate.by_line:
        file, _, number = place.partition(", in ")[0].rpartition(":")
        if number.isdecimal():
            return file, int(number)
    file, _, function = estimate.workload.rpartition(":")
    if not file.endswith(".py"):
        return "", 0
    try:
        source = read_regular_text(file, MOST_SOURCE_BYTES)
    except OSError:
        return file, 1
    for line, text in enumerate(source.splitlines(), 1):
        if re.match(rf"\s*(async\s+)?def\s+{re.escape(function)}\b", text):
            return file, line
    return file, 1


def _beyond(workload: str, needed: int | None, most: int) -> str:
    """Why a prediction exceeds its limit, in a sentence."""
    if needed is None:
        return f"{workload} takes all the memory there is, and --max allows {format_bytes(most)}."
    scale = SizeScale.of(needed, most)
    return (
        f"{workload} needs {scale.label(needed)}, {scale.apart(needed, most)} more than the {scale.label(most)} "
        "that --max allows."
    )


def _footprint(estimate: "Estimate", needed: int) -> "Footprint":
    """What is compared of a prediction: its total, and the categories and phases of what is allocated at the peak.

    The context, and what the allocator holds beyond its tensors, are categories too, so that these add up to the
    total.
    """
    from gpudash.telemetry.comparing.baseline import Footprint

    # The allocator also holds cached blocks and unused ends of segments.
    idle = needed - estimate.overhead_bytes - (estimate.peak_allocated_bytes or 0)
    outside = {"context": estimate.overhead_bytes, "idle inside PyTorch": max(0, idle)}
    categories = {**estimate.by_category, **{name: size for name, size in outside.items() if size}}
    phases: dict[str, int] = {}
    for peak in estimate.phases:
        name = peak.phase or "between phases"
        phases[name] = max(phases.get(name, 0), peak.allocated)
    return Footprint(needed, {"category": categories, "phase": phases}, shown_name(estimate.device, estimate.product))


@dataclass(frozen=True)
class Judged:
    """A prediction compared with a `Budget`.

    Attributes:
        most: limit in bytes.
        within: whether the prediction is within the limit.
        change: difference from the baseline.
        sentences: the verdicts in words.
    """

    most: int | None
    within: bool | None
    change: "FootprintChange | None"
    sentences: tuple[str, ...]

    @property
    def beyond(self) -> bool:
        """Whether the budget is exceeded."""
        return self.within is False or (self.change is not None and self.change.grown)

    def to_json(self) -> dict[str, Any]:
        """The keys of the verdict in ``gpudash estimate --json``."""
        change = None
        if self.change is not None:
            change = self.change.to_json()
        return {"max_bytes": self.most, "within_max": self.within, "baseline": change}

    def print_changes(self) -> None:
        """Print the table of changes."""
        if self.change is None:
            rows = []
        else:
            rows = self.change.rows()
        if not rows:
            return
        from rich.table import Column
        from rich.text import Text

        table = plain_table(Column("changed", overflow="fold"), *numbers("baseline", "now", "difference"))
        for name, *sizes in rows:
            table.add_row(Text(one_line(name)), *sizes)
        console = stdout()
        console.print()
        print_table(table, console)
