"""Choosing several devices for a training, in the form and around it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from pytestqt.qtbot import QtBot

from gpudash.devices.names import Device, Gpu
from gpudash.specs import ComparisonSpec, TrainingSpec
from gpudash.telemetry.runs import RunView
from gpudash.ui.forms.comparison_form import form_of
from gpudash.ui.forms.parallel_form import ONLY_SEVERAL, ParallelForm
from gpudash.ui.forms.workload_panel import SEVERAL_WORDS
from gpudash.ui.window.main_window import MainWindow
from gpudash.units import GIB
from tests.ui.conftest import OpenWindow, settle
from tests.ui.fake_session import FakeSession, gpu

DEVICES = [
    Device("cpu", "EPYC", 128 * GIB),
    Device("cuda:0", "RTX 4090", 24 * GIB, "GPU-0"),
    Device("cuda:1", "RTX 4080", 16 * GIB, "GPU-1"),
    Device("cuda:2", "GT 710", 2 * GIB, "GPU-2", problem="This torch has no code for it."),
    Device("sim:0", "Simulated GPU", 8 * GIB, "SIM-0"),
]


@pytest.fixture
def form(qtbot: QtBot) -> ParallelForm:
    form = form_of(TrainingSpec)
    assert isinstance(form, ParallelForm)
    qtbot.addWidget(form)
    form.set_devices(DEVICES)
    form.show()
    qtbot.waitExposed(form)
    return form


@pytest.fixture
def window(open_window: OpenWindow) -> MainWindow:
    session = FakeSession([gpu(0), gpu(1)])
    session.feed(1)
    return open_window(session)


def visible(form: ParallelForm) -> set[str]:
    return {name for name in ONLY_SEVERAL if not form.control(name).isHidden() and form.control(name).isVisible()}


def inline(form: ParallelForm, field: str = "devices") -> str:
    label = form._errors[field]
    return "" if label.isHidden() else label.text()


def told(form: ParallelForm) -> str:
    return "" if form._note.isHidden() else form._note.text()


def entries(form: ParallelForm) -> dict[str, Any]:
    form.devices.menu.aboutToShow.emit()
    return {action.text(): action for action in form.devices.menu.actions() if not action.isSeparator()}


def test_with_one_device_what_only_several_need_is_not_shown(form: ParallelForm) -> None:
    assert form.devices.text() == "" and form.devices.placeholderText() == "one, as above"
    assert visible(form) == set() and form.own_device is None
    form.devices.setText("cpu,cpu")
    assert visible(form) == set(ONLY_SEVERAL) and form.own_device == "cpu"
    form.devices.setText("")
    assert visible(form) == set()


def test_the_devices_stand_above_the_workload_s_own_fields(form: ParallelForm) -> None:
    assert list(form.values())[: 1 + len(ONLY_SEVERAL)] == ["devices", *ONLY_SEVERAL]


def test_the_text_becomes_the_spec_s_devices(form: ParallelForm) -> None:
    form.devices.setText("cuda:0, cuda:1")
    spec = form.spec()
    assert isinstance(spec, TrainingSpec) and spec.devices == "cuda:0,cuda:1"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("cuda:0", "only one device"),
        ("cuda:0,cuda:0", "given twice"),
        ("cpu,cuda:0", "cannot train together"),
        ("sim:0,sim:0", "given twice"),
        ("sim:0,cuda:0", "simulated GPUs and real ones"),
        ("cuda:0,cuda:7", "cuda:7 is not here; there is cpu, cuda:0, cuda:1"),
        ("cuda:0,cuda:2", "cuda:2 cannot be used: This torch has no code for it"),
        ("banana,cpu", "not a device"),
    ],
)
def test_what_cannot_be_is_said_below_the_field_and_cannot_be_run(form: ParallelForm, text: str, words: str) -> None:
    form.devices.setText(text)
    assert words in inline(form) and form.spec() is None and told(form) == ""


def test_a_global_batch_that_does_not_divide_is_said_below_its_field(form: ParallelForm) -> None:
    form.set_values({"devices": "cpu,cpu", "global_batch": 33})
    assert "does not divide among 2 ranks" in inline(form, "global_batch") and form.spec() is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("cpu,cpu,cpu", "3 ranks share the CPU and its memory."),
        ("cuda:0,cuda:1", "cuda:1 has the least memory (16.0 GiB, others up to 24.0 GiB): it decides what fits."),
    ],
)
def test_what_the_choice_means_is_told(form: ParallelForm, text: str, words: str) -> None:
    form.devices.setText(text)
    assert told(form) == words


def test_equal_gpus_need_no_word_on_their_memory(form: ParallelForm) -> None:
    form.set_devices([Device(f"cuda:{n}", "RTX", 24 * GIB, f"GPU-{n}") for n in range(2)])
    form.devices.setText("cuda:0,cuda:1")
    assert told(form) == "2 ranks, one on each GPU."


def test_inference_has_one_device_whatever_was_chosen_for_training(form: ParallelForm) -> None:
    form.set_values({"devices": "cpu,cpu", "mode": "inference"})
    spec = form.spec()
    assert isinstance(spec, TrainingSpec) and spec.devices == "" and form.own_device is None
    assert not form.devices.isVisible() and visible(form) == set()


def test_the_menu_writes_the_text_and_shows_what_is_chosen(form: ParallelForm) -> None:
    assert entries(form)["One device, no ranks"].isChecked()
    entries(form)["4 ranks on the CPU"].trigger()
    assert form.devices.text() == "cpu,cpu,cpu,cpu" and entries(form)["4 ranks on the CPU"].isChecked()
    entries(form)["cuda:1 · RTX 4080 · 16.0 GiB"].trigger()
    entries(form)["cuda:0 · RTX 4090 · 24.0 GiB"].trigger()
    assert form.devices.text() == "cuda:0,cuda:1", "in the order of the devices, without the CPU"
    entries(form)["cuda:1 · RTX 4080 · 16.0 GiB"].trigger()
    assert form.devices.text() == "cuda:0"
    entries(form)["One device, no ranks"].trigger()
    assert form.devices.text() == ""


def test_the_menu_offers_no_device_that_cannot_hold_a_rank_and_says_why(form: ParallelForm) -> None:
    refused = {text: action.toolTip() for text, action in entries(form).items() if not action.isEnabled()}
    assert list(refused) == ["cuda:2 · GT 710 · 2.00 GiB", "sim:0 · SIMULATED · 8.00 GiB"]
    assert refused["cuda:2 · GT 710 · 2.00 GiB"] == "This torch has no code for it."
    assert "no rank" in refused["sim:0 · SIMULATED · 8.00 GiB"]


def test_the_menu_opens_with_the_keyboard_and_stays_while_space_chooses(form: ParallelForm) -> None:
    form.devices.setFocus()
    QTest.keyClick(form.devices, Qt.Key.Key_Down, Qt.KeyboardModifier.AltModifier)
    menu = form.devices.menu
    assert menu.isVisible()
    for text in ("cuda:0 · RTX 4090 · 24.0 GiB", "cuda:1 · RTX 4080 · 16.0 GiB"):
        menu.setActiveAction(next(action for action in menu.actions() if action.text() == text))
        QTest.keyClick(menu, Qt.Key.Key_Space)
        assert menu.isVisible() and menu.activeAction().isChecked()
    assert form.devices.text() == "cuda:0,cuda:1"
    QTest.keyClick(menu, Qt.Key.Key_Escape)
    assert not menu.isVisible()


def test_devices_that_have_gone_while_the_menu_was_open_are_no_longer_in_it(form: ParallelForm) -> None:
    form.devices.open_menu()
    menu = form.devices.menu
    gone = next(action for action in menu.actions() if action.text().startswith("cuda:1"))
    menu.setActiveAction(gone)
    form.set_devices(DEVICES[:1])
    QTest.keyClick(menu, Qt.Key.Key_Space)
    assert not any(action.text().startswith("cuda:") for action in menu.actions())
    menu.close()


def test_a_click_chooses_and_leaves_the_menu_open(form: ParallelForm) -> None:
    form.devices.open_menu()
    menu = form.devices.menu
    action = next(action for action in menu.actions() if action.text() == "2 ranks on the CPU")
    QTest.mouseClick(menu, Qt.MouseButton.LeftButton, pos=menu.actionGeometry(action).center())
    assert menu.isVisible() and form.devices.text() == "cpu,cpu"
    menu.close()


def test_a_locked_form_can_be_read_and_not_changed(form: ParallelForm) -> None:
    form.set_values({"devices": "cpu,cpu"})
    form.set_locked(True)
    assert form.devices.text() == "cpu,cpu" and not form.devices.isEnabled() and not form.devices.arrow.isEnabled()


def test_a_comparison_has_no_fields_for_ranks(qtbot: QtBot) -> None:
    form = form_of(ComparisonSpec)
    qtbot.addWidget(form)
    form.set_values({"workload": "training"})
    assert not {"devices", *ONLY_SEVERAL} & form.nested.values().keys()  # type: ignore[attr-defined]


def choose(window: MainWindow, text: str) -> ParallelForm:
    form = window.workspace.dashboard.panel.form
    assert isinstance(form, ParallelForm)
    form.devices.setText(text)
    settle(window)
    return form


def test_the_choice_of_one_device_follows_the_ranks_and_comes_back(window: MainWindow) -> None:
    panel = window.workspace.dashboard.panel
    panel.take_device("cuda:1")
    choose(window, "cuda:0,cuda:1")
    assert panel.device_name == "cuda:0" and panel.device.currentData() == "cuda:0"
    assert not panel.device.isEnabled() and panel.device.toolTip() == SEVERAL_WORDS
    assert window.workspace.dashboard.selected == gpu(0).uuid
    choose(window, "")
    assert panel.device_name == "cuda:1" and panel.device.currentData() == "cuda:1" and panel.device.isEnabled()


def test_a_run_starts_on_the_first_of_its_devices(window: MainWindow) -> None:
    choose(window, "cuda:1,cuda:0")
    window.menus.actions["run.start"].trigger()
    assert window.workspace.session.asked[-1] == ("start", "training", "cuda:1")


def test_start_says_why_it_cannot(window: MainWindow) -> None:
    choose(window, "cuda:0,cuda:5")
    assert not window.workspace.dashboard.panel.button.isEnabled()
    assert window.workspace.dashboard.panel.button.toolTip().startswith("Devices: cuda:5 is not here")
    choose(window, "cuda:0,cuda:1")
    assert window.workspace.dashboard.panel.button.isEnabled()


def test_taking_one_device_ends_the_choice_of_several(window: MainWindow) -> None:
    form = choose(window, "cuda:0,cuda:1")
    window.workspace.dashboard.panel.take_device("cpu")
    assert form.devices.text() == "" and window.workspace.dashboard.panel.device_name == "cpu"


def run(values: Mapping[str, Any]) -> RunView:
    return RunView(1, "training", str(values["devices"]).partition(",")[0], values, False, 0.0)


def test_run_again_takes_the_ranks_devices(window: MainWindow) -> None:
    window.workspace.run_again(run({"devices": "cuda:0,cuda:1", "steps": 77, "parallel": "fsdp"}))
    spec = window.workspace.dashboard.panel.spec()
    assert isinstance(spec, TrainingSpec)
    assert (spec.devices, spec.steps, spec.parallel) == ("cuda:0,cuda:1", 77, "fsdp")
    assert window.workspace.notice.text == "" and window.workspace.dashboard.panel.device_name == "cuda:0"


def test_run_again_says_which_ranks_devices_are_not_here(window: MainWindow) -> None:
    window.workspace.run_again(run({"devices": "cuda:0,cuda:5", "steps": 77}))
    assert window.workspace.notice.text == (
        "This run had ranks on cuda:5, which is not here today; choose others under Devices."
    )
    form = window.workspace.dashboard.panel.form
    assert isinstance(form, ParallelForm)
    assert form.devices.text() == "cuda:0,cuda:5" and "cuda:5 is not here" in inline(form)
    assert not window.workspace.dashboard.panel.button.isEnabled()


def test_a_recording_shows_its_ranks_devices_wherever_it_is_opened(qtbot: QtBot) -> None:
    form = form_of(TrainingSpec)
    assert isinstance(form, ParallelForm)
    qtbot.addWidget(form)
    form.set_values({"devices": "cuda:6,cuda:7"})
    assert form.errors() == {} and form.own_device == "cuda:6"


def test_a_simulated_gpu_among_the_devices_changes_nothing(open_window: OpenWindow) -> None:
    window = open_window(FakeSession([Gpu(0, "SIM-0", "", "Simulated GPU", 8 * GIB, simulated=True)]))
    choose(window, "cpu,cpu")
    assert window.workspace.dashboard.panel.device_name == "cpu" and window.workspace.dashboard.panel.button.isEnabled()
