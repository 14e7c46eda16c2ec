"""Exports what is shown: raw samples as text or CSV, and captioned pictures as PNG or SVG.

In an SVG, lines stay lines, text stays text, and nothing extends beyond the plot area. Qt's SVG generator ignores
clipping in its "tiny" version and never resets a clip in the other (6.11), so each layer of a plot is painted
separately, and layers that end at the plot area are clipped by an element of our own.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from html import escape
from pathlib import Path

import numpy as np
from PySide6.QtCore import QBuffer, QByteArray, QPoint, QRect, QRectF, QSize, Qt
from PySide6.QtGui import QColor, QFont, QImage, QImageWriter, QPainter
from PySide6.QtSvg import QSvgGenerator
from PySide6.QtWidgets import QGraphicsItem, QWidget

from gpudash.drawing.flat_svg import flattened, is_straight
from gpudash.system.files import written_whole
from gpudash.system.foreign_text import harmless, tab_separated
from gpudash.telemetry.plots import CurveSpec
from gpudash.telemetry.store import Store
from gpudash.ui.colours import Palette
from gpudash.ui.plots.canvas import Canvas
from gpudash.ui.plots.legend import Legend
from gpudash.ui.plots.plot import TimePlot
from gpudash.ui.plots.reading import ALL_SAMPLES
from gpudash.units import format_clock

SIGNATURE = "recorded with gpudash"

_UNITS = {"bytes": "bytes", "rate": "bytes/s", "ratio": "ratio", "nats": "nats"}
_HEADER_PX = 44
_FOOTER_PX = 22
_MARGIN_PX = 12


@dataclass(frozen=True, slots=True)
class Caption:
    """The caption of a picture: a title, and a line with the device and the range.

    Attributes:
        span: session time.
        wall_origin_s: seconds since the epoch at session time 0, if times are shown as clock times.
        names: what stands in the line in place of device and range, for a picture without them.
    """

    title: str
    device: str
    span: tuple[float, float]
    wall_origin_s: float | None = None
    names: str = ""

    @property
    def line(self) -> str:
        if self.names:
            return self.names
        start, end = self.span
        if self.wall_origin_s is not None:
            began, ended = (datetime.fromtimestamp(self.wall_origin_s + each, UTC).astimezone() for each in self.span)
            return f"{self.device} · {began:%Y-%m-%d %H:%M:%S} to {ended:%Y-%m-%d %H:%M:%S} ({end - start:.4g} s)"
        return (
            f"{self.device} · {format_clock(max(start, 0))} to {format_clock(end)} of the session ({end - start:.4g} s)"
        )


def rows(store: Store, curves: Sequence[CurveSpec], span: tuple[float, float]) -> Iterator[list[str]]:
    """A header, then one row for every time at which one of the curves has a raw sample.

    A field is empty if the curve has no sample at that time, and "nan" if the sample is a gap. Holds the store's lock
    while copying.

    Args:
        store: holds the samples.
        curves: the columns, in order.
        span: session time, both ends included.
    """
    columns = _samples(store, curves, span)
    if columns:
        times = np.unique(np.concatenate([t for t, _ in columns]))
    else:
        times = np.empty(0)
    yield ["time (s)", *(f"{curve.name} ({_UNITS.get(curve.unit) or curve.unit_name or 'number'})" for curve in curves)]
    texts = [_texts(times, t, v, whole=curve.unit == "bytes") for curve, (t, v) in zip(curves, columns, strict=True)]
    for index, time_s in enumerate(times.tolist()):
        yield [repr(time_s), *(column[index] for column in texts)]


def selection_text(store: Store, curves: Sequence[CurveSpec], span: tuple[float, float]) -> str:
    """The raw samples in ``span`` as tab-separated text with a header. See `rows`."""
    return tab_separated(rows(store, curves, span)) + "\n"


def write_csv(path: Path, store: Store, curves: Sequence[CurveSpec], span: tuple[float, float]) -> int:
    """Write the raw samples in ``span`` to ``path``, completely or not at all.

    Returns:
        The number of sample rows written.

    Raises:
        OSError: the file cannot be written; a previous file is kept.
    """
    text = io.StringIO(newline="")
    count = -1
    for row in rows(store, curves, span):
        csv.writer(text).writerow(map(harmless, row))
        count += 1
    with written_whole(path) as part:
        part.write_text(text.getvalue(), encoding="utf-8", errors="backslashreplace", newline="")
    return count


def picture(parts: Sequence[QWidget], caption: Caption, palette: Palette, ratio: float = 1.0) -> QImage:
    """Draw widgets one below the other, with their caption above and gpudash's name below.

    Args:
        parts: widgets, already drawn in ``palette``.
        caption: title, device and range.
        palette: background and text colours.
        ratio: device pixels per pixel.
    """
    size = picture_size(parts)
    image = QImage(round(size.width() * ratio), round(size.height() * ratio), QImage.Format.Format_RGB32)
    image.setDevicePixelRatio(ratio)
    image.setText("Software", "gpudash")
    image.setText("Title", f"{caption.title}, {caption.line}")
    painter = QPainter(image)
    _write_caption(painter, size, caption, palette)
    for child, place in _pieces(parts):
        if isinstance(child, Canvas):
            draw_canvas(painter, child, place)
        else:
            _paint(painter, child, place)
    painter.end()
    return image


def vector_picture(parts: Sequence[QWidget], caption: Caption, palette: Palette) -> bytes:
    """The same content as `picture`, as SVG: lines stay lines and text stays text."""
    size = picture_size(parts)
    drawing = Drawing(size, parts[0].logicalDpiX())  # one point is as many pixels as on the screen
    drawing.paint(lambda painter: _write_caption(painter, size, caption, palette))
    for child, place in _pieces(parts):
        if isinstance(child, Canvas):
            drawing.paint_canvas(child, place)
        else:
            drawing.paint(partial(_paint, child=child, place=place))
    return drawing.document(caption.title, f"{caption.line}, {SIGNATURE}")


def as_png(drawn: QImage) -> bytes:
    """Encode a picture as PNG.

    Raises:
        OSError: the picture cannot be encoded.
    """
    buffer = QBuffer()
    writer = QImageWriter(buffer, QByteArray(b"png"))
    if not writer.write(drawn):
        raise OSError(f"the picture could not be drawn: {writer.errorString().lower()}")
    return bytes(buffer.data().data())


def write_picture(path: Path, picture: bytes) -> None:
    """Write a picture, completely or not at all.

    Raises:
        OSError: the file cannot be written; a previous file is kept.
    """
    try:
        with written_whole(path) as part:
            part.write_bytes(picture)
    except OSError as error:
        raise OSError(f"the picture could not be written to {path}: {(error.strerror or str(error)).lower()}") from None


def picture_size(parts: Sequence[QWidget]) -> QSize:
    """The size of a picture of these widgets, in logical pixels."""
    width = max(part.width() for part in parts) + 2 * _MARGIN_PX
    return QSize(width, sum(part.height() + _further_px(part) for part in parts) + _HEADER_PX + _FOOTER_PX)


def _further_px(part: QWidget) -> int:
    """Height of the further lines of a plot's legend, which has no menu in a picture."""
    if not isinstance(part, TimePlot) or part.legend.isHidden():
        return 0
    return part.legend.picture_height - part.legend.height()


