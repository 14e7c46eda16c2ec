"""Base of every document in a tab: a snapshot, a recording, a comparison, the list of recordings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from PySide6.QtCore import Signal
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QStackedWidget, QWidget

from gpudash.ui.colours import Palette
from gpudash.ui.widgets.layouts import in_column
from gpudash.ui.widgets.opening_page import OpeningPage

if TYPE_CHECKING:
    from gpudash.ui.dashboard.dashboard import Dashboard
    from gpudash.ui.dashboard.plots_page import PlotsPage


class Document(QWidget):
    """A tab beside the dashboard.

    Signals:
        closed: the document asks to be closed.
        said: a passing message for the status line.
        retitled: `title`, and perhaps `title_tip`, changed.

    Attributes:
        title: full title of the tab.
        title_tip: tooltip of the tab in place of the title, or "".
        dashboard: dashboard of the session it shows, with tables and forms; ``None`` for other documents.
        save: asks where, and saves the recordings of what is shown; ``None`` if at most a dashboard can be saved.
        pictured: what a copied picture shows, for the sentence that says so; "" where nothing is copied.
        save_picture: writes a picture of its graph, as SVG if the name ends so; ``None`` without a graph of its own.
    """

    closed = Signal()
    said = Signal(str)
    retitled = Signal()
    title: str = ""
    title_tip: str = ""
    dashboard: Dashboard | None = None
    save: Callable[[], object] | None = None
    save_picture: Callable[[Path], object] | None = None
    pictured = ""

    @property
    def plots_page(self) -> PlotsPage | None:
        """The page that plot commands act on while the document is in front; ``None`` without plots of a session."""
        return self.dashboard

    @property
    def why_no_saving(self) -> str:
        """Why nothing here can be saved as a recording, and what to do instead, in a sentence; "" if something can."""
        if self.save is not None or self.dashboard is not None:
            return ""
        return "This tab is not a recording; switch to the dashboard or a recording."

    @property
    def unlinked(self) -> tuple[str, ...] | None:
        """Names of linked machines that have lost their link; ``None`` for a document without links."""
        return None

    def link_again(self) -> None:
        """Reconnect now."""

    def title_within(self, longest: int) -> str:
        """The title in at most this many characters; "" if eliding its middle is fine."""
        return ""

    def show_run(self, number: int) -> None:
        """Bring a run into view, counted from 1; does nothing in a document without runs."""

    def refresh(self) -> None:
        """Draw what is new; called by the window's timer while the document is in front."""

    def set_palette(self, palette: Palette) -> None:
        """Redraw in other colours."""
        if self.plots_page is not None:
            self.plots_page.set_palette(palette)

    def close_document(self) -> None:
        """Release files, threads and processes; called once."""

    def copy_values(self) -> None:
        """Copy the selection as tab-separated text."""
        if self.plots_page is not None:
            self.plots_page.copy_values()

    def copy_picture(self) -> None:
        """Copy a picture of what is shown."""
        if self.plots_page is not None:
            self.plots_page.copy_picture()
        elif self.pictured:
            QGuiApplication.clipboard().setPixmap(self.grab())
            self.said.emit(f"Copied {self.pictured} as a picture.")


class FileDocument(Document):
    """A document of a file that takes a while to read: first the progress, then the contents or why there are none.

    Args:
        title: full title of the tab.
        kind: what the file is, for screen readers.
        opening: the page that shows the progress.
    """

    def __init__(self, title: str, kind: str, opening: OpeningPage) -> None:
        super().__init__()
        self.title = title
        self.setAccessibleName(f"{kind} {title}")
        self.opening = opening
        self.opening.cancelled.connect(self.closed)
        self._stack = QStackedWidget()
        self._stack.addWidget(opening)
        in_column(self._stack, parent=self, margins=(0, 0, 0, 0))

    def _refuse(self, sentence: str) -> None:
        """Show why the file was not opened."""
        self._stack.setCurrentWidget(self.opening)
        self.opening.show_refusal(sentence)
        self.said.emit(sentence)
