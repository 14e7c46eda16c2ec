"""A request to run and watch a program."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import dropwhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from gpudash.devices.names import SimulatedCard, read_card, written
from gpudash.session.watching.output.printed_metrics import check_pattern

if TYPE_CHECKING:
    from gpudash.telemetry.explanation import Remedy

Echo = Literal["nowhere", "in place", "stderr"]
"""Destination of the output besides the log: none, the same as ours, or our standard error for both streams."""

_PYTHON = re.compile(r"(?:python|pypy)[\d.]*(?:\.exe)?", re.IGNORECASE)

OWN_PYTHONS = (".venv/bin/python", "venv/bin/python", ".venv/Scripts/python.exe", "venv/Scripts/python.exe")
"""Usual paths of a project's own interpreter, next to its scripts."""

_ENVIRONMENTS = (".virtualenvs", "miniconda3", "anaconda3", "miniforge3", "mambaforge")
"""Usual folders of interpreters in the home folder."""

_INSTALLED = (
    "lib/python3*/site-packages/torch/version.py",
    "lib/python3*/dist-packages/torch/version.py",
    "local/lib/python3*/dist-packages/torch/version.py",
)
"""Path of PyTorch, relative to an interpreter's folder."""

_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")
"""Options of Python that take the next argument."""


@dataclass(frozen=True, slots=True)
class WatchRequest:
    """A program to run and watch.

    Attributes:
        command: program and arguments.
        folder: working directory; ``None`` for the present one.
        environment: environment variables in addition to ours.
        simulate: the GPUs to simulate, ``sim:0`` first.
        as_cuda: whether the simulated GPUs stand in for CUDA: the program calls them ``cuda:0`` and so on.
        simulate_others: bytes of simulated other processes on ``sim:0``.
        memory_history: whether to record allocations with their stacks.
        echo: destination of its output besides the log.
        status: descriptor of a socket with the terminal's status line, as in `output.relay`; requires `echo` "in
            place".
        metric_pattern: a regular expression that is applied to each line of output, with the groups ``loss``,
            ``accuracy``, ``step`` and ``epoch``; "" to find them by field names.
        find_need: whether to run the program again on a larger simulated GPU after an out-of-memory on one, to find
            its need; ``None`` to do so if it takes little time and writes nothing.
        edit: a unified diff with paths relative to the folder; the program runs from edited copies, and its files stay
            unchanged; "" for none.
    """

    command: Sequence[str]
    folder: Path | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    simulate: Sequence[SimulatedCard] = ()
    simulate_others: int = 0
    memory_history: bool = True
    echo: Echo = "nowhere"
    status: int | None = None
    metric_pattern: str = ""
    as_cuda: bool = False
    find_need: bool | None = None
    edit: str = ""

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any]) -> WatchRequest:
        """The request in a run's spec, as far as it contains one; an empty request for other specs."""
        environment = spec.get("environment") or {}
        return cls(
            command=tuple(map(str, spec.get("command") or ())),
            folder=Path(str(spec["folder"])) if spec.get("folder") else None,
            environment={str(name): str(value) for name, value in environment.items()},
            simulate=tuple(card for one in spec.get("simulate") or () if (card := read_card(one)) is not None),
            simulate_others=int(spec.get("simulate_others") or 0),
            memory_history=bool(spec.get("memory_history", True)),
            metric_pattern=str(spec.get("metric_pattern") or ""),
            as_cuda=bool(spec.get("as_cuda")),
            edit=str(spec.get("edit") or ""),
        )

    def with_remedy(self, remedy: Remedy) -> WatchRequest:
        """A copy with a change of the program, its command or its variables.

        A remedy is tried once: if the run also runs out of memory, no rerun looks for its need.
        """
        from gpudash.memory.explaining.whole_need import variables_of

        return replace(
            self,
            command=remedy.command or self.command,
            environment={**self.environment, **variables_of(remedy)},
            edit=remedy.patch,
            find_need=False,
        )

    def spec(self) -> dict[str, Any]:
        """The request as the spec of a run."""
        spec: dict[str, Any] = {
            "command": list(self.command),
            "folder": str(self.folder or Path.cwd()),
            "environment": dict(self.environment),
            "simulate": list(map(written, self.simulate)),
            "simulate_others": self.simulate_others,
            "memory_history": self.memory_history,
        }
        # Only if they differ from the default, so that recordings read as before.
        if self.as_cuda:
            spec["as_cuda"] = True
        if self.metric_pattern:
            spec["metric_pattern"] = self.metric_pattern
        if self.edit:
            spec["edit"] = self.edit
        return spec


