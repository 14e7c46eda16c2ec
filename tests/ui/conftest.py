"""Fixtures of the window's tests: both themes, windows over fed sessions, no timer left running."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from importlib import import_module

import pytest
from PySide6.QtCore import QCoreApplication, QEvent, QTimer
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from gpudash.session import Replay
from gpudash.system.garbage import collect_due
from gpudash.ui.app import build_window
from gpudash.ui.colours import Palette
from gpudash.ui.widgets.text_size import set_text_scale
from gpudash.ui.widgets.theme import Choice, apply_colours, apply_theme
from gpudash.ui.window.main_window import MainWindow
from tests.ui.fake_session import FakeSession
from tests.unit.clock import Clock

import_module("gpudash.ui.snapshot.page")  # not first in a thread: Python 3.11 cannot parse, as pytest does, in two

OpenWindow = Callable[..., MainWindow]


IN_BOTH_THEMES = pytest.mark.parametrize("palette", ["dark", "light"], indirect=True)
"""For tests of what is seen in the theme's colours."""


@pytest.fixture
def palette(request: pytest.FixtureRequest, qapp: QApplication) -> Palette:
    """The palette in force: dark, where a test does not ask for another."""
    return apply_theme(qapp, getattr(request, "param", "dark"))


@pytest.fixture(autouse=True, scope="module")
def widgets_are_collected_before_other_tests() -> Iterator[None]:
    """A thread of another test would delete them."""
    yield
    gc.collect()


@pytest.fixture(autouse=True)
def garbage_is_collected_by_this_thread_alone(widgets_are_collected_before_other_tests: None) -> Iterator[None]:
    """As in the program (`gpudash.ui.app.application`): not while Qt goes over its widgets, not by another thread."""
    gc.disable()
    yield
    collect_due()
    gc.enable()


@pytest.fixture(autouse=True)
def no_timer_outlives_its_test(qtbot: QtBot, qapp: QApplication) -> Iterator[None]:
    yield
    for widget in qapp.topLevelWidgets():
        running = [timer.objectName() or repr(timer) for timer in widget.findChildren(QTimer) if timer.isActive()]
        assert not (running and widget.isVisible()), f"still ticking in {widget}: {running}"


@pytest.fixture
def clock() -> Clock:
    """Of a form that waits to be left alone; a test lets it pass."""
    return Clock(1000.0)


@pytest.fixture
def session() -> FakeSession:
    """Ten seconds and a finished training; modules that need another have their own."""
    session = FakeSession().feed(10)
    session.start()
    session.train(10)
    session.end()
    return session


@pytest.fixture
def open_window(qapp: QApplication, qtbot: QtBot) -> Iterator[OpenWindow]:
    """Opens windows that are refreshed by hand; they are gone when the test is over."""
    opened: list[MainWindow] = []

    def open_one(
        session: FakeSession | Replay,
        *,
        theme: Choice = "dark",
        size: tuple[int, int] = (1440, 960),
        first_screen: bool = False,
        set_theme: Callable[[Choice], None] = lambda _choice: None,
    ) -> MainWindow:
        window = build_window(session, apply_colours(qapp, theme), set_theme)  # type: ignore[arg-type]
        opened.append(window)
        window.timer.stop()
        if not first_screen:  # as with a click on All workloads
            window.workspace.dashboard.leave_first_screen()
        window.resize(*size)
        window.show()
        window.activateWindow()
        qtbot.waitUntil(window.isActiveWindow)
        settle(window)
        return window

    yield open_one
    for window in opened:
        window.leave()
        window.deleteLater()
    QCoreApplication.sendPostedEvents(None, QEvent.Type.DeferredDelete.value)


def settle(window: MainWindow, frames: int = 6) -> None:
    """Refresh until cards, tables and layout have come to rest."""
    for _ in range(frames):
        QApplication.processEvents()
        window.workspace.refresh()
    QCoreApplication.sendPostedEvents(None, QEvent.Type.DeferredDelete.value)
    QApplication.processEvents()


@pytest.fixture
def window(open_window: OpenWindow, session: FakeSession) -> MainWindow:
    """Over the session."""
    return open_window(session)


@pytest.fixture
def usual_size(qapp: QApplication) -> Iterator[None]:
    """Words are as large as before when the test is over."""
    yield
    set_text_scale(1.0)
