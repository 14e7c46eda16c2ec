"""The process that predicts a user's code: ``python -m gpudash.workloads.predicting.own_code_process PYTHON``.

The code is followed by PYTHON, in which torch is and gpudash need not be; here what came of it is judged, without
torch. It is asked and answers as `gpudash.workloads.predicting.estimate_process` does; asked ``{"id", "callable",
"steps", "target", "elsewhere", "alternatives"}``.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from gpudash.memory.allocator.trace import Trace
from gpudash.memory.predicting.architecture import Architecture
from gpudash.memory.predicting.estimate import Estimate, Target, judge
from gpudash.system.processes import Conversation
from gpudash.workloads.predicting.device_fit import unchanged

FOLLOWER = Path(__file__).parents[2] / "simulator" / "dry_run" / "own_code_process.py"

NO_ANSWER = "{python} ended without an answer{how}."
AGAIN = "Run the code there by itself, and fix what ends it."
NAME_ANOTHER = "Name a Python that has torch 2.9 or newer with --python."


class RefusedError(Exception):
    """The code was not followed; what the process says of it."""

    def __init__(self, error: Mapping[str, Any]) -> None:
        super().__init__(error["message"])
        self.error = error


@dataclass(frozen=True)
class OwnCode:
    """A user's code as it is followed.

    Attributes:
        name: ``package.module:function``.
        steps: how many are followed.
    """

    name: str
    steps: int


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

    def greeting(self) -> dict[str, Any]:
        """What it says of itself, once its torch is there."""
        told = self._read()
        if told is None:
            how = self._process.wait()
            return {"ready": False, "problem": NO_ANSWER.format(python=self._python, how=f" (exit code {how})")}
        return told

    def follow(self, code: OwnCode, architecture: Architecture) -> tuple[Trace, tuple[str, ...]]:
        """What the code asks of the allocator of a GPU, and what that takes for granted.

        Raises:
            RefusedError: when the code cannot be followed, or ended the process.
        """
        assert self._process.stdin is not None
        asked = {"callable": code.name, "steps": code.steps, "architecture": asdict(architecture)}
        self._process.stdin.write(json.dumps(asked) + "\n")
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
        return Trace.from_json(told["trace"]), tuple(told["assumptions"])

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


def estimate(
    code: OwnCode,
    follower: CodeFollower,
    target: Target,
    elsewhere: Sequence[Target] = (),
    *,
    alternatives: bool = True,
) -> Estimate:
    """Predict what any code takes that builds a model and steps it.

    Args:
        code: what is followed.
        follower: follows it.
        target: where it is to fit.
        elsewhere: the other devices there are.
        alternatives: whether to look for what would let the code fit as it is.

    Raises:
        RefusedError: as `CodeFollower.follow`.
    """
    began = time.perf_counter()
    known: dict[Architecture, tuple[Trace, tuple[str, ...]]] = {}

    def trace_on(where: Target) -> Trace:
        architecture = target.architecture if where.device == "cpu" else where.architecture
        if architecture not in known:
            known[architecture] = follower.follow(code, architecture)
        return known[architecture][0]

    found = judge(trace_on(target), target, code.name)
    found = replace(found, assumptions=known[target.architecture][1])
    if alternatives and target.room_bytes is not None and not found.has_room:
        found = replace(found, alternatives=tuple(unchanged(trace_on, target, found, elsewhere)))
    return replace(found, seconds=time.perf_counter() - began)


def main(python: str) -> int:
    """Answer until the standard input ends; returns only when ``python`` cannot follow anything."""
    conversation = Conversation()
    try:
        follower = CodeFollower(python)
    except OSError as error:
        problem = f"{python} cannot be started ({error.strerror})."
        conversation.tell({"ready": False, "problem": problem, "remedy": NAME_ANOTHER})
        return 1
    greeting = follower.greeting()
    conversation.tell({**greeting, "remedy": NAME_ANOTHER})
    if not greeting["ready"]:
        return 1
    conversation.start()
    while True:
        conversation.tell(_answer(conversation.next(), follower))


def _answer(asked: Mapping[str, Any], follower: CodeFollower) -> dict[str, Any]:
    code = OwnCode(str(asked["callable"]), int(asked.get("steps", 3)))
    target = Target.from_json(asked["target"])
    elsewhere = [Target.from_json(other) for other in asked.get("elsewhere", ())]
    try:
        found = estimate(code, follower, target, elsewhere, alternatives=bool(asked.get("alternatives", True)))
    except RefusedError as refused:
        return {"id": asked["id"], "error": refused.error, "final": True}
    return {"id": asked["id"], "estimate": found.to_json(), "final": True}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
