"""Printing in a terminal: apart from `gpudash.cli.output`, for a window that opens needs none of it."""

from __future__ import annotations

from rich.console import Console

from gpudash.cli.output import discard_stdout


class QuietConsole(Console):
    """Prints no more when its reader has gone away, and keeps the exit code that the command earns."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        discard_stdout()
