"""Fixtures of the window's tests: both themes, no timer left running."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from PySide6.QtCore import QTimer
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from gpudash.ui.theme import Palette, apply_theme


@pytest.fixture(params=["dark", "light"])
def palette(request: pytest.FixtureRequest, qapp: QApplication) -> Palette:
    """The palette in force, in either theme."""
    return apply_theme(qapp, request.param)


@pytest.fixture(autouse=True)
def no_timer_outlives_its_test(qtbot: QtBot, qapp: QApplication) -> Iterator[None]:
    yield
    for widget in qapp.topLevelWidgets():
        running = [timer.objectName() or repr(timer) for timer in widget.findChildren(QTimer) if timer.isActive()]
        assert not (running and widget.isVisible()), f"still ticking in {widget}: {running}"
