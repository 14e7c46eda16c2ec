"""A program's source annotated with what each line held when memory ran out, the path of what grows, and the change.

Reads the present file. If it has changed since the run, the lines stored with the run are shown instead: those of call
sites, and those around the change.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Literal

from gpudash.memory.allocator.trace import WORKSPACE
from gpudash.memory.explaining.call_sites import GROWS_SHARE
from gpudash.memory.explaining.patches import MOST_SOURCE_BYTES, LineChange, kept_lines, line_changes
from gpudash.memory.explaining.remedies import ordered
from gpudash.memory.explaining.whole_need import changes_the_run
from gpudash.memory.frames import Frame, is_library
from gpudash.memory.growth_rate import HeldLine
from gpudash.system.foreign_files import LONGEST_LINE, read_regular
from gpudash.telemetry.explanation import Explanation, Remedy, short

MOST_ROWS = 20_000
"""Most lines that are shown of a file."""

RowKind = Literal["line", "removed", "added", "gap"]


@dataclass(frozen=True)
class SourceRow:
    """A row of the page.

    Attributes:
        number: line number in the file; 0 for an added line or a gap.
        text: source without characters that Qt would take for a line break.
        kind: whether a change removes or adds the line; a gap stands for lines that were not stored.
        bytes: bytes that the line held.
        growth: bytes that it keeps from every step, on average; 0.0 for none.
        stride: steps from one from which it keeps something to the next.
        remark: what happened here, in two or three words.
    """

    number: int
    text: str
    kind: RowKind = "line"
    bytes: int = 0
    growth: float = 0.0
    stride: float = 1.0
    remark: str = ""


@dataclass(frozen=True)
class AnnotatedSource:
    """A file of a program.

    Attributes:
        file: path of the file.
        rows: rows to show.
        way: rows of the line that allocates what grows, and of the one that keeps it; ``None`` if they are the same or
            in other files.
        note: a caveat about the text, in a sentence; "" for none.
        front: the row to scroll to.
    """

    file: str
    rows: tuple[SourceRow, ...]
    way: tuple[int, int] | None = None
    note: str = ""
    front: int = 0

    @property
    def most_bytes(self) -> int:
        """Bytes of the line that held most."""
        return max((row.bytes for row in self.rows), default=0)

    @property
    def held_bytes(self) -> int:
        """Bytes of all lines."""
        return sum(row.bytes for row in self.rows)


def change_of(found: Explanation) -> Remedy | None:
    """The first of the remedies that changes the program's source, its command or its variables."""
    return next((remedy for remedy in ordered(found.remedies, found.verdict) if changes_the_run(remedy)), None)


def source_files(found: Explanation, change: Remedy | None, folder: str) -> list[str]:
    """Files of the program whose lines hold memory, the largest first, after the one that is changed."""
    sizes: dict[str, int] = defaultdict(int)
    # The changed file comes first, however much others hold.
    for change_of_file in _changes(change):
        sizes[_path(folder, change_of_file.file)] += found.capacity_bytes + 1
    for owner in found.owners:
        if owner.file is not None:
            sizes[owner.file] += owner.bytes
    sizes = {file: size for file, size in sizes.items() if is_own_file(file)}
    return sorted(sizes, key=lambda file: -sizes[file])


def read_source(
    found: Explanation,
    file: str,
    change: Remedy | None,
    folder: str,
    held: Mapping[int, HeldLine] | None = None,
) -> AnnotatedSource | None:
    """A file with the facts about its lines; ``None`` if it cannot be read and none of it was stored.

    Args:
        found: why memory ran out.
        file: one of `source_files`.
        change: the change to show in it.
        folder: the program's folder, to which paths of diffs are relative.
        held: what lines hold at another moment; ``None`` for the moment that is explained.
    """
    kept = dict.fromkeys(held or (), "")
    kept |= {number: line for number, line in _kept(found, file, change, folder) if number > 0}
    text: str | None = None
    why = f"{file} is not on this computer"
    try:
        text = read_regular(file, MOST_SOURCE_BYTES).decode("utf-8", "replace")
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:
        why = f"{short(file)} cannot be read"
        if isinstance(error, OSError) and error.strerror:
            why = f"{why}: {error.strerror}"
    if text is not None:
        lines = text.split("\n")
        known = {number: line for number, line in kept.items() if line}
        if all(number <= len(lines) and lines[number - 1].strip() == line.strip() for number, line in known.items()):
            if text.endswith("\n"):
                lines.pop()
            rows = [SourceRow(number, _shown(line)) for number, line in enumerate(lines[:MOST_ROWS], 1)]
            return _annotated(found, file, rows, change, folder, "", held)
        why = f"{short(file)} has changed since the run"
        kept = {number: _indented(number, line, lines) for number, line in kept.items()}
    if not kept:
        return None
    rows = list(_with_gaps(kept))
    return _annotated(found, file, rows, change, folder, f"{why}; these are the lines that the run kept.", held)


def held_source(file: str, held: Mapping[int, HeldLine]) -> AnnotatedSource | None:
    """A file with what its lines hold now; ``None`` if it cannot be read.

    Args:
        file: path of one of the program's own files.
        held: what lines hold.
    """
    try:
        lines = read_regular(file, MOST_SOURCE_BYTES).decode("utf-8", "replace").removesuffix("\n").split("\n")
    except (OSError, ValueError):
        return None
    rows = _with_held([SourceRow(number, _shown(line)) for number, line in enumerate(lines[:MOST_ROWS], 1)], held)
    front = max(range(len(rows)), key=lambda place: rows[place].bytes, default=0)
    return AnnotatedSource(file, tuple(rows), front=front)


