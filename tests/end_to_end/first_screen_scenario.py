"""From the first screen of the real window: watch a program that runs, ask whether a model fits, drop a script."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil

from gpudash.ui.dashboard.first_screen.rows import RowContent
from tests.end_to_end.player import Player, Steps

SIZES = ((1280, 800), (2500, 1400))

WAITS = """
import os, sys
open(sys.argv[1], "w").write(str(os.getpid()))
open(sys.argv[2]).read()
"""
"""Says its number into one FIFO, and waits until somebody writes into the other."""


def first_screen(player: Player) -> Steps:
    """Watch, stop watching, come back, ask about a model, come back, choose a script that is run."""
    window, session = player.window, player.session
    dashboard = window.workspace.dashboard
    screen = dashboard.first_screen
    assert screen is not None
    program = psutil.Process(begin_program(player.folder, "waits.py"))
    window.move(0, 0)
    for width, height in SIZES:
        window.resize(width, height)
        yield lambda width=width, height=height: (window.width(), window.height()) == (width, height)
        yield lambda: bool(screen.program.list.shown) and bool(screen.model.list.shown)
        yield from player.pictures(f"first-{width}")
    window.resize(*SIZES[0])
    back = window.menus.actions["view.first_screen"]

    def row() -> list[RowContent]:
        """Also where so many programs run here that it has no room."""
        return [one for one in screen.program.list.contents if one.key == str(program.pid)]

    yield lambda: session.torch_ready and bool(row())
    player.seen["listed"] = row()[0].sentence
    screen.program.list.chosen.emit(row()[0].key)
    yield lambda: session.running and not screen.isVisible()
    yield lambda: "PID" in dashboard.panel.attached.text or str(program.pid) in dashboard.panel.attached.text
    player.seen["attached"] = dashboard.panel.attached.text
    dashboard.panel.toggle()
    yield player.run_ended
    player.seen["alive"] = program.is_running()
    (player.folder / "waits.py-ends").write_text("")
    yield lambda: back.isEnabled()
    back.trigger()
    yield screen.isVisible
    screen.model.line.setText("gpt-2")
    screen.model.choose_typed()
    player.seen["typo"] = screen.model.problem.text()
    screen.model.line.setText("gpt2")
    screen.model.choose_typed()
    yield lambda: not screen.isVisible()
    fit = dashboard.panel.fit
    yield lambda: fit.estimate is not None and fit.estimate.fits is not None
    yield lambda: all(chip.content.text.standing == "fits" for chip in dashboard.chooser.shown)
    player.seen["headline"], player.seen["path"] = fit.headline, dashboard.panel.form.values()["path"]
    player.seen["chips"] = [chip.content.text.verdict for chip in dashboard.chooser.shown]
    yield from player.pictures("model")
    back.trigger()
    yield screen.isVisible
    (player.folder / "train.py").write_text("print('loss: 1.0')\n")
    window.workspace.open_dropped([player.folder / "train.py"])
    yield lambda: not screen.isVisible()
    start = window.menus.actions["run.start"]
    yield start.isEnabled
    start.trigger()
    yield lambda: len(session.store.runs) == 2 and player.run_ended()
    player.seen["status"] = session.store.run.status


def begin_program(folder: Path, name: str) -> int:
    """A program that runs until somebody writes into NAME-ends; its PID. It is nobody's child, as the window's are
    not listed."""
    script = folder / name
    script.write_text(WAITS)
    began, ends = folder / f"{name}-began", folder / f"{name}-ends"
    os.mkfifo(began)
    os.mkfifo(ends)
    subprocess.run(["setsid", "--fork", sys.executable, str(script), str(began), str(ends)], check=True)
    return int(began.read_text())
