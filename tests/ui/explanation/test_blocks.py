"""The blocks of a fragmented memory on the page that explains it, and the plots of a change as scenes."""

import numpy as np
import pytest
from PySide6.QtGui import QColor, QImage, QPainter
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from gpudash.drawing.scene import SceneFrame
from gpudash.memory.snapshot.explaining import chosen_moment
from gpudash.memory.snapshot.history.history import History
from gpudash.telemetry.runs import Status
from gpudash.ui.colours import Palette
from gpudash.ui.explanation.blocks import BlocksPanel, RefusedBlocks
from gpudash.ui.explanation.comparison import ComparisonAxes, MemoryCourse, course_scene, styles
from gpudash.ui.explanation.memory_map import IDLE, map_of
from gpudash.ui.plots.painting.scenes import paint_scene
from gpudash.units import MIB
from tests.unit.memory.snapshot.made import WEIGHTS, Made


def _blocks() -> RefusedBlocks:
    """Four pieces of 20 MiB, of which every other one is free."""
    made = Made()
    held = [made.malloc(20 * MIB, WEIGHTS) for _ in range(8)]
    for block in held[::2]:
        made.free(block)
    snapshot = made.snapshot()
    history = History(snapshot.devices[0], snapshot.annotations)
    history.prepare()
    return RefusedBlocks(
        history, map_of(history.layout(history.count - 1 if chosen_moment(history) < 0 else history.last))
    )


def test_the_sentence_says_in_how_many_pieces_what_is_free_lies() -> None:
    text = _blocks().sums(64 * MIB)
    assert text == "80 MiB are free in 4 pieces, the largest of 20 MiB; 64 MiB were asked for in one."


def test_the_map_says_what_a_block_is_and_how_much_is_free(qtbot: QtBot, palette: Palette) -> None:
    blocks = _blocks()
    panel = BlocksPanel(palette)
    qtbot.addWidget(panel)
    panel.resize(500, 260)
    panel._show(blocks)
    assert panel.isVisible() and panel.sums.text().startswith("80 MiB are free in 4 pieces")
    assert "8 segments of 160 MiB" in panel.view.accessibleDescription()
    assert blocks.text_of(0, 0).startswith("weights, 20 MiB")
    gap = int(blocks.found.offset[0])
    assert blocks.text_of(IDLE, gap) == "free, 20 MiB"


def _course(status: Status, highest: float, steps: int) -> MemoryCourse:
    count = np.linspace(0.0, steps, 200)
    level = np.linspace(100.0, highest, 200) * MIB
    return MemoryCourse(count / 10, level, level * 0.9, count, steps / 10, status)


def test_the_plot_of_a_change_is_over_steps_with_the_old_curve_thin_behind_it(
    qapp: QApplication, palette: Palette
) -> None:
    before, after = _course("out_of_memory", 700, 142), _course("finished", 150, 400)
    axes = ComparisonAxes.of((before, after), 724 * MIB)
    assert (axes.in_steps, axes.end) == (True, 400.0)
    frame = SceneFrame(600, 240, 56, 8, 8, 20)
    scene = course_scene(after, before, 724 * MIB, axes, frame)
    assert [text for _at, text in scene.across.ticks] == ["0", "100", "200", "300", "step 400"]
    image = QImage(600, 240, QImage.Format.Format_RGB32)
    image.fill(QColor(palette.panel))
    painter = QPainter(image)
    paint_scene(painter, scene, styles(palette), palette)
    painter.end()
    x = round(float(scene.x(300.0)))
    fill = image.pixelColor(x, round(float(scene.y(50.0 * MIB))))
    assert fill != QColor(palette.panel)
    room = round(float(scene.y(724.0 * MIB)))
    reds = [image.pixelColor(column, room + row) for column in range(60, 590) for row in (-1, 0)]
    assert QColor(palette.critical) in reds
    above = [image.pixelColor(x, row) for row in range(20, 120)]
    assert QColor(palette.muted) not in above, "the old run was over by then"
    old = [image.pixelColor(column, row) for column in range(60, 260) for row in range(20, 200)]
    assert any(_near(colour, QColor(palette.muted)) for colour in old)


def _near(colour: QColor, other: QColor) -> bool:
    return all(abs(a - b) < 40 for a, b in zip(colour.getRgb(), other.getRgb(), strict=True))


@pytest.mark.parametrize("steps", [0])
def test_a_run_that_told_of_no_steps_is_over_seconds(steps: int) -> None:
    without = MemoryCourse(np.arange(5.0), np.ones(5), np.ones(5), np.zeros(0), 4.0, "finished")
    axes = ComparisonAxes.of((without, _course("finished", 150, 400)), 0)
    assert not axes.in_steps and axes.end == 40.0
    assert steps == 0