def _annotated(
    found: Explanation,
    file: str,
    rows: Sequence[SourceRow],
    change: Remedy | None,
    folder: str,
    note: str,
    held: Mapping[int, HeldLine] | None,
) -> AnnotatedSource:
    fastest = 0.0
    if held is None:
        held = _held_in(found, file)
        fastest = max((one.bytes_per_step for one in found.growing), default=0.0)
    made = []
    for row in _with_held(rows, held, fastest):
        remark = ""
        if (
            row.number
            and found.requested_bytes is not None
            and (file, row.number) == (found.where.file, found.where.line)
        ):
            remark = "stopped here"
        made.append(replace(row, remark=remark))
    grows = {row.number: row.growth for row in made if row.growth}
    changes = [one for one in _changes(change) if _path(folder, one.file) == file]
    made = _with_changes(made, changes)
    way = _way(made, grows)
    heaviest = max(range(len(made)), key=lambda place: made[place].bytes, default=0)
    front = next((place for place, row in enumerate(made) if row.kind != "line" and row.kind != "gap"), heaviest)
    if way is not None:
        front = min(way)
    return AnnotatedSource(file, tuple(made), way, note, front)


def _with_held(rows: Sequence[SourceRow], held: Mapping[int, HeldLine], fastest: float = 0.0) -> list[SourceRow]:
    """``rows`` with what their lines hold, and what they keep unless that is negligible.

    Args:
        rows: the rows.
        held: what lines hold.
        fastest: the most that a line of another file keeps of a step.
    """
    fastest = max([fastest, *(one.growth for one in held.values())])
    made = []
    for row in rows:
        one = held.get(row.number, HeldLine(0))
        growth = one.growth
        if growth < GROWS_SHARE * fastest:
            growth = 0.0
        made.append(replace(row, bytes=one.bytes, growth=growth, stride=one.stride))
    return made


def _held_in(found: Explanation, file: str) -> Mapping[int, HeldLine]:
    """What the lines of a file held when memory ran out."""
    sizes: dict[int, int] = defaultdict(int)
    for owner in found.owners:
        # This line was only the first to need a workspace; it does not hold it.
        if owner.file == file and owner.line is not None and owner.category != WORKSPACE:
            sizes[owner.line] += owner.bytes
    held = {line: HeldLine(size) for line, size in sizes.items()}
    for one in found.growing:
        if one.file == file:
            held[one.line] = HeldLine(sizes.get(one.line, 0), one.bytes_per_step, one.stride)
    return held


def _with_changes(rows: Sequence[SourceRow], changes: Sequence[LineChange]) -> list[SourceRow]:
    """``rows`` with added lines below the lines they replace."""
    removed = {change.line + place for change in changes for place in range(len(change.removed))}
    added = {change.line + max(0, len(change.removed) - 1): change.added for change in changes}
    made = []
    for row in rows:
        if row.number in removed:
            row = replace(row, kind="removed")
        made.append(row)
        if row.number:
            made += [SourceRow(0, _shown(text), "added") for text in added.get(row.number, ())]
    return made


def _way(rows: Sequence[SourceRow], grows: Mapping[int, float]) -> tuple[int, int] | None:
    """The rows of the fastest growing line and of the first one that a change removes."""
    kept_at = next((place for place, row in enumerate(rows) if row.kind == "removed"), None)
    if kept_at is None or not grows:
        return None
    fastest = max(grows, key=lambda number: grows[number])
    made_at = next((place for place, row in enumerate(rows) if row.number == fastest), None)
    if made_at is None or made_at == kept_at:
        return None
    return made_at, kept_at


def _kept(found: Explanation, file: str, change: Remedy | None, folder: str) -> Iterator[tuple[int, str]]:
    """A file's lines as stored with the run: those of call sites, without indentation, and those of a diff."""
    if file == found.where.file and found.where.line is not None and found.where.text:
        yield found.where.line, found.where.text
    for owner in found.owners:
        if owner.file == file and owner.line is not None and owner.text:
            yield owner.line, owner.text
    for growth in found.growing:
        if growth.file == file and growth.text:
            yield growth.line, growth.text
    if change is not None:
        for (name, number), text in kept_lines(change.patch).items():
            if _path(folder, name) == file:
                yield number, text.rstrip("\r")


def _indented(number: int, line: str, lines: Sequence[str]) -> str:
    """A line of a call site, which is stored without its indentation, with that of the same line nearby in a file.

    Args:
        number: the line's number in the run.
        line: the line as stored.
        lines: the file's lines now.
    """
    if line[:1].isspace():
        return line
    same = [place for place, text in enumerate(lines) if text.strip() == line.strip()]
    if not same:
        return line
    return lines[min(same, key=lambda place: abs(place + 1 - number))]


def _with_gaps(kept: Mapping[int, str]) -> Iterator[SourceRow]:
    before = 0
    for number in sorted(kept):
        if number > before + 1:
            yield SourceRow(0, "…", "gap")
        yield SourceRow(number, _shown(kept[number]))
        before = number


def _changes(change: Remedy | None) -> Sequence[LineChange]:
    if change is None:
        return ()
    return line_changes(change.patch)


def _path(folder: str, name: str) -> str:
    return str(PurePosixPath(folder or "/") / name)


def is_own_file(file: str) -> bool:
    """Whether a file is the program's own Python file: names in a recording are untrusted."""
    return file.startswith("/") and file.endswith(".py") and not is_library(Frame(file, 0, ""))


def _shown(text: str) -> str:
    """A line with anything replaced that Qt or a terminal would take for a line break or a command."""
    text = text.removesuffix("\r")[:LONGEST_LINE]
    return "".join(letter if letter == "\t" or letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)
