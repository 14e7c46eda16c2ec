"""A window whose form is asked about when a test's clock says so."""

from __future__ import annotations

from gpudash.ui.widgets.theme import Choice
from gpudash.ui.window.main_window import MainWindow
from tests.ui.conftest import OpenWindow, settle
from tests.ui.fake_session import FakeSession
from tests.unit.clock import Clock


def asked_window(
    open_window: OpenWindow,
    session: FakeSession,
    clock: Clock,
    size: tuple[int, int] = (1280, 800),
    theme: Choice = "dark",
) -> MainWindow:
    """A window whose form was asked about once."""
    opened = open_window(session, size=size, theme=theme)
    fit = opened.workspace.dashboard.fit
    assert fit is not None
    fit._clock = clock
    ask_again(opened)
    session.estimates.questions = session.estimates.questions[-1:]
    return opened


def ask_again(window: MainWindow) -> None:
    """Have the form changed."""
    window.workspace.dashboard.panel.changed.emit()
    settle(window)
