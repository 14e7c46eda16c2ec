"""What the window's commands do."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyqtgraph
import PySide6
from PySide6.QtCore import Qt
from PySide6.QtGui import QAction, QGuiApplication, QKeySequence, QShortcut
from PySide6.QtWidgets import (
    QDialog,
    QDialogButtonBox,
    QFileDialog,
    QInputDialog,
    QMenu,
    QMessageBox,
    QTextBrowser,
    QVBoxLayout,
)

from gpudash import __version__
from gpudash.devices.names import shown_name
from gpudash.session.watching.attaching import candidates
from gpudash.settings import Settings, save_settings
from gpudash.telemetry.recording.recorder import RecordingError
from gpudash.ui.dashboard.banner import report_of
from gpudash.ui.features.command_table import MARK_WORDS, RECENT_MENU, command_table
from gpudash.ui.features.guide import GUIDE, keys_page
from gpudash.ui.features.plot_choice import fill_plots
from gpudash.ui.features.profiling import serve_operators, why_no_profile
from gpudash.ui.forms.run_progress import PID, WATCH
from gpudash.ui.recordings.document import RecordingDocument
from gpudash.ui.widgets.file_name import completed
from gpudash.ui.widgets.plain_text import message_box, plain_tip
from gpudash.ui.widgets.remembered import forget_recent
from gpudash.ui.widgets.theme import Choice
from gpudash.ui.window.actions import PLOT_KEYS, add_plot_actions, build_menus
from gpudash.ui.window.attach_dialog import AttachDialog
from gpudash.ui.window.preferences import Preferences

if TYPE_CHECKING:
    from gpudash.ui.dashboard.dashboard import Dashboard
    from gpudash.ui.dashboard.document import Document
    from gpudash.ui.window.main_window import MainWindow

PLAY_WORDS = "Play or Pause the Recording"
"""What Pause means while a recording is in front."""

PAGE_SIZE = (620, 640)
"""Logical pixels of the pages behind the Help menu."""


class Commands:
    """The commands of one window."""

    def __init__(self, window: MainWindow, set_theme: Callable[[Choice], None]) -> None:
        self._window = window
        self._set_theme = set_theme
        self.actions: dict[str, QAction] = build_menus(window, command_table(self, window))
        self._plot_commands = [
            name for name, action in self.actions.items() if action.shortcutContext() == PLOT_KEYS and name != "Keys"
        ]
        self.serve(window.dashboard)
        self._tips = {name: action.toolTip() for name, action in self.actions.items()}
        self._copying = {name: self.actions[name].shortcuts() for name in ("Copy Values", "Copy Graph as Image")}
        menu, clear = window.findChild(QMenu, RECENT_MENU), self.actions["Clear Recent Files"]
        assert menu is not None
        menu.aboutToShow.connect(lambda: window.opening.fill_recent(menu, clear))
        fill_plots(window)

    def serve(self, dashboard: Dashboard) -> None:
        """Let keys and choices of the menus act on the plots of ``dashboard`` too."""
        add_plot_actions(dashboard.plots, self.actions.values())
        serve_operators(self._window, dashboard)
        dashboard.panel.setVisible(self.actions["Workload Panel"].isChecked())
        hidden = {category for category, words in MARK_WORDS.items() if not self.actions[words].isChecked()}
        dashboard.plots.set_hidden_marks(hidden)

    def refresh(self) -> None:
        """Words and availability that follow the session's state."""
        window = self._window
        running = window.session.running
        start = self.actions.get("Start or Stop Run")
        if start is not None:
            start.setText("Stop Run" if running else "Start Run")
            self._allow("Start or Stop Run", "" if running or window.panel.ready else window.panel.button.toolTip())
            self._allow("Save Snapshot Now", self._why_no_snapshot())
            self._allow("Profile Next Steps…", why_no_profile(window))
            self._allow("Attach to Process…", "A run is in progress; stop it first." if running else "")
        self._refresh_plots()
        self._refresh_documents()

    def _refresh_plots(self) -> None:
        """What the document in front allows of the commands that act on plots."""
        window = self._window
        front = window.documents.front
        following = window.meant.view.following
        words = ("Pause the View" if following else "Follow the Newest Reading") if front is None else PLAY_WORDS
        self.actions["Pause or Follow"].setText(words)
        why_not = "" if window.front_dashboard is not None else "The document in front has no plots of a session."
        selected = window.meant.view.selection is not None
        for name in self._plot_commands:
            if name == "Zoom to Selection" and not selected:
                self._allow(name, why_not or "No range is selected.")
            elif name == "Add Mark…" and front is not None:
                self._allow(name, why_not or "Marks are made while a session is recorded.")
            else:
                self._allow(name, why_not)

    def _refresh_documents(self) -> None:
        """What the tabs allow; where the document in front has keys for copying itself, two owners would cancel out."""
        documents = self._window.documents
        none = "" if documents.count else "No document is open."
        self._allow("Next Tab", none)
        self._allow("Close Document", none or ("" if documents.front is not None else "The dashboard stays open."))
        for name, keys in self._copying.items():
            self.actions[name].setShortcuts([] if _has_keys(documents.front, keys) else keys)

    def _why_no_snapshot(self) -> str:
        run = self._window.session.store.run
        if not self._window.session.running or run is None or run.workload != WATCH:
            return "No program of yours is running here."
        return "A process that is watched from outside cannot be asked." if PID in run.spec else ""

    def _allow(self, name: str, why_not: str) -> None:
        """Make a command available, or say in its tooltip why it is not."""
        action = self.actions[name]
        tip = f"{self._tips[name]}\n{why_not}".strip()
        if action.isEnabled() == bool(why_not) or action.toolTip() != tip:
            action.setEnabled(not why_not)
            action.setToolTip(plain_tip(tip))

    def do(self, action: str) -> None:
        """Carry out a banner's action."""
        live = self._window.session.live
        if action == "stop":
            if self._window.session.running:
                self._window.panel.toggle()
        elif action == "free_cache":
            if live is not None:
                live.free_cache()
        elif action == "save_recording":
            self.save_recording()
        elif action == "explain":
            self.explain()
        elif action == "open_report":
            report = report_of(self._window.meant.banner.shown)
            if report is not None:
                self._window.opening.open(report)

    def toggle_view(self) -> None:
        """Hold the view still or follow the newest reading; play or pause a recording."""
        front = self._window.documents.front
        if isinstance(front, RecordingDocument):
            front.bar.toggle()
        else:
            self._window.view.toggle()

    def jump_to_now(self) -> None:
        """Follow the newest reading, or the end of a recording."""
        front = self._window.documents.front
        if isinstance(front, RecordingDocument):
            front.bar.go_to_end()
        self._window.meant.plots.jump_to_now()

    def show_panel(self, shown: bool) -> None:
        """Show or hide the workload panels."""
        for dashboard in self._window.documents.dashboards:
            dashboard.panel.setVisible(shown)

    def _show_a_dashboard(self) -> Dashboard:
        """The dashboard in front; the live one comes there when there is none."""
        if self._window.front_dashboard is None:
            self._window.documents.show_dashboard()
        return self._window.meant

    def explain(self) -> None:
        """Show what fills the memory, on the dashboard."""
        self._show_a_dashboard().explanation.explain()

    def find_in_output(self) -> None:
        """Open the output of the user's own program, and look for words in it."""
        dashboard = self._show_a_dashboard()
        if dashboard.tabs.collapsed:
            dashboard.toggle_tables()
        dashboard.tabs.show_output()
        dashboard.tabs.output.search.setFocus()
        dashboard.tabs.output.search.selectAll()

    def save_snapshot(self) -> None:
        """Ask the program that is watched for a snapshot; it opens when it has been written."""
        session = self._window.session.live
        if session is not None and self.attempt(session.save_snapshot):
            self._window.status_line.tell("Asked the program for a snapshot; it opens when it has been written.")

    def attach(self) -> None:
        """Ask for a process, and watch it."""
        session = self._window.session.live
        if session is None:
            return
        dialog = AttachDialog(
            lambda: candidates(session.store), lambda pid: self.attempt(lambda: session.attach(pid)), self._window
        )
        dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        dialog.open()

    def clear_recent(self) -> None:
        """Forget the files opened last."""
        forget_recent()

    def attempt(self, act: Callable[[], object]) -> bool:
        """Do ``act``; what cannot be done is told in one sentence. Returns whether it was done."""
        try:
            act()
        except (OSError, ValueError, RuntimeError, RecordingError) as error:
            words = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) and error.filename else error
            message_box(self._window, QMessageBox.Icon.Warning, "gpudash", str(words)).exec()
            return False
        return True

    def save_recording(self) -> None:
        """Ask where, and write a copy of the recording there."""
        path = self._ask("Save Recording As", "Recordings (*.gpudash)", ".gpudash")
        if path is not None:
            session = self._window.meant.session
            self.attempt(lambda: session.save_recording(path))

    def copy_values(self) -> None:
        """Copy from the document in front, else from the dashboard."""
        (self._window.documents.front or self._window.dashboard).copy_values()

    def copy_picture(self) -> None:
        """Copy a picture of the document in front, else of the dashboard's plots."""
        (self._window.documents.front or self._window.dashboard).copy_picture()

    def add_mark(self, time_s: float | None = None) -> None:
        """Ask for a name and mark the cursor, or now."""
        window, session = self._window, self._window.session.live
        if session is None:
            return
        if time_s is None:
            cursor = window.view.cursor_s
            time_s = session.clock() if cursor is None else cursor
        name, given = QInputDialog.getText(window, "Add Mark", f"Name of the mark at {time_s:.3f} s:")
        if given:
            label = name.strip() or "mark"
            session.mark(label, time_s)
            undo, redo = partial(session.unmark, label, time_s), partial(session.mark, label, time_s)
            window.undoing.push(f"Mark “{label}”", undo, redo)

    def show_preferences(self) -> None:
        """The settings as a form."""
        Preferences(self._window.session.settings, self._keep, self._window).open()

    def _keep(self, settings: Settings) -> bool:
        """Keep the settings in their file and put them in force; tells when that is not possible."""
        if not self.attempt(lambda: save_settings(settings.model_dump())):
            return False
        self._window.session.set_settings(settings)
        self._window.apply_settings(settings)
        self.actions[settings.theme.capitalize()].setChecked(True)
        return True

    def copy_diagnostics(self) -> None:
        """Copy what a bug report needs."""
        status = self._window.session.status()
        facts = {
            "gpudash": __version__,
            "python": platform.python_version(),
            "platform": platform.platform(),
            "PySide6": PySide6.__version__,
            "pyqtgraph": pyqtgraph.__version__,
            "torch": status.torch if status else None,
            "driver": status.driver if status else None,
            "gpu_problem": self._window.session.gpu_problem,
            "devices": [f"{shown_name(device.name)} {device.product}" for device in self._window.session.devices()],
        }
        QGuiApplication.clipboard().setText(json.dumps(facts, indent=2, ensure_ascii=False))

    def show_keys(self) -> None:
        """The sheet of keys."""
        self._show_page("Keys", keys_page(self.actions.values()))

    def show_guide(self) -> None:
        """A page on what the window shows."""
        self._show_page("Guide", GUIDE)

    def show_about(self) -> None:
        """Version and licence."""
        QMessageBox.about(
            self._window,
            "About gpudash",
            f"<b>gpudash {__version__}</b><p>Runs PyTorch tensor workloads and shows what they do to memory, "
            "bandwidth and loss.</p><p>Apache License 2.0</p>",
        )

    def _show_page(self, title: str, page: str) -> None:
        dialog = QDialog(self._window)
        dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        dialog.setWindowTitle(title)
        text = QTextBrowser()
        text.setAccessibleName(title)
        text.setHtml(page)
        buttons = QDialogButtonBox(QDialogButtonBox.StandardButton.Close)
        buttons.rejected.connect(dialog.reject)
        column = QVBoxLayout(dialog)
        column.addWidget(text)
        column.addWidget(buttons)
        dialog.resize(*PAGE_SIZE)
        dialog.open()

    def _ask(self, title: str, kinds: str, suffix: str) -> Path | None:
        session = self._window.meant.session
        start = session.recording.with_suffix(suffix) if session.recording else Path.home() / f"gpudash{suffix}"
        chosen, _kind = QFileDialog.getSaveFileName(self._window, title, str(start), kinds)
        return completed(self._window, title, chosen, suffix)

    def choose_theme(self, choice: Choice, chosen: bool) -> None:
        """Use the look `choice` from now on; its action also tells when another takes its place."""
        if chosen:
            self._set_theme(choice)
            self.attempt(lambda: save_settings({"theme": choice}))

    def full_screen(self, full: bool) -> None:
        """Use the whole screen, or the window's own place again."""
        if full:
            self._window.showFullScreen()
        else:
            self._window.showNormal()


def _has_keys(document: Document | None, keys: Sequence[QKeySequence]) -> bool:
    """Whether a document hears one of ``keys`` itself; one with a dashboard leaves them to the window."""
    if document is None or document.dashboard is not None:
        return False
    return any(shortcut.key() in keys for shortcut in document.findChildren(QShortcut))
