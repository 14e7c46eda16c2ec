"""The story of a prediction in the real window, by the mouse alone: too much, a change, the run in its outline."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from PySide6.QtCore import QPoint, QPointF, QTimer
from PySide6.QtGui import QColor, QCursor, QPainter, QPolygonF
from PySide6.QtWidgets import QToolButton

from tests.end_to_end.first_screen_scenario import begin_program
from tests.end_to_end.hand import hand, laid_out
from tests.end_to_end.player import Player, Steps

if TYPE_CHECKING:
    from PySide6.QtWidgets import QWidget

    from gpudash.ui.forms.fit_panel import AlternativeRow
    from gpudash.ui.window.main_window import MainWindow

FRAME_MS = 120
"""Between two pictures of a film."""

FIELDS = {"width": 128, "depth": 4, "batch": 96, "sequence": 64, "steps": 10, "epochs": 1}
"""A training of which one step takes about a second of CPU."""

PROGRAMS = ("train.py", "prepare.py")
"""Run while the first screen is filmed, which lists them."""

TOO_MANY = "448"
"""Sequences in a batch, with which it does not fit 1 GiB."""


class Camera:
    """Takes pictures of a window, with the mouse, while it rolls.

    Args:
        window: what is filmed.
        folder: where the pictures go, numbered.
    """

    def __init__(self, window: MainWindow, folder: Path) -> None:
        self._window = window
        self._folder = folder
        self._timer = QTimer(window)
        self._timer.timeout.connect(self._shoot)
        self._lapse = 1
        self._ticks = 0
        self.frames = 0

    def roll(self, lapse: int = 1) -> None:
        """Go on filming, of ``lapse`` pictures one."""
        self._lapse = lapse
        self._timer.start(FRAME_MS)

    def rest(self) -> None:
        """Film nothing until it rolls again: what is waited for is left out."""
        self._timer.stop()

    def held(self, count: int) -> Callable[[], bool]:
        """Whether so many pictures more have been taken."""
        until = self.frames + count
        return lambda: self.frames >= until

    def _shoot(self) -> None:
        self._ticks += 1
        if self._ticks % self._lapse:
            return
        picture = self._window.grab()
        tip = QPointF(self._window.mapFromGlobal(QCursor.pos()))
        with QPainter(picture) as painter:
            painter.setRenderHint(QPainter.RenderHint.Antialiasing)
            painter.setPen(QColor("black"))
            painter.setBrush(QColor("white"))
            painter.drawPolygon(QPolygonF([tip + QPointF(*corner) for corner in ARROW]))
        picture.save(str(self._folder / f"film-{self.frames:04}.png"))
        self.frames += 1


ARROW = ((0, 0), (0, 17), (4, 13), (7, 19), (9, 18), (6, 12), (12, 12))
"""Corners of the mouse pointer, in logical pixels from its tip."""


def film(player: Player) -> Steps:
    """Ask for too much, see what would do, apply it, run it, see that it reaches what was predicted."""
    window, session = player.window, player.session
    dashboard = window.workspace.dashboard
    panel, fit = dashboard.panel, dashboard.panel.fit
    camera = Camera(window, player.folder)
    window.move(0, 0)
    window.resize(1280, 800)
    for name in PROGRAMS:
        begin_program(player.folder, name)
    screen = dashboard.first_screen
    assert screen is not None
    yield lambda: session.torch_ready and "sim:0" in {device.name for device in session.devices()}
    yield lambda: bool(screen.model.list.shown) and window.isActiveWindow()
    yield lambda: len(screen.program.list.shown) >= len(PROGRAMS)
    yield _steady(player)
    camera.roll()
    yield from _move(screen.model)
    yield camera.held(6)
    yield from hand(middle(screen.form), ["click", "1"])
    yield lambda: not screen.isVisible()
    camera.rest()
    for name in PROGRAMS:
        (player.folder / f"{name}-ends").write_text("")
    panel.take_device("sim:0")
    panel.change_fields(FIELDS)
    yield lambda: fit.estimate is not None and fit.estimate.fits is True
    yield from _move(panel.form.control("sequence"))
    yield _steady(player)
    camera.roll()
    yield camera.held(6)
    batch = panel.form.control("batch")
    yield from hand(middle(batch), ["click", "--repeat", "2", "1", "type", "--delay", "150", TOO_MANY])
    yield lambda: str(panel.form.values()["batch"]) == TOO_MANY
    yield camera.held(3)
    camera.rest()
    yield lambda: fit.estimate is not None and fit.estimate.fits is False
    camera.roll()
    yield camera.held(10)
    camera.rest()
    fit.open_details()
    # A row that is to be clicked must not move: others come while the search goes on.
    yield lambda: not any("searching" in button.text() for button in fit.findChildren(QToolButton))
    yield _steady(player)
    yield lambda: _applicable(fit.alternatives) is not None
    camera.roll()
    row = _applicable(fit.alternatives)
    assert row is not None and row.button is not None
    player.seen["remedy"] = row.way.change
    yield from _move(row)
    yield camera.held(10)
    yield from hand(middle(row.button), ["click", "1"])
    yield camera.held(3)
    camera.rest()
    yield lambda: fit.estimate is not None and fit.estimate.fits is True
    camera.roll()
    yield camera.held(10)
    camera.rest()
    yield _steady(player)
    yield from hand(middle(panel.button), ["click", "1"])
    yield lambda: session.store.run is not None and session.store.run.step >= 1
    camera.roll(lapse=4)
    first = camera.frames
    yield player.run_ended
    player.seen["run"] = [first, camera.frames]
    camera.roll()
    yield camera.held(14)
    camera.rest()
    with session.store.lock:
        assert session.store.run is not None
        player.seen["status"] = session.store.run.summary()["status"]
    legend = dashboard.plots.plot("memory")
    player.seen["legend"] = "" if legend is None else [line.name for line in legend.spec.lines]
    player.seen["frames"] = camera.frames


def _steady(player: Player) -> Callable[[], bool]:
    """Comes true when nothing fades or moves any more."""
    return player.frames(12)


def _applicable(rows: list[AlternativeRow]) -> AlternativeRow | None:
    """The first change that is enough alone, keeps the batch and has its button in sight."""
    for row in rows:
        alternative = row.way.alternative
        enough = alternative.fits is True and alternative.fields and "batch" not in alternative.fields
        if enough and row.button is not None and not row.button.visibleRegion().isEmpty():
            return row
    return None


def middle(widget: QWidget) -> QPoint:
    """Of a widget, on the screen."""
    return widget.mapToGlobal(widget.rect().center())


def _move(widget: QWidget) -> Steps:
    yield from hand(middle(widget), [])
    yield laid_out()
