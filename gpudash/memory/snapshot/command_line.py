"""Whole numbers that a program is given on its command line, and the command with another one in their place."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass

_ATTACHED = re.compile(r"(-[A-Za-z])(\d+)")
"""An option of one letter with its value behind it: ``-b16``."""


@dataclass(frozen=True)
class ProgramCommand:
    """How the program was started.

    Attributes:
        arguments: the program and its arguments; empty where that is not known.
        folder: in which it runs, an absolute path; "" where that is not known.
    """

    arguments: tuple[str, ...] = ()
    folder: str = ""

    @property
    def files(self) -> list[str]:
        """Absolute paths of the Python files that the arguments name, also as ``--config=FILE``."""
        named = [word.rpartition("=")[2] for word in self.arguments[1:]]
        return [posixpath.normpath(posixpath.join(self.folder, name)) for name in named if name.endswith(".py")]


UNKNOWN_COMMAND = ProgramCommand()


@dataclass(frozen=True)
class OptionValue:
    """A whole number that an option is given.

    Attributes:
        command: it stands in.
        option: as it is written: ``--batch-size``, ``-b``, ``trainer.batch_size``.
        value: the number.
        place: of the word that has it.
        prefix: what stands in that word before it.
    """

    command: ProgramCommand
    option: str
    value: int
    place: int
    prefix: str = ""

    @property
    def name(self) -> str:
        """What the program calls it: ``batch_size``."""
        return self.option.lstrip("-").replace("-", "_").rpartition(".")[2]

    def with_value(self, value: int) -> tuple[str, ...]:
        """The command with another number."""
        arguments = list(self.command.arguments)
        arguments[self.place] = f"{self.prefix}{value}"
        return tuple(arguments)


def option_values(command: ProgramCommand) -> Iterator[OptionValue]:
    """Every option of a command that is given a whole number, in their order; a later one counts more."""
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
