"""Predicted peaks beside those that torch's allocator came to, and what they are off by."""

from __future__ import annotations

import csv
import importlib.metadata
import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.allocator_matrix.configurations import named

EXPECTED = Path(__file__).parent / "expected"
"""What was measured: a file for each version of torch, "2.13.csv", and one for its runs that are near full."""

NEAR_FULL_COLUMNS = ("name", "room", "fits", "retries", "reserved")
"""A configuration, the bytes its allocator can have, whether it comes to its end, how often the allocator released what
it had cached to try again, and the most bytes it reserved."""

COLUMNS = ("name", "allocated", "reserved", "allocations", "torch")

FIGURES = ("allocated", "reserved")


class Spread(NamedTuple):
    """How far predictions lie from what was measured, in percent of it."""

    median: float
    most_of_them: float
    worst: float

    def __str__(self) -> str:
        return f"{self.median:.3f} | {self.most_of_them:.3f} | {self.worst:.3f}"


def spread(errors: Iterable[float]) -> Spread:
    """Median, 95th percentile (the smallest error that 95 % do not exceed) and worst of errors of either sign."""
    sizes = sorted(abs(error) for error in errors)
    return Spread(statistics.median(sizes), sizes[-(-95 * len(sizes) // 100) - 1], sizes[-1])


def errors(expected: Mapping[str, Any], predicted: Mapping[str, Any]) -> dict[str, float]:
    """What a prediction is off by, in percent of what was measured, for each figure."""
    return {figure: 100 * (predicted[figure] / expected[figure] - 1) for figure in FIGURES}


def table(expected: Mapping[str, Mapping[str, Any]], predicted: Mapping[str, Mapping[str, Any]]) -> str:
    """Markdown: each family and all of them, with median, 95th percentile and worst of both figures in percent."""
    found = {name: errors(expected[name], predicted[name]) for name in expected if name in predicted}
    families = list(dict.fromkeys(named(name).family for name in found))
    lines = [
        "| family | runs | allocated: median | 95 % | worst | reserved: median | 95 % | worst |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for family in [*sorted(families), "all"]:
        of_family = [error for name, error in found.items() if family in ("all", named(name).family)]
        cells = [str(spread(error[figure] for error in of_family)) for figure in FIGURES]
        lines.append(f"| {family} | {len(of_family)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def drifted(expected: Mapping[str, Mapping[str, Any]], measured: Iterable[Mapping[str, Any]]) -> list[str]:
    """One sentence for each configuration that no longer comes to what was written down."""
    told = []
    for found in measured:
        before = expected.get(found["name"])
        if before is None:
            told.append(f"{found['name']}: not written down")
            continue
        changed = [
            f"{figure} {before[figure]} → {found[figure]} ({found[figure] - before[figure]:+d})"
            for figure in (*FIGURES, "allocations")
            if before[figure] != found[figure]
        ]
        if changed:
            told.append(f"{found['name']}: {', '.join(changed)}")
    return told


def torch_version() -> str:
    """Major and minor number of the torch that is installed: "2.13"."""
    return ".".join(importlib.metadata.version("torch").split(".")[:2])


def read(version: str | None = None) -> dict[str, dict[str, Any]]:
    """What was written down for a version of torch, the installed one unless given, by name; empty if nothing was."""
    path = EXPECTED / f"{version or torch_version()}.csv"
    if not path.exists():
        return {}
    with path.open(encoding="utf-8", newline="") as file:
        return {
            row["name"]: {**row, **{key: int(row[key]) for key in (*FIGURES, "allocations")}}
            for row in csv.DictReader(file)
        }


def write(rows: Sequence[Mapping[str, Any]]) -> None:
    """Write down the rows that were measured with the installed torch."""
    with (EXPECTED / f"{torch_version()}.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(sorted(rows, key=lambda row: str(row["name"])))


def read_near_full(version: str | None = None) -> list[list[Any]]:
    """How runs ended with less room than they would reserve, as `NEAR_FULL_COLUMNS` say, by the installed torch or by
    ``version``; empty where none was measured."""
    path = _near_full(version or torch_version())
    rows: list[list[Any]] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    return rows


def write_near_full(rows: Sequence[Sequence[Any]]) -> None:
    """Write down how they end, a row on each line."""
    text = "[\n" + ",\n".join(f"  {json.dumps(row)}" for row in rows) + "\n]\n"
    _near_full(torch_version()).write_text(text, encoding="utf-8")


def _near_full(version: str) -> Path:
    return EXPECTED / f"{version}-near-full.json"
