"""Simulated cards of several sizes in one session: each has a memory, a history and figures of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpudash.session import Replay
from gpudash.units import GIB, MIB
from tests.end_to_end.conftest import Command, environment
from tests.programs import told_by

CONTEXT = 300 * MIB
OWN, LARGE, SMALL = "SIM-0-2GiB", "SIM-0-24GiB", "SIM-0-384MiB"


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cards") / "cards.gpudash"


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory, recording: Path) -> dict[str, Any]:
    """Two trainings on the session's card of 2 GiB, then one script on cards of 24 GiB and of 384 MiB."""
    home = tmp_path_factory.mktemp("home")
    read: dict[str, Any] = told_by("end_to_end.cards_scenario", str(recording), environment=environment(home))
    return read


def test_what_a_run_of_the_session_has_cached_is_given_back_with_it(found: dict[str, Any]) -> None:
    assert found["trained"] == [{OWN: 0}, {OWN: 0}]
    assert 0 < found["extremes"][OWN]["idle_bytes"] < GIB


def test_nothing_but_what_the_driver_takes_is_ever_called_context(found: dict[str, Any]) -> None:
    told = {uuid: figures["context_bytes"] for uuid, figures in found["extremes"].items()}
    assert told == {OWN: CONTEXT, LARGE: CONTEXT, SMALL: CONTEXT}


def test_a_program_is_on_a_card_of_its_own_with_that_cards_capacity(found: dict[str, Any]) -> None:
    large, small = found["large"], found["small"]
    assert (large["device"], large["memory"]["capacity_bytes"]) == ("sim:0@24GiB", 24 * GIB)
    assert (small["device"], small["memory"]["capacity_bytes"]) == ("sim:0@384MiB", 384 * MIB)
    assert (large["status"], small["status"]) == ("finished", "out_of_memory")
    assert small["memory"]["peak_used_bytes"] <= 384 * MIB
    assert (large["left"], small["left"]) == ({OWN: 0, LARGE: 0}, {OWN: 0, SMALL: 0})
    assert found["devices"] == {"sim:0": OWN, "sim:0@384MiB": SMALL}


def test_warnings_speak_of_the_card_that_is_full_and_pass_with_its_program(found: dict[str, Any]) -> None:
    levels = [(told["device"], told["level"]) for told in found["warnings"] if told["level"] != "note"]
    assert {device for device, _level in levels} == {SMALL}
    assert levels[-1] == (SMALL, "passed")
    assert any("sim:0 (SIMULATED 384 MiB) is" in told["text"] for told in found["warnings"])


def test_the_recording_has_every_card_and_its_history(found: dict[str, Any], recording: Path) -> None:
    opened = Replay(recording)
    assert {gpu.uuid: gpu.total_bytes for gpu in opened.gpus} == {OWN: 2 * GIB, LARGE: 24 * GIB, SMALL: 384 * MIB}
    names = {device.name for device in opened.devices() if device.simulated}
    assert names == {"sim:0", "sim:0@24GiB", "sim:0@384MiB"}
    runs = [(run.device, run.memory.capacity_bytes) for run in opened.store.runs]
    assert runs == [("sim:0", 2 * GIB), ("sim:0", 2 * GIB), ("sim:0@24GiB", 24 * GIB), ("sim:0@384MiB", 384 * MIB)]
    opened.close()


def test_peaks_of_different_cards_are_set_beside_each_other_without_a_verdict(
    found: dict[str, Any], recording: Path, gpudash: Command
) -> None:
    del found
    document = gpudash("compare", f"{recording}#4", f"{recording}#3", "--json").document
    peaks = {figure["name"]: figure for figure in document["figures"] if figure["name"].startswith("peak")}
    assert peaks["peak_used_bytes"]["a"] <= 384 * MIB
    assert {name: figure["better"] for name, figure in peaks.items() if name != "peak_allocated_bytes"} == {
        "peak_reserved_bytes": None,
        "peak_used_bytes": None,
    }
    assert {"field": "GPU memory", "a": "384 MiB", "b": "24.0 GiB"} in document["machine"]
    printed = gpudash("compare", f"{recording}#3", f"{recording}#4").stdout
    assert "simulate (24 GiB in A, 384 MiB in B)" in printed and "25769803776" not in printed
