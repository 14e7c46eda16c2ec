"""The table of budgets in Markdown: ``python table.py HEAD_FOLDER [BASE_FOLDER]``.

Reads what ``check.sh`` has written of a commit, and of the one that it is compared with: reports of
``pytest --gpu-memory-report`` and documents of ``gpudash estimate --json``. Needs the standard library alone.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MOST_ROWS = 200
"""Rows of the table: a comment has at most 65,536 characters."""

LONGEST_TEXT = 300
"""Characters of a name or a sentence that are shown."""

VERDICTS = {
    "passed": "within",
    "ran out": "**out of memory**",
    "grown": "**more than the baseline**",
    "over": "**more than the limit**",
    "failed": "failed",
}


@dataclass(frozen=True)
class Row:
    """A test or a prediction.

    Attributes:
        name: of it.
        bytes: the peak of a test, or what a prediction needs; ``None`` where that is not known.
        outcome: a key of `VERDICTS`.
        message: what was found.
    """

    name: str
    bytes: int | None
    outcome: str
    message: str


def rows_of(folder: Path) -> dict[str, Row]:
    """What the files of a folder tell, by name; what cannot be read is left out."""
    found: dict[str, Row] = {}
    for file in sorted(folder.glob("*.json")):
        try:
            document = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        rows = _of_tests(document) if "tests" in document else _of_estimate(document, file.stem)
        for row in rows:
            found[row.name] = row
    return found


def _of_tests(document: dict[str, Any]) -> list[Row]:
    return [Row(test["name"], test["peak_bytes"], test["outcome"], test["message"]) for test in document["tests"]]


def _of_estimate(document: dict[str, Any], stem: str) -> list[Row]:
    name = document.get("workload") or stem
    # Several predictions of one function differ by their flags, which the document has not.
    name = f"{name} ({stem})"
    error = document.get("error")
    if error:
        return [Row(name, None, "failed", error["message"])]
    outcome = "passed"
    message = ""
    if (document.get("baseline") or {}).get("grown"):
        outcome = "grown"
        message = f"more than the baseline's {size_text(document['baseline']['before_bytes'])}"
    if document.get("within_max") is False:
        outcome = "over"
        message = f"more than {size_text(document['max_bytes'])}"
    return [Row(name, document.get("needed_bytes"), outcome, message)]


def table(head: dict[str, Row], base: dict[str, Row] | None) -> str:
    """The table, and under it what was found of those beyond their budgets.

    Args:
        head: of the commit.
        base: of the one that it is compared with; ``None`` for none.
    """
    beyond = [row for row in head.values() if row.outcome != "passed"]
    verdict = "Every one is within its budget."
    if beyond:
        verdict = f"{len(beyond)} of {len(head)} are beyond their budgets or failed."
    if not head:
        verdict = "Nothing was measured: no test has a `gpu_memory` mark, and nothing was predicted."
    lines = ["### GPU memory", "", verdict, ""]
    if head and base is None:
        lines += ["| what | memory | budget |", "|---|---:|---|"]
    elif head:
        lines += ["| what | base | now | difference | budget |", "|---|---:|---:|---:|---|"]
    # What changed most comes first: the rest may be cut off.
    ordered = sorted(
        head.values(), key=lambda row: (row.outcome == "passed", -abs(_difference(row, base) or 0), row.name)
    )
    for row in ordered[:MOST_ROWS]:
        verdict = VERDICTS.get(row.outcome, escaped(row.outcome))
        if base is None:
            lines.append(f"| {escaped(row.name)} | {size_text(row.bytes)} | {verdict} |")
            continue
        before = base.get(row.name)
        was = "new" if before is None else size_text(before.bytes)
        lines.append(f"| {escaped(row.name)} | {was} | {size_text(row.bytes)} | {change_text(row, base)} | {verdict} |")
    if len(ordered) > MOST_ROWS:
        lines += ["", f"{len(ordered) - MOST_ROWS} more are not shown."]
    gone = sorted(set(base or {}) - set(head))
    if gone:
        lines += ["", f"Only the base has: {', '.join(map(escaped, gone[:MOST_ROWS]))}."]
    said = [row for row in beyond if row.message]
    if said:
        lines += ["", *(f"* {escaped(row.name)}: {escaped(row.message.splitlines()[0])}" for row in said[:MOST_ROWS])]
    lines += ["", "Simulated or predicted by gpudash, without a GPU."]
    return "\n".join([*lines, ""])


def _difference(row: Row, base: dict[str, Row] | None) -> int | None:
    before = (base or {}).get(row.name)
    if before is None or before.bytes is None or row.bytes is None:
        return None
    return row.bytes - before.bytes


def change_text(row: Row, base: dict[str, Row]) -> str:
    """The difference to the base, such as "+50 MiB (+190 %)"; "" where there is none to be told."""
    difference = _difference(row, base)
    if difference is None:
        return ""
    if not difference:
        return "0"
    before = base[row.name].bytes
    sign = "−" if difference < 0 else "+"
    text = f"{sign}{size_text(abs(difference))}"
    if before:
        text += f" ({difference / before * 100:+.1f} %)"
    return text


def size_text(size: int | None) -> str:
    """A size as people read it."""
    if size is None:
        return "not known"
    value = float(size)
    for unit in ("B", "KiB", "MiB"):
        if value < 1000:
            return f"{value:.4g} {unit}"
        value /= 1024
    return f"{value:.2f} GiB"


def escaped(text: str) -> str:
    """Text that is not ours, in which Markdown and HTML see nothing but text."""
    one_line = " ".join(text.split())[:LONGEST_TEXT]
    one_line = one_line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    # A name with an at sign would tell somebody of every run.
    return re.sub(r"([\\`*_{}\[\]()#|~!@])", lambda mark: f"&#{ord(mark[1])};", one_line)


def main(arguments: list[str]) -> int:
    """Print the table; the exit code."""
    if not 1 <= len(arguments) <= 2:
        sys.stderr.write("Write: python table.py HEAD_FOLDER [BASE_FOLDER]\n")
        return 2
    head = rows_of(Path(arguments[0]))
    base = None
    if len(arguments) == 2:
        base = rows_of(Path(arguments[1]))
    sys.stdout.write(table(head, base))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
