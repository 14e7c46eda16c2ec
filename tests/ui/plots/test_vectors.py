"""Pictures as SVG: lines as lines, words as words, the same as the picture in pixels."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from PySide6.QtCore import QPoint, QRectF, QSize
from PySide6.QtGui import QColor, QImage, QPainter
from PySide6.QtSvg import QSvgRenderer
from PySide6.QtWidgets import QApplication, QToolButton

from gpudash.telemetry.plots import CurveSpec
from gpudash.ui.colours import DARK, LIGHT
from gpudash.ui.plots.menu import PlotMenu
from gpudash.ui.plots.stack import PlotStack

WHERE = "matrix(1,0,0,1,0,0)"
"""The matrix of what has the coordinates of the picture."""

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def svg(drawn: PlotStack) -> ElementTree.Element:
    drawn.caption = lambda: ("training <1>", "cuda:0 & RTX")
    return ElementTree.fromstring(drawn.vector_picture())


def words(root: ElementTree.Element) -> list[str]:
    return [(element.text or "").strip() for element in root.iter(f"{SVG}text")]


def test_words_are_text_and_nothing_is_made_of_pixels(drawn: PlotStack, svg: ElementTree.Element) -> None:
    found = words(svg)
    for text in ("training <1>", "recorded with gpudash", "MEMORY cuda:0", "other processes", "GPU", "loss", "GiB"):
        assert text in found
    assert any(text.startswith("cuda:0 & RTX · 0:10 to 0:20") for text in found)
    assert not list(svg.iter(f"{SVG}image"))


def test_curves_are_paths_that_end_at_the_plot_area(drawn: PlotStack, svg: ElementTree.Element) -> None:
    curves = [path for group in svg.iter(f"{SVG}g") if group.get("transform") == WHERE for path in group]
    assert len(curves) > len(drawn.plots)
    numbers = [re.findall(r"[^\s,MLZ]+", path.get("d", "")) for path in curves]
    left = 12 + min(plot.canvas.x() + plot.canvas.area.left() for plot in drawn.plots)
    right = 12 + max(plot.canvas.x() + plot.canvas.area.right() for plot in drawn.plots)
    ends = [float(x) for of_path in numbers for x in of_path[::2]]
    assert min(ends) == pytest.approx(left, abs=0.01) and max(ends) <= right + 0.01


def test_no_stroke_needs_more_than_the_basics_of_svg(drawn: PlotStack) -> None:
    text = drawn.vector_picture().decode()
    assert "vector-effect" not in text
    # Of the matrices only those that move or turn are left: a scaled one would scale the strokes.
    assert {tuple(map(abs, map(float, found.split(",")[:4]))) for found in re.findall(r"matrix\(([^)]*)", text)} <= {
        (1, 0, 0, 1),
        (0, 1, 1, 0),
    }


def test_the_vector_picture_looks_like_the_one_in_pixels(drawn: PlotStack) -> None:
    pixels = drawn.picture(ratio=1.0)
    difference = np.abs(values(pixels) - values(rendered(drawn.vector_picture(), pixels.size()))).max(axis=2)
    assert np.mean(difference > 64) < 0.03


def rendered(svg: bytes, size: QSize) -> QImage:
    """A vector picture in pixels."""
    image = QImage(size, QImage.Format.Format_RGB32)
    painter = QPainter(image)
    QSvgRenderer(svg).render(painter, QRectF(image.rect()))
    painter.end()
    return image


def values(image: QImage) -> np.ndarray:
    rows = np.frombuffer(image.constBits(), np.uint8).reshape(image.height(), image.bytesPerLine() // 4, 4)
    return rows[:, : image.width(), :3].astype(int)


CORNER = QPoint(12, 44)
"""Where in a picture its first plot begins."""

NEAR, NEAR_BAND = 90, 40
"""How far a channel of a pixel may be from the colour of a line, whose smooth edges mix it with the ground, and of a
band, beside which is a fainter one."""

DASH_PX = 5
"""How far across a dash may lie from that of the other picture: their curves are as long to a pixel, which adds up."""

AGREEMENT = 0.97
"""Share of a curve's pixels beside which the other picture has one, at least."""