class ProgramNotFoundError(ValueError):
    """There is no program of that name."""


class CannotExecuteError(ValueError):
    """The system refuses to execute the command."""


def check_request(request: WatchRequest) -> None:
    """Check that a program can be started.

    Raises:
        ValueError: one sentence, if it cannot; `ProgramNotFoundError` or `CannotExecuteError` if the program is the
            reason.
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
            if name.endswith(".py"):
                how = f"python {name}"
            else:
                how = f"./{name}"
            raise ProgramNotFoundError(f"{name} is not found on PATH; to run the file of that name, write: {how}.")
        raise ProgramNotFoundError(f"There is no program {name} on PATH; check its name, or write its whole path.")
    found = folder / name
    if not found.exists():
        raise ProgramNotFoundError(f"There is no program {name}; check its path.")
    if found.is_dir():
        raise CannotExecuteError(f"{name} is a folder, not a program; name the program in it.")
    if not os.access(found, os.X_OK):
        if name.endswith(".py"):
            how = f"python {name}"
        else:
            how = f"chmod +x {name}"
        raise CannotExecuteError(f"{name} may not be executed (permission denied); try: {how}.")


def script_of(command: Sequence[str]) -> str | None:
    """The script in a Python command; ``None`` for a module, code, or another program."""
    if _PYTHON.fullmatch(Path(command[0]).name) is None:
        return None
    rest = iter(command[1:])
    for word in rest:
        if word in ("-m", "-c", "-") or word.startswith(("-m", "-c")):
            return None
        if word in _WITH_VALUE:
            next(rest, None)
        elif not word.startswith("-"):
            return word
    return None


def arguments_of(command: Sequence[str]) -> str:
    """The arguments after a command's script, as typed in a shell; "" for a command without one."""
    script = script_of(command)
    if script is None:
        return ""
    return shlex.join(command[list(command).index(script) + 1 :])


def found_python(file: str) -> str:
    """The interpreter for a script: its project's own, else the one that a shell would find, else gpudash's."""
    if file:
        own = next(_own_pythons(Path(file).expanduser().absolute().parent), None)
        if own is not None:
            return str(own)
    return shutil.which("python3") or sys.executable


def python_with_torch(folder: Path, besides: str) -> Path | None:
    """An interpreter with PyTorch, by its files, without running any: of the project, on PATH, in the home folder's
    environments, or gpudash's own; ``None`` if there is none.

    Args:
        folder: folder of the project's script.
        besides: interpreter to exclude.
    """
    refused = Path(shutil.which(besides) or besides)
    on_path = [Path(found) for name in ("python3", "python") if (found := shutil.which(name))]
    homes = [Path.home() / name for name in _ENVIRONMENTS]
    at_home: list[Path] = []
    for home in homes:
        at_home += [home / "bin/python", *sorted(home.glob("*/bin/python")), *sorted(home.glob("envs/*/bin/python"))]
    for python in (*_own_pythons(folder), *on_path, *at_home, Path(sys.executable)):
        if python != refused and os.access(python, os.X_OK) and _has_torch(python):
            return python
    return None


def _own_pythons(folder: Path) -> Iterator[Path]:
    return (folder / name for name in OWN_PYTHONS if (folder / name).is_file())


def _has_torch(python: Path) -> bool:
    return any(next(python.parent.parent.glob(pattern), None) is not None for pattern in _INSTALLED)


def program_name(command: Sequence[str]) -> str:
    """The name of a command: its script, or the program; for ``env NAME=VALUE ...``, what that starts."""
    arguments = list(command)
    if Path(arguments[0]).name == "env":
        arguments = list(dropwhile(lambda word: "=" in word, arguments[1:]))
    if not arguments or arguments[0].startswith("-"):
        arguments = list(command)
    return Path(script_of(arguments) or arguments[0]).name
