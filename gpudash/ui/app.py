"""Starting the window: application, theme, session, and an orderly end."""

from __future__ import annotations

import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from PySide6.QtCore import QTimer
from PySide6.QtGui import QIcon
from PySide6.QtWidgets import QApplication

from gpudash.devices import Simulation
from gpudash.resources import resource
from gpudash.session import Session, recording_target
from gpudash.settings import Settings, load_settings
from gpudash.telemetry.recorder import RecordingError
from gpudash.telemetry.records import Warning
from gpudash.ui.main_window import MainWindow
from gpudash.ui.theme import ThemeFollower


def application() -> QApplication:
    """The one QApplication, with gpudash's name and icon."""
    app = QApplication.instance()
    if not isinstance(app, QApplication):
        app = QApplication(sys.argv[:1])
    app.setApplicationName("gpudash")
    app.setDesktopFileName("org.gpudash.Gpudash")
    app.setWindowIcon(QIcon(str(resource("icons", "gpudash.svg"))))
    return app


def run(
    simulation: Simulation | None = None,
    opened: Path | None = None,
    begin: Callable[[MainWindow], None] | None = None,
) -> tuple[int, bool]:
    """Show the window until it is closed.

    Args:
        simulation: GPUs to simulate.
        opened: a snapshot, the folder of an out-of-memory report, or a recording, that is in front at the beginning.
        begin: called with the window once it is shown.

    Returns:
        The exit code, and whether every thread could be joined.
    """
    app = application()
    settings, notices = load_settings()
    recording = recording_target(settings, "session", file=None, record=True)
    session = Session(settings, recording=recording, notices=notices, simulation=simulation)
    try:
        session.start()
    except RecordingError as error:
        notices = [*notices, f"{error} This session is not recorded."]
        session = Session(settings, notices=notices, simulation=simulation)
        session.start()
    window = _window(app, session, settings)
    sys.excepthook = _Excepthook(session)
    window.show()
    if opened is not None:
        window.opening.open(opened)
    if begin is not None:
        begin(window)
    # The import of torch takes seconds; it begins once the window has been painted, in the worker's thread.
    QTimer.singleShot(0, session.load_torch)
    app.exec()
    if session.recording is not None:
        sys.stderr.write(f"Recording: {session.recording}\n")
    return 0, window.joined


def _window(app: QApplication, session: Session, settings: Settings) -> MainWindow:
    follower = ThemeFollower(app, settings.theme)
    window = MainWindow(session, follower.palette, follower.choose)
    follower.changed.connect(lambda: window.set_palette(follower.palette))
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_args: window.close())
    return window


class _Excepthook:
    """Shows an exception of the window's own code as a warning, once per place, and keeps the window open."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._told: set[str] = set()

    def __call__(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        text = "".join(traceback.format_exception(kind, error, trace))
        if text in self._told:
            return
        self._told.add(text)
        sys.stderr.write(text)
        self._session.emit(
            Warning(
                time_s=self._session.clock(),
                level="warning",
                device="window",
                text=f"A part of the window could not be drawn ({kind.__name__}: {error}). The recording goes on.",
            )
        )