def _pieces(parts: Sequence[QWidget]) -> Iterator[tuple[QWidget, QPoint]]:
    """The widgets that make up the parts, each with its position in the picture."""
    top = _HEADER_PX
    for part in parts:
        children = [child for child in part.children() if isinstance(child, QWidget) and child.isVisible()]
        for child in children:
            below = 0 if isinstance(child, Legend) else _further_px(part)
            yield child, QPoint(_MARGIN_PX, top + below) + child.pos()
        if not children:
            yield part, QPoint(_MARGIN_PX, top)
        top += part.height() + _further_px(part)


def _paint(painter: QPainter, child: QWidget, place: QPoint) -> None:
    """Paint a widget. A legend is painted as lines and text: its buttons would look clickable and rasterise icons."""
    if isinstance(child, Legend):
        painter.save()
        painter.translate(place)
        child.paint(painter)
        painter.restore()
    else:
        child.render(painter, place, renderFlags=QWidget.RenderFlag.DrawChildren)


def _write_caption(painter: QPainter, size: QSize, caption: Caption, palette: Palette) -> None:
    width = size.width() - 2 * _MARGIN_PX
    painter.fillRect(QRect(QPoint(), size), QColor(palette.panel))
    _write(painter, QRectF(_MARGIN_PX, 6, width, 18), caption.title, palette.text, bold=True)
    _write(painter, QRectF(_MARGIN_PX, 24, width, 16), caption.line, palette.muted)
    foot = QRectF(_MARGIN_PX, size.height() - _FOOTER_PX + 2, width, 16)
    _write(painter, foot, SIGNATURE, palette.muted)


