"""Opening a line of the user's program in an editor."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from PySide6.QtCore import QProcess, QUrl
from PySide6.QtGui import QDesktopServices


def editor_command(file: str, line: int) -> list[str] | None:
    """The command that opens a line in the editor named by ``VISUAL``; ``None`` without an editor that has a
    window."""
    try:
        command = shlex.split(os.environ.get("VISUAL", ""))
    except ValueError:
        return None
    if not command:
        return None
    name = Path(command[0]).name
    if name in ("code", "codium", "code-insiders"):
        return [*command, "--goto", f"{file}:{line}"]
    if name in ("subl", "zed", "hx", "charm", "pycharm"):
        return [*command, f"{file}:{line}"]
    return [*command, f"+{line}", file]


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
        return f"The desktop was asked to open {file} (line {line}). If nothing opens, set VISUAL to your editor."
    return f"No program opens {file}: set VISUAL to your editor."
