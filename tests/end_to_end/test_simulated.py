"""Simulated GPUs as a user meets them: listed, run on, filled up, recorded, and never taken for real ones."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from gpudash.session import Replay
from gpudash.units import GIB, MIB
from tests.end_to_end.conftest import Command, environment
from tests.end_to_end.simulated_runs import PITFALLS, SPECS
from tests.programs import told_by

TWO = ("--simulate", "2GiB", "--simulate", "1GiB")
MISMATCH = "Expected all tensors to be on the same device, but found at least two devices, sim:0 and cpu!"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What came of many runs in one session."""
    home = tmp_path_factory.mktemp("home")
    found: dict[str, Any] = told_by("end_to_end.simulated_runs", environment=environment(home))
    return found


@pytest.mark.parametrize("name", SPECS)
def test_every_workload_and_option_runs(runs: dict[str, Any], name: str) -> None:
    summary = runs["runs"][name]
    assert summary["error"] is None
    assert (summary["status"], summary["device"], summary["simulated"]) == ("finished", "sim:0", True)
    memory = summary["memory"]
    assert 0 < memory["peak_allocated_bytes"] <= memory["peak_reserved_bytes"] < memory["peak_used_bytes"]
    assert memory["capacity_bytes"] == GIB
    assert "SIMULATED" in summary["result"]["remark"]


@pytest.mark.parametrize("name", [name for name in SPECS if name in (*PITFALLS, "random")])
def test_a_pipeline_computes_right_and_is_not_taken_for_cuda(runs: dict[str, Any], name: str) -> None:
    summary = runs["runs"][name]
    assert summary["result"]["equal"] and summary["result"]["original_unchanged"]
    stages = {stage["name"]: stage for stage in summary["stages"]}
    assert stages["move"]["copied"] is True and stages["move"]["to"] == "sim:0"
    assert stages["move"]["is_cuda"] is False
    assert (stages["operate"]["device"], stages["return"]["device"]) == ("sim:0", "cpu")


@pytest.mark.parametrize("name", ["cuda", "cuda_index", "pinned"])
def test_the_ways_of_cuda_are_shown_on_a_simulated_gpu_too(runs: dict[str, Any], name: str) -> None:
    summary = runs["runs"][name]
    stages = {stage["name"]: stage for stage in summary["stages"]}
    assert summary["result"]["equal"] and (stages["move"]["from"], stages["move"]["to"]) == ("cpu", "sim:0")
    assert ("pin" in stages) is (name == "pinned")
    assert (".cuda() is called .sim()" in stages["move"]["remark"]) is (name != "pinned")


def test_every_pitfall_gives_torchs_own_words(runs: dict[str, Any]) -> None:
    told = {name: runs["runs"][name]["result"]["pitfall"] for name in PITFALLS}
    assert told["mixed_devices"]["message"] == told["unassigned"]["message"] == MISMATCH
    assert told["numpy"]["message"].startswith("can't convert sim:0 device type tensor to numpy.")
    assert told["leaf"]["facts"]["original_has_gradient"] and not told["leaf"]["facts"]["copy_has_gradient"]
    assert told["current_device"]["facts"] == {"chosen": "sim:0", "landed": "sim:1"}


def test_speeds_are_told_to_be_the_cpus_and_there_is_no_link(runs: dict[str, Any]) -> None:
    result = runs["runs"]["transfer"]["result"]
    assert result["link_bytes_per_second"] is None
    measured = [rate for rate in result["rates"] if rate["bytes_per_second_median"] is not None]
    ways = {(rate["from"], rate["to"]) for rate in measured}
    assert ways == {("cpu", "sim:0"), ("sim:0", "cpu"), ("cpu", "cpu")}
    for rate in measured:
        assert ("SIMULATED" in rate.get("remark", "")) is ("sim:0" in (rate["from"], rate["to"]))
    refused = {rate["reason"] for rate in result["rates"] if rate["memory"] == "pinned"}
    assert refused == {"needs a CUDA device, and sim:0 is not one"}


def test_after_an_out_of_memory_the_device_is_back_and_the_next_run_works(runs: dict[str, Any]) -> None:
    full = runs["full"]
    assert (full["status"], full["error"]["kind"]) == ("out_of_memory", "sim")
    assert "The memory of sim:0 (SIMULATED) ran out: the last request was 1.00 GiB" in full["error"]["message"]
    assert runs["before"] == runs["after"] == 0, "no run is on"
    assert runs["next"]["status"] == "finished"


def test_a_cap_ends_the_run_and_is_gone_with_it(runs: dict[str, Any]) -> None:
    capped = runs["capped"]
    assert capped["status"] == "out_of_memory" and "memory cap of 51 MiB" in capped["error"]["message"]
    assert capped["memory"]["peak_reserved_bytes"] <= 0.05 * GIB
    assert runs["uncapped"]["status"] == "finished"
    assert runs["uncapped"]["memory"]["peak_reserved_bytes"] == 256 * MIB


