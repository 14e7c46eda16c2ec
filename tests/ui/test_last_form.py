"""What the form asked for last comes back with the next window, as far as it can still be used."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from gpudash.devices.names import simulated_gpu
from gpudash.ui.forms.workload_panel import WorkloadPanel
from gpudash.ui.widgets.remembered import recall, remember
from gpudash.ui.window.main_window import MainWindow
from gpudash.units import GIB
from tests.ui.conftest import OpenWindow, settle
from tests.ui.fake_session import FakeSession, gpu

SIM = simulated_gpu(0, 2 * GIB)


def panel_of(window: MainWindow) -> WorkloadPanel:
    return window.workspace.dashboard.panel


def closed(window: MainWindow) -> None:
    window.close()


def kept(**changed: Any) -> None:
    """What a window would have kept, with what a test makes of it."""
    remember("form", {"workload": "matmul", "values": {"size": 256}, "memories": [], **changed})


def test_a_window_begins_with_the_workload_the_fields_and_the_device_of_the_one_before(
    open_window: OpenWindow,
) -> None:
    first = open_window(FakeSession([gpu(0), gpu(1)]))
    panel_of(first).take_preset("matmul", {"size": 256})
    panel_of(first).take_device("cuda:1")
    closed(first)
    second = open_window(FakeSession([gpu(0), gpu(1)]), first_screen=True)
    panel = panel_of(second)
    spec = panel.spec()
    assert spec is not None and spec.model_dump()["size"] == 256
    assert (panel.workload.currentData(), panel.device_name) == ("matmul", "cuda:1")
    dashboard = second.workspace.dashboard
    assert dashboard.first_screen is not None, "it asks for nothing yet"
    assert dashboard.selected == gpu(1).uuid


def test_a_start_is_kept_though_the_window_never_closes(open_window: OpenWindow) -> None:
    window = open_window(FakeSession())
    panel_of(window).take_preset("matmul", {"size": 256})
    window.workspace.start_run()
    assert recall("form") == {"workload": "matmul", "values": {"size": 256}, "memories": []}


def test_the_users_own_program_comes_back_with_its_file(open_window: OpenWindow, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("print(1)\n")
    first = open_window(FakeSession())
    panel_of(first).take_script(script)
    closed(first)
    panel = panel_of(open_window(FakeSession()))
    assert panel.watching and panel.script.script().file == str(script)


def test_a_device_is_known_by_what_it_is_and_waited_for(open_window: OpenWindow) -> None:
    kept(memories=[gpu(1).uuid])
    session = FakeSession([gpu(0)])
    window = open_window(session)
    assert panel_of(window).device_name == "cuda:0"
    session.gpus = (gpu(0), gpu(2), gpu(1))
    settle(window)
    assert panel_of(window).device_name == "cuda:2", "another is called cuda:1 today"


def test_a_device_that_the_user_has_chosen_meanwhile_stays(open_window: OpenWindow) -> None:
    kept(memories=[gpu(1).uuid])
    session = FakeSession([gpu(0)])
    window = open_window(session)
    panel_of(window).take_device("cpu")
    session.gpus = (gpu(0), gpu(1))
    settle(window)
    assert panel_of(window).device_name == "cpu"


def test_a_card_that_was_asked_for_at_the_start_comes_before_the_device_of_last_time(
    open_window: OpenWindow, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept(memories=["host"])
    session = FakeSession([SIM])
    session.given = (8 * GIB,)
    monkeypatch.setattr(session, "default_device", lambda: "sim:0")
    window = open_window(session)
    assert (panel_of(window).workload.currentData(), panel_of(window).device_name) == ("matmul", "sim:0")


def test_where_there_was_nothing_but_the_cpu_none_counts_as_chosen(open_window: OpenWindow) -> None:
    first = open_window(FakeSession())
    panel_of(first).take_device("cpu")
    closed(first)
    assert panel_of(open_window(FakeSession([gpu(0)]))).device_name == "cuda:0"


def test_ranks_come_back_where_all_of_their_devices_are_here(open_window: OpenWindow) -> None:
    first = open_window(FakeSession([gpu(0), gpu(1)]))
    panel_of(first).change_fields({"devices": "cuda:0,cuda:1"})
    closed(first)
    session = FakeSession([gpu(0)])
    window = open_window(session, first_screen=True)
    assert panel_of(window).form.values()["devices"] == ""
    session.gpus = (gpu(0), gpu(1))
    settle(window)
    assert panel_of(window).form.values()["devices"] == "cuda:0,cuda:1"
    assert window.workspace.dashboard.first_screen is not None


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"workload": "alchemy"}, "not here any more: alchemy"),
        ({"values": 7}, "cannot be read: values"),
        ({"memories": "host"}, "cannot be read: memories"),
        ({"workload": None}, "cannot be read: workload"),
    ],
)
def test_what_cannot_be_read_is_left_out_with_a_line_in_the_log(
    open_window: OpenWindow, caplog: pytest.LogCaptureFixture, changed: dict[str, Any], said: str
) -> None:
    kept(**changed)
    with caplog.at_level(logging.WARNING):
        panel = panel_of(open_window(FakeSession()))
    assert (panel.workload.currentData(), panel.ready) == ("training", True)
    assert said in caplog.text


def test_of_the_fields_those_that_are_still_allowed_are_filled_in(
    open_window: OpenWindow, caplog: pytest.LogCaptureFixture
) -> None:
    kept(workload="training", values={"width": 64, "batch": -3, "wings": 2})
    with caplog.at_level(logging.WARNING):
        panel = panel_of(open_window(FakeSession()))
    spec = panel.spec()
    assert spec is not None
    assert (spec.model_dump()["width"], spec.model_dump()["batch"]) == (64, type(spec)().model_dump()["batch"])
    assert "these are ignored: batch, wings" in caplog.text and "-3" not in caplog.text


def test_a_damaged_file_is_as_none(open_window: OpenWindow, home: Path) -> None:
    kept()
    (home / "state.json").write_text(json.dumps({"form": ["matmul"]}))
    assert panel_of(open_window(FakeSession())).workload.currentData() == "training"


def test_values_that_are_not_allowed_leave_what_was_kept_before(open_window: OpenWindow) -> None:
    kept()
    window = open_window(FakeSession())
    panel_of(window).form.set_values({"size": -1})
    closed(window)
    assert recall("form")["values"] == {"size": 256}


def test_what_a_demo_has_put_into_the_form_is_not_kept(open_window: OpenWindow) -> None:
    window = open_window(FakeSession())
    window.workspace.playing_demo = True
    panel_of(window).take_preset("matmul", {})
    closed(window)
    assert recall("form") is None


def test_consent_to_a_models_own_code_is_given_anew(open_window: OpenWindow) -> None:
    first = open_window(FakeSession())
    panel_of(first).take_preset("model", {"path": "gpt2", "trust_remote_code": True})
    closed(first)
    values = panel_of(open_window(FakeSession())).form.values()
    assert (values["path"], values["trust_remote_code"]) == ("gpt2", False)


def test_the_first_screen_says_what_a_start_runs(open_window: OpenWindow) -> None:
    screen = open_window(FakeSession(), first_screen=True).workspace.dashboard.first_screen
    assert screen is not None and screen.train.text().startswith("Train a small transformer")
    kept()
    window = open_window(FakeSession(), first_screen=True)
    screen = window.workspace.dashboard.first_screen
    assert screen is not None and screen.train.text() == "Start matrix product, as last set   F5"
    screen.train.click()
    settle(window)
    assert [entry[:2] for entry in window.workspace.session.requested][-1] == ("start", "matmul")  # type: ignore[attr-defined]
