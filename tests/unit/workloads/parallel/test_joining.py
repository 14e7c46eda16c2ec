"""What ranks tell becomes the records of one run."""

from __future__ import annotations

from typing import Any

import pytest

from gpudash.devices.names import Device
from gpudash.specs import TrainingSpec, build
from gpudash.telemetry.records import EpochFinished, Note, Record, Sample, StageFinished, StepFinished
from gpudash.units import GIB
from gpudash.workloads.programs.parallel.joining import Joining

FACTS = {"item": "sample", "parameters": 10}


class Bench:
    """Ranks that tell what a test says."""

    def __init__(self, known: tuple[Device, ...] = (), **values: Any) -> None:
        spec = build(TrainingSpec, {"devices": "cpu,cpu", "model": "mlp", "steps": 4, "epochs": 2, **values})
        assert isinstance(spec, TrainingSpec)
        self.told: list[Record] = []
        self.now = 0.0
        self.joining = Joining(spec, known, 7, self.told.append, lambda: self.now)

    def hello(self, rank: int) -> None:
        self.joining.take(rank, {"type": "hello", "pid": 100 + rank, "host": "node", "run": "abc"})

    def step(self, rank: int, step: int, loss: Any, *, compute_s: float = 0.3) -> None:
        self.joining.take(
            rank,
            {
                "type": "step",
                "step": step,
                "time_s": float(step),
                "step_s": 0.5,
                "compute_s": compute_s,
                "blocked_s": 0.5 - compute_s,
                "loss": loss,
                "accuracy": 0.5,
            },
        )

    def of(self, kind: type[Any]) -> list[Any]:
        return [record for record in self.told if isinstance(record, kind)]


def test_a_step_is_told_once_all_ranks_have_told_it_with_the_mean_loss_and_all_items() -> None:
    bench = Bench()
    for rank in (0, 1):
        bench.joining.take(rank, {"type": "ready", "items": 32, "facts": FACTS, "memory": {"total_bytes": 5}})
    bench.step(1, 1, 3.0, compute_s=0.4)
    assert not bench.of(StepFinished)
    bench.step(0, 1, 1.0)

    (step,) = bench.of(StepFinished)
    assert (step.loss, step.throughput, step.steps, step.run_id) == (2.0, 64.0, 4, 7)
    rows = {sample.device: sample.values for sample in bench.of(Sample)}
    assert rows["0"]["communication_s"] == pytest.approx(0.1) and rows["0"]["waiting_s"] == pytest.approx(0.1)
    assert rows["1"]["waiting_s"] == 0.0 and rows["1"]["loss"] == 3.0


def test_epochs_are_told_with_the_means_of_their_steps() -> None:
    bench = Bench()
    for step in (1, 2, 3, 4):
        for rank in (0, 1):
            bench.step(rank, step, float(step))

    assert [(epoch.epoch, epoch.loss) for epoch in bench.of(EpochFinished)] == [(1, 1.5), (2, 3.5)]
    assert [row["epoch"] for row in bench.joining.result()["epochs"]] == [1, 2]


def test_a_loss_that_is_not_finite_comes_through() -> None:
    bench = Bench()
    bench.step(0, 1, "nan")
    bench.step(1, 1, 1.0)

    (step,) = bench.of(StepFinished)
    assert step.loss != step.loss


def test_the_ranks_are_introduced_when_all_have_come_with_the_smallest_device_that_decides() -> None:
    devices = (Device("cuda:0", "A", 24 * GIB, "GPU-0"), Device("cuda:1", "B", 16 * GIB, "GPU-1"))
    bench = Bench(devices, devices="cuda:0,cuda:1", batch=8, parallel="fsdp")
    bench.hello(1)
    assert not bench.told
    bench.hello(0)

    (note,) = bench.of(Note)
    assert note.topic == "ranks" and "FSDP2 over NCCL, batch 8 on each, 16 together" in note.text
    assert "cuda:1 is the smallest with 16.0 GiB and decides what fits" in note.text
    assert note.details["run"] == "abc" and note.details["ranks"][1] == {
        "rank": 1,
        "local_rank": 1,
        "device": "cuda:1",
        "host": "node",
        "pid": 101,
        "capacity_bytes": 16 * GIB,
    }


