"""The dashboard and the open documents, one in front; a bar of tabs stands above them while a document is open."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtCore import QSize, Qt, Signal
from PySide6.QtWidgets import QStackedWidget, QTabBar, QToolButton, QVBoxLayout, QWidget

from gpudash.ui.colours import Palette
from gpudash.ui.dashboard.dashboard import Dashboard
from gpudash.ui.dashboard.document import Document
from gpudash.ui.dashboard.status_line import StatusLine
from gpudash.ui.widgets.notice import Notice
from gpudash.ui.widgets.plain_text import plain_tip, without_mnemonics
from gpudash.ui.window.dropping import leave_drops

DASHBOARD = "Dashboard"
"""Title of the first tab, which is always there."""

LONGEST_TITLE = 32
"""Characters of a title that a tab shows; the whole path is its tooltip."""


class Documents(QWidget):
    """Holds the dashboard and the documents.

    Args:
        dashboard: the live one, in front while no document is open.

    Attributes:
        notice: what came of opening a file.
        status_line: below a document that has no dashboard, and so no such line of its own.

    Signals:
        front_changed: another one came to the front.
    """

    front_changed = Signal()

    def __init__(self, dashboard: Dashboard, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._open: dict[Path | str, Document] = {}
        self._titles: dict[Document, str] = {}
        self.notice = Notice()
        self.status_line = StatusLine()
        self.status_line.hide()
        self.bar = _Tabs()
        self.bar.setAccessibleName("Dashboard and open documents")
        self.bar.setExpanding(False)
        self.bar.setDrawBase(False)
        self.bar.setDocumentMode(True)
        self.bar.setElideMode(Qt.TextElideMode.ElideMiddle)
        self.bar.addTab(DASHBOARD)
        self.bar.setTabToolTip(0, "What this computer is doing now")
        self.bar.hide()
        self._dashboard = dashboard
        self._stack = QStackedWidget()
        self._stack.addWidget(dashboard)
        rows = QVBoxLayout(self)
        rows.setContentsMargins(0, 0, 0, 0)
        rows.setSpacing(0)
        rows.addWidget(self.bar)
        rows.addWidget(self.notice)
        rows.addWidget(self._stack, 1)
        rows.addWidget(self.status_line)
        self.bar.currentChanged.connect(self._show)

    @property
    def front(self) -> Document | None:
        """The document in front; ``None`` while the dashboard is."""
        shown = self._stack.currentWidget()
        return next((document for document in self._open.values() if document is shown), None)

    @property
    def front_title(self) -> str:
        """The whole title of the tab in front; "" while it is the dashboard."""
        return next((title for document, title in self._titles.items() if document is self.front), "")

    @property
    def count(self) -> int:
        """Number of open documents."""
        return len(self._open)

    @property
    def dashboards(self) -> list[Dashboard]:
        """The live dashboard, and that of every open recording."""
        return [self._dashboard, *(d.dashboard for d in self._open.values() if d.dashboard is not None)]

    def is_open(self, key: Path | str) -> bool:
        """Whether a document was added under ``key``."""
        return key in self._open

    def show_path(self, key: Path | str) -> bool:
        """Bring the document that was added under ``key`` to the front; false when it is not open."""
        document = self._open.get(key)
        if document is not None:
            self.bar.setCurrentIndex(self._stack.indexOf(document))
        return document is not None

    def show_dashboard(self) -> None:
        """Bring the dashboard to the front."""
        self.bar.setCurrentIndex(0)

    def show_next(self) -> None:
        """Bring the tab at the right to the front, after the last one the dashboard."""
        self.bar.setCurrentIndex((self.bar.currentIndex() + 1) % self.bar.count())

    def add(self, document: Document, key: Path | str, title: str) -> None:
        """Open a tab for ``document`` and bring it to the front.

        Args:
            document: it is closed with its tab.
            key: the file it shows, or a name that no other document has.
            title: what the tab says; a file's whole path is its tooltip.
        """
        self._open[key], self._titles[document] = document, title
        document.closed.connect(lambda: self.close_document(document))
        document.said.connect(self.tell)
        leave_drops(document)
        self._stack.addWidget(document)
        row = self.bar.addTab(without_mnemonics(_shortened(title)))
        self.bar.setTabToolTip(row, plain_tip(str(key) if isinstance(key, Path) else title))
        self.bar.setTabButton(row, QTabBar.ButtonPosition.RightSide, self._close_button(document, title))
        self.bar.show()
        self.bar.setCurrentIndex(row)

    def _close_button(self, document: Document, title: str) -> QToolButton:
        button = QToolButton()
        button.setText("×")
        button.setAccessibleName(f"Close {title}")
        button.setToolTip("Close (Ctrl+W)")
        button.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        button.clicked.connect(lambda: self.close_document(document))
        return button

    def close_front(self) -> None:
        """Close the document in front; the dashboard stays."""
        if self.front is not None:
            self.close_document(self.front)

    def close_document(self, document: Document) -> None:
        """Close ``document``, and what reads its file; one that is closed already is left alone."""
        key = next((key for key, other in self._open.items() if other is document), None)
        if key is None:
            return
        del self._open[key], self._titles[document]
        document.close_document()
        row = self._stack.indexOf(document)
        self._stack.removeWidget(document)
        self.bar.removeTab(row)
        self.bar.setVisible(bool(self._open))
        document.hide()
        document.deleteLater()
        self._show(self.bar.currentIndex())

    def close_all(self) -> None:
        """Close every document."""
        for document in list(self._open.values()):
            self.close_document(document)

    def tell(self, text: str) -> None:
        """Say ``text`` for a while in the status line that is in sight."""
        front = self.front
        dashboard = self._dashboard if front is None else front.dashboard
        (self.status_line if dashboard is None else dashboard.status_line).tell(text)

    def refresh(self) -> None:
        """Let the document in front draw what is new."""
        front = self.front
        if front is not None:
            front.refresh()
        self.status_line.setVisible(front is not None and front.dashboard is None)

    def set_palette(self, palette: Palette) -> None:
        """Draw every document in other colours."""
        for document in self._open.values():
            document.set_palette(palette)

    def _show(self, row: int) -> None:
        if 0 <= row < self._stack.count():
            self._stack.setCurrentIndex(row)
            if self.front is not None:
                self.front.setFocus()
            self.front_changed.emit()


class _Tabs(QTabBar):
    """The first tab, by which everybody comes home, keeps its whole title."""

    def minimumTabSizeHint(self, index: int) -> QSize:
        return self.tabSizeHint(index) if index == 0 else super().minimumTabSizeHint(index)


def _shortened(title: str) -> str:
    half = LONGEST_TITLE // 2
    return title if len(title) <= LONGEST_TITLE else f"{title[:half]}…{title[-half:]}"
