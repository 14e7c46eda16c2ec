"""Every word the window shows, with the room it has: what is cut, covered or outside its parent."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

from PySide6.QtCore import QPoint, QRect, QRectF
from PySide6.QtGui import QColor, QFontMetricsF, QImage
from PySide6.QtWidgets import QAbstractButton, QComboBox, QLabel, QScrollArea, QStyle, QTabBar, QWidget

from gpudash.ui.colours import contrast
from gpudash.ui.plots.canvas import label_font
from gpudash.ui.window.main_window import MainWindow

MEANT = (
    "PyTorch loading…",
    "Preparing…",
    "Stopping…",
    "Stopping after this step…",
    "predicting…",
    "Choose a folder…",
    "…",
)
"""Words that end in three dots because something goes on or is asked for, not because they are cut."""


_MARKUP = re.compile("<[^>]+>")


@dataclass(frozen=True)
class Word:
    """A text with its place in the window, and the widget that shows it."""

    text: str
    place: QRect
    widget: QWidget


def label(window: QWidget) -> list[Word]:
    """Labels, buttons and check boxes that are seen and have text; what lies under a strip or a page is not seen."""
    found = []
    for widget in [*window.findChildren(QLabel), *window.findChildren(QAbstractButton)]:
        if widget.isVisible() and widget.text() and not widget.visibleRegion().isEmpty():
            place = widget.visibleRegion().boundingRect()
            word = Word(widget.text(), QRect(widget.mapTo(window, place.topLeft()), place.size()), widget)
            if not _lies_under(word, window):
                found.append(word)
    return found


def _lies_under(word: Word, window: QWidget) -> bool:
    """Whether a frame with a ground of its own lies over a part of the word."""
    place = word.place
    for point in (place.center(), place.topLeft(), place.topRight(), place.bottomLeft(), place.bottomRight()):
        over = window.childAt(point)
        while over is not None and over is not window and not over.isAncestorOf(word.widget):
            if over is not word.widget and over.property("role") in ("banner", "kept", "panel"):
                return True
            over = over.parentWidget()
    return False


def complaints(window: MainWindow) -> list[str]:
    """What is wrong with the words of ``window``; empty when all can be read."""
    return [*page_complaints(window), *_in_plots(window)]


def page_complaints(page: QWidget) -> list[str]:
    """What is wrong with the words of a part of a window that has no plots."""
    return [*_cut(page), *_covered(page), *_in_choices(page), *_in_tabs(page)]


def _cut(window: QWidget) -> Iterator[str]:
    for word in label(window):
        widget, text = word.widget, _MARKUP.sub("", word.text)
        if text.endswith("…") and text not in MEANT:
            yield f"elided: {text!r}"
        metrics = widget.fontMetrics()
        if isinstance(widget, QLabel):
            room = widget.contentsRect()
            if widget.wordWrap():
                if widget.heightForWidth(widget.width()) > widget.height() + 1:
                    yield f"cut at the bottom: {text!r}"
            elif max(metrics.horizontalAdvance(line) for line in text.split("\n")) > room.width() + 1:
                yield f"cut at the right: {text!r} has {room.width()} px"
            if metrics.height() > widget.height() + 1:
                yield f"too low: {text!r}"
        elif widget.width() + 1 < widget.sizeHint().width() or widget.height() + 1 < _least_height(widget):
            yield f"button cut: {text!r} {widget.size()} of {widget.sizeHint()}"
        if not _scrolled(widget) and widget.visibleRegion().boundingRect() != widget.rect():
            yield f"partly outside its parent: {text!r}"


def _least_height(widget: QWidget) -> int:
    """What the style sheet says where it says something, which a layout goes by, and never less than the words."""
    least = widget.minimumHeight() or widget.minimumSizeHint().height()
    return max(least, widget.fontMetrics().height())


def _scrolled(widget: QWidget) -> bool:
    """Whether it can be scrolled to: one of the areas around it has more than it shows."""
    parent = widget.parentWidget()
    if parent is None:
        return False
    if (
        isinstance(parent, QScrollArea)
        and parent.verticalScrollBar().maximum() + parent.horizontalScrollBar().maximum()
    ):
        return True
    return _scrolled(parent)


def _covered(window: QWidget) -> Iterator[str]:
    for first, second in combinations(label(window), 2):
        if first.place.intersects(second.place):
            yield f"{first.text!r} covers {second.text!r}"


def _in_choices(window: QWidget) -> Iterator[str]:
    for combo in window.findChildren(QComboBox):
        if combo.isVisible():
            room = combo.style().subControlRect(
                QStyle.ComplexControl.CC_ComboBox, _option(combo), QStyle.SubControl.SC_ComboBoxEditField, combo
            )
            if combo.fontMetrics().horizontalAdvance(combo.currentText()) > room.width():
                yield f"choice cut: {combo.currentText()!r} has {room.width()} px"


def _option(combo: QComboBox) -> object:
    from PySide6.QtWidgets import QStyleOptionComboBox

    option = QStyleOptionComboBox()
    combo.initStyleOption(option)
    return option


def _in_tabs(window: QWidget) -> Iterator[str]:
    for bar in window.findChildren(QTabBar):
        for position in range(bar.count() if bar.isVisible() else 0):
            rect = bar.tabRect(position)
            if bar.fontMetrics().horizontalAdvance(bar.tabText(position)) > rect.width() - 12:
                yield f"tab cut: {bar.tabText(position)!r}"
            if not bar.rect().contains(rect):
                yield f"tab outside its bar: {bar.tabText(position)!r}"


def _in_plots(window: MainWindow) -> Iterator[str]:
    for plot in window.workspace.target.plots.plots:
        whole = QRectF(plot.canvas.rect()).adjusted(-0.5, -0.5, 0.5, 0.5)
        labels = plot.labels()
        for label in labels:
            if not whole.contains(label.rect):
                yield f"{plot.spec.title}: {label.text!r} at {label.rect} is outside {whole}"
            if label.text.endswith("…"):
                yield f"{plot.spec.title}: {label.text!r} is elided"
        for first, second in combinations(labels, 2):
            if first.rect.adjusted(0.5, 0.5, -0.5, -0.5).intersects(second.rect):
                yield f"{plot.spec.title}: {first.text!r} covers {second.text!r}"
    metrics = QFontMetricsF(label_font(window.workspace.target.plots.readout))
    for name, value in window.workspace.target.plots.readout.rows():
        if (
            metrics.horizontalAdvance(name) + metrics.horizontalAdvance(value)
            > window.workspace.target.plots.readout.width() - 46
        ):
            yield f"readout cut: {name!r} {value!r}"


def weakest(window: MainWindow, image: QImage) -> list[tuple[float, str]]:
    """Contrast of every word, unless scrolled away in part, against its ground in ``image``, the weakest first."""
    ratio = image.devicePixelRatio()
    return sorted(
        (drawn_contrast(image, QRect(word.place.topLeft() * ratio, word.place.size() * ratio)), word.text)
        for word in label(window)
        if word.place.size() == word.widget.size()
    )


def drawn_contrast(image: QImage, place: QRect) -> float:
    """Highest contrast of a pixel in ``place`` against the colour that most of it has."""
    inner = place.intersected(image.rect())
    counts: dict[int, int] = {}
    for y in range(inner.top(), inner.bottom() + 1):
        for x in range(inner.left(), inner.right() + 1):
            colour = image.pixel(QPoint(x, y))
            counts[colour] = counts.get(colour, 0) + 1
    ground = QColor(max(counts, key=lambda colour: counts[colour])).name()
    return max(contrast(ground, QColor(colour).name()) for colour in counts)
