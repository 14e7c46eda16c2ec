"""Every press of the button, or F5, is answered: also in the moment in which a run ends, before that is drawn."""

from __future__ import annotations

import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication

from gpudash.session.live.running import A_RUN_IS_ON
from gpudash.ui.forms.workload_panel import HAS_ENDED, IS_STOPPING, STARTS_NEXT
from gpudash.ui.window.main_window import MainWindow
from tests.ui.conftest import settle
from tests.ui.fake_session import FakeSession
from tests.ui.words import label

TIMES = 200


@pytest.fixture
def session() -> FakeSession:
    return FakeSession().feed(1)


def press(window: MainWindow) -> None:
    QTest.keyClick(window, Qt.Key.Key_F5)


def said(window: MainWindow) -> set[str]:
    """What the status line shows."""
    return {word.text for word in label(window.workspace.dashboard.status_line)}


def calls(session: FakeSession) -> list[str]:
    return [call[0] for call in session.requested]


@pytest.mark.parametrize("stopped", [False, True], ids=["by itself", "after Stop"])
def test_a_press_as_the_run_ends_is_answered_and_the_next_one_starts(
    window: MainWindow, session: FakeSession, stopped: bool
) -> None:
    settle(window)
    for _ in range(TIMES):
        session.requested.clear()
        press(window)
        assert calls(session) == ["start"]
        if stopped:
            press(window)
            assert calls(session) == ["start", "stop"]
        session.end()  # and nothing has been drawn since
        window.workspace.dashboard.status_line.report("")
        press(window)
        assert HAS_ENDED in said(window) and calls(session)[1:] == ["stop"] * stopped


def test_a_press_while_the_run_is_stopping_is_answered(window: MainWindow, session: FakeSession) -> None:
    settle(window)
    press(window)
    press(window)
    assert calls(session) == ["start", "stop"]
    press(window)
    assert IS_STOPPING in said(window) and calls(session) == ["start", "stop"]


def test_a_start_that_comes_from_elsewhere_while_a_run_is_on_is_answered(
    window: MainWindow, session: FakeSession
) -> None:
    settle(window)
    press(window)
    window.workspace.start_run()
    assert A_RUN_IS_ON in said(window) and calls(session) == ["start"]


def test_a_program_that_has_ended_does_not_run_while_it_is_found_out_what_would_have_fit(
    window: MainWindow, session: FakeSession
) -> None:
    panel = window.workspace.dashboard.panel
    session.watched()
    session.after_end = "Finding out what would have fit"
    window.workspace.dashboard.refresh_figures()
    assert panel.progress.label.text() == f"The program has ended.\n{session.after_end}."
    assert panel.snapshot.isHidden()
    assert window.workspace.dashboard.view.held, "what it did stays in view"


def test_while_it_is_found_out_what_would_have_fit_the_form_takes_values_and_f5_starts_what_it_holds(
    window: MainWindow, session: FakeSession
) -> None:
    settle(window)
    panel = window.workspace.dashboard.panel
    session.watched()
    window.workspace.dashboard.refresh_figures()
    assert not panel.workload.isEnabled() and panel.end_search.isHidden()
    session.after_end = "Finding out what would have fit"
    window.workspace.dashboard.refresh_figures()
    assert panel.workload.isEnabled() and not panel.end_search.isHidden()
    assert panel.button.accessibleName() == "Start run"
    press(window)
    press(window)
    assert STARTS_NEXT in said(window) and calls(session) == ["stop"]
    session.end()
    session.after_end = ""
    window.workspace.dashboard.refresh_figures()
    QApplication.processEvents()
    assert calls(session) == ["stop", "start"]


def test_the_search_for_what_would_have_fit_can_be_ended_without_another_run(
    window: MainWindow, session: FakeSession
) -> None:
    settle(window)
    panel = window.workspace.dashboard.panel
    session.watched()
    session.after_end = "Finding out what would have fit"
    window.workspace.dashboard.refresh_figures()
    panel.end_search.click()
    session.end()
    session.after_end = ""
    window.workspace.dashboard.refresh_figures()
    QApplication.processEvents()
    assert calls(session) == ["stop"] and panel.end_search.isHidden()
