"""The demo in the real window, from its first scene to its last, and the pictures of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from PySide6.QtCore import Qt
from PySide6.QtGui import QImage, QImageWriter

from gpudash.session.demo import Tour
from gpudash.session.demo.tour import TourPace
from gpudash.ui.demo import Demo
from gpudash.ui.window.main_window import MainWindow
from tests.end_to_end.player import Player, Steps

PACE = TourPace(ask=0.2, act=0.2, read=0.2, measured=0.2)
HELD = TourPace(ask=3600.0, act=3600.0, read=3600.0, measured=3600.0)
"""While a picture is taken, however long this machine takes for it."""


def demo(player: Player) -> Steps:
    """Play every scene to its end; each is pictured where it has most to show."""
    window, panel = player.window, player.window.workspace.dashboard.panel
    window.resize(1440, 900)
    window.menus.actions["view.theme.dark"].trigger()
    before = panel.workload.currentData(), panel.device_name, panel.spec()
    shown = Demo(window.workspace, auto=True, pace=PACE)
    over: list[bool] = []
    shown.over.connect(lambda: over.append(True))
    shown.start()
    tour = shown.tour
    moments: list[tuple[str, int, Callable[[], bool]]] = [
        ("demo-1", 0, lambda: tour.state == "told"),
        ("demo-2", 1, lambda: tour.progress[0] == 2 and not tour.run_is_on),
        ("demo-3", 2, lambda: tour.state == "told"),
        ("demo-guess", 3, lambda: tour.state == "asking"),
        ("demo-4", 3, lambda: tour.state == "told"),
        ("demo-5", 4, lambda: tour.place == "explanation"),
        ("demo-fixed", 4, lambda: tour.state == "told"),
    ]
    told: list[str] = []
    for name, scene, moment in moments:
        yield partial(_at, tour, scene, moment)
        tour._pace = HELD
        yield player.frames(6)
        told.append(tour.caption)
        _small_picture(window, player.folder / f"{name}.png")
        tour._pace = PACE
    yield lambda: bool(over)
    yield player.frames(8)
    player.seen["told"], player.seen["failures"] = told, tour.failures
    player.seen["restored"] = (panel.workload.currentData(), panel.device_name, panel.spec()) == before


def _at(tour: Tour, scene: int, moment: Callable[[], bool]) -> bool:
    return tour.position == scene and moment()


def _small_picture(window: MainWindow, path: Path) -> None:
    """A picture of 256 colours, for pages that carry many."""
    writer = QImageWriter(str(path), b"png")
    writer.setCompression(100)
    picture = window.grab().toImage().convertToFormat(QImage.Format.Format_RGB32)
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
