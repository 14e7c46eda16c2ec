"""Help > Guide: the pages of ``resources/guide``, offline, with search as you type."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt
from PySide6.QtCore import QSize, Qt, QUrl
from PySide6.QtGui import QImage, QKeySequence, QResizeEvent, QShortcut, QShowEvent, QTextCursor
from PySide6.QtWidgets import QDialog, QListWidget, QListWidgetItem, QTextBrowser, QWidget

from gpudash.system.files import resource
from gpudash.ui.widgets.labels import search_field
from gpudash.ui.widgets.layouts import in_column, in_row
from gpudash.ui.widgets.plain_text import PlainLabel
from gpudash.ui.widgets.text_size import scaled

ORDER = (
    "window",
    "fit",
    "speed-predictions",
    "programs",
    "python",
    "coding-agents",
    "models",
    "serving",
    "blind",
    "budgets",
    "bisect",
    "out-of-memory",
    "watch",
    "workloads",
    "lessons",
    "plug-ins",
    "terminal",
    "recordings",
    "trackers",
    "several-gpus",
    "many-machines",
    "cards",
    "install",
    "json",
    "speed",
)
"""The pages in reading order; any others follow by name."""

SIZE = (1040, 720)
"""Initial size in logical pixels."""

STYLE = """
h1 {{ font-size: x-large; }} h2 {{ font-size: large; margin-top: 18px; }} h3 {{ font-size: medium; }}
p, li {{ margin-bottom: 6px; }} pre, th {{ background: {soft}; }} th {{ text-align: left; }}
pre {{ margin: 6px 0; white-space: pre-wrap; }}
"""

LIGHT_PICTURE, DARK_PICTURE = "light.png", "dark.png"
"""One picture per theme; the guide shows the one for the current theme."""

HALF_LIGHT = 128

_MARKDOWN = MarkdownIt("commonmark", {"html": False}).enable("table")

LIST_PX = 210
"""Minimum width of the page list in logical pixels at the default text size; it is as wide as its longest title."""

FRAME_PX = 40
"""Logical pixels that the frame of a window takes from the screen."""


@dataclass(frozen=True)
class GuidePage:
    """One page.

    Attributes:
        file: the Markdown file; links refer to it by name.
        title: its first heading.
        text: the whole page.
    """

    file: Path
    title: str
    text: str


@cache
def pages() -> tuple[GuidePage, ...]:
    """Every page, in reading order.

    Raises:
        FileNotFoundError: the installation lacks the pages.
    """
    found = sorted(resource("guide").glob("*.md"), key=lambda file: (*_place(file.stem), file.stem))
    texts = [(file, file.read_text(encoding="utf-8")) for file in found]
    return tuple(GuidePage(file, text.partition("\n")[0].lstrip("# "), text) for file, text in texts)


def _place(name: str) -> tuple[int]:
    return (ORDER.index(name) if name in ORDER else len(ORDER),)


def hits(page: GuidePage, sought: str) -> int:
    """How often the words occur on a page, in upper or lower case; 0 unless all of them occur."""
    text = page.text.casefold()
    counts = list(map(text.count, sought.casefold().split()))
    if all(counts):
        return sum(counts)
    return 0


class Guide(QDialog):
    """The page at the right, the titles at the left, and the search field above.

    Belongs to Qt's thread. Nothing is downloaded: links open other pages, and external addresses are shown but not
    opened.

    Attributes:
        search: narrows the list to pages that contain all words; Enter goes from one occurrence to the next.
        titles, text: the list and the page.
    """

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.setWindowTitle("Guide")
        self.search = search_field("Search the guide", "Search the guide")
        self.titles = QListWidget()
        self.titles.setAccessibleName("Pages of the guide")
        self.titles.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.text = _PageView()
        self.text.setAccessibleName("Guide")
        self._none = PlainLabel("No page has all of these words.", wraps=True)
        self._none.hide()
        for page in pages():
            item = QListWidgetItem(page.title)
            item.setData(Qt.ItemDataRole.UserRole, page)
            self.titles.addItem(item)
        left = in_column(self.search, (self.titles, 1), self._none)
        in_row(left, (self.text, 1), parent=self)
        self.search.textChanged.connect(self._narrow)
        self.search.returnPressed.connect(self._next)
        self.titles.currentItemChanged.connect(self._show_current)
        self.text.anchorClicked.connect(self._follow)
        QShortcut(QKeySequence.StandardKey.Find, self, self.search.setFocus)
        self.titles.setCurrentRow(0)
        room = self.screen().availableSize()
        self.resize(QSize(*SIZE).boundedTo(QSize(room.width(), room.height() - FRAME_PX)))
        self.search.setFocus()

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        around = 2 * self.titles.frameWidth() + self.titles.verticalScrollBar().sizeHint().width()
        self.titles.setFixedWidth(max(scaled(LIST_PX), self.titles.sizeHintForColumn(0) + around))

    def show_page(self, name: str) -> None:
        """Show the page with this file name, such as "fit.md"; an unknown name is ignored."""
        for row, page in enumerate(pages()):
            if page.file.name == name:
                self.search.clear()
                self.titles.setCurrentRow(row)

    def _narrow(self, sought: str) -> None:
        found = [not sought.strip() or hits(page, sought) > 0 for page in pages()]
        for row, there in enumerate(found):
            self.titles.item(row).setHidden(not there)
        self._none.setVisible(not any(found))
        if any(found) and not found[self.titles.currentRow()]:
            best = max(range(len(found)), key=lambda row: hits(pages()[row], sought))
            self.titles.setCurrentRow(best)
        else:
            self._next(from_start=True)

    def _next(self, *, from_start: bool = False) -> None:
        """Select the next occurrence of the first word."""
        terms = self.search.text().split()
        if from_start or not terms:
            self.text.moveCursor(QTextCursor.MoveOperation.Start)
        if terms and not self.text.find(terms[0]):
            self.text.moveCursor(QTextCursor.MoveOperation.Start)
            self.text.find(terms[0])

    def _show_current(self, item: QListWidgetItem | None) -> None:
        if item is not None:
            self.text.show_page(item.data(Qt.ItemDataRole.UserRole))
            self._next(from_start=True)

    def _follow(self, link: QUrl) -> None:
        if not link.scheme():
            self.show_page(Path(link.path()).name)


class _PageView(QTextBrowser):
    """Renders Markdown; pictures are at most as wide as the page."""

    def __init__(self) -> None:
        super().__init__()
        self.setOpenLinks(False)
        # a scroll bar that appears during layout would change the width
        self.setVerticalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOn)
        self._page: GuidePage | None = None
        self._width = 0

    def show_page(self, page: GuidePage) -> None:
        self._page = page
        self._width = self.viewport().width()
        self.document().setDefaultStyleSheet(STYLE.format(soft=self.palette().alternateBase().color().name()))
        # a picture in a table would make the table wider than the page
        text = re.sub(r"^\| !\[.*\n(?:\|.*\n)*", "", page.text, flags=re.MULTILINE)
        self.setHtml(_MARKDOWN.render(text).replace("<table>", '<table cellspacing="0" cellpadding="4">'))

    def loadResource(self, kind: int, name: QUrl | str) -> Any:
        """A picture next to the page, or nothing: other files and other machines are never accessed."""
        link = QUrl(name)
        if self._page is None or link.scheme():
            return None
        base = self._page.file.parent.parent.resolve()
        file = (self._page.file.parent / link.path()).resolve()
        if file.name == LIGHT_PICTURE and self.palette().base().color().lightness() < HALF_LIGHT:
            file = file.with_name(DARK_PICTURE)
        if file.is_relative_to(base):
            picture = QImage(str(file))
        else:
            picture = QImage()
        if picture.isNull():
            return None
        width = max(1, self._width - 2 * int(self.document().documentMargin()) - 4)
        if picture.width() <= width:
            return picture
        # At the screen's resolution, if the picture has as many pixels.
        sharpness = min(self.devicePixelRatioF(), picture.width() / width)
        fitted = picture.scaledToWidth(round(width * sharpness), Qt.TransformationMode.SmoothTransformation)
        fitted.setDevicePixelRatio(sharpness)
        return fitted

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        if self._page is not None and self.viewport().width() != self._width:
            self.show_page(self._page)
