"""What the window's commands do."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pyqtgraph
import PySide6
from PySide6.QtCore import Qt
from PySide6.QtGui import QAction, QGuiApplication
from PySide6.QtWidgets import (
    QDialog,
    QDialogButtonBox,
    QFileDialog,
    QInputDialog,
    QMessageBox,
    QTableView,
    QTextBrowser,
    QVBoxLayout,
)

from gpudash import __version__
from gpudash.devices import shown_name
from gpudash.settings import Settings, save_settings
from gpudash.telemetry.recorder import RecordingError
from gpudash.ui.actions import build_menus
from gpudash.ui.command_table import command_table
from gpudash.ui.guide import GUIDE, keys_page
from gpudash.ui.preferences import Preferences
from gpudash.ui.theme import Choice

if TYPE_CHECKING:
    from gpudash.ui.main_window import MainWindow

PAGE_SIZE = (620, 640)
"""Logical pixels of the pages behind the Help menu."""


class Commands:
    """The commands of one window."""

    def __init__(self, window: MainWindow, set_theme: Callable[[Choice], None]) -> None:
        self._window = window
        self._set_theme = set_theme
        self.actions: dict[str, QAction] = build_menus(window, window.plots, command_table(self, window))

    def refresh(self) -> None:
        """Words and availability that follow the session's state."""
        window = self._window
        running = window.session.running
        start = self.actions.get("Start or Stop Run")
        if start is not None:
            start.setText("Stop Run" if running else "Start Run")
            start.setEnabled(running or window.panel.spec() is not None)
        pause = self.actions["Pause or Follow"]
        pause.setText("Pause the View" if window.view.following else "Follow the Newest Reading")
        self.actions["Zoom to Selection"].setEnabled(window.view.selection is not None)

    def do(self, action: str) -> None:
        """Carry out a banner's action."""
        if action == "stop":
            if self._window.session.running:
                self._window.panel.toggle()
        elif action == "free_cache":
            self._window.session.free_cache()
        elif action == "save_recording":
            self.save_recording()
        elif action == "explain":
            self._window.explanation.explain()

    def attempt(self, act: Callable[[], object]) -> bool:
        """Do ``act``; what cannot be done is told in one sentence. Returns whether it was done."""
        try:
            act()
        except (OSError, ValueError, RuntimeError, RecordingError) as error:
            words = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) and error.filename else error
            QMessageBox.warning(self._window, "gpudash", str(words))
            return False
        return True

    def save_recording(self) -> None:
        """Ask where, and write a copy of the recording there."""
        path = self._ask("Save Recording As", "Recordings (*.gpudash)", ".gpudash")
        if path is not None:
            self.attempt(lambda: self._window.session.save_recording(path))

    def save_picture(self) -> None:
        """Ask where, and write the plots as a PNG."""
        path = self._ask("Export Graph as PNG", "Pictures (*.png)", ".png")
        if path is not None:
            self.attempt(lambda: self._window.plots.save_picture(path))

    def save_range(self) -> None:
        """Ask where, and write the visible curves of the selection as CSV."""
        path = self._ask("Export Range as CSV", "Tables (*.csv)", ".csv")
        if path is not None:
            self.attempt(lambda: self._window.plots.save_csv(path))

    def copy_values(self) -> None:
        """Copy the table that has the focus, else the selection of the plots, as tab-separated text."""
        focus = QGuiApplication.focusObject()
        if isinstance(focus, QTableView) and self._window.tabs.isAncestorOf(focus):
            self._window.tabs.current().copy()
        else:
            QGuiApplication.clipboard().setText(self._window.plots.selection_text())

    def copy_picture(self) -> None:
        """Copy a picture of the plots."""
        QGuiApplication.clipboard().setImage(self._window.plots.picture())

    def add_mark(self, time_s: float | None = None) -> None:
        """Ask for a name and mark the cursor, or now."""
        window = self._window
        if time_s is None:
            cursor = window.view.cursor_s
            time_s = window.session.clock() if cursor is None else cursor
        name, given = QInputDialog.getText(window, "Add Mark", f"Name of the mark at {time_s:.3f} s:")
        if given:
            window.session.mark(name.strip() or "mark", time_s)

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
        session = self._window.session
        start = session.recording.with_suffix(suffix) if session.recording else Path.home() / f"gpudash{suffix}"
        chosen, _kind = QFileDialog.getSaveFileName(self._window, title, str(start), kinds)
        if not chosen:
            return None
        path = Path(chosen)
        return path if path.suffix else path.with_suffix(suffix)

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

    def toggle_tables(self) -> None:
        """Collapse the tables to their bar, or open them."""
        tabs = self._window.tabs
        tabs.set_collapsed(not tabs.collapsed)
        tabs.collapsed_changed.emit()
