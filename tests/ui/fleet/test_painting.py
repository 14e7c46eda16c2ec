"""Painting the cells of the overview."""

from __future__ import annotations

from PySide6.QtWidgets import QApplication

from gpudash.ui.colours import DARK
from gpudash.ui.fleet.grid import MOST_ELIDED, CellPainter


def test_names_shortened_to_ever_other_widths_are_not_kept_for_good(qapp: QApplication) -> None:
    painter = CellPainter(DARK, "cells", qapp.font())
    for width in range(MOST_ELIDED + 10):
        painter._elide("gpu-node-001 · GPU 3", width)
    assert 0 < len(painter._elided) <= MOST_ELIDED
