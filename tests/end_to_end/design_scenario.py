"""The real window in the situations that were drawn before it was built, each at the drawing's size and theme."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from PySide6.QtCore import Qt
from PySide6.QtGui import QColor, QPainter, QPixmap
from PySide6.QtWidgets import QScrollArea, QToolButton, QWidget

from gpudash.devices.names import parse_simulated
from gpudash.session.demo.demo_scenes import SCENES
from gpudash.specs import TrainingSpec
from gpudash.ui.stage import StageWindow
from tests.end_to_end.demo_scenario import HELD
from tests.end_to_end.film_scenario import FIELDS, middle
from tests.end_to_end.first_screen_scenario import begin_program
from tests.end_to_end.guide_scenario import LEAK
from tests.end_to_end.hand import hand, laid_out
from tests.end_to_end.player import Player, Steps
from tests.end_to_end.story_scenario import TRAINS, press, press_chip, press_explain
from tests.nvml_stub.build import MIB, Scenario, StubGpu

if TYPE_CHECKING:
    from gpudash.ui.dashboard.dashboard import Dashboard

SIZE = (1280, 800)

NVML_SCENARIO = "NVML_STUB_SCENARIO"
"""Variable with the file that the stand-in for the driver plays, where there is one."""

HELD_MIB = {"serve.py": 6554, "tune.py": 2150, "prepare.py": 0}
"""Program → MiB of the GPU that the stand-in says it holds."""

GPT2 = {"path": "gpt2", "task": "train", "batch": 16, "sequence": 1024, "precision": "bf16", "steps": 200}
"""A training that an RTX 4060 has not enough memory for."""

UNREADY = """
import torch

