"""Training on several devices: torchrun's ranks, for real."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from gpudash.specs import TrainingSpec, build
from gpudash.telemetry.records import EpochFinished, Note, Record, RunFinished, Sample, StepFinished
from gpudash.workloads.code import code
from gpudash.workloads.context import Wishes
from gpudash.workloads.parallel.parallel_run import ParallelRun
from gpudash.workloads.run import Run, RunRequest
from tests.end_to_end.conftest import Command

PATIENCE_S = 20.0
MLP: dict[str, Any] = {"model": "mlp", "width": 64, "depth": 3, "optimizer": "sgd", "learning_rate": 0.3}
FAULTS = Path(__file__).parent / "rank_faults"
RANK_MODULES = ("workloads.parallel.rank_program", "workloads.parallel.launch_process")


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Neither torchrun nor a rank outlives its test."""
    yield
    deadline = time.monotonic() + PATIENCE_S
    while (left := ranks_alive()) and time.monotonic() < deadline:
        psutil.wait_procs(left, 0.1)
    assert not left


def ranks_alive() -> list[psutil.Process]:
    return [
        process
        for process in psutil.process_iter(["cmdline", "status"])
        if any(name in word for word in process.info["cmdline"] or () for name in RANK_MODULES)
        and process.info["status"] != psutil.STATUS_ZOMBIE
    ]


def run_on_several(
    spec: TrainingSpec, wishes: Wishes | None = None, heed: Callable[[Record], None] | None = None
) -> tuple[Any, list[Record]]:
    """How a run ended, and everything it told."""
    told: list[Record] = []

    def take(record: Record) -> None:
        told.append(record)
        if heed is not None:
            heed(record)

    began = time.monotonic()
    request = RunRequest(spec, spec.own_device or "cpu", 1)
    return ParallelRun(request, wishes or Wishes(), take, lambda: time.monotonic() - began).perform(), told


def losses_alone(spec: TrainingSpec) -> list[float]:
    """The losses of one process with the joined batch."""
    told: list[Any] = []
    Run(RunRequest(spec.joined_spec, "cpu", 1), Wishes(), told.append, time.monotonic).perform()
    return [event.loss for event in told if isinstance(event, StepFinished)]


@pytest.mark.parametrize(
    "values",
    [
        {**MLP, "devices": "cpu,cpu,cpu,cpu", "global_batch": 32, "accumulation": 2},
        {**MLP, "devices": "cpu,cpu", "parallel": "fsdp"},
    ],
    ids=["four ranks that accumulate", "two ranks with shards"],
)
def test_ranks_train_as_one_process_with_the_joined_batch(values: dict[str, Any]) -> None:
    spec = build(TrainingSpec, {**values, "steps": 50})
    assert isinstance(spec, TrainingSpec)

    ending, told = run_on_several(spec)

    assert isinstance(ending, RunFinished) and ending.status == "finished"
    losses = [event.loss for event in told if isinstance(event, StepFinished)]
    alone = losses_alone(spec)
    assert losses == pytest.approx(alone, rel=1e-5) and alone[-1] < 0.9 * alone[0]
    assert ending.result["parameters_equal"] is True and ending.result["largest_difference"] == 0.0
    assert [row["steps"] for row in ending.result["ranks"]] == [50] * spec.world_size
    assert len([event for event in told if isinstance(event, EpochFinished)]) == 3
    rows = [sample for sample in told if isinstance(sample, Sample) and "step" in sample.values]
    assert {sample.device for sample in rows} == {str(rank) for rank in range(spec.world_size)}
    assert all(0 < float(row.values["compute_s"] or 0) <= float(row.values["step_s"] or 0) for row in rows)


def test_the_shown_program_runs_under_torchrun_and_reaches_the_losses_of_the_run(tmp_path: Path) -> None:
    spec = build(TrainingSpec, {**MLP, "devices": "cpu,cpu", "steps": 6, "accumulation": 2})
    assert isinstance(spec, TrainingSpec)
    program = tmp_path / "shown.py"
    program.write_text(code(spec, "cpu"))
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]

    done = subprocess.run(
        [*launch, "--local-addr=127.0.0.1", str(program)], capture_output=True, text=True, timeout=150, check=False
    )

    assert done.returncode == 0, done.stderr
    printed = [float(line.split()[1]) for line in done.stdout.splitlines()]
    assert printed == pytest.approx(losses_alone(spec), rel=1e-5)


