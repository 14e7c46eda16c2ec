"""What every document in a tab is: a snapshot, a recording, a comparison, the list of recordings."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QWidget

from gpudash.ui.colours import Palette

if TYPE_CHECKING:
    from gpudash.ui.dashboard.dashboard import Dashboard
    from gpudash.ui.dashboard.plots_page import PlotsPage


class Document(QWidget):
    """A tab beside the dashboard.

    Signals:
        closed: it wants to be closed.
        said: a passing message for the status line.
        retitled: `title` is another, and `title_tip` perhaps.

    Attributes:
        title: the whole title of its tab.
        title_tip: what the tab's tooltip says instead of the title, or "".
        dashboard: over the session it shows, with its tables and forms; ``None`` for other documents.
        save: asks where, and saves the recordings of what is shown; ``None`` where that is at most a dashboard's.
    """

    closed = Signal()
    said = Signal(str)
    retitled = Signal()
    title: str = ""
    title_tip: str = ""
    dashboard: Dashboard | None = None
    save: Callable[[], object] | None = None

    @property
    def plots_page(self) -> PlotsPage | None:
        """What the commands on plots act on while it is in front; ``None`` without plots of a session."""
        return self.dashboard

    @property
    def why_no_saving(self) -> str:
        """Why nothing of it can be saved as a recording, and what to do, in a sentence; "" when something can."""
        if self.save is not None or self.dashboard is not None:
            return ""
        return "What is in front is no recording; bring the dashboard or a recording to the front."

    @property
    def unlinked(self) -> tuple[str, ...] | None:
        """Names of the machines that it shows over a link and that have none now; ``None`` where it shows no such."""
        return None

    def link_again(self) -> None:
        """Try now to link the machines that are not."""

    def title_within(self, longest: int) -> str:
        """The title in so many characters; "" where it may be cut in its middle."""
        return ""

    def show_run(self, number: int) -> None:
        """Bring a run of what is shown into view, counted from 1; a document that is not of runs stays as it is."""

    def refresh(self) -> None:
        """Draw what is new; called by the window's timer while it is in front."""

    def set_palette(self, palette: Palette) -> None:
        """Draw in other colours."""

    def close_document(self) -> None:
        """Let go of files, threads and processes; it is called once."""

    def copy_values(self) -> None:
        """Copy what is selected as tab-separated text."""

    def copy_picture(self) -> None:
        """Copy a picture of what is shown."""
