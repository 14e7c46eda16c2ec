"""An explanation as plain text: printed by the terminal and copied by "Copy report"."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from gpudash.memory.allocator.trace import WORKSPACE
from gpudash.memory.explaining.remedies import AT_LEAST, REPLAY
from gpudash.memory.explaining.whole_need import changes_the_run, is_capacity
from gpudash.memory.explaining.wording import innermost
from gpudash.memory.predicting.prediction import price
from gpudash.telemetry.explanation import Evidence, Explanation, Owner, Part, Remedy, every_steps, short, site_name
from gpudash.units import available, format_bytes, format_count, format_duration, format_percent, summed_bytes

BAR_CELLS = 40
"""Length of the longest bar, in characters."""

SHOWN_OWNERS = 5

_LINE = re.compile(r"\S:\d")
"""Matches the place of a line in a sentence: "train.py:41"."""

_PEAK = re.compile(r": (?P<peak>[\d.]+ (?P<unit>\w+)) at the peak")
"""Matches the peak in the words of a change."""

NOT_TRIED = "not tried"
"""Label of a remedy that neither a dry run nor a replay has verified."""


def report(explanation: Explanation) -> list[str]:
    """The lines of a report: cause, request, remedies, contents, call sites, evidence."""
    lines = [explanation.headline, explanation.request_words]
    sections = remedy_sections(explanation)
    note = explanation.remedies_note
    if explanation.requested_bytes is None and not explanation.remedies and note:
        # Nothing failed and nothing is proposed: the note stands alone.
        lines, sections = [*lines, note], []
    for title, body in (
        *((title, [f"  {row}" for row in rows]) for title, rows in sections),
        ("What filled it", list(_bars(explanation))),
        ("Who allocated it", _owner_lines(explanation)),
    ):
        if body:
            lines += ["", title, *body]
    evidence = evidence_text(explanation.evidence)
    if evidence:
        return [*lines, "", f"Evidence: {evidence}"]
    return lines


def remedies_title(explanation: Explanation) -> str:
    """Title of the remedies; if nothing failed, they just need less."""
    if explanation.requested_bytes is None:
        return "Would take less"
    return failure_title(explanation.remedies)


def failure_title(remedies: Sequence[Remedy]) -> str:
    """Title by what is known of a failure's remedies: they fit, they get past the request, or nothing yet."""
    if any(remedy.fits for remedy in remedies) or not remedies:
        return "Would have fitted"
    if any(remedy.verified_by for remedy in remedies):
        return "This request would have succeeded with"
    return "Could be tried"


def remedy_groups(remedies: Sequence[Remedy]) -> list[tuple[str, list[Remedy]]]:
    """Remedies of a failure, grouped by what is known of them, in the order of first occurrence."""
    groups: dict[str, list[Remedy]] = {}
    for remedy in remedies:
        groups.setdefault(failure_title([remedy]), []).append(remedy)
    return list(groups.items())


def alike(remedies: Sequence[Remedy]) -> list[Remedy]:
    """The leading remedies for which the same is known."""
    if remedies:
        return remedy_groups(remedies)[0][1]
    return []


def remedy_sections(explanation: Explanation) -> list[tuple[str, list[str]]]:
    """Titles with a line for each remedy; the note ends the last section."""
    groups = remedy_groups(explanation.remedies)
    failed = explanation.requested_bytes is not None
    if explanation.requested_bytes is None and explanation.remedies:
        groups = [(remedies_title(explanation), list(explanation.remedies))]
    sections = [(title, remedy_rows(remedies, failed=failed)) for title, remedies in groups]
    note = explanation.remedies_note
    if not note:
        return sections
    if not sections:
        return [(remedies_title(explanation), [note])]
    title, rows = sections[-1]
    return [*sections[:-1], (title, [*rows, note])]


def alternatives_title(alternatives: Sequence[Remedy]) -> str:
    """Title by what is known of other cards' remedies: they fit, or get past the failed request."""
    if any(way.fits for way in alternatives):
        return "Would fit"
    return "Would get past the refused request"


def remedy_rows(remedies: Sequence[Remedy], *, failed: bool = False) -> list[str]:
    """Remedies in columns: the change, its peak, its cost and how to apply it.

    Args:
        remedies: the remedies.
        failed: whether a request had failed.
    """
    return in_columns([[remedy.change, *_facts(remedy, failed)] for remedy in remedies])


