"""A torch.profiler trace in the terminal: its operators as a table, or as one JSON document."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gpudash.cli.terminal.output import (
    Exit,
    numbers,
    one_line,
    plain_table,
    print_json,
    print_notice,
    print_table,
    stdout,
    wait_for,
)

if TYPE_CHECKING:
    from gpudash.memory.profiler_trace.profile import TraceProfile

MOST_ROWS = 30
"""Maximum number of operators in the table; --json has all that are kept."""


def print_trace(path: Path, *, as_json: bool) -> int:
    """Print the operators of a trace.

    Raises:
        RequestError: if it cannot be read.
    """
    profile = _read(path)
    if as_json:
        document = profile.to_json()
        del document["timeline"]  # only the window draws it
        print_json({"file": str(path), "sentence": profile.sentence, **document})
        return Exit.FINISHED
    for text in profile.warnings:
        print_notice(text)
    _print(profile)
    return Exit.FINISHED


def _read(path: Path) -> TraceProfile:
    from gpudash.session.trackers.trace_opener import OpenedTrace

    opened = OpenedTrace(path)
    opened.start()
    try:
        return wait_for(opened, "gpudash open reads what prof.export_chrome_trace writes.")
    finally:
        opened.close()


def _print(profile: TraceProfile) -> None:
    from gpudash.memory.profiler_trace.operators import figure_text
    from gpudash.units import format_count

    console = stdout()
    console.print(f"{one_line(profile.name)}: {one_line(profile.sentence)}", soft_wrap=True)
    titles = {
        "calls": "calls",
        "cpu_self_seconds": "own CPU",
        "cpu_total_seconds": "total CPU",
        "device_self_seconds": "own GPU",
        "device_total_seconds": "total GPU",
        "cpu_self_bytes": "own memory",
        "cpu_total_bytes": "total memory",
        "device_self_bytes": "own GPU memory",
        "device_total_bytes": "total GPU memory",
    }
    table = plain_table("operator", *numbers(*titles.values()))
    for row in profile.operators[:MOST_ROWS]:
        table.add_row(one_line(row["name"]), *(figure_text(field, row[field]) for field in titles))
    print_table(table, console, ("total memory", "total GPU memory", "total GPU"), ("operator",))
    more = len(profile.operators) - MOST_ROWS + profile.operators_left_out
    if more > 0:
        console.print(f"and {format_count(more)} more; --json has {format_count(len(profile.operators))}.")
