"""Training on several simulated GPUs: gpudash's own ranks, started by torchrun."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpudash.devices.names import Simulation
from gpudash.simulator.device.simulated_gpu import SimulatedGpu
from gpudash.specs import TrainingSpec, build
from gpudash.telemetry.records import Record, RunEnd, StepFinished
from gpudash.units import GIB
from gpudash.workloads.programs.parallel.parallel_run import ParallelRun
from gpudash.workloads.running.context import Requests
from gpudash.workloads.running.run import RunRequest
from tests.end_to_end.conftest import run_python
from tests.end_to_end.rank_losses import losses_alone, losses_of_shown_program

SIZE = ("--model", "mlp", "--width", "64", "--depth", "3", "--steps", "12")
CARDS = ("--simulate", "24GiB", "--simulate", "24GiB")
FIELDS: dict[str, Any] = {"model": "mlp", "width": 64, "depth": 3, "devices": "sim:0,sim:1"}


def spec_of(**values: Any) -> TrainingSpec:
    spec = build(TrainingSpec, {**FIELDS, **values})
    assert isinstance(spec, TrainingSpec)
    return spec


def run_on_cards(spec: TrainingSpec, wishes: Requests, take: Any) -> tuple[Any, list[Any]]:
    """How a run on two simulated cards ended, and what was shown of the cards each time."""
    shown: list[Any] = []
    began = time.monotonic()
    cards = tuple(SimulatedGpu(index, 24 * GIB) for index in range(2))
    request = RunRequest(spec, "sim:0", 1, cards=cards, on_cards=lambda pid, figures: shown.append((pid, figures)))
    return ParallelRun(request, wishes, take, lambda: time.monotonic() - began).perform(), shown


@dataclass(frozen=True)
class Trained:
    """A run on two simulated cards, as its command reports it, and the prediction of it."""

    parallel: str
    document: dict[str, Any]
    predicted: list[dict[str, Any]]


@pytest.fixture(scope="module", params=["ddp", "fsdp"])
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A run and its prediction, one process each."""
    folder = tmp_path_factory.mktemp(request.param)
    flags = ("training", *SIZE, "--devices", "sim:0,sim:1", "--parallel", request.param, *CARDS, "--json")
    documents = []
    for command in ("run", "estimate"):
        done = run_python(folder, "-m", "gpudash", command, *flags, timeout=300)
        assert done.returncode == 0, done.stderr
        documents.append(json.loads(done.stdout))
    run, estimate = documents
    return Trained(request.param, run, estimate["ranks"])


def test_ranks_on_simulated_gpus_reach_the_predicted_peaks(trained: Trained) -> None:
    assert trained.document["status"] == "finished" and trained.document["simulated"] is True
    assert "SIMULATED" in trained.document["result"]["remark"]
    reached = trained.document["result"]["ranks"]
    assert [row["device"] for row in reached] == ["sim:0", "sim:1"]
    for row, predicted in zip(reached, trained.predicted, strict=True):
        assert row["peak_allocated_bytes"] == predicted["peak_allocated_bytes"]
        assert predicted["peak_reserved_bytes"] == row["peak_reserved_bytes"]


@pytest.mark.timed
def test_ranks_on_simulated_gpus_train_as_one_process_with_the_joined_batch(trained: Trained) -> None:
    result = trained.document["result"]
    assert result["parameters_equal"] is True and (result["backend"], result["world_size"]) == ("gloo", 2)
    alone = losses_alone(spec_of(steps=12))
    loss = trained.document["metrics"]["loss"]
    assert [loss["first"], loss["last"]] == pytest.approx([alone[0], alone[-1]], abs=1e-6)
    assert all(row["communication_share"] is not None for row in result["ranks"])


@pytest.mark.timed
def test_stop_ends_ranks_on_simulated_gpus_after_the_same_step_and_shows_their_cards_no_longer() -> None:
    wishes = Requests()

    def stop(record: Record) -> None:
        if isinstance(record, StepFinished) and record.step == 10:
            wishes.stop.set()

    ending, shown = run_on_cards(spec_of(steps=1_000_000), wishes, stop)

    assert isinstance(ending, RunEnd) and ending.status == "cancelled"
    steps = [row["steps"] for row in ending.result["ranks"]]
    assert min(steps) >= 10 and max(steps) - min(steps) <= 1
    assert "stop" not in ending.result  # nobody had to be killed
    fullest = max((figures for _, figures in shown), key=len)
    assert {(card["index"], card["pid"]) for card in fullest} == {
        (row["rank"], row["pid"]) for row in ending.result["ranks"]
    }
    assert shown[-1][1] == ()


def test_a_rank_without_room_on_its_small_card_is_named_with_its_memory(tmp_path: Path) -> None:
    flags = ("--width", "256", "--depth", "6", "--steps", "8", "--devices", "sim:0,sim:1")
    cards = ("--simulate", "24GiB", "--simulate", "340MiB")

    done = run_python(tmp_path, "-m", "gpudash", "run", "training", *flags, *cards, "--json", timeout=300)

    assert done.returncode == 3, done.stderr
    document = json.loads(done.stdout)
    assert (document["status"], document["error"]["kind"]) == ("out_of_memory", "sim")
    message = document["error"]["message"]
    assert "Rank 1 (sim:1 (SIMULATED), pid " in message and "ran out of the memory of sim:1" in message
    assert "Its device is the smallest: 340 MiB, the others' have 24.0 GiB or more." in message
    assert document["result"]["ranks"][1]["peak_allocated_bytes"] > 0


@pytest.mark.timed
def test_the_shown_program_of_ranks_on_simulated_gpus_reaches_the_losses_of_the_run(tmp_path: Path) -> None:
    spec = spec_of(steps=6)

    printed = losses_of_shown_program(tmp_path, spec, "sim:0", Simulation((24 * GIB, 24 * GIB)))

    assert printed == pytest.approx(losses_alone(spec), rel=1e-5)
