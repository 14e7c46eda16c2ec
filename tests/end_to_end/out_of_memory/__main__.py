"""``python -m tests.end_to_end.out_of_memory [NAME ...] [--guide FILE]``: tries the kinds, writes the guide's table."""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.end_to_end.out_of_memory.applying import Tried, tried
from tests.end_to_end.out_of_memory.kinds import KINDS

BEGIN, END = "<!-- kinds of out-of-memory -->", "<!-- end of the kinds -->"
"""Between them stands the table in the guide."""

HOW = {
    "edit": "the diff, applied",
    "variable": "the variable, set",
    "edit and variable": "the diff, applied, and the variable, set",
    "card": "on that card",
    "alone": "run alone",
}


def main(arguments: Sequence[str]) -> int:
    """Try the kinds; 0 when every cause was right and every first remedy worked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="of the programs; all of them by default")
    parser.add_argument("--guide", type=Path, help="the page of the guide whose table is written")
    parser.add_argument("--standin", default="", help="a Python with torch for CUDA: try them on its stand-in")
    options = parser.parse_args(arguments)
    rows = []
    for kind in KINDS:
        if options.names and kind.name not in options.names:
            continue
        with tempfile.TemporaryDirectory() as folder:
            row = tried(kind, Path(folder), os.environ, options.standin)
        rows.append(row)
        sys.stdout.write(f"{_line(row)}\n")
        sys.stdout.flush()
        if options.guide is not None:
            _write(options.guide, row)
    causes, remedies = sum(row.cause_is_right for row in rows), sum(row.runs for row in rows)
    summary = f"{causes} of {len(rows)} causes right, {remedies} of {len(rows)} first remedies ran to the end."
    sys.stdout.write(f"{summary}\n")
    return 0 if causes == remedies == len(rows) else 1


def _line(row: Tried) -> str:
    marks = f"{'cause right' if row.cause_is_right else 'CAUSE WRONG'}, {'runs' if row.runs else 'DOES NOT RUN'}"
    lines = [f"{row.kind.name}: {marks} ({row.how or 'not applied'})"]
    if row.found is not None:
        lines.append(f"    {row.found.headline}")
    if row.remedy is not None:
        lines.append(f"    {row.remedy.change}  {row.remedy.flags}".rstrip())
    if row.problem:
        lines.append(f"    {row.problem}")
    return "\n".join(lines)


def _write(page: Path, row: Tried) -> None:
    """Put a kind into the table between its marks; the others keep their rows."""
    text = page.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN, 1)
    table, after = rest.split(END, 1)
    written = {line.split(" | ", 1)[0].removeprefix("| "): line for line in table.splitlines() if line.startswith("| ")}
    headline = "" if row.found is None else row.found.headline
    change = "" if row.remedy is None else " ".join(filter(None, (row.remedy.change, row.remedy.flags)))
    then = f"ran to its end ({HOW[row.how]})" if row.runs else "did not run to its end"
    cells = (row.kind.what, headline, change, then)
    line = f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"
    written[row.kind.what] = re.sub(r"\bpid \d+", "pid 4711", line)  # the page changes only with what is said
    lines = ["| what fills the memory | what is said of it | the first remedy | and then |", "|---|---|---|---|"]
    lines += [written[kind.what] for kind in KINDS if kind.what in written]
    page.write_text("\n".join([before + BEGIN, "", *lines, "", END + after]), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
