"""The user's script predicted in the window, before it runs."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from PySide6.QtWidgets import QLabel, QLineEdit

from gpudash.devices.known_gpus import find
from gpudash.devices.simulated_cards import exact_text
from gpudash.memory.predicting.estimate import Alternative, CardEstimate
from gpudash.session import Answer
from gpudash.session.predicting.estimator import OTHER_PYTHON, Problem
from gpudash.ui.forms import fit_follower
from gpudash.ui.forms.workload_panel import WorkloadPanel
from gpudash.ui.window.main_window import MainWindow
from gpudash.units import GIB
from tests.ui.conftest import OpenWindow, settle
from tests.ui.estimates import SHORT
from tests.ui.fake_session import FakeSession

NO_CUDA = Problem("cuda", "train.py has asked nothing of a GPU in 60 s.", "Allow it more with --time-limit.")


@pytest.fixture
def session() -> FakeSession:
    return FakeSession().feed(5.0)


@pytest.fixture
def window(open_window: OpenWindow, session: FakeSession, tmp_path: Path) -> MainWindow:
    """My script chosen, for a card of 8 GiB."""
    script = tmp_path / "train.py"
    script.write_text("import torch\n")
    window = open_window(session, size=(1280, 800))
    panel = window.workspace.dashboard.panel
    panel.take_script(script)
    panel.script.simulate.set_card("8 GiB")
    settle(window)
    return window


def test_it_is_predicted_when_asked_for_and_can_be_stopped(window: MainWindow, session: FakeSession) -> None:
    panel = window.workspace.dashboard.panel
    shown = panel.prediction
    assert shown.button.text() == "Predict" and not panel.fit.isVisible() and session.scripts.begun == []
    shown.button.click()
    settle(window)
    (request,) = session.scripts.begun
    assert request == panel.script.request() and "Predicting train.py" in shown.text.text()
    assert shown.button.text() == "Stop predicting"
    shown.button.click()
    settle(window)
    assert session.scripts.stopped and shown.button.text() == "Predict"


def test_the_answer_is_a_verdict_and_one_for_each_card(window: MainWindow, session: FakeSession) -> None:
    dashboard = window.workspace.dashboard
    card = find("rtx4090")
    assert card is not None
    there = CardEstimate(
        device="sim:0", key=exact_text(card), free_bytes=2**34, peak_allocated_bytes=1, fits=True, spare_bytes=2**30
    )
    session.scripts.answer = Answer(1, SHORT, final=True, cards={there.key: there})
    settle(window)
    assert dashboard.panel.fit.isVisible() and "does not fit" in dashboard.panel.fit.headline
    assert dashboard.panel.prediction.button.text() == "Predict again"
    chips = {chip.content.card: chip.content.text for chip in dashboard.chooser.shown}
    assert chips[card].standing == "fits"
    dashboard.panel.script.file.setText("gone.py")
    settle(window)
    assert not dashboard.panel.fit.isVisible() and not dashboard.panel.prediction.button.isEnabled()
    dashboard.panel.workload.setCurrentIndex(dashboard.panel.workload.findData("training"))
    settle(window)
    assert not dashboard.panel.prediction.isVisible() and dashboard.panel.fit.isVisible()


def test_why_there_is_no_answer_is_said_where_it_was_asked_for(window: MainWindow, session: FakeSession) -> None:
    shown = window.workspace.dashboard.panel.prediction
    session.scripts.answer = Answer(1, problem=NO_CUDA, final=True)
    settle(window)
    assert shown.text.text() == f"{NO_CUDA.message} {NO_CUDA.remedy}" and shown.button.text() == "Predict"
    assert not window.workspace.dashboard.panel.fit.isVisible()
    session.scripts.answer = None
    session.scripts.refusal = "A script is predicted on a GPU, and there is none here; choose a card above."
    shown.button.click()
    settle(window)
    assert shown.text.text() == session.scripts.refusal


def test_the_script_runs_with_the_largest_batch_that_fits_from_a_copy(window: MainWindow, session: FakeSession) -> None:
    panel = window.workspace.dashboard.panel
    edit = Alternative("train.py:1: a batch of 8 in place of 64", fits=True, patch="--- train.py\n+++ train.py\n")
    session.scripts.answer = Answer(1, replace(SHORT, alternatives=(edit,), largest_batch_size=8), final=True)
    settle(window)
    assert panel.fit.figures.endswith("largest batch that fits: 8")
    panel.fit.open_details()
    settle(window)
    (row,) = panel.fit.alternatives
    assert row.button is not None
    request = panel.script.request()
    row.button.click()
    assert session.requested == [("watch", replace(request, edit=edit.patch, find_need=False))]


def test_while_a_change_of_the_script_runs_its_own_need_stands_in_place_of_the_script_s(
    window: MainWindow, session: FakeSession
) -> None:
    fit = window.workspace.dashboard.panel.fit
    edit = Alternative("batch 6", fits=True, patch="--- train.py\n+++ train.py\n", needed_bytes=6 * GIB)
    session.scripts.answer = Answer(1, replace(SHORT, alternatives=(edit,), largest_batch_size=6), final=True)
    settle(window)
    unchanged = fit.headline
    assert "does not fit" in unchanged
    fit.open_details()
    settle(window)
    (row,) = fit.alternatives
    assert row.button is not None
    row.button.click()
    settle(window)
    assert (fit.headline, fit.figures) == ("with batch 6", "needs 6.00 GiB of 8.00 GiB free")
    session.end()
    settle(window)
    assert fit.headline == unchanged


def test_a_python_without_torch_is_answered_with_the_one_that_has_it(
    window: MainWindow, session: FakeSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    panel = window.workspace.dashboard.panel
    shown = panel.prediction
    without = Problem("unavailable", "/usr/bin/python3 has no torch, which train.py imports.", OTHER_PYTHON)
    monkeypatch.setattr(fit_follower, "python_with_torch", lambda folder, besides: folder / ".venv/bin/python")
    session.scripts.answer = Answer(1, problem=without, final=True)
    settle(window)
    assert shown.text.text() == without.message, "there is no command in the window to begin with another"
    assert shown.use_python.isVisible() and shown.use_python.text() == "Use .venv/bin/python"
    python = tmp_path / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    session.scripts.answer = None
    shown.use_python.click()
    settle(window)
    assert panel.script.script().python == str(python) and session.scripts.begun[-1].command[0] == str(python)
    assert not shown.use_python.isVisible()
    elsewhere = tmp_path / "other" / "train.py"
    elsewhere.parent.mkdir()
    elsewhere.write_text("import torch\n")
    panel.take_script(elsewhere)
    assert panel.script.script().python == ""
    panel.take_script(tmp_path / "train.py", "--batch 4")
    assert panel.script.script().python == str(python), "it is remembered for the scripts of its folder"
    assert panel.script.script().arguments == "--batch 4"


def test_where_no_python_has_torch_the_field_for_one_is_named(
    window: MainWindow, session: FakeSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = window.workspace.dashboard.panel.prediction
    without = Problem("unavailable", "python3 has no torch, which train.py imports.", OTHER_PYTHON)
    monkeypatch.setattr(fit_follower, "python_with_torch", lambda folder, besides: None)
    session.scripts.answer = Answer(1, problem=without, final=True)
    settle(window)
    assert shown.text.text().endswith("under More > Python.") and not shown.use_python.isVisible()


def test_the_button_stays_where_it_is_while_what_is_said_changes(window: MainWindow, session: FakeSession) -> None:
    shown = window.workspace.dashboard.panel.prediction
    before = shown.button.mapTo(window, shown.button.rect().topLeft())
    session.scripts.answer = Answer(1, problem=NO_CUDA, final=True)
    settle(window)
    assert shown.button.mapTo(window, shown.button.rect().topLeft()) == before
    session.scripts.answer = None
    shown.button.click()
    settle(window)
    assert shown.button.mapTo(window, shown.button.rect().topLeft()) == before


def test_what_was_trained_before_does_not_stand_beside_a_script_that_is_asked_about(
    window: MainWindow, session: FakeSession
) -> None:
    panel = window.workspace.dashboard.panel
    panel.workload.setCurrentIndex(panel.workload.findData("training"))
    session.start()
    session.train(2)
    session.end()
    settle(window)
    assert "step 2" in panel.progress.label.text()
    panel.workload.setCurrentIndex(panel.workload.findData("watch"))
    settle(window)
    assert panel.progress.label.text() == "Ready" and not panel.progress.bar.isVisible()


def test_below_the_form_it_says_ready_only_where_a_start_is_advisable(window: MainWindow, session: FakeSession) -> None:
    panel = window.workspace.dashboard.panel
    panel.workload.setCurrentIndex(panel.workload.findData("training"))
    settle(window)
    batch = panel.form.control("batch")
    assert isinstance(batch, QLineEdit)
    assert panel.progress.label.text() == "Ready"
    batch.setText("")
    settle(window)
    assert panel.progress.label.text() == "Correct Batch first."
    assert panel.form.error_text("batch") == "Give a whole number"
    batch.setText("8")
    settle(window)
    session.estimates.fail("config.json is not valid JSON: it ends at line 2.")
    settle(window)
    assert panel.progress.label.text() == "Ready to start anyway" and panel.button.property("role") == ""


def caution(panel: WorkloadPanel) -> str:
    texts = [label.text() for label in panel.findChildren(QLabel) if label.isVisible()]
    return next((text for text in texts if text.startswith("Stop takes")), "")


def test_how_long_stopping_may_take_is_said_while_there_is_something_to_stop(
    window: MainWindow, session: FakeSession
) -> None:
    panel = window.workspace.dashboard.panel
    panel.workload.setCurrentIndex(panel.workload.findData("training"))
    panel.change_fields({"width": 1024, "depth": 24, "batch": 64})
    settle(window)
    assert caution(panel) == ""
    session.settings = session.settings.model_copy(update={"isolate": False})
    session.start()
    settle(window)
    assert caution(panel).startswith("Stop takes effect after the current operation, up to ")


def test_a_run_in_its_own_process_does_not_wait_for_its_operation_when_stopped(
    window: MainWindow, session: FakeSession
) -> None:
    panel = window.workspace.dashboard.panel
    panel.workload.setCurrentIndex(panel.workload.findData("training"))
    panel.change_fields({"width": 1024, "depth": 24, "batch": 64})
    assert session.settings.isolate
    session.start()
    settle(window)
    assert panel.is_on() and caution(panel) == ""
