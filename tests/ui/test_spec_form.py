"""The form made from a spec."""

from __future__ import annotations

import pytest
from PySide6.QtCore import QPoint
from PySide6.QtGui import QCursor
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QCheckBox, QComboBox, QLabel, QLineEdit, QStyleOptionComboBox
from pytestqt.qtbot import QtBot

from gpudash.specs import BUILT_IN, ModelSpec, PipelineSpec, PressureSpec, Spec, TrainingSpec, TransferSpec
from gpudash.ui.forms.device_forms import form_of
from gpudash.ui.forms.spec_form import SpecForm
from gpudash.ui.widgets.fields import ChoiceField
from tests.ui.parts import enabled_choices


@pytest.fixture
def pipeline(qtbot: QtBot) -> SpecForm:
    form = SpecForm(PipelineSpec)
    qtbot.addWidget(form)
    return form


@pytest.mark.parametrize("spec", BUILT_IN)
def test_every_field_of_every_workload_has_a_control_with_name_and_help(qtbot: QtBot, spec: type[Spec]) -> None:
    form = form_of(spec)
    qtbot.addWidget(form)
    for name, field in spec.model_fields.items():
        if name == "fields":
            continue  # those of another workload, each with a control of its own
        control = form.control(name)
        assert control.accessibleName()
        assert str(field.description) in control.toolTip()


@pytest.mark.parametrize("spec", BUILT_IN)
def test_an_untouched_form_gives_the_defaults(qtbot: QtBot, spec: type[Spec]) -> None:
    form = form_of(spec)
    qtbot.addWidget(form)
    assert form.spec() == spec()


@pytest.mark.parametrize("spec", BUILT_IN)
def test_every_preset_passes_through_the_form_unchanged(qtbot: QtBot, spec: type[Spec]) -> None:
    form = form_of(spec)
    qtbot.addWidget(form)
    for values in spec.presets.values():
        form.set_values(values)
        assert form.spec() == spec.model_validate(values)


def test_a_value_out_of_range_is_marked_in_place_and_gives_no_spec(pipeline: SpecForm) -> None:
    control = pipeline.control("rows")
    assert isinstance(control, QLineEdit)
    control.setText("0")
    assert pipeline.spec() is None
    assert control.property("invalid") is True
    assert "at least 1" in pipeline.errors()["rows"]
    control.setText("4")
    assert control.property("invalid") is False
    spec = pipeline.spec()
    assert isinstance(spec, PipelineSpec)
    assert spec.rows == 4


def test_a_size_is_read_as_it_is_written(pipeline: SpecForm) -> None:
    control = pipeline.control("size")
    assert isinstance(control, QLineEdit)
    control.setText("200MiB")
    spec = pipeline.spec()
    assert isinstance(spec, PipelineSpec)
    assert spec.size == 200 * 2**20
    control.setText("a lot")
    assert "is not a size" in pipeline.errors()["size"]


def test_what_needs_cuda_is_disabled_on_the_cpu_with_the_reason(pipeline: SpecForm) -> None:
    pipeline.set_device("cpu")
    move = pipeline.control("move")
    assert isinstance(move, QComboBox)
    assert "cuda" not in enabled_choices(move)
    assert "needs a CUDA device" in move.model().item(move.findData("cuda")).toolTip()  # type: ignore[attr-defined]
    pipeline.set_device("cuda:0")
    assert "cuda" in enabled_choices(move)


def test_a_choice_the_device_cannot_run_gives_no_spec_and_says_why(pipeline: SpecForm) -> None:
    pipeline.set_device("cuda:0")
    pipeline.set_values({"move": "cuda"})
    assert pipeline.spec() is not None
    pipeline.set_device("cpu")
    assert pipeline.spec() is None
    assert "needs a CUDA device" in pipeline.errors()[""]