state = torch.load("weights.pt", map_location="cuda")
"""
"""Ends before it asks for memory: its weights are not there."""


def designed_first_screen(player: Player) -> Steps:
    """A GPU that three programs are on, and scripts that ran before."""
    screen = player.window.workspace.dashboard.first_screen
    assert screen is not None
    held = []
    for name, size in HELD_MIB.items():
        held.append((begin_program(player.folder, name), size * MIB, "C"))
    used = sum(size for _, size, _ in held)
    gpu = StubGpu(0, name="NVIDIA GeForce RTX 4090", total=24_564 * MIB, used=used, processes=[held[0], held[1]])
    Scenario(gpus=[gpu]).write(Path(os.environ[NVML_SCENARIO]))
    yield from _fitted(player, "light")
    player.window.workspace.dashboard.select_device(gpu.uuid)
    yield lambda: len(screen.program.list.shown) >= len(held) and bool(screen.model.list.shown)
    yield lambda: player.session.torch_ready
    yield player.frames(100)
    player.picture("picture")
    for name in HELD_MIB:
        (player.folder / f"{name}-ends").write_text("")


def designed_short(player: Player) -> Steps:
    """A training that is too much for the card, and a remedy under the pointer."""
    dashboard = player.window.workspace.dashboard
    fit = dashboard.panel.fit
    yield from _fitted(player, "dark")
    yield from _ask(player, "rtx4060")
    fit.open_details()
    yield lambda: not _searching(player) and bool(fit.alternatives)
    # A row that is pointed at must not move: others come while the search goes on.
    yield lambda: not any("searching" in button.text() for button in fit.findChildren(QToolButton))
    yield player.frames(12)
    row = next((row for row in fit.alternatives if "checkpointing" in row.way.change), fit.alternatives[0])
    _bring_into_view(row)
    yield laid_out()
    yield from hand(middle(row), [])
    yield player.frames(12)
    player.picture("picture")


def designed_running(player: Player) -> Steps:
    """A run within its outline, with the runs before it at the left."""
    dashboard, session = player.window.workspace.dashboard, player.session
    panel = dashboard.panel
    yield from _fitted(player, "light")
    dashboard.leave_first_screen()
    yield lambda: "sim:0" in {device.name for device in session.devices()}
    panel.choose_device("sim:0")
    for fields in ({"batch": 48}, {"batch": 24, "width": 64}, {"batch": 64, "checkpointing": True}):
        spec = TrainingSpec.model_validate({**FIELDS, **fields, "steps": 4})
        session.start_run(spec, "sim:0")
        yield lambda: session.running
        yield player.run_ended
    panel.change_fields({**FIELDS, "steps": 8})
    yield from press_chip(player, "rtx4090")
    yield lambda: panel.fit.estimate is not None and panel.fit.estimate.fits is True
    yield player.frames(20)
    yield from press(panel.button)
    yield lambda: session.running
    bar = dashboard.left.bar
    yield from hand(bar.mapToGlobal(bar.tabRect(1).center()), ["click", "1"])
    before = session.store.run.run_id
    yield lambda: session.store.run.run_id >= before and session.store.run.step >= 5
    yield player.frames(4)
    player.picture("picture")
    yield player.run_ended


def designed_states(player: Player) -> Steps:
    """What is known of a card, in six chips and four plots; put together as they were drawn."""
    dashboard = player.window.workspace.dashboard
    chips: dict[str, QPixmap] = {}
    plots: dict[str, QPixmap] = {}
    fit, panel = dashboard.panel.fit, dashboard.panel
    yield from _fitted(player, "dark", (1920, 1080))
    (player.folder / ".venv").symlink_to(sys.prefix)
    yield from _predict(player, "replay.py", TRAINS.replace("131_072", "557_056"), "l40s")
    yield lambda: {"fits", "uncertain", "short"} <= _standings(player)
    yield player.frames(12)
    for name, standing in (("fits", "fits"), ("probably fits", "uncertain"), ("does not fit", "short")):
        chips[name] = _chip(player, standing)
    plots["fits"] = _plot(dashboard)
    panel.take_preset("model", GPT2)
    yield from press_chip(player, "rtx4090")
    yield lambda: fit.estimate is not None and not _searching(player)
    yield player.frames(12)
    panel.change_fields({"batch": 24})
    yield lambda: "asking" in _standings(player)
    chips["predicting"], plots["predicting"] = _chip(player, "asking"), _plot(dashboard)
    panel.change_fields({"batch": 0})
    yield lambda: "stale" in _standings(player)
    yield laid_out()
    chips["stale"], plots["stale"] = _chip(player, "stale"), _plot(dashboard)
    yield from _predict(player, "unready.py", UNREADY, "h100")
    yield lambda: "refused" in _standings(player)
    yield player.frames(12)
    chips["cannot be predicted"], plots["cannot be predicted"] = _chip(player, "refused"), _plot(dashboard)
    _put_together(chips, plots).save(str(player.folder / "picture.png"))


def designed_explanation(player: Player) -> Steps:
    """Why a script ran out of memory, and its run with the change beside the one without."""
    window, dashboard = player.window, player.window.workspace.dashboard
    panel, session = dashboard.panel, player.session
    yield from _fitted(player, "dark")
    (player.folder / ".venv").symlink_to(sys.prefix)
    leak = player.folder / "leak.py"
    leak.write_text(LEAK)
    window.workspace.open_dropped([leak])
    dashboard.chooser.choose(parse_simulated("1GiB"))
    yield lambda: panel.script.simulate.card != "" and panel.button.isEnabled()
    yield from press(panel.button)
    yield lambda: session.running
    yield player.run_ended
    yield from press_explain(player)
    change = dashboard.explanation.page.program.change
    yield player.frames(8)
    yield from press(change.run_button)
    yield lambda: session.running
    yield player.run_ended
    yield player.frames(12)
    player.picture("picture")


def designed_stage(player: Player) -> Steps:
    """Three lines on the whole screen, at the step in which a tensor has no name."""
    player.window.menus.actions["view.theme.dark"].trigger()
    lines = SCENES[-1]
    stage = StageWindow(player.window.workspace, pace=HELD, scenes=[lines], first=len(SCENES))
    stage.begin(full=False)
    stage.resize(2560, 1440)
    show = stage.play

    def reached() -> bool:
        if "nobody named" in show.picture.sentence:
            return True
        show.forward()
        return False

    yield reached
    yield player.frames(6)
    stage.grab().save(str(player.folder / "picture.png"))
    stage.leave()


def _fitted(player: Player, theme: str, size: tuple[int, int] = SIZE) -> Steps:
    """The window at the size of the drawings, in their theme."""
    window = player.window
    window.move(0, 0)
    window.resize(*size)
    window.menus.actions[f"view.theme.{theme}"].trigger()
    yield lambda: player.session.torch_ready and window.isActiveWindow()
    yield player.frames(8)


def _ask(player: Player, card: str) -> Steps:
    """Put the training into the form, on a card, and wait for the answers of all cards."""
    dashboard = player.window.workspace.dashboard
    dashboard.leave_first_screen()
    dashboard.panel.take_preset("model", GPT2)
    yield from press_chip(player, card)
    yield lambda: dashboard.panel.fit.estimate is not None and not _searching(player)


def _predict(player: Player, name: str, code: str, card: str) -> Steps:
    """Drop a script, choose a card for it, and press Predict."""
    dashboard = player.window.workspace.dashboard
    script = player.folder / name
    script.write_text(code)
    player.window.workspace.open_dropped([script])
    yield from press_chip(player, card)
    yield lambda: dashboard.panel.script.simulate.card == card and dashboard.panel.prediction.button.isVisible()
    yield player.frames(8)
    yield from press(dashboard.panel.prediction.button)


def _standings(player: Player) -> set[str]:
    """What is known of the cards that have a chip."""
    return {chip.content.text.standing for chip in player.window.workspace.dashboard.chooser.shown}


def _bring_into_view(widget: QWidget) -> None:
    """Scroll to a widget, as whoever points at it has done."""
    around = widget.parentWidget()
    while not isinstance(around, QScrollArea):
        assert around is not None
        around = around.parentWidget()
    around.ensureWidgetVisible(widget)


def _searching(player: Player) -> bool:
    """Whether an answer of a card is still to come."""
    return bool({"asking", "stale"} & _standings(player))


def _chip(player: Player, standing: str) -> QPixmap:
    """A chip of which so much is known."""
    chooser = player.window.workspace.dashboard.chooser
    return next(chip for chip in chooser.shown if chip.content.text.standing == standing).grab()


def _plot(dashboard: Dashboard) -> QPixmap:
    """The memory plot."""
    plot = dashboard.plots.plot("memory")
    assert plot is not None
    return plot.grab()


def _put_together(chips: Mapping[str, QPixmap], plots: Mapping[str, QPixmap]) -> QPixmap:
    """Chips under the names of their states, and the plots below."""
    whole = QPixmap(*SIZE)
    whole.fill(QColor("#14171b"))
    with QPainter(whole) as painter:
        painter.setPen(QColor("white"))
        for number, (name, chip) in enumerate(chips.items()):
            left = 12 + number * 210
            painter.drawText(left, 30, name)
            painter.drawPixmap(left, 40, chip)
        for number, (name, plot) in enumerate(plots.items()):
            left, top = 12 + number % 2 * 632, 140 + number // 2 * 330
            painter.drawText(left, top, name)
            painter.drawPixmap(left, top + 8, plot.scaledToWidth(620, Qt.TransformationMode.SmoothTransformation))
    return whole
