"""Choosing several devices for a training, in the form and around it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QComboBox, QInputDialog, QLabel
from pytestqt.qtbot import QtBot

from gpudash.devices.names import Device, Gpu
from gpudash.specs import ComparisonSpec, TrainingSpec
from gpudash.telemetry.runs import RunView
from gpudash.ui.forms.device_forms import OTHERS, form_of
from gpudash.ui.forms.parallel_form import ONE_RANK_TEXT, ONLY_SEVERAL, ParallelForm
from gpudash.ui.window.main_window import MainWindow
from gpudash.units import GIB
from tests.ui.conftest import OpenWindow, settle
from tests.ui.fake_session import FakeSession, gpu
from tests.ui.parts import enabled_choices
from tests.ui.test_window_state import card

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
    return open_window(FakeSession([gpu(0), gpu(1)]).feed(1))


def changeable(form: ParallelForm) -> set[str]:
    return {name for name in ONLY_SEVERAL if form.control(name).isEnabled()}


def entries(window: MainWindow) -> dict[str, str]:
    """What the choice of a device offers: value → words; those that cannot be chosen are marked."""
    choice = window.workspace.dashboard.panel.device
    rows = [row for row in range(choice.count()) if choice.itemData(row) is not None]
    enabled = enabled_choices(choice)
    return {
        choice.itemData(row): choice.itemText(row) + ("" if choice.itemData(row) in enabled else " (refused)")
        for row in rows
    }


def pick(window: MainWindow, value: str) -> None:
    """Choose an entry, as a click in the list does."""
    choice = window.workspace.dashboard.panel.device
    choice.setCurrentIndex(choice.findData(value))
    choice.activated.emit(choice.currentIndex())
    settle(window)


def test_with_one_device_what_only_several_need_cannot_be_changed(form: ParallelForm) -> None:
    assert form.devices.text() == "" and not form.devices.isVisible()
    assert changeable(form) == set() and form.own_device is None and form.meaning == ""
    assert ONE_RANK_TEXT in [label.text() for label in form.findChildren(QLabel)]
    form.devices.setText("cpu,cpu")
    assert changeable(form) == set(ONLY_SEVERAL) and form.own_device == "cpu"
    form.devices.setText("")
    assert changeable(form) == set()


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
def test_what_cannot_be_is_an_error_of_the_devices_and_cannot_be_run(form: ParallelForm, text: str, words: str) -> None:
    form.devices.setText(text)
    assert words in form.error_text("devices") and form.spec() is None and form.meaning == ""


def test_a_global_batch_that_does_not_divide_is_said_below_its_field(form: ParallelForm) -> None:
    form.set_values({"devices": "cpu,cpu", "global_batch": 33})
    assert "does not divide among 2 ranks" in form.error_text("global_batch") and form.spec() is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("cpu,cpu,cpu", "3 ranks share the CPU and its memory."),
        ("cuda:0,cuda:1", "cuda:1 has the least memory (16.0 GiB, others up to 24.0 GiB): it decides what fits."),
    ],
)
def test_what_the_choice_means_is_told(form: ParallelForm, text: str, words: str) -> None:
    form.devices.setText(text)
    assert form.meaning == words


def test_equal_gpus_need_no_word_on_their_memory(form: ParallelForm) -> None:
    form.set_devices([Device(f"cuda:{n}", "RTX", 24 * GIB, f"GPU-{n}") for n in range(2)])
    form.devices.setText("cuda:0,cuda:1")
    assert form.meaning == "2 ranks, one on each GPU."


def test_simulated_gpus_take_ranks_or_a_model_split_by_hand_that_needs_no_fields_of_ranks(form: ParallelForm) -> None:
    form.set_devices([*DEVICES, Device("sim:1", "Simulated GPU", 8 * GIB, "SIM-1")])
    form.set_values({"devices": "sim:0,sim:1", "global_batch": 32})
    ranks = form.spec()
    assert isinstance(ranks, TrainingSpec) and ranks.rank_devices == ("sim:0", "sim:1") and ranks.rank_batch == 16
    form.set_values({"devices": "sim:0,sim:1", "global_batch": 32, "parallel": "split"})

    spec = form.spec()
    assert isinstance(spec, TrainingSpec) and spec.is_split and spec.global_batch == 0
    assert form.meaning == "The first half of the layers on sim:0, the second on sim:1."
    assert changeable(form) == {"parallel"}
    form.set_values({"devices": "cpu,cpu", "parallel": "split"})
    assert "is one device" in form.error_text("devices")


def test_inference_has_one_device_whatever_was_chosen_for_training(form: ParallelForm) -> None:
    form.set_values({"devices": "cpu,cpu", "mode": "inference"})
    spec = form.spec()
    assert isinstance(spec, TrainingSpec) and spec.devices == "" and form.own_device is None
    assert form.ranks_on == "" and changeable(form) == set()


def test_a_locked_form_can_be_read_and_not_changed(form: ParallelForm) -> None:
    form.set_values({"devices": "cpu,cpu"})
    form.set_locked(True)
    assert form.devices.text() == "cpu,cpu" and changeable(form) == set()


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


def test_one_field_offers_one_device_and_several(window: MainWindow) -> None:
    assert entries(window) == {
        "cpu": "cpu · EPYC 9554",
        "cuda:0": "cuda:0 · RTX 4090",
        "cuda:1": "cuda:1 · RTX 4090",
        "cuda:0,cuda:1": "cuda:0, cuda:1",
        "cpu,cpu": "2 ranks on cpu",
        "cpu,cpu,cpu": "3 ranks on cpu",
        "cpu,cpu,cpu,cpu": "4 ranks on cpu",
        ",".join(["cpu"] * 8): "8 ranks on cpu",
        OTHERS: "Other devices…",
    }
    panel = window.workspace.dashboard.panel
    panel.workload.setCurrentIndex(panel.workload.findData("pipeline"))
    assert list(entries(window)) == ["cpu", "cuda:0", "cuda:1"], "that workload runs on one"


def test_several_devices_are_chosen_and_given_up_in_the_same_field(window: MainWindow) -> None:
    panel = window.workspace.dashboard.panel
    panel.take_device("cuda:1")
    pick(window, "cuda:0,cuda:1")
    spec = panel.spec()
    assert isinstance(spec, TrainingSpec) and spec.devices == "cuda:0,cuda:1"
    assert panel.device_name == "cuda:0" and window.workspace.dashboard.selected == gpu(0).uuid
    assert "2 ranks, one on each GPU." in panel.device.toolTip()
    pick(window, "cuda:1")
    spec = panel.spec()
    assert isinstance(spec, TrainingSpec) and spec.devices == "" and panel.device_name == "cuda:1"
    assert window.workspace.dashboard.selected == gpu(1).uuid


def test_devices_that_the_list_has_not_are_typed(window: MainWindow, monkeypatch: pytest.MonkeyPatch) -> None:
    panel = window.workspace.dashboard.panel
    for typed, given, chosen in (
        ("cuda:1, cuda:0", True, "cuda:1,cuda:0"),
        ("cpu,cpu", False, "cuda:1,cuda:0"),
        (" ", True, "cuda:1,cuda:0"),
    ):
        monkeypatch.setattr(QInputDialog, "getText", lambda *_a, _said=(typed, given), **_k: _said)
        pick(window, OTHERS)
        assert panel.device.currentData() == chosen
        spec = panel.spec()
        assert isinstance(spec, TrainingSpec) and spec.devices == chosen


def test_the_choice_follows_the_form_and_comes_back(window: MainWindow) -> None:
    panel = window.workspace.dashboard.panel
    panel.take_device("cuda:1")
    form = choose(window, "cuda:0,cuda:1")
    assert panel.device_name == "cuda:0" and panel.device.currentData() == "cuda:0,cuda:1"
    mode = form.control("mode")
    assert isinstance(mode, QComboBox)
    mode.setCurrentIndex(mode.findData("inference"))
    assert panel.device.currentData() == "cuda:1", "inference takes one device"
    mode.setCurrentIndex(mode.findData("train"))
    assert panel.device.currentData() == "cuda:0,cuda:1"
    choose(window, "")
    assert panel.device_name == "cuda:1" and panel.device.currentData() == "cuda:1"


def test_a_choice_that_cannot_be_run_is_told_and_can_be_left(window: MainWindow) -> None:
    choose(window, "cuda:0,cpu")
    panel = window.workspace.dashboard.panel
    assert panel.device.currentData() == "cuda:0,cpu" and panel.spec() is None
    assert "cannot train together" in panel.button.toolTip()
    pick(window, "cpu")
    assert panel.spec() is not None and panel.device_name == "cpu"


def test_a_run_starts_on_the_first_of_its_devices(window: MainWindow) -> None:
    choose(window, "cuda:1,cuda:0")
    window.menus.actions["run.start"].trigger()
    assert window.workspace.session.requested[-1] == ("start", "training", "cuda:1")


def test_start_says_why_it_cannot(window: MainWindow) -> None:
    choose(window, "cuda:0,cuda:5")
    assert not window.workspace.dashboard.panel.button.isEnabled()
    assert window.workspace.dashboard.panel.button.toolTip().startswith("Device: cuda:5 is not here")
    choose(window, "cuda:0,cuda:1")
    assert window.workspace.dashboard.panel.button.isEnabled()


def test_taking_one_device_ends_the_choice_of_several(window: MainWindow) -> None:
    form = choose(window, "cuda:0,cuda:1")
    window.workspace.dashboard.panel.take_device("cpu")
    assert form.devices.text() == "" and window.workspace.dashboard.panel.device_name == "cpu"


def test_clicking_the_card_of_another_device_chooses_it_and_ends_the_ranks(window: MainWindow) -> None:
    form = choose(window, "cpu,cpu")
    dashboard = window.workspace.dashboard
    QTest.mouseClick(card(window, gpu(1).uuid), Qt.MouseButton.LeftButton)
    assert dashboard.panel.device.currentData() == "cuda:1"
    assert form.devices.text() == ""
    window.menus.actions["run.start"].trigger()
    assert window.workspace.session.requested[-1] == ("start", "training", "cuda:1")


def test_clicking_the_card_of_one_of_the_ranks_keeps_them_all(window: MainWindow) -> None:
    choose(window, "cuda:0,cuda:1")
    QTest.mouseClick(card(window, gpu(1).uuid), Qt.MouseButton.LeftButton)
    assert window.workspace.dashboard.panel.device.currentData() == "cuda:0,cuda:1"
    assert window.workspace.dashboard.selected == gpu(1).uuid


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
        "This run had ranks on cuda:5, which is not here today; choose others under Device."
    )
    form = window.workspace.dashboard.panel.form
    assert isinstance(form, ParallelForm)
    assert form.devices.text() == "cuda:0,cuda:5" and "cuda:5 is not here" in form.error_text("devices")
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


def test_ranks_on_simulated_gpus_are_offered_and_start(open_window: OpenWindow) -> None:
    cards = [Gpu(n, f"SIM-{n}", "", "Simulated GPU", 8 * GIB, simulated=True) for n in range(3)]
    window = open_window(FakeSession(cards))
    panel = window.workspace.dashboard.panel
    choose(window, "sim:0,sim:1")
    offered = [panel.device.itemData(index) for index in range(panel.device.count())]
    assert {"sim:0,sim:1", "sim:0,sim:1,sim:2"} <= set(offered) and panel.button.isEnabled()
    window.menus.actions["run.start"].trigger()
    assert window.workspace.session.requested[-1] == ("start", "training", "sim:0")
