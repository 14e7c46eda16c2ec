"""A snapshot as one page of HTML: what filled the memory, when, and who allocated it; the curve is drawn within it."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np
from numpy.typing import NDArray

from gpudash.drawing.scene import Anchor, Area, Axis, Band, Frame, Item, Level, Mark, Note, Scene
from gpudash.drawing.svg import svg
from gpudash.memory.explaining.call_sites import SourceLine, no_source
from gpudash.memory.explaining.explanation_text import (
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
from gpudash.telemetry.explanation import Explanation, StackLine, short
from gpudash.telemetry.export.html_page import document, table
from gpudash.units import format_bytes, format_count

SHOWN_STACKS = 12

COLUMNS = 700
"""Of the curve: each shows the lowest and the highest of its events, so that no peak is lost."""

MOST_BANDS = 240
"""Bands that are drawn; of more only every so many would be seen."""

ABOVE = 1.05
"""How far the axis reaches, in parts of the highest value."""


def report(
    snapshot: Snapshot,
    title: str,
    capacity: int | None = None,
    settings: str | None = None,
    device: int | None = None,
    source: SourceLine = no_source,
    known: Sidecar = NOTHING,
) -> str:
    """The page.

    Args:
        snapshot: as read.
        title: what the page is called, such as the name of the file.
        capacity, settings, device, source, known: as of `studied`.

    Raises:
        ValueError: as `studied`.
    """
    return page(snapshot, studied(snapshot, capacity, settings, device, source, known), title, capacity)


def page(snapshot: Snapshot, studies: Sequence[DeviceStudy], title: str, capacity: int | None = None) -> str:
    """The same of devices that were studied already."""
    body = [f"<h1>Memory of {escape(title)}</h1>", f'<p class="soft">{escape(_about(snapshot))}</p>']
    body += [f"<p>{escape(warning)}</p>" for warning in snapshot.warnings]
    comparison = compared(studies)
    if comparison:
        body.append(f"<p>{escape(comparison)}</p>")
    for study in studies:
        if len(snapshot.devices) > 1:
            body.append(f"<h2>Device {study.device.index}</h2>")
        body += _device(study, capacity)
    body.append(
        '<p class="soft">1 GiB is 1 073 741 824 bytes. Made with gpudash; paths and lines of source that stood in the '
        "snapshot are in this page.</p>"
    )
    return document(title, body)


def filled_bars(found: Explanation) -> str:
    """What filled the memory, as bars."""
    largest = max((part.bytes for part in found.parts), default=1)
    rows = "".join(
        f'<tr><td>{escape(part_name(part))}</td><td class="number">{format_bytes(part.bytes)}</td>'
        f'<td class="bar"><span class="fill" style="width: {100 * part.bytes / largest:.1f}%"></span></td></tr>'
        for part in found.parts
    )
    return f"<table>{rows}</table>"


def owners_table(found: Explanation) -> str:
    """Who allocated it."""
    head = (("own", True), ("total", True), ("blocks", True), ("per step", True), ("what", False), ("where", False))
    rows = [
        (
            format_bytes(owner.bytes),
            format_bytes(owner.total_bytes),
            format_count(owner.count),
            growth_text(owner.growth_per_step),
            escape(owner.category),
            escape(place(owner)) + (f"<br><code>{escape(owner.text)}</code>" if owner.text else ""),
        )
        for owner in found.owners
    ]
    shown = table(head, rows)
    if found.rest_owners:
        shown += f"<p>{format_bytes(found.rest_bytes)} by {others_text(found.rest_owners)}.</p>"
    return shown


def stack_details(found: Explanation) -> list[str]:
    """Stacks of the largest call sites, folded."""
    parts = []
    for owner in found.owners[:SHOWN_STACKS]:
        if not owner.stack:
            continue
        lines = "\n".join(_line(line) for line in owner.stack)
        parts.append(
            f"<details><summary>Stack of {escape(place(owner))}, {format_bytes(owner.bytes)}</summary>"
            f"<pre>{lines}</pre></details>"
        )
    return parts


def curve(history: History, moment: int, capacity: int | None = None) -> Scene | None:
    """Levels over events; ``None`` without events.

    Args:
        history: of the device.
        moment: that is marked.
        capacity: bytes that a what-if question asked about, drawn as a line that says so.
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
        items.append(Level(capacity, "capacity"))
        items.append(Note(0, capacity, f"what if: {format_bytes(capacity)}", right=4, down=-4))
    mark = Mark(moment + 1, "mark")
    aside: tuple[Anchor, int] = ("end", -5) if mark.place > count / 2 else ("start", 5)
    items += [
        mark,
        Note(mark.place, ABOVE * top, _moment_name(history, moment), "mark", *aside, down=12),
        Note(0, 0, "first event", down=18),
        Note(count + 1, 0, moment_text(history, history.last), anchor="end", down=18),
    ]
    return Scene(
        description=_text(history),
        across=Axis(0, count + 1),  # before the first event, and after each
        left=Axis(0, ABOVE * top, tuple((share * top, format_bytes(share * top)) for share in shares)),
        items=items,
        frame=Frame(height=260, left=76, right=12, top=12, bottom=30),
    )


