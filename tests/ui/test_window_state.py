"""What the window says and does as a session goes on: runs, devices, warnings, themes, and no growth."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
from PySide6.QtCore import QCoreApplication, QEvent, QObject, Qt, QTimer
from PySide6.QtGui import QColor
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QPushButton

from gpudash.specs import TrainingSpec
from gpudash.telemetry.records import Note, RunEnd, RunStarted, Topic
from gpudash.ui.colours import DARK, LIGHT
from gpudash.ui.dashboard.cards import Card
from gpudash.ui.dashboard.tabs.rows import result_rows
from gpudash.ui.widgets.file_dialog import FileDialog
from gpudash.ui.widgets.theme import ThemeFollower
from gpudash.ui.window import main_window
from gpudash.ui.window.main_window import MainWindow
from gpudash.units import format_throughput
from tests.ui.conftest import OpenWindow, settle
from tests.ui.fake_session import FakeSession, gpu


def training(device: str = "cpu", gpus: int = 0) -> FakeSession:
    session = FakeSession([gpu(number) for number in range(gpus)]).feed(10)
    session.start(device)
    session.train(10, device=device)
    return session


def card(window: MainWindow, key: str) -> Card:
    return next(found for found in window.workspace.dashboard.cards.findChildren(Card) if found.key == key)


def text_of(widget: Any) -> list[str]:
    return [label.text() for label in (widget._name, widget._used, widget._total, widget._facts)]


def status(window: MainWindow) -> str:
    line = window.workspace.dashboard.status_line
    return f"{line._left.text()} | {line._right.text()}"


def test_progress_says_step_time_left_loss_and_rate(open_window: OpenWindow) -> None:
    window = open_window(training())
    first, second = window.workspace.dashboard.panel.progress.label.text().split("\n")
    assert re.fullmatch(r"step 100 of 500 · \d+ s left", first)
    assert second.startswith("loss 2.") and "accuracy 43 %" in second and second.endswith("items/s")
    assert " · last 9" in second, "which of the figures it is, beside a mean elsewhere"
    assert (
        window.workspace.dashboard.panel.progress.bar.value() / window.workspace.dashboard.panel.progress.bar.maximum()
        == pytest.approx(0.2)
    )


def test_a_finished_run_keeps_its_last_loss_readable(open_window: OpenWindow) -> None:
    session = training()
    window = open_window(session)
    session.end()
    session.feed(30)
    settle(window)
    assert window.workspace.dashboard.panel.progress.label.text().startswith("Finished · step 100 of 500\nloss 2.")
    assert "\nlast 9" in window.workspace.dashboard.panel.progress.label.text(), "of the last step, and called so"


def test_a_finished_run_has_the_throughput_of_its_result_also_in_the_panel(open_window: OpenWindow) -> None:
    session = training()
    window = open_window(session)
    run = session.store.run
    assert run is not None
    result = {"items_per_second": 2650.0}
    session.end(
        RunEnd(time_s=session.now_s, run_id=run.run_id, status="finished", seconds=9.0, steps=run.step, result=result)
    )
    settle(window)
    words = format_throughput(2650.0)
    assert window.workspace.dashboard.panel.progress.label.text().endswith(f"\nmean {words}")
    assert ["throughput of the whole run", words] in [list(row) for row in result_rows(run)]


def test_a_nan_loss_is_told_as_nan(open_window: OpenWindow) -> None:
    session = training()
    session.train(0.3, loss=math.nan)
    window = open_window(session)
    assert "loss NaN" in window.workspace.dashboard.panel.progress.label.text()
    assert dict(window.workspace.dashboard.plots.readout.rows())["loss"] == "NaN"
    session.train(0.1, loss=math.inf)
    settle(window)
    assert "loss infinite" in window.workspace.dashboard.panel.progress.label.text()


def test_a_failed_run_shows_what_went_wrong_and_what_to_do(open_window: OpenWindow) -> None:
    session = training()
    window = open_window(session)
    session.train(0.1, loss=2.0)
    session.end(session.failure())
    settle(window)
    why = "mat1 and mat2 shapes cannot be multiplied (3x4 and 5x6). Give both matrices the same inner size."
    dashboard = window.workspace.dashboard
    assert dashboard.result.isVisible() and dashboard.result.ending.text == why
    assert dashboard.banner.accessibleName().startswith("critical: Training on cpu failed")
    assert "shapes" not in dashboard.banner.accessibleName(), "nothing is said twice at a time"
    dashboard.plots.dismiss()
    settle(window)
    assert dashboard.banner.accessibleName() == f"critical: {why}"
    assert (
        window.workspace.dashboard.banner.isVisible()
        and window.workspace.dashboard.banner.property("level") == "critical"
    )
    assert window.workspace.dashboard.panel.progress.label.text().startswith("Failed")
    assert (
        window.workspace.dashboard.panel.button.isEnabled()
        and "Start run" in window.workspace.dashboard.panel.button.text()
    )


def test_the_form_is_locked_while_a_run_is_on(open_window: OpenWindow) -> None:
    session = training()
    window = open_window(session)
    assert (
        not window.workspace.dashboard.panel.form.control("steps").isEnabled()
        and not window.workspace.dashboard.panel.device.isEnabled()
    )
    session.end()
    settle(window)
    assert (
        window.workspace.dashboard.panel.form.control("steps").isEnabled()
        and window.workspace.dashboard.panel.device.isEnabled()
    )


def test_an_invalid_value_keeps_start_from_being_pressed(open_window: OpenWindow) -> None:
    window = open_window(FakeSession())
    field = window.workspace.dashboard.panel.form.control("steps")
    field.setText("0")  # type: ignore[union-attr]
    settle(window)
    assert not window.workspace.dashboard.panel.button.isEnabled()
    assert not window.menus.actions["run.start"].isEnabled()


def test_the_reason_for_no_gpu_is_in_the_status_line(open_window: OpenWindow) -> None:
    reason = "No NVIDIA driver was found (libnvidia-ml.so.1 is missing); runs use the CPU."
    window = open_window(FakeSession(gpu_problem=reason, torch_ready=False))
    assert reason.rstrip(".") in status(window)
    assert "PyTorch loading…" in status(window)


def test_choosing_a_card_shows_and_chooses_its_device(open_window: OpenWindow) -> None:
    session = FakeSession([gpu(0), gpu(1)]).feed(5)
    window = open_window(session)
    assert window.workspace.dashboard.panel.device_name == "cuda:0"
    assert window.workspace.dashboard.plots.plots[0].spec.title == "MEMORY cuda:0"
    QTest.mouseClick(card(window, session.gpus[1].uuid), Qt.MouseButton.LeftButton)
    settle(window)
    assert window.workspace.dashboard.plots.plots[0].spec.title == "MEMORY cuda:1"
    assert window.workspace.dashboard.panel.device_name == "cuda:1"
    assert card(window, session.gpus[1].uuid).property("selected") is True
    card(window, "host").setFocus()
    QTest.keyClick(card(window, "host"), Qt.Key.Key_Return)
    settle(window)
    assert window.workspace.dashboard.plots.plots[0].spec.title == "MEMORY cpu"
    assert window.workspace.dashboard.panel.device_name == "cpu"


def test_a_gpu_that_is_found_later_becomes_the_device_unless_the_user_chose(open_window: OpenWindow) -> None:
    session = FakeSession().feed(1)
    window = open_window(session)
    assert window.workspace.dashboard.panel.device_name == "cpu"
    session.gpus = (gpu(0),)
    settle(window)
    assert window.workspace.dashboard.panel.device_name == "cuda:0"
    window.workspace.dashboard.select_device("host")
    session.gpus = (gpu(0), gpu(1))
    settle(window)
    assert window.workspace.dashboard.panel.device_name == "cpu"


def test_a_lost_gpu_says_so_and_shows_no_figure(open_window: OpenWindow) -> None:
    session = FakeSession([gpu(0), gpu(1)]).feed(5)
    window = open_window(session)
    session.feed(2, lost=session.gpus[0].uuid)
    settle(window)
    lost = text_of(card(window, session.gpus[0].uuid))
    assert lost[1:] == ["–", "stopped answering", ""]
    assert "24.0 GiB VRAM" in text_of(card(window, session.gpus[1].uuid))[2]
    assert dict(window.workspace.dashboard.plots.readout.rows())["used"] == "-"
    session.feed(1)
    settle(window)
    assert "24.0 GiB VRAM" in text_of(card(window, session.gpus[0].uuid))[2]


@pytest.mark.parametrize(
    ("words", "asked"), [("Stop run", ("stop",)), ("Free cache", ("free_cache",)), ("Save recording", ("save",))]
)
def test_banner_buttons_do_what_they_say(
    open_window: OpenWindow, monkeypatch: pytest.MonkeyPatch, words: str, asked: tuple[str, ...], tmp_path: Any
) -> None:
    session = training()
    window = open_window(session)
    monkeypatch.setattr(FileDialog, "ask_to_save", lambda *_args: str(tmp_path / "copy.gpudash"))
    session.warn()
    settle(window)
    button = next(b for b in window.workspace.dashboard.banner.findChildren(QPushButton) if b.text() == words)
    assert button.isVisible() and button.isEnabled()
    button.click()
    assert session.requested[-1][: len(asked)] == asked


def test_a_passed_warning_leaves_by_itself(open_window: OpenWindow) -> None:
    session = FakeSession().feed(3)
    window = open_window(session)
    session.warn("warning")
    settle(window)
    session.warn("passed")
    settle(window)
    assert window.workspace.dashboard.banner.isVisible()
    session.feed(9)
    settle(window)
    assert not window.workspace.dashboard.banner.isVisible()


def test_the_desktop_is_told_only_while_the_window_is_behind(
    open_window: OpenWindow, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr(main_window, "notify", lambda _window, event: told.append(event.kind))
    session = FakeSession().feed(3)
    window = open_window(session)
    session.warn()
    settle(window)
    assert told == []
    monkeypatch.setattr(window, "isActiveWindow", lambda: False)
    session.warn("critical")
    settle(window)
    assert told == ["Warning"]


def test_another_theme_repaints_everything(open_window: OpenWindow, qapp: QApplication) -> None:
    follower = ThemeFollower(qapp, "dark")
    window = open_window(training(), set_theme=follower.choose)
    follower.changed.connect(window.set_palette)
    for palette in (LIGHT, DARK):
        window.menus.actions[f"view.theme.{palette.name}"].trigger()
        settle(window)
        image = window.grab().toImage()
        assert image.pixelColor(2, window.height() // 2) == QColor(palette.window)
        corner = window.workspace.dashboard.panel.mapTo(window, window.workspace.dashboard.panel.rect().topRight())
        assert image.pixelColor(corner.x() - 20, corner.y() + 10) == QColor(palette.panel)
        canvas = window.workspace.dashboard.plots.plots[0].canvas
        empty = canvas.mapTo(window, canvas.area.topLeft().toPoint())
        column = [image.pixelColor(empty.x() + 4, empty.y() + down).name() for down in range(2, 60)]
        assert max(set(column), key=column.count) == palette.panel
    follower.deleteLater()


def test_the_style_sheet_is_the_window_s_and_another_theme_sets_no_style_anew(
    open_window: OpenWindow, qapp: QApplication, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower = ThemeFollower(qapp, "dark")
    window = open_window(training(), set_theme=follower.choose)
    follower.changed.connect(window.set_palette)
    before = window.styleSheet()
    assert qapp.styleSheet() == "" and DARK.panel in before
    monkeypatch.setattr(qapp, "setStyle", lambda _name: pytest.fail("a second while everything is dressed anew"))
    window.menus.actions["view.theme.light"].trigger()
    assert LIGHT.panel in window.styleSheet() and qapp.styleSheet() == ""
    follower.deleteLater()


def test_the_system_theme_is_followed(
    open_window: OpenWindow, qapp: QApplication, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheme = [Qt.ColorScheme.Dark]
    monkeypatch.setattr(
        "gpudash.ui.widgets.theme.chosen_palette",
        lambda _app, _choice: DARK if scheme[0] is Qt.ColorScheme.Dark else LIGHT,
    )
    follower = ThemeFollower(qapp, "system")
    window = open_window(training())
    follower.changed.connect(window.set_palette)
    scheme[0] = Qt.ColorScheme.Light
    qapp.styleHints().colorSchemeChanged.emit(scheme[0])
    settle(window)
    assert window.workspace.colours is LIGHT
    assert window.grab().toImage().pixelColor(2, window.height() // 2) == QColor(LIGHT.window)
    follower.deleteLater()


def counted(window: MainWindow) -> tuple[int, int]:
    QCoreApplication.sendPostedEvents(None, QEvent.Type.DeferredDelete.value)
    return len(window.findChildren(QObject)), len(window.findChildren(QTimer))


def test_five_hundred_refreshes_leave_no_object_behind(open_window: OpenWindow) -> None:
    session = training("cuda:0", gpus=2)
    window = open_window(session)
    before = counted(window)
    for number in range(500):
        if number % 5 == 0:
            session.train(0.1, device="cuda:0")
        window.workspace.refresh()
    QApplication.processEvents()
    assert counted(window) == before


def test_changing_the_device_again_and_again_leaves_no_object_behind(open_window: OpenWindow) -> None:
    session = training("cuda:0", gpus=2)
    window = open_window(session)
    keys = [session.gpus[0].uuid, session.gpus[1].uuid, "host"]
    seen = set()
    for number in range(21):
        window.workspace.dashboard.select_device(keys[number % 3])
        settle(window, 4)
        if number % 3 == 0:
            seen.add(counted(window))
    assert len(seen) == 1


def test_a_new_run_clears_what_the_last_one_left(open_window: OpenWindow) -> None:
    session = training()
    window = open_window(session)
    session.end(session.failure())
    settle(window)
    session.apply(RunStarted(time_s=session.now_s, run_id=2, workload="training", device="cpu", spec={}))
    settle(window)
    assert not window.workspace.dashboard.banner.isVisible()


def test_the_card_of_a_demo_s_run_is_shown_with_it_and_the_form_s_card_with_the_next_run(
    open_window: OpenWindow,
) -> None:
    session = FakeSession([gpu(0)]).feed(5)
    window = open_window(session)
    dashboard = window.workspace.dashboard
    dashboard.select_device("host")
    session.start("cuda:0")
    session.train(5, device="cuda:0")
    run = session.store.run
    assert run is not None
    session.apply(Note(time_s=session.now_s, run_id=run.run_id, topic=Topic.DEMO, text="This run is the demo's."))
    session.end(RunEnd(time_s=session.now_s, run_id=run.run_id, status="cancelled", seconds=1.0, steps=5, result={}))
    settle(window)
    assert dashboard.view.held and dashboard.selected == gpu(0).uuid
    session.apply(RunStarted(time_s=session.now_s, run_id=2, workload="training", device="cpu", spec={}))
    settle(window)
    assert dashboard.selected == "host"


def test_what_is_said_of_the_last_run_is_not_said_of_the_one_that_begins(
    window: MainWindow, session: FakeSession
) -> None:
    words = window.workspace.dashboard.panel.progress.label
    assert "loss" in words.text()
    session.start_run(TrainingSpec(), "cpu")
    settle(window)
    assert words.text() == "Preparing…"


def test_how_far_the_view_is_behind_is_said_above_the_plots_and_nowhere_else(
    window: MainWindow, session: FakeSession
) -> None:
    dashboard = window.workspace.dashboard
    dashboard.view.pause()
    for _ in range(3):
        session.feed(4)
        settle(window, 12)
        said = dashboard.view_bar._state.text()
        assert said == dashboard.view.status() and said not in dashboard.status_line._left.text()
