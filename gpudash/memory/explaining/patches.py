"""An explanation's changes to a program, as a unified diff for ``patch`` and ``git apply``.

A diff must match the file exactly: there is none if the file has changed since the explanation, is not UTF-8, or has a
name that diffs cannot contain.
"""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path, PurePosixPath

from gpudash.system.foreign_files import read_regular
from gpudash.telemetry.explanation import Explanation, Remedy, Rewrite

PATCH_NAME = "fix.patch"
"""Name of the file in a report's folder for ``patch -p0`` in the program's folder."""

MOST_SOURCE_BYTES = 4 * 2**20
"""Largest source file for which a diff is created."""

CONTEXT_LINES = 3

NO_NEWLINE = b"\n\\ No newline at end of file\n"
"""Marker in a diff after a last line without a newline (diffutils, "Incomplete Lines")."""


_HUNK = re.compile(r"@@ -(?P<begin>\d+)(?:,(?P<count>\d+))? \+\d+(?:,(?P<after>\d+))? @@")


def patching(command: Sequence[str], patch: Path) -> list[str]:
    """The command that patches a program, in its folder, before it runs.

    Args:
        command: command that runs the program.
        patch: a file with the diff.
    """
    return ["sh", "-c", 'patch -p0 -s -N --batch < "$0" && exec "$@"', str(patch), *command]


def with_patches(found: Explanation, folder: str) -> Explanation:
    """``found`` with a diff for every remedy that rewrites the program, with paths relative to its folder.

    Args:
        found: the explanation; its existing diffs are relative to the root.
        folder: absolute path.
    """

    def read(file: str) -> bytes:
        return read_regular(file, MOST_SOURCE_BYTES)

    def patched(remedy: Remedy) -> Remedy:
        if remedy.rewrites:
            return replace(remedy, patch=unified_diff(remedy.rewrites, folder, read))
        if remedy.patch:
            return replace(remedy, patch=in_folder(remedy.patch, folder, read))
        return remedy

    found = replace(found, savings=tuple(map(patched, found.savings)))
    return found.with_remedies(tuple(map(patched, found.remedies)), found.remedies_note)


def unified_diff(rewrites: Sequence[Rewrite], folder: str, read: Callable[[str], bytes]) -> str:
    """A diff with paths relative to a folder; "" if one of the rewrites is impossible.

    Args:
        rewrites: edits of any files.
        folder: absolute path; files outside of it get no diff.
        read: returns the content of a file, or raises OSError or ValueError.
    """
    parts = []
    for file in dict.fromkeys(rewrite.file for rewrite in rewrites):
        name = _relative(file, folder)
        try:
            before = read(file)
            after = _rewritten(before, [rewrite for rewrite in rewrites if rewrite.file == file])
        except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
            return ""
        if name is None or after is None:
            return ""
        parts.append(_of_file(name, before, after))
    return b"".join(parts).decode()


def in_folder(patch: str, folder: str, read: Callable[[str], bytes]) -> str:
    """A diff of one file with a path relative to the root, converted to one relative to a folder.

    The result is "" if a diff cannot contain the path, or the file has changed. Trailing blanks and line ends of its
    lines stay as they are in the file.

    Args:
        patch: the diff.
        folder: absolute path.
        read: as in `unified_diff`.
    """
    old, _new, *hunks = patch.split("\n")
    file = f"/{old.removeprefix('--- ')}"
    name = _relative(file, folder)
    try:
        content = read(file)
        after = _with_hunks(content.decode("utf-8"), hunks)
    except (OSError, ValueError):
        return ""
    if name is None or after is None:
        return ""
    return _of_file(name, content, after.encode()).decode()


def merged(one: str, other: str, read: Callable[[str], bytes]) -> str:
    """Two diffs of the same text as one; "" if they change the same lines, or the text has changed.

    Args:
        one, other: with paths relative to a folder.
        read: returns the content of such a file, or raises OSError or ValueError.
    """
    by_file: dict[str, list[Sequence[str]]] = {}
    for name, hunks in (*_files_of(one), *_files_of(other)):
        by_file.setdefault(name, []).append(hunks)
    parts = []
    for name, diffs in by_file.items():
        try:
            before = read(name)
            after = before.decode("utf-8")
            for hunks in _disjoint(diffs):
                changed = _with_hunks(after, hunks)
                if changed is None:
                    return ""
                after = changed
        except (OSError, ValueError):
            return ""
        parts.append(_of_file(name, before, after.encode()))
    return b"".join(parts).decode()


