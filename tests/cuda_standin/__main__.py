"""Runs the tests that need a CUDA device on the stand-in: ``python -m tests.cuda_standin``.

Each run is a process of its own, with one version of torch, a number of GPUs and a compute capability. At the end it
says what ran, and which tests were left out because they need a real GPU. Other options are pytest's: with any of them
there is one run.
"""

from __future__ import annotations

import argparse
import ast
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from tests.cuda_standin.build import build
from tests.cuda_standin.machine import Machine

ROOT = Path(__file__).parents[2]

LEFT_OUT = "values"
"""The mark of tests that need what a GPU computes, or how fast it is."""

ON_A_GPU = tuple(sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("tests/gpu/test_*_on_a_gpu.py")))
"""The other tests in tests/gpu need no GPU, and run with all that do not."""

ALL = (*ON_A_GPU, "tests/cuda_standin")


@dataclass(frozen=True)
class Run:
    """Tests on one kind of machine.

    Attributes:
        tests: files and folders.
        marks: pytest's expression over marks; tests that need a real GPU are left out anyway.
    """

    torch: str
    devices: int
    capability: str
    tests: tuple[str, ...] = ALL
    marks: str = f"not {LEFT_OUT}"

    def __str__(self) -> str:
        gpus = "1 GPU" if self.devices == 1 else f"{self.devices} GPUs"
        return f"torch {self.torch}, {gpus} of capability {self.capability}"


NEWEST, PINNED, OLDEST = "2.15.0", "2.13.0", "2.11.0"
"""The newest torch there is, the one of ``constraints.txt`` and the oldest with CUDA 13 that is measured."""

VERSIONS = (NEWEST, PINNED, OLDEST)

BY_CARD = ("tests/gpu/test_memory_on_a_gpu.py",)
"""What torch's version and the card decide: allocations, workspaces, predictions, snapshots, out-of-memory."""

BY_VERSION = (
    *BY_CARD,
    *(f"tests/cuda_standin/test_{subject}.py" for subject in ("attaching", "memory_and_copies", "models")),
)
"""What another torch may do otherwise: the same, copies, whole models, and how a running program is entered."""

RECORDED = ("tests/gpu/test_recorded.py",)
"""What runs took on a card, with the oldest torch: with no other are they predicted to the byte."""

QUICKER = f"not {LEFT_OUT} and not long"

RUNS = (
    Run(PINNED, 2, "8.0", ON_A_GPU),
    Run(PINNED, 2, "8.0", ("tests/cuda_standin",)),
    Run(NEWEST, 2, "8.0", BY_VERSION, QUICKER),
    Run(OLDEST, 2, "9.0", (*BY_VERSION, *RECORDED), QUICKER),
    Run(NEWEST, 1, "12.0", BY_CARD),
)
"""Everything with the pinned version; what depends on the version with the others, and on the card on every card. Not
every version meets every card with every number of GPUs. What takes longest comes first."""

DRIVER_LIBRARIES = ("libcuda.so", "libnvidia-ml.so")

AT_ONCE = 2
"""Runs at a time: they wait for processes as often as they compute."""


def site(version: str) -> Path:
    """Where this version of torch is installed: in the environment itself, or in a folder that is put before it."""
    folder = Path(sys.prefix) / f"torch-{version}"
    if folder.exists():
        return folder
    return next(Path(entry) for entry in sys.path if (Path(entry) / "torch" / "version.py").exists())


def libraries(version: str) -> Path:
    """The stand-in for this version, built when it is not there."""
    return build(site(version) / "torch" / "lib", Path(sys.prefix) / f"cuda-standin-{version}")


@dataclass(frozen=True)
class Taken:
    """What came of a run: pytest's exit status, what it printed, its counts in words."""

    run: Run
    status: int
    printed: str
    counts: str
    seconds: float


def surroundings(run: Run, folder: Path) -> dict[str, str]:
    """The environment of a process on the machine of a run; one without GPUs has no driver either."""
    if not run.devices:
        linked = without_driver(run.torch, folder)
        found = {"PYTHONPATH": _path(run), "LD_LIBRARY_PATH": str(linked), "CUDA_STANDIN_DEVICES": "0"}
        return {**os.environ, **found}
    machine = Machine(libraries(run.torch), folder / "board", run.devices, run.capability)
    return {**os.environ, **machine.environment, "PYTHONPATH": _path(run), "OMP_NUM_THREADS": "1"}


