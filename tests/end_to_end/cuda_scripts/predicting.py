"""The scripts of this folder, predicted unchanged, beside their peaks.

``python -m tests.end_to_end.cuda_scripts.predicting`` asks ``gpudash estimate --`` for each, and runs it with numbers
on a simulated GPU; with ``--standin PYTHON`` also on the stand-in for CUDA. Printed is a row of a table each: the
predicted peak of allocated memory, how far it is from the others, the processor time of the prediction and of the
script's imports, and the files that the prediction left.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from tests.end_to_end.cuda_scripts.__main__ import CASES, USUAL_GPU, Case, Ran, as_cuda, environment, on_standin

_TRAINER = ("transformers", "accelerate")
_LIGHTNING = ("lightning",)

MORE = (
    Case("word_language_model.py", ("--bptt", "10")),
    Case("mnist.py", ("--batch-size", "16")),
    Case("generate.py", needs=("transformers",)),
    Case("evaluate.py"),
    Case("best_checkpoint.py", needs=("numpy",)),
    Case("half_precision.py"),
    Case("trainer.py", ("--optim", "adafactor"), needs=_TRAINER),
    Case("trainer.py", ("--optim", "sgd", "--gradient_accumulation_steps", "2"), needs=_TRAINER),
    Case("trainer.py", ("--fp16",), needs=_TRAINER),
    Case("accelerate_loop.py", ("--mixed_precision", "bf16"), needs=("accelerate",)),
    Case("accelerate_loop.py", ("--mixed_precision", "fp16"), needs=("accelerate",)),
    Case("lightning_module.py", ("--precision", "bf16-mixed"), needs=_LIGHTNING),
    Case("lightning_module.py", ("--precision", "16-mixed"), needs=_LIGHTNING),
)
"""Scripts and arguments that are predicted here alone."""


@dataclass(frozen=True)
class Predicted:
    """What a prediction came to: bytes, processor time in seconds, the files that are left, or why it failed."""

    peak: int
    processor_s: float
    files: tuple[str, ...]
    failure: str = ""
    with_numbers: bool = False


def predicted(case: Case, gpu: str = USUAL_GPU, *flags: str) -> Predicted:
    """Predict a script unchanged, in an empty folder."""
    cards = [word for _ in range(case.cards) for word in ("--simulate", gpu)]
    command = [sys.executable, "-m", "gpudash", "estimate", *cards, *flags, "--json", "--", *case.command]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory(prefix="predicted-") as folder:
        done = subprocess.run(command, env=environment(), cwd=folder, capture_output=True, text=True, check=False)
        files = tuple(sorted(str(path.relative_to(folder)) for path in Path(folder).rglob("*")))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    try:
        found = json.loads(done.stdout)
    except ValueError:
        return Predicted(0, spent, files, done.stderr[-200:])
    if found.get("error"):
        return Predicted(0, spent, files, found["error"]["message"])
    ranks = [rank["peak_allocated_bytes"] for rank in found["ranks"]]
    return Predicted(max([found["peak_allocated_bytes"], *ranks]), spent, files, "", "with numbers" in found["method"])


def imports_s(case: Case) -> float:
    """Processor time of importing what a script imports."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    code = "; ".join(["import torch", *(f"import {name}" for name in case.needs)])
    subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def apart(peak: int, other: int) -> str:
    return f"{100 * (peak - other) / other:+.3f} %" if other else "—"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--standin", default="", help="Python with a CUDA build of torch")
    parser.add_argument("--packages", default="", help="folder with packages that Python has not")
    parser.add_argument("--only", default="", help="cases whose name has this in it")
    options = parser.parse_args()
    heads = ("script", "predicted", "with numbers on sim", "CUDA stand-in", "processor time", "imports", "files left")
    sys.stdout.write(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}\n")
    failed = 0
    for case in (case for case in (*CASES, *MORE) if options.only in case.name):
        absent = [name for name in case.needs if find_spec(name) is None]
        if absent:
            sys.stdout.write(f"| `{case.name}` | {' and '.join(absent)} not installed | | | | | |\n")
            continue
        found = predicted(case)
        if found.failure:
            failed += 1
            sys.stdout.write(f"| `{case.name}` | {found.failure} | | | {found.processor_s:.1f} s | | |\n")
            continue
        ran = as_cuda(case)
        cuda = Ran(()) if case.ranks or not options.standin else on_standin(case, options.standin, options.packages)
        real = "does not run there" if cuda.failure else apart(found.peak, cuda.peak)
        how = " (with numbers)" if found.with_numbers else ""
        cells = (
            f"`{case.name}`",
            f"{found.peak / 2**20:.2f} MiB{how}",
            ran.failure or apart(found.peak, ran.peak),
            real,
            f"{found.processor_s:.1f} s",
            f"{imports_s(case):.1f} s",
            ", ".join(found.files) or "none",
        )
        sys.stdout.write(f"| {' | '.join(cells)} |\n")
        sys.stdout.flush()
    return failed


if __name__ == "__main__":
    raise SystemExit(main())
