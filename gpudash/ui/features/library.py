"""Shows the session library in a window, once."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from gpudash.ui.compare import open_comparison

if TYPE_CHECKING:
    from gpudash.ui.window.main_window import MainWindow

KEY = "recordings"
"""The library's among the documents of a window."""


def open_library(window: MainWindow) -> None:
    """Bring the library to the front; it is opened where it is not open."""
    documents = window.documents
    if documents.show_path(KEY):
        return
    from gpudash.session.recordings.library import Librarian
    from gpudash.ui.recordings.library import TITLE, LibraryDocument

    document = LibraryDocument(
        Librarian(),
        window.undoing,
        window.palette_,
        settings=lambda: window.session.settings,
        open_recording=window.opening.open,
        compare=partial(open_comparison, window),
        is_open=documents.is_open,
        start=window.start_run,
    )
    documents.add(document, KEY, TITLE)
