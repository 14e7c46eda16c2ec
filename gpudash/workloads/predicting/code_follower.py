"""Following code in the user's own Python, in which torch is and gpudash need not be."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gpudash.memory.allocator.trace import Trace
from gpudash.memory.predicting.architecture import Architecture
from gpudash.memory.predicting.model_facts import ModelFacts

FOLLOWER = Path(__file__).parents[2] / "simulator" / "dry_run" / "own_code_process.py"

NO_ANSWER = "{python} ended without an answer{how}."
AGAIN = "Run the code there by itself, and fix what ends it."


class RefusedError(Exception):
    """The code was not followed; what the process says of it."""

    def __init__(self, error: Mapping[str, Any]) -> None:
        super().__init__(error["message"])
        self.error = error


@dataclass(frozen=True)
class FollowedCode:
    """What came of following code.

    Attributes:
        trace: what it asks of the allocator.
        assumptions: what that takes for granted, as of `Estimate`.
        model: what is known of the model, where it was built by its config.
    """

    trace: Trace
    assumptions: tuple[str, ...]
    model: ModelFacts | None = None


class CodeFollower:
    """Follows code in another Python, in this process's group, so that it ends with this process.

    Args:
        python: the program.

    Raises:
        OSError: when it cannot be started.
    """

    def __init__(self, python: str) -> None:
        self._python = python
        command = [python, str(FOLLOWER)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, errors="replace"
        )

    @property
    def processor_s(self) -> float:
        """Processor time that it has had, in seconds; 0 once it is gone."""
        import psutil

        with suppress(psutil.Error):
            times = psutil.Process(self._process.pid).cpu_times()
            return float(times.user + times.system)
        return 0.0

    def greeting(self) -> dict[str, Any]:
        """What it says of itself, once its torch is there."""
        told = self._read()
        if told is None:
            how = self._process.wait()
            return {"ready": False, "problem": NO_ANSWER.format(python=self._python, how=f" (exit code {how})")}
        return told

    def follow(self, what: Mapping[str, Any], architecture: Architecture) -> FollowedCode:
        """What code asks of the allocator of a GPU, and what that takes for granted.

        Args:
            what: ``callable`` and ``steps``, or ``model``; see `gpudash.simulator.dry_run.own_code_process`.
            architecture: of the GPU.

        Raises:
            RefusedError: when the code cannot be followed, or ended the process.
        """
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({**what, "architecture": asdict(architecture)}) + "\n")
        self._process.stdin.flush()
        told = self._read()
        if told is None:
            how = self._process.wait()
            why = " (killed, perhaps because this computer's memory was full)" if how == -9 else f" (exit code {how})"
            raise RefusedError(
                {"kind": "crashed", "message": NO_ANSWER.format(python=self._python, how=why), "remedy": AGAIN}
            )
        if "error" in told:
            raise RefusedError(told["error"])
        facts = told.get("model")
        model = None if facts is None else ModelFacts(**facts)
        return FollowedCode(Trace.from_json(told["trace"]), tuple(told["assumptions"]), model)

    def _read(self) -> dict[str, Any] | None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                told = json.loads(line)
            except ValueError:
                continue  # not the follower's: a start-up file of that Python prints, or it is no Python at all
            if isinstance(told, dict):
                return told
        return None
