"""The main window: it places the live dashboard and the documents, and passes wishes on; it holds no data.

Where the window is: kept when it closes, restored where that place still exists, else the default.

Desktop notices: one when a run ends or memory warns while the window is behind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from PySide6.QtCore import QByteArray, QPoint, QRect, QSettings, QSize, Qt, QTimer
from PySide6.QtGui import QCloseEvent, QGuiApplication, QKeyEvent, QRegion
from PySide6.QtWidgets import QApplication, QMainWindow, QSystemTrayIcon, QWidget

from gpudash.session.source import DashboardSource
from gpudash.settings import Settings, data_folder
from gpudash.telemetry.records import Event, Note, OutOfMemory, RunFailed, RunFinished, Warning
from gpudash.telemetry.runs import RunView
from gpudash.ui.colours import Palette
from gpudash.ui.dashboard.banner import Banner
from gpudash.ui.dashboard.cards import DeviceCards
from gpudash.ui.dashboard.dashboard import TITLE, Dashboard
from gpudash.ui.dashboard.document import Document
from gpudash.ui.dashboard.status_line import StatusLine
from gpudash.ui.dashboard.tabs.lower_tabs import LowerTabs
from gpudash.ui.explanation.view import ExplanationView
from gpudash.ui.features.commands import Commands
from gpudash.ui.features.exporting import Exporting
from gpudash.ui.features.opening import Opening
from gpudash.ui.forms.run_again import put_into_panel
from gpudash.ui.forms.workload_panel import WorkloadPanel
from gpudash.ui.plots.stack import PlotStack
from gpudash.ui.plots.view import TimeView
from gpudash.ui.widgets.plain_text import plain_notification, plain_title
from gpudash.ui.widgets.theme import Choice, dress
from gpudash.ui.widgets.undo import Undoing
from gpudash.ui.window.documents import Documents
from gpudash.ui.window.dropping import Dropping
from gpudash.ui.window.onboarding import FirstMinute
from gpudash.ui.window.tools import Tools
from gpudash.units import format_duration

ISOLATION: Mapping[str, bool | None] = {"automatic": None, "always": True, "never": False}
"""Setting → whether a run is hosted in a process of its own; ``None`` leaves it to the session."""


class MainWindow(QMainWindow):
    """The dashboard over a live session, or over a recording that is looked at.

    Args:
        session: what is shown and commanded; the window closes it.
        palette: colours at the start.
        set_theme: called with "system", "light" or "dark" when the user picks a theme.
    """

    def __init__(self, session: DashboardSource, palette: Palette, set_theme: Callable[[Choice], None]) -> None:
        super().__init__()
        self.palette_ = palette
        self.joined = True
        self._frame = 0
        self._closed = False
        self._live = session.live is not None
        past = None if self._live else session.recording
        self._own_title = TITLE if past is None else f"{past.name} – {TITLE}"
        self.setWindowTitle(self._own_title)
        self.setMinimumSize(960, 600)
        self.dashboard = Dashboard(session, palette)
        self.documents = Documents(self.dashboard)
        self.opening = Opening(self)
        self.exporting = Exporting(self)
        self.setCentralWidget(self.documents)
        self.dropping = Dropping(self, palette, self.opening.open_dropped)
        self.undoing = Undoing(self)
        self.commands = Commands(self, set_theme)
        self.tools = Tools(self)
        self.first_minute = FirstMinute(self)
        if not self.styleSheet():  # a text size that is remembered has come with one
            dress(self, palette)
        self._connect()
        self._restore_layout()
        self.setFocus()  # else the first activation gives it to a card, and Space would mean that card
        self.timer = QTimer(self)
        self.timer.setInterval(round(1000 / session.settings.frames_hz))
        self.timer.timeout.connect(self.refresh)
        self.timer.start()

    def _connect(self) -> None:
        dashboard = self.dashboard
        dashboard.start_requested.connect(self.start_run)
        dashboard.action.connect(self.commands.do)
        dashboard.mark_requested.connect(self.commands.add_mark)
        dashboard.happened.connect(self._take_event)
        dashboard.refreshed.connect(self.commands.refresh)
        self.documents.front_changed.connect(self._front_changed)

    @property
    def front_dashboard(self) -> Dashboard | None:
        """The dashboard in front: the live one, or that of the recording in front."""
        front = self.documents.front
        return self.dashboard if front is None else front.dashboard

    @property
    def meant(self) -> Dashboard:
        """The dashboard that a command means: the one in front, else the live one."""
        return self.front_dashboard or self.dashboard

    @property
    def session(self) -> DashboardSource:
        """What the live dashboard shows."""
        return self.dashboard.session

    @property
    def view(self) -> TimeView:
        """The time axis of the live dashboard."""
        return self.dashboard.view

    @property
    def plots(self) -> PlotStack:
        """The plots of the live dashboard."""
        return self.dashboard.plots

    @property
    def tabs(self) -> LowerTabs:
        """The tables of the live dashboard."""
        return self.dashboard.tabs

    @property
    def panel(self) -> WorkloadPanel:
        """The workload panel of the live dashboard."""
        return self.dashboard.panel

    @property
    def cards(self) -> DeviceCards:
        """The device cards of the live dashboard."""
        return self.dashboard.cards

    @property
    def banner(self) -> Banner:
        """The banner of the live dashboard."""
        return self.dashboard.banner

    @property
    def status_line(self) -> StatusLine:
        """The status line of the live dashboard."""
        return self.dashboard.status_line

    @property
    def explanation(self) -> ExplanationView:
        """The explanation in place of the live dashboard's plots."""
        return self.dashboard.explanation

    def start_run(self) -> None:
        """Run what the panel holds: a workload on the device it names, or the user's own program."""
        session, panel = self.session.live, self.panel
        if session is None or session.running or not panel.ready:
            return
        self.documents.show_dashboard()
        self.view.follow()
        spec, isolate = panel.spec(), ISOLATION[session.settings.isolate]
        if spec is None:
            request = panel.script.request()
            started = self.commands.attempt(lambda: session.watch(request))
            panel.script.remember()
        else:
            started = self.commands.attempt(lambda: session.start_run(spec, panel.device_name, isolate=isolate))
        if started:
            self.dashboard.refresh_figures()

    def serve(self, document: Document) -> None:
        """Let the commands act on the dashboard of a document: of a recording that has been read, of a fleet's GPU."""
        dashboard = document.dashboard
        if dashboard is not None:
            self.commands.serve(dashboard)
            dashboard.action.connect(self.commands.do)
            dashboard.refreshed.connect(self.commands.refresh)
            self.tools.follow_dashboards()
            self.commands.refresh()

    def run_again(self, run: RunView) -> None:
        """Put what a recorded run was asked into the live dashboard, and go there."""
        if self.session.running:
            self.documents.notice.tell("A run is in progress; stop it first, then run this one again.", "note")
            return
        self.documents.show_dashboard()
        sentence = put_into_panel(run, self.panel, self.session.devices(), self.session.default_device())
        if sentence:
            self.documents.notice.tell(sentence, "note")
        self.panel.button.setFocus()

    def apply_settings(self, settings: Settings) -> None:
        """Show what new settings ask for."""
        self.timer.setInterval(round(1000 / settings.frames_hz))
        self.dashboard.apply_settings()

    def set_palette(self, palette: Palette) -> None:
        """Redraw everything in other colours."""
        self.palette_ = palette
        dress(self, palette)
        for part in (self.dashboard, self.dropping, self.documents):
            part.set_palette(palette)
        self.refresh()

    def refresh(self) -> None:
        """Draw what is new; the one timer calls it."""
        self.dashboard.refresh(front=self.documents.front is None)
        self.documents.refresh()
        self.tools.refresh()
        self._frame += 1

    def _take_event(self, event: Event) -> None:
        """Tell what happened where nobody is looking; open the snapshot that was asked for."""
        if isinstance(event, Note) and event.topic == "snapshot" and self._live:
            path = event.details.get("path")
            if path is None:
                self.documents.notice.tell(event.text)
            else:
                self.opening.open(Path(path))
        if not self.isActiveWindow():
            notify(self, event)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        free = QApplication.focusWidget() in (None, self) and self.front_dashboard is not None
        if free and event.key() == Qt.Key.Key_Space and not event.modifiers():
            self.commands.toggle_view()
        else:
            super().keyPressEvent(event)

    def _front_changed(self) -> None:
        front = self.documents.front_title
        self.setWindowTitle(plain_title(f"{front} – {TITLE}") if front else self._own_title)
        self.commands.refresh()

    def reset_layout(self) -> None:
        """Everything back to where it was at the first start."""
        forget_layout()
        self.showNormal()
        self._take_default_place()
        self.commands.actions["Full Screen"].setChecked(False)
        self.commands.actions["Workload Panel"].setChecked(True)
        for dashboard in self.documents.dashboards:
            dashboard.reset_layout()

    def _restore_layout(self) -> None:
        self._take_default_place()
        if self._live and not restore_layout(self):
            self._take_default_place()

    def _take_default_place(self) -> None:
        self.setGeometry(default_place(self))

    def closeEvent(self, event: QCloseEvent) -> None:
        event.accept()
        if self._closed:
            return
        self._closed = True
        self.timer.stop()
        if self._live:
            keep_layout(self)
        self.tools.close()
        self.documents.close_all()
        read = self.opening.close()
        written = self.exporting.close()
        self.joined = self.session.close() and read and written


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
        tray.showMessage("gpudash", plain_notification(text))
