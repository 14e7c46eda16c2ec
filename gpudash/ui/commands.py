"""What the window's commands do, and the table that gives each its menu place, key and tooltip."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, get_args

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
from gpudash.session import Replay
from gpudash.settings import Settings, save_settings
from gpudash.telemetry.recorder import RecordingError
from gpudash.ui.actions import Command, build_menus
from gpudash.ui.guide import GUIDE, keys_page
from gpudash.ui.preferences import Preferences
from gpudash.ui.theme import Choice
from gpudash.ui.view_bar import WINDOWS

if TYPE_CHECKING:
    from gpudash.ui.main_window import MainWindow

ZOOM = 0.8
"""How much narrower one step of Zoom In makes the shown time."""

PAGE_SIZE = (620, 640)
"""Logical pixels of the pages behind the Help menu."""


class Commands:
    """The commands of one window."""

    def __init__(self, window: MainWindow, set_theme: Callable[[Choice], None]) -> None:
        self._window = window
        self._set_theme = set_theme
        self.actions: dict[str, QAction] = build_menus(window, window.plots, self._table())

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
            "devices": [f"{device.name} {device.product}" for device in self._window.session.devices()],
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

    def _choose_theme(self, choice: Choice, chosen: bool) -> None:
        if chosen:
            self._set_theme(choice)
            self.attempt(lambda: save_settings({"theme": choice}))

    def _full_screen(self, full: bool) -> None:
        if full:
            self._window.showFullScreen()
        else:
            self._window.showNormal()

    def _toggle_tables(self) -> None:
        tabs = self._window.tabs
        tabs.set_collapsed(not tabs.collapsed)
        tabs.collapsed_changed.emit()

    def _table(self) -> list[Command]:
        window = self._window
        live = not isinstance(window.session, Replay)
        return [
            *self._file_commands(live),
            *self._edit_commands(live),
            *(self._run_commands() if live else ()),
            *self._view_commands(),
            *self._help_commands(),
        ]

    def _file_commands(self, live: bool) -> list[Command]:
        window = self._window
        save = Command(
            "File",
            "Save Recording As…",
            "Write a copy of the recording as far as it has come",
            self.save_recording,
            ("Ctrl+Shift+S",),
        )
        return [
            *((save,) if live else ()),
            Command("File/Export", "Graph as PNG…", "Write the plots as a picture", self.save_picture),
            Command(
                "File/Export", "Range as CSV…", "Write the visible curves of the selection as a table", self.save_range
            ),
            Command(
                "File",
                "Exit",
                "Stop the run, close the recording and leave",
                window.close,
                ("Ctrl+Q",),
                separated=True,
                role=QAction.MenuRole.QuitRole,
            ),
        ]

    def _edit_commands(self, live: bool) -> list[Command]:
        mark = Command("Edit", "Add Mark…", "Mark the cursor, or now", self.add_mark, ("M",), plot=True, separated=True)
        return [
            Command("Edit", "Copy Values", "Copy the selection as tab-separated text", self.copy_values, ("Ctrl+C",)),
            Command("Edit", "Copy Graph as Image", "Copy a picture of the plots", self.copy_picture, ("Ctrl+Shift+C",)),
            *((mark,) if live else ()),
            Command(
                "Edit",
                "Preferences…",
                "Thresholds, rates, recordings and look",
                self.show_preferences,
                ("Ctrl+,",),
                separated=True,
                role=QAction.MenuRole.PreferencesRole,
            ),
        ]

    def _run_commands(self) -> list[Command]:
        window = self._window
        return [
            Command(
                "Run",
                "Start or Stop Run",
                "Start the workload, or stop it after its current operation",
                window.panel.toggle,
                ("F5",),
            ),
            Command(
                "Run", "Free Cache", "Give memory that is held but not used back", lambda: self.do("free_cache"), ()
            ),
        ]

    def _view_commands(self) -> list[Command]:
        window = self._window
        plots, view = window.plots, window.view
        theme = window.session.settings.theme
        widths = [
            Command("View/Window", words, f"Show {words}", lambda seconds=seconds: view.set_window(seconds))
            for words, seconds in WINDOWS
        ]
        themes = [
            Command(
                "View/Theme",
                choice.capitalize(),
                f"Use the {choice} look",
                lambda chosen, choice=choice: self._choose_theme(choice, chosen),
                checked=choice == theme,
                group="theme",
            )
            for choice in get_args(Choice)
        ]
        return [
            Command(
                "View",
                "Pause or Follow",
                "Hold the view still, or follow the newest reading; recording goes on",
                view.toggle,
                ("Space",),
                plot=True,
            ),
            Command("View", "Jump to Now", "Follow the newest reading", plots.jump_to_now, ("End",), plot=True),
            Command(
                "View",
                "Zoom to Selection",
                "Show the selected range alone",
                view.zoom_to_selection,
                ("Return", "F"),
                plot=True,
            ),
            Command("View", "Clear Selection", "Select nothing", view.clear_selection, ("Esc",), plot=True),
            Command("View", "Show All", "Show everything since the start", plots.show_all, ("0", "Home"), plot=True),
            Command("View", "Back", "The view before", view.back, ("Alt+Left", "Backspace"), plot=True, separated=True),
            Command("View", "Forward", "The view after", view.forward, ("Alt+Right",), plot=True),
            Command(
                "View",
                "Previous Mark",
                "Move the cursor to the mark before",
                lambda: plots.jump_mark(-1),
                ("[",),
                plot=True,
            ),
            Command(
                "View", "Next Mark", "Move the cursor to the mark after", lambda: plots.jump_mark(1), ("]",), plot=True
            ),
            *self._cursor_commands(),
            Command("View", "Zoom In", "Show less time", lambda: plots.zoom(ZOOM), ("Ctrl++", "Ctrl+="), plot=True),
            Command("View", "Zoom Out", "Show more time", lambda: plots.zoom(1 / ZOOM), ("Ctrl+-",), plot=True),
            Command(
                "View",
                "Logarithmic Loss",
                "Switch the loss axis between linear and logarithmic",
                plots.toggle_log,
                ("L",),
                plot=True,
            ),
            *widths,
            Command(
                "View",
                "Show or Hide Tables",
                "Collapse the tables to their bar, or open them",
                self._toggle_tables,
                ("F9",),
                separated=True,
            ),
            Command(
                "View", "Workload Panel", "Show the panel at the left", window.panel.setVisible, ("F8",), checked=True
            ),
            *themes,
            Command(
                "View",
                "Full Screen",
                "Use the whole screen",
                self._full_screen,
                ("F11",),
                checked=False,
                separated=True,
            ),
            Command("View", "Reset Layout", "Everything back to where it was at the first start", window.reset_layout),
        ]

    def _cursor_commands(self) -> list[Command]:
        plots = self._window.plots
        return [
            Command(
                "View/Cursor",
                f"{words} {'Earlier' if sign < 0 else 'Later'}",
                f"Move the cursor {words.lower()} {'back' if sign < 0 else 'on'}",
                lambda steps=sign * steps: plots.move_cursor(steps),
                (f"{modifier}{'Left' if sign < 0 else 'Right'}",),
                plot=True,
            )
            for words, steps, modifier in (("One Reading", 1, ""), ("Ten Readings", 10, "Shift+"))
            for sign in (-1, 1)
        ]

    def _help_commands(self) -> list[Command]:
        return [
            Command("Help", "Keys", "Every key of the window", self.show_keys, ("?",), plot=True),
            Command("Help", "Guide", "What the window shows and how to use it", self.show_guide, ("F1",)),
            Command("Help", "Copy Diagnostics", "Copy what a bug report needs", self.copy_diagnostics),
            Command(
                "Help",
                "About gpudash",
                "Version and licence",
                self.show_about,
                separated=True,
                role=QAction.MenuRole.AboutRole,
            ),
        ]