def test_memory_is_told_per_rank_and_its_peaks_are_in_the_result() -> None:
    bench = Bench()
    bench.hello(0)
    beat = {"type": "beat", "time_s": 1.0, "step": 1, "phase": "computing", "where": "a.py:1 in b"}
    for used in (50, 90, 70):
        bench.joining.take(0, {**beat, "used_bytes": used, "allocated_bytes": None, "reserved_bytes": None})

    assert [sample.values for sample in bench.of(Sample)] == [{"used_bytes": used} for used in (50, 90, 70)]
    assert bench.joining.result()["ranks"][0]["peak_used_bytes"] == 90
    assert bench.joining.resident_bytes() == {100: 70}
    assert bench.joining.standings[0].where == "a.py:1 in b"


@pytest.mark.parametrize(
    ("digests", "equal", "largest"),
    [(("a", "a"), True, 0.0), (("a", "b"), False, 0.25), ((None, None), None, None), (("a",), None, None)],
)
def test_parameters_are_called_equal_only_when_every_rank_says_so(
    digests: tuple[str | None, ...], equal: bool | None, largest: float | None
) -> None:
    bench = Bench()
    for rank, digest in enumerate(digests):
        told: dict[str, Any] = {"type": "done", "steps": 4}
        bench.joining.take(rank, told if digest is None else {**told, "digest": digest, "difference": largest})

    result = bench.joining.result()
    assert (result["parameters_equal"], result["largest_difference"]) == (equal, largest)


def test_after_a_restart_steps_begin_again_and_notes_are_not_told_twice() -> None:
    bench = Bench()
    bench.hello(0)
    bench.step(0, 1, 1.0)
    note = Note(time_s=1.0, run_id=0, topic="classes", text="ten")
    stage = StageFinished(time_s=1.0, run_id=0, name="forward", seconds=0.1)
    bench.joining.take(0, {"type": "event", "event": note.to_json()})
    bench.joining.begin_again(1)
    for event in (note, stage):
        bench.joining.take(0, {"type": "event", "event": event.to_json()})
    for rank in (0, 1):
        bench.step(rank, 1, 2.0)

    assert len(bench.of(Note)) == 1 and [event.run_id for event in bench.of(StageFinished)] == [7]
    assert [step.loss for step in bench.of(StepFinished)] == [2.0]
    assert bench.joining.restarts == bench.joining.result()["restarts"] == 1


def test_a_straggler_is_named_once_and_kept_in_the_result() -> None:
    bench = Bench(steps=400, epochs=1)
    for step in range(1, 301):
        for rank in (0, 1):
            bench.step(rank, step, 1.0, compute_s=0.4 if rank else 0.3)
    bench.joining.look(at_end=True)
    bench.joining.look(at_end=True)

    (note,) = [note for note in bench.of(Note) if note.topic == "straggler"]
    assert note.details["rank"] == 1 and note.details["slower"] == pytest.approx(1 / 3, abs=0.01)
    assert bench.joining.result()["straggler"]["rank"] == 1


def test_a_straggler_is_named_while_the_run_is_on_when_two_looks_agree_and_not_again_when_it_comes_back() -> None:
    bench = Bench(steps=4000, epochs=1)
    named = []
    for step in range(1, 301):
        bench.now += 0.1
        for rank in (0, 1):
            bench.step(rank, step, 1.0, compute_s=0.4 if rank else 0.3)
        named.append(len([note for note in bench.of(Note) if note.topic == "straggler"]))
    bench.joining.begin_again(1)
    for step in range(1, 301):
        bench.now += 0.1
        for rank in (0, 1):
            bench.step(rank, step, 1.0, compute_s=0.4 if rank else 0.3)

    assert named[29] == 0 and named[-1] == 1
    assert len([note for note in bench.of(Note) if note.topic == "straggler"]) == 1


def test_memory_is_not_compared_before_all_ranks_have_settled() -> None:
    bench = Bench()
    beat = {"type": "beat", "time_s": 1.0, "step": 1, "phase": "computing", "where": ""}
    for rank, used in ((0, 1 * GIB), (1, 2 * GIB)):
        bench.joining.take(rank, {**beat, "used_bytes": used, "allocated_bytes": None, "reserved_bytes": None})
    for step in range(1, 5):
        for rank in (0, 1):
            bench.step(rank, step, 1.0)
    assert bench.joining.result()["memory_imbalance"] is None
    for rank in (0, 1):
        bench.step(rank, 5, 1.0)
    assert bench.joining.result()["memory_imbalance"]["rank"] == 1
