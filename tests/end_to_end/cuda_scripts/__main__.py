"""Scripts in the style of public ones, which say "cuda", on a simulated GPU.

``python -m tests.end_to_end.cuda_scripts`` runs each on the CPU, and unchanged by ``gpudash watch --simulate 24GiB
--as-cuda``; with ``--standin PYTHON``, a Python whose torch is a CUDA build (``make cuda`` makes one), also on the
stand-in for CUDA; with ``--card`` also on this machine's first GPU, which ``--simulate`` should then name. Printed is a
row of a table each: how far the losses are from the CPU's, the peak of allocated memory, and how far it is from the dry
run's and the stand-in's or the card's.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
SCRIPTS = Path(__file__).parent / "scripts"

_LOSS = re.compile(r"\bloss(?:_[DG])?\b[^\d\n-]{0,20}?(-?\d+\.\d+|nan\b)", re.IGNORECASE)
_WITH_PACKAGES = """import runpy, sys
sys.path.append(sys.argv[1])
del sys.argv[:2]
runpy.run_path(sys.argv[0], run_name="__main__")
"""

USUAL_GPU = "24GiB"

_GLOO_END = "terminate called without an active exception"
"""What a rank on the CPU says when a thread of its process group outlives it: torch 2.13, one run in fifty of DDP."""

_PEAK = re.compile(r"peak memory: (\d+)")


@dataclass(frozen=True)
class Case:
    """A script with its arguments.

    Attributes:
        needs: modules that it imports besides torch.
        steps: name of its step in ``dry_runs.py``, for a predicted peak; "" where the peak is not that of a step.
        same_numbers: whether the CPU is asked for the same: not where a script takes another precision there.
        cards: how many GPUs it is given.
        ranks: whether torchrun starts a process for each of them.
    """

    script: str
    arguments: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    steps: str = ""
    same_numbers: bool = True
    cards: int = 1
    ranks: bool = False

    @property
    def name(self) -> str:
        words = " ".join((self.script, *self.arguments))
        return f"{words}, {self.cards} ranks" if self.ranks else words

    @property
    def command(self) -> list[str]:
        """By this Python; the ranks find each other at a free port."""
        launched = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(self.cards)]
        return [sys.executable, *(launched if self.ranks else ()), self.path, *self.arguments]

    @property
    def path(self) -> str:
        return str(SCRIPTS / self.script)


CASES = (
    Case("mnist.py", steps="mnist"),
    Case("word_language_model.py", steps="recurrent"),
    Case("word_language_model.py", ("--model", "GRU")),
    Case("word_language_model.py", ("--model", "Transformer"), steps="transformer"),
    Case("imagenet.py"),
    Case("imagenet.py", ("--gpu", "0")),
    Case("dcgan.py"),
    Case("vae.py", steps="vae"),
    Case("nanogpt.py", needs=("numpy",), steps="nanogpt"),
    Case("nanogpt.py", ("--compile", "--generate", "8"), needs=("numpy",)),
    Case("nanogpt.py", ("--dtype", "bfloat16"), needs=("numpy",), same_numbers=False),
    Case("nanogpt.py", ("--dtype", "float16"), needs=("numpy",), same_numbers=False),
    Case("trainer.py", needs=("transformers", "accelerate")),
    Case(
        "trainer.py", ("--bf16", "--gradient_checkpointing"), needs=("transformers", "accelerate"), same_numbers=False
    ),
    Case("accelerate_loop.py", needs=("accelerate",)),
    Case("lightning_module.py", needs=("lightning",)),
    Case("timm_loop.py", needs=("timm", "torchvision")),
    Case("timm_loop.py", ("--amp",), needs=("timm", "torchvision"), same_numbers=False),
    Case("wgan_gp.py", needs=("numpy",)),
    Case("acgan.py", needs=("numpy",)),
    Case("pix2pix.py", needs=("numpy",)),
    Case("ppo.py", needs=("numpy",)),
    Case("detector.py"),
    Case("diffusion.py", needs=("diffusers", "transformers", "accelerate")),
    Case(
        "diffusion.py",
        ("--mixed_precision", "bf16"),
        needs=("diffusers", "transformers", "accelerate"),
        same_numbers=False,
    ),
    Case("several_gpus.py", cards=2),
    Case("several_gpus.py", ("--strategy", "ddp"), cards=2, ranks=True),
    Case("several_gpus.py", ("--strategy", "fsdp"), cards=2, ranks=True),
    Case("accelerate_loop.py", needs=("accelerate",), cards=2, ranks=True),
    Case("sharded.py", cards=2, ranks=True),
    Case("sharded.py", ("--strategy", "load"), cards=2, ranks=True),
    Case("sharded.py", ("--strategy", "meta"), cards=2, ranks=True, same_numbers=False),
    Case("padded.py"),
    Case("padded.py", cards=2, ranks=True),
)


@dataclass(frozen=True)
class Ran:
    """What came of a script: its losses, its peak in bytes (0 for none), what was noted of it, and why it failed."""

    losses: Sequence[float]
    peak: int = 0
    notes: Sequence[str] = ()
    failure: str = ""


def environment(*, sees_gpus: bool = False, stays: bool = False) -> dict[str, str]:
    """Of every process that is started here: one thread, so that sums are made in the same order.

    Args:
        sees_gpus: whether it may see this machine's.
        stays: whether accelerate is to take the CPU, which it does not by itself for several ranks.
    """
    paths = os.pathsep.join(part for part in (str(ROOT), os.environ.get("PYTHONPATH", "")) if part)
    found = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    if stays:
        found["ACCELERATE_USE_CPU"] = "true"
    return found if sees_gpus else {**found, "CUDA_VISIBLE_DEVICES": ""}


def on_cpu(case: Case) -> Ran:
    """Run a script as it is."""
    return _run(case.command, stays=case.ranks)


def as_cuda(case: Case, gpu: str = USUAL_GPU) -> Ran:
    """Run it on the simulated ``gpu``, watched; the peak is the one that is watched, which its own has to be; of ranks
    the largest."""
    gpus = ",".join([gpu] * case.cards)
    watch = ["watch", "--simulate", gpus, "--as-cuda", "--no-record", "--json", "--"]
    done = _done([sys.executable, "-m", "gpudash", *watch, *case.command])
    try:
        found: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        return Ran((), failure=_last(done.stderr))
    ran = _read(done.stderr)
    failure = "" if found["error"] is None else str(found["error"]["message"])
    peak = found["memory"]["peak_allocated_bytes"] or 0
    # of several ranks, any may be the one that is watched
    seen = case.ranks or (found["seen_as"] == "cuda:0" and (not ran.peak or peak == ran.peak))
    if not failure and not (seen and str(found["seen_as"]).startswith("cuda:")):
        failure = f"seen as {found['seen_as']}, peak {peak} beside {ran.peak}"
    peaks = [rank["peak_allocated_bytes"] or 0 for rank in found["result"].get("ranks", ())]
    return Ran(ran.losses, max(peaks, default=peak), found["notes"], failure)


def on_standin(case: Case, python: str, packages: str) -> Ran:
    """Run it on the stand-in for CUDA, by a Python that has a CUDA build of torch; its losses are no card's.

    Args:
        packages: a folder with what that Python has not; "" for none.
    """
    standin = [python, "-m", "tests.cuda_standin", "--gpus", str(case.cards), "--program", "-c", _WITH_PACKAGES]
    return _run([*standin, packages, case.path, *case.arguments], sees_gpus=True)


def on_card(case: Case) -> Ran:
    """Run it on this machine's first GPU, by this Python."""
    return _run(case.command, sees_gpus=True)


