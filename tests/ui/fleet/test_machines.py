"""Machines over ssh as tabs of the window: nothing is linked here, what they tell is fed by hand."""

from __future__ import annotations

import json
from typing import Any

import pytest
from PySide6.QtWidgets import QApplication, QInputDialog

from gpudash.session.remote.fleet import SshFleet
from gpudash.sources.ssh.connection import LinkFault
from gpudash.ui.features import fleet as opening
from gpudash.ui.features.fleet import ask_for_machines, open_machines
from gpudash.ui.fleet.document import FleetDocument
from gpudash.ui.fleet.machine_document import MachineDocument
from gpudash.ui.window.main_window import MainWindow
from gpudash.units import GIB
from tests.ui.conftest import OpenWindow, settle
from tests.ui.fake_session import FakeSession

UUID = "GPU-7"


@pytest.fixture
def window(open_window: OpenWindow, monkeypatch: pytest.MonkeyPatch) -> MainWindow:
    monkeypatch.setattr(SshFleet, "start", lambda _fleet: None)
    return open_window(FakeSession())


def tell(fleet: SshFleet, number: int, *records: dict[str, Any]) -> None:
    """Have a machine tell these, the first of which greets."""
    machine = fleet.machines[number]
    now_s = machine.clock()
    assert machine._greet(json.dumps({"gpudash": 1, "product": "EPYC", "cores": 64}).encode(), now_s)
    for count, record in enumerate(records):
        machine._line(json.dumps({"time_s": 5.0 + count / 1000, **record}).encode(), now_s + count / 1000)
    machine._recorder._commit()
    fleet._looked_s = -1.0


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
    assert document.words.text() == "Linking a, b…"
    fleet.machines[0].problem = "a is not known to ssh yet."
    document._drawn_s = -10.0
    settle(window)
    assert document.words.text().startswith("a is not known to ssh yet.\n\nWhat was lost is linked again by itself")
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
    assert not document.controls.compare.isVisible()


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
    settle(window, 12)
    assert shown.dashboard is not None and shown.replay is not None
    assert shown.dashboard.selected == UUID
    window.workspace.show_panels(False)
    window.workspace.show_panels(True)
    assert not shown.dashboard.panel.isVisible()
    bar = shown.dashboard.tabs.bar
    assert [bar.tabText(n) for n in range(bar.count()) if bar.isTabVisible(n)] == ["Processes", "Devices", "Events"]
    assert shown.head.what.text() == "a" and shown.head.words.text().startswith("live over ssh since ")
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
    settle(window, 12)
    assert not shown.notice.isVisible()
    machine._lost(LinkFault("The link to a was lost"))
    settle(window)
    assert shown.notice.isVisible() and shown.notice.text == "The link to a was lost; it is tried again."
    assert shown.head.words.text().startswith("link lost, tried again")
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
