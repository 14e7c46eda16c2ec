"""The main window: a workspace and the menus that the features fill. One timer draws it, and it holds no data.

It saves its geometry when it closes. If it is in the background, a desktop notification reports the end of a run or a
memory warning.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from PySide6.QtCore import QByteArray, QPoint, QRect, QSettings, QSize, Qt, QTimer
from PySide6.QtGui import QCloseEvent, QGuiApplication, QKeyEvent, QRegion
from PySide6.QtWidgets import QApplication, QMainWindow, QScrollArea, QSystemTrayIcon, QWidget

from gpudash.session.source import DashboardSource
from gpudash.system.folders import data_folder
from gpudash.system.settings import Settings
from gpudash.telemetry.records import Event, RunEnd, Warning
from gpudash.telemetry.runs import WATCH
from gpudash.ui.colours import Palette
from gpudash.ui.dashboard.dashboard import TITLE
from gpudash.ui.dashboard.plots_page import PlotsPage
from gpudash.ui.widgets.plain_text import plain_notification, plain_title
from gpudash.ui.widgets.theme import dress
from gpudash.ui.window.dropping import Dropping
from gpudash.ui.window.leaving import Leaving
from gpudash.ui.window.menus import PLOT_KEYS, Command, Menus, in_order
from gpudash.ui.window.workspace import Workspace
from gpudash.units import format_duration

if TYPE_CHECKING:
    from gpudash.session import Session
    from gpudash.session.watching.program import StopProgress

Feature = Callable[[Workspace], Sequence[Command]]
"""Sets up a feature in a window, once, and returns its commands."""


class MainWindow(QMainWindow):
    """The dashboard of a live session or of a recording.

    Args:
        session: the session to show and control; the window closes it.
        colours: the initial palette.
        features: what the window can do, in menu order.

    Attributes:
        joined: whether every thread ended in time; valid once the window is closed.
        ended_program: whether closing the window stopped a program of the user's.
    """

    def __init__(self, session: DashboardSource, colours: Palette, features: Sequence[Feature]) -> None:
        super().__init__()
        self.joined = True
        self.ended_program = False
        self._closed = self._sure = False
        self._why_closed = "after the window was closed"
        past = None
        if session.live is None:
            past = session.recording_path
        if past is None:
            self._own_title = TITLE
        else:
            self._own_title = f"{past.name} – {TITLE}"
        self.setWindowTitle(self._own_title)
        self.setMinimumSize(*LEAST_SIZE)
        self.workspace = Workspace(session, colours)
        self.setCentralWidget(_Scrolled(self.workspace))
        self.dropping = Dropping(self, colours, self.workspace.open_dropped)
        self.workspace.commands = in_order([command for feature in features for command in feature(self.workspace)])
        self.menus = Menus(self, self.workspace.commands)
        # Qt ignores the shortcut of an action that is only in a hidden menu bar, as in presentation mode.
        self.addActions([action for action in self.menus.actions.values() if action.shortcutContext() != PLOT_KEYS])
        if not self.styleSheet():  # restoring the text size has set one already
            dress(self, colours)
        self._leaving = Leaving(self.workspace, self.leave, [self.menus.actions["file.exit"]])
        self._connect()
        self._restore_layout()
        self.setFocus()  # else a card would get it, and Space would press that card
        self.timer = QTimer(self, interval=round(1000 / session.settings.frames_hz))
        self.timer.timeout.connect(self.workspace.refresh)
        self.timer.start()

    def _connect(self) -> None:
        workspace = self.workspace
        workspace.serve_pages(self._serve)
        workspace.dashboard.happened.connect(self._notify_desktop)
        workspace.front_changed.connect(self._front_changed)
        workspace.changed.connect(self.menus.refresh)
        workspace.settings_changed.connect(self._apply_settings)

    def _serve(self, page: PlotsPage) -> None:
        """Let shortcuts act on these plots, and update the menus with them."""
        self.menus.serve_plots(page.plots)
        page.refreshed.connect(self.menus.refresh)
        self.menus.refresh()

    def _apply_settings(self, settings: Settings) -> None:
        self.timer.setInterval(round(1000 / settings.frames_hz))

    def set_palette(self, palette: Palette) -> None:
        """Use these colours."""
        dress(self, palette)
        self.dropping.hint.set_palette(palette)
        self.workspace.set_palette(palette)
        self.workspace.refresh()

    def _notify_desktop(self, event: Event) -> None:
        if not self.isActiveWindow():
            notify(self, event)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        """Act on the plots in front by a key of theirs that the widget with the focus has no use for."""
        command = self.menus.plot_action(event.keyCombination())
        if command is None or not self._reaches_plots(event):
            super().keyPressEvent(event)
        else:
            command.trigger()

    def _reaches_plots(self, event: QKeyEvent) -> bool:
        """Whether a key that no widget used is one for the plots: letters and Esc are; the others, which move within
        widgets or press them, only while none has the focus.
        """
        page = self.workspace.front_page
        if page is None or event.modifiers():
            return False
        if event.key() == Qt.Key.Key_Escape:
            return True
        letter = event.text().isprintable() and bool(event.text().strip())
        return page.plots.isVisible() and (letter or QApplication.focusWidget() in (None, self))

    def _front_changed(self) -> None:
        front = self.workspace.front_title
        self.setWindowTitle(plain_title(f"{front} – {TITLE}") if front else self._own_title)
        self.menus.refresh()

    def _restore_layout(self) -> None:
        self.setGeometry(default_place(self))
        if self.workspace.live and not restore_layout(self):
            self.setGeometry(default_place(self))

    def leave(self, why: str = "") -> None:
        """Close without asking, for when no user can answer.

        Args:
            why: what caused it, as a phrase after "sent by gpudash"; "" if the window was closed.
        """
        self._why_closed = why or self._why_closed
        self.never_ask()
        self.close()

    def leave_sooner(self, why: str) -> None:
        """Send the next signal, SIGTERM and then SIGKILL, to a program that was asked to end and has not.

        This uses its own thread: a signal handler may have interrupted the very code that it would wait for.

        Args:
            why: see `leave`.
        """
        session = self.workspace.session.live
        if session is None or not self.ended_program:
            return
        threading.Thread(target=_send_next, args=(session, why), name="gpudash leave", daemon=True).start()

    def never_ask(self) -> None:
        """From now on close at once, whatever is running: the desktop session is ending."""
        self._sure = True

    def closeEvent(self, event: QCloseEvent) -> None:
        if not (self._closed or self._sure) and self._leaving.asks():
            event.ignore()
            return
        event.accept()
        if self._closed:
            return
        self._closed = True
        self.timer.stop()
        if self.workspace.live:
            keep_layout(self)
        ended = self.workspace.close_all()
        self._end_program()
        self.joined = self.workspace.session.close() and ended

    def _end_program(self) -> None:
        """Ask a watched program to end. The window is hidden while the program takes its time."""
        session = self.workspace.session.live
        run = self.workspace.session.store.run
        if session is None or run is None or not session.running or run.workload != WATCH:
            return
        session.stop_run(self._why_closed, shutdown=True)
        stop = session.runs.stopping
        if stop is None:  # a process that was attached to never gets a signal
            return
        self.ended_program = True
        self.hide()
        QGuiApplication.sync()
        _print_sent(stop)


def _send_next(session: Session, why: str) -> None:
    session.stop_run(why)
    stop = session.runs.stopping
    if stop is not None:
        _print_sent(stop)


def _print_sent(stop: StopProgress) -> None:
    with suppress(OSError):  # the terminal may be gone
        sys.stderr.write(f"gpudash: {stop.sent} sent to {stop.program} {stop.when}. {stop.deadline}".rstrip() + "\n")


def notice(event: Event) -> str | None:
    """The desktop notification for ``event``; ``None`` if it can wait until the user looks at the window."""
    match event:
        case Warning(level="warning" | "critical" | "forecast"):
            return event.text
        case RunEnd(status="finished"):
            return f"The run finished after {format_duration(event.seconds)}, {event.steps} steps."
        case RunEnd(status="failed" | "out_of_memory"):
            return event.message
    return None


def notify(window: QWidget, event: Event) -> None:
    """Show a desktop notification for ``event``, if it needs one and the desktop supports it."""
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
        tray.showMessage("gpudash", plain_notification(text))


class _Scrolled(QScrollArea):
    """Scrolls what a small window cannot show whole."""

    def __init__(self, contents: QWidget) -> None:
        super().__init__()
        self.setWidgetResizable(True)
        self.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        contents.setProperty("role", "scrolled")
        self.setWidget(contents)


DEFAULT_SIZE = (1440, 960)

LEAST_SIZE = (480, 320)
"""Logical pixels, less than any screen has: 1024 × 768 at a scale of 1.5 is 683 × 512, with panels of the desktop."""

FRAME = QSize(4, 32)
"""Logical pixels that a window manager may need around a window, which is unknown before it is shown."""


TITLE_BAR = 26
"""How much of `FRAME` lies above the window."""


def default_place(window: QWidget) -> QRect:
    """A window of the default size, centred on its screen, or smaller if the screen is: its frame fits, too."""
    there = window.screen().availableGeometry()
    size = QSize(*DEFAULT_SIZE).boundedTo(there.size() - FRAME).expandedTo(window.minimumSize())
    room = there.size() - size
    below_title = min(TITLE_BAR, max(0, room.height()))
    offset = QPoint(max(0, room.width()) // 2, max(below_title, room.height() // 2))
    return QRect(there.topLeft() + offset, size)


def keep_layout(window: QWidget) -> None:
    """Save the geometry of ``window``."""
    _store().setValue("geometry", window.saveGeometry())


def restore_layout(window: QWidget) -> bool:
    """Restore the geometry of ``window``; false if none was saved or part of it would be off-screen."""
    kept = _store().value("geometry")
    if not isinstance(kept, QByteArray) or not window.restoreGeometry(kept):
        return False
    return QRegion(window.geometry()).subtracted(screens()).isEmpty()


def forget_layout() -> None:
    """Use the default geometry next time."""
    _store().clear()


def screens() -> QRegion:
    """The area of all screens."""
    region = QRegion()
    for screen in QGuiApplication.screens():
        region += screen.geometry()
    return region


def _store() -> QSettings:
    return QSettings(str(data_folder() / "layout.ini"), QSettings.Format.IniFormat)
