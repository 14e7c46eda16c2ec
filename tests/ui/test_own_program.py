"""The user's own program in the window: the form, starting, watching, stopping, and how it ends."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QLabel, QMessageBox, QWidget
from pytestqt.qtbot import QtBot

from gpudash.session import Replay
from gpudash.session.watching.output.log import OutputLine
from gpudash.session.watching.request import WatchRequest
from gpudash.telemetry.recording.recorder import Recorder
from gpudash.telemetry.records import Note, Output, RunEnd, RunStarted, StepFinished, Topic, Warning
from gpudash.ui.dashboard.cards import Card
from gpudash.ui.forms.script_form import Script, ScriptForm
from gpudash.ui.widgets.file_dialog import FileDialog
from gpudash.ui.widgets.remembered import recall
from gpudash.ui.window.main_window import MainWindow
from gpudash.units import GIB
from tests.ui.conftest import OpenWindow, settle
from tests.ui.fake_document import front, snapshot, with_fakes
from tests.ui.fake_session import FakeSession, gpu
from tests.ui.words import complaints, label
from tests.unit.telemetry.run_ends import RAN_OUT

Key = Qt.Key


@pytest.fixture
def session() -> FakeSession:
    return FakeSession([gpu(0)]).feed(5)


@pytest.fixture
def window(open_window: OpenWindow, session: FakeSession) -> MainWindow:
    return with_fakes(open_window(session))


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text("print(1)")
    return path


def bubbles(form: QWidget) -> list[str]:
    """What is said at the fields for everybody to see."""
    labels = form.findChildren(QLabel)
    shown = [label for label in labels if label.property("role") == "error" and label.isVisible()]
    return [label.text().replace("\n", " ") for label in shown]


def choose(window: MainWindow, script: Path | None = None) -> ScriptForm:
    """Choose My script, and fill in its file."""
    window.workspace.dashboard.panel.workload.setCurrentIndex(
        window.workspace.dashboard.panel.workload.findData("watch")
    )
    if script is not None:
        window.workspace.dashboard.panel.script.file.setText(str(script))
    settle(window)
    return window.workspace.dashboard.panel.script


def asked(session: FakeSession) -> WatchRequest:
    kind, request = session.requested[-1]
    assert kind == "watch" and isinstance(request, WatchRequest)
    return request


def test_my_script_is_a_workload_of_its_own_kind(window: MainWindow) -> None:
    form = choose(window)
    assert window.workspace.dashboard.panel.workload.currentText() == "My script"
    assert (
        form.isVisible()
        and not window.workspace.dashboard.panel.device.isVisible()
        and not window.workspace.dashboard.panel.fit.isVisible()
    )
    assert window.workspace.dashboard.panel.prediction.isVisible()
    assert window.workspace.dashboard.panel.spec() is None
    window.workspace.dashboard.panel.workload.setCurrentIndex(
        window.workspace.dashboard.panel.workload.findData("training")
    )
    assert (
        window.workspace.dashboard.panel.device.isVisible()
        and window.workspace.dashboard.panel.fit.isVisible()
        and not form.isVisible()
    )


def test_start_waits_for_a_script_and_says_so(window: MainWindow, script: Path) -> None:
    form = choose(window)
    assert (
        not window.workspace.dashboard.panel.button.isEnabled()
        and window.workspace.dashboard.panel.button.toolTip() == "Choose the script to run."
    )
    start = window.menus.actions["run.start"]
    assert not start.isEnabled() and "Choose the script" in start.toolTip()
    assert bubbles(form) == []
    form.file.setText(str(script))
    settle(window)
    assert window.workspace.dashboard.panel.button.isEnabled() and start.isEnabled()


def test_a_wrong_value_is_told_at_its_field(window: MainWindow, script: Path) -> None:
    form = choose(window, script)
    form.arguments.setText("'open")
    assert form.error_text("arguments") == "A quote is opened and not closed."
    assert bubbles(form) == [form.error_text("arguments")] and form.arguments.property("invalid") is True
    assert not window.workspace.dashboard.panel.button.isEnabled()
    form.arguments.setText("")
    assert bubbles(form) == [] and window.workspace.dashboard.panel.button.isEnabled()


@pytest.mark.process
@pytest.mark.parametrize(
    ("name", "content", "is_script"),
    [
        ("notes.txt", b"buy milk\n", False),
        ("train", b"#!/usr/bin/env python3\nprint(1)\n", True),
        ("train.sh", b"#!/bin/sh\npython train.py\n", False),
        ("train", b"\x7fELF\x02\x01\x00", False),
        ("TRAIN.PY", b"print(1)\n", True),
    ],
)
def test_a_file_that_is_no_python_script_is_told_and_not_said_to_be_ready(
    window: MainWindow, tmp_path: Path, name: str, content: bytes, is_script: bool
) -> None:
    (tmp_path / name).write_bytes(content)
    form = choose(window, tmp_path / name)
    panel = window.workspace.dashboard.panel
    assert form.ready is panel.button.isEnabled() is is_script
    if is_script:
        assert form.error_text("file") == "" and panel.progress.label.text() == "Ready"
        return
    assert form.error_text("file") == f"{name} is not a Python script; name one (.py)."
    assert panel.progress.label.text() == "Correct Script first."


def test_f5_starts_what_the_form_holds_and_remembers_it(window: MainWindow, session: FakeSession, script: Path) -> None:
    form = choose(window, script)
    form.arguments.setText("--steps 5")
    form.environment.setPlainText("A=1\nB=2")
    form.python.setText(sys.executable)
    form.simulate.set_card("8 GiB")
    form.memory_history.setChecked(False)
    QTest.keyClick(window, Key.Key_F5)
    settle(window)
    request = asked(session)
    assert request.command == (sys.executable, str(script), "--steps", "5")
    assert (request.folder, request.environment) == (script.parent, {"A": "1", "B": "2"})
    assert (request.simulate, request.memory_history) == ((8 * GIB,), False)
    assert Script.from_json(recall("script")) == form.script()
    assert not form.file.isEnabled() and not form.environment.isEnabled()


def test_the_last_values_are_there_at_the_next_start(window: MainWindow, open_window: OpenWindow, script: Path) -> None:
    form = choose(window, script)
    form.simulate.set_card("8 GiB")
    QTest.keyClick(window, Key.Key_F5)
    again = open_window(FakeSession()).workspace.dashboard.panel.script
    assert again.script() == form.script() and again.simulate.text == "8.00 GiB, simulated"


def test_a_program_that_cannot_be_started_is_told_in_a_sentence(
    window: MainWindow, session: FakeSession, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts: list[str] = []
    monkeypatch.setattr(QMessageBox, "exec", lambda box: texts.append(box.text()))
    session.refusal = "There is no program python3 on PATH; check its name."
    choose(window, script)
    QTest.keyClick(window, Key.Key_F5)
    assert texts == [session.refusal] and "Start run" in window.workspace.dashboard.panel.button.text()


def test_while_it_runs_its_output_its_steps_and_its_device_are_shown(
    window: MainWindow, session: FakeSession, script: Path
) -> None:
    choose(window, script)
    window.workspace.dashboard.panel.button.click()
    session.output.add([OutputLine("stdout", "epoch 1")])
    session.apply(StepFinished(time_s=5.0, run_id=1, step=1200, steps=0, seconds=0.1, loss=2.5))
    settle(window)
    assert (
        window.workspace.dashboard.tabs.output_in_front
        and window.workspace.dashboard.tabs.output.text.toPlainText() == "epoch 1"
    )
    assert window.workspace.dashboard.panel.progress.label.text() == "Running · step 1\u202f200\nloss 2.500"
    assert window.workspace.dashboard.selected == "host"
    assert complaints(window) == []


def test_the_device_of_the_program_is_shown_once_it_is_there(window: MainWindow, session: FakeSession) -> None:
    window.workspace.dashboard.select_device("host")
    session.watched("cuda:0")
    settle(window)
    assert window.workspace.dashboard.selected == session.gpus[0].uuid


def test_a_program_that_ran_already_is_said_to_print_elsewhere(window: MainWindow, session: FakeSession) -> None:
    output = window.workspace.dashboard.tabs.output.text
    for spec, told in (
        ({"pid": 4711}, "what it prints stays where it was started"),
        ({"command": []}, "The program has printed nothing yet."),
    ):
        session.watched("cpu", spec)
        settle(window)
        assert told in output.placeholderText() and not output.toPlainText()


def turn_to(session: FakeSession, window: MainWindow, device: str) -> str:
    """The device that is shown once the program has turned to ``device``."""
    session.apply(Note(time_s=6.0, run_id=1, topic=Topic.DEVICE, text="It does.", details={"device": device}))
    settle(window)
    return window.workspace.dashboard.selected


def test_the_device_that_the_program_turns_to_is_shown_unless_another_was_chosen(
    window: MainWindow, session: FakeSession
) -> None:
    session.watched("cpu")
    settle(window)
    assert window.workspace.dashboard.selected == "host"
    assert turn_to(session, window, "cuda:0") == session.gpus[0].uuid
    window.workspace.dashboard.select_device("host")
    assert turn_to(session, window, "cuda:0") == "host"


def pressed_until(window: MainWindow, qtbot: QtBot, holds: Callable[[], bool]) -> None:
    """Press F5 until something holds: the second half of a double click does not count."""

    def pressed() -> bool:
        QTest.keyClick(window, Key.Key_F5)
        return holds()

    qtbot.waitUntil(pressed, timeout=20_000)


def test_stop_sends_one_signal_a_press_and_says_which_comes_next(
    window: MainWindow, session: FakeSession, script: Path, qtbot: QtBot
) -> None:
    choose(window, script)
    panel = window.workspace.dashboard.panel
    panel.button.click()
    settle(window)
    for _ in range(2):
        panel.button.click()
    assert [one.name for one in session.signals] == ["SIGINT"], "the label has changed below the pointer"
    assert panel.button.text() == "■  Terminate   F5" and panel.button.isEnabled()
    assert panel.progress.label.text() == (
        "SIGINT sent to train.py 1 s ago; it may take as long as it needs.\nTerminate sends SIGTERM, then Kill SIGKILL."
    )
    assert window.menus.actions["run.start"].text() == "Terminate Program"
    assert not window.menus.actions["run.start"].autoRepeat()
    pressed_until(window, qtbot, lambda: panel.button.text() == "■  Kill   F5")
    assert panel.progress.label.text().endswith("\nKill sends SIGKILL: what it has not saved is lost.")
    pressed_until(window, qtbot, lambda: len(session.signals) == 3)
    assert [(one.name, one.when) for one in session.signals] == [
        ("SIGINT", "after Stop was pressed in the window"),
        ("SIGTERM", "after Terminate was pressed in the window"),
        ("SIGKILL", "after Kill was pressed in the window"),
    ]
    assert panel.progress.label.text().endswith("; the system ends it as soon as it can.")
    stop = {"text": "Ended by SIGKILL, sent by gpudash after Kill was pressed in the window.", "signals": []}
    session.end(RunEnd(time_s=6.0, run_id=1, status="cancelled", seconds=1.0, steps=3, result={"stop": stop}))
    settle(window)
    assert panel.button.text().startswith("▶")
    assert panel.progress.label.text().startswith("Stopped") and panel.progress.label.text().endswith(stop["text"])
    window.workspace.dashboard.show_result()
    assert ["end", stop["text"]] in [list(row) for row in window.workspace.dashboard.result.rows.model.rows]


def test_the_strip_s_stop_interrupts_a_program_and_goes_no_further(window: MainWindow, session: FakeSession) -> None:
    session.watched("cpu")
    settle(window)
    for _ in range(3):
        window.workspace.action.emit("stop", None)
    assert [one.name for one in session.signals] == ["SIGINT"]


def test_a_deadline_is_said_while_gpudash_is_being_ended(window: MainWindow, session: FakeSession) -> None:
    session.watched("cpu")
    session.stop_run("after Stop was pressed in the window", shutdown=True)
    settle(window)
    assert window.workspace.dashboard.panel.progress.label.text().endswith("ago. SIGTERM follows in 10 s.")


def test_what_grows_is_named_and_an_out_of_memory_leads_to_its_report(
    window: MainWindow, session: FakeSession, tmp_path: Path
) -> None:
    session.watched("cuda:0")
    grows = "train.py:12 keeps 6 MiB a step; memory fills in 40 s."
    session.apply(Warning(time_s=5.0, level="forecast", device=session.gpus[0].uuid, text=grows, cause="train.py:12"))
    settle(window)
    assert grows in window.workspace.dashboard.banner.accessibleName()
    report = snapshot(tmp_path / "2026-11-21-101500-train", "snapshot.pickle").parent
    session.end(out_of_memory(report))
    settle(window)
    assert window.workspace.dashboard.panel.progress.label.text().startswith("Out of memory")
    button = window.workspace.dashboard.banner._buttons["open_report"]
    assert button.isVisible() and button.text() == "Open report"
    assert complaints(window) == []
    button.click()
    assert front(window).path == report / "snapshot.pickle"


def test_a_handled_out_of_memory_offers_its_report_while_the_program_goes_on(
    window: MainWindow, session: FakeSession, tmp_path: Path
) -> None:
    report = snapshot(tmp_path / "report", "snapshot.pickle").parent
    session.watched("cuda:0")
    session.apply(Note(time_s=5.0, run_id=1, topic="report", text="…", details={"folder": str(report)}))
    settle(window)
    assert "the report says what filled it" in window.workspace.dashboard.banner.accessibleName()
    window.workspace.dashboard.banner.action.emit("open_report")
    assert front(window).path == report / "snapshot.pickle"


def test_a_report_that_is_gone_is_told(window: MainWindow, session: FakeSession, tmp_path: Path) -> None:
    session.watched("cuda:0")
    session.end(out_of_memory(tmp_path / "gone"))
    settle(window)
    window.workspace.dashboard.banner._buttons["open_report"].click()
    assert window.workspace.notice.text == f"There is no file {tmp_path / 'gone'}."


def out_of_memory(report: Path) -> RunEnd:
    return replace(
        RAN_OUT,
        time_s=6.0,
        error="cuda",
        message="train.py ran out of memory on cuda:0.",
        remedy="The report says what filled the memory.",
        result={"report": str(report)},
    )


def test_a_program_without_a_report_offers_none(window: MainWindow, session: FakeSession) -> None:
    session.watched("cuda:0")
    session.end(session.failure())
    settle(window)
    assert (
        window.workspace.dashboard.banner.isVisible()
        and not window.workspace.dashboard.banner._buttons["open_report"].isVisible()
    )


@pytest.mark.process
def test_a_script_whose_python_has_no_torch_is_run_by_one_that_has_at_a_click(
    window: MainWindow, session: FakeSession, script: Path
) -> None:
    choose(window, script)
    window.workspace.dashboard.panel.toggle()
    session.watched("cpu", spec=asked(session).spec())
    session.end(replace(session.failure(), result={"python_with_torch": sys.executable}))
    settle(window)
    panel = window.workspace.dashboard.panel
    panel.workload.setCurrentIndex(panel.workload.findData("matmul"))
    window.workspace.dashboard.banner._buttons["use_python"].click()
    settle(window)
    assert asked(session).command == (sys.executable, str(script))
    session.end(session.failure())
    settle(window)
    assert not window.workspace.dashboard.banner._buttons["use_python"].isVisible()


def test_a_script_that_misses_cuda_is_run_on_a_simulated_gpu_at_a_click(
    window: MainWindow, session: FakeSession, script: Path
) -> None:
    choose(window, script)
    window.workspace.dashboard.panel.toggle()
    session.watched("cpu", spec=asked(session).spec())
    session.end(replace(session.failure(), result={"misses_cuda": True}))
    settle(window)
    window.workspace.dashboard.banner._buttons["simulate"].click()
    settle(window)
    assert asked(session).as_cuda and asked(session).simulate == (24 * GIB,)
    session.end(session.failure())
    settle(window)
    assert not window.workspace.dashboard.banner._buttons["simulate"].isVisible()


def test_a_pattern_of_ones_own_goes_with_the_script_and_comes_back_with_the_run(
    window: MainWindow, session: FakeSession, script: Path
) -> None:
    form = choose(window, script)
    form.metric_pattern.setText("(?P<loss>")
    assert not form.ready and "no regular expression" in form.error_text("metric_pattern")
    form.metric_pattern.setText(r"L=(?P<loss>\S+)")
    window.workspace.dashboard.panel.toggle()
    assert asked(session).metric_pattern == r"L=(?P<loss>\S+)"
    assert Script.from_spec(asked(session).spec()).metric_pattern == r"L=(?P<loss>\S+)"


def test_a_snapshot_can_be_asked_for_while_a_program_is_watched(window: MainWindow, session: FakeSession) -> None:
    save = window.menus.actions["run.save_snapshot"]
    assert not save.isEnabled()
    session.watched("cuda:0")
    settle(window)
    assert save.isEnabled()
    save.trigger()
    assert session.requested[-1] == ("save_snapshot",)
    assert "opens when it has been written" in window.workspace.dashboard.status_line._left.text()
    session.requested.clear()
    window.workspace.dashboard.panel.snapshot.click()
    assert session.requested == [("save_snapshot",)]
    session.end(RunEnd(time_s=6.0, run_id=1, status="cancelled", seconds=1.0, steps=3, result={}))
    settle(window)
    assert not window.workspace.dashboard.panel.snapshot.isVisible()


def test_a_process_that_was_entered_can_be_asked_for_a_snapshot(window: MainWindow, session: FakeSession) -> None:
    session.watched("cuda:0", {"pid": 4711, "command": ["python", "train.py"]})
    settle(window)
    assert not window.workspace.dashboard.panel.snapshot.isVisible()
    note = Note(time_s=session.now_s, run_id=1, topic="program", text="inside", details={"way": "door"})
    session.apply(note)
    settle(window)
    assert window.workspace.dashboard.panel.snapshot.isVisible()
    assert window.menus.actions["run.save_snapshot"].isEnabled()


def test_a_program_that_holds_no_gpu_memory_says_so_when_a_snapshot_is_asked_for(
    window: MainWindow, session: FakeSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts: list[str] = []
    monkeypatch.setattr(QMessageBox, "exec", lambda box: texts.append(box.text()))
    session.watched("cpu")
    settle(window)
    session.refusal = "The program holds no memory of a GPU so far."
    window.menus.actions["run.save_snapshot"].trigger()
    assert texts == [session.refusal]


def test_a_process_watched_from_outside_is_looked_away_from_and_asked_nothing(
    window: MainWindow, session: FakeSession
) -> None:
    choose(window)
    session.watched("cpu", {"pid": 4711, "command": ["python", "serve.py"]})
    settle(window)
    assert window.workspace.dashboard.panel.button.text() == "■  Stop watching   F5"
    assert "watched from outside" in window.menus.actions["run.save_snapshot"].toolTip()
    assert not window.menus.actions["run.save_snapshot"].isEnabled()
    window.workspace.dashboard.panel.button.click()
    assert session.requested[-1] == ("stop",)


def test_while_attached_the_panel_shows_the_process_and_no_form(window: MainWindow, session: FakeSession) -> None:
    panel = window.workspace.dashboard.panel
    before = {text.text for text in label(panel)}
    assert "Steps" in before and "Copy as Python" in before
    session.watched("cpu", {"pid": 4711, "command": ["/usr/bin/python3", "/home/mia/serve.py", "--port", "80"]})
    settle(window)
    shown = {text.text for text in label(panel)}
    assert panel.attached.isVisible() and "ATTACHED TO" in shown
    assert not shown & {"WORKLOAD", "Steps", "Device", "Copy as Python", "Details"}
    assert panel.attached.text.splitlines() == [
        "Program serve.py",
        "Process 4711",
        "Command /usr/bin/python3 /home/mia/serve.py --port 80",
        "Looking for a way to see inside…",
    ]
    note = Note(time_s=session.now_s, run_id=1, topic="program", text="It is seen from inside.", details={"way": "gdb"})
    session.apply(note)
    panel.set_devices(session.devices()[:1], "cpu")
    settle(window)
    assert panel.attached.text.endswith("It is seen from inside.") and complaints(window) == []
    session.end(RunEnd(time_s=6.0, run_id=1, status="cancelled", seconds=1.0, steps=3, result={}))
    settle(window)
    assert {text.text for text in label(panel)} >= {"WORKLOAD", "Steps", "Copy as Python"}
    assert panel.progress.label.text().splitlines()[0] == "No longer watched; it keeps running · step 3"
    assert panel.attached.isHidden()


def test_while_a_program_is_watched_its_memory_bears_its_name(window: MainWindow, session: FakeSession) -> None:
    dashboard = window.workspace.dashboard
    dashboard.select_device("host")

    def told() -> list[str]:
        session.feed(0.5)
        settle(window)
        curves = [curve for plot in dashboard.wanted_plots() for curve in plot.curves if "process_" in curve.key[1]]
        card = next(card for card in dashboard.cards.findChildren(Card) if card.key == "host")
        return [*(curve.name for curve in curves), card.toolTip().splitlines()[1].split(":")[0]]

    assert told() == ["this process", "this process"]
    session.watched("cpu", {"pid": 4711, "command": ["/usr/bin/python3", "/home/mia/serve.py", "--port", "80"]})
    assert told() == ["gpudash, then serve.py", "serve.py"]
    session.end(RunEnd(time_s=session.now_s, run_id=1, status="cancelled", seconds=1.0, steps=3, result={}))
    session.feed(5)
    assert told() == ["serve.py, else gpudash", "this process"]


def test_find_in_output_opens_the_pane_and_takes_the_words(window: MainWindow, session: FakeSession) -> None:
    window.workspace.dashboard.tabs.set_collapsed(True)
    QTest.keyClick(window, Key.Key_F, Qt.KeyboardModifier.ControlModifier)
    assert window.workspace.dashboard.tabs.output_in_front and not window.workspace.dashboard.tabs.collapsed
    assert window.workspace.dashboard.tabs.output.search.hasFocus()


def test_copy_values_copies_the_output_that_has_the_focus(window: MainWindow, session: FakeSession) -> None:
    session.watched()
    session.output.add([OutputLine("stdout", "hello")])
    settle(window)
    window.workspace.dashboard.tabs.output.text.setFocus()
    window.menus.actions["edit.copy_values"].trigger()
    assert window.workspace.dashboard.status_line._left.text() == "Copied 1 line"


def test_files_and_folders_are_browsed_for(
    window: MainWindow, script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    form = choose(window)
    monkeypatch.setattr(FileDialog, "ask_to_open", lambda *_args: str(script))
    monkeypatch.setattr(FileDialog, "ask_for_folder", lambda *_args: str(tmp_path))
    for button in form._browse:
        assert button.accessibleName().startswith("Browse for ") and button.toolTip()
        button.click()
    assert (form.file.text(), form.folder.text(), form.python.text()) == (str(script), str(tmp_path), str(script))
    monkeypatch.setattr(FileDialog, "ask_to_open", lambda *_args: "")
    form._browse[0].click()
    assert form.file.text() == str(script)


def test_another_script_does_not_inherit_the_arguments_of_the_last(window: MainWindow, script: Path) -> None:
    form = choose(window, script)
    form.arguments.setText("-v")
    form.simulate.set_card("8 GiB")
    window.workspace.dashboard.panel.take_script(script.with_name("other.py"))
    assert form.script() == Script(str(script.with_name("other.py")), simulate="8 GiB")


def test_what_is_wrong_or_changed_under_more_is_said_at_its_button(window: MainWindow) -> None:
    form = choose(window)
    assert form.file.isVisible() and not form.environment.isVisible() and form.more.text() == "More"
    form.environment.setPlainText("A=1")
    assert form.more.text() == "More, 1 changed"
    form.environment.setPlainText("A")
    assert form.more.text() == "More: correct Environment"
    form.more.click()
    settle(window)
    assert form.environment.isVisible()


def test_every_control_of_the_form_is_named_and_explained(window: MainWindow) -> None:
    form = choose(window)
    for name in ("file", "arguments", "folder", "environment", "python", "simulate", "memory_history"):
        control = getattr(form, name)
        assert isinstance(control, QWidget) and control.accessibleName() and len(control.toolTip()) > 20
    assert "10 %" in form.memory_history.toolTip()


@pytest.mark.parametrize("theme", ["dark", "light"])
@pytest.mark.parametrize("size", [(1280, 800), (2560, 1440)])
def test_no_word_of_the_form_is_cut(
    open_window: OpenWindow, session: FakeSession, size: tuple[int, int], theme: str
) -> None:
    window = open_window(session, size=size, theme=theme)
    form = choose(window)
    form.more.click()
    for name in ("file", "arguments", "folder", "python"):
        getattr(form, name).setText("'/nowhere")
    form.environment.setPlainText("B")
    form.simulate.set_card("1 apple")
    settle(window)
    for name in ("file", "arguments", "folder", "environment", "python", "simulate"):
        field = getattr(form, name)
        field.setFocus()
        settle(window)
        assert field.property("invalid") is True and form.error_text(name) in bubbles(form)
        assert complaints(window) == []


def test_a_recording_of_a_program_shows_what_was_run_and_what_it_printed(
    open_window: OpenWindow, tmp_path: Path
) -> None:
    recorder = Recorder(tmp_path / "run.gpudash", meta={})
    spec = {"command": ["python", "gone.py", "-v"], "folder": "/elsewhere", "memory_history": True}
    for record in (
        RunStarted(time_s=1.0, run_id=1, workload="watch", device="cpu", spec=spec),
        Output(time_s=2.0, run_id=1, stream="stdout", lines=("hello",)),
        Output(time_s=2.5, run_id=1, stream="stderr", lines=("oh",)),
        RunEnd(time_s=3.0, run_id=1, status="finished", seconds=2.0, steps=0, result={"exit_code": 0}),
    ):
        recorder.add(record)
    recorder.close("closed")
    window = open_window(Replay(tmp_path / "run.gpudash"))
    window.workspace.dashboard.show_run()
    settle(window)
    form = window.workspace.dashboard.panel.script
    assert form.isVisible() and not form.file.isEnabled() and not window.workspace.dashboard.panel.button.isVisible()
    assert (form.file.text(), form.arguments.text(), form.folder.text()) == ("gone.py", "-v", "/elsewhere")
    assert bubbles(form) == []
    assert (
        window.workspace.dashboard.tabs.output_in_front
        and window.workspace.dashboard.tabs.output.text.toPlainText() == "hello\noh"
    )
    assert complaints(window) == []


@pytest.mark.parametrize("apart", [True, False])
def test_runs_have_a_process_of_their_own_unless_the_preferences_say_no(open_window: OpenWindow, apart: bool) -> None:
    session = FakeSession()
    session.settings.isolate = apart
    window = open_window(session)
    window.workspace.start_run()
    assert session.requested[-1] == ("start", "training", "cpu") and session.isolated is apart


def test_where_the_output_is_not_in_sight_its_newest_line_is(open_window: OpenWindow, session: FakeSession) -> None:
    window = open_window(session, size=(1280, 800))
    session.watched("cpu")
    settle(window)
    newest = window.workspace.dashboard.tabs.newest
    assert window.workspace.dashboard.tabs.collapsed and newest.text() == ""
    session.output.add([OutputLine("stdout", "epoch 1")])
    settle(window)
    assert newest.text() == "epoch 1" and complaints(window) == []
    session.output.add([OutputLine("stderr", "  warning: " + "x" * 500)])
    settle(window)
    assert newest.isVisible() and newest.text().startswith("warning: xxx") and newest.text().endswith("…")
    assert newest.fontMetrics().horizontalAdvance(newest.text()) <= newest.width()
    assert newest.toolTip().startswith("The program's newest line, on stderr:   warning: xxx")
    window.workspace.dashboard.tabs.set_collapsed(False)
    settle(window)
    assert newest.text() == "" and "warning" in window.workspace.dashboard.tabs.output.text.toPlainText()


def test_the_newest_line_goes_when_the_form_asks_for_something_else(
    open_window: OpenWindow, session: FakeSession, tmp_path: Path
) -> None:
    window = open_window(session, size=(1280, 800))
    dashboard = window.workspace.dashboard
    script, another = tmp_path / "train.py", tmp_path / "other.py"
    for file in (script, another):
        file.write_text("")
    dashboard.panel.take_script(script)
    session.watched("cpu")
    session.output.add([OutputLine("stdout", "epoch 1")])
    session.end()
    settle(window)
    dashboard.panel.script.arguments.setText("--epochs 2")
    settle(window)
    assert dashboard.tabs.newest.text() == "epoch 1"
    dashboard.panel.take_script(another)
    settle(window)
    assert dashboard.tabs.newest.text() == ""


@pytest.mark.parametrize("chosen", [False, True])
def test_the_output_of_a_program_makes_room_again_for_a_workload_unless_it_was_chosen(
    window: MainWindow, session: FakeSession, chosen: bool
) -> None:
    tabs = window.workspace.dashboard.tabs
    session.watched("cpu")
    session.output.add([OutputLine("stderr", "RuntimeError: of yesterday")])
    settle(window)
    assert tabs.output_in_front
    session.end(RunEnd(time_s=6.0, run_id=1, status="finished", seconds=1.0, steps=3, result={}))
    if chosen:
        output = tabs.bar.currentIndex()
        for place in (0, output):
            QTest.mouseClick(tabs.bar, Qt.MouseButton.LeftButton, pos=tabs.bar.tabRect(place).center())
    tabs.set_collapsed(True)
    settle(window)
    assert tabs.newest.text() == "RuntimeError: of yesterday"
    session.start("cpu")
    settle(window)
    assert tabs.output_in_front is chosen
    assert tabs.newest.text() == "", "it is not the workload's"


def test_a_simulated_gpu_answers_as_cuda_unless_that_is_unticked(
    window: MainWindow, session: FakeSession, script: Path
) -> None:
    form = choose(window, script)
    assert not form.as_cuda.isEnabled(), "no GPU is simulated"
    form.simulate.set_card("24 GiB")
    assert form.as_cuda.isEnabled() and form.request().as_cuda and form.request().spec()["as_cuda"]
    form.as_cuda.setChecked(False)
    assert not form.request().as_cuda
    form.as_cuda.setChecked(True)
    form.simulate.set_card("")
    assert not form.as_cuda.isEnabled() and not form.request().as_cuda
    form.simulate.set_card("24 GiB")
    form.set_locked(True)
    assert not form.as_cuda.isEnabled()


def test_the_rate_of_a_script_is_that_of_its_plot_and_says_which_it_is(open_window: OpenWindow) -> None:
    session = FakeSession().feed(2)
    window = open_window(session)
    session.watched("cpu", {"command": ["python", "train.py"]})
    session.train(2)
    settle(window)
    dashboard = window.workspace.dashboard

    def rate() -> str:
        return dict(dashboard.plots.readout.rows())["steps a second"]

    assert dashboard.plots.readout.title == "now"
    assert f"last {rate()}" in dashboard.panel.progress.label.text()
    session.end()
    settle(window)
    assert f"last {rate()}" in dashboard.panel.progress.label.text()
