"""Runs of others with stated peaks, what was predicted of them without the peaks, and the guide's tables of both.

``python -m tests.unit.simulator.blind.runs`` writes the tables into ``resources/guide/blind.md``; with
``predict PYTHON`` it predicts all anew with the libraries of ``PYTHON`` and prints the rows of `predictions.json`.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from gpudash.system.files import resource

HERE = Path(__file__).parent
BEGIN, END = "<!-- runs -->\n", "<!-- end of runs -->\n"
MIB = 2**20
STEPS = 4
"""Of each run, as the programs of xMem take; nothing changes after the second."""

WHOLE_CARD = "GPUMemNet"
"""The set whose peaks are of the whole card; the others say what the run took beside its context."""

MISS = 0.01


@dataclass(frozen=True)
class Run:
    """What was run, as its authors name it, and the card by the name that gpudash gives it."""

    source: str
    set: str
    model: str
    optimizer: str
    batch: int
    card: str
    mlp: Mapping[str, Any] | None = field(default=None)


@dataclass(frozen=True)
class Result:
    """A run, what was predicted of it, and what its authors state; bytes.

    Attributes:
        others: what other estimators said of it, by their names.
        note: why it was missed, a key of `notes`.
    """

    run: Run
    predicted: Mapping[str, Any]
    peak: int
    ran_out: bool
    others: Mapping[str, int] = field(default_factory=dict)
    note: str = ""

    @property
    def reserved(self) -> int:
        return int(self.predicted["reserved"])

    @property
    def answer(self) -> int:
        return self.reserved + (int(self.predicted["context"]) if self.run.set == WHOLE_CARD else 0)

    @property
    def error(self) -> float:
        """Part of the stated peak by which the answer is above it; of a run that ended."""
        return self.answer / self.peak - 1

    @property
    def beyond(self) -> int:
        """What is stated beyond what PyTorch is predicted to reserve."""
        return self.peak - self.reserved


@cache
def runs() -> tuple[Run, ...]:
    return tuple(Run(**row) for row in _read("runs.json")["runs"])


@cache
def results() -> tuple[Result, ...]:
    rows = zip(runs(), _read("predictions.json")["predicted"], _read("stated.json")["stated"], strict=True)
    return tuple(Result(run, predicted, **stated) for run, predicted, stated in rows)


@cache
def notes() -> dict[str, str]:
    return dict(_read("stated.json")["notes"])


def made_with() -> dict[str, str]:
    """Versions of the libraries that the predictions were made with."""
    return dict(_read("predictions.json")["made_with"])


def _read(name: str) -> Any:
    return json.loads((HERE / name).read_text(encoding="utf-8"))


def predict(python: str, chosen: Iterable[Run]) -> list[dict[str, Any]]:
    """What gpudash answers for each run, in bytes, with the libraries of ``python``."""

    def answer(run: Run) -> dict[str, Any]:
        asked = {name: value for name, value in asdict(run).items() if value is not None} | {"drop": 0}
        command = [sys.executable, "-m", "gpudash", "estimate", "--callable", f"{HERE / 'programs.py'}:build"]
        command += ["--python", python, "--steps", str(STEPS), "--simulate", run.card, "--no-alternatives"]
        done = subprocess.run(
            [*command, "--time-limit", "600", "--json"],
            env=os.environ | {"BLIND_RUN": json.dumps(asked)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stdout, done.stderr
        said = json.loads(done.stdout)
        return {
            "allocated": said["peak_allocated_bytes"],
            "reserved": said["peak_reserved_bytes"],
            "context": said["overhead_bytes"],
            "fits": said["fits"],
        }

    with ThreadPoolExecutor(os.cpu_count()) as workers:
        return list(workers.map(answer, chosen))


def tables() -> str:
    """The guide's: what it comes to, and every run."""
    ended = [result for result in results() if not result.ran_out]
    sets = list(dict.fromkeys(run.set for run in runs()))
    errors = {name: [result.error for result in ended if result.run.set == name] for name in sets}
    lines = ["| set | by | runs | median | within 1 % | within 5 % | worst |", "|---|---|---|---|---|---|---|"]
    for name in sets:
        lines.append(_summary(name, "gpudash", errors[name]))
        of_set = [result for result in ended if result.run.set == name]
        lines += [
            _summary(name, other, [r.others[other] / r.peak - 1 for r in of_set if other in r.others])
            for other in dict.fromkeys(other for result in of_set for other in result.others)
        ]
    limited = [result for result in results() if result.run.set != WHOLE_CARD]
    right = sum(result.predicted["fits"] != result.ran_out for result in limited)
    first, *rest = [result for result in results() if result.run.set == WHOLE_CARD]
    left = [abs((result.beyond - first.beyond) / result.peak) for result in rest]
    lines += [
        "",
        f"{sum(r.ran_out for r in limited)} of xMem's {len(limited)} runs ran out of memory; of {right} it was said",
        f"rightly whether they fit. {WHOLE_CARD} states what the whole card had in use: the first row leaves",
        f"{first.beyond // MIB:,} MiB beside what PyTorch reserves. With these in place of the context",
        f"that is assumed, the other {len(rest)} are off by {statistics.median(left):.2%} in the middle",
        f"and {max(left):.1%} at most.",
        "",
        "| run | optimizer, batch | card | stated, MiB | predicted, MiB | error |",
        "|---|---|---|---|---|---|",
        *map(_line, results()),
        "",
        *[f"{place}. {text}" for place, text in enumerate(notes().values(), 1)],
        "",
    ]
    return "\n".join(lines)


def _summary(name: str, by: str, errors: list[float]) -> str:
    sizes = sorted(map(abs, errors))
    within = [sum(size <= most for size in sizes) for most in (MISS, 0.05)]
    cells = [name, by, len(sizes), f"{statistics.median(sizes):.2%}", *within, f"{sizes[-1]:.1%}"]
    return f"| {' | '.join(map(str, cells))} |"


def _line(result: Result) -> str:
    run = result.run
    note = f" ({list(notes()).index(result.note) + 1})" if result.note else ""
    stated = "ran out" if result.ran_out else f"{result.peak / MIB:,.0f}"
    verdict = "fits" if result.predicted["fits"] else "does not fit"
    cells = [
        f"[{run.model}]({run.source})" + note,
        f"{run.optimizer}, {run.batch}",
        run.card,
        stated,
        f"{result.answer / MIB:,.0f}",
        verdict if result.ran_out else f"{result.error:+.2%}",
    ]
    return f"| {' | '.join(cells)} |"


def name_of(result: Result) -> str:
    """Short, and another for each run."""
    return unquote(result.run.source.removesuffix("/evaluation_result.json")).rpartition("/plot/data/")[2]


def page() -> str:
    return resource("guide", "blind.md").read_text(encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:2] == ["predict"]:
        sys.stdout.write(",\n".join(json.dumps(row) for row in predict(sys.argv[2], runs())) + "\n")
    else:
        before, _, after = page().partition(BEGIN)
        text = f"{before}{BEGIN}{tables()}{END}{after.partition(END)[2]}"
        resource("guide", "blind.md").write_text(text, encoding="utf-8")
