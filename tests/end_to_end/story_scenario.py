"""From the first screen to a leak that is mended: a script dropped, predicted, put on another card, and one mended."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from gpudash.devices.known_gpus import find
from gpudash.units import MIB
from tests.end_to_end.film_scenario import middle
from tests.end_to_end.hand import hand
from tests.end_to_end.player import Player, Steps

if TYPE_CHECKING:
    from PySide6.QtWidgets import QWidget

TRAINS = """
import torch
from torch import nn

layers = nn.TransformerEncoder(nn.TransformerEncoderLayer(1024, 16, 4096, batch_first=True), 24).cuda()
optimizer = torch.optim.AdamW(layers.parameters())
for step in range(1000):
    x = torch.randn(8, 512, 1024, device="cuda")
    loss = (layers(x) - x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
"""Too much for 8 GB, and not for 24: predicted alone, since its numbers would take this computer hours."""

LEAKS = """
import torch
from torch import nn

model = nn.Linear(2048, 4096, bias=False).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
history = []

for step in range(120):
    x = torch.randn(256, 2048, device="cuda")
    out = model(x)
    loss = out.square().mean()
    history.append(loss)
    loss.backward(retain_graph=True)
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step} loss {loss.item():.4f}", flush=True)
"""
"""Keeps the graph of every step."""

SMALL = 600 * MIB


def story(player: Player) -> Steps:
    """Picture every station; `Player.seen` has what was read there."""
    window, session, dashboard = player.window, player.session, player.window.workspace.dashboard
    panel, fit = dashboard.panel, dashboard.panel.fit
    window.move(0, 0)
    window.resize(1280, 800)
    yield lambda: session.torch_ready and window.isActiveWindow()
    screen = dashboard.first_screen
    assert screen is not None
    yield lambda: bool(screen.model.list.shown)
    yield from player.pictures("1-first-screen")

    script = player.folder / "train.py"
    script.write_text(TRAINS)
    window.workspace.open_dropped([script])
    panel.script.python.setText(sys.executable)
    panel.script.as_cuda.setChecked(True)
    yield from _press_chip(player, "rtx4060")
    yield lambda: panel.script.simulate.card != ""
    yield from player.pictures("2-dropped")
    yield from _press(panel.prediction.button)
    yield lambda: fit.isVisible() and fit.estimate is not None and fit.estimate.fits is False
    player.seen["short"] = fit.headline
    yield from player.pictures("3-too-much")
    yield from _press_chip(player, "rtx4090")
    yield lambda: fit.estimate is not None and fit.estimate.fits is True
    player.seen["spare"] = fit.headline
    yield from player.pictures("4-fits")

    leak = player.folder / "leak.py"
    leak.write_text(LEAKS)
    window.workspace.open_dropped([leak])
    panel.script.python.setText(sys.executable)
    dashboard.chooser.choose(SMALL)
    yield lambda: panel.button.isEnabled()
    yield from _press(panel.button)
    yield lambda: any("leak.py:" in warning.text for warning in player.warnings())
    yield from player.pictures("5-warned")
    yield player.run_ended
    player.seen["ended"] = session.store.run.status
    dashboard.explanation.show_newest()
    change = dashboard.explanation.page.program.change
    yield lambda: dashboard.explanation.open and change.run_button.isVisible()
    player.seen["change"] = change.figure.text()
    yield from player.pictures("6-source")
    yield from _press(change.run_button)
    yield lambda: session.running
    yield from player.pictures("7-with-the-change")
    yield player.run_ended
    yield player.frames(8)
    player.seen["mended"] = session.store.run.status
    yield from player.pictures("8-both")
    player.seen["file"] = leak.read_text() == LEAKS


def _press(widget: QWidget) -> Steps:
    yield from hand(middle(widget), ["click", "1"])


def _press_chip(player: Player, name: str) -> Steps:
    card = find(name)
    chip = next(chip for chip in player.window.workspace.dashboard.chooser.shown if chip.content.card == card)
    yield from _press(chip)
