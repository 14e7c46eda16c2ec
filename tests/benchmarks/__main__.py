"""Run the benchmarks in rounds, print each figure as it comes, then medians as JSON and as a table.

    python -m tests.benchmarks [--once-small] [MODULE ...]

A missed budget fails, and so does a benchmark that ends in an error; the others run all the same. Rounds end when there
have been `RUNS`, or when another measurement would not fit into `LIMIT_S`; every benchmark is measured at least once.
``--once-small`` asks only whether every benchmark still runs: once, with the sizes of `SMALL`, whatever the figures.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tests.benchmarks.budgets import BUDGETS

RUNS = 5
LIMIT_S = 14 * 60.0
LONGEST_S = 420.0
"""A benchmark that takes longer than this has failed; forty pairs of watched programs take five minutes."""

ROOT = Path(__file__).resolve().parents[2]

SMALL: dict[str, dict[str, float]] = {
    "allocator": {"EVENTS": 5_000, "ROUNDS": 1},
    "bare": {"ROUNDS": 3},
    "commands": {"ROUNDS": 1},
    "first_paint": {"ROUNDS": 1},
    "forecast": {"PER_KIND": 6},
    "instrumentation": {"PAIRS": 1},
    "lateness": {"SECONDS": 3.0, "SETTLE_S": 0.5},
    "listing": {"RECORDINGS": 200},
    "live_view": {"SECONDS": 1.0},
    "models": {"CARDS": 2},
    "overlaid": {"MANY": 60_000, "FRAMES": 6},
    "profiling": {"RUNS": 1},
    "redrawing": {"CHANGES": 2},
    "reopening": {"ROWS": 100_000},
    "series_and_recorder": {"ROWS": 5_000, "WINDOWS": 20},
    "serving": {"SCRAPES": 5},
    "snapshot": {"ROUNDS": 20, "SAMPLER_S": 1.0},
    "snapshot_analysis": {"EVENTS": 50_000},
    "snapshot_reading": {"EVENTS": 50_000},
    "step_clock": {"STEPS": 200, "ROUNDS": 1},
    "watching": {"PAIRS": 2, "HISTORY_PAIRS": 2},
}
"""Constants of the benchmarks that are less for ``--once-small``."""


class BenchmarkError(Exception):
    """A benchmark ended without figures; one sentence."""


@dataclass
class Measured:
    """What a benchmark has told so far.

    Attributes:
        rounds: the figures of each of its runs.
        seconds: how long the longest took.
        error: why it has no more.
    """

    rounds: list[dict[str, float]] = field(default_factory=list)
    seconds: float = 0.0
    error: str = ""

    def median(self, figure: str) -> float | None:
        """The median of a figure; ``None`` where no round told it."""
        values = [found[figure] for found in self.rounds if figure in found]
        return statistics.median(values) if values else None


def measure(module: str, sizes: dict[str, float]) -> dict[str, float]:
    """The figures of one run of ``module``, measured in a fresh process so that no run warms up another.

    Raises:
        BenchmarkError: it ended without any.
    """
    code = (
        "import json, sys\n"
        f"from tests.benchmarks import {module} as benchmark\n"
        "for name, size in json.loads(sys.argv[1]).items():\n"
        "    assert hasattr(benchmark, name), f'there is no {name} to make smaller'\n"
        "    setattr(benchmark, name, size)\n"
        "print(json.dumps(benchmark.measure()))"
    )
    environment = {**os.environ, "QT_QPA_PLATFORM": "offscreen", "GPUDASH_HOME": str(ROOT / "build" / "bench")}
    try:
        done = subprocess.run(
            [sys.executable, "-c", code, json.dumps(sizes)],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=LONGEST_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise BenchmarkError(f"it took longer than {LONGEST_S:.0f} s") from None
    if done.returncode != 0:
        sys.stderr.write(done.stderr)
        raise BenchmarkError((done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"])[-1])
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def measure_all(modules: list[str], rounds: int) -> dict[str, Measured]:
    """Measure every benchmark round by round, each figure printed as soon as it is there."""
    began = time.monotonic()
    measured = {module: Measured() for module in modules}
    for number in range(rounds):
        for module, told in measured.items():
            if told.error or (number and time.monotonic() - began + told.seconds > LIMIT_S):
                continue
            take_round(module, told, {}, number + 1)
    return measured


def run_each_once(modules: list[str]) -> dict[str, Measured]:
    """Run every benchmark once with its small sizes, several at a time: its figures say nothing."""
    measured = {module: Measured() for module in modules}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        taken = [pool.submit(take_round, module, told, SMALL.get(module, {}), 1) for module, told in measured.items()]
        for future in taken:
            future.result()
    return measured


def take_round(module: str, told: Measured, sizes: dict[str, float], number: int) -> None:
    """Measure one benchmark once more, and print its figures or why it has none."""
    started = time.monotonic()
    try:
        told.rounds.append(measure(module, sizes))
    except BenchmarkError as error:
        told.error = str(error)
    told.seconds = max(told.seconds, time.monotonic() - started)
    held = [budget for budget in BUDGETS if budget.module == module]
    values = {budget.figure: told.median(budget.figure) for budget in held}
    words = ", ".join(f"{name} {value:.3g}" for name, value in values.items() if value is not None)
    sys.stderr.write(f"round {number}, {module}, {told.seconds:.0f} s: {told.error or words}\n")
    sys.stderr.flush()


def main(arguments: list[str]) -> int:
    """Measure, print, judge."""
    small = "--once-small" in arguments
    names = [argument for argument in arguments if argument != "--once-small"]
    known = list(dict.fromkeys(budget.module for budget in BUDGETS))
    if unknown := [name for name in names if name not in known]:
        raise SystemExit(f"There is no benchmark {unknown[0]!r}. There are: {', '.join(known)}.")
    if small:
        measured = run_each_once(names or known)
    else:
        measured = measure_all(names or known, RUNS)
    medians = {
        module: {name: told.median(name) for name in told.rounds[0]} for module, told in measured.items() if told.rounds
    }
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    document = {"machine": machine, "date": datetime.now(UTC).date().isoformat(), "figures": medians}
    sys.stdout.write(json.dumps(document, indent=2) + "\n")
    fewest = min(len(told.rounds) for told in measured.values())
    table = Table(title=f"{machine}, " + ("once, small" if small else f"median of {fewest} to {RUNS}"))
    for title in ("what", "figure", "budget", "verdict"):
        table.add_column(title)
    failed = False
    for budget in BUDGETS:
        if budget.module not in measured:
            continue
        told = measured[budget.module]
        value = told.median(budget.figure)
        sign = "≥" if budget.at_least else "≤"
        limit = f"{sign} {budget.limit:.3g}"
        if value is None:
            failed = True
            table.add_row(budget.label, "–", limit, f"FAILED: {escape(told.error or 'it has no such figure')}")
            continue
        verdict = "runs" if small else budget.verdict(value)
        if told.error:
            verdict = f"FAILED: {escape(told.error)}"
        failed = failed or verdict.startswith("FAILED")
        table.add_row(budget.label, f"{value:.3g} {budget.unit}", limit, verdict)
    Console(width=130).print(table)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
