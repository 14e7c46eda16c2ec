"""Run again: a recorded run's values in the live dashboard, and what is said where something is another today."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pytestqt.qtbot import QtBot

from gpudash.devices.names import Gpu
from gpudash.telemetry.runs import RunView
from gpudash.ui.window.main_window import MainWindow
from gpudash.units import GIB
from tests.ui.conftest import OpenWindow
from tests.ui.fake_session import FakeSession, gpu
from tests.ui.recordings import open_recording, trained

SIMULATED = Gpu(0, "SIM-0", "", "Simulated GPU", 8 * GIB, simulated=True)
VALUES = {"steps": 123, "width": 64, "optimizer": "sgd"}


def run(
    device: str = "cpu", workload: str = "training", spec: Mapping[str, Any] = VALUES, simulated: bool = False
) -> RunView:
    return RunView(1, workload, device, spec, simulated, 0.0)


def taken_values(window: MainWindow) -> dict[str, Any]:
    spec = window.workspace.dashboard.panel.spec()
    assert spec is not None
    return spec.model_dump()


@pytest.fixture
def window(open_window: OpenWindow) -> MainWindow:
    return open_window(FakeSession([gpu(0), SIMULATED]).feed(2))


def test_the_button_puts_the_run_into_the_live_dashboard_and_starts_nothing(
    window: MainWindow, tmp_path: Path, qtbot: QtBot
) -> None:
    document = open_recording(window, trained(seconds=3.0).save(tmp_path / "run.gpudash"), qtbot)
    document.run_again.click()
    assert window.workspace.front is None and window.workspace.notice.text == ""
    assert taken_values(window)["steps"] == 30 and window.workspace.dashboard.panel.device_name == "cpu"
    assert window.workspace.session.requested == [] and window.workspace.dashboard.panel.button.isEnabled()


def test_values_and_device_are_taken(window: MainWindow) -> None:
    window.workspace.dashboard.panel.workload.setCurrentIndex(
        window.workspace.dashboard.panel.workload.findData("matmul")
    )
    window.workspace.run_again(run("cuda:0"))
    assert (
        window.workspace.dashboard.panel.workload.currentData() == "training"
        and window.workspace.dashboard.panel.device_name == "cuda:0"
    )
    values = taken_values(window)
    assert {name: values[name] for name in VALUES} == VALUES
    assert window.workspace.dashboard.selected == gpu(0).uuid


@pytest.mark.parametrize(
    ("device", "simulated", "taken"), [("cuda:3", False, "cuda:0"), ("sim:5", True, "sim:0"), ("mps", False, "cuda:0")]
)
def test_a_device_that_is_not_here_today_is_said_and_the_values_are_kept(
    window: MainWindow, device: str, simulated: bool, taken: str
) -> None:
    window.workspace.run_again(run(device, simulated=simulated))
    assert window.workspace.dashboard.panel.device_name == taken and taken_values(window)["steps"] == 123
    assert window.workspace.notice.text == (
        f"This run was on {device}, which is not here today; the values are kept, and the device is {taken}."
    )


def test_without_any_gpu_the_processor_takes_its_place(open_window: OpenWindow) -> None:
    window = open_window(FakeSession())
    window.workspace.run_again(run("cuda:0"))
    assert (
        window.workspace.dashboard.panel.device_name == "cpu"
        and "cuda:0, which is not here" in window.workspace.notice.text
    )


def test_a_device_that_cannot_be_used_today_says_why(open_window: OpenWindow) -> None:
    window = open_window(FakeSession([SIMULATED], simulator_problem="torch is too old."))
    window.workspace.run_again(run("sim:0", simulated=True))
    assert "sim:0, which cannot be used today: torch is too old; " in window.workspace.notice.text


def test_a_workload_that_is_not_installed_changes_nothing(window: MainWindow) -> None:
    before = window.workspace.dashboard.panel.workload.currentData()
    window.workspace.run_again(run(workload="quantum"))
    assert window.workspace.dashboard.panel.workload.currentData() == before
    assert window.workspace.notice.text == "The workload quantum is not installed here; nothing was changed."


def test_a_field_of_a_newer_version_is_left_out_and_said(window: MainWindow) -> None:
    window.workspace.run_again(run(spec={"steps": 7, "warp": 9}))
    assert taken_values(window)["steps"] == 7
    assert window.workspace.notice.text == "This version does not know warp; the rest was taken."


def test_a_run_with_a_change_of_the_program_is_run_again_without_it_and_that_is_said(window: MainWindow) -> None:
    window.workspace.run_again(run("cpu", "watch", {"command": ["python", "train.py"], "edit": "--- train.py\n"}))
    assert window.workspace.notice.text.startswith("That run used a changed copy of the program")


def test_while_a_run_is_on_nothing_is_touched(window: MainWindow) -> None:
    window.workspace.session.start()
    window.workspace.run_again(run())
    assert "stop it first" in window.workspace.notice.text and taken_values(window)["steps"] != 123


def test_a_program_of_the_user_s_is_filled_in_and_a_watched_process_is_not(window: MainWindow, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("print(1)\n")
    window.workspace.run_again(run(workload="watch", spec={"command": ["python", str(script), "--fast"]}))
    assert window.workspace.dashboard.panel.watching and window.workspace.dashboard.panel.script.script().file == str(
        script
    )
    window.workspace.run_again(run(workload="watch", spec={"pid": 12, "command": ["python"]}))
    assert "cannot be started again" in window.workspace.notice.text
