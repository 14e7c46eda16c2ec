"""What the pictures of README and the guide show that no other scenario does."""

from __future__ import annotations

import os
import sys

from PySide6.QtWidgets import QToolButton

from gpudash.devices.names import parse_simulated
from gpudash.session.recordings.samples import sample
from gpudash.ui.fleet.document import FleetDocument
from gpudash.ui.snapshot.document import SnapshotDocument
from tests.end_to_end.first_screen_scenario import begin_program
from tests.end_to_end.player import Player, Steps

LARGE = {"width": 1024, "depth": 24, "batch": 64}
"""A training that needs more than 8 GiB."""

LEAK = """\
import torch
from torch import nn

model = nn.Linear(2048, 4096, bias=False).cuda()
optimizer = torch.optim.AdamW(model.parameters(), fused=False)
history = []

for step in range(400):
    x = torch.randn(256, 2048, device="cuda")
    y = torch.randn(256, 4096, device="cuda")
    optimizer.zero_grad()
    out = model(x)
    loss = (out - y).square().mean()
    history.append(out.square().mean())
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.4f}", flush=True)
"""
"""Keeps a result of every step."""

GROWN = 80
"""Steps of it after which one sees where it leads."""


def pictured_first_screen(player: Player) -> Steps:
    """The window as it opens, where two programs run."""
    window, screen = player.window, player.window.workspace.dashboard.first_screen
    assert screen is not None
    for name in ("train.py", "prepare.py"):
        begin_program(player.folder, name)
    window.resize(1440, 960)
    yield lambda: player.session.torch_ready and bool(screen.model.list.shown)
    yield lambda: len(screen.program.list.shown) >= 2
    yield player.frames(300)
    yield from player.pictures()
    for name in ("train.py", "prepare.py"):
        (player.folder / f"{name}-ends").write_text("")


def pictured_prediction(player: Player) -> Steps:
    """A training that does not fit, before it runs."""
    window, session = player.window, player.session
    panel, fit = window.workspace.dashboard.panel, window.workspace.dashboard.panel.fit
    window.resize(1440, 960)
    yield lambda: session.torch_ready and "sim:0" in {device.name for device in session.devices()}
    panel.take_device("sim:0")
    panel.change_fields(LARGE)
    yield lambda: fit.estimate is not None and fit.estimate.fits is False
    fit.open_details()
    yield lambda: not any("searching" in button.text() for button in fit.findChildren(QToolButton))
    yield player.frames(30)
    yield from player.pictures()


def pictured_leak(player: Player) -> Steps:
    """A script that leaks: watched while there is room, explained once there is none, and run with the change."""
    window, session, dashboard = player.window, player.session, player.window.workspace.dashboard
    panel = dashboard.panel
    window.resize(1440, 960)
    (player.folder / ".venv").symlink_to(sys.prefix)
    script = player.folder / "leak.py"
    script.write_text(LEAK)
    yield lambda: session.torch_ready
    window.workspace.open_dropped([script])
    dashboard.chooser.choose(parse_simulated("1GiB"))
    yield lambda: panel.script.simulate.card != "" and panel.button.isEnabled()
    panel.button.click()
    yield lambda: session.store.run is not None and session.store.run.step >= GROWN
    yield lambda: "leak.py:" in dashboard.banner.accessibleName()
    yield from player.pictures("watch")
    yield player.run_ended
    yield player.frames(8)
    dashboard.explanation.show_newest()
    change = dashboard.explanation.page.program.change
    yield change.run_button.isVisible
    change.run_button.click()
    yield lambda: session.running
    yield player.run_ended
    yield player.frames(12)
    yield from player.pictures("explained")


def sample_report(player: Player) -> Steps:
    """Open the out-of-memory report among the samples."""
    window = player.window
    window.resize(1440, 960)
    window.workspace.open(sample("out-of-memory").path.with_suffix(""))
    yield lambda: isinstance(window.workspace.front, SnapshotDocument) and window.workspace.front.ready
    yield from player.pictures("snapshot")


def generated_fleet(player: Player) -> Steps:
    """Open the overview of every GPU of a server, of which there are ``FLEET_GPUS``."""
    window = player.window
    window.resize(1280, 800)
    yield lambda: isinstance(window.workspace.front, FleetDocument)
    overview = window.workspace.front
    assert isinstance(overview, FleetDocument)
    yield lambda: len(overview.grid.layout_.keys) == int(os.environ["FLEET_GPUS"])
    yield from player.pictures("fleet")
