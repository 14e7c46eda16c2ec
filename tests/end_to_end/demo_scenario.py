"""The demo in the real window, from its first scene to its last, and the pictures of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from PySide6.QtCore import Qt
from PySide6.QtGui import QImage, QImageWriter

from gpudash.session.demo import Show, ShowPace
from gpudash.ui.stage import StageWindow
from tests.end_to_end.player import Player, Steps

HELD = ShowPace(step=3600.0, wrong=3600.0, end=3600.0)
"""No step follows by itself: the test goes from one to the next, and misses none on a slow machine."""


def demo(player: Player) -> Steps:
    """Play every scene to its end; each is pictured where it has most to show."""
    window, panel = player.window, player.window.workspace.dashboard.panel
    window.menus.actions["view.theme.dark"].trigger()
    before = panel.workload.currentData(), panel.device_name, panel.spec()
    stage = StageWindow(window.workspace, pace=HELD)
    over: list[bool] = []
    stage.over.connect(lambda: over.append(True))
    stage.begin(full=False)
    stage.resize(1440, 900)
    show = stage.play
    moments: list[tuple[str, int, Callable[[], bool]]] = [
        ("stage-move", 0, lambda: "y takes" in show.picture.sentence),
        ("stage-wrong", 1, lambda: show.picture.tone == "wrong" and "Line 3" in show.picture.sentence),
        ("stage-copies", 2, lambda: show.at_end),
        ("stage-guess", 3, lambda: show.asking),
        ("stage-devices", 3, lambda: show.at_end),
        ("stage-full", 4, lambda: show.picture.tone == "wrong"),
        ("stage-fixed", 4, lambda: show.at_end),
        ("stage-precisions", 5, lambda: show.at_end),
        ("stage-ladder", 6, lambda: show.at_end),
        ("stage-lines", 7, lambda: "nobody named" in show.picture.sentence),
    ]
    told: list[str] = []
    for name, scene, moment in moments:
        yield partial(_reached, show, scene, moment)
        yield player.frames(6)
        told.append(f"{show.picture.sentence} {show.picture.remark}".strip())
        _small_picture(stage, player.folder / f"{name}.png")
    yield partial(_left, show, over)
    yield player.frames(8)
    player.seen["told"], player.seen["failures"] = told, show.failures
    player.seen["restored"] = (panel.workload.currentData(), panel.device_name, panel.spec()) == before


def _reached(show: Show, scene: int, moment: Callable[[], bool]) -> bool:
    """Whether a moment of a scene is there; a step towards it where it is not."""
    if show.position == scene and moment():
        return True
    show.forward()
    return False


def _left(show: Show, over: list[bool]) -> bool:
    show.forward()
    return bool(over)


def _small_picture(stage: StageWindow, path: Path) -> None:
    """A picture of 256 colours, for pages that carry many."""
    writer = QImageWriter(str(path), b"png")
    writer.setCompression(100)
    picture = stage.grab().toImage().convertToFormat(QImage.Format.Format_RGB32)
    flags = Qt.ImageConversionFlag.ThresholdDither | Qt.ImageConversionFlag.AvoidDither  # dots would cost six-fold
    small = picture.convertToFormat(QImage.Format.Format_Indexed8, _colours(picture), flags)
    assert writer.write(small), writer.errorString()


def _colours(picture: QImage) -> list[int]:
    """The 256 colours most used, of those that differ in the first five bits of a channel."""
    pixels = np.frombuffer(picture.constBits(), np.uint32)
    found, counts = np.unique(pixels, return_counts=True)
    order = np.argsort(-counts)
    _, first = np.unique(found[order] & 0xF8F8F8, return_index=True)
    return [int(colour) for colour in found[order][np.sort(first)][:256]]
