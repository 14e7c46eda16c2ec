"""Starting the window: application, theme, session, and an orderly exit."""

from __future__ import annotations

import gc
import logging
import math
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING

from PySide6.QtCore import QEvent, QObject, QTimer, qVersion
from PySide6.QtGui import QIcon
from PySide6.QtWidgets import QApplication

from gpudash.devices.names import Simulation
from gpudash.session import Session, recording_target
from gpudash.session.source import DashboardSource
from gpudash.specs import broken_entry_points
from gpudash.system.files import resource
from gpudash.system.garbage import collect_due
from gpudash.system.settings import Settings, load_settings
from gpudash.telemetry.recording.recorder import RecordingError
from gpudash.telemetry.records import Warning
from gpudash.telemetry.results.outcome import stop_text
from gpudash.ui.colours import Palette
from gpudash.ui.features import (
    appearance,
    edit,
    export,
    first_minute,
    first_screen,
    fleet,
    help,
    lessons,
    palette,
    recordings,
    view,
)
from gpudash.ui.features import file as file_menu
from gpudash.ui.features import run as run_menu
from gpudash.ui.widgets.theme import Choice, ThemeFollower
from gpudash.ui.window.main_window import Feature, MainWindow
from gpudash.ui.window.workspace import Workspace

if TYPE_CHECKING:
    from gpudash.session.recordings.file_kinds import FoundFile
    from gpudash.session.serving import Serving

logger = logging.getLogger(__name__)

PAINTED_MS = 2000
"""Longest wait for the first paint, in milliseconds."""

COLLECT_MS = 1000
"""Interval between garbage collections, in milliseconds."""


def application() -> QApplication:
    """The one QApplication, with gpudash's name and icon.

    From then on, only the GUI thread collects garbage, from its event loop. Otherwise a widget in a reference cycle
    could be deleted by any thread that creates an object, or while Qt iterates over all widgets, and Qt would crash.
    """
    app = QApplication.instance()
    if not isinstance(app, QApplication):
        app = QApplication(sys.argv[:1])
        gc.disable()
        collecting = QTimer(app)
        collecting.timeout.connect(collect_due)
        collecting.start(COLLECT_MS)
    app.setApplicationName("gpudash")
    app.setDesktopFileName("org.gpudash.Gpudash")
    app.setWindowIcon(QIcon(str(resource("icons", "gpudash.svg"))))
    return app


FEATURES: tuple[Feature, ...] = (
    file_menu.commands,
    fleet.commands,
    export.commands,
    edit.commands,
    run_menu.commands,
    view.commands,
    appearance.commands,
    recordings.commands,
    palette.commands,
    help.commands,
    lessons.commands,
    first_minute.commands,
    first_screen.commands,
)
"""The window's features, in menu order; a feature that is not listed is in no window."""


def build_window(session: DashboardSource, colours: Palette, set_theme: Callable[[Choice], None]) -> MainWindow:
    """A window with every feature.

    Args:
        session: session to show and control; the window closes it.
        colours: at the start.
        set_theme: called with "system", "light" or "dark" when the user picks a theme.
    """
    window = MainWindow(session, colours, FEATURES)
    window.workspace.theme_chosen.connect(set_theme)
    return window


def run(
    simulation: Simulation | None = None,
    file: FoundFile | None = None,
    begin: Callable[[Workspace], object] | None = None,
    *,
    record: bool = True,
) -> tuple[int, bool]:
    """Show the window and block until it is closed.

    Args:
        simulation: GPUs to simulate.
        file: snapshot, out-of-memory report folder or recording to open at the start.
        begin: called with the window's workspace once the window is shown.
        record: whether to record the session, if the settings ask for it.

    Returns:
        The exit code, and whether every thread could be joined.
    """
    app = application()
    logger.info("the window opens with Qt %s on %s", qVersion(), app.platformName())
    settings, problems = load_settings()
    notices = [*problems, *broken_entry_points()]
    recording = recording_target(settings, "session", file=None, record=record)
    session = Session(settings, recording=recording, may_number=True, notices=notices, simulation=simulation)
    try:
        session.start()
    except RecordingError as error:
        notices = [*notices, f"{error} This session is not recorded."]
        session = Session(settings, notices=notices, simulation=simulation)
        session.start()
    window = _window(app, session, settings)
    sys.excepthook = _Excepthook(session)
    _AfterFirstPaint(window, session)
    window.show()
    if file is not None:
        window.workspace.open_file(file)
    if begin is not None:
        begin(window.workspace)
    serving = _served(session, settings.serve)
    window.timer.start()  # not when the window was created: it would fire before the first paint
    app.exec()
    run = session.store.run
    with suppress(OSError):  # the terminal may be gone
        if run is not None and window.ended_program:
            sys.stderr.write(f"gpudash: {stop_text(run.result) or STILL_ENDING}\n")
        if session.recording_path is not None:
            sys.stderr.write(f"Recording: {session.recording_path}\n")
    return 0, (serving is None or serving.close()) and window.joined


