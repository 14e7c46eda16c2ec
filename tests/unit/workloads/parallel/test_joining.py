"""What ranks tell becomes one run: joined steps, who holds the others up, and why ranks ended."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from gpudash.devices.names import Device
from gpudash.specs import TrainingSpec, build
from gpudash.system.processes import TORCH_IMPORT_S
from gpudash.telemetry.records import EpochFinished, Note, Record, RunEnd, Sample, StageFinished, StepFinished
from gpudash.units import GIB
from gpudash.workloads.programs.parallel.joining import (
    COLLECTIVE,
    Ended,
    HeldUp,
    Joining,
    Standing,
    cause_of,
    ending_of_cause,
    held_up,
    overdue,
    waited_s,
    why_that_one,
)
from gpudash.workloads.running.run_errors import Progress

FACTS = {"item": "sample", "parameters": 10}


class Bench:
    """Ranks that tell what a test says."""

    def __init__(self, known: tuple[Device, ...] = (), **values: Any) -> None:
        spec = build(TrainingSpec, {"devices": "cpu,cpu", "model": "mlp", "steps": 4, "epochs": 2, **values})
        assert isinstance(spec, TrainingSpec)
        self.reported: list[Record] = []
        self.now = 0.0
        self.joining = Joining(spec, known, 7, self.reported.append, lambda: self.now)

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
        return [record for record in self.reported if isinstance(record, kind)]


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
    assert not bench.reported
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
    bench.joining.note_findings(at_end=True)
    bench.joining.note_findings(at_end=True)

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


def rank(number: int, step: int, phase: str, since_s: float = 0.0, heard_s: float = 10.0, where: str = "") -> Standing:
    found = Standing(number, "cpu", pid=100 + number)
    found.stands(step, phase, where, since_s)
    found.heard_s = heard_s
    return found


def test_the_rank_that_still_computes_is_named_with_the_place_where_it_stands() -> None:
    found = held_up([rank(0, 5, COLLECTIVE, 3.0), rank(1, 5, "computing", 3.0, where="mine.py:7 in loop")], 10.0)

    assert found is not None and found.rank == 1
    assert "Rank 1 (cpu, pid 101) keeps the other rank waiting at step 5" in found.text
    assert "7.0 s" in found.text and "computing step 5, at mine.py:7 in loop" in found.text


def test_a_rank_a_step_behind_is_named_though_it_waits_too() -> None:
    found = held_up([rank(0, 5, COLLECTIVE), rank(1, 4, COLLECTIVE), rank(2, 5, "computing")], 10.0)

    assert found is not None and found.rank == 1 and "the other ranks" in found.text


def test_a_silent_rank_comes_before_one_that_computes() -> None:
    found = held_up([rank(0, 5, "computing"), rank(1, 5, COLLECTIVE, heard_s=2.0), rank(2, 5, COLLECTIVE)], 10.0)

    assert found is not None and found.rank == 1 and "has said nothing for 8.0 s" in found.text


def test_a_rank_that_never_spoke_has_not_begun() -> None:
    found = held_up([rank(0, 0, COLLECTIVE), Standing(1, "cpu")], 10.0)

    assert found is not None and found.text == "Rank 1 (cpu) has not begun, and the others wait for it."


def test_nobody_is_named_where_all_compute_all_wait_or_all_are_silent() -> None:
    assert held_up([rank(0, 5, "computing"), rank(1, 5, "computing")], 10.0) is None
    assert held_up([rank(0, 5, COLLECTIVE), rank(1, 5, COLLECTIVE)], 10.0) is None
    assert held_up([rank(0, 5, "computing", heard_s=1.0), rank(1, 5, "computing", heard_s=1.0)], 10.0) is None


def test_waiting_is_counted_from_the_arrival_at_the_collective() -> None:
    waiting = rank(0, 5, COLLECTIVE, 3.0)
    waiting.stands(5, COLLECTIVE, "", 9.0)
    assert waited_s([waiting, rank(1, 5, "computing")], 10.0) == 7.0
    assert waited_s([rank(0, 5, "computing")], 10.0) == 0.0


def test_a_rank_that_is_slow_to_begin_is_waited_for_longer_than_one_that_trains() -> None:
    both = [rank(0, 0, COLLECTIVE, since_s=0.0, heard_s=30.0), rank(1, 0, "starting", heard_s=30.0)]
    assert not overdue(both, 30.0, patience_s=5.0, grace_s=10.0)
    assert overdue(both, TORCH_IMPORT_S + 10.1, patience_s=5.0, grace_s=10.0)
    for one in both:
        one.ready = True
    assert overdue(both, 30.0, patience_s=5.0, grace_s=10.0) and not overdue(both, 15.0, patience_s=5.0, grace_s=10.0)


def test_ranks_that_have_all_fallen_silent_are_overdue() -> None:
    both = [rank(0, 3, "computing", heard_s=10.0), rank(1, 3, "computing", heard_s=10.0)]
    for one in both:
        one.ready = True
    assert overdue(both, 25.1, 5.0, 10.0) and not overdue(both, 24.9, 5.0, 10.0)
    both[1].heard_s = 20.0
    assert not overdue(both, 25.1, 5.0, 10.0)


GONE: dict[str, Any] = {"error": "RuntimeError", "message": "Connection closed by peer", "because_of": "gone"}
OWN: dict[str, Any] = {"error": "ValueError", "message": "no such row", "where": "mine.py:3 in rows"}
FULL: dict[str, Any] = {"error": "OutOfMemoryError", "message": "...", "full": "cuda", "requested_bytes": 2 * GIB}


def ranks(count: int = 2, device: str = "cpu") -> list[Standing]:
    names = [device if device == "cpu" else f"{device}:{rank}" for rank in range(count)]
    return [Standing(rank, name, pid=100 + rank, step=5, steps=4) for rank, name in enumerate(names)]


def test_an_error_of_its_own_comes_before_the_connections_that_it_broke() -> None:
    cause = cause_of(Ended(failed=[(0, GONE), (1, OWN)]), ranks(), memory_was_full=False, printed="")

    assert (cause.rank, cause.error) == (1, "ValueError")
    expected = "Rank 1 (cpu, pid 101) failed in step 5 at mine.py:3 in rows by ValueError: no such row."
    assert cause.message == expected


@pytest.mark.parametrize(
    ("code", "error", "words"),
    [
        (-signal.SIGKILL, "killed", "was killed from outside after step 4 (SIGKILL)"),
        (-signal.SIGSEGV, "crashed", "crashed after step 4 (Segmentation fault, SIGSEGV)"),
        (7, "exited", "ended itself after step 4 with exit code 7"),
    ],
)
def test_a_rank_that_fell_without_a_word_is_named_by_how(code: int, error: str, words: str) -> None:
    ended = Ended(failed=[(0, GONE)], failed_ranks={0: 1, 1: code}, gone=[1])

    cause = cause_of(ended, ranks(), memory_was_full=False, printed="what was printed")

    assert (cause.rank, cause.error, cause.details) == (1, error, "what was printed")
    assert words in cause.message


def test_a_rank_that_torchrun_ended_after_another_is_not_to_blame() -> None:
    ended = Ended(failed_ranks={0: -signal.SIGTERM, 1: -signal.SIGKILL}, gone=[0, 1])
    assert cause_of(ended, ranks(), memory_was_full=False, printed="").rank == 1


def test_a_rank_that_the_system_killed_for_memory_is_an_out_of_memory() -> None:
    cause = cause_of(Ended(failed_ranks={1: -9}, gone=[1]), ranks(), memory_was_full=True, printed="")
    ending = ending_of_cause(cause, Progress(1.0, 1, 1.0, 4, {}))

    assert (
        isinstance(ending, RunEnd)
        and ending.status == "out_of_memory"
        and ending.error == "host"
        and "killed rank 1" in ending.message
    )


def test_who_held_the_others_up_is_named_before_its_process_that_was_ended_for_it() -> None:
    ended = Ended(
        failed=[(0, {**GONE, "because_of": "late"})], failed_ranks={1: -9}, gone=[1], late=HeldUp(1, "Rank 1 stands.")
    )
    cause = cause_of(ended, ranks(), memory_was_full=False, printed="")

    assert (cause.rank, cause.error, cause.message) == (1, "hang", "Rank 1 stands.")
    assert ending_of_cause(cause, Progress(1.0, 1, 1.0, 4, {})).kind == "RunFailed"


@pytest.mark.parametrize(
    ("ended", "error", "rank"),
    [
        (Ended(gone=[1]), "gone", 1),
        (Ended(failed=[(0, GONE)]), "lost", 0),
        (Ended(), "torchrun", None),
    ],
)
def test_what_nobody_knows_is_not_made_up(ended: Ended, error: str, rank: int | None) -> None:
    cause = cause_of(ended, ranks(), memory_was_full=False, printed="")
    assert (cause.error, cause.rank) == (error, rank)


def test_an_out_of_memory_names_the_rank_the_request_and_why_it() -> None:
    standings = ranks(device="cuda")
    standings[0].memory = {"total_bytes": 24 * GIB}
    cause = cause_of(
        Ended(failed=[(1, {**FULL, "total_bytes": 16 * GIB})]), standings, memory_was_full=False, printed=""
    )
    ending = ending_of_cause(cause, Progress(1.0, 1, 1.0, 4, {}))

    assert isinstance(ending, RunEnd) and ending.status == "out_of_memory" and ending.requested_bytes == 2 * GIB
    assert "Rank 1 (cuda:1, pid 101) ran out of the memory of cuda:1 in step 5" in ending.message
    assert "the smallest: 16.0 GiB, the others' have 24.0 GiB or more" in ending.message


@pytest.mark.parametrize(
    ("own", "other", "words"),
    [
        ({"limit_bytes": GIB}, {"limit_bytes": None}, "limited to 1.00 GiB of address space, the others' are not"),
        (
            {"total_bytes": 8 * GIB, "free_bytes": 0, "reserved_bytes": 3 * GIB},
            {"total_bytes": 8 * GIB, "free_bytes": 4 * GIB, "reserved_bytes": 3 * GIB},
            "Other processes hold 5.00 GiB of its device, and at most 1.00 GiB",
        ),
        (
            {"allocated_bytes": 4 * GIB},
            {"peak_allocated_bytes": 3 * GIB},
            "It held 4.00 GiB itself, and no other rank more than 3.00 GiB",
        ),
        ({"allocated_bytes": 3 * GIB}, {"peak_allocated_bytes": 3 * GIB}, "was the first to find no room"),
    ],
)
def test_why_memory_ran_out_on_this_rank_is_told_by_what_sets_it_apart(
    own: dict[str, Any], other: dict[str, Any], words: str
) -> None:
    standings = ranks(device="cuda")
    standings[0].memory = other
    assert words in why_that_one(1, own, standings)
