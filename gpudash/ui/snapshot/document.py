"""A snapshot file in a tab: opening and explaining it, its keys and commands, and exports."""

from __future__ import annotations

import csv
import importlib
import io
import logging
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from PySide6.QtCore import QRect, Qt
from PySide6.QtGui import QColor, QGuiApplication, QPainter, QPixmap
from PySide6.QtWidgets import QScrollArea, QWidget

from gpudash.memory.explaining.explanation_text import report
from gpudash.memory.snapshot.history.model import OOM, Snapshot, SnapshotError
from gpudash.session.recordings.snapshot_opener import OpenedSnapshot
from gpudash.system.foreign_files import source_line
from gpudash.ui.colours import Palette
from gpudash.ui.dashboard.document import FileDocument
from gpudash.ui.widgets.file_dialog import FileDialog
from gpudash.ui.widgets.focus_group import shortcut_within
from gpudash.ui.widgets.layouts import scrolled_both_ways
from gpudash.ui.widgets.opening_page import OpeningPage

if TYPE_CHECKING:
    from gpudash.ui.snapshot.page import SnapshotPage
    from gpudash.ui.snapshot.study import Study, Studying

logger = logging.getLogger(__name__)

PAGE = "gpudash.ui.snapshot.page"
"""A module that is slow to import, so it is imported while the file is being read."""

LEAVING_S = 1.0
"""How long closing waits for a background thread. Such a thread ends by itself and touches no widgets."""

KINDS = {"csv": "Table (*.csv)", "png": "Picture (*.png)", "html": "Report (*.html)"}

CAPTION = 26
"""Height in logical pixels of the line below a picture."""


