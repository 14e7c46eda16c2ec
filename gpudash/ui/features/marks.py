"""Marks on the time axis: add one, go from one to the next, and which kinds are shown."""

from __future__ import annotations

from functools import partial

from PySide6.QtWidgets import QInputDialog

from gpudash.ui.window.menus import Command
from gpudash.ui.window.workspace import Workspace

MARK_WORDS = {
    "user": "My Marks",
    "run": "Runs",
    "phase": "Phases",
    "epoch": "Epochs",
    "warning": "Warnings",
    "source": "Lost and Found Devices",
}


def commands(workspace: Workspace) -> list[Command]:
    """Let the plots ask for marks, and show the kinds that are wanted; the commands around marks."""
    workspace.dashboard.mark_requested.connect(partial(add_mark, workspace))
    workspace.serve_pages(lambda page: page.plots.set_hidden_marks(workspace.hidden_marks))
    add = Command(
        "Edit",
        "Add Mark…",
        "Mark the cursor, or now",
        partial(add_mark, workspace),
        ("M",),
        id="edit.add_mark",
        after="edit.copy_python",
        why_not=partial(_why_no_mark, workspace),
        plot=True,
        separated=True,
    )
    return [
        *((add,) if workspace.live else ()),
        Command(
            "View",
            "Previous Mark",
            "Move the cursor to the mark before",
            lambda: workspace.meant.plots.jump_mark(-1),
            ("[",),
            id="view.previous_mark",
            after="view.select_to",
            why_not=workspace.why_no_plots,
            plot=True,
        ),
        Command(
            "View",
            "Next Mark",
            "Move the cursor to the mark after",
            lambda: workspace.meant.plots.jump_mark(1),
            ("]",),
            id="view.next_mark",
            after="view.select_to",
            why_not=workspace.why_no_plots,
            plot=True,
        ),
        *(
            Command(
                "View/Marks",
                words,
                f"Show marks: {words.lower()}",
                partial(_show_marks, workspace, category),
                id=f"view.marks.{category}",
                after="view.select_to",
                checked=partial(_shows, workspace, category),
            )
            for category, words in MARK_WORDS.items()
        ),
    ]


def add_mark(workspace: Workspace, time_s: float | None = None) -> None:
    """Ask for a name and mark ``time_s`` in seconds of the session, else the cursor, else now."""
    session = workspace.session.live
    if session is None:
        return
    if time_s is None:
        cursor = workspace.dashboard.view.cursor_s
        time_s = session.clock() if cursor is None else cursor
    name, given = QInputDialog.getText(workspace, "Add Mark", f"Name of the mark at {time_s:.3f} s:")
    if given:
        label = name.strip() or "mark"
        session.mark(label, time_s)
        undo, redo = partial(session.unmark, label, time_s), partial(session.mark, label, time_s)
        workspace.undo.push(f"Mark “{label}”", undo, redo)


def _why_no_mark(workspace: Workspace) -> str:
    recorded = "" if workspace.front is None else "Marks are made while a session is recorded."
    return workspace.why_no_plots() or recorded


def _shows(workspace: Workspace, category: str) -> bool:
    return category not in workspace.hidden_marks


def _show_marks(workspace: Workspace, category: str, shown: bool) -> None:
    hidden = workspace.hidden_marks
    workspace.hidden_marks = hidden - {category} if shown else hidden | {category}
    for page in workspace.pages:
        page.plots.set_hidden_marks(workspace.hidden_marks)
