"""The Edit menu: undo, copying from what is in front, finding, the settings."""

from __future__ import annotations

from functools import partial

from PySide6.QtGui import QAction, QKeySequence, QShortcut

from gpudash.settings import Settings, save_settings
from gpudash.ui.features.appearance import choose_theme
from gpudash.ui.widgets.plain_text import without_mnemonics
from gpudash.ui.window.menus import Command
from gpudash.ui.window.preferences import Preferences
from gpudash.ui.window.view_history import CurveHistory, LayoutHistory
from gpudash.ui.window.workspace import Workspace

COPY_KEYS, PICTURE_KEYS = ("Ctrl+C",), ("Ctrl+Shift+C",)


def commands(workspace: Workspace) -> list[Command]:
    """Make what is changed of the dashboards' views undoable; the commands of Edit."""
    workspace.serve_pages(lambda page: CurveHistory(workspace.undo, page))
    workspace.serve_dashboards(lambda dashboard: LayoutHistory(workspace.undo, dashboard))
    find = Command(
        "Edit",
        "Find in Output…",
        "Look for words in what your own program prints",
        partial(find_in_output, workspace),
        ("Ctrl+F",),
        id="edit.find",
    )
    return [
        *_undo_commands(workspace),
        Command(
            "Edit",
            "Copy Values",
            "Copy the selection as tab-separated text",
            lambda: (workspace.front or workspace.dashboard).copy_values(),
            COPY_KEYS,
            id="edit.copy_values",
            keys_taken=lambda: _front_has_keys(workspace, COPY_KEYS),
        ),
        Command(
            "Edit",
            "Copy Graph as Image",
            "Copy a picture of the plots",
            lambda: (workspace.front or workspace.dashboard).copy_picture(),
            PICTURE_KEYS,
            id="edit.copy_graph",
            keys_taken=lambda: _front_has_keys(workspace, PICTURE_KEYS),
        ),
        *((find,) if workspace.live else ()),
        Command(
            "Edit",
            "Preferences…",
            "Thresholds, rates, recordings and look",
            lambda: Preferences(workspace.session.settings, partial(_keep, workspace), workspace).open(),
            ("Ctrl+,",),
            id="edit.preferences",
            separated=True,
            role=QAction.MenuRole.PreferencesRole,
        ),
    ]


def _undo_commands(workspace: Workspace) -> list[Command]:
    undo = workspace.undo
    return [
        Command(
            "Edit",
            "Undo",
            "Take the last change back",
            undo.undo,
            ("Ctrl+Z",),
            id="edit.undo",
            text=lambda: without_mnemonics(f"Undo {undo.undo_text}".strip()),
            why_not=lambda: "" if undo.undo_text else "There is nothing to take back.",
        ),
        Command(
            "Edit",
            "Redo",
            "Make the change again",
            undo.redo,
            ("Ctrl+Shift+Z", "Ctrl+Y"),
            id="edit.redo",
            text=lambda: without_mnemonics(f"Redo {undo.redo_text}".strip()),
            why_not=lambda: "" if undo.redo_text else "There is nothing to make again.",
        ),
    ]


def find_in_output(workspace: Workspace) -> None:
    """Open the output of the user's own program, and look for words in it."""
    dashboard = workspace.show_a_dashboard()
    if dashboard.tabs.collapsed:
        dashboard.toggle_tables()
    dashboard.tabs.show_output()
    dashboard.tabs.output.search.setFocus()
    dashboard.tabs.output.search.selectAll()


def _front_has_keys(workspace: Workspace, keys: tuple[str, ...]) -> bool:
    """Whether the document in front hears one of ``keys`` itself, as two owners would cancel each other out.

    One with a dashboard leaves them to the window.
    """
    document = workspace.front
    if document is None or document.plots_page is not None:
        return False
    sequences = [QKeySequence(key) for key in keys]
    return any(shortcut.key() in sequences for shortcut in document.findChildren(QShortcut))


def _keep(workspace: Workspace, settings: Settings) -> bool:
    """Keep the settings in their file and put them in force; tells when that is not possible."""
    if not workspace.attempt(lambda: save_settings(settings.model_dump())):
        return False
    workspace.apply_settings(settings)
    if settings.theme != workspace.theme:
        choose_theme(workspace, settings.theme)
    return True