def edited_files(patch: str, read: Callable[[str], bytes]) -> dict[str, bytes]:
    """The changed files of a diff, by the names in it, with their new content.

    Args:
        patch: diff with paths relative to a folder.
        read: returns the content of such a file, or raises OSError or ValueError.

    Raises:
        ValueError: one sentence, if a file cannot be read or does not match the diff.
    """
    found = {}
    for name, hunks in _files_of(patch):
        try:
            after = _with_hunks(read(name).decode("utf-8"), hunks)
        except OSError as error:
            raise ValueError(f"{name} cannot be read: {error.strerror or error}.") from None
        except ValueError:
            raise ValueError(f"{name} is no text in UTF-8, so that it cannot be changed here.") from None
        if after is None:
            raise ValueError(f"{name} has other lines than the run had; run it once more for a change that fits it.")
        found[name] = after.encode()
    if not found:
        raise ValueError("There is no change of a file to be made.")
    return found


@dataclass(frozen=True)
class LineChange:
    """Lines that a diff removes from a file, and the lines that replace them.

    Attributes:
        file: name in the diff.
        line: number of the first removed line, or of the line after which lines are added.
        removed, added: the lines; one of the two may be empty.
    """

    file: str
    line: int
    removed: tuple[str, ...]
    added: tuple[str, ...]


def line_changes(patch: str) -> list[LineChange]:
    """The changes in a diff, in its order."""
    found = []
    for name, hunks in _files_of(patch):
        for begin, end, rows in _changes(hunks):
            removed = tuple(row[1:] for row in rows if row[0] == "-")
            added = tuple(row[1:] for row in rows if row[0] == "+")
            found.append(LineChange(name, begin + (end > begin), removed, added))
    return found


def kept_lines(patch: str) -> dict[tuple[str, int], str]:
    """The original lines that a diff contains: file and number → text."""
    found = {}
    for name, hunks in _files_of(patch):
        number = 0
        for row in hunks:
            hunk = _HUNK.match(row)
            if hunk is not None:
                number = int(hunk["begin"])
            elif row[:1] != "+":
                found[name, number] = row[1:]
                number += 1
    return found


def _files_of(patch: str) -> Iterator[tuple[str, Sequence[str]]]:
    """The files in a diff, with the rows of their hunks."""
    name = ""
    rows: list[str] = []
    old_left = new_left = 0
    for row in patch.split("\n"):
        if row.startswith("\\"):
            continue  # the row before has no newline
        # A removed line may look like a header: the counts say what belongs to a hunk.
        if old_left > 0 or new_left > 0:
            old_left -= row[:1] != "+"
            new_left -= row[:1] != "-"
            rows.append(row)
        elif row.startswith("--- "):
            if rows:
                yield name, rows
            name, rows = row.removeprefix("--- ").rstrip("\t"), []
        elif hunk := _HUNK.match(row):
            old_left, new_left = int(hunk["count"] or 1), int(hunk["after"] or 1)
            rows.append(row)
    if rows:
        yield name, rows


def _disjoint(diffs: Sequence[Sequence[str]]) -> Iterator[Sequence[str]]:
    """The changes in several diffs of one text, as hunks without context, last first so that line numbers stay valid.

    Raises:
        ValueError: if two of them change the same lines.
    """
    changes = sorted((change for rows in diffs for change in _changes(rows)), key=lambda change: change[:2])
    for (_begin, end, _rows), (begin, _end, _later) in pairwise(changes):
        if begin < end:
            raise ValueError("Two changes of the same line.")
    for begin, end, rows in reversed(changes):
        first = begin + (end > begin)
        yield [f"@@ -{first},{end - begin} +{first},0 @@", *rows]


