"""Fixtures of the snapshot document's tests: programs whose memory is known, and documents over their snapshots."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from gpudash.memory.snapshot.history.model import Snapshot
from gpudash.ui.colours import Palette
from gpudash.ui.snapshot.document import SnapshotDocument
from gpudash.units import MIB
from tests.ui.snapshot.opened import FakeOpened
from tests.unit.memory.snapshot.made import WEIGHTS, Made, events

OpenDocument = Callable[..., SnapshotDocument]


@pytest.fixture(scope="session")
def leaking() -> Snapshot:
    """40 MiB of weights, steps of 24 MiB that keep 4 MiB each, until 256 MiB are full."""
    made = Made(256 * MIB)
    for _ in range(2):
        made.malloc(20 * MIB, WEIGHTS)
    made.until_full(8 * MIB, 4 * MIB)
    return made.snapshot()


@pytest.fixture(scope="session")
def healthy() -> Snapshot:
    """The same weights and five steps that keep nothing, on a card that is large enough."""
    made = Made()
    for _ in range(2):
        made.malloc(20 * MIB, WEIGHTS)
    for _ in range(5):
        made.step(8 * MIB)
    return made.snapshot()


@pytest.fixture(scope="session")
def without_history(leaking: Snapshot) -> Snapshot:
    """What is there at the end of the leaking program, and no event."""
    device = replace(leaking.devices[0], trace=events([]))
    return replace(leaking, devices=(device,), events_in_file=0)


@pytest.fixture(scope="session")
def two_devices(leaking: Snapshot, healthy: Snapshot) -> Snapshot:
    """The healthy program on device 0, the leaking one on device 3."""
    return replace(leaking, devices=(healthy.devices[0], replace(leaking.devices[0], index=3)))


@pytest.fixture
def open_document(qtbot: QtBot, palette: Palette) -> Iterator[OpenDocument]:
    """Opens documents over snapshots that are there at once, and closes them."""
    opened: list[SnapshotDocument] = []

    def open_one(
        snapshot: Snapshot,
        *,
        size: tuple[int, int] = (1280, 800),
        opener: Callable[[Path], FakeOpened] = FakeOpened,
    ) -> SnapshotDocument:
        document = SnapshotDocument(FakeOpened(snapshot=snapshot), palette, opener=opener)  # type: ignore[arg-type]
        qtbot.addWidget(document)
        opened.append(document)
        document.resize(*size)
        document.show()
        document.activateWindow()
        qtbot.waitUntil(document.isActiveWindow)
        wait_until_ready(qtbot, document)
        return document

    yield open_one
    for document in opened:
        document.close_document()


def wait_until_ready(qtbot: QtBot, document: SnapshotDocument) -> None:
    """Refresh until the page is there."""

    def ready() -> bool:
        document.refresh()
        return document.ready

    qtbot.waitUntil(ready)
    QApplication.processEvents()