def dry_run(case: Case, gpu: str = USUAL_GPU) -> int:
    """The peak that is predicted of its steps, in bytes; 0 where there is no prediction."""
    if not case.steps:
        return 0
    callable_ = f"{SCRIPTS.parent / 'dry_runs.py'}:{case.steps}"
    done = _done([sys.executable, "-m", "gpudash", "estimate", "--callable", callable_, "--simulate", gpu, "--json"])
    try:
        return int(json.loads(done.stdout)["peak_allocated_bytes"])
    except (ValueError, KeyError, TypeError):
        sys.stderr.write(done.stderr)
        return 0


def farthest(one: Ran, other: Ran) -> float:
    """The largest difference between losses of the same place, relative where they are above 1; infinite if they are
    not as many."""
    if len(one.losses) != len(other.losses) or not one.losses:
        return float("inf")
    return max(abs(a - b) / max(1.0, abs(b)) for a, b in zip(one.losses, other.losses, strict=True))


def _run(command: Sequence[str], *, sees_gpus: bool = False, stays: bool = False) -> Ran:
    done = _done(command, sees_gpus=sees_gpus, stays=stays)
    ran = _read(done.stdout)
    # the stand-in's process may die as it ends, and so may a rank of Gloo's, when all has been said
    if not done.returncode or ran.peak or _GLOO_END in done.stderr:
        return ran
    return Ran(ran.losses, failure=_last(done.stderr))