def agreement(one: np.ndarray, other: np.ndarray, curve: CurveSpec) -> float:
    """The share of a curve's pixels, or of a band's upper edge, that the other picture has too, at most a pixel aside.

    Of both ways it is the less.
    """
    colour, near = _channels(DARK.curves[curve.colour]), NEAR_BAND if curve.stack else NEAR
    masks = [_edge(np.abs(found - colour).max(axis=2) < near) for found in (one, other)]
    assert all(mask.sum() > 100 for mask in masks), "the curve is in both pictures"
    reach = 1
    if curve.style == "dash":
        reach = DASH_PX
    return min(float((mask & _grown(wide, reach)).sum() / mask.sum()) for mask, wide in (masks, masks[::-1]))


def _edge(mask: np.ndarray) -> np.ndarray:
    return mask & ~np.roll(mask, 1, axis=0)


def _channels(colour: str) -> np.ndarray:
    found = QColor(colour)
    return np.array([found.blue(), found.green(), found.red()])


def _grown(mask: np.ndarray, reach: int) -> np.ndarray:
    grown = mask.copy()
    for across in range(-reach, reach + 1):
        for down in (-1, 0, 1):
            grown |= np.roll(mask, (down, across), axis=(0, 1))
    return grown


@pytest.mark.parametrize("number", range(3))
def test_every_curve_of_a_vector_picture_is_where_it_is_in_pixels(drawn: PlotStack, number: int) -> None:
    plot = drawn.plots[number]
    pixels = drawn.picture(plot, ratio=1.0)
    found = values(pixels), values(rendered(drawn.vector_picture(plot), pixels.size()))
    area = plot.canvas.area.translated(plot.canvas.pos() + CORNER).toRect().adjusted(2, 2, -2, -2)
    one, other = (picture[area.top() : area.bottom(), area.left() : area.right()] for picture in found)
    for curve in plot.spec.curves:
        if not curve.faint:
            assert agreement(one, other, curve) > AGREEMENT, curve.name
            for down in (-3, 3):
                shifted = np.roll(other, down, axis=0)
                assert agreement(one, shifted, curve) < AGREEMENT, (
                    f"{curve.name}, {down} pixels lower, would be noticed"
                )


def test_taking_a_vector_picture_leaves_the_window_as_it_was(drawn: PlotStack) -> None:
    before = drawn.grab().toImage()
    drawn.vector_picture(palette=LIGHT)
    canvases = [plot.canvas for plot in drawn.plots]
    assert all(layer.isVisible() for c in canvases for layer in (c.bands, c.frame, c.box, c.overlay))
    assert drawn.styleSheet() == ""
    assert drawn.grab().toImage() == before


def test_a_curve_that_is_hidden_is_not_in_the_legend_of_a_picture(drawn: PlotStack) -> None:
    drawn.plots[1].legend.toggle("CPU")
    assert "CPU" not in words(ElementTree.fromstring(drawn.vector_picture()))


def test_the_menu_of_a_plot_saves_it_alone(drawn: PlotStack, tmp_path: Path) -> None:
    told: list[str] = []
    drawn.reported.connect(told.append)
    menu = PlotMenu(drawn, lambda *_: str(tmp_path / "plot")).build(drawn.plots[1])
    next(action for action in menu.actions() if action.text() == "Save picture as SVG…").trigger()
    found = words(ElementTree.parse(tmp_path / "plot.svg").getroot())
    assert "UTILISATION" in found
    assert "MEMORY cuda:0" not in found
    assert told == [f"Saved the picture to {tmp_path / 'plot.svg'}."]


def test_a_full_disk_leaves_the_old_picture_and_is_told(
    drawn: PlotStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plots.svg").write_text("old")

    def full(path: Path, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match=r"could not be written to .*no space left on device"):
        drawn.save_picture(tmp_path / "plots.svg")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("plots.svg", "old")]


def test_a_picture_has_every_name_where_the_window_has_a_menu(drawn: PlotStack) -> None:
    drawn.resize(420, 700)
    QApplication.processEvents()
    drawn.refresh(force=True)
    memory = drawn.plots[0]
    assert any(button.text().endswith(" more") for button in memory.legend.findChildren(QToolButton))
    found = words(ElementTree.fromstring(drawn.vector_picture()))
    names = [curve.name for plot in drawn.plots for curve in plot.spec.curves]
    assert set(names) <= set(found) and not any(text.endswith(" more") for text in found)
    for line in (line for plot in drawn.plots for line in plot.spec.lines):
        assert any(text.removeprefix("↑ ").startswith(line.name) for text in found), line.name
    assert drawn.picture_size.height() == drawn.picture(ratio=1.0).height() > sum(plot.height() for plot in drawn.plots)