def test_a_server_is_asked_for_users_in_the_place_of_steps(qtbot: QtBot) -> None:
    form = form_of(ModelSpec)
    qtbot.addWidget(form)
    form.show()
    users, steps = form.control("users"), form.control("steps")
    assert steps.isVisible() and not users.isVisible()
    place = steps.pos()
    form.set_values({"task": "serve"})
    qtbot.waitUntil(lambda: users.isVisible() and users.pos() == place)
    assert not steps.isVisible()


def test_a_field_that_does_not_matter_stays_where_it_is_and_says_what_it_takes(qtbot: QtBot) -> None:
    form = form_of(TrainingSpec)
    qtbot.addWidget(form)
    form.show()
    form.more.click()
    sequence, places = form.control("sequence"), {name: form.control(name).pos() for name in form.values()}
    assert sequence.isVisible() and sequence.isEnabled()
    form.set_values({"model": "mlp", "mode": "inference"})
    assert sequence.isVisible() and not sequence.isEnabled()
    assert "Only with model transformer." in sequence.toolTip()
    assert {name: form.control(name).pos() for name in form.values()} == places


def test_the_essentials_come_first_and_the_rest_by_group_behind_more(qtbot: QtBot) -> None:
    form = form_of(TrainingSpec)
    qtbot.addWidget(form)
    form.show()
    shown = [name for name in form.values() if form.control(name).isVisible()]
    assert shown == TrainingSpec.tiers()[None] and len(shown) <= 7
    form.more.click()
    assert all(form.control(name).isVisible() for name in form.values() if name != "devices")
    titles = [label.text() for label in form.findChildren(QLabel) if label.property("role") == "group"]
    assert titles == ["Data", "Optimizer", "Memory", "Several devices", "Reproducibility"]
    again = form_of(TrainingSpec)
    qtbot.addWidget(again)
    assert again.more.isChecked(), "as it was left"


def test_more_says_what_is_changed_or_wrong_behind_it(qtbot: QtBot) -> None:
    form = form_of(TrainingSpec)
    qtbot.addWidget(form)
    assert form.more.text() == "More"
    form.set_values({"width": 64, "checkpointing": True, "seed": 1})
    assert form.more.text() == "More, 2 changed"
    rate = form.control("learning_rate")
    assert isinstance(rate, QLineEdit)
    rate.setText("much")
    assert form.more.text() == "More: correct Learning rate"


@pytest.mark.parametrize("spec", BUILT_IN)
def test_every_field_is_in_one_tier_and_about_six_are_essential(spec: type[Spec]) -> None:
    tiers = spec.tiers()
    assert sorted(name for names in tiers.values() for name in names) == sorted(spec.model_fields)
    assert 3 <= len(tiers[None]) <= 7


def line_below(form: SpecForm, field: QLineEdit) -> QLabel | None:
    """The line that says what is wrong with ``field``, if one is open."""
    lines = [label for label in form.findChildren(QLabel) if label.property("role") == "error" and label.isVisible()]
    beneath = [line for line in lines if 0 < line.mapTo(form, QPoint()).y() - field.geometry().bottom() < 8]
    return next(iter(beneath), None)


@pytest.fixture
def shown_pipeline(qtbot: QtBot, pipeline: SpecForm) -> SpecForm:
    pipeline.resize(300, 400)
    with qtbot.waitExposed(pipeline):
        pipeline.show()
    return pipeline


def test_what_is_wrong_is_said_in_a_line_below_the_field_which_covers_none(shown_pipeline: SpecForm) -> None:
    rows, columns = shown_pipeline.control("rows"), shown_pipeline.control("columns")
    assert isinstance(rows, QLineEdit)
    rows.clearFocus()
    place = rows.geometry()
    rows.setText("many")
    QApplication.processEvents()
    line = line_below(shown_pipeline, rows)
    assert line is not None and "many" in line.text()
    assert line.height() >= line.sizeHint().height() and line.sizeHint().width() <= rows.width() + 2
    assert rows.geometry() == place and line.geometry().bottom() < columns.geometry().top()
    rows.setText("2")
    assert line_below(shown_pipeline, rows) is None