def _done(command: Sequence[str], *, sees_gpus: bool = False, stays: bool = False) -> subprocess.CompletedProcess[str]:
    surroundings = environment(sees_gpus=sees_gpus, stays=stays)
    with tempfile.TemporaryDirectory(prefix="cuda-scripts-") as folder:
        return subprocess.run(command, env=surroundings, cwd=folder, capture_output=True, text=True, check=False)


def _read(text: str) -> Ran:
    peaks = _PEAK.findall(text)
    return Ran([float(word) for word in _LOSS.findall(text)], int(peaks[-1]) if peaks else 0)


def _last(text: str) -> str:
    return next((line for line in reversed(text.strip().splitlines()) if line.strip()), "it said nothing")[:160]


def _distance(peak: int, other: int) -> str:
    return f"{100 * (peak - other) / other:+.2f} %" if other else "—"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--standin", default="", help="Python with a CUDA build of torch")
    parser.add_argument("--packages", default="", help="folder with packages that Python has not")
    parser.add_argument("--card", action="store_true", help="run it on this machine's first GPU too")
    parser.add_argument("--simulate", default=USUAL_GPU, help="the simulated GPU: its memory, or the name of one")
    parser.add_argument("--only", default="", help="cases whose name has this in it")
    options = parser.parse_args()
    other = "card" if options.card else "CUDA stand-in"
    rows = [
        f"| script | losses | farthest from the CPU's | peak | dry run | {other} |",
        "|---|---|---|---|---|---|",
    ]
    sys.stdout.write("\n".join(rows) + "\n")
    failed = 0
    for case in (case for case in CASES if options.only in case.name):
        absent = [name for name in case.needs if find_spec(name) is None]
        if absent:
            sys.stdout.write(f"| `{case.name}` | {' and '.join(absent)} not installed | | | | |\n")
            continue
        ran, plain = as_cuda(case, options.simulate), on_cpu(case) if case.same_numbers else Ran(())
        if ran.failure or plain.failure:
            failed += 1
            sys.stdout.write(f"| `{case.name}` | {ran.failure or plain.failure} | | | | |\n")
            continue
        apart = f"{farthest(ran, plain):.1e}" if case.same_numbers else "—"
        if options.card:
            cuda = on_card(case)
        elif options.standin and not case.ranks:
            cuda = on_standin(case, options.standin, options.packages)
        else:
            cuda = Ran(())  # NCCL has no stand-in
        real = "does not run there" if cuda.failure else _distance(ran.peak, cuda.peak)
        peak = f"{ran.peak / 2**20:.2f} MiB"
        dry = _distance(ran.peak, dry_run(case, options.simulate))
        sys.stdout.write(f"| `{case.name}` | {len(ran.losses)} | {apart} | {peak} | {dry} | {real} |\n")
        sys.stdout.flush()
        for said in (*(note for note in ran.notes if "a simulated GPU" in note), cuda.failure):
            if said:
                sys.stderr.write(f"{case.name}: {said}\n")
    return failed


if __name__ == "__main__":
    raise SystemExit(main())