def _write(painter: QPainter, place: QRectF, text: str, colour: str, *, bold: bool = False) -> None:
    font = QFont(painter.font())
    font.setBold(bold)
    font.setPointSizeF(10.0 if bold else 8.5)
    painter.save()
    painter.setFont(font)
    painter.setPen(QColor(colour))
    painter.drawText(place, Qt.AlignmentFlag.AlignVCenter, text)
    painter.restore()


def _samples(
    store: Store, curves: Sequence[CurveSpec], span: tuple[float, float]
) -> list[tuple[np.ndarray, np.ndarray]]:
    result = []
    with store.lock:
        for curve in curves:
            series = store.series(*curve.key)
            if series is None or not span[0] < span[1]:
                result.append((np.empty(0), np.empty(0)))
                continue
            t, v = series.window(*span, ALL_SAMPLES)
            inside = (t >= span[0]) & (t <= span[1])
            result.append((t[inside], v[inside]))
    return result


def _texts(times: np.ndarray, t: np.ndarray, v: np.ndarray, *, whole: bool) -> list[str]:
    """A column on the common times; of several samples at the same time, the last one wins."""
    texts = [""] * len(times)
    for place, value in zip(np.searchsorted(times, t).tolist(), v.tolist(), strict=True):
        if whole and np.isfinite(value):
            texts[place] = str(int(value))
        else:
            texts[place] = repr(value)
    return texts


_FONT, _ANY_FONT = 'font-family="Sans Serif"', 'font-family="Sans Serif, sans-serif"'
"""Qt's name for the system font, which only this system resolves, and a generic family that every system has."""

_EMPTY = re.compile(r'<path[^>]* d=""/>\n?')
"""A path without points, as of a curve without values: some programs report an error for it."""


class Drawing:
    """An SVG document, built piece by piece from what is painted into it.

    Args:
        size: in pixels.
        resolution: pixels per inch of the painted widgets, for their fonts.
    """

    def __init__(self, size: QSize, resolution: int) -> None:
        self._size = size
        self._resolution = resolution
        self._pieces: list[str] = []
        self._clips = 0

    def paint(self, draw: Callable[[QPainter], None], within: QRectF | None = None) -> None:
        """Add what ``draw`` paints.

        Args:
            draw: does the painting.
            within: clips the painting to this rectangle.
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
        if within is None:
            self._pieces.append(flattened(piece))
        else:
            edges = within.left(), within.top(), within.right(), within.bottom()
            cut = flattened(piece, edges)
            self._pieces.append(cut if is_straight(cut) else self._clipped(cut, within))

    def paint_canvas(self, canvas: Canvas, place: QPoint) -> None:
        """Add the drawing of a plot, layer by layer.

        Args:
            canvas: the plot's canvas.
            place: its upper left corner.
        """
        area = canvas.area.translated(place)
        # one pass per layer, showing only that one: a translucent layer painted twice would be too dark
        shown = [layer for layer in canvas.layers if layer.isVisible()]
        for layer in shown:
            within = None
            if layer in (canvas.running_ghost, canvas.bands, canvas.box):
                within = area
            with _only(layer, shown):
                self.paint(lambda painter: draw_canvas(painter, canvas, place), within)

    def document(self, title: str, description: str) -> bytes:
        """The complete document."""
        width, height = self._size.width(), self._size.height()
        return (
            '<?xml version="1.0" encoding="UTF-8"?>\n<svg xmlns="http://www.w3.org/2000/svg" '
            f'xmlns:xlink="http://www.w3.org/1999/xlink" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}">\n<title>{escape(title)}</title>\n<desc>{escape(description)}</desc>\n'
            f"{''.join(self._pieces)}</svg>\n"
        ).encode(errors="backslashreplace")

    def _clipped(self, piece: str, area: QRectF) -> str:
        self._clips += 1
        name = f"area{self._clips}"
        place = f'x="{area.x():g}" y="{area.y():g}" width="{area.width():g}" height="{area.height():g}"'
        clip = f'<defs><clipPath id="{name}"><rect {place}/></clipPath></defs>'
        return f'{clip}<g clip-path="url(#{name})">{piece}</g>\n'


def draw_canvas(painter: QPainter, canvas: Canvas, place: QPoint) -> None:
    """Paint a plot with its upper left corner at ``place``, without using cached pixmaps."""
    modes = [(layer, layer.cacheMode()) for layer in canvas.layers]
    for layer, _mode in modes:
        layer.setCacheMode(QGraphicsItem.CacheMode.NoCache)
    try:
        canvas.render(painter, QRectF(QRect(place, canvas.size())), canvas.viewport().rect())
    finally:
        for layer, mode in modes:
            layer.setCacheMode(mode)


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