def is_peak_so_far(remedy: Remedy) -> bool:
    """Whether the peak of a failure's remedy is a lower bound: a replay does not know what would have followed."""
    return remedy.fits is None and remedy.verified_by == REPLAY


def remedy_peak(remedy: Remedy, *, failed: bool) -> str:
    """The peak of a remedy: "342 MiB", "at least 342 MiB"; "" if unknown.

    Args:
        remedy: the remedy.
        failed: whether a request had failed.
    """
    if remedy.predicted_peak_bytes is None:
        return ""
    at_least = ""
    if failed and is_peak_so_far(remedy):
        at_least = AT_LEAST
    return f"{at_least}{format_bytes(remedy.predicted_peak_bytes)}"


def unsaid_peak(remedy: Remedy, *, failed: bool) -> str:
    """`remedy_peak`, unless the change itself says it: beside the peak without it, or as what a card has to have."""
    said = _PEAK.search(remedy.change)
    is_said = said is not None and format_bytes(remedy.predicted_peak_bytes, unit=said["unit"]) == said["peak"]
    if is_said or is_capacity(remedy):
        return ""
    return remedy_peak(remedy, failed=failed)


def reason(explanation: Explanation) -> str:
    """What is held by which line, and why, in sentences without their caveats."""
    sentences = [explanation.cause]
    if not _LINE.search(explanation.cause):
        sentences.insert(0, _held(explanation))
    if _note_is_cause(explanation):
        sentences.append(explanation.remedies_note)
    return " ".join(filter(None, sentences))


def caveat(explanation: Explanation, change: Remedy | None) -> str:
    """What limits a change, why it is not the first remedy, and what the remedies are based on; "" for nothing."""
    sentences = []
    if change is not None and change.puts_off:
        sentences.append(f"It {change.puts_off}.")
    first = next(iter(explanation.remedies), None)
    if change is not None and first is not None and not changes_the_run(first):
        sentences.append("The first of the remedies above is no change of the program to run from here.")
    if not _note_is_cause(explanation):
        sentences.append(explanation.remedies_note)
    return " ".join(filter(None, sentences))


def _note_is_cause(explanation: Explanation) -> bool:
    """Whether the note says what keeps the memory, as that of a leak does until a rerun has measured the need."""
    return explanation.verdict == "leak" and not explanation.cause and explanation.need is None


def _held(explanation: Explanation) -> str:
    """What the line holds that leaks, or that holds most; the verdict's sentence if that is of no line."""
    owners = [one for one in explanation.owners if one.file is not None and one.category != WORKSPACE]
    if explanation.verdict == "leak" and explanation.growing:
        growth = explanation.growing[0]
        # As in the margin of the source.
        held = sum(one.bytes for one in owners if (one.file, one.line) == (growth.file, growth.line))
        rate = f"{format_bytes(growth.bytes_at_once)} of {growth.every}"
        more = ""
        if not (_note_is_cause(explanation) and rate in explanation.remedies_note):
            more = f", {rate}"
        return f"{short(growth.file)}:{growth.line} holds {format_bytes(held)}{more}."
    if explanation.verdict not in ("real capacity", "impossible request", "memory cap"):
        return explanation.headline
    if not owners:
        return ""
    largest = owners[0]
    return f"{short(largest.file or '')}:{largest.line} holds {format_bytes(largest.bytes)} ({largest.category})."


def _facts(remedy: Remedy, failed: bool) -> list[str]:
    peak = unsaid_peak(remedy, failed=failed)
    if peak:
        peak = f"peak {peak}"
    source = NOT_TRIED
    if remedy.verified_by:
        source = f"by {remedy.verified_by}"
    return [", ".join(filter(None, (peak, source))), price(remedy), remedy.flags]


def part_name(part: Part) -> str:
    """The name of a part; for another process, its name and PID."""
    if part.kind != "process":
        return part.name
    return f"{part.name or 'another process'}{'' if part.pid is None else f' (pid {part.pid})'}"


def place(owner: Owner) -> str:
    """A call site's short name: "train.py:41 step", with the library line that it called."""
    if owner.file is None and owner.category == WORKSPACE:
        return "workspace of cuBLAS"
    name = site_name(owner.file, owner.line, owner.name)
    if owner.library:
        return f"{name} ({owner.library})"
    return name


