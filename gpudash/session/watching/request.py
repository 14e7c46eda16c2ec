"""What a program is asked to be run and watched with."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import dropwhile
from pathlib import Path
from typing import Any, Literal

from gpudash.devices.names import SimulatedCard, written
from gpudash.session.watching.printed_metrics import check_pattern

Echo = Literal["nowhere", "in place", "stderr"]
"""Where what is printed goes besides the log: nowhere, where ours goes, or both to our standard error."""

_PYTHON = re.compile(r"(?:python|pypy)[\d.]*(?:\.exe)?", re.IGNORECASE)

_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")
"""Options of Python that the next word belongs to."""


@dataclass(frozen=True, slots=True)
class WatchRequest:
    """What is to be run and watched.

    Attributes:
        command: program and arguments.
        folder: to run it in; ``None``: the present one.
        environment: variables beside ours.
        simulate: the GPUs to simulate, ``sim:0`` first.
        simulate_others: bytes of ``sim:0`` that simulated other processes hold.
        memory_history: whether allocations are recorded with their stacks.
        echo: where what it prints goes besides the log.
        metric_pattern: a regular expression whose groups ``loss``, ``accuracy``, ``step`` and ``epoch`` are read of
            every line that it prints; "" to find them by the names of fields.
    """

    command: Sequence[str]
    folder: Path | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    simulate: Sequence[SimulatedCard] = ()
    simulate_others: int = 0
    memory_history: bool = True
    echo: Echo = "nowhere"
    metric_pattern: str = ""

    def spec(self) -> dict[str, Any]:
        """The request as a run's spec."""
        return {
            "command": list(self.command),
            "folder": str(self.folder or Path.cwd()),
            "environment": dict(self.environment),
            "simulate": [written(card) for card in self.simulate],
            "simulate_others": self.simulate_others,
            "memory_history": self.memory_history,
            **({"metric_pattern": self.metric_pattern} if self.metric_pattern else {}),
        }


def check_request(request: WatchRequest) -> None:
    """Make sure that a program can be started.

    Raises:
        ValueError: one sentence, when it cannot.
    """
    if request.metric_pattern:
        check_pattern(request.metric_pattern)
    if not request.command or not request.command[0]:
        raise ValueError("There is no command to watch; write for example: python train.py.")
    folder = request.folder or Path.cwd()
    if not folder.is_dir():
        raise ValueError(f"There is no folder {folder} to run the command in; name one that is there.")
    if not os.access(folder, os.X_OK):
        raise ValueError(f"The folder {folder} may not be entered; choose another, or have its permissions changed.")
    _check_program(request.command[0], folder, {**os.environ, **request.environment}.get("PATH"))
    script = script_of(request.command)
    if script is None:
        return
    path = folder / script
    if not path.exists():
        raise ValueError(f"There is no script {script} in {folder}; check its name, or name the folder.")
    if not os.access(path, os.R_OK):
        raise ValueError(f"The script {path} may not be read; have its permissions changed.")
    if path.is_dir() and not (path / "__main__.py").is_file():
        raise ValueError(f"{path} is a folder without a __main__.py; name the script in it.")


def _check_program(name: str, folder: Path, path: str | None) -> None:
    if os.sep not in name:
        if shutil.which(name, path=path) is not None:
            return
        if (folder / name).is_file():
            how = f"python {name}" if name.endswith(".py") else f"./{name}"
            raise ValueError(f"{name} is not found on PATH; to run the file of that name, write: {how}.")
        raise ValueError(f"There is no program {name} on PATH; check its name, or write its whole path.")
    found = folder / name
    if not found.exists():
        raise ValueError(f"There is no program {name}; check its path.")
    if found.is_dir():
        raise ValueError(f"{name} is a folder, not a program; name the program in it.")
    if not os.access(found, os.X_OK):
        how = f"python {name}" if name.endswith(".py") else f"chmod +x {name}"
        raise ValueError(f"{name} may not be executed (permission denied); try: {how}.")


def script_of(command: Sequence[str]) -> str | None:
    """The script that a command gives to Python; ``None`` where it gives a module or text, or runs something else."""
    if _PYTHON.fullmatch(Path(command[0]).name) is None:
        return None
    words = iter(command[1:])
    for word in words:
        if word in ("-m", "-c", "-") or word.startswith(("-m", "-c")):
            return None
        if word in _WITH_VALUE:
            next(words, None)
        elif not word.startswith("-"):
            return word
    return None


def program_name(command: Sequence[str]) -> str:
    """What a command is called: its script, or the program; of ``env NAME=VALUE ...`` what that starts."""
    words = list(command)
    if Path(words[0]).name == "env":
        words = list(dropwhile(lambda word: "=" in word, words[1:]))
    if not words or words[0].startswith("-"):
        words = list(command)
    return Path(script_of(words) or words[0]).name
