"""Integers on a program's command line, and the command with another number."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass

_ATTACHED = re.compile(r"(-[A-Za-z])(\d+)")
"""A single-letter option with its value attached: ``-b16``."""


@dataclass(frozen=True)
class ProgramCommand:
    """How the program was started.

    Attributes:
        arguments: the program and its arguments; empty if unknown.
        folder: working directory, an absolute path; "" if unknown.
    """

    arguments: tuple[str, ...] = ()
    folder: str = ""

    @property
    def files(self) -> list[str]:
        """Absolute paths of the Python files in the arguments, also in the form ``--config=FILE``."""
        named = [word.rpartition("=")[2] for word in self.arguments[1:]]
        return [posixpath.normpath(posixpath.join(self.folder, name)) for name in named if name.endswith(".py")]


UNKNOWN_COMMAND = ProgramCommand()


@dataclass(frozen=True)
class OptionValue:
    """An integer passed to an option.

    Attributes:
        command: its command.
        option: the option as written: ``--batch-size``, ``-b``, ``trainer.batch_size``.
        value: the integer.
        place: index of the argument with the integer.
        prefix: text before it in that argument.
    """

    command: ProgramCommand
    option: str
    value: int
    place: int
    prefix: str = ""

    @property
    def name(self) -> str:
        """Its name in Python: ``batch_size``."""
        return self.option.lstrip("-").replace("-", "_").rpartition(".")[2]

    def with_value(self, value: int) -> tuple[str, ...]:
        """The command with another number."""
        arguments = list(self.command.arguments)
        arguments[self.place] = f"{self.prefix}{value}"
        return tuple(arguments)


def option_values(command: ProgramCommand) -> Iterator[OptionValue]:
    """Every option with an integer in a command, in order; later ones take precedence."""
    arguments = command.arguments
    for place, word in enumerate(arguments[1:], 1):
        option, has_value, text = word.partition("=")
        attached = _ATTACHED.fullmatch(word)
        if attached is not None:
            yield OptionValue(command, attached[1], int(attached[2]), place, attached[1])
        elif has_value and _is_number(text):
            yield OptionValue(command, option, int(text), place, f"{option}=")
        elif word.startswith("-") and not has_value and _is_number("".join(arguments[place + 1 : place + 2])):
            yield OptionValue(command, word, int(arguments[place + 1]), place + 1)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 10
