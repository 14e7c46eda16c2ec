"""The memory map: as many bytes a pixel everywhere, every block where it is."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PySide6.QtGui import QColor
from PySide6.QtWidgets import QApplication

from gpudash.memory.snapshot.history.history import History
from gpudash.memory.snapshot.history.model import Snapshot
from gpudash.ui.colours import Palette, contrast
from gpudash.ui.explanation.memory_map import IDLE, LEAST_PX, NOTHING, Map, fitting_scale, idle_colour, lay_out, map_of
from gpudash.units import MIB
from tests.ui.conftest import IN_BOTH_THEMES
from tests.ui.snapshot.conftest import OpenDocument


@pytest.fixture(scope="module")
def found(leaking: Snapshot) -> Map:
    history = History(leaking.devices[0])
    return map_of(history.layout(int(history.ooms[-1])))


def test_blocks_and_what_is_idle_add_up_to_the_segments(leaking: Snapshot, found: Map) -> None:
    history = History(leaking.devices[0])
    oom = int(history.ooms[-1])
    assert found.total == int(history.reserved[oom + 1])
    assert int((found.end - found.begin).sum()) == int(history.allocated[oom + 1])
    assert (found.begin[1:] >= found.end[:-1]).all()


def test_every_place_has_the_address_that_its_block_has(leaking: Snapshot, found: Map) -> None:
    lives = History(leaking.devices[0]).lives
    for block in range(len(found.begin)):
        assert found.address(int(found.begin[block])) == int(lives.address[found.life[block]])


@given(width=st.integers(60, 900), rows=st.integers(1, 40))
def test_pixels_show_the_share_of_every_state(found: Map, width: int, rows: int) -> None:
    lines = lay_out(found, width, fitting_scale(found, width, rows))
    assert lines.block.shape[1] == width
    shown = int((lines.block != NOTHING).sum())
    assert shown >= LEAST_PX * len(found.segments)
    for block in np.unique(lines.block[lines.block >= 0]).tolist():
        places = lines.place[lines.block == block]
        assert (places >= found.begin[block]).all() and (places < found.end[block]).all()


def test_the_free_memory_around_a_place_lies_between_two_blocks(found: Map) -> None:
    lines = lay_out(found, 600, fitting_scale(found, 600, 10))
    idle = lines.place[lines.block == IDLE]
    assert len(idle)
    low, high = found.idle_at(float(idle[0]))
    assert low <= idle[0] < high
    inside = (found.begin < high) & (found.end > low)
    assert not inside.any()


def test_nothing_reserved_is_an_empty_row(healthy: Snapshot) -> None:
    history = History(healthy.devices[0])
    empty = map_of(history.layout(-1))
    assert empty.total == 0
    assert (lay_out(empty, 100, MIB).block == NOTHING).all()


@IN_BOTH_THEMES
def test_idle_memory_has_the_hue_that_it_has_in_the_bar_above(
    leaking: Snapshot, open_document: OpenDocument, palette: Palette
) -> None:
    document = open_document(leaking)
    document.set_palette(palette)
    document.page.tabs.setCurrentWidget(document.page.blocks)
    QApplication.processEvents()
    for drawn in (document.page.blocks.view, document.page.blocks.legend):
        image = drawn.grab().toImage()
        colours = {image.pixelColor(x, y).rgb() for x in range(image.width()) for y in range(0, image.height(), 3)}
        assert idle_colour(palette).rgb() in colours
    idle = QColor(palette.curves["idle"])
    assert abs(idle_colour(palette).hue() - idle.hue()) <= 8
    assert contrast(idle_colour(palette).name(), palette.panel) > 1.3
