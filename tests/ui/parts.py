"""The parts of a window that a feature has put there, found by what they are."""

from __future__ import annotations

from typing import Any, TypeVar

from PySide6.QtCore import QObject
from PySide6.QtGui import QStandardItemModel
from PySide6.QtWidgets import QComboBox

from gpudash.ui.window.main_window import MainWindow
from gpudash.ui.window.palette import CommandPalette

Part = TypeVar("Part", bound=QObject)


def part(window: MainWindow, kind: type[Part]) -> Part:
    """The one part of ``window`` that is a ``kind``."""
    (found,) = window.workspace.findChildren(kind)
    return found


def palette_over(window: MainWindow) -> CommandPalette:
    """The command palette, opened."""
    window.menus.actions["help.palette"].trigger()
    return [palette for palette in window.findChildren(CommandPalette) if palette.isVisible()][-1]


def enabled_choices(combo: QComboBox) -> list[Any]:
    """The values of ``combo`` that can be chosen."""
    model = combo.model()
    assert isinstance(model, QStandardItemModel)
    return [combo.itemData(row) for row in range(combo.count()) if model.item(row).isEnabled()]
