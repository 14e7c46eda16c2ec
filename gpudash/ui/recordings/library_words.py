"""What the library says of a recording."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime

from gpudash.devices.names import SIMULATED, shown_name
from gpudash.session.recordings.library import LibraryEntry
from gpudash.units import format_bytes, format_duration

STATUS_WORDS = {
    "out_of_memory": "out of memory",
    "cancelled": "stopped",
    "running": "broken off",
    "watched": "only watched",
}
"""A run's status, where it is not said as it is kept. "running" without a session that writes it was killed."""

ALARMING = ("out of memory", "failed", "damaged")
"""Statuses that are shown in the colour of trouble."""

_MOMENT = re.compile(r"^\d{4}-\d\d-\d\d-\d{6}-")

UNREAD = "…"
UNKNOWN = "–"


def status_of(entry: LibraryEntry) -> str:
    """How the recording ended, in a word or two."""
    facts = entry.facts
    if facts is None:
        return UNREAD
    if entry.written:
        return "recording now"
    if not facts.status:
        return "damaged"
    return STATUS_WORDS.get(facts.status, facts.status)


def short_title(entry: LibraryEntry) -> str:
    """What the user calls it, else its file's name without the moment, which stands beside it, and the ending."""
    return entry.title if entry.title != entry.path.stem else _MOMENT.sub("", entry.title) or entry.title


def date_of(entry: LibraryEntry) -> str:
    """When it began, in local time."""
    return f"{datetime.fromtimestamp(entry.began_s).astimezone():%Y-%m-%d %H:%M:%S}"


def minute_of(entry: LibraryEntry) -> str:
    """When it began, to the minute."""
    return date_of(entry)[:16]


def workload_of(entry: LibraryEntry) -> str:
    """What ran."""
    if entry.facts is None:
        return UNREAD
    return ", ".join(entry.facts.workloads) or UNKNOWN


def device_of(entry: LibraryEntry) -> str:
    """Where it ran."""
    if entry.facts is None:
        return UNREAD
    return ", ".join(shown_name(device) for device in entry.facts.devices) or UNKNOWN


def peak_of(entry: LibraryEntry) -> str:
    """Its peak memory."""
    if entry.facts is None:
        return UNREAD
    return UNKNOWN if entry.facts.peak_bytes is None else format_bytes(entry.facts.peak_bytes)


def length_of(entry: LibraryEntry) -> str:
    """How long it is."""
    if entry.facts is None:
        return UNREAD
    return UNKNOWN if entry.facts.duration_s is None else format_duration(entry.facts.duration_s)


def details_of(entry: LibraryEntry) -> list[tuple[str, str]]:
    """(name, value) of everything that is known of one recording."""
    facts = entry.facts
    rows = [
        ("Began", date_of(entry)),
        ("Workload", workload_of(entry)),
        ("Device", device_of(entry)),
        ("Status", status_of(entry)),
        ("Peak memory", peak_of(entry)),
        ("Length", length_of(entry)),
        ("Size on disk", format_bytes(entry.bytes)),
        ("File", str(entry.path)),
    ]
    if facts is not None and facts.simulated and SIMULATED not in rows[2][1]:
        rows.insert(3, ("Note", SIMULATED))
    if facts is not None and facts.locked:
        rows.append(("Locked", "It is not deleted, and not tidied away when there are too many."))
    if facts is not None and facts.damage:
        rows.append(("Damage", facts.damage))
    return rows


def named(entries: Sequence[LibraryEntry]) -> str:
    """One recording by its name, several by their number."""
    return entries[0].title if len(entries) == 1 else f"{len(entries)} Recordings"
