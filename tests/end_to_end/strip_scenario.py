"""What the strip of warnings says after a Stop, after a script that ran out of memory, and of another program."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

from PySide6.QtWidgets import QPushButton

from tests.end_to_end.player import Player, Steps

FILLS = {"until": "oom", "step": 4 * 2**20, "rate": 5.0}
"""Memory pressure that goes by the clock: seconds from the warning until the card is full, however fast the machine."""

ASKS_TOO_MUCH = """
import torch

kept = [torch.empty(64 * 2**20, dtype=torch.uint8, device="cuda") for _ in range(64)]
"""

WAITS = "import sys; sys.stdin.read()"
"""A program that goes on until its standard input is closed."""


def strip(player: Player) -> Steps:
    """Stop a run when its card is fairly full, run a script out of memory, and attach to a program."""
    window, session, dashboard = player.window, player.session, player.window.workspace.dashboard
    window.resize(1280, 800)
    yield lambda: session.torch_ready and "sim:0" in {device.name for device in session.devices()}
    dashboard.leave_first_screen()
    dashboard.panel.workload.setCurrentIndex(dashboard.panel.workload.findData("pressure"))
    dashboard.panel.take_device("sim:0")
    dashboard.panel.change_fields(FILLS)
    window.menus.actions["run.start"].trigger()
    yield lambda: "full" in said(player)["text"] and "SIMULATED" in said(player)["text"]
    player.seen["running"] = said(player)
    window.menus.actions["run.start"].trigger()
    yield player.run_ended
    yield player.frames(20)
    player.seen["stopped"] = said(player)
    yield from player.pictures("stopped")

    script = player.folder / "asks.py"
    script.write_text(ASKS_TOO_MUCH)
    dashboard.panel.take_script(script)
    dashboard.panel.script.python.setText(sys.executable)
    dashboard.panel.script.simulate.set_card("448 MiB")
    window.menus.actions["run.start"].trigger()
    yield lambda: len(session.store.runs) == 2 and bool(session.runs.after_end)
    yield player.frames(8)
    player.seen["ran_out"] = said(player)
    yield from player.pictures("ran-out")
    dashboard.panel.end_search.click()
    yield player.run_ended
    yield player.frames(8)
    player.seen["failed"] = said(player)
    yield from player.pictures("failed")

    other = subprocess.Popen([sys.executable, "-c", WAITS], stdin=subprocess.PIPE)
    session.attach(other.pid)
    yield lambda: len(session.store.runs) == 3
    yield player.frames(20)
    player.seen["attached"] = said(player)
    yield from player.pictures("attached")
    window.menus.actions["run.start"].trigger()
    yield player.run_ended
    player.seen["goes_on"] = other.poll() is None
    other.communicate()


def said(player: Player) -> dict[str, Any]:
    """What the strip says, and the buttons that are seen in it."""
    banner = player.window.workspace.dashboard.banner
    if banner.isHidden():
        return {"text": "", "buttons": []}
    buttons = [button.text() for button in banner.findChildren(QPushButton) if button.isVisible()]
    return {"text": banner.accessibleName(), "buttons": buttons}
