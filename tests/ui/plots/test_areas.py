"""Filled areas: smooth or rough, they cover the same pixels."""

from __future__ import annotations

import numpy as np
import pytest
from PySide6.QtCore import QBuffer
from PySide6.QtGui import QColor, QImage, QPainter
from PySide6.QtSvg import QSvgGenerator
from PySide6.QtWidgets import QApplication

from gpudash.ui.plots.layers import Area, paint_area

WIDTH, HEIGHT = 300, 100
HALF = QColor(0, 0, 255, 128)


def edge(points: int, level: float, spike: tuple[float, float] | None = None) -> tuple[np.ndarray, np.ndarray]:
    x = np.linspace(10.0, 290.0, points)
    y = np.full(points, level)
    if spike is not None:
        y[np.argmin(np.abs(x - spike[0]))] = spike[1]
    return x, y


def painted(area: Area, ratio: float = 1.0) -> QImage:
    image = QImage(round(WIDTH * ratio), round(HEIGHT * ratio), QImage.Format.Format_ARGB32)
    image.setDevicePixelRatio(ratio)
    image.fill(QColor("white"))
    painter = QPainter(image)
    paint_area(painter, area)
    painter.end()
    return image


def ground(image: QImage, x: float, y: float) -> bool:
    ratio = image.devicePixelRatio()
    return image.pixelColor(round(x * ratio), round(y * ratio)) == QColor("white")


@pytest.mark.parametrize("ratio", [1.0, 1.5, 2.0])
@pytest.mark.parametrize("points", [2, 20, 1500, 20_000])
def test_everything_between_the_edges_is_covered_once_and_nothing_else(
    qapp: QApplication, points: int, ratio: float
) -> None:
    image = painted(Area(edge(points, 30.0), edge(points, 70.0), HALF), ratio)
    inside = {
        image.pixelColor(x, y).name()
        for x in range(round(14 * ratio), round(286 * ratio))
        for y in (round(35 * ratio), round(50 * ratio), round(65 * ratio))
    }
    assert inside == {image.pixelColor(round(150 * ratio), round(50 * ratio)).name()}, "no seam and no overlap"
    assert not ground(image, 150, 50)
    assert all(ground(image, *place) for place in ((150, 25), (150, 75), (5, 50), (295, 50)))


def test_a_spike_of_one_point_among_many_is_seen(qapp: QApplication) -> None:
    image = painted(Area(edge(20_000, 60.0, spike=(150.0, 5.0)), edge(20_000, 70.0), HALF))
    assert any(not ground(image, x, 8) for x in (149, 150, 151))
    assert all(ground(image, x, 8) for x in (100, 140, 160, 200))


def test_edges_may_have_points_at_places_of_their_own(qapp: QApplication) -> None:
    image = painted(Area(edge(3000, 30.0), edge(2, 70.0), HALF))
    assert not ground(image, 20, 50) and not ground(image, 280, 50) and ground(image, 150, 80)


def test_in_a_vector_picture_an_area_is_one_shape(qapp: QApplication) -> None:
    data = QBuffer()
    generator = QSvgGenerator()
    generator.setOutputDevice(data)
    painter = QPainter(generator)
    paint_area(painter, Area(edge(1500, 30.0), edge(1500, 70.0), HALF))
    painter.end()
    assert bytes(data.data().data()).count(b"<path") <= 1
