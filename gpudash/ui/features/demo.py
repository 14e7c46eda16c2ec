"""The demo's entries in the menus: the tour, and the sample recordings that come with gpudash."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from PySide6.QtGui import QAction
from PySide6.QtWidgets import QMenu

from gpudash.session.recordings.samples import samples
from gpudash.ui.widgets.plain_text import plain_tip
from gpudash.ui.window.menus import Command
from gpudash.ui.window.workspace import Workspace

if TYPE_CHECKING:
    from gpudash.ui.demo.demo import Demo


def commands(workspace: Workspace) -> list[Command]:
    """What Help offers to somebody who wants to be shown something; over a recording no run can be shown."""
    tour = Command(
        "Help",
        "Demo",
        "Show what tensors do to memory, scene by scene, each run for real",
        partial(play_demo, workspace),
        id="help.demo",
        after="help.guide",
        separated=True,
    )
    return [
        *((tour,) if workspace.live else ()),
        *(
            Command(
                "Help/Demo Recordings",
                found.title,
                found.words,
                lambda path=found.path: workspace.open(path),
                id=f"help.sample.{found.path.name}",
                after="help.demo" if workspace.live else "help.guide",
            )
            for found in samples()
        ),
    ]


def play_demo(workspace: Workspace) -> Demo:
    """Begin the demo, or return to it where it is on already."""
    from gpudash.ui.demo.demo import Demo

    demo = workspace.findChild(Demo)
    if demo is not None and not demo.is_over:
        workspace.show_dashboard()
        return demo
    demo = Demo(workspace)
    demo.start()
    return demo


def sample_entries(workspace: Workspace, menu: QMenu) -> list[QAction]:
    """The samples as entries of ``menu``, for where there is nothing else to open."""
    entries = []
    for found in samples():
        entry = QAction(f"Demo: {found.title}", menu)
        entry.setToolTip(plain_tip(found.words))
        entry.triggered.connect(lambda _checked=False, path=found.path: workspace.open(path))
        entries.append(entry)
    return entries
