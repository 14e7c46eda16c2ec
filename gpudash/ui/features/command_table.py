"""The table of commands: the menu place, the key and the tooltip of each."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

from PySide6.QtGui import QAction

from gpudash.ui.compare import compare_command
from gpudash.ui.dashboard.view_bar import WINDOWS
from gpudash.ui.features.demo import demo_commands
from gpudash.ui.features.plot_choice import plot_commands
from gpudash.ui.features.profiling import ask_for_profile, copy_as_python
from gpudash.ui.features.tool_commands import (
    library_command,
    palette_command,
    presenting_commands,
    selection_commands,
    undo_commands,
)
from gpudash.ui.widgets.theme import Choice
from gpudash.ui.window.actions import Command

if TYPE_CHECKING:
    from gpudash.ui.features.commands import Commands
    from gpudash.ui.window.main_window import MainWindow

RECENT_MENU = "File/Open Recent"

ZOOM = 0.8
"""How much narrower one step of Zoom In makes the shown time."""


def command_table(commands: Commands, window: MainWindow) -> list[Command]:
    """Every command of ``window``, in the order of the menus."""
    live = window.session.live is not None
    return [
        *_file_commands(commands, window, live),
        *undo_commands(window),
        *_edit_commands(commands, window, live),
        *(_run_commands(commands, window) if live else ()),
        *_view_commands(commands, window),
        *selection_commands(window),
        *_mark_commands(window),
        *_axis_commands(window),
        *plot_commands(window),
        *_window_commands(commands, window),
        compare_command(window),
        *_help_commands(commands, window),
    ]


def _file_commands(commands: Commands, window: MainWindow, live: bool) -> list[Command]:
    save = Command(
        "File",
        "Save Recording As…",
        "Write a copy of the recording as far as it has come",
        commands.save_recording,
        ("Ctrl+Shift+S",),
    )
    return [
        Command("File", "Open…", "Open a memory snapshot or a recording", window.opening.ask, ("Ctrl+O",)),
        Command(
            "File",
            "Open Prometheus Server…",
            "Show every machine and GPU that a Prometheus server knows, the fullest first",
            window.opening.ask_for_server,
        ),
        Command(RECENT_MENU, "Clear Recent Files", "Forget the files opened last", commands.clear_recent),
        library_command(window),
        Command("File", "Close Document", "Close the document in front", window.documents.close_front, ("Ctrl+W",)),
        *((save,) if live else ()),
        *window.exporting.view_commands(),
        *window.exporting.recording_commands(),
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


def _edit_commands(commands: Commands, window: MainWindow, live: bool) -> list[Command]:
    mark = Command("Edit", "Add Mark…", "Mark the cursor, or now", commands.add_mark, ("M",), plot=True, separated=True)
    find = Command(
        "Edit",
        "Find in Output…",
        "Look for words in what your own program prints",
        commands.find_in_output,
        ("Ctrl+F",),
    )
    return [
        Command("Edit", "Copy Values", "Copy the selection as tab-separated text", commands.copy_values, ("Ctrl+C",)),
        Command("Edit", "Copy Graph as Image", "Copy a picture of the plots", commands.copy_picture, ("Ctrl+Shift+C",)),
        Command(
            "Edit",
            "Copy as Python",
            "Copy the run as a PyTorch program of at most 60 lines that needs nothing else",
            lambda: copy_as_python(window),
            ("Ctrl+Shift+Y",),
        ),
        *((mark,) if live else ()),
        *((find,) if live else ()),
        Command(
            "Edit",
            "Preferences…",
            "Thresholds, rates, recordings and look",
            commands.show_preferences,
            ("Ctrl+,",),
            separated=True,
            role=QAction.MenuRole.PreferencesRole,
        ),
    ]


def _run_commands(commands: Commands, window: MainWindow) -> list[Command]:
    return [
        Command(
            "Run",
            "Start or Stop Run",
            "Start the workload, or stop it after its current operation",
            window.panel.toggle,
            ("F5",),
        ),
        Command(
            "Run", "Free Cache", "Give memory that is held but not used back", lambda: commands.do("free_cache"), ()
        ),
        Command(
            "Run",
            "Save Snapshot Now",
            "Ask your own program for a snapshot of its GPU memory, and open it",
            commands.save_snapshot,
            ("Ctrl+Shift+M",),
            separated=True,
        ),
        Command("Run", "Attach to Process…", "Watch a process that runs already, from outside", commands.attach),
        Command(
            "Run",
            "Profile Next Steps…",
            "Find the operators that take most time and memory in the next steps of a workload; slows those down. "
            "Your own program is not profiled here.",
            lambda: ask_for_profile(window),
            ("Shift+F5",),
            separated=True,
        ),
    ]


def _view_commands(commands: Commands, window: MainWindow) -> list[Command]:
    return [
        Command(
            "View",
            "Pause or Follow",
            "Hold the view still, or follow the newest reading; recording goes on",
            commands.toggle_view,
            ("Space",),
            plot=True,
        ),
        Command("View", "Jump to Now", "Follow the newest reading", commands.jump_to_now, ("End",), plot=True),
        Command(
            "View",
            "Zoom to Selection",
            "Show the selected range alone",
            lambda: window.meant.view.zoom_to_selection(),
            ("Return", "F"),
            plot=True,
        ),
        Command(
            "View",
            "Clear Selection",
            "Select nothing",
            lambda: window.meant.view.clear_selection(),
            ("Esc",),
            plot=True,
        ),
        Command(
            "View",
            "Show All",
            "Show everything since the start",
            lambda: window.meant.plots.show_all(),
            ("0", "Home"),
            plot=True,
        ),
        Command(
            "View",
            "Back",
            "The view before",
            lambda: window.meant.view.back(),
            ("Alt+Left", "Backspace"),
            plot=True,
            separated=True,
        ),
        Command("View", "Forward", "The view after", lambda: window.meant.view.forward(), ("Alt+Right",), plot=True),
        Command(
            "View",
            "Explain Memory",
            "Show what fills the GPU's memory and who allocated it: at the last out-of-memory, or now in a run",
            commands.explain,
            ("Ctrl+E",),
            separated=True,
        ),
    ]


def _mark_commands(window: MainWindow) -> list[Command]:
    return [
        Command(
            "View",
            "Previous Mark",
            "Move the cursor to the mark before",
            lambda: window.meant.plots.jump_mark(-1),
            ("[",),
            plot=True,
        ),
        Command(
            "View",
            "Next Mark",
            "Move the cursor to the mark after",
            lambda: window.meant.plots.jump_mark(1),
            ("]",),
            plot=True,
        ),
        *_mark_kinds(window),
        *_cursor_commands(window),
    ]


def _axis_commands(window: MainWindow) -> list[Command]:
    return [
        Command(
            "View", "Zoom In", "Show less time", lambda: window.meant.plots.zoom(ZOOM), ("Ctrl++", "Ctrl+="), plot=True
        ),
        Command(
            "View", "Zoom Out", "Show more time", lambda: window.meant.plots.zoom(1 / ZOOM), ("Ctrl+-",), plot=True
        ),
        Command(
            "View",
            "Logarithmic Loss",
            "Switch the loss axis between linear and logarithmic",
            lambda: window.meant.plots.toggle_log(),
            ("L",),
            plot=True,
        ),
    ]


def _window_commands(commands: Commands, window: MainWindow) -> list[Command]:
    widths = [
        Command("View/Window", words, f"Show {words}", lambda seconds=seconds: window.meant.view.set_window(seconds))
        for words, seconds in WINDOWS
    ]
    return [
        *widths,
        Command(
            "View",
            "Next Tab",
            "Bring the next document to the front, after the last one the dashboard",
            window.documents.show_next,
            ("Ctrl+Tab",),
            separated=True,
        ),
        Command(
            "View",
            "Show or Hide Tables",
            "Collapse the tables to their bar, or open them",
            lambda: window.meant.toggle_tables(),
            ("F9",),
            separated=True,
        ),
        Command("View", "Workload Panel", "Show the panel at the left", commands.show_panel, ("F8",), checked=True),
        *_theme_commands(commands, window.session.settings.theme),
        *presenting_commands(window),
        Command(
            "View",
            "Full Screen",
            "Use the whole screen",
            commands.full_screen,
            ("F11",),
            checked=False,
            separated=True,
        ),
        Command("View", "Reset Layout", "Everything back to where it was at the first start", window.reset_layout),
    ]


def _theme_commands(commands: Commands, theme: Choice) -> list[Command]:
    return [
        Command(
            "View/Theme",
            choice.capitalize(),
            f"Use the {choice} look",
            lambda chosen, choice=choice: commands.choose_theme(choice, chosen),
            checked=choice == theme,
            group="theme",
        )
        for choice in get_args(Choice)
    ]


MARK_WORDS = {
    "user": "My Marks",
    "run": "Runs",
    "phase": "Phases",
    "epoch": "Epochs",
    "warning": "Warnings",
    "source": "Lost and Found Devices",
}


def _mark_kinds(window: MainWindow) -> list[Command]:
    def show(category: str, shown: bool) -> None:
        for dashboard in window.documents.dashboards:
            plots = dashboard.plots
            plots.set_hidden_marks(plots.hidden_marks - {category} if shown else plots.hidden_marks | {category})

    return [
        Command(
            "View/Marks",
            words,
            f"Show marks: {words.lower()}",
            lambda shown, category=category: show(category, shown),
            checked=True,
        )
        for category, words in MARK_WORDS.items()
    ]


def _cursor_commands(window: MainWindow) -> list[Command]:
    return [
        Command(
            "View/Cursor",
            f"{words} {'Earlier' if sign < 0 else 'Later'}",
            f"Move the cursor {words.lower()} {'back' if sign < 0 else 'on'}",
            lambda steps=sign * steps: window.meant.plots.move_cursor(steps),
            (f"{modifier}{'Left' if sign < 0 else 'Right'}",),
            plot=True,
        )
        for words, steps, modifier in (("One Reading", 1, ""), ("Ten Readings", 10, "Shift+"))
        for sign in (-1, 1)
    ]


def _help_commands(commands: Commands, window: MainWindow) -> list[Command]:
    return [
        palette_command(window),
        Command("Help", "Keys", "Every key of the window", commands.show_keys, ("?",), plot=True),
        Command("Help", "Guide", "What the window shows and how to use it", commands.show_guide, ("F1",)),
        *demo_commands(window),
        Command("Help", "Copy Diagnostics", "Copy what a bug report needs", commands.copy_diagnostics),
        Command(
            "Help",
            "About gpudash",
            "Version and licence",
            commands.show_about,
            separated=True,
            role=QAction.MenuRole.AboutRole,
        ),
    ]
