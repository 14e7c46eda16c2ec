"""Machines over ssh as tabs of the window: nothing is linked here, what they tell is fed by hand."""

from __future__ import annotations

import json
import socket
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from PySide6.QtCore import QCoreApplication, QEvent, Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QInputDialog, QLineEdit

from gpudash.session import Replay
from gpudash.session.remote.fleet import SshFleet
from gpudash.session.remote.machine import RemoteMachine
from gpudash.sources.ssh.asking import QuestionKind, SshQuestion
from gpudash.sources.ssh.connection import LinkFault
from gpudash.ui.features import fleet as opening
from gpudash.ui.features.fleet import Logins, ask_for_machines, compare_machines, compare_recordings, open_machines
from gpudash.ui.fleet.compare_document import FleetComparison
from gpudash.ui.fleet.document import FleetDocument
from gpudash.ui.fleet.login import LoginDialog
from gpudash.ui.fleet.machine_document import MachineDocument
from gpudash.ui.widgets.file_dialog import FileDialog
from gpudash.ui.window.main_window import MainWindow
from gpudash.units import GIB
from tests.ui.conftest import OpenWindow, settle
from tests.ui.fake_session import FakeSession

UUID = "GPU-7"

MOST_SLICES = 40
"""Frames within which the dashboard of what has been read is built."""


@pytest.fixture
def window(open_window: OpenWindow, monkeypatch: pytest.MonkeyPatch) -> MainWindow:
    monkeypatch.setattr(SshFleet, "start", lambda _fleet, **_how: None)
    return open_window(FakeSession())


def tell(fleet: SshFleet, number: int, *records: dict[str, Any]) -> None:
    """Have a machine tell these, the first of which greets."""
    machine = fleet.machines[number]
    now_s = machine.clock()
    assert machine._greet(json.dumps({"gpudash": 1, "product": "EPYC", "cores": 64}).encode(), now_s)
    for count, record in enumerate(records):
        machine._line(json.dumps({"time_s": 5.0 + count / 1000, **record}).encode(), now_s + count / 1000)
    machine._recorder._commit()
    fleet._polled_s = -1.0


def host(used: int) -> dict[str, Any]:
    memory = {"used_bytes": used * GIB, "total_bytes": 100 * GIB, "available_bytes": (100 - used) * GIB}
    return {"table": "host", "device": None, "free_bytes": memory["available_bytes"], "file_cache_bytes": 0, **memory}


def gpu(used: int) -> dict[str, Any]:
    memory = {"used_bytes": used * GIB, "total_bytes": 80 * GIB, "free_bytes": (80 - used) * GIB}
    return {"table": "gpu", "device": UUID, **memory}


GPUS = {"gpus": [{"uuid": UUID, "product": "NVIDIA H100", "nvml_index": 2}]}


def overview(window: MainWindow, *given: str) -> tuple[FleetDocument, SshFleet]:
    open_machines(window.workspace, given)
    settle(window)
    document = window.workspace.front
    assert isinstance(document, FleetDocument) and isinstance(document.fleet, SshFleet)
    return document, document.fleet


def test_machines_are_one_tab_that_says_who_is_being_linked_and_what_is_wrong(window: MainWindow) -> None:
    document, fleet = overview(window, "ssh://a", "b")
    assert window.workspace.front_title == "2 machines over ssh"
    assert document.label.text() == "Linking a, b…"
    fleet.machines[0].problem = "a is not known to ssh yet."
    document._drawn_s = -10.0
    settle(window)
    assert document.label.text().startswith("a is not known to ssh yet.\n\nWhat was lost is linked again by itself")
    window.workspace.show_dashboard()
    assert overview(window, "ssh://a", "ssh://b")[0] is document
    window.workspace.close_document(document)
    assert [machine.held for machine in fleet.machines] == [0, 0]


def test_a_machine_without_a_gpu_is_a_cell_of_its_memory_and_counts_as_no_gpu(window: MainWindow) -> None:
    document, fleet = overview(window, "a", "b")
    tell(fleet, 0, GPUS, gpu(70), host(10))
    tell(fleet, 1, {"gpus": [], "problem": -1}, host(20))
    settle(window)
    assert [document._gpus[key].name for key in document.grid.layout_.keys] == ["a GPU 2", "b's memory"]
    assert document.header.total.text() == "2 machines · 1 GPU · 70.0 of 80.0 GiB used (88 %)"
    assert "a GPU 2 is 88 % full" in document.strip.worst.text()
    assert not document.controls.compare.isEnabled()


def settle_opened(window: MainWindow, document: MachineDocument) -> None:
    """Refresh until the dashboard of a machine that has been read is there, and everything has come to rest."""
    for _frame in range(MOST_SLICES):
        if document.dashboard is not None:
            break
        settle(window, 1)
    settle(window)


