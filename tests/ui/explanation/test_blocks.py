"""The blocks of a fragmented memory on the page that explains it, and the plots of a change as scenes."""

from dataclasses import replace

import numpy as np
import pytest
from PySide6.QtGui import QColor, QImage, QPainter
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from gpudash.drawing.scene import SceneDot, SceneFrame
from gpudash.memory.explaining.explain import explain
from gpudash.memory.explaining.memory_state import RefusedRequest
from gpudash.memory.snapshot.explaining import chosen_moment
from gpudash.memory.snapshot.history.history import History
from gpudash.telemetry.explanation import BlockMap, Explanation
from gpudash.telemetry.records import RunEnd, RunStarted, Sample
from gpudash.telemetry.runs import Status
from gpudash.telemetry.store import Store
from gpudash.ui.colours import Palette
from gpudash.ui.explanation.blocks import BlocksPanel, RefusedBlocks
from gpudash.ui.explanation.comparison import ComparisonAxes, MemoryCourse, course_of, course_scene, styles
from gpudash.ui.explanation.memory_map import IDLE, map_of
from gpudash.ui.plots.painting.scenes import paint_scene
from gpudash.units import MIB
from tests.ui.conftest import IN_BOTH_THEMES
from tests.unit.memory.snapshot.made import WEIGHTS, Made
from tests.unit.memory.test_explain import state


def _blocks() -> RefusedBlocks:
    """Four pieces of 20 MiB, of which every other one is free."""
    made = Made()
    held = [made.malloc(20 * MIB, WEIGHTS) for _ in range(8)]
    for block in held[::2]:
        made.free(block)
    snapshot = made.snapshot()
    history = History(snapshot.devices[0], snapshot.annotations)
    history.prepare()
    return RefusedBlocks.of_history(
        history, map_of(history.layout(history.count - 1 if chosen_moment(history) < 0 else history.last))
    )


def test_the_sentence_says_in_how_many_pieces_what_is_free_lies() -> None:
    text = _blocks().sums(64 * MIB)
    assert text == "80 MiB are free in 4 pieces, the largest of 20 MiB; 64 MiB were requested in one piece."


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


def _explained(blocks: BlockMap | None) -> Explanation:
    found = explain(state(request=RefusedRequest(64 * MIB, 64 * MIB)))
    return replace(found, verdict="fragmentation", blocks=blocks)


BLOCKS = BlockMap(
    segments=(40 * MIB, 40 * MIB),
    begin=(0, 50 * MIB),
    bytes=(10 * MIB, 30 * MIB),
    waits=(False, True),
    label=(0, 1),
    categories=("weights", "gradients"),
    lines=("train.py:4 <module>", ""),
)


def test_without_a_snapshot_the_blocks_are_those_that_the_explanation_carries(qtbot: QtBot, palette: Palette) -> None:
    panel = BlocksPanel(palette)
    qtbot.addWidget(panel)
    panel.resize(500, 260)
    panel.show_snapshot(_explained(BLOCKS), None)
    assert panel.isVisible()
    assert (
        panel.sums.text() == "40 MiB are free in 2 pieces, the largest of 30 MiB; 64 MiB were requested in one piece."
    )
    assert "2 segments of 80 MiB, 40 MiB of it in 2 blocks" in panel.view.accessibleDescription()
    blocks = RefusedBlocks.of_map(BLOCKS)
    assert blocks.text_of(0, 0) == "weights, 10 MiB\ntrain.py:4 <module>"
    assert blocks.text_of(1, 50 * MIB) == "gradients, 30 MiB"
    assert blocks.text_of(IDLE, 45 * MIB) == "free, 10 MiB"
    panel.show_snapshot(replace(_explained(BLOCKS), verdict="leak"), None)
    assert panel.isHidden()


@pytest.mark.parametrize(
    "damaged",
    [
        replace(BLOCKS, label=(0, 2)),
        replace(BLOCKS, begin=(0, 60 * MIB)),
        replace(BLOCKS, begin=(50 * MIB, 0)),
        replace(BLOCKS, bytes=(10 * MIB,)),
        replace(BLOCKS, lines=()),
        replace(BLOCKS, segments=()),
    ],
)
def test_a_map_of_a_file_whose_columns_do_not_fit_is_not_drawn(
    qtbot: QtBot, palette: Palette, damaged: BlockMap
) -> None:
    panel = BlocksPanel(palette)
    qtbot.addWidget(panel)
    panel.show_snapshot(_explained(damaged), None)
    assert panel.isHidden()


def _course(status: Status, highest: float, steps: int) -> MemoryCourse:
    count = np.linspace(0.0, steps, 200)
    level = np.linspace(100.0, highest, 200) * MIB
    return MemoryCourse(count / 10, level, level * 0.9, count, steps / 10, status)


@IN_BOTH_THEMES
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


def test_where_memory_ran_out_is_marked_at_what_was_held_though_all_was_freed_as_the_program_ended() -> None:
    store = Store()
    store.apply(RunStarted(time_s=0.0, run_id=1, workload="watch", device="sim:0", spec={}))
    for second, size in enumerate([100, 300, 600, 0], 1):
        held = {"allocated_bytes": size * MIB, "reserved_bytes": size * MIB}
        store.apply(Sample(float(second), "allocator", "sim:0", held))
    store.apply(RunEnd(time_s=5.0, run_id=1, status="out_of_memory", seconds=5.0, steps=0))
    assert store.run is not None
    course = course_of(store, store.run, "sim:0")
    scene = course_scene(course, None, 724 * MIB, ComparisonAxes.of((course,), 724 * MIB), SceneFrame(600, 240))
    (dot,) = (item for item in scene.items if isinstance(item, SceneDot))
    assert (dot.place, dot.value) == (3.0, 600 * MIB)


def _near(colour: QColor, other: QColor) -> bool:
    return all(abs(a - b) < 40 for a, b in zip(colour.getRgb(), other.getRgb(), strict=True))


@pytest.mark.parametrize("steps", [0])
def test_a_run_that_told_of_no_steps_is_over_seconds(steps: int) -> None:
    without = MemoryCourse(np.arange(5.0), np.ones(5), np.ones(5), np.zeros(0), 4.0, "finished")
    axes = ComparisonAxes.of((without, _course("finished", 150, 400)), 0)
    assert not axes.in_steps and axes.end == 40.0
    assert steps == 0
