"""The Help menu: find a command, the keys, the guide, the demo and its recordings, and data for bug reports."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable
from functools import partial
from html import escape
from typing import TYPE_CHECKING

import pyqtgraph
import PySide6
from PySide6.QtCore import Qt
from PySide6.QtGui import QAction, QGuiApplication
from PySide6.QtWidgets import QDialog, QDialogButtonBox, QMenu, QMessageBox, QTextBrowser

from gpudash import __version__
from gpudash.devices.names import shown_name
from gpudash.session.recordings.samples import samples
from gpudash.ui.widgets.layouts import in_column
from gpudash.ui.widgets.plain_text import plain_tip
from gpudash.ui.widgets.text_size import scaled
from gpudash.ui.window.menus import Command
from gpudash.ui.window.workspace import Workspace

if TYPE_CHECKING:
    from gpudash.ui.stage import StageWindow
    from gpudash.ui.window.guide import Guide
    from gpudash.ui.window.log_view import LogView


PAGE_SIZE = (620, 640)
"""Size in logical pixels of the pages of the Help menu."""


def commands(workspace: Workspace) -> list[Command]:
    """The commands of Help. A recording's window cannot start runs, so it has no demo."""
    tour = Command(
        "Help",
        "Demo",
        "Show what tensors do to memory, scene by scene, on the whole screen",
        partial(play_demo, workspace),
        id="help.demo",
        separated=True,
        keywords="stage scenes talk present tour",
    )
    return [
        Command(
            "Help",
            "Keys",
            "Every key of the window",
            lambda: _show_page(workspace, "Keys", keys_page(workspace.commands)),
            ("?",),  # a field takes it as text
            id="help.keys",
            keywords="shortcuts keyboard",
        ),
        Command(
            "Help",
            "Guide",
            "What gpudash does and how to use it, page by page",
            partial(show_guide, workspace),
            ("F1",),
            id="help.guide",
            keywords="manual documentation",
        ),
        *((tour,) if workspace.live else ()),
        *(
            Command(
                "Help/Demo Recordings",
                found.title,
                found.description,
                lambda path=found.path: workspace.open(path),
                id=f"help.sample.{found.path.name}",
            )
            for found in samples()
        ),
        Command(
            "Help",
            "Log",
            "Show what gpudash has logged, to copy it or to find its file",
            partial(show_log, workspace),
            id="help.log",
        ),
        Command(
            "Help",
            "Copy Diagnostics",
            "Copy what a bug report needs",
            partial(copy_diagnostics, workspace),
            id="help.copy_diagnostics",
        ),
        Command(
            "Help",
            "About gpudash",
            "Version and licence",
            partial(show_about, workspace),
            id="help.about",
            separated=True,
            role=QAction.MenuRole.AboutRole,
        ),
    ]


def show_guide(workspace: Workspace) -> Guide:
    """Show the guide beside the window."""
    from gpudash.ui.window.guide import Guide

    guide = Guide(workspace.window())
    guide.show()
    return guide


def show_log(workspace: Workspace) -> LogView:
    """Show the log beside the window."""
    from gpudash.ui.window.log_view import LogView

    view = LogView(workspace.window())
    view.show()
    return view


def copy_diagnostics(workspace: Workspace) -> None:
    """Copy data for a bug report."""
    session, live = workspace.session, workspace.session.live
    status = None
    if live is not None:
        status = live.status()
    facts = {
        "gpudash": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "PySide6": PySide6.__version__,
        "pyqtgraph": pyqtgraph.__version__,
        "torch": status.torch if status else None,
        "driver": status.driver if status else None,
        "gpu_problem": None if live is None else live.gpu_problem,
        "devices": [f"{shown_name(device.name)} {device.product}" for device in session.devices()],
    }
    QGuiApplication.clipboard().setText(json.dumps(facts, indent=2, ensure_ascii=False))


