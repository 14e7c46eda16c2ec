from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from gpudash.devices.names import Device
from gpudash.session.demo import Act, Scene, SceneQuestion, Tour
from gpudash.session.demo.scenes import MeasuredScene
from gpudash.session.demo.tour import BUSY, LOADING, NO_GPU, NO_REMEDY, TourPace
from gpudash.specs import PipelineSpec, TrainingSpec
from gpudash.specs.memory_cap import MemoryCap
from tests.unit.session.demo.fake_playing import CPU, CUDA, SIM, FakePlaying, remedy

PACE = TourPace(ask=5.0, act=2.0, read=4.0, measured=6.0)
CAP = MemoryCap(size=1024)
ASKED = SceneQuestion("Which?", ("a", "b", "c"))


def scene(*acts: Act, questions: tuple[SceneQuestion, ...] = (), answer: int | None = 1, title: str = "One") -> Scene:
    return Scene(
        title, "Watch it.", "Read it.", acts, lambda runs: MeasuredScene(f"{len(runs)} runs.", answer), questions
    )


def act(words: str = "It runs.", where: str = "best", **fields: object) -> Act:
    return Act(words, PipelineSpec(), where, **fields)  # type: ignore[arg-type]


TWO = (scene(act("First."), act("Second.")), scene(act("Third."), title="Two"))
MENDING = (
    scene(
        Act("It runs out.", TrainingSpec(), "gpu", memory_cap=CAP, may_run_out=True, then="explanation"),
        Act("The change: {change}.", None, "gpu", memory_cap=CAP),
    ),
)


class Played:
    """A tour with a clock."""

    def __init__(self, scenes: Sequence[Scene], *devices: Device, auto: bool = False, **session: bool) -> None:
        self.session = FakePlaying(*devices, **session)
        self.tour = Tour(self.session, auto=auto, pace=PACE, scenes=scenes)
        self.now_s = 100.0

    def start(self) -> Played:
        self.tour.start()
        return self.wait()

    def wait(self, seconds: float = 0.1) -> Played:
        """Let time pass, and the tour go on as often as it likes."""
        self.now_s += seconds
        for _ in range(4):
            self.tour.tick(self.now_s)
        return self


def test_the_runs_of_a_scene_follow_each_other_and_then_it_is_told() -> None:
    played = Played(TWO).start()
    assert [started[0] for started in played.session.started] == ["pipeline"]
    assert played.tour.caption == "First."
    played.session.finish()
    played.wait(0.1)
    assert len(played.session.started) == 1  # the first run's words are read first
    played.wait(PACE.act)
    assert played.tour.caption == "Second." and len(played.session.started) == 2
    played.session.finish()
    played.wait().wait(PACE.act)
    assert played.tour.state == "told" and played.tour.caption == "2 runs."
    played.wait(1000.0)
    assert played.tour.position == 0  # the presenter says when it goes on


def test_a_tour_that_goes_on_by_itself_comes_to_its_end() -> None:
    played = Played(TWO, auto=True).start()
    for _ in range(3):
        played.session.finish()
        played.wait().wait(PACE.act).wait(PACE.measured)
    played.wait(PACE.measured)
    assert played.tour.state == "ended" and played.tour.failures == []
    assert len(played.session.started) == 3


def test_next_after_the_last_scene_is_the_end() -> None:
    played = Played(TWO).start()
    played.tour.go(1)
    played.tour.next()
    assert played.tour.state == "ended"


def test_a_guess_is_awaited_and_judged_by_what_was_measured() -> None:
    for guess, verdict in ((1, "Right. "), (0, "Not quite: b. "), (None, "")):
        played = Played((scene(act(), questions=(ASKED,)),)).start()
        assert played.tour.state == "asking" and played.tour.caption == "Which?" and not played.session.started
        played.tour.take_guess(guess)
        played.wait()
        played.session.finish()
        played.wait().wait(PACE.act)
        assert played.tour.caption == f"{verdict}1 runs."


def test_a_guess_the_runs_do_not_answer_is_not_judged() -> None:
    played = Played((scene(act(), questions=(ASKED,), answer=None),)).start()
    played.tour.take_guess(2)
    played.wait()
    played.session.finish()
    played.wait().wait(PACE.act)
    assert played.tour.verdict == ""


