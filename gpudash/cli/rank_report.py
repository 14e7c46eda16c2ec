"""The ranks of a run as a person reads them in the terminal: a table, and what stands out in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from gpudash.devices import shown_name
from gpudash.units import format_bytes, format_duration, format_percent

LEAST_UNACCOUNTED = 0.05
"""Share of a rank's time from which on it is told that it went into none of the three."""

TITLES = ("step", "computing", "communicating", "waiting", "peak")


def print_ranks(console: Console, result: Mapping[str, Any] | None) -> None:
    """The ranks of a run's result; nothing of a run without."""
    rows = (result or {}).get("ranks")
    if not result or not isinstance(rows, Sequence) or not rows:
        return
    console.print(_table(rows))
    for sentence in rank_sentences(result):
        console.print(sentence, soft_wrap=True, markup=False)


def rank_sentences(result: Mapping[str, Any]) -> Iterator[str]:
    """What stands out among the ranks: who is slow, who is full, whether their parameters are equal, restarts."""
    for key in ("straggler", "memory_imbalance"):
        if found := result.get(key):
            yield str(found["text"])
    rest = max(map(_unaccounted, result["ranks"]), default=0.0)
    if rest >= LEAST_UNACCOUNTED:
        yield f"Up to {format_percent(rest)} of a rank's time is none of the three: it waited for a processor core."
    equal = result.get("parameters_equal")
    if equal is not None:
        yield f"The parameters are {'equal' if equal else 'NOT equal'} across the ranks."
    if restarts := result.get("restarts"):
        yield f"All ranks were started again {'once' if restarts == 1 else f'{restarts} times'}."


def _table(rows: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    hosts = {row.get("host") for row in rows}
    table.add_column("rank", justify="right")
    if len(hosts) > 1:
        table.add_column("host", overflow="ellipsis", no_wrap=True)
    table.add_column("device", overflow="ellipsis", no_wrap=True)
    for title in TITLES:
        table.add_column(title, justify="right", no_wrap=True)
    for row in rows:
        where = [str(row.get("host") or "")] if len(hosts) > 1 else []
        table.add_row(str(row["rank"]), *where, shown_name(str(row.get("device") or "")), *_figures(row))
    return table


def _figures(row: Mapping[str, Any]) -> Iterator[str]:
    yield format_duration(row.get("step_seconds_median"))
    yield format_duration(row.get("compute_seconds_median"))
    yield format_percent(row.get("communication_share"))
    yield format_percent(row.get("waiting_share"))
    yield _peak(row)


def _unaccounted(row: Mapping[str, Any]) -> float:
    """The share of a rank's time that is neither computing nor communicating nor waiting; 0 where nobody knows."""
    shares = [row.get(name) for name in ("compute_share", "communication_share", "waiting_share")]
    known = [float(share) for share in shares if isinstance(share, int | float)]
    return max(0.0, 1.0 - sum(known)) if len(known) == len(shares) else 0.0


def _peak(row: Mapping[str, Any]) -> str:
    """The peak of the device's allocator where there is one, else of the process."""
    allocated = row.get("peak_allocated_bytes")
    return format_bytes(row.get("peak_used_bytes") if allocated is None else allocated)
