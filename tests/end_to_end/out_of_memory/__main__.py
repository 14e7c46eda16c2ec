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

HEADS = ("what fills the memory", "what is said of it", "the first remedy", "and then", "on the stand-in")
"""Of the table's columns: the last one is written with ``--standin``, the others without."""

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
    standin = options.standin
    if standin:
        # the programs run in folders of their own; not resolved, which would lead out of a virtual environment
        standin = str(Path.cwd() / standin)
    rows = []
    for kind in KINDS:
        if options.names and kind.name not in options.names:
            continue
        with tempfile.TemporaryDirectory() as folder:
            row = tried(kind, Path(folder), os.environ, standin)
        rows.append(row)
        sys.stdout.write(f"{_line(row)}\n")
        sys.stdout.flush()
        if options.guide is not None:
            _write(options.guide, row, on_standin=bool(options.standin))
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


def _write(page: Path, row: Tried, *, on_standin: bool) -> None:
    """Put a kind into the table between its marks; the others keep their rows, and it what the other machine gave."""
    text = page.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN, 1)
    table, after = rest.split(END, 1)
    rows = [line.removeprefix("| ").removesuffix(" |").split(" | ") for line in table.splitlines() if line[:2] == "| "]
    written = {cells[0]: [*cells, "", "", "", ""][: len(HEADS)] for cells in rows}
    cells = written.get(row.kind.what, [row.kind.what, "", "", "", ""])
    if on_standin:
        cells[4] = _on_standin(row)
    else:
        headline = "" if row.found is None else row.found.headline
        change = "" if row.remedy is None else " ".join(filter(None, (row.remedy.change, row.remedy.flags)))
        then = f"ran to its end ({HOW[row.how]})" if row.runs else "did not run to its end"
        # the page changes only with what is said
        cells[1:4] = [re.sub(r"\bpid \d+", "pid 4711", cell.replace("|", "/")) for cell in (headline, change, then)]
    written[row.kind.what] = cells
    lines = [f"| {' | '.join(HEADS)} |", "|---" * len(HEADS) + "|"]
    lines += [f"| {' | '.join(written[kind.what])} |" for kind in KINDS if kind.what in written]
    page.write_text("\n".join([before + BEGIN, "", *lines, "", END + after]), encoding="utf-8")


def _on_standin(row: Tried) -> str:
    """What came of a kind on the stand-in: its cause, and its first remedy."""
    if row.found is None and not row.how:
        return f"not explained: {row.problem.replace('|', '/')}"
    cause = "the cause"
    if row.found is None:
        cause = "the cause and what to do, in the sentence at its end"
    if not row.cause_is_right:
        cause = "another cause"
    then = "does not run to its end"
    if row.runs:
        then = "runs to its end"
    return f"{cause}; {then}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