def test_a_question_that_nobody_answers_is_passed_over_in_a_tour_that_goes_on_by_itself() -> None:
    played = Played((scene(act(), questions=(ASKED,)),), auto=True).start()
    played.wait(PACE.ask - 1)
    assert played.tour.state == "asking"
    played.wait(1.5).wait()
    assert played.tour.state == "playing" and played.tour.guess is None


def test_nothing_is_guessed_where_the_device_cannot_answer() -> None:
    played = Played((scene(act(), questions=(ASKED,)),), CPU)
    played.start().wait(10.0)
    assert played.tour.state == "playing" and played.session.started[0][1] == "cpu"


def test_the_devices_are_waited_for_before_anything_is_asked() -> None:
    played = Played((scene(act(), questions=(ASKED,)),), torch_ready=False).start()
    assert played.tour.state == "ready" and played.tour.caption == LOADING
    played.session.torch_ready = True
    assert played.wait().tour.state == "asking"


def test_pause_lets_a_run_end_and_begins_no_other() -> None:
    played = Played(TWO).start()
    played.tour.pause()
    played.session.finish()
    played.wait(60.0).wait(60.0)
    assert len(played.session.started) == 1 and played.session.stops == 0
    played.tour.resume()
    played.wait().wait(PACE.act)
    assert len(played.session.started) == 2


def test_next_stops_the_demos_own_run_and_waits_for_its_end() -> None:
    played = Played(TWO).start()
    played.tour.next()
    played.wait()
    assert played.session.stops == 1 and len(played.session.started) == 1
    played.session.finish("cancelled")
    played.wait()
    assert played.tour.scene.title == "Two" and len(played.session.started) == 2


def test_back_begins_the_scene_before() -> None:
    played = Played(TWO).start()
    played.session.finish()
    played.tour.go(1)
    played.tour.back()
    played.wait()
    assert played.tour.position == 0 and played.tour.caption == "First."


def test_a_run_of_the_users_is_never_stopped_unasked() -> None:
    played = Played(TWO)
    played.session.begin()
    played.start().wait(60.0)
    assert played.tour.state == "busy" and played.tour.caption == BUSY
    assert played.session.stops == 0 and not played.session.started
    for wish in (played.tour.next, played.tour.back, played.tour.leave):
        wish()
    assert played.session.stops == 0


def test_a_run_of_the_users_is_stopped_when_the_presenter_says_so() -> None:
    played = Played(TWO)
    played.session.begin()
    played.start()
    played.tour.stop_users_run()
    assert played.session.stops == 1
    played.session.finish("cancelled")
    assert played.wait().tour.state == "playing" and len(played.session.started) == 1


def test_leaving_stops_the_demos_own_run() -> None:
    played = Played(TWO).start()
    played.tour.leave()
    assert played.session.stops == 1 and played.tour.state == "ended"


def test_a_refused_run_is_told_and_the_scene_goes_on() -> None:
    played = Played(TWO)
    played.session.refusal = "No run can use sim:0."
    played.start()
    assert played.tour.caption == "No run can use sim:0."
    played.session.refusal = None
    played.wait(PACE.act)
    assert played.tour.caption == "Second." and played.tour.failures == ["One: No run can use sim:0."]


def test_a_run_that_fails_is_told_and_the_scene_goes_on() -> None:
    played = Played(TWO).start()
    played.session.fail()
    played.wait()
    assert played.tour.caption == "It broke. Mend it." and played.tour.failures == ["One: It broke. Mend it."]
    played.wait(PACE.act)
    assert len(played.session.started) == 2


def test_a_run_that_was_stopped_by_hand_is_told_and_is_no_failure() -> None:
    played = Played(TWO).start()
    played.session.finish("cancelled")
    played.wait()
    assert played.tour.caption == "The run was stopped." and not played.tour.failures


def test_what_needs_a_gpu_says_so_where_there_is_none() -> None:
    played = Played((scene(act(where="gpu")),), CPU).start()
    played.wait(10.0)
    assert played.tour.failures == [f"One: {NO_GPU}"]


@pytest.mark.parametrize(("simulate", "device"), [(False, "cuda:0"), (True, "sim:0")])
def test_a_real_gpu_comes_before_a_simulated_one_unless_that_is_asked_for(simulate: bool, device: str) -> None:
    session = FakePlaying(CPU, CUDA, SIM)
    tour = Tour(session, simulate=simulate, scenes=TWO)
    tour.start()
    tour.tick(0.0)
    assert session.started[0][1] == device