def test_no_field_moves_while_it_is_typed_in(shown_pipeline: SpecForm) -> None:
    rows, columns = shown_pipeline.control("rows"), shown_pipeline.control("columns")
    assert isinstance(rows, QLineEdit) and isinstance(columns, QLineEdit)
    columns.setFocus()
    columns.setText("")
    QApplication.processEvents()
    place = columns.geometry()
    rows.setText("many")
    QApplication.processEvents()
    assert columns.geometry() == place and rows.property("invalid") is True


def test_a_corrected_field_closes_its_line_at_once_though_the_focus_stays(shown_pipeline: SpecForm) -> None:
    rows, columns = shown_pipeline.control("rows"), shown_pipeline.control("columns")
    assert isinstance(rows, QLineEdit)
    QCursor.setPos(rows.mapToGlobal(rows.rect().center()))
    rows.setFocus()
    QApplication.processEvents()
    places = rows.geometry(), columns.geometry()
    rows.setText("many")
    QApplication.processEvents()
    assert columns.geometry().top() > places[1].top()
    rows.setText("2")
    QApplication.processEvents()
    assert rows.hasFocus() and (rows.geometry(), columns.geometry()) == places


def test_what_the_pointer_is_on_moves_only_once_the_pointer_has_left(shown_pipeline: SpecForm, qtbot: QtBot) -> None:
    rows, columns = shown_pipeline.control("rows"), shown_pipeline.control("columns")
    assert isinstance(rows, QLineEdit)
    rows.setFocus()
    QApplication.processEvents()
    place = columns.geometry()
    rows.setText("many")
    QApplication.processEvents()
    moved = columns.geometry()
    QCursor.setPos(columns.mapToGlobal(columns.rect().center()))
    QTest.mouseMove(columns)
    qtbot.waitUntil(columns.underMouse)
    rows.setText("2")
    QApplication.processEvents()
    assert columns.geometry() == moved and moved.top() > place.top()
    QCursor.setPos(rows.mapToGlobal(rows.rect().center()))
    QTest.mouseMove(rows)
    qtbot.waitUntil(lambda: columns.geometry() == place)


def test_a_value_that_is_longer_than_its_field_shows_its_beginning(qtbot: QtBot) -> None:
    form = form_of(TransferSpec)
    qtbot.addWidget(form)
    form.set_values({"blocks": ",".join(["64KiB"] * 40)})
    blocks = form.control("blocks")
    assert isinstance(blocks, QLineEdit) and blocks.cursorPosition() == 0


def test_a_running_form_is_locked(qtbot: QtBot) -> None:
    form = SpecForm(TrainingSpec)
    qtbot.addWidget(form)
    form.set_locked(True)
    check = form.control("deterministic")
    assert isinstance(check, QCheckBox)
    assert not check.isEnabled()
    form.set_locked(False)
    assert check.isEnabled()


def test_an_empty_optional_field_means_automatic(qtbot: QtBot) -> None:
    form = SpecForm(PressureSpec)
    qtbot.addWidget(form)
    control = form.control("cap")
    assert isinstance(control, QLineEdit)
    control.setText("1GiB")
    assert form.values()["cap"] == "1GiB"
    control.clear()
    spec = form.spec()
    assert isinstance(spec, PressureSpec)
    assert spec.cap is None


def test_a_choice_without_room_for_its_words_shows_those_before_what_explains_them(qtbot: QtBot) -> None:
    choice = ChoiceField()
    qtbot.addWidget(choice)
    choice.addItems(["leak: losses kept with their graphs", "sim:0 (SIMULATED)", "cpu · a processor with a long name"])
    option = QStyleOptionComboBox()
    shown = {}
    for width in (600, 110):
        choice.resize(width, 30)
        for row in range(choice.count()):
            choice.setCurrentIndex(row)
            choice.initStyleOption(option)
            shown[width, row] = option.currentText
    assert [shown[600, row] for row in range(3)] == [choice.itemText(row) for row in range(3)]
    assert [shown[110, row] for row in range(2)] == ["leak", "sim:0"]
    assert shown[110, 2].startswith("cpu") and shown[110, 2].endswith("…")
