"""The show: acts in the background, steps in the foreground, and what waits for a key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from gpudash.devices.names import Device
from gpudash.session.demo.demo_scenes import SCENES
from gpudash.session.demo.scenes import Scene, SceneQuestion
from gpudash.session.demo.show import BUSY, LOADING, NO_GPU, Show, ShowPace
from gpudash.session.predicting.estimator import Problem
from gpudash.workloads.lines.trace import ENDED, LineFailure, LinesTrace
from tests.unit.session.demo.fake_playing import CPU, CUDA, SIM, FakeLines, FakePlaying, FakeRungs
from tests.unit.session.demo.traces import failed, three_lines

PACE = ShowPace(step=3.0, wrong=5.0, end=6.0)
MOVE, WRONG, COPY, DEVICES, FULL, PRECISIONS, LADDER, MINE = SCENES
CHOICE = SceneQuestion("Which?", ("a", "b", "c"))


class Played:
    """A show with a clock."""

    def __init__(
        self,
        scenes: Sequence[Scene],
        *devices: Device,
        auto: bool = False,
        guesses: bool = False,
        problem: Problem | None = None,
        torch_ready: bool = True,
    ) -> None:
        self.session = FakePlaying(*devices, torch_ready=torch_ready)
        self.lines = FakeLines()
        self.rungs = FakeRungs(problem)
        self.show = Show(
            self.session,  # type: ignore[arg-type]
            auto=auto,
            guesses=guesses,
            pace=PACE,
            scenes=scenes,
            lines=self.lines,  # type: ignore[arg-type]
            estimates=lambda: self.rungs,  # type: ignore[arg-type,return-value]
        )
        self.now_s = 100.0
        self.show.start()

    def wait(self, seconds: float = 0.1) -> Played:
        """Let time pass."""
        self.now_s += seconds
        for _ in range(3):
            self.show.tick(self.now_s)
        return self

    def answer(self, trace: LinesTrace) -> Played:
        """The lines that are on come to their end."""
        self.wait()
        self.lines.answer = trace
        return self.wait()


def test_steps_follow_by_themselves_until_the_end_of_the_scene_which_waits() -> None:
    played = Played([MINE, MOVE]).answer(three_lines())
    assert (played.show.step, len(played.show.pictures)) == (0, 6)
    for expected in range(1, 6):
        played.wait(PACE.step)
        assert played.show.step == expected
    played.wait(1000.0).wait(1000.0)
    assert played.show.position == 0 and played.show.at_end


def test_a_step_that_went_wrong_waits_for_a_key() -> None:
    played = Played([replace(MINE, acts=MINE.acts * 2)]).answer(failed()).answer(three_lines())
    played.wait(PACE.step).wait(PACE.step)
    assert played.show.picture.tone == "wrong" and played.show.waits and not played.show.at_end
    played.wait(1000.0).wait(1000.0)
    assert played.show.step == 2
    played.show.forward()
    assert played.show.step == 3


def test_a_show_that_waits_for_nobody_comes_to_its_end() -> None:
    played = Played([MINE, MINE], auto=True, guesses=True).answer(failed())
    for _ in range(5):
        played.wait(PACE.end)
    assert played.show.position == 1
    played.answer(failed())
    for _ in range(5):
        played.wait(PACE.end)
    assert played.show.ended and played.lines.closed


def test_forward_goes_step_by_step_and_then_to_the_next_scene() -> None:
    played = Played([MINE, MOVE]).answer(three_lines())
    for _ in range(5):
        played.show.forward()
    assert played.show.position == 0 and played.show.at_end
    played.show.forward()
    assert played.show.position == 1 and played.show.step == 0


def test_forward_waits_where_nothing_more_is_known_yet() -> None:
    played = Played([MINE]).wait()
    played.show.forward()
    assert played.show.step == 0 and not played.show.ended


def test_back_goes_a_step_back_and_pauses_and_from_the_first_to_the_scene_before() -> None:
    played = Played([MOVE, MINE])
    played.show.next_scene()
    played.answer(three_lines())
    played.show.forward()
    played.show.back()
    assert played.show.step == 0 and played.show.paused
    played.show.back()
    assert played.show.position == 0


def test_a_scene_that_was_played_is_not_played_again_and_keeps_its_guess() -> None:
    scene = replace(MINE, questions=(CHOICE,), answer=lambda _results: 1)
    played = Played([scene, DEVICES], guesses=True).answer(three_lines())
    played.show.take_guess(1)
    played.show.next_scene()
    played.show.take_guess(0)
    played.wait()
    played.session.finish()
    played.wait()
    played.session.fail()
    played.wait()
    played.show.back()
    assert (played.show.position, played.show.guess, played.show.asking) == (0, 1, False)
    assert played.show.picture.verdict == "Right: b." and len(played.lines.requested) == 1
    played.show.next_scene()
    assert (played.show.guess, played.show.asking) == (0, False)
    played.wait()
    assert played.session.started[2:] == [("training", "sim:0")], "only the run that failed is played again"


def test_the_number_of_steps_is_known_from_the_start_but_for_lines_that_have_not_run() -> None:
    assert Played([COPY]).wait().show.steps == 3
    assert Played([LADDER]).show.steps == len(LADDER.acts)
    played = Played([MINE]).wait()
    assert played.show.steps is None
    assert played.answer(three_lines()).show.steps == 6


def test_while_paused_no_step_follows_and_acts_go_on() -> None:
    played = Played([MINE])
    played.show.pause()
    played.answer(three_lines()).wait(1000.0)
    assert played.show.step == 0 and len(played.show.pictures) == 6
    played.show.resume()
    played.wait().wait(PACE.step)
    assert played.show.step == 1


def test_a_guess_is_awaited_hides_what_would_tell_and_is_judged_at_the_end() -> None:
    scene = replace(MINE, questions=(CHOICE,), answer=lambda _results: 1)
    for guess, verdict in ((1, "Right: b."), (0, "B. You said “a”."), (None, "What came: b.")):
        played = Played([scene], guesses=True).answer(three_lines())
        assert played.show.asking and played.show.picture.choices == CHOICE.choices
        assert played.show.picture.sentence == "Which?"
        chart = played.show.picture.chart
        assert chart is not None and all(not column.blocks for column in chart.columns)
        played.wait(1000.0)
        assert played.show.asking
        played.show.take_guess(guess)
        for _ in range(5):
            played.show.forward()
        assert played.show.picture.verdict == verdict


def test_a_guess_about_the_first_lines_is_judged_at_their_end_and_not_beside_what_follows() -> None:
    acts = (MINE.acts[0], MINE.acts[0])
    scene = replace(MINE, acts=acts, questions=(CHOICE,), answer=lambda _results: 1, answered_by=0)
    played = Played([scene], guesses=True).answer(three_lines())
    played.show.take_guess(1)
    played.answer(three_lines())
    verdicts = []
    for _ in range(12):
        verdicts.append(played.show.picture.verdict)
        played.show.forward()
    assert verdicts.index("Right: b.") == 5 and verdicts.count("Right: b.") == 1


def test_other_lines_are_run_in_place_of_the_ones_there_were() -> None:
    played = Played([MINE]).answer(three_lines())
    played.show.edit("a = 1", 2**20)
    played.wait()
    assert played.lines.requested[-1] == ("a = 1", 2**20)
    assert played.show.source == "a = 1" and played.show.step == 0
    assert Played([MOVE]).show.source == "", "those of other scenes are not the presenter's"


def test_runs_follow_each_other_on_the_devices_of_their_acts() -> None:
    played = Played([DEVICES], CPU, SIM).wait()
    assert played.session.started == [("training", "cpu")]
    played.session.finish()
    played.wait()
    assert played.session.started == [("training", "cpu"), ("training", "sim:0")]
    played.session.finish()
    played.wait()
    assert len(played.show.pictures) == 2 and played.show.failures == []


def test_a_real_gpu_comes_before_a_simulated_one() -> None:
    assert Played([PRECISIONS], CPU, SIM, CUDA).wait().session.started == [("training", "cuda:0")]


def test_torch_and_a_gpu_are_waited_for() -> None:
    played = Played([PRECISIONS], torch_ready=False).wait()
    assert played.show.picture.sentence == LOADING and not played.session.started
    played.session.torch_ready = True
    played.wait()
    assert played.session.started


def test_without_any_gpu_what_needs_one_says_so() -> None:
    played = Played([replace(DEVICES, acts=DEVICES.acts[1:])], CPU).wait().wait(10.0)
    assert played.show.failures == [f"{DEVICES.title}: {NO_GPU}"]
    assert played.show.picture.sentence == NO_GPU


def test_a_run_of_the_users_is_in_the_way_and_is_stopped_only_when_the_presenter_says_so() -> None:
    played = Played([PRECISIONS])
    played.session.begin()
    played.wait()
    assert played.show.busy and played.show.picture.sentence == BUSY
    played.show.next_scene()
    assert played.session.stops == 0
    played = Played([PRECISIONS])
    played.session.begin()
    played.wait()
    played.show.stop_users_run()
    assert played.session.stops == 1
    played.session.finish("cancelled")
    played.wait()
    assert not played.show.busy and played.session.started


def test_leaving_stops_the_demos_own_run_and_ends_its_processes() -> None:
    played = Played([PRECISIONS]).wait()
    played.show.leave()
    assert played.session.stops == 1 and played.lines.closed and played.show.ended


def test_another_scene_waits_until_the_run_of_this_one_has_ended() -> None:
    played = Played([PRECISIONS, COPY]).wait()
    played.show.next_scene()
    played.wait()
    assert played.session.stops == 1 and len(played.session.started) == 1
    played.session.finish("cancelled")
    played.wait()
    assert len(played.session.started) == 2 and played.show.position == 1


def test_a_run_that_fails_or_is_refused_is_told_and_the_scene_goes_on() -> None:
    played = Played([COPY]).wait()
    played.session.fail()
    played.wait()
    assert played.show.failures == [f"{COPY.title}: It broke. Mend it."]
    played.session.finish()
    played.wait()
    played.session.refusal = "No run can use sim:0."
    played.session.finish()
    played.wait()
    assert len(played.session.started) == 3


def test_the_rungs_are_asked_for_one_after_another() -> None:
    played = Played([LADDER])
    for _ in range(len(LADDER.acts)):
        played.wait()
    assert len(played.rungs.requested) == len(LADDER.acts) == len(played.show.pictures)
    played.show.leave()
    assert played.rungs.closed


def test_a_rung_that_takes_long_says_which_it_is_of_how_many_and_for_how_long() -> None:
    played = Played([LADDER], problem=Problem("unavailable", "It is not there."))
    played.rungs.is_predicting = True
    played.wait()
    assert played.show.picture.sentence == ("Dry run of batch = 12…")
    played.wait(8.0)
    assert played.show.picture.sentence.endswith(" 8 s so far.")
    played.rungs.is_predicting = False
    played.wait()
    assert "so far" not in played.show.pictures[0].sentence
    played.rungs.is_predicting = True
    played.wait()
    assert played.show.pictures[-1].sentence.startswith("Rung 3 of 6: dry run of autocast(bfloat16)")


def test_a_rung_with_a_problem_is_a_failure_and_the_ladder_goes_on() -> None:
    played = Played([LADDER], problem=Problem("unavailable", "It is not there.", "Get it."))
    for _ in range(len(LADDER.acts)):
        played.wait()
    assert played.show.failures[0] == f"{LADDER.title}: It is not there. Get it."
    assert played.show.pictures[0].sentence == "It is not there. Get it."


def test_lines_whose_process_ended_are_a_failure_unless_they_are_the_presenters() -> None:
    ended = replace(failed(), failure=LineFailure(1, ENDED, "the process ended"))
    assert Played([MOVE]).answer(ended).show.failures == [f"{MOVE.title}: the process ended."]
    assert Played([MINE]).answer(ended).show.failures == []


@pytest.mark.parametrize("wanted", ["next_scene", "start", "leave"])
def test_lines_that_are_on_are_ended_when_the_presenter_goes_elsewhere(wanted: str) -> None:
    played = Played([MINE, MINE]).wait()
    getattr(played.show, wanted)()
    assert played.lines.stops == 1


def test_a_run_of_the_demo_says_so_once_and_one_of_the_user_does_not() -> None:
    played = Played([replace(DEVICES, acts=DEVICES.acts[:1])])
    played.session.begin()
    played.wait()
    assert played.show.busy
    played.session.finish()
    played.wait().wait().wait()
    users, demos = played.session.store.runs
    assert not users.of_demo and demos.of_demo and len(demos.notes) == 1


def test_torch_is_imported_only_by_what_will_use_it() -> None:
    of_lines, of_runs, of_rungs = Played([MOVE, WRONG]), Played([COPY]), Played([LADDER])
    for played in (of_lines, of_runs, of_rungs):
        played.show.warm_up()
    assert [played.lines.warmed_up for played in (of_lines, of_runs, of_rungs)] == [1, 0, 0]
    assert [played.show.runs_workloads for played in (of_lines, of_runs, of_rungs)] == [False, True, False]
