"""What the processes of a watched program tell of themselves becomes records, whatever they send."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from gpudash.agent.server import Peer
from gpudash.session.watching.messages.program_news import (
    HOLD_S,
    MOST_JOINED,
    MOST_NOTES,
    STEPS_AT_ONCE,
    STEPS_PER_SECOND,
    ProgramNews,
)
from gpudash.session.watching.output.printed_metrics import Printed
from gpudash.telemetry.records import Note, StageFinished, StepFinished, Topic
from gpudash.telemetry.results.step_parts import FIRST_BATCH
from gpudash.telemetry.runs import MOST_LOSSES
from tests.unit.session.watched import Surrounded


def news_of(around: Surrounded) -> ProgramNews:
    return ProgramNews(1, 7, around.emit, lambda: around.now_s, 1_000.0)


def peer(pid: int = 7, rank: int | None = None) -> Peer:
    return Peer(socket.socket.__new__(socket.socket), pid, {"type": "hello", "rank": rank})


def steps(*rows: list[Any]) -> dict[str, Any]:
    return {"type": "steps", "steps": list(rows), "source": "logging"}


def us(session_s: float) -> int:
    return round((1_000.0 + session_s) * 1e6)


def test_steps_come_with_their_own_times_losses_and_accuracies() -> None:
    around = Surrounded()
    around.now_s = 20.0
    news = news_of(around)
    around.now_s = 30.0
    news.take(peer(), steps([0, us(21.0), 2.5, None, None], [1, us(22.5), float("nan"), 0.5, 0.1]))
    first, second = around.events(StepFinished)
    assert (first.step, first.time_s, first.seconds, first.loss, first.accuracy) == (0, 21.0, None, 2.5, None)
    assert (second.step, second.time_s, second.seconds, second.accuracy) == (1, 22.5, 1.5, 0.5)
    assert second.loss != second.loss
    assert (news.steps, news.stepped_s) == (2, 22.5)


def test_the_first_step_lasts_from_where_a_trainer_began_it_and_not_from_the_start_of_the_program() -> None:
    around = Surrounded()
    news = news_of(around)
    around.now_s = 30.0
    for rows in ([[1, us(25.5), None, None]], [[2, us(26.0), None, None]]):
        news.take(peer(), {"type": "steps", "steps": rows, "source": "transformers", "began_us": us(24.5)})
    assert [event.seconds for event in around.events(StepFinished)] == [1.0, 0.5]


def test_times_outside_of_the_run_are_those_of_its_edges() -> None:
    around = Surrounded()
    news = news_of(around)
    around.now_s = 15.0
    news.take(peer(), steps([0, us(1.0), None, None], [1, us(99.0), None, None], [2, None, None, None]))
    assert [event.time_s for event in around.events(StepFinished)] == [10.0, 15.0, 15.0]


def test_of_several_ranks_rank_0_tells_the_steps() -> None:
    around = Surrounded()
    news = news_of(around)
    zero, one = peer(8, rank=0), peer(9, rank=1)
    news.take(one, steps([1, us(11), 1.0, None]))
    news.take(zero, steps([1, us(11), 2.0, None]))
    news.take(one, steps([2, us(12), 1.0, None]))
    news.take(zero, steps([2, us(12), 2.0, None]))
    assert [event.loss for event in around.events(StepFinished)] == [1.0, 2.0, 2.0]
    news.left(zero)
    news.take(one, steps([3, us(13), 1.0, None]))
    assert around.events(StepFinished)[-1].loss == 1.0


@pytest.mark.parametrize(
    ("source", "numbers", "made"),
    [
        ("logging", [0, 1, 2], 3),
        ("logging", [1, 2, 3], 3),
        ("logging", [10, 20, 30], 30),
        ("logging", [0, 100, 200], 201),
        ("logging", [0, 1, 2, 0, 1, 2], 6),
        ("logging", [1, 2, 3, 1, 2], 5),
        ("logging", [0, 0], 1),
        ("logging", [50, 60, 55, 60], 60),
        ("lightning", [0, 0, 1, 1, 2], 2),
        ("transformers", [1, 2, 3, 1, 2, 3], 6),
        ("optimizer", [1, 2, 3], 3),
        ("logging", [-5], 0),
        ("logging", [], 0),
    ],
)
def test_as_many_steps_are_counted_as_were_made(source: str, numbers: list[int], made: int) -> None:
    news = news_of(Surrounded())
    for number in numbers:
        news.take(peer(), {**steps([number, us(11.0), None, None]), "source": source})
    assert news.steps == made


def test_ranks_make_the_same_steps_and_programs_one_after_the_other_more() -> None:
    news = news_of(Surrounded())
    zero, one = peer(8, rank=0), peer(9, rank=1)
    news.take(one, steps(*([number, us(11), None, None] for number in range(10))))
    news.take(zero, steps(*([number, us(11), None, None] for number in range(20))))
    news.left(zero)
    news.take(one, steps([18, us(12), None, None], [19, us(12), None, None]))
    assert news.steps == 20
    news = news_of(Surrounded())
    for pid in (8, 9):
        found = peer(pid)
        news.take(found, steps(*([number, us(11), None, None] for number in range(20))))
        news.left(found)
    assert news.steps == 40


def test_steps_that_are_told_come_before_those_that_are_counted() -> None:
    around = Surrounded()
    news = news_of(around)
    counted = {**steps(*([number, us(11), None, None] for number in range(1, 10))), "source": "optimizer"}
    news.take(peer(8), counted)
    assert (news.steps, news.step_source) == (9, "optimizer")
    news.take(peer(9), steps([0, us(12), 1.0, None]))
    news.take(peer(8), counted)
    assert (news.steps, news.step_source) == (1, "logging")
    assert around.events(StepFinished)[-1].loss == 1.0


def test_a_loss_that_is_printed_belongs_to_the_newest_step_that_was_counted_before_it() -> None:
    around = Surrounded()
    news = news_of(around)
    around.now_s = 11.5
    news.printed([Printed(11.15, 100, loss=2.5, fields=("loss",)), Printed(11.4, 200, loss=1.5, fields=("loss",))])
    assert not around.events(StepFinished), "steps from before it may still be on their way"
    counted = [[number, us(11 + number / 10), None, None] for number in range(1, 4)]
    news.take(peer(), {**steps(*counted), "source": "optimizer"})
    news.printed([], last=True)
    told = [(event.step, round(event.time_s, 6), event.loss) for event in around.events(StepFinished)]
    assert told == [(1, 11.1, None), (1, 11.15, 2.5), (2, 11.2, None), (3, 11.3, None), (3, 11.4, 1.5)]
    assert news.steps == 3
    assert around.texts(Topic.FROM_OUTPUT) == ["What is plotted is read from the output: loss."]


def test_what_is_printed_waits_no_longer_than_it_has_to() -> None:
    around = Surrounded()
    news = news_of(around)
    news.printed([Printed(around.now_s, None, loss=2.5, fields=("loss",))])
    around.now_s += 2 * HOLD_S
    news.printed([])
    assert [(event.step, event.loss) for event in around.events(StepFinished)] == [(0, 2.5)]


def test_a_loss_that_is_told_wins_over_what_is_printed() -> None:
    around = Surrounded()
    news = news_of(around)
    news.printed([Printed(10.0, 1, loss=9.0, fields=("loss",))], last=True)
    assert news.reads_metrics
    around.now_s = 30.0
    news.printed([Printed(11.0, 2, loss=9.0, fields=("loss",))])
    news.take(peer(), steps([5, us(20.0), None, None]))
    assert around.events(StepFinished)[-1].step == 5 and news.reads_metrics, "a step without a loss says none"
    news.printed([Printed(29.9, 3, loss=9.0, fields=("loss",))])
    news.take(peer(), steps([6, us(22.0), 1.0, None]))
    news.printed([Printed(23.0, 3, loss=9.0, fields=("loss",))], last=True)
    losses = [event.loss for event in around.events(StepFinished)]
    assert losses == [9.0, 9.0, None, 1.0] and not news.reads_metrics
    assert [note.details["reads"] for note in around.events(Note, topic=Topic.FROM_OUTPUT)] == [True, False]


@pytest.mark.parametrize("source", ["transformers", "lightning"])
def test_a_trainer_tells_its_loss_even_before_it_has(source: str) -> None:
    around = Surrounded()
    news = news_of(around)
    news.take(peer(), {**steps([1, us(10.0), None, None]), "source": source})
    news.printed([Printed(10.0, 1, loss=9.0, fields=("loss",))], last=True)
    assert [event.loss for event in around.events(StepFinished)] == [None]


@pytest.mark.parametrize(
    ("lines", "made"),
    [
        ([(200, 2983, 1.0), (400, 2983, 1.0), (200, 2983, 2.0), (400, 2983, 2.0)], [200, 400, 600, 800]),
        ([(0, None, None), (10, None, None), (20, None, None)], [1, 11, 21]),
        ([(None, None, 1.0), (None, None, 2.0)], [1, 2]),
        ([(None, None, None), (None, None, None)], [0, 0]),
        ([(None, None, 3.0), (5, None, None), (None, None, 4.0)], [3, 5, 5]),
        ([(3, 25, None), (25, 25, None), (2, 25, None)], [3, 25, 27]),
    ],
)
def test_where_nothing_counts_steps_the_numbers_that_are_printed_do(lines: list[Any], made: list[int]) -> None:
    around = Surrounded()
    news = news_of(around)
    news.printed([Printed(10.0, step, total, epoch, 1.0, fields=("loss",)) for step, total, epoch in lines], last=True)
    assert [event.step for event in around.events(StepFinished)] == made


def test_the_rate_of_steps_is_that_of_those_that_were_made() -> None:
    around = Surrounded()
    news = news_of(around)
    around.now_s = 30.0
    news.take(peer(), steps(*([number, us(11 + number / 100), None, None] for number in range(0, 301, 2))))
    rates = [event.throughput for event in around.events(StepFinished) if event.throughput is not None]
    assert rates == pytest.approx([100.0] * 6)


def test_a_flood_of_steps_is_thinned_and_ends_with_the_newest() -> None:
    around = Surrounded()
    news = news_of(around)
    news.take(peer(), steps(*([number, us(11), None, None] for number in range(50_000))))
    told = around.events(StepFinished)
    assert STEPS_AT_ONCE / 2 < len(told) <= STEPS_AT_ONCE
    assert told[-1].step == 49_999
    for turn in range(100):
        around.now_s += 0.01
        news.take(peer(), steps(*([turn, us(11), None, None] for _ in range(1000))))
    assert len(around.events(StepFinished)) <= STEPS_AT_ONCE + 1.1 * STEPS_PER_SECOND


def test_a_flood_of_facts_is_cut_off() -> None:
    around = Surrounded()
    news = news_of(around)
    for number in range(10_000):
        news.take(peer(), {"type": "raised", "error": "E", "thread": f"thread {number}"})
    assert len(around.texts("program")) == MOST_NOTES


@pytest.mark.parametrize("rows", [None, 3, [3], [["a", 1, 1, 1]], [[1]], [[True]]])
def test_steps_that_are_none_are_left_out(rows: Any) -> None:
    around = Surrounded()
    news_of(around).take(peer(), {"type": "steps", "steps": rows})
    assert [event.step for event in around.events(StepFinished)] == []


def test_who_joins_is_told_but_no_forks_and_no_crowd() -> None:
    around = Surrounded()
    news = news_of(around)
    news.take(peer(), {"type": "hello", "argv": ["/usr/bin/python", "train.py"], "python": "3.12.1"})
    news.take(peer(8), {"type": "hello", "forked": True})
    news.take(peer(9, rank=1), {"type": "hello", "argv": ["python", "x" * 500], "python": "3.9.18"})
    first, second = around.texts("processes")
    assert first == "Pid 7 is watched: Python 3.12.1, python train.py."
    assert second.startswith("Rank 1 (pid 9) is watched: Python 3.9.18, python xxx")
    assert len(second) < 200
    for number in range(100):
        news.take(peer(number), {"type": "hello"})
    assert len(around.texts("processes")) <= MOST_JOINED + 1
    assert news.heard == 103


def test_a_command_line_that_is_cut_shows_that_it_is() -> None:
    around = Surrounded()
    news = news_of(around)
    flags = [f"--flag{number}=1" for number in range(15)]
    news.take(peer(), {"type": "hello", "argv": ["python", "train.py", *flags], "python": "3.12.1"})
    news.take(peer(8), {"type": "hello", "argv": ["python", "train.py", *flags[:7]], "python": "3.12.1"})
    first, second = around.texts("processes")
    assert first.endswith("--flag5=1 … (9 more arguments).")
    assert second.endswith("--flag5=1 … (1 more argument).")


def test_torch_is_told_once_and_each_problem_once() -> None:
    around = Surrounded()
    news = news_of(around)
    message = {"type": "torch", "version": "2.5.0", "cuda": "12.4", "history": True, "problem": "No history."}
    news.take(peer(), message)
    news.take(peer(8), message)
    assert around.texts("program") == ["PyTorch 2.5.0, CUDA 12.4, memory history is recorded.", "No history."]
    assert news.simulation_problem == "No history."


def test_a_simulation_that_works_is_no_problem() -> None:
    around = Surrounded()
    news = news_of(around)
    news.take(peer(), {"type": "torch", "version": "2.5.0", "simulated": True, "problem": "Something small."})
    assert news.simulation_problem == ""
    assert around.texts("program")[0] == "PyTorch 2.5.0, without CUDA, simulated GPUs."


def test_exceptions_are_kept_with_who_raised_them_and_those_of_threads_only_told() -> None:
    around = Surrounded()
    news = news_of(around)
    news.take(peer(), {"type": "raised", "error": "KeyError", "message": "'a'", "file": "/t.py", "line": 3})
    news.take(peer(8, rank=1), {"type": "raised", "error": "ValueError", "traceback": ["a\n", "b\n"]})
    news.take(peer(), {"type": "raised", "error": "OSError", "message": "gone.", "thread": "loader"})
    own, other = news.raised
    assert (own.error, own.place, own.who) == ("KeyError", "t.py:3", "")
    assert (other.error, other.details, other.who) == ("ValueError", "a\nb\n", "rank 1 (pid 8)")
    assert around.texts("program") == ["An exception ended the thread loader (OSError: gone)."]


def test_what_was_lost_and_what_agents_cost_is_added_up() -> None:
    news = news_of(Surrounded())
    news.take(peer(), {"type": "lost", "count": 3})
    news.take(peer(), {"type": "lost", "count": 5})
    news.take(peer(8), {"type": "lost", "count": 1})
    news.take(peer(9), {"type": "lost", "count": "x"})
    news.take(peer(), {"type": "bye", "cpu_s": 0.5})
    news.take(peer(), {"type": "bye", "cpu_s": None})
    news.take(peer(), {"type": "of tomorrow"})
    assert (news.lost, news.agent_cpu_s) == (6, 0.5)


def test_facts_of_a_run_are_notes_of_it() -> None:
    around = Surrounded()
    news_of(around).note("program", "A fact.", pid=7)
    assert [(note.run_id, note.details) for note in around.events(Note)] == [(1, {"pid": 7})]


def test_the_loss_of_a_validation_is_told_and_printed_beside_that_of_the_training() -> None:
    around = Surrounded()
    news = news_of(around)
    around.now_s = 30.0
    news.take(peer(), steps([1, us(21.0), 2.5, None, None], [1, us(21.5), None, None, None, 3.5]))
    assert [(event.step, event.loss, event.val_loss) for event in around.events(StepFinished)] == [
        (1, 2.5, None),
        (1, None, 3.5),
    ]
    printing = Surrounded()
    news = news_of(printing)
    news.printed([Printed(11.0, 5, loss=2.0, fields=("loss", "val loss"), val_loss=2.25)], last=True)
    assert [(event.loss, event.val_loss) for event in printing.events(StepFinished)] == [(2.0, 2.25)]
    assert printing.texts(Topic.FROM_OUTPUT) == ["What is plotted is read from the output: loss and val loss."]


def test_what_is_read_from_the_output_is_listed_as_one_would_say_it() -> None:
    around = Surrounded()
    news_of(around).printed([Printed(11.0, 5, loss=2.0, fields=("loss", "val loss", "accuracy"))], last=True)
    assert around.texts(Topic.FROM_OUTPUT) == ["What is plotted is read from the output: loss, val loss and accuracy."]


def test_several_losses_are_told_by_their_names_and_what_is_not_plotted_is_said() -> None:
    around = Surrounded()
    news = news_of(around)
    several = {"D loss": 0.5, "G loss": 0.75}
    news.printed([Printed(11.0, 5, fields=("D loss", "G loss"), losses=several, skipped=("gp loss",))], last=True)
    news.printed([Printed(12.0, skipped=("kl_loss",))], last=True)
    assert [(event.loss, event.losses) for event in around.events(StepFinished)] == [(None, several)]
    assert around.texts(Topic.FROM_OUTPUT) == [
        "What is plotted is read from the output: D loss and G loss. Seen in the output and not plotted: gp loss.",
        "Seen in the output and not plotted: kl_loss.",
    ]


def parts(made: int, each_s: float, **more: Any) -> dict[str, Any]:
    """What an agent adds up to after so many steps, each part of which takes as long."""
    named = ("input", "first_batch", "forward", "backward", "optimizer", "other")
    sums = dict.fromkeys(named, made * each_s)
    return {"type": "steps", "steps": [], "parts": {"steps": made, "passes": 0, **sums, **more}}


def test_the_parts_of_the_steps_are_stages_of_the_run_by_what_came_since() -> None:
    around = Surrounded()
    news = news_of(around)
    news.take(peer(), parts(4, 0.25, first_batch=0))
    news.take(peer(), parts(10, 0.25, first_batch=2.0, passes=1))
    stages = around.events(StageFinished)
    assert [stage.name for stage in stages[:5]] == ["input", "forward", "backward", "optimizer", "other"]
    assert {(stage.seconds, stage.count) for stage in stages[:5]} == {(1.0, 4)}
    later = {stage.name: (stage.seconds, stage.count) for stage in stages[5:]}
    assert later["input"] == (1.5, 6) and later[FIRST_BATCH] == (2.0, 1)


def test_a_program_without_a_loader_has_no_stage_of_input_and_no_note_of_it() -> None:
    around = Surrounded()
    news_of(around).take(peer(), parts(4, 0.25, input=0, first_batch=0))
    assert [stage.name for stage in around.events(StageFinished)] == ["forward", "backward", "optimizer", "other"]
    assert not around.events(Note)


def test_how_the_loader_is_set_is_noted_once() -> None:
    around = Surrounded()
    news = news_of(around)
    loader = {"num_workers": 0, "pin_memory": False, "persistent_workers": False, "prefetch_factor": None}
    for steps_made in (1, 2, 3):
        news.take(peer(), parts(steps_made, 0.25, loader=loader, cores=2))
    (note,) = around.events(Note)
    assert note.topic == Topic.INPUT and "num_workers=0" in note.text
    assert (note.details["num_workers"], note.details["cores"]) == (0, 2)


@pytest.mark.parametrize("change", [{"input": -1.0}, {"forward": "much"}, {"steps": float("nan")}, {"other": None}])
def test_parts_that_make_no_sense_are_left_out(change: dict[str, Any]) -> None:
    around = Surrounded()
    news = news_of(around)
    news.take(peer(), parts(4, 0.25, **change))
    news.take(peer(), {"type": "steps", "steps": [], "parts": [1, 2]})
    assert not around.events(StageFinished)


def test_of_several_processes_the_parts_of_the_first_rank_count() -> None:
    around = Surrounded()
    news = news_of(around)
    news.take(peer(8, rank=0), parts(4, 0.25, input=0, first_batch=0))
    news.take(peer(9, rank=1), parts(4, 9.0, input=0, first_batch=0))
    assert {stage.seconds for stage in around.events(StageFinished)} == {1.0}


def scalars(*rows: list[Any], tracker: Any = "tensorboard") -> dict[str, Any]:
    return {"type": "scalars", "tracker": tracker, "scalars": list(rows)}


def test_what_is_written_for_tensorboard_is_the_loss_of_the_step_that_the_optimizer_made() -> None:
    around = Surrounded()
    news = news_of(around)
    around.now_s = 30.0
    counted = [[number, us(20 + number), None, None] for number in (1, 2, 3)]
    news.take(peer(), {"type": "steps", "steps": counted[:2], "source": "optimizer"})
    epoch = 0
    news.take(
        peer(),
        scalars(
            ["Loss/train", epoch, us(22.4), 2.5],
            ["Loss/val", epoch, us(22.5), 3.5],
            ["val/acc", epoch, us(22.5), 0.5],
            ["KL loss", epoch, us(22.6), 0.25],
            ["Loss/train", epoch + 1, us(22.7), float("nan")],
        ),
    )
    news.take(peer(), {"type": "steps", "steps": counted[2:], "source": "optimizer"})
    found = [event for event in around.events(StepFinished) if event.time_s not in (21.0, 22.0, 23.0)]
    first, second = found
    assert (first.step, first.loss, first.val_loss, first.accuracy) == (2, 2.5, 3.5, 0.5)
    assert first.losses == {"KL loss": 0.25} and first.time_s == pytest.approx(22.6)
    assert second.loss != second.loss and second.step == 2
    assert [event.step for event in around.events(StepFinished)] == [1, 2, 2, 2, 3]
    (note,) = (note for note in around.events(Note) if note.topic == Topic.FROM_OUTPUT)
    assert note.text == (
        "What is plotted is what the program writes for TensorBoard: Loss/train, Loss/val, val/acc, KL loss."
    )
    assert news.knows_losses and not news.reads_metrics


@pytest.mark.parametrize(
    ("tracker", "label"), [("wandb", "Weights & Biases"), ("mlflow", "MLflow"), ("<b>", "a tracker"), ([], "a tracker")]
)
def test_the_note_names_the_tracker_that_the_program_writes_for(tracker: Any, label: str) -> None:
    around = Surrounded()
    news = news_of(around)
    around.now_s = 30.0
    news.take(peer(), scalars(["loss", 0, us(21), 1.0], tracker=tracker))
    news.printed([], last=True)
    (note,) = (note for note in around.events(Note) if note.topic == Topic.FROM_OUTPUT)
    assert note.text == f"What is plotted is what the program writes for {label}: loss."


def test_the_output_is_not_read_beside_scalars_and_neither_beside_what_a_program_tells() -> None:
    around = Surrounded()
    news = news_of(around)
    around.now_s = 30.0
    news.take(peer(), scalars(["loss", 0, us(21), 1.0]))
    news.printed([Printed(22.0, loss=9.0, fields=("loss",))], last=True)
    news.take(peer(9), scalars(["loss", 0, us(23), 8.0]))  # another process
    assert [event.loss for event in around.events(StepFinished)] == [1.0]
    news.take(peer(), steps([0, us(24), 0.5, None]))
    news.take(peer(), scalars(["loss", 1, us(25), 7.0]))
    news.printed([], last=True)
    assert [event.loss for event in around.events(StepFinished)] == [1.0, 0.5]


@pytest.mark.parametrize("rows", [None, [["lr", 0, 1, 0.1]], [["loss", 0, 1, None]], [["loss", 0, 1, True]]])
def test_scalars_that_are_no_losses_are_not_plotted(rows: Any) -> None:
    around = Surrounded()
    news = news_of(around)
    news.take(peer(), {"type": "scalars", "scalars": rows})
    news.printed([Printed(22.0, loss=9.0, fields=("loss",))], last=True)
    assert [event.loss for event in around.events(StepFinished)] == [9.0]


def test_of_many_losses_as_many_have_a_name_as_are_plotted() -> None:
    around = Surrounded()
    news = news_of(around)
    around.now_s = 30.0
    for start in range(0, 10_000, 500):
        news.take(peer(), scalars(*([f"loss/{number}", 0, us(21), 1.0] for number in range(start, start + 500))))
    news.printed([], last=True)
    names = {name for event in around.events(StepFinished) for name in event.losses or ()}
    assert names == {f"loss/{number}" for number in range(1, 1 + MOST_LOSSES)}