def _about(snapshot: Snapshot) -> str:
    events = sum(len(device.trace) for device in snapshot.devices)
    kind = f"{snapshot.kind}, " if snapshot.kind else ""
    count = len(snapshot.devices)
    return f"{kind}{format_count(events)} events on {count} device{'s' if count != 1 else ''}."


def _device(study: DeviceStudy, capacity: int | None) -> list[str]:
    found = study.found
    parts = [f'<p class="cause">{escape(found.headline)}</p>', f"<p>{escape(found.request_words)}</p>"]
    sections = remedy_sections(found)
    if sections and not found.remedies and found.requested_bytes is None:
        parts.append(f"<p>{escape(found.remedies_note)}</p>")
        sections = []
    for title, rows in sections:
        parts += [f"<h3>{title}</h3>", "<ul>", *(f"<li>{escape(row)}</li>" for row in rows), "</ul>"]
    if study.outcome_text:
        parts += ["<h3>What if</h3>", f"<p>{escape(study.outcome_text)}</p>"]
    if study.ways:
        rows = [f"<li>{escape(row)}</li>" for row in remedy_rows(study.ways)]
        parts += [f"<p>{alternatives_title(study.ways)}:</p>", "<ul>", *rows, "</ul>"]
    drawn = curve(study.history, chosen_moment(study.history), capacity)
    if found.parts:
        parts += ["<h3>What filled it</h3>", filled_bars(found)]
    if drawn is not None:
        parts += ["<h3>When</h3>", svg(drawn), '<p class="soft">Light: reserved; dark: allocated.</p>']
    if found.owners:
        parts += ["<h3>Who allocated it</h3>", owners_table(found), *stack_details(found)]
    evidence = evidence_text(found.evidence)
    if evidence:
        parts.append(f'<p class="soft">Evidence: {escape(evidence)}</p>')
    return parts


def _line(line: StackLine) -> str:
    text = escape(f"{line.name}  {short(line.file) if line.is_library else line.file}:{line.line}")
    return f'<span class="library">{text}</span>' if line.is_library else text


def _text(history: History) -> str:
    most = format_bytes(int(history.allocated.max()))
    return f"Allocated and reserved memory over {history.count} events, at most {most} allocated"


def _area(level: NDArray[np.int64], kind: str) -> Area:
    """A filled curve; of each column the lowest and the highest value, in their order."""
    bounds = np.unique(np.linspace(0, len(level), COLUMNS + 1).astype(np.int64))[:-1]
    low, high = np.minimum.reduceat(level, bounds), np.maximum.reduceat(level, bounds)
    x = np.append(np.repeat(bounds, 2), len(level))
    y = np.append(np.stack((low, high), axis=1).ravel(), level[-1])
    return Area(x.astype(np.float64), y.astype(np.float64), kind)


def _bands(history: History) -> list[Band]:
    """The phases, of which the last may end with the last event, at the right edge."""
    shown = history.phases if len(history.phases) <= MOST_BANDS else ()
    wider = (history.count + 1) / history.count
    return [Band(band.begin_event * wider, band.end_event * wider, band.name, band.name) for band in shown]


def _moment_name(history: History, moment: int) -> str:
    if moment in history.ooms.tolist():
        return "OOM"
    return "peak" if moment == history.peak else "here"
