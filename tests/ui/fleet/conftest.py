"""Overviews over generated fleets, with clocks that stand still until they are moved."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from PySide6.QtCore import QCoreApplication, QEvent
from PySide6.QtWidgets import QApplication

from gpudash.telemetry.fleet_gpu import FleetGpu
from gpudash.ui.colours import Palette
from gpudash.ui.fleet.document import FleetDocument
from gpudash.ui.widgets.theme import apply_theme
from tests.ui.fleet.fake_fleet import NOW_S, FakeFleet


class Overview:
    """An overview in a window of its own.

    Attributes:
        now_s: what its clock says; the wall clock moves with it.
        opened, compared: what was asked of the window.
    """

    def __init__(self, fleet: FakeFleet, palette: Palette, size: tuple[int, int] = (1280, 720)) -> None:
        self.now_s = 1000.0
        self.opened: list[FleetGpu] = []
        self.compared: list[list[FleetGpu]] = []
        self.fleet = fleet
        fleet.clock = lambda: NOW_S + self.now_s - 1000.0
        self.document = FleetDocument(
            fleet,
            palette,
            open_gpu=self.opened.append,
            compare=lambda gpus: self.compared.append(list(gpus)),
            clock=lambda: self.now_s,
        )
        self.grid = self.document.grid
        self.document.resize(*size)
        self.document.show()
        QApplication.processEvents()

    @property
    def keys(self) -> list[str]:
        """The GPUs in the order of their cells."""
        return self.grid.layout_.keys

    def later(self, seconds: float) -> None:
        """So much time passes, and the window's timer ticks."""
        self.now_s += seconds
        self.document.refresh()


OpenOverview = Callable[..., Overview]


@pytest.fixture
def overview(qapp: QApplication) -> Iterator[OpenOverview]:
    """Opens overviews; they are gone when the test is over."""
    opened: list[Overview] = []
    palette = apply_theme(qapp, "dark")

    def open_one(fleet: FakeFleet, size: tuple[int, int] = (1280, 720)) -> Overview:
        found = Overview(fleet, palette, size)
        opened.append(found)
        return found

    yield open_one
    for found in opened:
        found.document.close()
        found.document.deleteLater()
    QCoreApplication.sendPostedEvents(None, QEvent.Type.DeferredDelete.value)
