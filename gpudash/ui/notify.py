"""Desktop notices: one when a run ends or memory warns while the window is behind."""

from __future__ import annotations

from PySide6.QtWidgets import QApplication, QSystemTrayIcon, QWidget

from gpudash.telemetry.records import Event, OutOfMemory, RunFailed, RunFinished, Warning
from gpudash.units import format_duration


def notice(event: Event) -> str | None:
    """What a desktop notice says of ``event``; ``None`` for what can wait until the window is looked at."""
    match event:
        case Warning(level="warning" | "critical" | "forecast"):
            return event.text
        case RunFinished(status="finished"):
            return f"The run finished after {format_duration(event.seconds)}, {event.steps} steps."
        case RunFailed() | OutOfMemory():
            return event.message
    return None


def notify(window: QWidget, event: Event) -> None:
    """Tell the desktop of ``event``, where it is worth it and the desktop takes notices."""
    text = notice(event)
    if text is None:
        return
    QApplication.alert(window)
    tray = window.findChild(QSystemTrayIcon)
    if tray is None and QSystemTrayIcon.isSystemTrayAvailable() and QSystemTrayIcon.supportsMessages():
        tray = QSystemTrayIcon(window.windowIcon(), window)
        tray.setToolTip("gpudash")
        tray.show()
    if tray is not None:
        tray.showMessage("gpudash", text)
