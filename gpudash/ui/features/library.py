"""Shows the session library in a window, once."""

from __future__ import annotations

from functools import partial

from gpudash.ui.features.compare import open_comparison
from gpudash.ui.window.menus import Command
from gpudash.ui.window.workspace import Workspace

KEY = "recordings"
"""The library's among the documents of a window."""


def commands(workspace: Workspace) -> list[Command]:
    """File > Session Library."""
    return [
        Command(
            "File",
            "Session Library",
            "The recorded sessions: open, compare, lock, rename and delete them",
            partial(open_library, workspace),
            ("Ctrl+Shift+O",),
            id="file.library",
            after="file.clear_recent",
        )
    ]


def open_library(workspace: Workspace) -> None:
    """Bring the library to the front; it is opened where it is not open."""
    if workspace.show_path(KEY):
        return
    from gpudash.session.recordings.library import Librarian
    from gpudash.ui.recordings.library import TITLE, LibraryDocument

    document = LibraryDocument(
        Librarian(),
        workspace.undo,
        workspace.colours,
        settings=lambda: workspace.session.settings,
        open_recording=workspace.open,
        compare=partial(open_comparison, workspace),
        is_open=workspace.is_open,
        start=workspace.start_run,
    )
    workspace.add(document, KEY, TITLE)