class SnapshotDocument(FileDocument):
    """The document of one snapshot file.

    Args:
        opened: the file; it is started here unless it already was.
        palette: the window's colours.
        opener: opens a second file for comparison.
    """

    def __init__(
        self,
        opened: OpenedSnapshot,
        palette: Palette,
        *,
        opener: Callable[[Path], OpenedSnapshot] = OpenedSnapshot,
    ) -> None:
        super().__init__(opened.path.name, "Memory snapshot", OpeningPage(opened.path.name))
        self._opened = opened
        self._palette = palette
        self._snapshot: Snapshot | None = None
        self._studying: Studying | None = None
        self._reporting: Reporting | None = None
        self._studies: dict[int, Study] = {}
        self._wanted = 0
        self._refused = False
        self._closed = False
        self._page: SnapshotPage | None = None
        self._area: QScrollArea | None = None
        self._opener = opener
        self._built = False
        self._importing = threading.Thread(
            target=importlib.import_module, args=(PAGE,), name="gpudash-snapshot-modules", daemon=True
        )
        self.setFocusProxy(self._stack)
        shortcut_within(self, "Esc", self.leave)
        opened.start()
        self._importing.start()

    @property
    def page(self) -> SnapshotPage:
        """The page with the file's contents, once the document is `ready`."""
        assert self._page is not None
        return self._page

    def _build_on(self) -> bool:
        """Build another part of the page, unless that would block the window; true once it is complete."""
        if self._built or self._importing.is_alive():
            return self._built
        if self._page is None:
            from gpudash.ui.snapshot.page import SnapshotPage

            self._page = SnapshotPage(self._opened, self._opener, source_line, self._palette)
            self._area = scrolled_both_ways(self._page, "Memory snapshot")
            self._stack.addWidget(self._area)
        elif self._page.build():
            self._built = True
            self._connect(self._page)
        return False

    def _connect(self, page: SnapshotPage) -> None:
        page.set_palette(self._palette)
        page.said.connect(self.said)
        page.device_chosen.connect(self.show_device)
        page.header.copy_requested.connect(self.copy_report)
        page.header.export_requested.connect(self._choose_export)
        self._add_keys()

    def _add_keys(self) -> None:
        page = self.page
        for number in (1, 2, 3, 4):
            shortcut_within(self, str(number), partial(page.focus_pane, number))
        shortcut_within(self, "/", lambda: page.chips.search.setFocus(Qt.FocusReason.ShortcutFocusReason))
        shortcut_within(self, "P", lambda: page.go("peak"))
        shortcut_within(self, "O", lambda: page.go("oom"))
        shortcut_within(self, "T", page.who.total.toggle)
        shortcut_within(self, "I", page.show_icicle)
        shortcut_within(self, "Ctrl+C", self.copy_values)
        shortcut_within(self, "Ctrl+Shift+C", self.copy_picture)

    @property
    def ready(self) -> bool:
        """Whether the page is shown."""
        return self._area is not None and self._stack.currentWidget() is self._area

    def refresh(self) -> None:
        """Continue opening and fetch answers; called by the window's timer."""
        if self._closed or self._refused:
            return
        whole = self._build_on()
        if self._snapshot is None:
            self._poll()
        elif self._studying is not None and not self._studying.is_alive():
            if whole or self._studying.study is None:
                self._take(self._studying)
        elif self._studies and not self.ready:
            self._turn_to_page()
        if self._reporting is not None and not self._reporting.is_alive():
            self.said.emit(self._reporting.message)
            self._reporting = None
        if self.ready:
            self.page.refresh()

    def _poll(self) -> None:
        try:
            self._snapshot = self._opened.poll()
        except (SnapshotError, OSError) as error:
            self._refuse(str(error))
            return
        if self._snapshot is None:
            self.opening.show_progress(*self._opened.progress)
        else:
            events = sum(len(device.trace) for device in self._snapshot.devices)
            self.opening.show_work(f"Analysing {events:,} events…".replace(",", "\u202f"))
            self._study(fullest(self._snapshot))

    def _refuse(self, sentence: str) -> None:
        self._refused = True
        super()._refuse(sentence)

    def _study(self, number: int) -> None:
        from gpudash.ui.snapshot.study import Studying

        assert self._snapshot is not None
        self._wanted = number
        self._studying = Studying(self._snapshot, number, source_line, self._opened.path)
        self._studying.start()

    def _take(self, studying: Studying) -> None:
        self._studying = None
        if studying.study is None:
            self._refuse(studying.problem)
            return
        self._studies[self._wanted] = studying.study
        self._show(self._wanted)

    def show_device(self, number: int) -> None:
        """Show another device in the file."""
        if number in self._studies:
            self._show(number)
        elif self._studying is None:
            self.said.emit("Analysing the other device's events…")
            self._study(number)

    def _show(self, number: int) -> None:
        study = self._studies[number]
        self.page.show_study(number, study)
        for text in study.snapshot.warnings:
            self.said.emit(text)

    def _turn_to_page(self) -> None:
        had_focus = False
        if self.focusWidget() is not None:
            had_focus = self.isAncestorOf(self.focusWidget())
        assert self._area is not None
        self._stack.setCurrentWidget(self._area)
        if had_focus or self.hasFocus():
            self.page.who.table.view.setFocus()

    def set_palette(self, palette: Palette) -> None:
        """Use these colours."""
        self._palette = palette
        if self._built:
            self.page.set_palette(palette)

    def leave(self) -> None:
        """Undo the last selection; while the file is opening, cancel."""
        if not self.ready:
            self.closed.emit()
        elif not self.page.selector.take_back():
            self.said.emit("Everything is shown. Ctrl+W closes the tab.")

    def copy_report(self) -> None:
        """Copy the explanation to the clipboard as text."""
        if self.ready and self.page.study is not None:
            QGuiApplication.clipboard().setText("\n".join(report(self.page.study.explanation)))
            self.said.emit("Copied the report.")

    def copy_values(self) -> None:
        """Copy the visible table to the clipboard as tab-separated text."""
        if self.ready:
            QGuiApplication.clipboard().setText(self.page.table_text())
            self.said.emit("Copied the table.")

    def copy_picture(self) -> None:
        """Copy a picture of the page to the clipboard."""
        if self.ready:
            QGuiApplication.clipboard().setPixmap(self._picture())
            self.said.emit("Copied the picture.")

    def _picture(self) -> QPixmap:
        device = self.page.header.title.text()
        return picture(self.page, f"{device} · made with gpudash", self._palette)

    def _choose_export(self, kind: str) -> None:
        suggested = str(self._opened.path.with_suffix(f".{kind}").name)
        path = FileDialog.ask_to_save(self, "Export", suggested, KINDS[kind])
        if path:
            self.export(kind, Path(path))

    def export(self, kind: str, path: Path) -> None:
        """Write the visible table ("csv"), the page ("png") or the report ("html")."""
        if not self.ready:
            return
        try:
            if kind == "csv":
                path.write_text(as_csv(self.page.table_text()), encoding="utf-8", errors="backslashreplace")
            elif kind == "html":
                self._report(path)
                return
            elif not self._picture().save(str(path), "PNG"):
                raise OSError(f"{path} cannot be written")
        except OSError as error:
            self.said.emit(not_written(path, error))
        else:
            self.said.emit(f"Wrote {path}.")

    def _report(self, path: Path) -> None:
        if self._reporting is not None:
            self.said.emit("A report is already being written.")
            return
        from gpudash.memory.snapshot import report_html

        assert self.page.study is not None
        study = self.page.study
        make = partial(
            report_html.report,
            study.snapshot,
            self.title,
            device=study.device.index,
            source=source_line,
            known=study.known,
        )
        self._reporting = Reporting(path, make)
        self._reporting.start()
        self.said.emit(f"Writing {path.name}…")

    def close_document(self) -> None:
        """Stop all work in progress for this document."""
        self._closed = True
        if self._built:
            self.page.compare.close_other()
        self._opened.close()
        for thread in (self._importing, self._studying, self._reporting):
            if thread is not None:
                thread.join(LEAVING_S)
        self._studying = self._reporting = None


