"""A model of one's own in the window: its folder is dropped or chosen, and what it takes is predicted."""

from __future__ import annotations

from pathlib import Path

import pytest
from PySide6.QtWidgets import QFileDialog

from gpudash.specs import ModelSpec
from gpudash.ui.forms.model_form import ModelForm
from tests.ui.conftest import OpenWindow
from tests.ui.fake_session import FakeSession


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
    monkeypatch.setattr(QFileDialog, "getExistingDirectory", lambda *_: str(model))
    panel.form.choose.click()
    spec = panel.spec()
    assert isinstance(spec, ModelSpec) and spec.path == str(model)
