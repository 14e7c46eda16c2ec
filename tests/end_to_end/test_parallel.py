"""Training on several devices: torchrun's ranks, for real."""

from __future__ import annotations

import json
import os
import sqlite3
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from gpudash.specs import TrainingSpec, build
from gpudash.telemetry.recording.reading import open_recording
from gpudash.telemetry.records import EpochFinished, Note, Record, RunEnd, Sample, StepFinished
from gpudash.workloads.programs.parallel.parallel_run import ParallelRun
from gpudash.workloads.running.context import Requests
from gpudash.workloads.running.run import RunRequest
from tests.end_to_end.conftest import run_python
from tests.end_to_end.rank_losses import losses_alone, losses_of_shown_program

PATIENCE_S = 20.0
MLP: dict[str, Any] = {"model": "mlp", "width": 64, "depth": 3, "optimizer": "sgd", "learning_rate": 0.3}
STEPS = 50
PACE_S = 0.1
"""What every rank sleeps in a step: beside it a training so small is little, and the ranks' computing is the same."""
TOLERANCE = 0.08
"""Of the share by which a rank is slower, absolute."""
FAULTS = Path(__file__).parent / "rank_faults"
MARK = "GPUDASH_TESTS_OF_RANKS"
RANK_MODULES = ("workloads.parallel.rank_program", "workloads.parallel.launch_process")


@pytest.fixture(scope="module", autouse=True)
def marked() -> Iterator[None]:
    """Every process that these tests start can be told from those of others here, and its ranks fail as it is told."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(MARK, str(os.getpid()))
        patch.setenv("PYTHONPATH", f"{FAULTS}:{Path.cwd()}")
        yield


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Neither torchrun nor a rank outlives its test."""
    yield
    deadline = time.monotonic() + PATIENCE_S
    while (left := ranks_alive()) and time.monotonic() < deadline:
        psutil.wait_procs(left, 0.1)
    assert not left


def ranks_alive() -> list[psutil.Process]:
    return [process for process in psutil.process_iter(["cmdline"]) if is_rank(process)]


def is_rank(process: psutil.Process) -> bool:
    """Whether a process is torchrun or a rank of these tests that has not ended."""
    if not any(name in word for word in process.info["cmdline"] or () for name in RANK_MODULES):
        return False
    with suppress(psutil.Error):
        return process.status() != psutil.STATUS_ZOMBIE and process.environ().get(MARK) == str(os.getpid())
    return False


def run_on_several(
    spec: TrainingSpec, wishes: Requests | None = None, heed: Callable[[Record], None] | None = None
) -> tuple[Any, list[Record]]:
    """How a run ended, and everything it told."""
    told: list[Record] = []

    def take(record: Record) -> None:
        told.append(record)
        if heed is not None:
            heed(record)

    began = time.monotonic()
    request = RunRequest(spec, spec.own_device or "cpu", 1)
    return ParallelRun(request, wishes or Requests(), take, lambda: time.monotonic() - began).perform(), told


@dataclass(frozen=True)
class Trained:
    """A run of 50 steps that has ended, each of them slept through for the most part."""

    spec: TrainingSpec
    ending: Any
    reported: list[Record]

    @property
    def notes(self) -> list[Note]:
        """Those that name a straggler."""
        return [one for one in self.reported if isinstance(one, Note) and one.topic == "straggler"]