def run_demo(simulation: Simulation | None, scene: int | None, *, auto: bool) -> tuple[int, bool]:
    """Show the window and play the demo over it.

    Args:
        simulation: GPUs to simulate.
        scene: number of the only scene to play; ``None`` plays all.
        auto: advance without waiting, and close the window at the end.

    Returns:
        The exit code, and whether every thread could be joined.
    """
    from gpudash.session.demo.demo_scenes import SCENES
    from gpudash.ui.stage import StageWindow

    stages: list[StageWindow] = []

    def begin(workspace: Workspace) -> None:
        stage = StageWindow(
            workspace,
            auto=auto,
            simulate=_simulates(simulation),
            scenes=SCENES if scene is None else SCENES[scene - 1 : scene],
            first=scene or 1,
            count=len(SCENES),
        )
        stages.append(stage)
        if auto:
            stage.over.connect(lambda: QTimer.singleShot(0, workspace, lambda: workspace.window().close()))
        stage.begin()

    code, joined = run(simulation, begin=begin, record=False)
    failed = any(stage.play.failures for stage in stages)
    return code or int(auto and failed), joined


def run_lesson(simulation: Simulation | None, lesson: str) -> tuple[int, bool]:
    """Show the window and play a lesson over it.

    Args:
        simulation: GPUs to simulate.
        lesson: name of the lesson.

    Returns:
        The exit code, and whether every thread could be joined.
    """
    from gpudash.ui.features.lessons import play_lesson

    def begin(workspace: Workspace) -> None:
        play_lesson(workspace, lesson, simulate=_simulates(simulation))

    return run(simulation, begin=begin, record=False)


def _simulates(simulation: Simulation | None) -> bool:
    return simulation is not None and bool(simulation.sizes)


def _served(session: Session, address: str) -> Serving | None:
    """The server of the readings for Prometheus, if the settings ask for it."""
    if not address:
        return None
    from gpudash.session.serving import serve_by_settings

    return serve_by_settings(session, address)


STILL_ENDING = "the program had not ended when gpudash exited."

_WHY_LEFT: Mapping[int, str] = {
    signal.SIGINT: "after Ctrl+C in its terminal",
    signal.SIGTERM: "after gpudash was sent SIGTERM",
    signal.SIGHUP: "after its terminal was closed",
}
"""Signals that close the window → why, as for `MainWindow.leave`."""


def _window(app: QApplication, session: Session, settings: Settings) -> MainWindow:
    follower = ThemeFollower(app, settings.theme)
    window = build_window(session, follower.palette, follower.choose)
    follower.changed.connect(lambda: window.set_palette(follower.palette))
    leaving = _Leaving(window)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if number is signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:  # as under nohup
            continue
        signal.signal(number, leaving.take)
    app.commitDataRequest.connect(lambda _manager: window.never_ask())
    return window


SAME_PRESS_S = 0.25
"""Two Ctrl+C within this time count as one, because a key that is held down repeats; seconds."""


class _Leaving:
    """Closes the window on a signal; another Ctrl+C while a program is still ending ends it more forcefully."""

    def __init__(self, window: MainWindow) -> None:
        self._window = window
        self._taken_s = -math.inf

    def take(self, number: int, _frame: object) -> None:
        """Handle a signal."""
        now_s = time.monotonic()
        again = number == signal.SIGINT and now_s - self._taken_s > SAME_PRESS_S
        self._taken_s = now_s
        if not self._window.ended_program:
            self._window.leave(_WHY_LEFT[number])
        elif again:
            self._window.leave_sooner("after another Ctrl+C in its terminal")


class _AfterFirstPaint(QObject):
    """Starts what can wait until after the first paint, or a while later if the window is not shown (e.g. minimised).

    Importing torch takes seconds, on the worker's thread. Objects that are alive by then stay for good, so they are
    frozen: the garbage collector skips them.
    """

    def __init__(self, window: MainWindow, session: Session) -> None:
        super().__init__(window)
        self._window, self._session = window, session
        self._timer = QTimer(self, singleShot=True)
        self._timer.timeout.connect(self._begin)
        self._timer.start(PAINTED_MS)
        window.installEventFilter(self)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if event.type() == QEvent.Type.Paint:
            self._timer.start(0)
        return False

    def _begin(self) -> None:
        self._window.removeEventFilter(self)
        gc.freeze()
        self._session.load_torch(self._session.settings.isolate)


class _Excepthook:
    """Shows an unhandled exception of the window's code as a warning, once per place, and keeps the window open."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._reported: set[str] = set()

    def __call__(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        text = "".join(traceback.format_exception(kind, error, trace))
        if text in self._reported:
            return
        self._reported.add(text)
        logger.critical("an exception of the window's own code", exc_info=(kind, error, trace))
        sys.stderr.write(text)
        self._session.emit(
            Warning(
                time_s=self._session.clock(),
                level="warning",
                device="window",
                text=f"A part of the window could not be drawn ({kind.__name__}: {error}). The recording goes on.",
            )
        )
