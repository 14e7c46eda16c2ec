"""The demo in the real window, from its first scene to its last, and the pictures of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from gpudash.session.demo.demo_scenes import SCENES
from gpudash.session.demo.scenes import Scene
from gpudash.session.demo.show import Show, ShowPace
from gpudash.ui.stage import StageWindow
from tests.end_to_end.player import Player, Steps

HELD = ShowPace(step=3600.0, wrong=3600.0, end=3600.0)
"""No step follows by itself: the test goes from one to the next, and misses none on a slow machine."""


Moments = Sequence[tuple[str, int, Callable[[Show], bool]]]
"""Names of pictures, the scene of each from 0, and when it has come."""

FIRST = 5
"""Scenes of the first half; the second trains in three precisions and predicts, which takes as long."""


def demo(player: Player) -> Steps:
    """Play the first scenes to their ends; each is pictured where it has most to show."""
    moments: Moments = (
        ("stage-move", 0, lambda show: "y takes" in show.picture.sentence),
        ("stage-wrong", 1, lambda show: show.picture.tone == "wrong" and "Line 3" in show.picture.sentence),
        ("stage-copies", 2, lambda show: show.at_end),
        ("stage-guess", 3, lambda show: show.asking),
        ("stage-devices", 3, lambda show: show.at_end),
        ("stage-full", 4, lambda show: show.picture.tone == "wrong"),
        ("stage-fixed", 4, lambda show: show.at_end),
    )
    yield from _played(player, SCENES[:FIRST], moments)


def demo_of_remedies(player: Player) -> Steps:
    """Play the other scenes to their ends."""
    moments: Moments = (
        ("stage-precisions", 0, lambda show: show.at_end),
        ("stage-ladder", 1, lambda show: show.at_end),
        ("stage-lines", 2, lambda show: "nobody named" in show.picture.sentence),
    )
    yield from _played(player, SCENES[FIRST:], moments)


def _played(player: Player, scenes: Sequence[Scene], moments: Moments) -> Steps:
    window, panel = player.window, player.window.workspace.dashboard.panel
    window.menus.actions["view.theme.dark"].trigger()
    before = panel.workload.currentData(), panel.device_name, panel.spec()
    stage = StageWindow(window.workspace, pace=HELD, scenes=scenes)
    over: list[bool] = []
    stage.over.connect(lambda: over.append(True))
    stage.begin(full=False)
    stage.resize(1440, 900)
    show = stage.play
    told: list[str] = []
    for name, scene, moment in moments:
        yield partial(_reached, show, scene, moment)
        yield player.frames(6)
        told.append(f"{show.picture.sentence} {show.picture.remark}".strip())
        stage.grab().save(str(player.folder / f"{name}.png"))
    yield partial(_left, show, over)
    yield player.frames(8)
    player.seen["told"], player.seen["failures"] = told, show.failures
    player.seen["restored"] = (panel.workload.currentData(), panel.device_name, panel.spec()) == before


def _reached(show: Show, scene: int, moment: Callable[[Show], bool]) -> bool:
    """Whether a moment of a scene is there; a step towards it where it is not."""
    if show.position == scene and moment(show):
        return True
    show.forward()
    return False


def _left(show: Show, over: list[bool]) -> bool:
    show.forward()
    return bool(over)
