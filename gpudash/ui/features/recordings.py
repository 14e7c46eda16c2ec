"""Recorded runs as tabs: the library of them, and comparisons."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gpudash.ui.window.menus import Command
from gpudash.ui.window.workspace import Workspace
from gpudash.units import format_count

if TYPE_CHECKING:
    from gpudash.ui.compare.document import CompareDocument
    from gpudash.ui.recordings.library import LibraryDocument

RUNS = "Runs"
"""What the tab of the last runs says, with their number."""

KEY = "recordings"
"""The library's among the documents of a window."""


def commands(workspace: Workspace) -> list[Command]:
    """File > Session Library, and Analyse > Compare With; and the runs at the left of the live dashboard."""
    if workspace.live:
        _add_runs(workspace)
    return [
        Command(
            "File",
            "Session Library",
            "The recorded runs: open, compare, name, tag, lock and delete them",
            partial(open_library, workspace),
            ("Ctrl+Shift+O",),
            id="file.library",
            after="file.clear_recent",
        ),
        Command(
            "Analyse",
            "Compare With…",
            "Lay this run, of this session or recording, over others: tick them in the list of all runs",
            partial(compare_with, workspace),
            ("Ctrl+D",),
            id="analyse.compare",
        ),
    ]


def _add_runs(workspace: Workspace) -> None:
    """Put the last runs behind a tab beside the form; the folder is looked at once torch has been loaded."""
    from gpudash.ui.recordings.runs_column import RunsColumn

    session, dashboard = workspace.session, workspace.dashboard
    runs = RunsColumn(session, workspace.colours)
    dashboard.left.add_face(runs, RUNS)

    def refresh() -> None:
        if session.live is not None and session.live.torch_ready:
            runs.begin()
        runs.refresh()

    def show_own(number: int) -> None:
        workspace.show_dashboard()
        dashboard.hold_run(number)

    runs.opened.connect(lambda path, number: workspace.open(path, run=number))
    runs.own_chosen.connect(show_own)
    runs.compare.connect(partial(open_comparison, workspace))
    runs.library_wanted.connect(partial(open_library, workspace))
    runs.counted.connect(lambda count: dashboard.left.name_face(runs, _runs_title(count)))
    runs.said.connect(workspace.report)
    workspace.refreshed.connect(refresh)
    workspace.colours_changed.connect(lambda: runs.set_palette(workspace.colours))
    workspace.at_close(runs.close_watcher)


def _runs_title(count: int) -> str:
    if count:
        return f"{RUNS} {format_count(count)}"
    return RUNS


def open_library(workspace: Workspace) -> LibraryDocument:
    """Bring the library to the front; it is opened where it is not open."""
    from gpudash.session.recordings.library import LibraryWatcher
    from gpudash.ui.recordings.library import TITLE, LibraryDocument

    if workspace.show_path(KEY) and isinstance(workspace.front, LibraryDocument):
        return workspace.front
    document = LibraryDocument(
        LibraryWatcher(),
        workspace.undo,
        workspace.colours,
        settings=lambda: workspace.session.settings,
        open_recording=lambda path, run: workspace.open(path, run=run),
        compare=partial(open_comparison, workspace),
        is_open=workspace.is_open,
        start=workspace.start_run,
    )
    workspace.add(document, KEY, TITLE)
    return document


def open_comparison(workspace: Workspace, paths: Sequence[Path]) -> CompareDocument | None:
    """Compare recordings in a tab, the first as A; a tab that compares them already comes to the front.

    Args:
        workspace: where the tab is added, and what cannot be opened is told.
        paths: two to six recordings, each ``FILE`` or ``FILE#N``.
    """
    from gpudash.ui.compare.document import CompareDocument

    whole = [Path(os.path.abspath(path.expanduser())) for path in paths]  # noqa: PTH100  # resolve() would rename tabs
    key = "\n".join(["comparison", *map(str, whole)])
    if workspace.show_path(key):
        return None
    try:
        document = CompareDocument(whole, workspace.colours)
    except ValueError as error:
        workspace.notice.report(str(error))
        return None
    workspace.add(document, key, document.title)
    return document


def compare_with(workspace: Workspace) -> None:
    """List all runs, the newest of what is in front ticked: of the recording, else of what is being recorded."""
    recording: Path | None = workspace.target_dashboard.session.recording
    open_library(workspace).offer_to_compare([] if recording is None else [recording])
