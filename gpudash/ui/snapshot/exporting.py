"""Taking along what the document shows: the table as CSV, the page as a picture, the whole as a report."""

from __future__ import annotations

import csv
import io
import threading
from collections.abc import Callable
from pathlib import Path

from PySide6.QtCore import QRect, Qt
from PySide6.QtGui import QColor, QPainter, QPixmap
from PySide6.QtWidgets import QWidget

from gpudash.ui.theme import Palette

CAPTION = 26
"""Logical pixels of the line under a picture."""


class Reporting(threading.Thread):
    """Writes a report in the background, since it may have to try changes by replay.

    Attributes:
        words: what came of it, in a sentence; "" until then.
    """

    def __init__(self, path: Path, make: Callable[[], str]) -> None:
        super().__init__(name="gpudash-snapshot-report", daemon=True)
        self.words = ""
        self._path = path
        self._make = make

    def run(self) -> None:
        try:
            self._path.write_text(self._make(), encoding="utf-8")
        except OSError as error:
            self.words = not_written(self._path, error)
        except Exception as error:  # whatever a file's content leads to is told
            self.words = f"The report of {self._path.name} was not made ({type(error).__name__}: {error})."
        else:
            self.words = f"Wrote {self._path}."


def not_written(path: Path, error: OSError) -> str:
    """Why a file is not there, in a sentence."""
    return f"{path.name} was not written: {error.strerror or error}."


def as_csv(text: str) -> str:
    """Tab-separated text as comma-separated, quoted where it has to be."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerows(line.split("\t") for line in text.split("\n"))
    return out.getvalue()


def picture(widget: QWidget, caption: str, palette: Palette) -> QPixmap:
    """What is seen of ``widget``, over its caption."""
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
    words = painter.fontMetrics().elidedText(caption, Qt.TextElideMode.ElideMiddle, place.width())
    painter.drawText(place, Qt.AlignmentFlag.AlignVCenter | Qt.AlignmentFlag.AlignLeft, words)
    painter.end()
    return whole