def fullest(snapshot: Snapshot) -> int:
    """The index of the most informative device: one that ran out of memory, then most events, then most memory."""

    def weight(number: int) -> tuple[bool, int, int]:
        device = snapshot.devices[number]
        ran_out = bool((device.trace.columns.action == OOM).any())
        return ran_out, len(device.trace), device.reserved_bytes

    return max(range(len(snapshot.devices)), key=weight)


class Reporting(threading.Thread):
    """Writes a report in the background, since it may replay the trace with several changes.

    Attributes:
        message: the outcome in a sentence; "" until then.
    """

    def __init__(self, path: Path, make: Callable[[], str]) -> None:
        super().__init__(name="gpudash-snapshot-report", daemon=True)
        self.message = ""
        self._path = path
        self._make = make

    def run(self) -> None:
        try:
            self._path.write_text(self._make(), encoding="utf-8", errors="backslashreplace")
        except OSError as error:
            self.message = not_written(self._path, error)
        except Exception as error:  # errors caused by the file's content are reported
            logger.exception("the report of a snapshot was not made")
            self.message = f"The report of {self._path.name} was not made ({type(error).__name__}: {error})."
        else:
            self.message = f"Wrote {self._path}."


def not_written(path: Path, error: OSError) -> str:
    """Why the file was not written, in a sentence."""
    return f"{path.name} was not written: {error.strerror or error}."


def as_csv(text: str) -> str:
    """Tab-separated text with safe cells as comma-separated text, quoted where needed."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerows(line.split("\t") for line in text.split("\n"))
    return out.getvalue()


def picture(widget: QWidget, caption: str, palette: Palette) -> QPixmap:
    """The visible part of ``widget``, with its caption below."""
    seen = widget.grab()
    ratio = seen.devicePixelRatio()
    whole = QPixmap(seen.width(), seen.height() + round(CAPTION * ratio))
    whole.setDevicePixelRatio(ratio)
    whole.fill(QColor(palette.window))
    painter = QPainter(whole)
    painter.drawPixmap(0, 0, seen)
    painter.setPen(QColor(palette.muted))
    height = round(seen.height() / ratio)
    place = QRect(12, height, widget.width() - 24, CAPTION)
    text = painter.fontMetrics().elidedText(caption, Qt.TextElideMode.ElideMiddle, place.width())
    painter.drawText(place, Qt.AlignmentFlag.AlignVCenter | Qt.AlignmentFlag.AlignLeft, text)
    painter.end()
    return whole