def test_stop_ends_all_ranks_after_the_same_step() -> None:
    spec = build(TrainingSpec, {**MLP, "devices": "cpu,cpu", "steps": 1_000_000})
    assert isinstance(spec, TrainingSpec)
    wishes = Wishes()

    def stop(record: Record) -> None:
        if isinstance(record, StepFinished) and record.step == 10:
            wishes.stop.set()

    ending, told = run_on_several(spec, wishes, stop)

    assert isinstance(ending, RunFinished) and ending.status == "cancelled"
    steps = [row["steps"] for row in ending.result["ranks"]]
    assert min(steps) >= 10 and max(steps) - min(steps) <= 1
    assert ending.result["parameters_equal"] is None
    assert ending.steps == len([event for event in told if isinstance(event, StepFinished)])


def test_a_guard_stops_the_ranks_even_before_their_first_step() -> None:
    spec = build(TrainingSpec, {**MLP, "devices": "cpu,cpu"})
    assert isinstance(spec, TrainingSpec)
    wishes = Wishes()
    wishes.because = "Memory reached the guard."
    threading.Timer(0.5, wishes.stop.set).start()

    ending, _ = run_on_several(spec, wishes)

    assert (ending.kind, ending.error, ending.steps) == ("OutOfMemory", "guard", 0)


def failing(gpudash: Command, recording: Path, fault: str, *more: str) -> tuple[int, dict[str, Any]]:
    """Exit code and outcome of a run whose rank 1 fails in its fifth step."""
    flags = ("--model", "mlp", "--width", "32", "--depth", "2", "--steps", "12")
    outcome = gpudash(
        *("run", "training", "--devices", "cpu,cpu", *flags, *more, "--record", str(recording), "--json"),
        env={"RANK_FAULT": f"1:5:{fault}", "PYTHONPATH": f"{FAULTS}:{Path.cwd()}"},
    )
    return outcome.code, outcome.document


def test_a_rank_that_raises_is_named_with_its_error_and_place_and_the_recording_is_whole(
    gpudash: Command, tmp_path: Path
) -> None:
    recording = tmp_path / "raised.gpudash"
    status, document = failing(gpudash, recording, "raise")

    assert (status, document["status"], document["steps"]) == (1, "failed", 4)
    error = document["error"]
    assert error["kind"] == "LookupError" and "the training set has a hole" in error["message"]
    assert error["message"].startswith("Rank 1 (cpu, pid ") and "in raise_here" in error["message"]
    with sqlite3.connect(recording) as opened:
        rows = opened.execute("select device, step from rank where step is not null order by step, device").fetchall()
        ending = opened.execute("select json from event where kind = 'RunFailed'").fetchall()
    assert rows == [(rank, step) for step in range(1, 5) for rank in ("0", "1")]
    assert json.loads(ending[0][0])["steps"] == 4


def test_a_rank_that_runs_out_of_memory_is_named_with_the_reason_why_it_and_no_other(
    gpudash: Command, tmp_path: Path
) -> None:
    status, document = failing(gpudash, tmp_path / "full.gpudash", "grow")

    assert (status, document["status"]) == (3, "out_of_memory")
    message = document["error"]["message"]
    assert "Rank 1" in message and "the last request was 1.00 GiB" in message
    assert "address space, the others' are not" in message


def test_a_rank_that_stands_still_is_named_after_the_time_limit(gpudash: Command, tmp_path: Path) -> None:
    status, document = failing(gpudash, tmp_path / "stopped.gpudash", "stop", "--rank-timeout", "8")

    assert (status, document["error"]["kind"]) == (1, "hang")
    assert "Rank 1" in document["error"]["message"] and "stands still" in document["error"]["message"]


def test_ranks_are_started_anew_after_one_was_killed_where_torchrun_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK_FAULT", "1:5:kill:once")
    monkeypatch.setenv("PYTHONPATH", f"{FAULTS}:{Path.cwd()}")
    spec = build(TrainingSpec, {**MLP, "devices": "cpu,cpu", "steps": 12, "max_restarts": 1})
    assert isinstance(spec, TrainingSpec)

    ending, told = run_on_several(spec)

    assert isinstance(ending, RunFinished) and ending.status == "finished" and ending.steps == 12
    assert ending.result["restarts"] == 1 and ending.result["parameters_equal"] is True
    (note,) = [one for one in told if isinstance(one, Note) and one.topic == "restart"]
    assert "Rank 1" in note.text and "SIGKILL" in note.text and "restart 1 of 1" in note.text
