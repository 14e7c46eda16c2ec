"""Predicts and measures the matrix: ``python -m tests.allocator_matrix COMMAND``.

* ``predict``: dry runs, against what is written down in ``expected``; needs no CUDA.
* ``measure``: runs on CUDA, says what drifted from what is written down, and what the dry runs are off by;
  ``--write`` writes it down. With ``LD_LIBRARY_PATH`` set to the stand-in (`tests.cuda_standin`) every capability is
  measured, on a real GPU only its own.
* ``drift NAME…``: the allocations of which the run on CUDA has more or fewer than the dry run.
* ``near-full``: runs on the stand-in with less memory than they would reserve, against ``expected``; ``--write``
  writes it down.

``--sample N`` takes every Nth configuration, ``--kept-back`` those that nobody looks at while the rules are worked on.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.allocator_matrix import comparing
from tests.allocator_matrix.configurations import (
    ALLOCATORS,
    CAPABILITIES,
    Configuration,
    configurations,
    kept_back,
    named,
)

ROOT = Path(__file__).parents[2]

AT_ONCE = 2
"""Processes at a time."""

MEMORY = "80G"
"""Of a GPU of the stand-in."""

CONTEXT = 500 * 2**20
"""Bytes of it that the process's context takes."""


def main(arguments: Sequence[str]) -> int:
    """Returns 1 when something drifted, could not be measured, or was predicted wrongly."""
    parser = argparse.ArgumentParser(prog="python -m tests.allocator_matrix", description=__doc__)
    parser.add_argument("command", choices=("predict", "measure", "drift", "near-full"))
    parser.add_argument("names", nargs="*")
    parser.add_argument("--sample", type=int, default=1)
    parser.add_argument("--kept-back", action="store_true")
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args(arguments)
    if given.command == "drift":
        from tests.allocator_matrix.drift import drift

        for name in given.names:
            sys.stdout.write(drift(measured([named(name)], "--requests", "--stacks")[0], named(name)) + "\n")
        return 0
    if given.command == "near-full":
        return near_full(write=given.write)
    wanted = [named(name) for name in given.names] or (kept_back() if given.kept_back else configurations())
    wanted = wanted[:: given.sample]
    expected = comparing.read()
    if given.command == "measure":
        rows = measured(wanted)
        for row in rows:
            if "problem" in row:
                sys.stdout.write(f"{row['name']}: {row['problem'].strip().splitlines()[-1]}\n")
        well = [row for row in rows if "problem" not in row]
        told = comparing.drifted(expected, well)
        sys.stdout.write("\n".join([f"{len(told)} of {len(well)} drifted", *told]) + "\n")
        if given.write:
            comparing.write(list({**expected, **{row["name"]: row for row in well}}.values()))
            told = []
        expected = {row["name"]: row for row in well}
    else:
        rows, told = [], []
    names = {one.name for one in wanted}
    expected = {name: row for name, row in expected.items() if name in names}
    predicted_rows = {row["name"]: row for row in predicted(named(name) for name in expected)}
    sys.stdout.write(comparing.table(expected, predicted_rows) + "\n")
    off_by_much = False
    for name, row in predicted_rows.items():
        off = comparing.errors(expected[name], row)
        if max(map(abs, off.values())) > MOST_PERCENT:
            off_by_much = True
            sys.stdout.write(f"{name}: allocated {off['allocated']:+.2f} %, reserved {off['reserved']:+.2f} %\n")
    return int(off_by_much or bool(told) or any("problem" in row for row in rows))


MOST_PERCENT = 0.1
"""Errors above it are listed one by one, and are a failure."""


def predicted(wanted: Iterable[Configuration | str]) -> list[dict[str, Any]]:
    """The predictions of some configurations, by processes of their own, which never see CUDA.

    Args:
        wanted: also "NAME@BYTES", for how it ends with so much room.
    """
    names = [one if isinstance(one, str) else one.name for one in wanted]
    parts = [names[place::AT_ONCE] for place in range(AT_ONCE)]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    return _told("tests.allocator_matrix.predicting", [(part, environment) for part in parts if part])


def measured(wanted: Iterable[Configuration], *options: str) -> list[dict[str, Any]]:
    """What torch's allocator came to with some configurations: a process for each allocator on each kind of card."""
    groups: dict[tuple[str, str], list[str]] = defaultdict(list)
    for one in wanted:
        groups[one.capability, one.allocator].append(one.name)
    parts = [([*options, *names], _card(*card, MEMORY)) for card, names in groups.items()]
    return _told("tests.allocator_matrix.measuring", parts)


def near_full(*, write: bool) -> int:
    """Measure how the runs that are near full end, each in a process of its own, and say what drifted.

    Args:
        write: whether to write it down; otherwise 1 is returned when something drifted or could not be measured.
    """
    expected = comparing.read_near_full()
    parts = [
        ([f"{name}@{room}"], _card(named(name).capability, named(name).allocator, str(room + CONTEXT)))
        for name, room, *_outcome in expected
    ]
    rows = _told("tests.allocator_matrix.measuring", parts)
    problems = [f"{row['name']}: {row['problem'].strip().splitlines()[-1]}\n" for row in rows if "problem" in row]
    found = [[row[key] for key in comparing.NEAR_FULL_COLUMNS] for row in rows if "problem" not in row]
    drifted = [f"{row}: not written down\n" for row in found if row not in expected]
    sys.stdout.write("".join([f"{len(drifted)} of {len(found)} drifted\n", *drifted, *problems]))
    if write and not problems:
        comparing.write_near_full(found)
    return int(bool(problems or (drifted and not write)))


def _card(capability: str, allocator: str, memory: str) -> dict[str, str]:
    """The environment of a process on a card of the stand-in, with torch's allocator set."""
    return {
        **os.environ,
        "CUDA_STANDIN_CC": capability,
        "CUDA_STANDIN_SMS": str(CAPABILITIES[capability][1]),
        "CUDA_STANDIN_MEMORY": memory,
        "CUDA_STANDIN_CONTEXT": str(CONTEXT),
        "CUDA_STANDIN_DEVICES": "1",
        "CUDA_STANDIN_STATE": f"/dev/shm/allocator-matrix-{os.getpid()}-{capability}-{allocator}-{memory}",
        "PYTORCH_CUDA_ALLOC_CONF": ALLOCATORS[allocator],
    }


def _told(module: str, parts: Sequence[tuple[Sequence[str], dict[str, str]]]) -> list[dict[str, Any]]:
    """The lines of JSON of processes."""

    def one(part: tuple[Sequence[str], dict[str, str]]) -> list[dict[str, Any]]:
        names, environment = part
        command = [sys.executable, "-m", module, *names]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        state = environment.get("CUDA_STANDIN_STATE")
        if state is not None:
            Path(state).unlink(missing_ok=True)
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        if done.returncode:
            missing = [name for name in names if "/" in name][len(lines) :]
            lines += [{"name": name, "problem": done.stderr or f"ended with {done.returncode}"} for name in missing[:1]]
        return lines

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return [line for lines in pool.map(one, parts) for line in lines]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