def test_a_second_simulated_gpu_is_run_on_by_its_name(runs: dict[str, Any]) -> None:
    second = runs["second"]
    assert (second["status"], second["device"]) == ("finished", "sim:1")
    assert second["memory"]["capacity_bytes"] == GIB // 2


@pytest.mark.parametrize("isolate", ["--isolate", "--no-isolate"])
def test_a_split_model_is_run_predicted_and_recorded_on_both_devices(
    gpudash: Command, tmp_path: Path, isolate: str
) -> None:
    recording = tmp_path / "run.gpudash"
    split = ("--devices", "sim:0,sim:1", "--parallel", "split", *TWO)
    split += ("--model", "mlp", "--width", "64", "--depth", "2", "--steps", "20")
    run = gpudash("run", "training", *split, isolate, "--record", str(recording), "--json").document
    estimate = gpudash("estimate", "training", *split, "--json").document

    assert (run["status"], run["device"]) == ("finished", "sim:0")
    names = ("device", "peak_allocated_bytes", "peak_reserved_bytes")
    reached = [tuple(row[name] for name in names) for row in run["result"]["devices"]]
    assert [row[0] for row in reached] == ["sim:0", "sim:1"]
    assert [tuple(half[name] for name in names) for half in estimate["ranks"]] == reached
    assert set(run["result"]["placement"]["groups"]["parameters"]) == {"sim:0", "sim:1"}
    assert run["result"]["placement"]["strays"] == []
    ways = {stage["name"]: (stage["from"], stage["to"]) for stage in run["stages"] if stage["copied"]}
    assert ways["activations across"] == ("sim:0", "sim:1") and ways["gradients back"] == ("sim:1", "sim:0")

    store = Replay(recording).store
    for device in ("sim:0", "sim:1"):
        assert store.series("allocator", "reserved_bytes", device) is not None
    assert store.series("transfer", "d2d") is not None


def test_a_split_model_that_does_not_fit_names_the_device(gpudash: Command) -> None:
    split = ("--devices", "sim:0,sim:1", "--parallel", "split", "--simulate", "2GiB", "--simulate", "330MiB")
    outcome = gpudash("run", "training", *split, "--model", "mlp", "--width", "1024", "--json", "--no-record")
    assert outcome.code == 3 and "The memory of sim:1 (SIMULATED) ran out" in outcome.document["error"]["message"]
    predicted = gpudash("estimate", "training", *split, "--model", "mlp", "--width", "1024")
    assert "does not fit" in predicted.stdout and "sim:1 has least to spare and decides" in predicted.stdout


def test_they_are_listed_as_simulated_and_never_as_the_default(gpudash: Command) -> None:
    document = gpudash("devices", *TWO, "--simulate-others", "256MiB", "--json").document
    listed = {device["name"]: device for device in document["devices"]}
    assert [name for name, device in listed.items() if device["simulated"]] == ["sim:0", "sim:1"]
    first = listed["sim:0"]
    assert (first["uuid"], first["product"], first["total_bytes"]) == ("SIM-0-2GiB", "Simulated GPU", 2 * GIB)
    assert first["readings"]["used_bytes"] == 256 * MIB and listed["sim:1"]["readings"]["used_bytes"] == 0
    assert first["states"]["temperature_c"] == "not supported" and first["problem"] is None
    assert not document["default"].startswith("sim")


def test_terminal_recording_and_export_say_simulated(gpudash: Command, tmp_path: Path) -> None:
    recording, table = tmp_path / "run.gpudash", tmp_path / "run.csv"
    outcome = gpudash("run", "matmul", "--device", "sim:0", *TWO, "--size", "64", "--record", str(recording))
    assert outcome.code == 0
    assert "matmul on sim:0 (SIMULATED): finished" in outcome.stdout
    assert "times and rates are the CPU's, for sim:0 is SIMULATED" in outcome.stdout

    opened = Replay(recording)
    assert [(gpu.uuid, gpu.simulated) for gpu in opened.gpus] == [("SIM-0-2GiB", True), ("SIM-1-1GiB", True)]
    assert opened.store.run is not None and opened.store.run.simulated
    assert opened.store.markers[0].label == "matmul on sim:0"

    assert gpudash("export", str(recording), "--to", "csv", "-o", str(table)).code == 0
    with table.open(encoding="utf-8", newline="") as file:
        devices = {row["device"] for row in csv.DictReader(file)}
    assert {"SIM-0-2GiB", "SIM-1-1GiB", "sim:0"} <= devices
