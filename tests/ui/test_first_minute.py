from __future__ import annotations

import pytest
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QApplication, QMenu, QPushButton

from gpudash.devices.names import simulated_gpu
from gpudash.session.recordings.samples import sample
from gpudash.ui.features.file import RECENT_MENU
from gpudash.ui.features.first_minute import SEARCHING, FirstMinute
from gpudash.ui.widgets.text_size import set_text_scale
from gpudash.ui.window.main_window import MainWindow
from gpudash.units import GIB
from tests.ui.conftest import OpenWindow, settle
from tests.ui.fake_session import FakeSession, gpu
from tests.ui.parts import part

CAUSES = (
    "No NVIDIA card was found; everything runs on the CPU.",
    "An NVIDIA card is present, but its driver is not loaded; load it with: sudo modprobe nvidia",
    "The NVIDIA library and the loaded driver differ in version, as after an update; restart the machine.",
    "No NVIDIA GPU may be used from here (CUDA_VISIBLE_DEVICES=); give this container access to /dev/nvidia*.",
    "torch 2.13.0+cpu is a CPU build though a GPU is there; install a CUDA build of torch to run on it.",
)


@pytest.fixture
def session() -> FakeSession:
    return FakeSession([simulated_gpu(0, 8 * GIB)], gpu_problem=CAUSES[0]).feed(2.0)


@pytest.mark.parametrize("cause", CAUSES)
def test_the_strip_says_the_cause_and_what_works_and_is_not_modal(open_window: OpenWindow, cause: str) -> None:
    window = open_window(FakeSession(gpu_problem=cause))
    strip = part(window, FirstMinute).strip
    assert strip.isVisible() and strip.text.text().startswith(cause)
    assert "What works now" in strip.text.text() and strip.accessibleName() == strip.text.text()
    assert QGuiApplication.modalWindow() is None


def test_a_machine_with_a_gpu_that_can_be_used_has_no_strip(open_window: OpenWindow) -> None:
    window = open_window(FakeSession([gpu(0)], gpu_problem="CUDA_VISIBLE_DEVICES=0 hides 1 of 2 GPUs"))
    assert not part(window, FirstMinute).strip.isVisible()


def test_who_asked_for_a_simulated_card_is_not_told_that_there_is_no_other(
    open_window: OpenWindow, session: FakeSession
) -> None:
    session.given = (8 * GIB,)
    assert not part(open_window(session), FirstMinute).strip.isVisible()


def test_the_simulated_gpu_is_among_what_works(window: MainWindow) -> None:
    assert "on a simulated GPU" in part(window, FirstMinute).strip.text.text()


def test_check_again_asks_the_driver_and_the_answer_takes_its_place(window: MainWindow, session: FakeSession) -> None:
    part(window, FirstMinute).strip.check.click()
    assert ("check_gpus",) in session.requested
    assert part(window, FirstMinute).strip.text.text() == SEARCHING
    settle(window)
    assert part(window, FirstMinute).strip.text.text().startswith(CAUSES[0])
    session.gpus = (gpu(0),)
    session.gpu_problem = None
    settle(window)
    assert not part(window, FirstMinute).strip.isVisible()


def test_the_details_unfold_and_can_be_copied(window: MainWindow) -> None:
    strip = part(window, FirstMinute).strip
    copy = next(button for button in strip.findChildren(QPushButton) if button.text() == "Copy details")
    assert not copy.isVisible()
    strip.details.click()
    assert copy.isVisible()
    copy.click()
    lines = QGuiApplication.clipboard().text().splitlines()
    assert lines == [f"problem\t{CAUSES[0]}", "NVML\tDriver Not Loaded", "torch\ttorch 2.13.0+cpu"]


def test_a_cause_that_was_dismissed_is_not_told_again_and_another_one_is(
    open_window: OpenWindow, window: MainWindow, session: FakeSession
) -> None:
    part(window, FirstMinute).strip.close_button.click()
    settle(window)
    assert not part(window, FirstMinute).strip.isVisible()
    again = open_window(FakeSession(gpu_problem=CAUSES[0]))
    assert not part(again, FirstMinute).strip.isVisible()
    other = open_window(FakeSession(gpu_problem=CAUSES[1]))
    assert part(other, FirstMinute).strip.isVisible()


def run_once(session: FakeSession, window: MainWindow) -> None:
    session.start(steps=3)
    session.train(0.3, steps=3)
    settle(window)
    session.end()
    settle(window)


def play_demo(window: MainWindow, on: bool) -> None:
    window.workspace.playing_demo = on
    window.workspace.changed.emit()


def test_nothing_is_said_while_something_is_shown(window: MainWindow, session: FakeSession) -> None:
    play_demo(window, True)
    run_once(session, window)
    assert not part(window, FirstMinute).strip.isVisible()
    play_demo(window, False)
    assert part(window, FirstMinute).strip.isVisible()


def test_nothing_is_said_in_presentation_mode(window: MainWindow, session: FakeSession, qapp: QApplication) -> None:
    strip = part(window, FirstMinute).strip
    assert strip.isVisible()
    try:
        window.menus.actions["view.presentation"].trigger()
        settle(window)
        assert not strip.isVisible()
        window.menus.actions["view.presentation"].trigger()
    finally:
        set_text_scale(1.0)
    settle(window)
    assert strip.isVisible()


def test_after_the_first_run_the_strip_has_gone_to_the_status_line(
    open_window: OpenWindow, window: MainWindow, session: FakeSession
) -> None:
    run_once(session, window)
    assert not part(window, FirstMinute).strip.isVisible()
    assert CAUSES[0].rstrip(".") in window.workspace.dashboard.status_line._right.toolTip()
    again = open_window(FakeSession(gpu_problem=CAUSES[0]))
    assert not part(again, FirstMinute).strip.isVisible()


def test_with_no_recent_file_the_demo_recordings_are_offered(
    window: MainWindow, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[object] = []
    monkeypatch.setattr(window.workspace, "open", opened.append)
    menu = window.findChild(QMenu, RECENT_MENU)
    assert menu is not None
    menu.aboutToShow.emit()
    entry = next(action for action in menu.actions() if action.text() == "Demo: A healthy training")
    entry.trigger()
    found = sample("healthy-training")
    assert found is not None and opened == [found.path]
