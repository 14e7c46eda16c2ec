"""A window over a folder of recordings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from PySide6.QtCore import QEvent
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from gpudash.session.recordings import library as library_module
from gpudash.session.recordings.library import LibraryWatcher
from gpudash.system.settings import Settings, recordings_folder
from gpudash.ui.recordings.library import LibraryDocument
from gpudash.ui.widgets.theme import apply_theme
from gpudash.ui.widgets.undo import Undoing
from gpudash.ui.window.main_window import MainWindow
from tests.ui.conftest import OpenWindow, settle
from tests.ui.fake_session import FakeSession
from tests.unit.telemetry.recordings import dated, record

opened: list[tuple[Path, int | None]] = []
compared: list[list[Path]] = []
started: list[bool] = []
"""What the library wanted opened with which run in view, compared, and started."""


@pytest.fixture
def folder() -> Path:
    """Four recordings of four workloads, the oldest first by name and by date."""
    folder = recordings_folder()
    for number, (workload, device, status) in enumerate(
        (
            ("training", "cuda:0", "finished"),
            ("transfer", "cpu", "failed"),
            ("pressure", "sim:0", "out_of_memory"),
            ("matmul", "cpu", "finished"),
        )
    ):
        origin = f"2025-03-0{number + 1}T12:00:00+00:00"
        path = folder / f"2025-03-0{number + 1}-120000-{workload}.gpudash"
        meta = {"wall_clock_origin": origin}
        dated(record(path, workload=workload, device=device, status=status, meta=meta), 1000.0 + number)
    return folder


@pytest.fixture
def undoing(qtbot: QtBot) -> Undoing:
    return Undoing()


@pytest.fixture
def library(
    folder: Path, undoing: Undoing, qapp: QApplication, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> Iterator[LibraryDocument]:
    """The library without a window around it, with every recording read."""
    monkeypatch.setattr(library_module, "POLL_S", 0.02)
    opened.clear()
    compared.clear()
    started.clear()
    document = LibraryDocument(
        LibraryWatcher(),
        undoing,
        apply_theme(qapp, "dark"),
        settings=Settings,
        open_recording=lambda path, run: opened.append((path, run)),
        compare=compared.append,
        is_open=lambda _path: False,
        start=lambda: started.append(True),
    )
    document.resize(1200, 700)
    document.show()
    document.activateWindow()
    qtbot.waitUntil(document.isActiveWindow)
    read(document, qtbot, 4)
    yield document
    document.close_document()
    document.deleteLater()
    QApplication.sendPostedEvents(document, QEvent.Type.DeferredDelete)  # gone before the next theme goes through all


@pytest.fixture
def window(folder: Path, open_window: OpenWindow, monkeypatch: pytest.MonkeyPatch) -> MainWindow:
    monkeypatch.setattr(library_module, "POLL_S", 0.02)
    return open_window(FakeSession().feed(5))


@pytest.fixture
def in_window(window: MainWindow, qtbot: QtBot) -> LibraryDocument:
    """The library in front of a window, with every recording read."""
    window.menus.actions["file.library"].trigger()
    document = window.workspace.front
    assert isinstance(document, LibraryDocument)
    read(document, qtbot, 4)
    settle(window)
    return document


def read(document: LibraryDocument, qtbot: QtBot, count: int) -> None:
    """Wait until the table shows ``count`` recordings that have been read."""

    def there() -> bool:
        document.refresh()
        entries = {row.entry.path: row.entry for row in document.table.shown()}
        return len(entries) == count and all(entry.facts is not None for entry in entries.values())

    qtbot.waitUntil(there)