def show_about(workspace: Workspace) -> None:
    """Show the version and the licence."""
    QMessageBox.about(
        workspace,
        "About gpudash",
        f"<b>gpudash {__version__}</b><p>Runs PyTorch tensor workloads and shows what they do to memory, "
        "bandwidth and loss.</p><p>Apache License 2.0</p>",
    )


def _show_page(workspace: Workspace, title: str, page: str) -> None:
    dialog = QDialog(workspace)
    dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
    dialog.setWindowTitle(title)
    text = QTextBrowser()
    text.setAccessibleName(title)
    text.setHtml(page)
    buttons = QDialogButtonBox(QDialogButtonBox.StandardButton.Close, dialog)
    buttons.rejected.connect(dialog.reject)
    in_column(text, buttons, parent=dialog)
    dialog.resize(*PAGE_SIZE)
    dialog.open()


MOUSE = (
    ("drag", "Select a range; drag one of its edges to change it"),
    ("double-click", "Zoom to the selection"),
    ("wheel", "Zoom time at the pointer"),
    ("Ctrl+wheel", "Zoom the value axis"),
    ("Shift+drag, middle drag, Shift+wheel, two fingers sideways", "Move through time"),
    ("right click", "Menu of the plot"),
    ("click in the legend", "Hide or show the curve"),
    ("Ctrl+click in the legend, “only”", "Show only this curve; again restores the others"),
    ("drop a file on the window", "Open a snapshot or a recording, or choose a Python file as the script to run"),
)

SNAPSHOT = (
    ("1 to 4", "Go to a pane, in the order in which they are read"),
    ("/", "Search"),
    ("P, O", "Go to the peak, to the out-of-memory"),
    ("T", "Own or total sizes"),
    ("I", "Icicle"),
    ("Esc", "Clear what is selected, step by step"),
)

LIBRARY = (
    ("Enter", "From the search box into the table; there, open the selected recordings"),
    ("Space", "Tick or untick the selected runs"),
    ("Tab", "From the table to the selected run's name, tags and note"),
    ("Ctrl+click, Shift+click", "Select several"),
    ("Del", "Move the selected recordings to the trash"),
)

KEY_PX = 190
"""Width in logical pixels of the key column at the default text size."""


def keys_page(commands: Iterable[Command]) -> str:
    """Every command with a key and its description, menu by menu; then the mouse, and the keys of documents."""
    menus: dict[str, list[tuple[str, str]]] = {}
    for command in commands:
        keys = command.key_texts()
        if keys:
            menus.setdefault(command.menu.partition("/")[0], []).append((", ".join(keys), command.tip))
    sections = [
        *menus.items(),
        ("Mouse, in a plot", MOUSE),
        ("In a memory snapshot", SNAPSHOT),
        ("In the session library", LIBRARY),
    ]
    return "".join(f"<h3>{escape(title)}</h3>{_table(rows)}" for title, rows in sections)


def _table(rows: Iterable[tuple[str, str]]) -> str:
    width = scaled(KEY_PX)
    lines = (f'<tr><td width="{width}"><b>{escape(key)}</b></td><td>{escape(text)}</td></tr>' for key, text in rows)
    return f'<table cellspacing="0" cellpadding="3" width="100%">{"".join(lines)}</table>'


def play_demo(workspace: Workspace) -> StageWindow:
    """Start the demo, or switch to it if it is running."""
    from gpudash.ui.stage import StageWindow

    stage = workspace.window().findChild(StageWindow)
    if stage is not None and not stage.is_over:
        stage.activateWindow()
        return stage
    stage = StageWindow(workspace)
    stage.begin()
    return stage


def sample_entries(workspace: Workspace, menu: QMenu) -> list[QAction]:
    """Menu entries for the samples, for when there is nothing else to open."""
    entries = []
    for found in samples():
        entry = QAction(f"Demo: {found.title}", menu)
        entry.setToolTip(plain_tip(found.description))
        entry.triggered.connect(lambda _checked=False, path=found.path: workspace.open(path))
        entries.append(entry)
    return entries
