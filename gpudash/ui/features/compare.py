"""Opens a comparison as a tab."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from PySide6.QtWidgets import QFileDialog

from gpudash.settings import recordings_folder
from gpudash.ui.window.actions import Command

if TYPE_CHECKING:
    from gpudash.ui.compare.document import CompareDocument
    from gpudash.ui.window.main_window import MainWindow

KINDS = "Recordings (*.gpudash);;All files (*)"


def open_comparison(window: MainWindow, paths: Sequence[Path]) -> CompareDocument | None:
    """Compare recordings in a tab of ``window``, the first as A; a tab that compares them already comes to the front.

    Args:
        window: where the tab is added, and what cannot be opened is told.
        paths: two to six recordings, each ``FILE`` or ``FILE#N``.
    """
    from gpudash.ui.compare.document import CompareDocument

    whole = [Path(os.path.abspath(path.expanduser())) for path in paths]  # noqa: PTH100  # resolve() would rename tabs
    key = "\n".join(["comparison", *map(str, whole)])
    if window.documents.show_path(key):
        return None
    try:
        document = CompareDocument(whole, window.palette_)
    except ValueError as error:
        window.documents.notice.tell(str(error))
        return None
    window.documents.add(document, key, document.title)
    return document


def compare_with(window: MainWindow) -> CompareDocument | None:
    """Ask for recordings and compare what is in front with them: the recording, else what is being recorded."""
    dashboard = window.front_dashboard or window.dashboard
    first: Path | None = dashboard.session.recording
    title = "Choose recordings to compare" if first is None else f"Compare {first.name} with"
    start = recordings_folder() if first is None else first.parent
    chosen, _kind = QFileDialog.getOpenFileNames(window, title, str(start), KINDS)
    if not chosen:
        return None
    paths = [Path(name) for name in chosen]
    return open_comparison(window, paths if first is None else [first, *paths])


def compare_command(window: MainWindow) -> Command:
    """The menu's entry for `compare_with`."""
    return Command(
        "Analyse",
        "Compare With…",
        "Lay this recording, or what is being recorded, over other recordings",
        lambda: compare_with(window),
        ("Ctrl+D",),
    )
