"""A document without a file behind it: what the window does to it is written down."""

from __future__ import annotations

import pickle
from pathlib import Path

from PySide6.QtGui import QKeySequence, QShortcut
from PySide6.QtWidgets import QLabel, QVBoxLayout

from gpudash.ui.colours import Palette
from gpudash.ui.dashboard.document import Document
from gpudash.ui.window.main_window import MainWindow


class FakeDocument(Document):
    """What the window needs of a document.

    Attributes:
        refreshed: how often it was asked to draw what is new.
        copied: what was copied, in order.
        closings: how often it was asked to close what reads its file.
    """

    def __init__(self, path: Path, palette: Palette) -> None:
        super().__init__()
        self.path = path
        self.title = path.name
        self.palettes = [palette]
        self.refreshed = 0
        self.closings = 0
        self.copied: list[str] = []
        for key in ("Ctrl+C", "Ctrl+Shift+C"):
            QShortcut(QKeySequence(key), self)
        QVBoxLayout(self).addWidget(QLabel(f"document of {path.name}"))

    def refresh(self) -> None:
        self.refreshed += 1

    def set_palette(self, palette: Palette) -> None:
        self.palettes.append(palette)

    def copy_values(self) -> None:
        self.copied.append("values")

    def copy_picture(self) -> None:
        self.copied.append("picture")

    def close_document(self) -> None:
        self.closings += 1


def with_fakes(window: MainWindow) -> MainWindow:
    workspace = window.workspace
    workspace.openers["snapshot"] = lambda file: FakeDocument(file.path, workspace.colours)
    return window


def snapshot(folder: Path, name: str = "a.pickle") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(pickle.dumps({"segments": [], "device_traces": []}))
    return folder / name


def opened(window: MainWindow) -> list[str]:
    return [window.workspace.bar.tabText(row) for row in range(window.workspace.bar.count())]


def front(window: MainWindow) -> FakeDocument:
    document = window.workspace.front
    assert isinstance(document, FakeDocument)
    return document
