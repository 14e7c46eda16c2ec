"""The demo's entries in the menus: the tour, and the sample recordings that come with gpudash."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from PySide6.QtGui import QAction
from PySide6.QtWidgets import QMenu

from gpudash.session.recordings.samples import samples
from gpudash.ui.widgets.plain_text import plain_tip
from gpudash.ui.window.actions import Command

if TYPE_CHECKING:
    from gpudash.ui.demo.demo import Demo
    from gpudash.ui.window.main_window import MainWindow

SAMPLES_MENU = "Help/Demo Recordings"


def demo_commands(window: MainWindow) -> list[Command]:
    """What Help offers to somebody who wants to be shown something; over a recording no run can be shown."""
    tour = Command(
        "Help",
        "Demo",
        "Show what tensors do to memory, scene by scene, each run for real",
        lambda: play_demo(window),
        separated=True,
    )
    return [
        *(() if window.session.live is None else (tour,)),
        *(
            Command(SAMPLES_MENU, found.title, found.words, lambda path=found.path: window.opening.open(path))
            for found in samples()
        ),
    ]


def play_demo(window: MainWindow) -> Demo:
    """Begin the demo, or return to it where it is on already."""
    from gpudash.ui.demo.demo import Demo

    demo = window.findChild(Demo)
    if demo is not None and not demo.is_over:
        window.documents.show_dashboard()
        return demo
    demo = Demo(window)
    demo.start()
    return demo


def list_samples(menu: QMenu, before: QAction, show: Callable[[Path], object]) -> None:
    """List the samples in ``menu`` above ``before``, where there is nothing else to open."""
    for found in samples():
        entry = QAction(f"Demo: {found.title}", menu)
        entry.setToolTip(plain_tip(found.words))
        entry.triggered.connect(lambda _checked=False, path=found.path: show(path))
        menu.insertAction(before, entry)