def trained(**values: Any) -> Trained:
    spec = build(TrainingSpec, {**MLP, **values, "steps": STEPS})
    assert isinstance(spec, TrainingSpec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RANK_PACE", str(PACE_S))
        if spec.parallel == "fsdp":
            patch.setenv("RANK_COMPILER", "1")
        return Trained(spec, *run_on_several(spec))


@pytest.fixture(scope="module")
def four() -> Trained:
    """Four ranks that accumulate gradients, the last of them slowed down by a fifth."""
    return trained(devices="cpu,cpu,cpu,cpu", global_batch=32, accumulation=2, slow_rank=0.2)


@pytest.fixture(scope="module")
def sharded() -> Trained:
    """Two equal ranks with shards of the parameters."""
    return trained(devices="cpu,cpu", parallel="fsdp")


@pytest.mark.timed
@pytest.mark.parametrize("name", ["four", "sharded"])
def test_ranks_train_as_one_process_with_the_joined_batch(name: str, request: pytest.FixtureRequest) -> None:
    run: Trained = request.getfixturevalue(name)
    ending, told, ranks = run.ending, run.reported, run.spec.world_size

    assert isinstance(ending, RunEnd) and ending.status == "finished"
    losses = [event.loss for event in told if isinstance(event, StepFinished)]
    alone = losses_alone(run.spec)
    assert losses == pytest.approx(alone, rel=1e-5) and alone[-1] < 0.9 * alone[0]
    assert ending.result["parameters_equal"] is True and ending.result["largest_difference"] == 0.0
    assert [row["steps"] for row in ending.result["ranks"]] == [STEPS] * ranks
    assert len([event for event in told if isinstance(event, EpochFinished)]) == 3
    rows = [sample for sample in told if isinstance(sample, Sample) and "step" in sample.values]
    assert {sample.device for sample in rows} == {str(rank) for rank in range(ranks)}
    assert all(0 < float(row.values["compute_s"] or 0) <= float(row.values["step_s"] or 0) for row in rows)


def test_a_rank_slowed_by_a_fifth_is_named_with_that_figure(four: Trained) -> None:
    computing = [row["compute_seconds_median"] for row in four.ending.result["ranks"]]
    assert computing[3] / statistics.median(computing[:3]) - 1 == pytest.approx(0.2, abs=TOLERANCE)
    straggler = four.ending.result["straggler"]
    assert straggler["rank"] == 3 and straggler["slower"] == pytest.approx(0.2, abs=TOLERANCE)
    assert [note.details["rank"] for note in four.notes] == [3] and "Rank 3" in four.notes[0].text


def test_equal_ranks_name_no_straggler(sharded: Trained) -> None:
    assert sharded.ending.result["straggler"] is None and not sharded.notes


@pytest.mark.timed
def test_the_shown_program_runs_under_torchrun_and_reaches_the_losses_of_the_run(tmp_path: Path) -> None:
    spec = build(TrainingSpec, {**MLP, "devices": "cpu,cpu", "steps": 6, "accumulation": 2})
    assert isinstance(spec, TrainingSpec)

    printed = losses_of_shown_program(tmp_path, spec, "cpu")

    assert printed == pytest.approx(losses_alone(spec), rel=1e-5)


@pytest.mark.timed
def test_stop_ends_all_ranks_after_the_same_step() -> None:
    spec = build(TrainingSpec, {**MLP, "devices": "cpu,cpu", "steps": 1_000_000})
    assert isinstance(spec, TrainingSpec)
    wishes = Requests()

    def stop(record: Record) -> None:
        if isinstance(record, StepFinished) and record.step == 10:
            wishes.stop.set()

    ending, told = run_on_several(spec, wishes, stop)

    assert isinstance(ending, RunEnd) and ending.status == "cancelled"
    steps = [row["steps"] for row in ending.result["ranks"]]
    assert min(steps) >= 10 and max(steps) - min(steps) <= 1
    assert ending.result["parameters_equal"] is None
    assert ending.steps == len([event for event in told if isinstance(event, StepFinished)])


@pytest.mark.timed
def test_a_guard_stops_the_ranks_even_before_their_first_step() -> None:
    spec = build(TrainingSpec, {**MLP, "devices": "cpu,cpu"})
    assert isinstance(spec, TrainingSpec)
    wishes = Requests()

    def guard(record: Record) -> None:
        if isinstance(record, Note) and record.topic == "ranks":
            wishes.because = "Memory reached the guard."
            wishes.stop.set()

    ending, _ = run_on_several(spec, wishes, guard)

    assert (ending.kind, ending.error, ending.steps) == ("OutOfMemory", "guard", 0)


@dataclass(frozen=True)
class Failed:
    """A run whose rank 1 has failed in the fifth step of each start, as a command has told and recorded it."""

    code: int
    document: dict[str, Any]
    restarts: list[Note]
    rows: list[tuple[str, int]]
    ending: dict[str, Any]


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> Failed:
    """Rank 1 is killed, raises, stands still, and at last, when torchrun starts nobody any more, has no memory left."""
    folder = tmp_path_factory.mktemp("failed")
    recording = folder / "failed.gpudash"
    flags = ["--model", "mlp", "--width", "32", "--depth", "2", "--steps", "12", "--rank-timeout", "8"]
    command = ("-m", "gpudash", "run", "training", "--devices", "cpu,cpu", "--max-restarts", "3", *flags)
    faults = {"RANK_FAULT": "1:5:kill,raise,stop,grow"}
    done = run_python(folder, *command, "--record", str(recording), "--json", extra=faults, timeout=300)
    assert done.stdout, done.stderr
    with open_recording(recording) as opened:
        notes = [one for one in opened.events() if isinstance(one, Note) and one.topic == "restart"]
    with closing(sqlite3.connect(recording)) as database:
        rows = database.execute("select device, step from rank where step is not null order by rowid").fetchall()
        ending = database.execute("select json from event where kind = 'OutOfMemory'").fetchone()
    return Failed(done.returncode, json.loads(done.stdout), notes, rows, json.loads(ending[0]))


def test_a_rank_that_was_killed_is_named_when_torchrun_starts_all_anew(failed: Failed) -> None:
    note = failed.restarts[0]
    assert note.details["rank"] == 1 and note.details["error"] == "killed"
    assert "Rank 1 (cpu, pid " in note.text and "SIGKILL" in note.text and "restart 1 of 3" in note.text


def test_a_rank_that_raised_is_named_with_its_error_and_place(failed: Failed) -> None:
    note = failed.restarts[1]
    assert note.details["rank"] == 1 and note.details["error"] == "LookupError"
    assert "Rank 1 (cpu, pid " in note.text and "the training set has a hole" in note.text
    assert "in raise_here" in note.text and "in step 5" in note.text


def test_a_rank_that_stands_still_is_named_after_the_time_limit(failed: Failed) -> None:
    note = failed.restarts[2]
    assert note.details["rank"] == 1 and note.details["error"] == "hang"
    assert "Rank 1" in note.text and "stands still" in note.text


def test_a_rank_that_runs_out_of_memory_is_named_with_the_reason_why_it_and_no_other(failed: Failed) -> None:
    assert (failed.code, failed.document["status"], failed.document["steps"]) == (3, "out_of_memory", 4)
    message = failed.document["error"]["message"]
    assert "Rank 1" in message and "the last request was 1.00 GiB" in message
    assert "address space, the others' are not" in message


def test_the_recording_of_a_run_that_failed_holds_every_step_of_every_start(failed: Failed) -> None:
    assert failed.rows == [(rank, step) for _start in range(4) for step in range(1, 5) for rank in ("0", "1")]
    assert failed.ending["steps"] == 4 and failed.ending["result"]["restarts"] == len(failed.restarts) == 3
