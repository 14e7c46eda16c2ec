"""Whether programs on a GPU end watched as they end alone: same exit code, same last words, everything reached.

``python -m tests.gpu.watching`` looks at all of `watched_programs`, or at those that are named; ``--times N`` at each N
times. Those that want a library which is not installed are left out, and named.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from tests.gpu import watched_programs
from tests.gpu.child import ROOT

PATIENCE_S = 150.0


@dataclass(frozen=True)
class Ended:
    """How a program ended.

    Attributes:
        code: exit code; of a signal 128 and its number, as a shell tells it.
        errors: names of the exceptions that were printed.
        reached: what it wrote down, sorted: of several processes nobody knows which is first.
        said: the end of what it printed as errors, for whoever has to find out why two ends differ.
    """

    code: int
    errors: tuple[str, ...]
    reached: tuple[str, ...]
    said: str = field(default="", compare=False)


def missing(name: str) -> str:
    """The library that a program needs and this Python has not; empty when it can run."""
    needed = watched_programs.NEEDS.get(name, "")
    return needed if needed and find_spec(needed) is None else ""


def alone(name: str, folder: Path) -> Ended:
    """Run a program to its end; what it writes goes to ``folder``."""
    told = folder / "alone"
    done = _run(_command(name, told), folder)
    return _ended(done.returncode, done.stderr, told)


def watched(name: str, folder: Path) -> Ended:
    """Run it under ``gpudash watch``.

    Raises:
        ValueError: when gpudash leaves no JSON; with what it printed.
    """
    told = folder / "watched"
    watch = [sys.executable, "-m", "gpudash", "watch", "--no-record", "--json", "--", *_command(name, told)]
    done = _run(watch, folder)
    try:
        code = json.loads(done.stdout)["exit_code"]
    except ValueError:
        raise ValueError(f"{name} left no JSON but {done.stdout[-500:]!r} and {done.stderr[-2000:]!r}") from None
    return _ended(code, done.stderr, told)


def _command(name: str, told: Path) -> list[str]:
    ranks = watched_programs.RANKS.get(name)
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks else []
    return [sys.executable, *launcher, watched_programs.__file__, name, str(told)]


def _run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "GPUDASH_HOME": str(folder / "home")}
    return subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )


def _ended(code: int, printed: str, told: Path) -> Ended:
    errors = re.findall(r"^(?:[\w.]+\.)?(\w+(?:Error|Exception|Interrupt|Missing))\b", printed, re.MULTILINE)
    reached = told.read_text().splitlines() if told.exists() else []
    return Ended(code if code >= 0 else 128 - code, tuple(sorted(errors)), tuple(sorted(reached)), printed[-1000:])


def main() -> int:
    """Look at the programs, print a line for each, and fail when one ended otherwise."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--times", type=int, default=1)
    asked = parser.parse_args()
    names = asked.names or list(watched_programs.PROGRAMS)
    same = looked = 0
    for name in names:
        if needed := missing(name):
            _tell(f"{name}: left out, {needed} is not installed")
            continue
        with tempfile.TemporaryDirectory() as folder:
            expected = alone(name, Path(folder))
            for number in range(asked.times):
                place = Path(folder) / str(number)
                place.mkdir()
                found = watched(name, place)
                looked += 1
                same += found == expected
                words = "as alone" if found == expected else f"{found}, alone {expected}"
                _tell(f"{name}: {words} (exit code {found.code}, {len(found.reached)} lines)")
    _tell(f"{same} of {looked} watched programs ended as they do alone")
    return 0 if same == looked else 1


def _tell(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