def _path(run: Run) -> str:
    return os.pathsep.join((str(site(run.torch)), str(ROOT)))


def without_driver(version: str, folder: Path) -> Path:
    """The libraries that a CUDA build of torch is linked with, without those that a driver brings."""
    linked = folder / "without-driver"
    linked.mkdir(parents=True)
    for library in libraries(version).glob("*.so*"):
        if not library.name.startswith(DRIVER_LIBRARIES):
            (linked / library.name).symlink_to(library)
    return linked


def take(run: Run, folder: Path, extra: list[str]) -> Taken:
    """Run pytest in a process of its own."""
    folder.mkdir()
    began = time.monotonic()
    environment = {**surroundings(run, folder), "GPUDASH_HOME": str(folder)}
    report = folder / "report.xml"
    tests = () if any(word.startswith("tests/") for word in extra) else run.tests
    command = [sys.executable, "-m", "pytest", *tests, "-m", run.marks, "-q", "--no-header", f"--junitxml={report}"]
    command += ["-p", "no:cacheprovider", f"--basetemp={folder / 'pytest'}", *extra]
    done = subprocess.run(command, cwd=ROOT, env=environment, check=False, capture_output=True, text=True)
    seconds = time.monotonic() - began
    return Taken(run, done.returncode, done.stdout + done.stderr, counted(report), seconds)


def counted(report: Path) -> str:
    """The counts of pytest's report, in words."""
    if not report.exists():
        return "no report"
    suite = next(ElementTree.parse(report).getroot().iter("testsuite"))
    counts = {word: int(suite.get(word, 0)) for word in ("tests", "failures", "errors", "skipped")}
    passed = 2 * counts["tests"] - sum(counts.values())
    told = [f"{passed} passed", *(f"{count} {word}" for word, count in counts.items() if word != "tests" and count)]
    return ", ".join(told)


def left_out() -> list[str]:
    """The tests that need a real GPU, each with the reason that its mark gives."""
    found = []
    for file in sorted((ROOT / "tests" / "gpu").glob("test_*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        for test in (node for node in tree.body if isinstance(node, ast.FunctionDef)):
            marks = (mark for mark in test.decorator_list if isinstance(mark, ast.Call))
            found += [
                f"{file.stem}: {test.name}: {ast.literal_eval(mark.args[0])}"
                for mark in marks
                if ast.unparse(mark.func) == f"pytest.mark.{LEFT_OUT}"
            ]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch", choices=VERSIONS, help="one run, with this version")
    parser.add_argument("--gpus", type=int, help="one run, with so many GPUs")
    parser.add_argument("--capability", help="one run, with cards of this compute capability")
    parser.add_argument(
        "--program", nargs=argparse.REMAINDER, help="run Python with these words there, instead of tests"
    )
    chosen, extra = parser.parse_known_args()
    one = Run(chosen.torch or PINNED, 2 if chosen.gpus is None else chosen.gpus, chosen.capability or "8.0")
    runs = (one,) if extra or chosen.torch or chosen.gpus is not None or chosen.capability else RUNS
    if chosen.program:
        with tempfile.TemporaryDirectory(prefix="cuda-standin-") as folder:
            command = [sys.executable, *chosen.program]
            return subprocess.run(command, env=surroundings(one, Path(folder)), check=False).returncode
    began = time.monotonic()
    for version in sorted({run.torch for run in runs}):
        libraries(version)
    taken = []
    with tempfile.TemporaryDirectory(prefix="cuda-standin-") as scratch, ThreadPoolExecutor(AT_ONCE) as pool:
        waiting = [pool.submit(take, run, Path(scratch, str(number)), extra) for number, run in enumerate(runs)]
        for future in as_completed(waiting):
            found = future.result()
            taken.append(found)
            sys.stdout.write(f"\n{found.run}\n{found.printed}\n")
            sys.stdout.flush()
    sys.stdout.write("On the stand-in for CUDA, without a GPU:\n")
    for found in sorted(taken, key=lambda one: runs.index(one.run)):
        sys.stdout.write(f"  {found.run}: {found.counts}, {found.seconds:.0f} s\n")
    why = left_out()
    sys.stdout.write(f"Left out, since they need a real GPU ({len(why)}):\n" + "".join(f"  {line}\n" for line in why))
    sys.stdout.write(f"{time.monotonic() - began:.0f} s in all\n")
    return max(found.status for found in taken)


if __name__ == "__main__":
    raise SystemExit(main())
