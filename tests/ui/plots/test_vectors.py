"""Pictures as SVG: lines as lines, words as words, the same as the picture in pixels."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from PySide6.QtCore import QRectF
from PySide6.QtGui import QImage, QPainter
from PySide6.QtSvg import QSvgRenderer

from gpudash.ui.colours import LIGHT
from gpudash.ui.plots.menu import PlotMenu
from gpudash.ui.plots.stack import PlotStack

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def svg(drawn: PlotStack) -> ElementTree.Element:
    drawn.set_caption("training <1>", "cuda:0 & RTX")
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
    areas = {
        tuple(float(clip[0].get(key, "")) for key in ("x", "width", "height")) for clip in svg.iter(f"{SVG}clipPath")
    }
    wanted = set()
    for plot in drawn.plots:
        area = plot.canvas.area
        left = plot.mapTo(plot, plot.canvas.pos()).x() + 12 + area.x()
        wanted.add((round(left, 3), round(area.width(), 3), round(area.height(), 3)))
    assert {tuple(round(value, 3) for value in area) for area in areas} == wanted
    clipped = [group for group in svg.iter(f"{SVG}g") if group.get("clip-path")]
    assert len(clipped) == 2 * len(drawn.plots)
    assert all(list(group.iter(f"{SVG}path")) or list(group.iter(f"{SVG}polyline")) for group in clipped[1::2])


def test_the_vector_picture_looks_like_the_one_in_pixels(drawn: PlotStack) -> None:
    pixels = drawn.picture(ratio=1.0).convertToFormat(QImage.Format.Format_RGB32)
    image = QImage(pixels.size(), QImage.Format.Format_RGB32)
    painter = QPainter(image)
    QSvgRenderer(drawn.vector_picture()).render(painter, QRectF(image.rect()))
    painter.end()
    difference = np.abs(values(pixels) - values(image)).max(axis=2)
    assert np.mean(difference > 64) < 0.03


def values(image: QImage) -> np.ndarray:
    rows = np.frombuffer(image.constBits(), np.uint8).reshape(image.height(), image.bytesPerLine() // 4, 4)
    return rows[:, : image.width(), :3].astype(int)


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
