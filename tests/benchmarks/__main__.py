"""Run every benchmark five times, print medians as JSON and as a table, fail on a missed budget."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.benchmarks.budgets import BUDGETS

RUNS = 5
ROOT = Path(__file__).resolve().parents[2]


def measure(module: str) -> dict[str, float]:
    """The figures of one run of ``module``, measured in a fresh process so that no run warms up another."""
    code = f"import json; from tests.benchmarks.{module} import measure; print(json.dumps(measure()))"
    environment = {**os.environ, "QT_QPA_PLATFORM": "offscreen", "GPUDASH_HOME": str(ROOT / "build" / "bench")}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise SystemExit(f"{module} failed:\n{done.stderr}")
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def main() -> int:
    """Measure, print, judge."""
    wanted = sys.argv[1:] or list(dict.fromkeys(budget.module for budget in BUDGETS))
    runs: dict[str, list[dict[str, float]]] = defaultdict(list)
    for round_number in range(RUNS):
        for module in wanted:
            sys.stderr.write(f"round {round_number + 1} of {RUNS}: {module}\n")
            runs[module].append(measure(module))
    medians = {
        module: {name: statistics.median(run[name] for run in found) for name in found[0]}
        for module, found in runs.items()
    }
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    document = {"machine": machine, "date": datetime.now(UTC).date().isoformat(), "figures": medians}
    sys.stdout.write(json.dumps(document, indent=2) + "\n")
    table = Table(title=f"{machine}, median of {RUNS}")
    for title in ("what", "figure", "budget", "verdict"):
        table.add_column(title)
    failed = False
    for budget in BUDGETS:
        if budget.module in medians:
            value = medians[budget.module][budget.figure]
            verdict = budget.verdict(value)
            failed = failed or verdict == "FAILED"
            sign = "≥" if budget.at_least else "≤"
            table.add_row(budget.words, f"{value:.3g} {budget.unit}", f"{sign} {budget.limit:.3g}", verdict)
    Console(width=130).print(table)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