def test_a_machine_opens_live_once_without_anything_of_runs_and_outlives_the_overview(window: MainWindow) -> None:
    document, fleet = overview(window, "a")
    tell(fleet, 0, GPUS, gpu(70), host(10))
    settle(window)
    machine = fleet.machines[0]
    key = document.grid.layout_.keys[0]
    document.open(key)
    shown = window.workspace.front
    assert isinstance(shown, MachineDocument)
    assert shown._reader.join(60)
    settle_opened(window, shown)
    assert shown.dashboard is not None and shown.replay is not None
    assert shown.dashboard.selected == UUID
    window.workspace.show_panels(False)
    window.workspace.show_panels(True)
    assert not shown.dashboard.panel.isVisible()
    bar = shown.dashboard.tabs.bar
    assert [bar.tabText(n) for n in range(bar.count()) if bar.isTabVisible(n)] == ["Devices", "Events"]
    assert shown.head.what.text() == "a" and shown.head.label.text().startswith("live over ssh since ")
    window.workspace.show_path("ssh://a")
    document.open(key)
    assert window.workspace.front is shown and window.workspace.count == 2
    window.workspace.close_document(document)
    assert machine.held == 1 and machine.recording.exists()
    window.workspace.close_document(shown)
    assert machine.held == 0 and not machine.recording.exists()


def test_a_lost_link_is_said_above_the_plots_until_it_is_back(window: MainWindow) -> None:
    document, fleet = overview(window, "a")
    tell(fleet, 0, GPUS, gpu(70), host(10))
    settle(window)
    machine = fleet.machines[0]
    document.open(document.grid.layout_.keys[0])
    shown = window.workspace.front
    assert isinstance(shown, MachineDocument)
    assert shown._reader.join(60)
    settle_opened(window, shown)
    assert not shown.notice.isVisible()
    machine._lost(LinkFault("The link to a was lost"))
    settle(window)
    assert shown.notice.isVisible() and shown.notice.text == "The link to a was lost; it is tried again."
    assert shown.head.label.text().startswith("link lost, retrying")
    tell(fleet, 0, host(10))
    settle(window)
    assert not shown.notice.isVisible()


@pytest.mark.parametrize("given", ["-oProxyCommand=touch", "a;b", "ssh://me:secret@a"])
def test_what_can_be_no_machine_is_told_in_one_sentence_and_nothing_is_started(window: MainWindow, given: str) -> None:
    assert open_machines(window.workspace, [given]) is None
    assert window.workspace.count == 0 and "secret" not in window.workspace.notice.text
    assert "address" in window.workspace.notice.text


def test_the_machines_used_last_are_offered_and_the_chosen_ones_are_opened(window: MainWindow) -> None:
    overview(window, "ssh://me@a:2222", "b")
    assert opening.known_addresses(opening.REMEMBERED_MACHINES) == ["me@a:2222 b"]
    ask_for_machines(window.workspace)
    [dialog] = window.findChildren(QInputDialog)
    assert dialog.comboBoxItems() == ["me@a:2222 b"]
    dialog.setTextValue(" c ")
    dialog.accept()
    QApplication.processEvents()
    assert window.workspace.front_title == "c" and window.workspace.count == 2


class Channel:
    """Both ends of what asks for ssh: what was answered is read at the other."""

    def __init__(self, words: str, kind: QuestionKind = "secret", *, again: bool = False) -> None:
        ours, self._theirs = socket.socketpair()
        self.question = SshQuestion(words, kind, ours, again=again)

    def answered(self) -> bytes:
        """All that came, to the end."""
        with self._theirs:
            self.question.close()
            return self._theirs.recv(4096)


def dialogs(window: MainWindow) -> list[LoginDialog]:
    QCoreApplication.sendPostedEvents(None, QEvent.Type.DeferredDelete.value)
    return window.findChildren(LoginDialog)


def test_what_ssh_asks_is_a_dialog_of_its_words_and_the_answer_goes_to_it_alone(
    window: MainWindow, monkeypatch: pytest.MonkeyPatch
) -> None:
    _document, fleet = overview(window, "a")
    words = "<b>me@a</b>'s password: "
    channel = Channel(words)
    monkeypatch.setattr(RemoteMachine, "question", property(lambda _machine: channel.question))
    settle(window)
    [dialog] = dialogs(window)
    assert dialog.windowTitle() == "Log In to a" and dialog.label.text() == words.strip()
    assert dialog.label.textFormat() is Qt.TextFormat.PlainText and not dialog.again.isVisible()
    assert dialog.field.echoMode() is QLineEdit.EchoMode.Password
    monkeypatch.setattr(RemoteMachine, "question", property(lambda _machine: None))
    QTest.keyClicks(dialog.field, "secret")
    QTest.keyClick(dialog.field, Qt.Key.Key_Return)
    settle(window)
    assert dialogs(window) == [] and channel.answered() == b"+secret"
    assert fleet.machines[0].held == 1


