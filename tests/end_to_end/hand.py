"""The hand of a user on the real window's mouse and keyboard."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Generator, Sequence

from PySide6.QtCore import QPoint
from PySide6.QtGui import QGuiApplication

from tests.programs import program


def hand(place: QPoint, deeds: Sequence[str]) -> Generator[Callable[[], bool], None, None]:
    """Let the mouse go to ``place`` on the screen, in logical pixels, and do something there: words of xdotool."""
    pixels = place * QGuiApplication.primaryScreen().devicePixelRatio()
    done = subprocess.Popen([program("xdotool"), "mousemove", str(pixels.x()), str(pixels.y()), *deeds])
    yield lambda: done.poll() is not None


def laid_out() -> Callable[[], bool]:
    """Comes true when what has changed has been laid out and drawn."""
    times = iter(range(3))
    return lambda: next(times, None) is None
