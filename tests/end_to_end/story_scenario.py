"""From the first screen to a leak that is mended: a script predicted, put on another card and run there; one mended."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import psutil
from PySide6.QtWidgets import QAbstractButton, QApplication, QMenu

from gpudash.devices.known_gpus import find
from tests.end_to_end.film_scenario import middle
from tests.end_to_end.hand import hand
from tests.end_to_end.player import Player, Steps

if TYPE_CHECKING:
    from PySide6.QtWidgets import QWidget

TRAINS = """
import torch
from torch import nn

replay = torch.empty(131_072, 128, 128, device="cuda")
layers = [layer for _ in range(16) for layer in (nn.Linear(64, 64), nn.GELU())]
model = nn.Sequential(*layers).cuda()
optimizer = torch.optim.AdamW(model.parameters())

for step in range(3):
    x = replay[torch.randint(len(replay), (512,))].view(-1, 64)
    loss = (model(x) - x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step} loss {loss.item():.4f}", flush=True)
"""
"""Too much for 8 GB, and not for 24; most of it is never written, so that this computer need not have as much."""

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

OWN = "600MiB"
"""A card that the user has added before."""


def story(player: Player) -> Steps:
    """Picture every station in both themes; `Player.seen` has what was read there.

    All is done with the mouse, but that no file manager is there from which a script could be dragged.
    """
    window, session, dashboard = player.window, player.session, player.window.workspace.dashboard
    panel, fit, chooser = dashboard.panel, dashboard.panel.fit, dashboard.chooser
    (player.folder / ".venv").symlink_to(sys.prefix)  # where a script's own Python is looked for
    chooser.set_own(OWN)
    screen = dashboard.first_screen
    assert screen is not None
    window.move(0, 0)
    window.resize(1280, min(800, window.screen().geometry().height()))
    yield lambda: session.torch_ready and window.isActiveWindow()
    yield lambda: bool(screen.model.list.shown)
    yield from player.pictures("01-first-screen")

    script = player.folder / "train.py"
    script.write_text(TRAINS)
    window.workspace.open_dropped([script])
    yield from press_chip(player, "rtx4060")
    yield lambda: panel.script.simulate.card != ""
    yield from player.pictures("02-dropped")
    yield from press(panel.prediction.button)
    yield lambda: fit.isVisible() and fit.estimate is not None and fit.estimate.fits is False
    player.seen["short"] = fit.headline
    yield from player.pictures("03-too-much")
    yield from press_chip(player, "rtx4090")
    yield lambda: fit.estimate is not None and fit.estimate.fits is True
    player.seen["spare"] = fit.headline
    yield from player.pictures("04-fits")
    player.seen["torch"] = "torch" in sys.modules
    player.seen["bytes"] = psutil.Process().memory_info().rss
    yield from press(panel.button)
    yield lambda: session.store.run is not None and session.store.run.step >= 2
    yield from player.pictures("05-into-its-outline")
    yield player.run_ended
    player.seen["trained"] = session.store.run.status
    yield player.frames(8)
    yield from player.pictures("06-reached")

    leak = player.folder / "leak.py"
    leak.write_text(LEAKS)
    window.workspace.open_dropped([leak])
    yield from press(chooser.more)
    yield lambda: QApplication.activePopupWidget() is not None
    yield from press_entry("600 MiB")
    yield lambda: panel.script.simulate.card == OWN and panel.button.isEnabled()
    yield from press(panel.button)
    yield player.run_ended
    player.seen["ended"] = session.store.run.status
    yield lambda: find_named(player, "Explain") is not None
    yield from player.pictures("07-out-of-memory")
    yield from press_explain(player)
    change = dashboard.explanation.page.program.change
    player.seen["change"] = change.figure.text()
    yield from player.pictures("08-source")
    yield from press(change.run_button)
    yield lambda: session.running
    yield from player.pictures("09-with-the-change")
    yield player.run_ended
    yield player.frames(8)
    player.seen["mended"] = session.store.run.status
    yield from player.pictures("10-both")
    player.seen["file"] = leak.read_text() == LEAKS


def press(widget: QWidget) -> Steps:
    yield from hand(middle(widget), ["click", "1"])


def press_explain(player: Player) -> Steps:
    """Press Explain beside what ran out of memory, once it is there, until its change can be run."""
    yield lambda: find_named(player, "Explain") is not None
    button = find_named(player, "Explain")
    assert button is not None
    yield from press(button)
    explanation = player.window.workspace.dashboard.explanation
    yield lambda: explanation.open
    yield explanation.page.program.change.run_button.isVisible


def press_chip(player: Player, name: str) -> Steps:
    card = find(name)
    chip = next(chip for chip in player.window.workspace.dashboard.chooser.shown if chip.content.card == card)
    yield from press(chip)


def press_entry(words: str) -> Steps:
    """Of the menu that is open, the first entry with these words."""
    menu = QApplication.activePopupWidget()
    assert isinstance(menu, QMenu)
    entry = next(action for action in menu.actions() if words in action.text())
    yield from hand(menu.mapToGlobal(menu.actionGeometry(entry).center()), ["click", "1"])


def find_named(player: Player, words: str) -> QAbstractButton | None:
    """The button that is seen and says so."""
    for button in player.window.findChildren(QAbstractButton):
        if button.text() == words and not button.visibleRegion().isEmpty():
            return button
    return None