@pytest.mark.parametrize("kind", ["secret", "text", "confirm"])
def test_esc_leaves_ssh_without_an_answer(
    window: MainWindow, monkeypatch: pytest.MonkeyPatch, kind: QuestionKind
) -> None:
    overview(window, "a")
    channel = Channel("Are you sure (yes/no)?", kind, again=True)
    monkeypatch.setattr(RemoteMachine, "question", property(lambda _machine: channel.question))
    settle(window)
    [dialog] = dialogs(window)
    assert dialog.again.isVisible() and dialog.field.isVisible() is (kind != "confirm")
    monkeypatch.setattr(RemoteMachine, "question", property(lambda _machine: None))
    QTest.keyClick(dialog, Qt.Key.Key_Escape)
    settle(window)
    assert dialogs(window) == [] and channel.question.refused and channel.answered() == b""


def test_a_dialog_goes_with_the_ssh_that_asked_and_with_the_machines(
    window: MainWindow, monkeypatch: pytest.MonkeyPatch
) -> None:
    document, _fleet = overview(window, "a")
    channel = Channel("Confirm user presence for key", "told")
    monkeypatch.setattr(RemoteMachine, "question", property(lambda _machine: channel.question))
    settle(window)
    assert len(dialogs(window)) == 1
    monkeypatch.setattr(RemoteMachine, "question", property(lambda _machine: None))
    channel.question.close()
    settle(window)
    assert dialogs(window) == [] and channel.answered() == b""
    assert len(window.workspace.findChildren(Logins)) == 1
    window.workspace.close_document(document)
    settle(window)
    QCoreApplication.sendPostedEvents(None, QEvent.Type.DeferredDelete.value)
    assert window.workspace.findChildren(Logins) == []


def test_what_is_not_linked_has_a_button_in_both_tabs_and_a_key(window: MainWindow) -> None:
    document, fleet = overview(window, "a", "b")
    first, second = fleet.machines
    reconnect = window.menus.actions["file.reconnect"]
    assert not reconnect.isEnabled()
    for machine in fleet.machines:
        machine._lost(LinkFault(f"{machine.name} wants a password", lasting=True))
    document._drawn_s = -10.0
    settle(window)
    assert document.reconnect.isVisible() and document.reconnect.text() == "Reconnect 2 machines"
    QTest.keyClick(document.reconnect, Qt.Key.Key_Space)
    assert first._asks and second._asks and fleet.unlinked == ()
    document._drawn_s = -10.0
    settle(window)
    assert not document.reconnect.isVisible() and document.label.text() == "Linking a, b…"

    tell(fleet, 0, GPUS, gpu(70), host(10))
    second._lost(LinkFault("b wants a password", lasting=True))
    settle(window)
    assert document.controls.reconnect.isVisible() and document.controls.reconnect.text() == "Reconnect b"
    document.open(document.grid.layout_.keys[0])
    shown = window.workspace.front
    assert isinstance(shown, MachineDocument)
    assert shown._reader.join(60)
    settle_opened(window, shown)
    first._lost(LinkFault("a wants a password", lasting=True))
    settle(window)
    assert "a wants a password" in shown.notice.text and not first._asks
    window.menus.refresh()
    assert reconnect.isEnabled()
    reconnect.trigger()
    assert first._asks
    settle(window)
    assert not shown.notice.isVisible()


def test_mig_instances_stand_in_place_of_their_gpu(window: MainWindow) -> None:
    document, fleet = overview(window, "a")
    whole = {**GPUS["gpus"][0], "instances": 2}
    parts = [{**whole, "uuid": f"MIG-{n}", "instances": 0, "parent": UUID, "instance": n} for n in range(2)]
    rows = [{**gpu(70), "device": part["uuid"]} for part in parts]
    tell(fleet, 0, {"gpus": [whole, *parts]}, gpu(75), *rows, host(10))
    settle(window)
    assert [document._gpus[key].name for key in document.grid.layout_.keys] == ["a GPU 2:0", "a GPU 2:1"]
    assert "2 GPUs" in document.header.total.text() and "140" in document.header.total.text()


