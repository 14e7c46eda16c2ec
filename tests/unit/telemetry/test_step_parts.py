"""Where the time of a step went: from the seconds of a run's stages to shares, a sentence and what would help."""

from __future__ import annotations

import math
from dataclasses import asdict

import pytest

from gpudash.telemetry.records import Note, RunStarted, StageFinished, Topic
from gpudash.telemetry.results.step_parts import FIRST_BATCH, Loader, StepParts, step_parts
from gpudash.telemetry.runs import RunView

WAITING = {"input": 5.8, "forward": 1.8, "backward": 1.7, "optimizer": 0.7}


def parts_of(
    seconds: dict[str, float], loader: Loader | None = None, kind: str = "cpu", *, watched: bool = True
) -> StepParts:
    found = step_parts(seconds, 10, kind, loader, watched=watched)
    assert found is not None
    return found


def help_of(seconds: dict[str, float], loader: Loader, kind: str = "cpu") -> str:
    (found,) = parts_of(seconds, loader, kind).help
    return found


def test_shares_are_those_of_a_step_and_the_largest_is_what_holds_it_up() -> None:
    found = parts_of(WAITING)
    assert found.seconds == pytest.approx(1.0) and sum(found.shares.values()) == pytest.approx(1.0)
    assert found.line() == "input 58 % · forward 18 % · backward 17 % · optimizer 7 %"
    assert (found.bound, found.sentence) == ("input", "58 % of the step waits for the DataLoader.")
    assert found.help == (), "nothing is known of its loader"


def test_without_a_loader_nothing_is_said_of_input() -> None:
    found = parts_of({"forward": 2.0, "backward": 3.0, "optimizer": 1.0, "other": 1.0})
    assert "input" not in found.shares and "DataLoader" not in found.text()
    assert (found.bound, found.sentence) == ("compute", "Forward and backward pass take 71 % of the step.")


def test_input_that_is_not_the_largest_part_is_mentioned_where_it_is_much() -> None:
    much = parts_of({"input": 1.5, "forward": 3.0, "backward": 5.5}, Loader(0))
    assert much.sentence == "Forward and backward pass take 85 % of the step; 15 % waits for the DataLoader."
    assert "1 worker would" in much.text()
    little = parts_of({"input": 0.5, "forward": 3.0, "backward": 5.5}, Loader(0))
    assert "DataLoader" not in little.text()


@pytest.mark.parametrize(
    ("seconds", "bound", "beginning"),
    [
        ({"forward": 1.0, "backward": 2.0, "optimizer": 5.0}, "optimizer", "The optimizer takes 62 %"),
        ({"forward": 1.0, "backward": 2.0, "other": 5.0}, "other", "62 % of the step is none of its parts"),
        ({"forward": 1.0, "backward": 1.0, "batch": 3.0, "batch back": 3.0}, "copies", "Copies between host and"),
        ({"forward": 9.0, "batch": 1.0}, "compute", "The forward pass takes 90 %"),
    ],
)
def test_each_part_has_a_sentence(seconds: dict[str, float], bound: str, beginning: str) -> None:
    found = parts_of(seconds)
    assert found.bound == bound and found.sentence.startswith(beginning)


def test_the_time_of_a_program_on_a_gpu_is_called_the_hosts() -> None:
    assert parts_of(WAITING, kind="cuda").sentence == "58 % of the host's time in a step waits for the DataLoader."
    assert parts_of(WAITING, kind="cuda").to_json()["clock"] == "host"
    assert not parts_of(WAITING, kind="sim").host
    assert not parts_of(WAITING, kind="cuda", watched=False).host, "stages of our own are timed on the device"


def test_a_loader_without_workers_is_offered_as_many_as_hide_it() -> None:
    assert "num_workers=0" in help_of(WAITING, Loader(0, cores=8))
    assert "2 workers would load beside the step, which then takes up to 58 % less time" in help_of(WAITING, Loader(0))
    mostly = {"input": 9.0, "forward": 0.5, "backward": 0.5}
    assert "9 workers" in help_of(mostly, Loader(0, cores=16))
    few = help_of(mostly, Loader(0, cores=3))
    assert "3 workers" in few and "up to 70 % less time" in few, "three load a batch in 30 % of what one takes"


def test_workers_that_do_not_keep_up_are_offered_more_as_far_as_there_are_cores() -> None:
    assert "which do not keep up: 10 workers" in help_of(WAITING, Loader(4, cores=16))
    assert "8 workers would load beside the step, which then takes up to 50 %" in help_of(WAITING, Loader(4, cores=8))
    enough = help_of(WAITING, Loader(8, cores=8))
    assert "as many as there are cores for" in enough and "workers would" not in enough


def test_workers_that_start_for_every_pass_are_told_to_stay() -> None:
    passes = {**WAITING, "input": 2.8, FIRST_BATCH: 3.0}
    assert "persistent_workers=True keeps them" in help_of(passes, Loader(2, persistent_workers=False))
    assert "keeps them" not in help_of(passes, Loader(2, persistent_workers=True))


def test_pinned_memory_is_offered_on_cuda_alone() -> None:
    assert "pin_memory=True and" in help_of(WAITING, Loader(0, pin_memory=False), "cuda")
    assert "pin_memory=True and" not in help_of(WAITING, Loader(0, pin_memory=True), "cuda")
    assert "pin_memory=True and" not in help_of(WAITING, Loader(0, pin_memory=False), "cpu")


@pytest.mark.parametrize(
    "seconds",
    [
        {},
        {"forward": 1.0},
        {"input": 1.0, "optimizer": 1.0},
        {"create": 1.0, "move": 2.0},
        {"forward": 0.0, "other": 0.0},
    ],
)
def test_stages_that_do_not_make_up_a_step_tell_nothing(seconds: dict[str, float]) -> None:
    assert step_parts(seconds, 10, "cpu") is None
    assert step_parts(WAITING, 0, "cpu") is None


def test_figures_that_make_no_sense_are_left_out() -> None:
    assert parts_of({**WAITING, "other": math.nan, "copies": -1.0}).shares.keys() == WAITING.keys()
    assert Loader.of({"num_workers": "4"}) is None and Loader.of({"num_workers": True}) is None
    assert Loader.of({"num_workers": 4, "pin_memory": 1, "cores": -1}) == Loader(4)


def test_a_run_has_the_parts_of_its_stages_and_of_what_is_known_of_its_loader() -> None:
    run = RunView.of(RunStarted(time_s=0.0, run_id=1, workload="watch", device="cpu", spec={}))
    assert run.step_parts is None and run.summary()["step_parts"] is None
    for name, seconds in WAITING.items():
        run.apply(StageFinished(time_s=1.0, run_id=1, name=name, seconds=seconds, count=10))
    loader = Loader(0, pin_memory=False, cores=4)
    run.apply(Note(time_s=1.0, run_id=1, topic=Topic.INPUT, text="", details=asdict(loader)))
    assert run.step_parts == parts_of(WAITING, loader)
    reopened = RunView.of(RunStarted(time_s=0.0, run_id=1, workload="watch", device="cpu", spec={}))
    reopened.restore(run.digest())
    assert reopened.step_parts == parts_of(WAITING)
    assert run.summary()["step_parts"]["bound"] == "input"
