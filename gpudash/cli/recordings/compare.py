"""``gpudash compare A B``: two recorded runs side by side, with an exit code for CI."""

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from gpudash.cli.recordings.runs import recorded_run
from gpudash.cli.terminal.flags import parse_tolerance
from gpudash.cli.terminal.output import Exit, print_json, print_notice, print_table, stdout
from gpudash.units import listed

if TYPE_CHECKING:
    from rich.table import Table

    from gpudash.telemetry.comparing import ComparedRun, Comparison

NAMED = 6
"""Fields of a spec that a sentence names; further ones are counted."""

_DID = {
    "running": "has not ended",
    "cancelled": "was stopped early",
    "failed": "failed",
    "out_of_memory": "ran out of memory",
}

_SPARED = ("noise", "B over A")
"""Columns dropped in a narrow terminal, in this order: the verdict implies the first, A and B the second."""

_STYLES = {"better": "green", "worse": "bold red"}


def compare(
    a: str,
    b: str,
    /,
    *,
    tolerance: str | None = None,
    allow_noise: Annotated[bool, Parameter(negative="")] = False,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Compare two recorded runs: every figure as B minus A, with the noise of both, and their parameters.

    If a recording has several runs, its last one is used; FILE#2 selects the second.

    Parameters
    ----------
    a
        The recording to compare with, or FILE#N for its Nth run.
    b
        The recording to compare, or FILE#N.
    tolerance
        Exit with 1 if B is worse by more than this (10% or 0.1) and by more than the noise in median throughput,
        seconds, peak memory or final loss, or if it did not end as well; also if the specs differ. Whatever is worse
        by more than this and by more than 5 %, but within the noise, is too noisy to tell. That fails as well, since B
        has not been shown to be as good; repeat both runs with more steps.
    allow_noise
        Only warn about figures that are too noisy to tell.
    json
        Print one JSON document.
    """
    share = parse_tolerance(tolerance)
    from gpudash.telemetry.comparing import compare as compared

    comparison = compared(*(recorded_run(text, "gpudash compare reads what gpudash has recorded.") for text in (a, b)))
    found = comparison.document(share)
    if json:
        print_json(found)
    else:
        _print(comparison)
    if share is None:
        return Exit.FINISHED
    reasons, unclear = _reasons(comparison, share), _unclear(comparison, share)
    sentences = list(filter(None, (reasons, unclear)))
    if not json or sentences:
        print_notice(" ".join(sentences) or f"B is not worse than A by more than {share * 100:g} % and the noise.")
    if reasons or (unclear and not allow_noise):
        return Exit.FAILED
    return Exit.FINISHED


def _reasons(comparison: "Comparison", tolerance: float) -> str:
    """Why the comparison fails, in one sentence; "" if it passes."""
    from gpudash.telemetry.comparing.comparison import ENDING

    worse = comparison.worse(tolerance)
    changed = [field.name for field in comparison.changed]
    if not worse:
        return ""
    figures, parts = [name for name in worse if name != ENDING], []
    if figures:
        parts.append(f"B is worse than A by more than {tolerance * 100:g} % and the noise in {', '.join(figures)}")
    if ENDING in worse:
        parts.append(f"A finished, and B {_DID[comparison.b.view.status]}")
    if changed:
        parts.append(f"the specs differ in {listed(changed, NAMED, 'fields')}")
    return f"{'; '.join(parts)}."


def _unclear(comparison: "Comparison", tolerance: float) -> str:
    """What exceeds the tolerance but is too noisy to tell, in one sentence; "" for nothing."""
    from gpudash.telemetry.comparing.comparison import UNCLEAR, signed, value_text

    names = comparison.unclear(tolerance)
    figures = []
    for one in comparison.differences:
        if one.name not in names:
            continue
        a, b = value_text(one.a.unit, one.a.value), value_text(one.b.unit, one.b.value)
        noise = signed(one.a.unit, one.noise).lstrip("+")
        figures.append(f"{one.name} ({a} in A, {b} in B, noise ± {noise})")
    if not figures:
        return ""
    return f"{UNCLEAR.capitalize()}: {', '.join(figures)}; repeat both with more steps, or on a quieter machine."


def _print(comparison: "Comparison") -> None:

    from gpudash.telemetry.comparing.comparison import headline

    console = stdout()
    for name, run in (("A", comparison.a), ("B", comparison.b)):
        console.print(f"{name}  {_described(run)}", soft_wrap=True)
    console.print(headline(comparison), style="bold", soft_wrap=True)
    if comparison.differences:
        print_table(_figures(comparison), console, _SPARED)
    changed = [*comparison.changed, *(pair for pair in comparison.machine if pair.differs)]
    if changed:
        print_table(_changes(comparison), console)
    for note in comparison.notes:
        console.print(note, soft_wrap=True)


def _described(run: "ComparedRun") -> str:
    from gpudash.devices.names import shown_devices
    from gpudash.telemetry.runs import ending_text

    status = ending_text(run.view.status, run.view.spec)
    return f"{run.label}: {run.view.workload} on {shown_devices(run.view.device, run.view.spec)}, {status}"


def _figures(comparison: "Comparison") -> "Table":
    from rich.table import Table

    from gpudash.telemetry.comparing.comparison import FIGURE_TITLES, figure_row

    table = Table(box=None, pad_edge=False)
    for title in FIGURE_TITLES:
        is_text = title in ("figure", "verdict")
        table.add_column(title, justify="left" if is_text else "right", no_wrap=not is_text)
    for difference in comparison.differences:
        style = _STYLES.get(difference.judgement or "", "dim" if difference.verdict in ("same", "unclear") else "")
        table.add_row(*figure_row(difference), style=style)
    return table


def _changes(comparison: "Comparison") -> "Table":
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for title in ("differs", "A", "B"):
        table.add_column(title)
    for field in (*comparison.changed, *(field for field in comparison.machine if field.differs)):
        table.add_row(field.name, *field.labels)
    return table