def test_the_memory_of_a_machine_without_a_gpu_is_drawn_as_what_is_used_of_it(window: MainWindow) -> None:
    document, fleet = overview(window, "a")
    tell(fleet, 0, {"gpus": [], "problem": -1}, host(20), {**host(30), "time_s": 6.0})
    settle(window)
    document.open(document.grid.layout_.keys[0])
    shown = window.workspace.front
    assert isinstance(shown, MachineDocument)
    assert shown._reader.join(60)
    settle_opened(window, shown)
    assert shown.dashboard is not None
    plots = shown.dashboard.plots.plots
    memory = next(plot for plot in plots if plot.spec.id == "memory")
    assert [curve.name for curve in memory.spec.curves] == ["used"]
    series = shown.dashboard.session.store.series(*memory.spec.curves[0].key)
    assert series is not None and series.window(0.0, 1000.0, 100)[1].tolist()[-1] == 30 * GIB


def test_two_machines_are_laid_over_one_another_live_and_stay_linked_meanwhile(window: MainWindow) -> None:
    document, fleet = overview(window, "a", "b")
    for number, used in ((0, 70), (1, 40)):
        later = {**gpu(used - 30), "time_s": 7.0}
        tell(fleet, number, GPUS, gpu(used), host(10), later)
    settle(window)
    assert document.controls.compare.isVisible() and not document.controls.compare.isEnabled()
    document.compare()
    assert window.workspace.count == 1  # none is chosen, and one alone has no other day
    first, second = sorted(document.grid.layout_.keys)
    compare_machines(window.workspace, fleet, [document._gpus[first], document._gpus[second]])
    settle(window, 12)
    shown = window.workspace.front
    assert isinstance(shown, FleetComparison) and shown.title == "a · GPU 2 vs b · GPU 2"
    assert [metric.title for metric in shown.plots] == ["MEMORY USED"] and not shown.days.isVisible()
    curves = next(iter(shown.plots.values())).shown
    assert [float(curve.y.max()) for curve in curves[:2]] == [70 * GIB, 40 * GIB]
    for side in shown.sides:
        began, _ended = shown.ranges()[0]
        machine = fleet.machine_of(side.gpu.key)
        assert machine is not None and side.view.shift_s == pytest.approx(began - machine.began_wall_s, abs=60)
    window.workspace.close_document(document)
    assert [machine.held for machine in fleet.machines] == [1, 1]
    window.workspace.close_document(shown)
    assert [machine.held for machine in fleet.machines] == [0, 0]


def test_saving_with_machines_in_front_writes_theirs_and_never_this_computer_s(
    window: MainWindow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "saved"
    document, fleet = overview(window, "a", "me@b:2222")
    tell(fleet, 0, GPUS, gpu(70), host(10))
    tell(fleet, 1, {"gpus": [], "problem": -1}, host(20))
    settle(window)
    folder.mkdir()
    save = window.menus.actions["file.save_recording"]
    assert save.isEnabled() and save.text() == "Save All Recordings…"
    monkeypatch.setattr(FileDialog, "ask_for_folder", lambda *_asked: str(folder))
    save.trigger()
    assert document.controls.save.isVisible()
    document.controls.save.click()
    by_host = [Replay(path) for path in sorted(folder.iterdir())]
    assert sorted(replay.host_name for replay in by_host) == ["a", "a", "me@b:2222", "me@b:2222"]
    for replay in by_host:
        replay.close()
    session = window.workspace.session
    assert isinstance(session, FakeSession) and not any(asked[0] == "save" for asked in session.requested)


def test_recordings_of_two_machines_are_laid_over_one_another_the_fullest_memory_of_each(
    window: MainWindow, tmp_path: Path
) -> None:
    document, fleet = overview(window, "a", "me@b:2222")
    for machine in fleet.machines:
        machine.began_wall_s += 86_400.0  # as of a computer whose clock is ahead
        machine._recorder.describe({"wall_clock_origin": datetime.fromtimestamp(machine.began_wall_s, UTC).isoformat()})
    tell(fleet, 0, GPUS, gpu(70), host(10), {**gpu(40), "time_s": 6.0})
    tell(fleet, 1, {"gpus": [], "problem": -1}, host(20), {**host(30), "time_s": 6.0})
    saved = []
    for number, machine in enumerate(fleet.machines):
        with closing(machine.replay()) as replay:
            saved.append(tmp_path / f"{number}.gpudash")
            replay.save_recording(saved[-1])
    window.workspace.close_document(document)
    compare_recordings(window.workspace, [Replay(path) for path in saved])
    settle(window, 12)
    shown = window.workspace.front
    assert isinstance(shown, FleetComparison) and shown.title == "a · GPU 2 vs me@b:2222 · memory"
    curves = next(iter(shown.plots.values())).shown
    assert [float(curve.y.max()) for curve in curves[:2]] == [70 * GIB, 30 * GIB]
    assert shown.ranges()[0][0] == pytest.approx(fleet.machines[0].began_wall_s, abs=60)
    window.workspace.close_document(shown)
