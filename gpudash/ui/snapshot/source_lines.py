"""Lines of the user's program, where its files are still there; and opening them in an editor."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from PySide6.QtCore import QProcess, QUrl
from PySide6.QtGui import QDesktopServices

from gpudash.units import MIB

LARGEST = 4 * MIB
"""Bytes of the largest file that is read for showing its lines."""

MOST_FILES = 200


class SourceLines:
    """Reads lines of Python files, each file once."""

    def __init__(self) -> None:
        self._files: dict[str, list[str]] = {}

    def __call__(self, file: str, line: int) -> str:
        """The text of a line without the blanks behind it; "" when it cannot be read."""
        if not file.endswith(".py"):
            return ""
        if file not in self._files:
            if len(self._files) >= MOST_FILES:
                self._files.clear()
            self._files[file] = _lines(Path(file))
        lines = self._files[file]
        return lines[line - 1].rstrip() if 0 < line <= len(lines) else ""


def _lines(path: Path) -> list[str]:
    try:
        if not path.is_absolute() or not path.is_file() or path.stat().st_size > LARGEST:
            return []
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def editor_command(file: str, line: int) -> list[str] | None:
    """How the editor named by ``VISUAL`` opens a line; ``None`` without one that has a window of its own."""
    try:
        words = shlex.split(os.environ.get("VISUAL", ""))
    except ValueError:
        return None
    if not words:
        return None
    name = Path(words[0]).name
    if name in ("code", "codium", "code-insiders"):
        return [*words, "--goto", f"{file}:{line}"]
    if name in ("subl", "zed", "hx", "charm", "pycharm"):
        return [*words, f"{file}:{line}"]
    return [*words, f"+{line}", file]


def open_in_editor(file: str, line: int) -> str:
    """Open a line in the user's editor.

    Returns:
        What happened, in a sentence.
    """
    if not Path(file).is_file():
        return f"{file} is not on this computer."
    command = editor_command(file, line)
    if command is not None and QProcess.startDetached(command[0], command[1:])[0]:
        return f"Opened {file}:{line} with {Path(command[0]).name}."
    if QDesktopServices.openUrl(QUrl.fromLocalFile(file)):
        return f"Opened {file}; line {line}."
    return f"No program opens {file}: set VISUAL to your editor."
