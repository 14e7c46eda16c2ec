"""``gpudash estimate -- COMMAND`` as a function, for notebooks and tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpudash.simulator.refusal import SEE_PRINTED

if TYPE_CHECKING:
    from typing import Self

LONGEST_LINE = 1000
"""Characters of a line that a program printed, in a sentence."""


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

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Self:
        """What a document says."""
        return cls(**{one.name: document[one.name] for one in fields(cls) if one.name != "document"}, document=document)


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
    arguments = [*simulated(gpu), "--steps", str(steps), "--time-limit", str(time_limit_s), "--json", "--", *command]
    return PredictedProgram.of(ask(arguments, folder))


def simulated(gpu: str | Sequence[str]) -> list[str]:
    """The flags that name one GPU or several; none for this computer's."""
    gpus = [gpu] if isinstance(gpu, str) else gpu
    return [word for one in gpus if one for word in ("--simulate", one)]


def ask(arguments: Sequence[str], folder: Path | str | None = None, modules: Sequence[str] = ()) -> Mapping[str, Any]:
    """What ``gpudash estimate`` with these arguments prints as JSON.

    Args:
        arguments: of the command line.
        folder: to run it in; the present one unless given.
        modules: folders in which modules are looked for first.

    Raises:
        PredictionError: when there is no prediction.
    """
    environment = dict(os.environ)
    if modules:
        environment["PYTHONPATH"] = os.pathsep.join(str(Path(one).absolute()) for one in modules)
    done = subprocess.run(
        [sys.executable, "-m", "gpudash", "estimate", *arguments],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        found: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        lines = done.stderr.strip().splitlines() or ["gpudash ended without an answer."]
        raise PredictionError(lines[-1]) from None
    error = found.get("error")
    if error:
        raise PredictionError(failure_text(error, done.stderr))
    return found


def failure_text(error: Mapping[str, str], printed: str) -> str:
    """Why there is no prediction, and what to do.

    Args:
        error: as ``--json`` has it.
        printed: on standard error, where the output of a program stands and, behind it, what gpudash said. Nobody is
            shown it here, so its last line is a part of the text where the reason is said to stand in it.
    """
    remedy = error["remedy"]
    lines = [line.strip() for line in printed.splitlines() if not line.startswith(error["message"])]
    lines = [line for line in lines if line]
    if remedy == SEE_PRINTED and lines:
        remedy = f"The last line it printed: {lines[-1][:LONGEST_LINE]}"
    return f"{error['message']} {remedy}".strip()
