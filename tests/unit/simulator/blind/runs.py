"""Runs of others with stated peaks, what was predicted of them without the peaks, and the guide's table of both.

``python -m tests.unit.simulator.blind.runs predict PYTHON`` predicts all anew with the libraries of ``PYTHON``, into
`predictions.json`; ``… table`` writes the table into ``resources/guide/blind.md``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
STEPS = 4
"""Of each run, as the programs of xMem take; nothing changes after the second."""


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


@cache
def runs() -> tuple[Run, ...]:
    return tuple(Run(**row) for row in _read("runs.json")["runs"])


def _read(name: str) -> Any:
    return json.loads((HERE / name).read_text(encoding="utf-8"))


def predict(python: str, chosen: tuple[Run, ...]) -> list[dict[str, Any]]:
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
        said = json.loads(done.stdout)
        return {
            "allocated": said["peak_allocated_bytes"],
            "reserved": said["peak_reserved_bytes"],
            "context": said["overhead_bytes"],
            "fits": said["fits"],
        }

    with ThreadPoolExecutor(os.cpu_count()) as workers:
        return list(workers.map(answer, chosen))


if __name__ == "__main__":
    rows = [json.dumps(row) for row in predict(sys.argv[2], runs())]
    (HERE / "predictions.json").write_text("[\n" + ",\n".join(rows) + "\n]\n", encoding="utf-8")
