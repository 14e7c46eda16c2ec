from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import pytest
import torch

from gpudash.telemetry.records import EpochFinished, Note, RunEnd, StageFinished, StepFinished, Transfer
from gpudash.workloads.running.installed import torch_report
from tests.gpu.hardware import COPY_BYTES, copies
from tests.gpu.runs import RUNS, Runner


@pytest.mark.parametrize("name", [name for name in RUNS if not name.startswith(("pitfall", "out_of"))])
def test_every_workload_finishes_and_gives_its_memory_back(gpu: Runner, name: str) -> None:
    gpu.run("pipeline", {})
    before = torch.cuda.memory_allocated(0)
    ending = gpu.run(*RUNS[name])

    assert ending.kind == "RunFinished" and ending.status == "finished", ending
    assert torch.cuda.memory_allocated(0) == before
    assert ending.result["memory"]["peak_allocated_bytes"] > 0


def test_the_pipeline_changes_the_device(gpu: Runner) -> None:
    result = gpu.run("pipeline", {}).result

    assert result["original_unchanged"] and not result["same_object"]
    move = next(stage for stage in gpu.of(StageFinished) if stage.name == "move")
    assert move.copied and move.is_cuda and move.device == "cuda:0" and move.bytes == 36
    assert move.remark == "shape unchanged, device changed: cpu → cuda:0"
    assert {transfer.direction for transfer in gpu.of(Transfer)} == {"h2d", "d2h"}


def test_the_pipeline_gives_the_values_that_the_cpu_gives(gpu: Runner) -> None:
    result = gpu.run("pipeline", {}).result

    assert result["values"] == [[11, 12, 13], [14, 15, 16], [17, 18, 19]] and result["equal"]


@pytest.mark.parametrize("pitfall", ["unassigned", "mixed_devices", "leaf", "numpy"])
def test_pitfalls_are_told_in_torchs_own_words(gpu: Runner, pitfall: str) -> None:
    found = gpu.run("pipeline", {"pitfall": pitfall}).result["pitfall"]

    assert found["message"] and found["explanation"] and found["remedy"]


def test_cuda_lands_on_the_current_device(gpu: Runner) -> None:
    facts = gpu.run("pipeline", {"pitfall": "current_device"}).result["pitfall"]["facts"]

    assert (facts["landed"] == "cuda:0") == (torch.cuda.device_count() == 1)


@pytest.mark.values("how fast a card copies")
def test_transfer_rates_are_those_of_bare_copies(gpu: Runner) -> None:
    bare = copies("cuda:0")
    rates = gpu.run("transfer", {"blocks": str(COPY_BYTES)}).result["rates"]
    for row in rates:
        direction = {"cpu": "h2d", "cuda:0": "d2h"}[row["from"]] if row["from"] != row["to"] else None
        if direction is not None and row["blocking"]:
            ratio = row["bytes_per_second_median"] / bare[f"{direction}_{row['memory']}"]
            assert 0.8 < ratio < 1.25, row


@pytest.mark.values("the losses that a GPU computes")
def test_the_same_seed_gives_the_same_losses_when_asked_to_be_deterministic(gpu: Runner) -> None:
    def losses() -> list[float | None]:
        gpu.run("training", {"steps": 20, "deterministic": True})
        return [step.loss for step in gpu.of(StepFinished)]

    assert losses() == losses()


def test_a_training_moves_with_its_optimizer_at_an_epoch(gpu: Runner) -> None:
    gpu.run("training", {"steps": 30, "move_at_epoch": 2})

    assert [epoch.device for epoch in gpu.of(EpochFinished)] == ["cpu", "cuda:0", "cuda:0"]
    notes = [note for note in gpu.of(Note) if note.topic == "placement"]
    assert [note.details["device"] for note in notes] == ["cpu", "cuda:0"]
    assert all(note.details["strays"] == [] for note in notes)


def test_out_of_memory_is_reported_and_the_next_run_finishes(gpu: Runner) -> None:
    gpu.run("pipeline", {})
    before = torch.cuda.memory_allocated(0)
    ending = gpu.run(*RUNS["out_of_memory"])

    assert (
        isinstance(ending, RunEnd)
        and ending.status == "out_of_memory"
        and ending.error == "cuda"
        and ending.requested_bytes == 8 * 2**30
    )
    assert "Traceback" not in ending.message and "GiB" in ending.message
    assert torch.cuda.memory_allocated(0) == before
    assert gpu.run("pipeline", {}).status == "finished"


def test_free_cache_gives_the_reserved_memory_back(gpu: Runner) -> None:
    gpu.run("pressure", {"step": "256MiB", "rate": 1000, "cap": "1GiB", "hold": 0})
    told = threading.Event()
    take = gpu._take

    def watch(event: Any) -> None:
        take(event)
        if isinstance(event, Note) and event.topic == "cache":
            told.set()

    gpu._worker._emit = watch
    gpu.free_cache()

    assert told.wait(30) and torch.cuda.memory_reserved(0) < 256 * 2**20


def test_the_probe_sees_the_peak_between_its_readings(gpu: Runner) -> None:
    ending = gpu.run("pressure", {"step": "256MiB", "rate": 50, "cap": "2GiB", "hold": 0.5})

    assert ending.result["memory"]["peak_allocated_bytes"] >= 2 * 2**30
    assert max(reading["allocated_bytes"] for reading in gpu.readings) >= 2 * 2**30


def test_a_gpu_that_is_not_the_one_nvml_means_ends_the_run(gpu: Runner) -> None:
    ending = gpu.run("pipeline", {}, expected_uuid="GPU-00000000-0000-0000-0000-000000000000")

    assert isinstance(ending, RunEnd) and ending.status == "failed" and ending.error == "device"


def test_torch_and_nvml_agree_on_uuids() -> None:
    import pynvml

    pynvml.nvmlInit()
    uuids = {
        pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(index))
        for index in range(pynvml.nvmlDeviceGetCount())
    }
    pynvml.nvmlShutdown()

    assert {device["uuid"] for device in torch_report(properties=True)["devices"]} <= uuids


def test_looking_at_torch_makes_no_cuda_context() -> None:
    script = (
        "import torch; from gpudash.workloads.running.installed import torch_report;"
        "from gpudash.workloads.running.run import release;"
        "assert torch_report()['devices'][0]['name'] == 'cuda:0'; assert release(context=True) == (None, None);"
        "print(torch.cuda.is_initialized())"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert found.stdout.strip() == "False"


def test_a_runs_memory_is_asked_for_by_name(gpu: Runner) -> None:
    asked: set[str] = set()
    gpu.run("pipeline", {}, refuse=lambda size, memory: asked.add(memory))

    assert asked == {"cpu", "cuda:0"}


def test_resident_batches_are_told_as_transfers(gpu: Runner) -> None:
    gpu.run("training", {"steps": 20, "batches": "resident"})

    stages = [stage for stage in gpu.of(StageFinished) if stage.name == "batches"]
    assert stages and all(stage.copied and stage.bytes for stage in stages)
    assert {transfer.direction for transfer in gpu.of(Transfer)} == {"h2d"}
