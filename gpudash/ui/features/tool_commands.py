"""The commands that are about the window itself: undo, the library, the palette, text size, presenting."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from PySide6.QtWidgets import QLayout

from gpudash.ui.features.library import open_library
from gpudash.ui.forms.workload_panel import WIDTH
from gpudash.ui.widgets.remembered import recall, recent_files, remember
from gpudash.ui.widgets.text_size import SIZES, scaled, text_scale
from gpudash.ui.widgets.theme import restyle
from gpudash.ui.window.actions import Command
from gpudash.ui.window.palette import BETWEEN, CommandPalette, PaletteEntry, menu_entries

if TYPE_CHECKING:
    from gpudash.ui.window.main_window import MainWindow

PRESENTATION = "Presentation Mode"

_TEXT_SIZE = "text_size"
"""What the window remembers the chosen size under."""


def library_command(window: MainWindow) -> Command:
    """File > Session Library."""
    return Command(
        "File",
        "Session Library",
        "The recorded sessions: open, compare, lock, rename and delete them",
        lambda: open_library(window),
        ("Ctrl+Shift+O",),
    )


def undo_commands(window: MainWindow) -> list[Command]:
    """Edit > Undo and Redo."""
    return [
        Command("Edit", "Undo", "Take the last change back", window.undoing.undo, ("Ctrl+Z",)),
        Command("Edit", "Redo", "Make the change again", window.undoing.redo, ("Ctrl+Shift+Z", "Ctrl+Y")),
    ]


def selection_commands(window: MainWindow) -> list[Command]:
    """View > Select from Cursor and Select to Cursor: a range without the mouse."""
    return [
        Command(
            "View",
            "Select from Cursor",
            "Let the selection begin at the cursor; it ends where it did, else where the view does",
            lambda: _select(window, from_cursor=True),
            ("I",),
            plot=True,
        ),
        Command(
            "View",
            "Select to Cursor",
            "Let the selection end at the cursor; it begins where it did, else where the view does",
            lambda: _select(window, from_cursor=False),
            ("O",),
            plot=True,
        ),
    ]


def _select(window: MainWindow, *, from_cursor: bool) -> None:
    view = window.meant.view
    begin, end = view.range()
    cursor = end if view.cursor_s is None else view.cursor_s
    before = view.selection or (begin, end)
    if from_cursor:
        view.select(cursor, before[1] if before[1] > cursor else end)
    else:
        view.select(before[0] if before[0] < cursor else begin, cursor)


def presenting_commands(window: MainWindow) -> list[Command]:
    """View > Text Size, Presentation Mode and Compact Card."""
    sizes = [
        Command(
            "View/Text Size",
            f"{size:.0%}".replace("%", " %"),
            f"Draw words at {size:.0%} of the system's size".replace("%", " %"),
            partial(_choose_size, window, size),
            checked=size == text_scale(),
            group="text size",
        )
        for size in SIZES
    ]
    return [
        *sizes,
        Command(
            "View",
            PRESENTATION,
            "Large type and thick lines, with cards, warnings and plots alone; Esc leaves it",
            lambda on: window.tools.presentation.set_on(on),
            ("F10",),
            checked=False,
        ),
        Command(
            "View",
            "Compact Card",
            "Show the device's memory in a small window that stays above all others, or close it; "
            "where the system is Wayland it may not be allowed to stay above",
            lambda: window.tools.compact_cards.toggle(),
        ),
    ]


def palette_command(window: MainWindow) -> Command:
    """Help > Command Palette."""
    return Command(
        "Help",
        "Command Palette…",
        "Find a command by a few of its letters",
        lambda: open_palette(window),
        ("Ctrl+K", "Ctrl+Shift+P"),
    )


def open_palette(window: MainWindow) -> CommandPalette:
    """Show the palette over ``window``, with every command of its menus and every file opened last."""
    window.commands.refresh()
    entries = [*menu_entries(window.menuBar()), *_recent(window)]
    palette = CommandPalette(entries, window.palette_, window)
    palette.open()
    palette.field.setFocus()
    return palette


def _recent(window: MainWindow) -> list[PaletteEntry]:
    place = f"File{BETWEEN}Open Recent"
    return [
        PaletteEntry(path.name, place, partial(window.opening.open, path), tip=f"Open {path}", why_not=_gone(path))
        for path in recent_files()
    ]


def _gone(path: Path) -> str:
    return "" if path.exists() else "The file is not there any more."


def restore_text_size(window: MainWindow) -> None:
    """Draw words in the size that was chosen last."""
    size = recall(_TEXT_SIZE)
    if size in SIZES and size != text_scale():
        window.commands.actions[f"{size:.0%}".replace("%", " %")].setChecked(True)


def fit_panels(window: MainWindow) -> None:
    """Make the workload panels as wide as their words need at the text size in force."""
    for dashboard in window.documents.dashboards:
        panel = dashboard.panel
        if panel.minimumWidth() != scaled(WIDTH):
            panel.setFixedWidth(scaled(WIDTH))
            for layout in panel.findChildren(QLayout):  # a form that is not shown has kept the size it had before
                layout.invalidate()
                layout.activate()


def _choose_size(window: MainWindow, size: float, chosen: bool) -> None:
    if chosen:
        restyle(window, window.palette_, size)
        fit_panels(window)
        remember(_TEXT_SIZE, size)