def test_every_scene_is_played_on_the_gpu_of_the_first_also_when_another_has_more_memory_by_then() -> None:
    played = Played(TWO, CPU, CUDA, Device("cuda:1", "NVIDIA H200", CUDA.total_bytes, "GPU-1")).start()
    played.session._devices.reverse()
    assert played.session.default_device() == "cuda:1"
    played.session.finish()
    played.wait().wait(PACE.act)
    assert [device for _, device, _ in played.session.started] == ["cuda:0", "cuda:0"]


def test_running_out_is_wanted_and_the_first_change_that_trains_as_before_mends_it() -> None:
    played = Played(MENDING).start()
    assert played.session.started == [("training", "sim:0", CAP)]
    played.session.run_out(
        remedy("a memory cap of 2 GiB"),
        remedy("batch 8", changes_training=True, batch=8),
        remedy("on cpu", device="cpu"),
        remedy("delete intermediates", keep_intermediates=False, depth=2),
    )
    played.wait()
    assert played.tour.place == "explanation"
    played.wait(PACE.act)
    assert len(played.session.started) == 1  # there is more to be read than a few words
    played.wait(PACE.read)
    fixed = played.session.specs[1]
    assert isinstance(fixed, TrainingSpec) and fixed.depth == 2 and fixed.batch == TrainingSpec().batch
    assert played.tour.caption == "The change: depth 2 instead of 4."
    assert played.tour.failures == []


def test_each_change_from_one_run_to_the_next_is_named() -> None:
    kept = Act("Moved.", TrainingSpec(), "cpu")
    played = Played((scene(kept, replace(kept, spec=TrainingSpec(batches="pingpong")), replace(kept, where="gpu")),))
    changes = []
    played.start()
    for _ in range(3):
        changes.append(played.tour.change)
        played.session.finish()
        played.wait().wait(PACE.act)
    assert changes == ["", "batches ping-pong instead of moved", "sim:0 (SIMULATED) instead of cpu"]


@pytest.mark.parametrize(("device", "words"), [(SIM, "It runs on the simulated GPU."), (CUDA, "It runs on the GPU.")])
def test_a_simulated_gpu_is_called_so_whatever_is_said(device: Device, words: str) -> None:
    asked = SceneQuestion("Which GPU?", ("the GPU", "b", "c"))
    played = Played((scene(act("It runs on the GPU."), questions=(asked,)),), CPU, device).start()
    simulated = device is SIM
    assert played.tour.caption == ("Which simulated GPU?" if simulated else "Which GPU?")
    played.tour.take_guess(0)
    assert played.wait().tour.caption == words
    played.session.finish()
    played.wait().wait(PACE.act)
    assert "Not quite: b. " in played.tour.caption


def test_remedies_that_are_still_looked_for_are_waited_for() -> None:
    played = Played(MENDING).start()
    played.session.remedies.looking = True
    played.session.run_out(remedy("batch 8", changes_training=True, batch=8))
    played.wait(60.0)
    assert played.tour.progress == (0, 2)
    played.session.remedies.looking = False
    played.wait().wait(PACE.read)
    assert played.session.specs[1].model_dump()["batch"] == 8


def test_where_only_a_larger_cap_was_found_that_is_the_mend() -> None:
    played = Played(MENDING).start()
    played.session.run_out(replace(remedy("a memory cap of 2 KiB"), flags="--memory-cap 2KiB"))
    played.wait().wait(PACE.read)
    assert played.session.started[1] == ("training", "sim:0", MemoryCap(size=2048))
    assert played.session.specs[1] == played.session.specs[0]
    assert played.tour.caption == "The change: a larger memory cap."


def test_without_a_remedy_the_run_is_not_repeated() -> None:
    played = Played(MENDING).start()
    played.session.run_out()
    played.wait().wait(PACE.read)
    assert played.tour.failures == [f"One: {NO_REMEDY}"]


def test_a_cap_is_not_asked_for_on_the_cpu() -> None:
    played = Played((scene(act(where="cpu", memory_cap=CAP)),)).start()
    assert played.session.started == [("pipeline", "cpu", None)]
