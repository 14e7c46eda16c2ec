"""The form of a comparison, and the panel around it."""

from __future__ import annotations

import pytest
from PySide6.QtWidgets import QComboBox, QLineEdit
from pytestqt.qtbot import QtBot

from gpudash.devices.names import Device
from gpudash.specs import ComparisonSpec
from gpudash.specs.comparison import PREDICTED_CARD
from gpudash.ui.forms.device_forms import ComparisonForm
from gpudash.ui.forms.workload_panel import WorkloadPanel
from gpudash.units import GIB
from tests.ui.parts import enabled_choices

CPU = Device("cpu", "A processor", 16 * GIB)
GPU = Device("cuda:0", "A card", 24 * GIB, "GPU-1")
SIM = Device("sim:0", "Simulated GPU", 8 * GIB, "SIM-0")


@pytest.fixture
def form(qtbot: QtBot) -> ComparisonForm:
    form = ComparisonForm(ComparisonSpec)
    qtbot.addWidget(form)
    form.set_devices([CPU, GPU, SIM], "cuda:0")
    return form


def spec_of(form: ComparisonForm) -> ComparisonSpec:
    spec = form.spec()
    assert isinstance(spec, ComparisonSpec)
    return spec


def choose(control: object, value: str) -> None:
    assert isinstance(control, QComboBox)
    control.setCurrentIndex(control.findData(value))


def write(control: object, text: str) -> None:
    assert isinstance(control, QLineEdit)
    control.setText(text)


def test_the_fields_of_the_chosen_workload_are_part_of_the_comparison(form: ComparisonForm) -> None:
    choose(form.nested.control("model"), "mlp")
    write(form.nested.control("batch"), "8")
    assert spec_of(form).fields == {"model": "mlp", "batch": 8}
    choose(form.control("workload"), "matmul")
    assert (spec_of(form).workload, spec_of(form).fields) == ("matmul", {})
    write(form.nested.control("size"), "64")
    assert spec_of(form).chosen.size == 64  # type: ignore[attr-defined]  # a matrix product's


def test_where_runs_take_place_on_a_simulated_card_a_comparison_has_a_real_or_a_predicted_one(qtbot: QtBot) -> None:
    with_gpu, without = ComparisonForm(ComparisonSpec), ComparisonForm(ComparisonSpec)
    for form, devices in ((with_gpu, [CPU, GPU, SIM]), (without, [CPU, SIM])):
        qtbot.addWidget(form)
        form.set_devices(devices, "sim:0")
    assert with_gpu.second.currentData() == "cuda:0"
    assert without.second.currentData() == PREDICTED_CARD


def test_only_the_chosen_workloads_fields_are_shown(form: ComparisonForm) -> None:
    form.show()
    training = form.nested
    assert training.isVisible()
    choose(form.control("workload"), "pipeline")
    assert not training.isVisible()
    assert form.nested.isVisible()


def test_workloads_whose_times_say_nothing_of_a_device_are_not_offered(form: ComparisonForm) -> None:
    control = form.control("workload")
    assert isinstance(control, QComboBox)
    offered = [control.itemData(row) for row in range(control.count())]
    assert "training" in offered
    assert not {"pressure", "comparison", "transfer"} & set(offered)


def test_the_devices_are_two_choices_and_a_simulated_one_cannot_be_chosen_and_says_why(form: ComparisonForm) -> None:
    assert spec_of(form).devices == "cpu,cuda:0"
    choose(form.second, "cpu")
    assert spec_of(form).pair == ("cpu", "cpu")
    assert enabled_choices(form.first) == ["cpu", "cuda:0"]
    model = form.first.model()
    reason = model.index(form.first.findData("sim:0"), 0).data(3)
    assert "its speed is no GPU's" in str(reason)


def test_a_wrong_value_of_the_workloads_is_marked_in_place_and_gives_no_spec(form: ComparisonForm) -> None:
    write(form.nested.control("batch"), "0")
    assert form.spec() is None
    assert form.nested.errors()["batch"] == "--batch 0: at least 1"


