"""Plots as SVG: lines as lines, words as words, and nothing beyond the plot area.

Qt's generator of SVG knows no clipping in its "tiny" version and does not take a clip back in its other one (6.11), so
each layer of a plot is drawn by itself, and those that end at the plot area are clipped by an element of our own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape

from PySide6.QtCore import QBuffer, QPoint, QRect, QRectF, QSize
from PySide6.QtGui import QPainter
from PySide6.QtSvg import QSvgGenerator
from PySide6.QtWidgets import QGraphicsItem

from gpudash.ui.plots.canvas import Canvas

_FONT, _ANY_FONT = 'font-family="Sans Serif"', 'font-family="Sans Serif, sans-serif"'
"""Qt's name of the system's font, which only its own system knows, and one that all do."""

_EMPTY = re.compile(r'<path[^>]* d=""/>\n?')
"""A path without points, such as of a curve that has no value: some programs complain of it."""


class Drawing:
    """An SVG document that grows by what is painted into it.

    Args:
        size: in pixels.
        resolution: pixels an inch of the widgets that are painted, for their fonts.
    """

    def __init__(self, size: QSize, resolution: int) -> None:
        self._size = size
        self._resolution = resolution
        self._pieces: list[str] = []
        self._clips = 0

    def paint(self, draw: Callable[[QPainter], None], within: QRectF | None = None) -> None:
        """Add what ``draw`` paints.

        Args:
            draw: paints.
            within: nothing beyond is seen.
        """
        data = QBuffer()
        generator = QSvgGenerator()
        generator.setOutputDevice(data)
        generator.setSize(self._size)
        generator.setViewBox(QRect(QPoint(), self._size))
        generator.setResolution(self._resolution)
        painter = QPainter(generator)
        draw(painter)
        painter.end()
        text = bytes(data.data().data()).decode()
        piece = _EMPTY.sub("", text[text.index("<defs>") : text.rindex("</svg>")]).replace(_FONT, _ANY_FONT)
        self._pieces.append(piece if within is None else self._clipped(piece, within))

    def paint_canvas(self, canvas: Canvas, place: QPoint) -> None:
        """Add a plot's drawing, layer by layer.

        Args:
            canvas: of the plot.
            place: of its upper left corner.
        """
        area = canvas.area.translated(place)
        layers: list[tuple[QGraphicsItem, QRectF | None]] = [
            (canvas.bands, area),
            (canvas.frame, None),
            (canvas.box, area),
            (canvas.overlay, None),
        ]
        for layer, within in layers:
            with _only(layer, [other for other, _ in layers]):
                self.paint(lambda painter: draw_canvas(painter, canvas, place), within)

    def document(self, title: str, description: str) -> bytes:
        """The whole document."""
        width, height = self._size.width(), self._size.height()
        return (
            '<?xml version="1.0" encoding="UTF-8"?>\n<svg xmlns="http://www.w3.org/2000/svg" '
            f'xmlns:xlink="http://www.w3.org/1999/xlink" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}">\n<title>{escape(title)}</title>\n<desc>{escape(description)}</desc>\n'
            f"{''.join(self._pieces)}</svg>\n"
        ).encode()

    def _clipped(self, piece: str, area: QRectF) -> str:
        self._clips += 1
        name = f"area{self._clips}"
        place = f'x="{area.x():g}" y="{area.y():g}" width="{area.width():g}" height="{area.height():g}"'
        clip = f'<defs><clipPath id="{name}"><rect {place}/></clipPath></defs>'
        return f'{clip}<g clip-path="url(#{name})">{piece}</g>\n'


def draw_canvas(painter: QPainter, canvas: Canvas, place: QPoint) -> None:
    """Paint a plot's drawing with its upper left corner at ``place``, from no pixels that were kept."""
    mode = canvas.frame.cacheMode()
    canvas.frame.setCacheMode(QGraphicsItem.CacheMode.NoCache)
    try:
        canvas.render(painter, QRectF(QRect(place, canvas.size())), canvas.viewport().rect())
    finally:
        canvas.frame.setCacheMode(mode)


@contextmanager
def _only(shown: QGraphicsItem, layers: list[QGraphicsItem]) -> Iterator[None]:
    hidden = [layer for layer in layers if layer is not shown and layer.isVisible()]
    for layer in hidden:
        layer.setVisible(False)
    try:
        yield
    finally:
        for layer in hidden:
            layer.setVisible(True)
