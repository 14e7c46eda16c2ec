"""A model of one's own in the window: its folder is dropped or chosen, and what it takes is predicted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from PySide6.QtWidgets import QComboBox, QLineEdit

from gpudash.memory.predicting.estimate import ModelFacts
from gpudash.specs import ModelSpec
from gpudash.ui.dashboard.card_chips import CardChip
from gpudash.ui.forms.model_form import ModelForm
from gpudash.ui.forms.workload_panel import WorkloadPanel
from gpudash.ui.widgets.file_dialog import FileDialog
from gpudash.ui.widgets.plain_text import PlainLabel
from tests.ui.asked_form import ask_again
from tests.ui.conftest import OpenWindow, settle
from tests.ui.estimates import SHORT
from tests.ui.fake_session import FakeSession, gpu
from tests.ui.words import complaints


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "tiny-llama"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "llama"}')
    return folder


@pytest.mark.parametrize("dropped", ["", "config.json"])
def test_a_dropped_model_is_the_one_to_predict(open_window: OpenWindow, model: Path, dropped: str) -> None:
    window = open_window(FakeSession())
    window.workspace.open_dropped([model / dropped])
    spec = window.workspace.dashboard.panel.spec()
    assert isinstance(spec, ModelSpec) and spec.path == str(model / dropped)


def test_a_dropped_model_leaves_the_other_fields_as_they_are(open_window: OpenWindow, model: Path) -> None:
    panel = open_window(FakeSession()).workspace.dashboard.panel
    panel.take_preset("model", ModelSpec.presets["QLoRA"])
    panel.take_model(model)
    spec = panel.spec()
    assert isinstance(spec, ModelSpec) and (spec.task, spec.path) == ("qlora", str(model))


def test_a_folder_is_chosen_with_the_button(
    open_window: OpenWindow, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    panel = open_window(FakeSession()).workspace.dashboard.panel
    panel.take_preset("model", {})
    assert isinstance(panel.form, ModelForm)
    monkeypatch.setattr(FileDialog, "ask_for_folder", lambda *_: str(model))
    panel.form.choose.click()
    spec = panel.spec()
    assert isinstance(spec, ModelSpec) and spec.path == str(model)


def test_qlora_is_asked_for_with_checkpointing_as_its_libraries_have_it(open_window: OpenWindow, model: Path) -> None:
    panel = open_window(FakeSession()).workspace.dashboard.panel
    panel.take_model(model, task="qlora")
    spec = panel.spec()
    assert isinstance(spec, ModelSpec) and spec.task == "qlora" and spec.checkpointing
    task = panel.form.control("task")
    assert isinstance(task, QComboBox)
    for chosen, checkpointing in (("train", False), ("qlora", True), ("infer", False)):
        task.setCurrentIndex(task.findData(chosen))
        task.activated.emit(task.currentIndex())
        assert (panel.form.values()["task"], panel.form.values()["checkpointing"]) == (chosen, checkpointing)
    panel.form.set_values({**panel.form.values(), "task": "qlora", "checkpointing": False})
    panel.take_model(model, task="qlora")
    assert not panel.form.values()["checkpointing"], "what the user switched off was switched on again"


def test_a_zero_and_a_usual_choice_say_what_they_stand_for(open_window: OpenWindow, model: Path) -> None:
    panel = open_window(FakeSession()).workspace.dashboard.panel
    panel.take_model(model, task="serve")

    def beside(name: str) -> str:
        line = panel.form.control(name)
        label = line.findChild(PlainLabel)
        assert label is not None and isinstance(line, QLineEdit)
        return label.text() or f"{line.text()}({line.placeholderText()})"

    assert (beside("sequence"), beside("users")) == ("(the model's own)", "(as many as fit)")
    spec = panel.spec()
    assert isinstance(spec, ModelSpec) and (spec.sequence, spec.users) == (0, 0)
    panel.form.change_fields({"sequence": 4096, "users": 2})
    assert (beside("sequence"), beside("users")) == ("tokens", "requests")
    panel.take_preset("model", ModelSpec.presets["QLoRA"])
    quantisation = panel.form.control("quantisation")
    assert isinstance(quantisation, QComboBox)
    assert (beside("sequence"), quantisation.currentText()) == ("(2048 unless set)", "auto (nf4)")
    panel.take_preset("model", {"task": "lora"})
    assert quantisation.currentText() == "as stored" and panel.form.title("lora_rank") == "LoRA rank"


def taken(open_window: OpenWindow, model: Path, preset: str = "Training") -> WorkloadPanel:
    """The panel with the model in it."""
    panel = open_window(FakeSession()).workspace.dashboard.panel
    panel.take_model(model)
    panel.take_preset("model", ModelSpec.presets[preset])
    return panel


def test_a_preset_leaves_the_model_as_it_is(open_window: OpenWindow, model: Path) -> None:
    panel = taken(open_window, model)
    panel.form.change_fields({"trust_remote_code": True, "batch": 8})
    panel.take_preset("model", ModelSpec.presets["QLoRA"])
    spec = panel.spec()
    assert isinstance(spec, ModelSpec) and (spec.task, spec.batch) == ("qlora", 1)
    assert (spec.path, spec.trust_remote_code) == (str(model), True)


def test_of_a_long_path_the_end_is_seen(open_window: OpenWindow, model: Path) -> None:
    field = taken(open_window, model).form.control("path")
    assert isinstance(field, QLineEdit) and field.cursorPosition() == len(str(model))


@pytest.mark.parametrize("fields", [{"task": "qlora"}, {"optimizer": "adamw8bit"}])
def test_what_is_only_predicted_cannot_be_started_and_says_what_to_do(
    open_window: OpenWindow, model: Path, fields: dict[str, str]
) -> None:
    panel = taken(open_window, model)
    assert panel.button.isEnabled()
    panel.change_fields(fields)
    panel.set_forecast("does not fit")
    assert not panel.button.isEnabled() and "Start run" in panel.button.text()
    for words in (panel.button.toolTip(), panel._caution.text()):
        assert "can only be predicted here" in words and "My script" in words
    assert panel._caution.isVisibleTo(panel)
    panel.take_preset("model", ModelSpec.presets["Inference"])
    panel.set_forecast("")
    assert panel.button.isEnabled() and not panel._caution.isVisibleTo(panel)


def test_several_devices_are_chosen_in_the_field_of_one_and_only_predicted(
    open_window: OpenWindow, model: Path
) -> None:
    panel = open_window(FakeSession([gpu(0), gpu(1)]).feed(1)).workspace.dashboard.panel
    panel.take_model(model)
    panel.device.setCurrentIndex(panel.device.findData("cuda:0,cuda:1"))
    panel.device.activated.emit(panel.device.currentIndex())
    panel.change_fields({"parallel": "fsdp"})
    spec = panel.spec()
    assert isinstance(spec, ModelSpec) and (spec.devices, spec.parallel) == ("cuda:0,cuda:1", "fsdp")
    assert panel.device_name == "cuda:0" and not panel.button.isEnabled()
    assert "A model over 2 devices can only be predicted here." in panel.button.toolTip()
    panel.take_preset("model", ModelSpec.presets["Inference"])
    spec = panel.spec()
    assert isinstance(spec, ModelSpec) and spec.devices == "" and panel.button.isEnabled()


def test_a_form_without_a_model_says_so_once(open_window: OpenWindow) -> None:
    panel = open_window(FakeSession()).workspace.dashboard.panel
    panel.take_preset("model", {})
    assert not panel.button.isEnabled() and panel.button.toolTip().startswith("No model is named.")
    assert panel._caution.text() == "", "the place of the prediction says it"


def test_a_form_without_a_model_asks_for_one(open_window: OpenWindow) -> None:
    window = open_window(FakeSession())
    panel = window.workspace.dashboard.panel
    panel.take_preset("model", {})
    ask_again(window)
    assert panel.fit.headline == "– nothing to predict yet"
    assert panel.fit.figures.startswith("No model is named. Choose the folder")
    assert panel.progress.idle == "Nothing to run yet."
    chips = window.workspace.dashboard.chooser.findChildren(CardChip)
    assert {chip.content.text.standing for chip in chips} == {"unasked"}


@pytest.mark.parametrize("size", [(1280, 800), (2560, 1440)])
def test_the_fit_of_a_model_says_what_it_is_what_is_assumed_and_the_longest_sequence(
    open_window: OpenWindow, model: Path, size: tuple[int, int]
) -> None:
    session = FakeSession()
    window = open_window(session, size=size)
    panel = window.workspace.dashboard.panel
    panel.take_model(model)
    settle(window)
    facts = ModelFacts("LlamaForCausalLM", 8_030_261_248, 2**34, "bfloat16", 2048, assumptions=("it is so",))
    estimate = replace(SHORT, model=facts, largest_batch_size=0, largest_sequence=896, untried=("QLoRA",))
    panel.fit.show_estimate(estimate, whole=False)
    panel.fit.open_details()
    settle(window)
    assert panel.fit.figures.endswith("a batch of 1 fits with up to 896 tokens")
    assert "LlamaForCausalLM: 8,030,261,248 parameters, 16.0 GiB as bfloat16" in panel.fit.notes
    assert "taken for granted: it is so" in panel.fit.notes and "QLoRA" not in panel.fit.notes
    panel.fit.show_estimate(estimate, whole=True)
    settle(window)
    assert "not tried, since the time was over: QLoRA" in panel.fit.notes
    assert panel.fit._toggle.text() == "What would fit (3), search stopped early"
    assert complaints(window) == []
    panel.fit.show_estimate(SHORT, whole=True)
    settle(window)
    assert panel.fit.notes == ""


def test_a_chosen_recipe_fills_in_what_it_sets(open_window: OpenWindow, model: Path) -> None:
    panel = taken(open_window, model, "QLoRA")
    recipe = panel.form.control("recipe")
    assert isinstance(recipe, QComboBox)
    recipe.setCurrentIndex(recipe.findData("unsloth"))
    recipe.activated.emit(recipe.currentIndex())
    spec = panel.spec()
    assert isinstance(spec, ModelSpec)
    assert (spec.loss, spec.optimizer, spec.keep_16_bits) == ("fused", "adamw8bit", True)
