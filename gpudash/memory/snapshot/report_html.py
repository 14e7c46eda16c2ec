"""A snapshot as a single HTML page: what filled the memory, when, and who allocated it, with an embedded curve."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gpudash.drawing.page import (
    BarsBlock,
    Block,
    BulletsBlock,
    DrawingBlock,
    FoldedBlock,
    HeadingBlock,
    ParagraphBlock,
    Phrase,
    TableBlock,
    Text,
)
from gpudash.drawing.page import page as html
from gpudash.drawing.scene import (
    Anchor,
    Item,
    PlotScene,
    SceneArea,
    SceneAxis,
    SceneBand,
    SceneFrame,
    SceneLevel,
    SceneMark,
    SceneNote,
)
from gpudash.drawing.svg import svg
from gpudash.memory.explaining.call_sites import SourceLine, no_source
from gpudash.memory.explaining.explanation_text import (
    GROWTH,
    alternatives_title,
    evidence_text,
    growth_text,
    others_text,
    part_name,
    place,
    remedy_rows,
    remedy_sections,
)
from gpudash.memory.snapshot.explaining import chosen_moment
from gpudash.memory.snapshot.history.history import History, moment_text
from gpudash.memory.snapshot.history.model import Snapshot
from gpudash.memory.snapshot.sidecar import NOTHING, Sidecar
from gpudash.memory.snapshot.summary import DeviceStudy, compared, studied
from gpudash.telemetry.explanation import Explanation, Owner, StackLine, short
from gpudash.units import format_bytes, format_count

SHOWN_STACKS = 12

COLUMNS = 700
"""Columns of the curve: each shows the minimum and maximum of its events, so that no peak is lost."""

MOST_BANDS = 240
"""Most bands that are drawn; more would not be distinguishable."""

ABOVE = 1.05
"""Upper end of the axis, as a multiple of the highest value."""


def report(
    snapshot: Snapshot,
    title: str,
    capacity: int | None = None,
    settings: str | None = None,
    device: int | None = None,
    source: SourceLine = no_source,
    known: Sidecar = NOTHING,
) -> str:
    """The page for a snapshot.

    Args:
        snapshot: the snapshot.
        title: title of the page, such as the file's name.
        capacity, settings, device, source, known: as in `studied`.

    Raises:
        ValueError: as in `studied`.
    """
    return page(snapshot, studied(snapshot, capacity, settings, device, source, known), title, capacity)


def page(snapshot: Snapshot, studies: Sequence[DeviceStudy], title: str, capacity: int | None = None) -> str:
    """The page for devices that have already been studied."""
    body: list[Block] = [HeadingBlock(f"Memory of {title}", level=1), ParagraphBlock(_about(snapshot), "soft")]
    body += map(ParagraphBlock, snapshot.warnings)
    comparison = compared(studies)
    if comparison:
        body.append(ParagraphBlock(comparison))
    for study in studies:
        if len(snapshot.devices) > 1:
            body.append(HeadingBlock(f"Device {study.device.index}", level=2))
        body += _device(study, capacity)
    body.append(
        ParagraphBlock(
            "1 GiB is 1 073 741 824 bytes. Made with gpudash; paths and lines of source that stood in the snapshot "
            "are in this page.",
            "soft",
        )
    )
    return html(title, body)


def cause(found: Explanation) -> list[Block]:
    """Why memory was as full as it was."""
    return [ParagraphBlock(found.headline, "cause"), ParagraphBlock(found.request_words)]


def filled(found: Explanation) -> list[Block]:
    """What filled the memory, as bars."""
    largest = max((part.bytes for part in found.parts), default=1)
    rows = [(part_name(part), format_bytes(part.bytes), part.bytes / largest) for part in found.parts]
    if rows:
        return [HeadingBlock("What filled it"), BarsBlock(rows)]
    return []


OWNERS = (("own", True), ("total", True), ("blocks", True), (GROWTH, True), ("what", False), ("where", False))
"""Columns of the table of call sites."""


def allocated(found: Explanation) -> list[Block]:
    """Who allocated the memory, with the stacks of the largest call sites and the evidence."""
    parts: list[Block] = []
    if found.owners:
        parts += [HeadingBlock("Who allocated it"), TableBlock(OWNERS, list(map(_cells, found.owners)))]
        if found.rest_owners:
            parts.append(ParagraphBlock(f"{format_bytes(found.rest_bytes)} by {others_text(found.rest_owners)}."))
        parts += [_stack(owner) for owner in found.owners[:SHOWN_STACKS] if owner.stack]
    evidence = evidence_text(found.evidence)
    if evidence:
        return [*parts, ParagraphBlock(f"Evidence: {evidence}", "soft")]
    return parts


def _cells(owner: Owner) -> tuple[Text, ...]:
    return (
        format_bytes(owner.bytes),
        format_bytes(owner.total_bytes),
        format_count(owner.count),
        growth_text(owner.growth_per_step, owner.growth_stride),
        owner.category,
        Phrase(place(owner), code=owner.text),
    )


def _stack(owner: Owner) -> FoldedBlock:
    lines = [(f"{line.name}  {_file(line)}:{line.line}", line.is_library) for line in owner.stack]
    return FoldedBlock(f"Stack of {place(owner)}, {format_bytes(owner.bytes)}", lines)


def _file(line: StackLine) -> str:
    if line.is_library:
        return short(line.file)
    return line.file


def curve(history: History, moment: int, capacity: int | None = None) -> PlotScene | None:
    """Levels over events; ``None`` without events.

    Args:
        history: history of the device.
        moment: moment to mark.
        capacity: capacity of a what-if question, drawn as a labelled line.
    """
    count = history.count
    if not count:
        return None
    top = max(int(history.reserved.max()), int(history.allocated.max()), capacity or 0, 1)
    shares = (0.0, 0.25, 0.5, 0.75, 1.0)
    items: list[Item] = [
        _area(history.reserved, "reserved"),
        _area(history.allocated, "allocated"),
        *_bands(history),
    ]
    if capacity is not None:
        items.append(SceneLevel(capacity, "capacity"))
        items.append(SceneNote(0, capacity, f"what if: {format_bytes(capacity)}", right=4, down=-4))
    mark = SceneMark(moment + 1, "mark")
    if mark.place > count / 2:
        aside: tuple[Anchor, int] = ("end", -5)
    else:
        aside = ("start", 5)
    items += [
        mark,
        SceneNote(mark.place, ABOVE * top, _moment_name(history, moment), "mark", *aside, down=12),
        SceneNote(0, 0, "first event", down=18),
        SceneNote(count + 1, 0, moment_text(history, history.last), anchor="end", down=18),
    ]
    most = format_bytes(int(history.allocated.max()))
    return PlotScene(
        description=f"Allocated and reserved memory over {history.count} events, at most {most} allocated",
        across=SceneAxis(0, count + 1),  # before the first event, and after each
        left=SceneAxis(0, ABOVE * top, tuple((share * top, format_bytes(share * top)) for share in shares)),
        items=items,
        frame=SceneFrame(height=260, left=76, right=12, top=12, bottom=30),
    )


def _about(snapshot: Snapshot) -> str:
    events = sum(len(device.trace) for device in snapshot.devices)
    kind = ""
    if snapshot.kind:
        kind = f"{snapshot.kind}, "
    count = len(snapshot.devices)
    return f"{kind}{format_count(events)} events on {count} device{'s' if count != 1 else ''}."


def _device(study: DeviceStudy, capacity: int | None) -> list[Block]:
    found = study.found
    parts = cause(found)
    sections = remedy_sections(found)
    if sections and not found.remedies and found.requested_bytes is None:
        parts.append(ParagraphBlock(found.remedies_note))
        sections = []
    for title, rows in sections:
        parts += [HeadingBlock(title), BulletsBlock(rows)]
    if study.outcome_text:
        parts += [HeadingBlock("What if"), ParagraphBlock(study.outcome_text)]
    if study.ways:
        parts += [ParagraphBlock(f"{alternatives_title(study.ways)}:"), BulletsBlock(remedy_rows(study.ways))]
    parts += filled(found)
    drawn = curve(study.history, chosen_moment(study.history), capacity)
    if drawn is not None:
        parts += [
            HeadingBlock("When"),
            DrawingBlock(svg(drawn)),
            ParagraphBlock("Light: reserved; dark: allocated.", "soft"),
        ]
    return [*parts, *allocated(found)]


def _area(level: NDArray[np.int64], kind: str) -> SceneArea:
    """A filled curve; each column has its minimum and maximum, in order of time."""
    bounds = np.unique(np.linspace(0, len(level), COLUMNS + 1).astype(np.int64))[:-1]
    low, high = np.minimum.reduceat(level, bounds), np.maximum.reduceat(level, bounds)
    x = np.append(np.repeat(bounds, 2), len(level))
    y = np.append(np.stack((low, high), axis=1).ravel(), level[-1])
    return SceneArea(x.astype(np.float64), y.astype(np.float64), kind)


def _bands(history: History) -> list[SceneBand]:
    """The phases; the last may end with the last event, at the right edge."""
    shown = history.phases if len(history.phases) <= MOST_BANDS else ()
    wider = (history.count + 1) / history.count
    return [SceneBand(band.begin_event * wider, band.end_event * wider, band.name, band.name) for band in shown]


def _moment_name(history: History, moment: int) -> str:
    if moment in history.ooms.tolist():
        return "OOM"
    if moment == history.peak:
        return "peak"
    return "here"
