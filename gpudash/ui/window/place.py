"""Where the window is: kept when it closes, restored where that place still exists, else the default."""

from __future__ import annotations

from PySide6.QtCore import QByteArray, QPoint, QRect, QSettings, QSize
from PySide6.QtGui import QGuiApplication, QRegion
from PySide6.QtWidgets import QWidget

from gpudash.settings import data_folder

DEFAULT_SIZE = (1440, 960)


def default_place(window: QWidget) -> QRect:
    """The default size in the middle of the window's screen, smaller where the screen is."""
    there = window.screen().availableGeometry()
    size = QSize(*DEFAULT_SIZE).boundedTo(there.size()).expandedTo(window.minimumSize())
    room = there.size() - size
    return QRect(there.topLeft() + QPoint(max(0, room.width()) // 2, max(0, room.height()) // 2), size)


def keep_layout(window: QWidget) -> None:
    """Remember where ``window`` is."""
    _store().setValue("geometry", window.saveGeometry())


def restore_layout(window: QWidget) -> bool:
    """Put ``window`` where it was; false when nothing usable was kept or a part would be on no screen."""
    kept = _store().value("geometry")
    if not isinstance(kept, QByteArray) or not window.restoreGeometry(kept):
        return False
    return QRegion(window.geometry()).subtracted(screens()).isEmpty()


def forget_layout() -> None:
    """Start with the default next time."""
    _store().clear()


def screens() -> QRegion:
    """Everything that can be seen."""
    region = QRegion()
    for screen in QGuiApplication.screens():
        region += screen.geometry()
    return region


def _store() -> QSettings:
    return QSettings(str(data_folder() / "layout.ini"), QSettings.Format.IniFormat)
