"""A folder with a model's config dropped on the real window: too large for the card to train, and what fits instead."""

from __future__ import annotations

import json
from pathlib import Path

from PySide6.QtCore import QMimeData, QPoint, QPointF, Qt, QUrl
from PySide6.QtGui import QDragEnterEvent, QDropEvent
from PySide6.QtWidgets import QApplication, QPushButton

from gpudash.ui.window.main_window import MainWindow
from tests.end_to_end.hand import hand, laid_out
from tests.end_to_end.player import Player, Steps

SIZES = ((1280, 800), (2500, 1400))
"""Widths and heights of the window, the second as large as the screen has room for beside the frame."""

CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 6,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
}
"""A Llama of 414 million parameters: its training takes more than 4 GiB, its adapters over 4-bit weights less."""


def model(player: Player) -> Steps:
    """Drop the folder, see that training does not fit, choose QLoRA among the presets, see that it does."""
    window, session = player.window, player.session
    panel, fit = window.workspace.dashboard.panel, window.workspace.dashboard.panel.fit
    folder = player.folder / "llama-400m"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    window.move(0, 0)
    window.resize(*SIZES[0])
    yield lambda: session.torch_ready and "sim:0" in {device.name for device in session.devices()}
    panel.take_device("sim:0")
    _drop(window, folder)
    player.seen["path"] = str(panel.form.values()["path"])
    yield lambda: fit.estimate is not None and fit.estimate.fits is False
    player.seen["short"] = fit.headline
    fit.open_details()
    yield lambda: any(row.alternative.fields.get("task") == "qlora" for row in fit.alternatives)
    yield from _pictures(player, "short")
    ghost = window.workspace.dashboard.fit.ghost
    player.seen["ghost"] = ghost is not None and ghost.ghost is not None and round(ghost.ghost.highest)
    player.seen["needed"] = fit.estimate.needed_bytes
    presets = next(button for button in panel.findChildren(QPushButton) if button.text() == "Presets")
    yield window.isActiveWindow
    yield from hand(presets.mapToGlobal(presets.rect().center()), ["click", "1"])
    menu = presets.menu()
    yield menu.isVisible
    choice = next(action for action in menu.actions() if action.text() == "QLoRA")
    yield from hand(menu.mapToGlobal(menu.actionGeometry(choice).center()), ["click", "1"])
    yield lambda: fit.estimate is not None and fit.estimate.fits is True
    player.seen["fits"] = fit.headline
    player.seen["kept"] = str(panel.form.values()["path"])
    player.seen["button"] = [panel.button.isEnabled(), panel.button.toolTip()]
    yield lambda: fit.estimate is not None and fit.estimate.largest_sequence is not None
    player.seen["figures"] = fit.figures
    yield from _pictures(player, "fits")


def _pictures(player: Player, name: str) -> Steps:
    for width, height in SIZES:
        player.window.resize(width, height)
        yield lambda width=width, height=height: (player.window.width(), player.window.height()) == (width, height)
        yield laid_out()
        yield from player.pictures(f"{name}-{width}")
    player.window.resize(*SIZES[0])
    yield laid_out()


def _drop(window: MainWindow, folder: Path) -> None:
    data = QMimeData()
    data.setUrls([QUrl.fromLocalFile(str(folder))])
    place, action = QPoint(window.width() // 2, window.height() // 2), Qt.DropAction.CopyAction
    button, none = Qt.MouseButton.LeftButton, Qt.KeyboardModifier.NoModifier
    QApplication.sendEvent(window, QDragEnterEvent(place, action, data, button, none))
    QApplication.sendEvent(window, QDropEvent(QPointF(place), action, data, button, none))