def test_a_preset_keeps_the_chosen_devices(form: ComparisonForm) -> None:
    choose(form.second, "cpu")
    form.set_values(ComparisonSpec.presets["Small"])
    assert spec_of(form) == ComparisonSpec(devices="cpu,cpu", fields={"model": "mlp", "batch": 8})


def test_a_recorded_comparison_fills_the_form_also_with_devices_that_are_not_here(form: ComparisonForm) -> None:
    asked = ComparisonSpec(devices="cuda:3,cpu", workload="matmul", fields={"size": 64}, limit=5)
    form.set_values(asked.model_dump(mode="json"))
    assert form.spec() == asked


def test_a_recorded_comparison_of_a_workload_that_is_not_installed_says_so(form: ComparisonForm) -> None:
    form.set_values({"workload": "theirs", "devices": "cpu,cpu", "fields": {"depth": 3}})
    assert form.spec() is None
    assert form.errors() == {"workload": "--workload 'theirs': choose one of training, pipeline, matmul, model"}
    form.set_values({"devices": "cpu,cpu", "fields": None})
    assert spec_of(form).fields == {}


def test_a_change_that_would_fit_goes_to_the_workloads_own_fields(form: ComparisonForm) -> None:
    choose(form.nested.control("model"), "mlp")
    form.change_fields({"batch": 4})
    assert spec_of(form).fields == {"model": "mlp", "batch": 4}


def test_locking_locks_every_control(form: ComparisonForm) -> None:
    form.set_locked(True)
    assert not any(one.isEnabled() for one in (form.first, form.second, form.nested.control("batch")))
    form.set_locked(False)
    assert form.first.isEnabled()


def test_the_panel_shows_two_devices_in_place_of_one_and_runs_on_the_gpu(qtbot: QtBot) -> None:
    panel = WorkloadPanel()
    qtbot.addWidget(panel)
    panel.set_devices([CPU, GPU, SIM], "cuda:0")
    panel.show()
    assert panel.device.isVisible()
    panel.workload.setCurrentIndex(panel.workload.findData("comparison"))
    assert not panel.device.isVisible()
    assert panel.device_name == "cuda:0"
    assert panel.ready
    panel.workload.setCurrentIndex(panel.workload.findData("training"))
    assert panel.device.isVisible()


def test_any_two_devices_are_compared_whatever_device_was_chosen_for_other_workloads(qtbot: QtBot) -> None:
    panel = WorkloadPanel()
    qtbot.addWidget(panel)
    panel.set_devices([CPU, GPU, Device("cuda:1", "NVIDIA H200", GPU.total_bytes, "GPU-1")], "cuda:0")
    panel.workload.setCurrentIndex(panel.workload.findData("comparison"))
    form = panel.form
    assert isinstance(form, ComparisonForm)
    for first, second, measured in (("cpu", "cpu", "cpu"), ("cpu", "cuda:1", "cuda:1")):
        choose(form.first, first)
        choose(form.second, second)
        assert form.errors() == {} and panel.device_name == measured


def test_where_there_is_no_gpu_the_cpu_is_compared_with_a_card_that_is_predicted(qtbot: QtBot) -> None:
    panel = WorkloadPanel()
    qtbot.addWidget(panel)
    panel.set_devices([CPU, SIM], "cpu")
    panel.workload.setCurrentIndex(panel.workload.findData("comparison"))
    spec = panel.spec()
    assert isinstance(spec, ComparisonSpec)
    assert (spec.devices, spec.own_device, panel.device_name) == ("cpu,rtx4090", "cpu", "cpu")
    assert panel.ready


def test_cards_that_are_not_here_are_offered_second_and_say_that_they_are_predicted(form: ComparisonForm) -> None:
    choose(form.second, "h100")
    assert spec_of(form).card is not None
    assert form.second.currentText() == "H100 80GB, predicted"
    assert form.first.findData("h100") < 0
