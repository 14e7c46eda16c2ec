"""``gpudash estimate -- COMMAND`` as a function, for notebooks and tests."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class PredictionError(RuntimeError):
    """There is no prediction, for the reason that the message gives."""


@dataclass(frozen=True)
class PredictedProgram:
    """What a program would take of a GPU; of several, of the one with least to spare. Sizes in bytes.

    Attributes:
        fits: whether it fits what is free; ``None`` within the margin, or where that is not known.
        needed_bytes: at the peak, the context included.
        peak_allocated_bytes: what tensors hold.
        peak_reserved_bytes: what PyTorch reserves for them.
        by_category: what is allocated at the peak, for weights, gradients and so on.
        by_line: the lines that hold most of it.
        assumptions: what was taken for granted, each after its line.
        document: all that ``gpudash estimate --json`` prints, see the guide.
    """

    fits: bool | None
    needed_bytes: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    by_category: Mapping[str, int]
    by_line: Mapping[str, int]
    assumptions: Sequence[str]
    document: Mapping[str, Any]


def predict_program(
    *command: str,
    gpu: str | Sequence[str] = (),
    steps: int = 3,
    time_limit_s: float = 60.0,
    folder: Path | str | None = None,
) -> PredictedProgram:
    """Run a program as it is without a GPU and nothing computed, until it is known what it asks of one.

    What the program writes is held back; what it prints goes nowhere.

    Args:
        command: program and arguments, such as ``"python", "train.py", "--epochs", "3"``.
        gpu: memory ("24GiB") or name ("h100") of the GPU; several for a program with ranks. Left out: this computer's.
        steps: of its optimizer that are followed.
        time_limit_s: processor time that it may take, in seconds.
        folder: to run it in; the present one unless given.

    Raises:
        PredictionError: when there is no prediction.
    """
    gpus = [gpu] if isinstance(gpu, str) else gpu
    flags = [word for one in gpus if one for word in ("--simulate", one)]
    flags += ["--steps", str(steps), "--time-limit", str(time_limit_s), "--json"]
    whole = [sys.executable, "-m", "gpudash", "estimate", *flags, "--", *command]
    done = subprocess.run(whole, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    try:
        found = json.loads(done.stdout)
    except ValueError:
        said = done.stderr.strip().splitlines() or ["gpudash said nothing."]
        raise PredictionError(said[-1]) from None
    error = found.get("error")
    if error:
        raise PredictionError(f"{error['message']} {error['remedy']}".strip())
    return PredictedProgram(
        fits=found["fits"],
        needed_bytes=found["needed_bytes"],
        peak_allocated_bytes=found["peak_allocated_bytes"],
        peak_reserved_bytes=found["peak_reserved_bytes"],
        by_category=found["by_category"],
        by_line=found["by_line"],
        assumptions=found["assumptions"],
        document=found,
    )