def _changes(rows: Sequence[str]) -> Iterator[tuple[int, int, list[str]]]:
    """Runs of changed lines: the positions before the first and after the last old line, and their rows."""
    run: list[str] = []
    at = begin = 0
    for row in [*rows, " "]:
        if row[:1] in ("-", "+"):
            if not run:
                begin = at
            run.append(row)
            at += row[0] == "-"
            continue
        if run:
            yield begin, at, run
            run = []
        hunk = _HUNK.match(row)
        if hunk is None:
            at += 1
        else:
            at = int(hunk["begin"]) - (hunk["count"] != "0")


def _with_hunks(text: str, rows: Sequence[str]) -> str | None:
    """A text with a diff's hunks applied, whatever its line ends; ``None`` if its lines do not match."""
    if "\r" in text.replace("\r\n", ""):
        return None  # to Python that is the end of a line, and to a diff it is not
    lines = [f"{line}\n" for line in text.split("\n")]
    lines[-1] = lines[-1].removesuffix("\n")  # the rest after the last newline, possibly ""
    ending = "\n"
    if "\r\n" in text:
        ending = "\r\n"
    after: list[str] = []
    at = 0
    for row in filter(None, rows):
        hunk = _HUNK.match(row)
        if hunk is not None:
            # Without old lines, a hunk's number is that of the line before it.
            begin = int(hunk["begin"]) - (hunk["count"] != "0")
            after += lines[at:begin]
            at = begin
            continue
        if row[0] == "+":
            after.append(f"{row[1:]}{ending}")
            continue
        if at >= len(lines) or lines[at].rstrip() != row[1:].rstrip():
            return None
        if row[0] == " ":
            after.append(lines[at])
        at += 1
    after += lines[at:]
    return "".join(line if line.endswith("\n") else f"{line}{ending}" for line in after[:-1]) + "".join(after[-1:])


def _relative(file: str, folder: str) -> str | None:
    """The path of a file in a folder; ``None`` if a diff cannot contain it."""
    path = PurePosixPath(file)
    if not path.is_relative_to(folder):
        return None
    name = str(path.relative_to(folder))
    spelt = name.isprintable() and not set(name) & set('"\\') and ".." not in path.parts
    if spelt:
        return name
    return None


def _rewritten(content: bytes, rewrites: Sequence[Rewrite]) -> bytes | None:
    """The content after all edits; ``None`` if it differs from the explained text.

    Raises:
        SyntaxError, ValueError: if it is not Python in UTF-8.
    """
    content.decode("utf-8")
    lines = content.split(b"\n")
    if any(b"\r" in line.removesuffix(b"\r") for line in lines):
        return None  # to Python that is the end of a line, and to a diff it is not
    begins = [0]
    for line in lines:
        begins.append(begins[-1] + len(line) + 1)
    after = content
    for rewrite in sorted(rewrites, key=lambda one: (one.line, one.column), reverse=True):
        if rewrite.end_line > len(lines):
            return None
        begin, end = begins[rewrite.line - 1] + rewrite.column, begins[rewrite.end_line - 1] + rewrite.end_column
        there = content[begin:end].decode("utf-8")
        if ast.unparse(ast.parse(f"({there})", mode="eval")) != rewrite.before:
            return None
        after = after[:begin] + rewrite.after.encode() + after[end:]
    ast.parse(after)
    return after


def _of_file(name: str, before: bytes, after: bytes) -> bytes:
    header = [text.encode() + b"\n" for text in (f"--- {name}", f"+++ {name}")]
    if " " in name:  # a tab ends the name
        header = [line[:-1] + b"\t\n" for line in header]
    ran = difflib.diff_bytes(difflib.unified_diff, _lines(before), _lines(after), n=CONTEXT_LINES, lineterm=b"\n")
    body = [line if line.endswith(b"\n") else line + NO_NEWLINE for line in list(ran)[2:]]
    return b"".join([*header, *body])


def _lines(content: bytes) -> list[bytes]:
    """Lines with their newlines; the last may have none."""
    found = [line + b"\n" for line in content.split(b"\n")]
    last = found.pop()[:-1]
    if last:
        return [*found, last]
    return found
