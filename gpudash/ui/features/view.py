"""Commands for the current plots: pause, navigate, select and mark; show or hide plots and marks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from PySide6.QtGui import QAction
from PySide6.QtWidgets import QMenu

from gpudash.ui.dashboard.view_bar import WINDOWS
from gpudash.ui.window.menus import Command
from gpudash.ui.window.workspace import Workspace

ZOOM = 0.8
"""Factor by which one Zoom In narrows the shown range."""


def commands(workspace: Workspace) -> list[Command]:
    """Set the marks that the plots report, and hide the unwanted kinds; returns the commands for the current plots."""
    workspace.dashboard.plots.mark_named.connect(partial(_set_mark, workspace))
    workspace.serve_pages(lambda page: page.plots.set_hidden_marks(workspace.hidden_marks))
    return [
        *_follow_commands(workspace),
        *_range_commands(workspace),
        Command(
            "View",
            "Explain Memory",
            "Show what fills the GPU's memory and who allocated it: at the last out-of-memory, or now in a run",
            partial(explain, workspace),
            ("Ctrl+E",),
            id="view.explain",
            keywords="oom out-of-memory leak",
            separated=True,
        ),
        Command(
            "View",
            "Result of the Run",
            "Show the result of the run in view, over the plots; while the view is live, that of the last run",
            lambda: workspace.show_a_dashboard().show_result(),
            ("R",),
            id="view.result",
            why_not=partial(_why_no_result, workspace),
            plot=True,
        ),
        *_selection_commands(workspace),
        *_cursor_commands(workspace),
        *_axis_commands(workspace),
        Command(
            "View/Plots",
            "Usual Plots",
            "Show the default plots",
            lambda: workspace.target.plots.choice.begin_again(),
            id="view.usual_plots",
            above=partial(_plot_entries, workspace),
        ),
        *(
            Command(
                "View/Window",
                text,
                f"Show {text}",
                lambda seconds=seconds: workspace.target.view.set_window(seconds),
                id=f"view.window.{seconds:.0f}",
            )
            for text, seconds in WINDOWS
        ),
        *_mark_commands(workspace),
    ]


def explain(workspace: Workspace) -> None:
    """Show on the dashboard what fills the memory."""
    workspace.show_a_dashboard().explanation.explain()


def _follow_commands(workspace: Workspace) -> list[Command]:
    return [
        Command(
            "View",
            "Pause or Follow",
            "Pause the view, or follow the newest reading; recording continues",
            partial(_toggle_view, workspace),
            ("Space",),
            id="view.pause",
            text=partial(_pause_text, workspace),
            why_not=workspace.why_no_plots,
            plot=True,
        ),
        _plot_command(
            workspace,
            "jump_to_now",
            "Jump to Now",
            "Follow the newest reading",
            partial(_jump_to_now, workspace),
            "End",
        ),
    ]


def _range_commands(workspace: Workspace) -> list[Command]:
    return [
        Command(
            "View",
            "Zoom to Selection",
            "Show only the selected range",
            lambda: workspace.target.view.zoom_to_selection(),
            ("Return", "F"),
            id="view.zoom_to_selection",
            why_not=partial(_why_no_selection, workspace),
            plot=True,
        ),
        _plot_command(
            workspace,
            "clear_selection",
            "Clear Selection",
            "Close the result over the plots, or else clear the selection and close the statistics",
            lambda: workspace.target.dismiss(),
            "Esc",
        ),
        _plot_command(
            workspace,
            "show_all",
            "Show All",
            "Show everything since the start",
            lambda: workspace.target.plots.show_all(),
            "0",
            "Home",
        ),
        _plot_command(
            workspace,
            "back",
            "Back",
            "Go back to the previous view",
            lambda: workspace.target.view.back(),
            "Alt+Left",
            "Backspace",
            separated=True,
        ),
        _plot_command(
            workspace,
            "forward",
            "Forward",
            "Go forward to the next view",
            lambda: workspace.target.view.forward(),
            "Alt+Right",
        ),
    ]


def _selection_commands(workspace: Workspace) -> list[Command]:
    """Commands to select a range without the mouse."""
    return [
        _plot_command(
            workspace,
            "select_from",
            "Select from Cursor",
            "Start the selection at the cursor; its end stays, or is the end of the view",
            partial(_select, workspace, from_cursor=True),
            "I",
            menu="View/Cursor",
        ),
        _plot_command(
            workspace,
            "select_to",
            "Select to Cursor",
            "End the selection at the cursor; its start stays, or is the start of the view",
            partial(_select, workspace, from_cursor=False),
            "O",
            menu="View/Cursor",
        ),
    ]


def _cursor_commands(workspace: Workspace) -> list[Command]:
    commands = []
    for text, steps, modifier in (("One Reading", 1, ""), ("Ten Readings", 10, "Shift+")):
        for sign, when, way, key in ((-1, "Earlier", "back", "Left"), (1, "Later", "forward", "Right")):
            moved = _plot_command(
                workspace,
                f"cursor.{steps * sign}",
                f"{text} {when}",
                f"Move the cursor {text.lower()} {way}",
                lambda steps=sign * steps: workspace.target.plots.move_cursor(steps),
                f"{modifier}{key}",
                menu="View/Cursor",
            )
            commands.append(moved)
    return commands


def _axis_commands(workspace: Workspace) -> list[Command]:
    return [
        _plot_command(
            workspace,
            "zoom_in",
            "Zoom In",
            "Show less time",
            lambda: workspace.target.plots.zoom(ZOOM),
            "Ctrl++",
            "Ctrl+=",
        ),
        _plot_command(
            workspace, "zoom_out", "Zoom Out", "Show more time", lambda: workspace.target.plots.zoom(1 / ZOOM), "Ctrl+-"
        ),
        _plot_command(
            workspace,
            "log_loss",
            "Logarithmic Loss",
            "Switch the loss axis between linear and logarithmic",
            lambda: workspace.target.plots.toggle_log(),
            "L",
        ),
    ]


def _plot_command(
    workspace: Workspace,
    name: str,
    title: str,
    tip: str,
    run: Callable[..., object],
    *keys: str,
    menu: str = "View",
    separated: bool = False,
) -> Command:
    """A command whose keys work only in plots; available while a page of plots is current."""
    return Command(
        menu,
        title,
        tip,
        run,
        keys,
        id=f"view.{name}",
        why_not=workspace.why_no_plots,
        plot=True,
        separated=separated,
    )


def _toggle_view(workspace: Workspace) -> None:
    """Pause the view or follow the newest reading; in a recording, play or pause."""
    from gpudash.ui.recordings.document import RecordingDocument

    front = workspace.front
    if isinstance(front, RecordingDocument):
        front.bar.toggle()
    else:
        workspace.dashboard.view.toggle()


def _pause_text(workspace: Workspace) -> str:
    if workspace.front is not None:
        return "Play or Pause the Recording"
    if workspace.dashboard.view.following:
        return "Pause the View"
    return "Follow the Newest Reading"


def _jump_to_now(workspace: Workspace) -> None:
    """Follow the newest reading, or the end of a recording."""
    from gpudash.ui.recordings.document import RecordingDocument

    front = workspace.front
    if isinstance(front, RecordingDocument):
        front.bar.go_to_end()
    workspace.target.plots.jump_to_now()


def _why_no_result(workspace: Workspace) -> str:
    if refused := workspace.why_no_plots():
        return refused
    run = workspace.target_dashboard.runs.in_front()
    if run is None or run.running:
        return "No run has ended yet."
    return ""


def _why_no_selection(workspace: Workspace) -> str:
    if refused := workspace.why_no_plots():
        return refused
    if workspace.target.view.selection is None:
        return "No range is selected."
    return ""


def _select(workspace: Workspace, *, from_cursor: bool) -> None:
    view = workspace.target.view
    begin, end = view.range()
    if view.cursor_s is None:
        cursor = end
    else:
        cursor = view.cursor_s
    before = view.selection or (begin, end)
    if from_cursor:
        view.select(cursor, before[1] if before[1] > cursor else end)
    else:
        view.select(before[0] if before[0] < cursor else begin, cursor)


def _plot_entries(workspace: Workspace, menu: QMenu) -> list[QAction]:
    """The plots of the current session, each with a check mark."""
    return workspace.target.plots.choice.actions(menu)


MARK_TEXT = {
    "user": "My Marks",
    "run": "Runs",
    "phase": "Phases",
    "epoch": "Epochs",
    "warning": "Warnings",
    "source": "Lost and Recovered Devices",
}


def _mark_commands(workspace: Workspace) -> list[Command]:
    """Commands to add a mark, to go from one to the next, and to choose which kinds are shown."""
    add = Command(
        "Edit",
        "Add Mark…",
        "Add a mark at the cursor, or now",
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
            "View/Marks",
            "Previous Mark",
            "Move the cursor to the previous mark",
            lambda: workspace.target.plots.jump_mark(-1),
            ("[",),
            id="view.previous_mark",
            after="view.select_to",
            why_not=workspace.why_no_plots,
            plot=True,
        ),
        Command(
            "View/Marks",
            "Next Mark",
            "Move the cursor to the next mark",
            lambda: workspace.target.plots.jump_mark(1),
            ("]",),
            id="view.next_mark",
            after="view.select_to",
            why_not=workspace.why_no_plots,
            plot=True,
        ),
        *(
            Command(
                "View/Marks",
                text,
                f"Show marks: {text.lower()}",
                partial(_show_marks, workspace, category),
                id=f"view.marks.{category}",
                after="view.select_to",
                checked=partial(_shows, workspace, category),
            )
            for category, text in MARK_TEXT.items()
        ),
    ]


def add_mark(workspace: Workspace, time_s: float | None = None) -> None:
    """Open a field in the plots to name a mark at session time ``time_s``, by default at the cursor or now."""
    session = workspace.session.live
    if session is None:
        return
    if time_s is None:
        cursor = workspace.dashboard.view.cursor_s
        if cursor is None:
            time_s = session.clock()
        else:
            time_s = cursor
    workspace.dashboard.plots.name_mark(time_s)


def _set_mark(workspace: Workspace, label: str, time_s: float) -> None:
    session = workspace.session.live
    if session is not None:
        session.mark(label, time_s)
        undo, redo = partial(session.unmark, label, time_s), partial(session.mark, label, time_s)
        workspace.undo.push(f"Mark “{label}”", undo, redo)


def _why_no_mark(workspace: Workspace) -> str:
    recorded = "Marks can only be added on the live dashboard."
    if workspace.front is None:
        recorded = ""
    return workspace.why_no_plots() or recorded


def _shows(workspace: Workspace, category: str) -> bool:
    return category not in workspace.hidden_marks


def _show_marks(workspace: Workspace, category: str, shown: bool) -> None:
    hidden = workspace.hidden_marks
    if shown:
        workspace.hidden_marks = hidden - {category}
    else:
        workspace.hidden_marks = hidden | {category}
    for page in workspace.pages:
        page.plots.set_hidden_marks(workspace.hidden_marks)