def workspace_text(first_used: str) -> str:
    """A workspace as a call site: the line only happened to be the first to need it."""
    return f"workspace of cuBLAS, first used at {first_used}"


def evidence_text(evidence: Evidence) -> str:
    """What an explanation is based on, in a sentence; "" if nothing happened and nothing is live."""
    parts = []
    if evidence.began_s is not None and not (evidence.events or evidence.of_events or evidence.live_bytes):
        return ""
    if evidence.began_s is None:
        parts.append("no history was recorded")
    else:
        if evidence.of_events is None:
            of = ""
        else:
            of = f" of {format_count(evidence.of_events)}"
        parts.append(f"{format_count(evidence.events)}{of} events")
        if evidence.began_s > 0:
            parts.append(f"recording began at {format_duration(evidence.began_s)}")
    if evidence.live_bytes:
        share = evidence.without_stack_bytes / evidence.live_bytes
        without = f"{format_percent(share)} of live bytes have no stack"
        parts.append(without if share else "all live bytes have a stack")
    return f"{', '.join(parts)}."


def others_text(count: int) -> str:
    """The number of call sites that are not listed, in words."""
    return f"{format_count(count)} other call site{'s' if count > 1 else ''}"


GROWTH = "grows by"
"""Title of a column of growths, each of which says itself how often it comes."""

GROWTH_TIP = "Bytes that stay behind, and how often"
"""Its tooltip."""


def growth_text(bytes_per_step: float | None, stride: float = 1.0, always: str = " every step") -> str:
    """A growth in words: "+4 MiB every step", "+48 MiB every 10 steps"; "" for none.

    Args:
        bytes_per_step: bytes on average.
        stride: steps from one that leaves something to the next.
        always: what follows the bytes if every step does.
    """
    if not bytes_per_step:
        return ""
    every = every_steps(stride, "")
    if every:
        return f"+{format_bytes(bytes_per_step * stride)} {every}"
    return f"+{format_bytes(bytes_per_step)}{always}"


def _bars(explanation: Explanation) -> Iterator[str]:
    if not explanation.parts:
        return
    largest = max((part.bytes for part in explanation.parts if part.kind != "barred"), default=1)
    rows = []
    for part in explanation.parts:
        bar = ""
        if part.kind != "barred":
            bar = "█" * max(1, round(part.bytes / largest * BAR_CELLS))
        rows.append([part_name(part), format_bytes(part.bytes), bar])
    for line in in_columns(rows):
        yield f"  {line}"
    yield f"  {total_text(explanation)}"


def total_text(explanation: Explanation) -> str:
    """The sum of the parts, PyTorch's share under a cap, and the request, in words."""
    text = f"together {format_bytes(explanation.capacity_bytes)}"
    if explanation.allowed_bytes is not None:
        text += f", of which PyTorch may have {available(explanation.allowed_bytes)}"
    if explanation.requested_bytes is None:
        return text
    return f"{text}; asked for {explanation.request_size}"


def _owner_lines(explanation: Explanation) -> list[str]:
    owners = explanation.owners[:SHOWN_OWNERS]
    if not owners:
        return []
    rows = [["own", "total", "count", GROWTH, "what", "where"], *map(_cells, owners)]
    lines = [f"  {line}" for line in in_columns(rows)]
    rest = explanation.rest_bytes + summed_bytes(explanation.owners[SHOWN_OWNERS:])
    count = explanation.rest_owners + len(explanation.owners) - len(owners)
    if count:
        lines.append(f"  {format_bytes(rest)} by {others_text(count)}")
    return lines


def _cells(owner: Owner) -> list[str]:
    return [
        format_bytes(owner.bytes),
        format_bytes(owner.total_bytes),
        format_count(owner.count),
        growth_text(owner.growth_per_step, owner.growth_stride),
        f"{owner.category}{f', {innermost(owner.module)}' if owner.module else ''}",
        place(owner),
    ]


def in_columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Cells padded to columns; a column that is empty in every row is left out."""
    kept = list(filter(any, zip(*rows, strict=True)))
    padded = [[cell.ljust(max(map(len, column))) for cell in column] for column in kept]
    return ["  ".join(cells).rstrip() for cells in zip(*padded, strict=True)]
