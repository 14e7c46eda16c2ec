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

from gpudash.simulator.refusal import SEE_PRINTED, without_flags

if TYPE_CHECKING:
    from typing import Self

LONGEST_LINE = 1000
"""The most characters of a line of the program's output in a sentence."""


class PredictionError(RuntimeError):
    """There is no prediction; the message gives the reason."""


@dataclass(frozen=True)
class PredictedProgram:
    """The memory a program would need on a GPU; with several, on the one with the least to spare. Sizes in bytes.

    Attributes:
        fits: whether it fits into free memory; ``None`` within the margin, or if unknown.
        needed_bytes: at the peak, including the context.
        peak_allocated_bytes: allocated for tensors.
        peak_reserved_bytes: reserved by PyTorch for them.
        by_category: allocated at the peak, for weights, gradients and so on.
        by_line: the lines that hold most of it.
        assumptions: what the prediction assumes, each after its line.
        document: everything that ``gpudash estimate --json`` prints, see the guide.
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
        """Parse a document."""
        return cls(**{one.name: document[one.name] for one in fields(cls) if one.name != "document"}, document=document)


def predict_program(
    *command: str,
    gpu: str | Sequence[str] = (),
    steps: int = 3,
    time_limit_s: float = 60.0,
    folder: Path | str | None = None,
) -> PredictedProgram:
    """Run an unmodified program without a GPU and without computing, until its memory requests are known.

    The program cannot write files, and its output is discarded.

    Args:
        command: program and arguments, such as ``"python", "train.py", "--epochs", "3"``.
        gpu: memory ("24GiB") or name ("h100") of the GPU; several for a program with ranks. By default this
            computer's.
        steps: how many optimizer steps are followed.
        time_limit_s: limit of its processor time, in seconds.
        folder: the folder to run it in; by default the current one.

    Raises:
        PredictionError: there is no prediction.
    """
    arguments = [*simulated(gpu), "--steps", str(steps), "--time-limit", str(time_limit_s), "--json", "--", *command]
    return PredictedProgram.of(ask(arguments, folder))


def simulated(gpu: str | Sequence[str]) -> list[str]:
    """The flags that name one or several GPUs; none for this computer's."""
    gpus = [gpu] if isinstance(gpu, str) else gpu
    return [word for one in gpus if one for word in ("--simulate", one)]


def ask(arguments: Sequence[str], folder: Path | str | None = None, modules: Sequence[str] = ()) -> Mapping[str, Any]:
    """Run ``gpudash estimate`` with these arguments, and parse its JSON output.

    Args:
        arguments: of the command line.
        folder: the folder to run it in; by default the current one.
        modules: folders that are searched for modules first.

    Raises:
        PredictionError: there is no prediction.
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
        error: in the format of ``--json``.
        printed: the standard error, which has the program's output and then gpudash's. It is not shown elsewhere, so
            its last line is included if the reason refers to it.
    """
    remedy = without_flags(error["remedy"])
    lines = [line.strip() for line in printed.splitlines() if not line.startswith(error["message"])]
    lines = list(filter(None, lines))
    if remedy == SEE_PRINTED and lines:
        remedy = f"The last line it printed: {lines[-1][:LONGEST_LINE]}"
    return f"{error['message']} {remedy}".strip()
