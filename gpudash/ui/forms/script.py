"""The user's own program as a form holds it: checked field by field, and turned into what is to be watched."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gpudash.devices.names import SimulatedCard, card_words, parse_simulated, read_card
from gpudash.session.watching.request import found_python, script_of


@dataclass(frozen=True, slots=True)
class Script:
    """What the form holds, as text.

    Attributes:
        file: the script.
        arguments: as they would be typed in a shell.
        folder: to run in; "" is the script's own.
        environment: NAME=value, several of them in lines or between spaces, quoted as in a shell.
        python: the interpreter; "" is `found_python`.
        simulate: size or name of a simulated GPU; "" for none.
        memory_history: whether every allocation is written down with its call stack.
    """

    file: str = ""
    arguments: str = ""
    folder: str = ""
    environment: str = ""
    python: str = ""
    simulate: str = ""
    memory_history: bool = True

    def to_json(self) -> dict[str, Any]:
        """The values for a file."""
        return asdict(self)

    @classmethod
    def from_json(cls, kept: Any) -> Script:
        """The values from a file; what is not as it should be has its default."""
        if not isinstance(kept, dict):
            return cls()
        defaults = asdict(cls())
        usable = {name: kept[name] for name in defaults if type(kept.get(name)) is type(defaults[name])}
        return cls(**{**defaults, **usable})

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any]) -> Script:
        """The values of a recorded run, as far as they can be told from its command."""
        command = [str(word) for word in spec.get("command") or ()]
        file = (script_of(command) if command else None) or ""
        place = command.index(file) if file else 0
        cards = [card for told in spec.get("simulate") or () if (card := read_card(told)) is not None]
        variables = spec.get("environment") or {}
        return cls(
            file=file,
            arguments=shlex.join(command[place + 1 :]) if command else "",
            folder=str(spec.get("folder") or ""),
            environment="\n".join(f"{name}={shlex.quote(str(value))}" for name, value in variables.items()),
            python=shlex.join(command[:place] or command[:1]),
            simulate=card_words(cards[0]) if cards else "",
            memory_history=bool(spec.get("memory_history")),
        )

    def problems(self) -> dict[str, str]:
        """Field → what is wrong with it, in one sentence."""
        found = {
            "file": _file_problem(self.file),
            "arguments": _quoting_problem(self.arguments),
            "folder": _folder_problem(self.folder),
            "environment": _environment_problem(self.environment),
            "python": _python_problem(self.python),
            "simulate": _card_problem(self.simulate),
        }
        return {name: problem for name, problem in found.items() if problem}

    @property
    def path(self) -> Path:
        """The script."""
        return Path(self.file).expanduser()

    @property
    def working_folder(self) -> Path:
        """Where it runs."""
        return Path(self.folder).expanduser() if self.folder else self.path.absolute().parent

    @property
    def command(self) -> tuple[str, ...]:
        """What is run. The values must have no problems."""
        return (self._interpreter, str(self.path.absolute()), *shlex.split(self.arguments))

    @property
    def _interpreter(self) -> str:
        if not self.python:
            return found_python(self.file)
        named = Path(self.python).expanduser()
        return str(named.absolute()) if len(named.parts) > 1 else self.python  # a bare name is looked up on PATH

    @property
    def variables(self) -> dict[str, str]:
        """Environment variables that are added. The values must have no problems."""
        parts = (word.partition("=") for word in shlex.split(self.environment))
        return {name: value for name, _equals, value in parts}

    @property
    def simulated_card(self) -> SimulatedCard | None:
        """The simulated GPU. The values must have no problems."""
        return parse_simulated(self.simulate) if self.simulate else None


def python_words(python: str, script: Script) -> str:
    """A short name for an interpreter: from the script's folder on where it lies in there, else the program alone."""
    folder = script.path.absolute().parent
    path = Path(python)
    return str(path.relative_to(folder)) if script.file and path.is_relative_to(folder) else path.name


def _file_problem(text: str) -> str:
    if not text:
        return "Choose the script to run."
    path = Path(text).expanduser()
    if not path.exists():
        return f"There is no file {text}."
    return "" if path.is_file() else f"{text} is a folder; name the script in it."


def _quoting_problem(text: str) -> str:
    try:
        shlex.split(text)
    except ValueError:
        return "A quote is opened and not closed."
    return ""


def _folder_problem(text: str) -> str:
    if not text:
        return ""
    path = Path(text).expanduser()
    if not path.exists():
        return f"There is no folder {text}."
    return "" if path.is_dir() else f"{text} is a file, not a folder."


def _environment_problem(text: str) -> str:
    try:
        words = shlex.split(text)
    except ValueError:
        return "A quote is opened and not closed."
    for word in words:
        name, equals, _value = word.partition("=")
        if not equals or not name:
            return f"{word!r} is not NAME=value."
        if name.startswith("GPUDASH_"):
            return f"{name} is set by gpudash itself."
    return ""


def _python_problem(text: str) -> str:
    if not text or shutil.which(Path(text).expanduser()):
        return ""
    return f"{text} is not a program that can be run."


def _card_problem(text: str) -> str:
    if not text:
        return ""
    try:
        parse_simulated(text)
    except ValueError as error:
        return str(error)
    return ""
