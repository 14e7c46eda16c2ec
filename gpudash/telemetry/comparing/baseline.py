"""A file of stored memory footprints, and the changes since.

The file is JSON: ``{"format": 1, "kind": "gpudash memory baseline", "entries": {NAME: {"bytes", "parts", "device"}}}``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpudash.system.files import written_whole
from gpudash.system.foreign_files import TooLargeError, read_regular
from gpudash.units import format_bytes, format_change

FORMAT = 1
KIND = "gpudash memory baseline"

LARGEST_FILE = 64 * 2**20
"""Largest baseline that is read, in bytes: thousands of tests with forty lines each stay below."""

LARGEST_BYTES = 2**62

TOLERANCE = 0.01
"""Growth that is allowed by default, as a share of the stored size."""

SHOWN_PARTS = 8
"""Rows that a table shows for each kind of part; those that changed most."""


class BaselineError(ValueError):
    """A baseline cannot be used: one sentence, with a remedy."""


@dataclass(frozen=True)
class Footprint:
    """Memory that something needs at its peak.

    Attributes:
        bytes: bytes on the device.
        parts: bytes of each part by its name, by kind ("category", "phase", "line", "piece").
        device: the device it was found on, in words.
    """

    bytes: int
    parts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    device: str = ""

    def to_json(self) -> dict[str, Any]:
        """JSON for `read_baselines`."""
        parts = {kind: dict(sizes) for kind, sizes in self.parts.items()}
        return {"bytes": self.bytes, "parts": parts, "device": self.device}

    @classmethod
    def from_json(cls, written: Any) -> Footprint:
        """Read the output of `to_json`.

        Raises:
            ValueError: if it is malformed; says where.
        """
        if not isinstance(written, dict):
            raise ValueError("is no object")
        parts, device = written.get("parts", {}), written.get("device", "")
        if not isinstance(parts, dict) or not all(isinstance(sizes, dict) for sizes in parts.values()):
            raise ValueError("has parts that are no objects")
        if not isinstance(device, str):
            raise ValueError("has a device that is no text")
        sizes = {kind: {name: _size(size) for name, size in found.items()} for kind, found in parts.items()}
        return cls(_size(written.get("bytes")), sizes, device)


def _size(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= LARGEST_BYTES:
        raise ValueError("has a size that is no count of bytes")
    return value


def read_baselines(path: Path) -> dict[str, Footprint]:
    """All footprints stored in a file, by name.

    Raises:
        BaselineError: if it cannot be read, is not a baseline, or is of a newer gpudash.
    """
    try:
        document = json.loads(read_regular(path, LARGEST_FILE))
    except TooLargeError:
        raise BaselineError(f"{path} is no baseline: it has more than {format_bytes(LARGEST_FILE)}.") from None
    except FileNotFoundError:
        raise BaselineError(f"There is no baseline {path}.") from None
    except OSError as error:
        raise BaselineError(f"The baseline {path} cannot be read: {error.strerror}.") from None
    except (ValueError, RecursionError):
        raise BaselineError(f"{path} is no baseline: it is no JSON, or cut off; write it anew.") from None
    if not isinstance(document, dict) or document.get("kind") != KIND:
        raise BaselineError(f"{path} is JSON but no memory baseline of gpudash; name another file.")
    if document.get("format") != FORMAT:
        written = document.get("format")
        is_newer = isinstance(written, int) and written > FORMAT
        way = "update gpudash" if is_newer else "write it anew"
        raise BaselineError(f"The baseline {path} has format {written!r}, and this gpudash reads {FORMAT}; {way}.")
    entries = document.get("entries")
    if not isinstance(entries, dict):
        raise BaselineError(f"The baseline {path} has no entries; write it anew.")
    found = {}
    for name, entry in entries.items():
        try:
            found[name] = Footprint.from_json(entry)
        except ValueError as error:
            raise BaselineError(f"The entry {name!r} of the baseline {path} {error}; write it anew.") from None
    return found


def write_baselines(path: Path, entries: Mapping[str, Footprint]) -> None:
    """Store ``entries``, whole or not at all; other entries in the file stay.

    Raises:
        BaselineError: if the existing file is not a baseline of this format, or cannot be written.
    """
    try:
        kept = {}
        if path.exists():
            kept = read_baselines(path)
        document = {
            "format": FORMAT,
            "kind": KIND,
            "entries": {name: entry.to_json() for name, entry in sorted({**kept, **entries}.items())},
        }
        text = json.dumps(document, indent=1, ensure_ascii=False)
        with written_whole(path) as part:
            part.write_text(f"{text}\n", encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise BaselineError(f"The baseline {path} cannot be written: {error.strerror}.") from None


@dataclass(frozen=True)
class PartChange:
    """A part before and after; 0 bytes if it did not exist."""

    kind: str
    name: str
    before: int
    after: int

    @property
    def difference(self) -> int:
        return self.after - self.before


@dataclass(frozen=True)
class FootprintChange:
    """A footprint compared with the stored one.

    Attributes:
        name: name of the entry.
        before, after: stored and present footprint.
        tolerance: allowed growth, as a share of the stored size.
    """

    name: str
    before: Footprint
    after: Footprint
    tolerance: float = TOLERANCE

    @property
    def difference(self) -> int:
        """Growth in bytes."""
        return self.after.bytes - self.before.bytes

    @property
    def grown(self) -> bool:
        """Whether it has grown by more than the tolerance."""
        return self.difference > self.tolerance * self.before.bytes

    @property
    def parts(self) -> tuple[PartChange, ...]:
        """The parts that changed, by kind, the largest change first."""
        found = []
        for kind in dict.fromkeys([*self.after.parts, *self.before.parts]):
            before, after = self.before.parts.get(kind, {}), self.after.parts.get(kind, {})
            changes = [
                PartChange(kind, name, before.get(name, 0), after.get(name, 0))
                for name in dict.fromkeys([*after, *before])
            ]
            found += sorted((one for one in changes if one.difference), key=lambda one: -abs(one.difference))
        return tuple(found)

    @property
    def summary(self) -> str:
        """How much more or less it needs, without the name."""
        if not self.difference:
            return "as the baseline says"
        way = "less"
        if self.difference > 0:
            way = "more"
        text = f"{format_bytes(abs(self.difference))} {way} than the baseline's {format_bytes(self.before.bytes)}"
        if self.before.bytes:
            text += f" ({self.difference / self.before.bytes:+.1%})".replace("%", " %")
        if self.difference > 0:
            text += f", {'beyond' if self.grown else 'within'} the tolerance of {self.tolerance * 100:g} %"
        if self.before.device and self.after.device and self.before.device != self.after.device:
            text += f"; the baseline is of {self.before.device}, this of {self.after.device}"
        return text

    @property
    def headline(self) -> str:
        """The verdict, in one sentence."""
        return f"{self.name} takes {format_bytes(self.after.bytes)}, {self.summary}."

    def rows(self) -> list[tuple[str, str, str, str]]:
        """A table of the changes: part, before, after and difference; the last row of a kind counts omitted parts."""
        shown: list[tuple[str, str, str, str]] = []
        for kind in dict.fromkeys(part.kind for part in self.parts):
            changed = [part for part in self.parts if part.kind == kind]
            shown += [
                (
                    f"{kind} {part.name}",
                    format_bytes(part.before),
                    format_bytes(part.after),
                    format_change(part.difference),
                )
                for part in changed[:SHOWN_PARTS]
            ]
            if len(changed) > SHOWN_PARTS:
                shown.append((f"{kind}: {len(changed) - SHOWN_PARTS} more", "", "", ""))
        return shown

    def to_json(self) -> dict[str, Any]:
        """The JSON of ``gpudash estimate --json``."""
        return {
            "name": self.name,
            "before_bytes": self.before.bytes,
            "after_bytes": self.after.bytes,
            "before_device": self.before.device,
            "tolerance": self.tolerance,
            "grown": self.grown,
            "changes": [
                {"kind": part.kind, "name": part.name, "before_bytes": part.before, "after_bytes": part.after}
                for part in self.parts
            ],
        }
