"""Recorded runs in tabs: the library and comparisons."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from PySide6.QtWidgets import QWidget

from gpudash.ui.widgets.layouts import in_column
from gpudash.ui.window.menus import Command
from gpudash.ui.window.workspace import Workspace
from gpudash.units import format_count

if TYPE_CHECKING:
    from gpudash.ui.recordings.compare.document import CompareDocument
    from gpudash.ui.recordings.library import LibraryDocument
    from gpudash.ui.recordings.runs_column import RunsColumn

RUNS = "Runs"
"""Title of the tab with the latest runs; their number is appended."""

KEY = "recordings"
"""Key of the library among the window's documents."""


def commands(workspace: Workspace) -> list[Command]:
    """File > Session Library, and Analyse > Compare With; also adds the runs at the left of the live dashboard."""
    if workspace.live:
        LastRuns(workspace)
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
            "Overlay this run with others: tick them in the list of all runs",
            partial(compare_with, workspace),
            ("Ctrl+D",),
            id="analyse.compare",
        ),
    ]


class LastRuns(QWidget):
    """Holds the latest runs at the left of the live dashboard. They are created once torch is loaded or when the page
    becomes visible: the window can be shown without what they import.

    Args:
        workspace: its dashboard gets the page, and it carries out what the user does there.
    """

    def __init__(self, workspace: Workspace) -> None:
        super().__init__()
        self._workspace = workspace
        self._runs: RunsColumn | None = None
        self._layout = in_column(parent=self, margins=(0, 0, 0, 0))
        workspace.dashboard.left.add_face(self, RUNS)
        workspace.refreshed.connect(self._refresh)
        workspace.colours_changed.connect(self._recolour)
        workspace.at_close(self._close)

    def _refresh(self) -> None:
        live = self._workspace.session.live
        ready = live is not None and live.torch_ready
        if self._runs is None and (ready or self.isVisible()):
            self._runs = self._made()
            self._layout.addWidget(self._runs)
        if self._runs is not None:
            if ready:
                self._runs.begin()
            self._runs.refresh()
            running = live is not None and live.running
            self._runs.show_stop(self._workspace.dashboard.panel.button if running else None)

    def _made(self) -> RunsColumn:
        from gpudash.session.recordings.comparing.overlaid_runs import OverlaidRuns
        from gpudash.ui.recordings.runs_column import RunsColumn

        workspace = self._workspace
        runs = RunsColumn(workspace.session, workspace.colours)
        runs.opened.connect(lambda path, number: workspace.open(path, run=number))
        runs.own_chosen.connect(self._show_own)
        runs.compare.connect(partial(open_comparison, workspace))
        self._overlaid = OverlaidRuns(workspace.session.store)
        runs.ticked_changed.connect(partial(workspace.dashboard.overlay.choose, self._overlaid))
        runs.library_wanted.connect(partial(open_library, workspace))
        runs.counted.connect(lambda count: workspace.dashboard.left.name_face(self, _runs_title(count)))
        runs.stop_wanted.connect(workspace.dashboard.panel.toggle)
        runs.said.connect(workspace.report)
        return runs

    def _show_own(self, number: int) -> None:
        self._workspace.show_dashboard()
        self._workspace.dashboard.hold_run(number)

    def _recolour(self) -> None:
        if self._runs is not None:
            self._runs.set_palette(self._workspace.colours)

    def _close(self) -> bool:
        if self._runs is None:
            return True
        ended = self._overlaid.close()
        return self._runs.close_watcher() and ended


def _runs_title(count: int) -> str:
    if count:
        return f"{RUNS} {format_count(count)}"
    return RUNS


def open_library(workspace: Workspace) -> LibraryDocument:
    """Switch to the library; open it if it is not open."""
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
    """Compare recordings in a tab, the first as A; if a tab compares them already, switch to it.

    Args:
        workspace: receives the tab and reports failures.
        paths: two to six recordings, each ``FILE`` or ``FILE#N``.
    """
    from gpudash.ui.recordings.compare.document import CompareDocument

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
    """List all runs, with the newest run of the current recording ticked, or of the one being recorded."""
    recording: Path | None = workspace.target_dashboard.session.recording_path
    open_library(workspace).offer_to_compare([] if recording is None else [recording])
