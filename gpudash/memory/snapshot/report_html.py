"""A snapshot as one page of HTML that needs nothing but itself: no script, no font, no picture from elsewhere.

The curve of a report: allocated and reserved memory over the events, as a drawing within the page.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

import numpy as np
from numpy.typing import NDArray

from gpudash.memory.explaining.call_sites import SourceLine, no_source
from gpudash.memory.explaining.explanation_text import (
    evidence_words,
    growth_words,
    others_words,
    part_name,
    place,
    remedies_title,
    remedy_lines,
    remedy_rows,
    ways_title,
)
from gpudash.memory.snapshot.explaining import chosen_moment
from gpudash.memory.snapshot.history.history import History, moment_words
from gpudash.memory.snapshot.history.model import Snapshot
from gpudash.memory.snapshot.sidecar import NOTHING, Sidecar
from gpudash.memory.snapshot.summary import Study, compared, studied
from gpudash.telemetry.explanation import Explanation, StackLine, short
from gpudash.units import format_bytes, format_count

STYLE = """
:root { color-scheme: light dark; --text: #1b1f24; --soft: #57606a; --back: #ffffff; --line: #d0d7de; --bar: #2f6fb7;
  --allocated: #2f6fb7; --reserved: #b9cfe8; --mark: #b42318; }
@media (prefers-color-scheme: dark) { :root { --text: #e6edf3; --soft: #9aa5b1; --back: #14181d; --line: #343b44;
  --bar: #6cabec; --allocated: #6cabec; --reserved: #2b4868; --mark: #ff8f80; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--back); max-width: 60rem;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.3rem; } h2 { font-size: 1.1rem; margin-top: 2rem; border-top: 1px solid var(--line);
  padding-top: 1rem; } h3 { font-size: 1rem; margin-bottom: .4rem; }
.cause { font-size: 1.15rem; font-weight: 600; } .soft { color: var(--soft); }
table { border-collapse: collapse; width: 100%; } th { text-align: left; color: var(--soft); font-weight: 500; }
td, th { padding: .15rem .8rem .15rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
td.bar { width: 45%; } .fill { display: block; height: .9rem; background: var(--bar); min-width: 1px; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; } details { margin: .3rem 0; } .library { color: var(--soft); }
svg { width: 100%; height: auto; } svg text { font-size: 12px; fill: var(--soft); } svg text.mark { fill: var(--mark); }
.grid { stroke: var(--line); } .reserved { fill: var(--reserved); } .allocated { fill: var(--allocated); }
.capacity { stroke: var(--mark); stroke-dasharray: 6 4; } .mark { stroke: var(--mark); } text.mark { stroke: none; }
.forward { fill: #3a9d5d; opacity: .1; } .backward { fill: #c77d1e; opacity: .12; }
.optimizer { fill: #8a56c2; opacity: .12; }
"""

SHOWN_STACKS = 12


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


def page(snapshot: Snapshot, studies: Sequence[Study], title: str, capacity: int | None = None) -> str:
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
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width"><title>{escape(title)}</title>'
        f"<style>{STYLE}</style></head><body>{''.join(body)}"
        '<p class="soft">1 GiB is 1 073 741 824 bytes. Made with gpudash; paths and lines of source that stood in the '
        "snapshot are in this page.</p></body></html>\n"
    )


def _about(snapshot: Snapshot) -> str:
    events = sum(len(device.trace) for device in snapshot.devices)
    kind = f"{snapshot.kind}, " if snapshot.kind else ""
    count = len(snapshot.devices)
    return f"{kind}{format_count(events)} events on {count} device{'s' if count != 1 else ''}."


def _device(study: Study, capacity: int | None) -> list[str]:
    found = study.found
    parts = [f'<p class="cause">{escape(found.headline)}</p>', f"<p>{escape(found.request_words)}</p>"]
    remedies = [line.strip() for line in remedy_lines(found)]
    if remedies and not found.remedies and found.requested_bytes is None:
        parts.append(f"<p>{escape(found.remedies_note)}</p>")
    elif remedies:
        parts += [
            f"<h3>{remedies_title(found)}</h3>",
            "<ul>",
            *(f"<li>{escape(line)}</li>" for line in remedies),
            "</ul>",
        ]
    if study.outcome_words:
        parts += ["<h3>What if</h3>", f"<p>{escape(study.outcome_words)}</p>"]
    if study.ways:
        rows = [f"<li>{escape(row)}</li>" for row in remedy_rows(study.ways)]
        parts += [f"<p>{ways_title(study.ways)}:</p>", "<ul>", *rows, "</ul>"]
    drawn = curve(study.history, chosen_moment(study.history), capacity)
    if found.parts:
        parts += ["<h3>What filled it</h3>", filled_bars(found)]
    if drawn:
        parts += ["<h3>When</h3>", drawn, '<p class="soft">Light: reserved; dark: allocated.</p>']
    if found.owners:
        parts += ["<h3>Who allocated it</h3>", owners_table(found), *stack_details(found)]
    evidence = evidence_words(found.evidence)
    if evidence:
        parts.append(f'<p class="soft">Evidence: {escape(evidence)}</p>')
    return parts


def table(head: Sequence[tuple[str, bool]], rows: Iterable[Sequence[str]]) -> str:
    """A table; of each column its title and whether it holds numbers. The cells are HTML already."""
    numbers = ['class="number"' if number else "" for _, number in head]
    titles = "".join(f"<th {kind}>{escape(title)}</th>" for (title, _), kind in zip(head, numbers, strict=True))
    body = "".join(
        f"<tr>{''.join(f'<td {kind}>{cell}</td>' for cell, kind in zip(row, numbers, strict=True))}</tr>"
        for row in rows
    )
    return f"<table><tr>{titles}</tr>{body}</table>"


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
            growth_words(owner.growth_per_step),
            escape(owner.category),
            escape(place(owner)) + (f"<br><code>{escape(owner.text)}</code>" if owner.text else ""),
        )
        for owner in found.owners
    ]
    shown = table(head, rows)
    if found.rest_owners:
        shown += f"<p>{format_bytes(found.rest_bytes)} by {others_words(found.rest_owners)}.</p>"
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


def _line(line: StackLine) -> str:
    text = escape(f"{line.name}  {short(line.file) if line.is_library else line.file}:{line.line}")
    return f'<span class="library">{text}</span>' if line.is_library else text


WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 960, 260, 76, 12, 12, 30
COLUMNS = 700
"""Of the curve: each shows the lowest and the highest of its events, so that no peak is lost."""

MOST_BANDS = 240
"""Bands that are drawn; of more only every so many would be seen."""


def curve(history: History, moment: int, capacity: int | None = None) -> str:
    """An SVG element; "" without events.

    Args:
        history: of the device.
        moment: that is marked.
        capacity: bytes that a what-if question asked about, drawn as a line that says so.
    """
    if not history.count:
        return ""
    top = max(int(history.reserved.max()), int(history.allocated.max()), capacity or 0, 1)
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(_words(history))}">',
        *_grid(top),
        _area(history.reserved, top, "reserved"),
        _area(history.allocated, top, "allocated"),
        *_bands(history),
    ]
    if capacity is not None:
        y = _y(capacity, top)
        parts.append(f'<line class="capacity" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT + 4}" y="{y - 4:.1f}">what if: {escape(format_bytes(capacity))}</text>')
    parts += [_mark(history, moment), *_ends(history), "</svg>"]
    return "".join(parts)


def _words(history: History) -> str:
    most = format_bytes(int(history.allocated.max()))
    return f"Allocated and reserved memory over {history.count} events, at most {most} allocated"


def _x(place: float, count: int) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * place / max(1, count)


def _y(size: float, top: int) -> float:
    return TOP + (HEIGHT - TOP - BOTTOM) * (1 - size / (1.05 * top))


def _area(level: NDArray[np.int64], top: int, name: str) -> str:
    """A filled curve; of each column the lowest and the highest value, in their order."""
    count = len(level)
    bounds = np.unique(np.linspace(0, count, COLUMNS + 1).astype(np.int64))[:-1]
    low, high = np.minimum.reduceat(level, bounds), np.maximum.reduceat(level, bounds)
    points = [f"{LEFT},{_y(0, top):.1f}"]
    for column, least, most in zip(bounds.tolist(), low.tolist(), high.tolist(), strict=True):
        x = _x(column, count)
        points += [f"{x:.1f},{_y(least, top):.1f}", f"{x:.1f},{_y(most, top):.1f}"]
    points += [f"{WIDTH - RIGHT},{_y(int(level[-1]), top):.1f}", f"{WIDTH - RIGHT},{_y(0, top):.1f}"]
    return f'<polygon class="{name}" points="{" ".join(points)}"/>'


def _bands(history: History) -> list[str]:
    shown = history.phases if len(history.phases) <= MOST_BANDS else ()
    found = []
    for band in shown:
        x, end = _x(band.begin_event, history.count), _x(band.end_event, history.count)
        found.append(
            f'<rect class="{band.name}" x="{x:.1f}" y="{TOP}" width="{max(0.5, end - x):.1f}" '
            f'height="{HEIGHT - TOP - BOTTOM}"><title>{band.name}</title></rect>'
        )
    return found


def _grid(top: int) -> list[str]:
    found = []
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = _y(share * top, top)
        found.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        found.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{format_bytes(share * top)}</text>')
    return found


def _mark(history: History, moment: int) -> str:
    x = _x(moment + 1, history.count + 1)
    name = "OOM" if moment in history.ooms.tolist() else "peak" if moment == history.peak else "here"
    anchor = "end" if x > WIDTH / 2 else "start"
    return (
        f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
        f'<text class="mark" x="{x + (-5 if anchor == "end" else 5):.1f}" y="{TOP + 12}" text-anchor="{anchor}">'
        f"{name}</text>"
    )


def _ends(history: History) -> list[str]:
    last = escape(moment_words(history, history.last))
    y = HEIGHT - BOTTOM + 18
    return [
        f'<text x="{LEFT}" y="{y}">first event</text>',
        f'<text x="{WIDTH - RIGHT}" y="{y}" text-anchor="end">{last}</text>',
    ]
