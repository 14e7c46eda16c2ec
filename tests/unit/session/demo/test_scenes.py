from __future__ import annotations

import re

import pytest

from gpudash.session.demo import SCENES, Act, Scene
from gpudash.session.demo.scenes import (
    both_trained,
    copies,
    ending,
    fixed,
    mistakes,
    moved_and_back,
    of_gpu,
    ran_out,
)
from gpudash.session.demo.scenes import (
    pitfall as told_pitfall,
)
from gpudash.session.demo.scenes import (
    trained as told_training,
)
from gpudash.units import GIB, MIB
from tests.unit.session.demo.summaries import moved, out_of_memory, pitfall, placed, summary, trained

ACTS = [(scene, act) for scene in SCENES for act in scene.acts]


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.title)
def test_a_scene_says_in_one_sentence_what_to_look_at(scene: Scene) -> None:
    assert scene.watch_for.startswith("Watch ") and scene.watch_for.endswith(".") and scene.watch_for.count(". ") == 0


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.title)
def test_at_most_one_question_suits_a_device_and_it_has_three_different_choices(scene: Scene) -> None:
    for kind in ("cuda", "sim"):
        assert sum(kind in question.kinds for question in scene.questions) == 1
        question = scene.question(kind)
        assert question is not None and len(set(question.choices)) == 3
    assert scene.question("cpu") is None


@pytest.mark.parametrize(("scene", "act"), ACTS, ids=lambda value: getattr(value, "title", ""))
def test_every_run_is_possible_where_it_is_played(scene: Scene, act: Act) -> None:
    if act.spec is None:
        assert scene.acts[scene.acts.index(act) - 1].may_run_out  # there is something to be fixed
        return
    devices = {"cpu": ["cpu"], "gpu": ["cuda:0", "sim:0"], "best": ["cpu", "cuda:0", "sim:0"]}[act.where]
    for device in devices:
        assert act.spec.problems(device) == []
        if act.memory_cap is not None:
            assert act.memory_cap.problems(device, 8 * GIB) == []


def test_no_two_scenes_have_one_title() -> None:
    assert len({scene.title for scene in SCENES}) == len(SCENES) == 5


SPEED = re.compile(r"/s\b|times as fast|took as long|too small")
"""What would be a word on speed."""


@pytest.mark.parametrize(("peak", "answer"), [(64 * MIB, 0), (128 * MIB, 1), (192 * MIB, 2), (512 * MIB, 2)])
def test_the_guess_at_the_peak_is_answered_from_the_peak_that_was_measured(peak: int, answer: int) -> None:
    assert moved_and_back([moved(peak=peak)]).answer == answer


def test_a_move_is_told_with_its_bytes_and_on_a_real_gpu_with_its_rate() -> None:
    assert "128 MiB went to cuda:0 at 1.34 GB/s" in moved_and_back([moved("cuda:0")]).sentence
    simulated = moved_and_back([moved("sim:0")]).sentence
    assert "SIMULATED" in simulated and not SPEED.search(simulated)


def test_on_the_cpu_nothing_was_copied_and_no_guess_is_right() -> None:
    told = moved_and_back([moved("cpu", copied=False, peak=None)])
    assert "0 bytes were copied" in told.sentence and told.answer is None


@pytest.mark.parametrize(("where", "answer"), [("cpu", 1), ("sim:0", 0)])
def test_where_the_tensor_was_left_answers_the_second_scene(where: str, answer: int) -> None:
    told = mistakes([pitfall("unassigned", "Expected …", device_after=where), pitfall("current_device", None)])
    assert told.answer == answer
    assert "reported 1 of 2 mistakes; 1 passed silently" in told.sentence
    assert where in told.sentence


def test_torchs_own_words_are_told_whole() -> None:
    assert told_pitfall(pitfall("leaf", "The .grad of a GPU is accessed.\nIt is\n  long.")) == (
        "torch: “The .grad of a GPU is accessed. It is long.” Do that."
    )
    assert told_pitfall(pitfall("current_device", None)) == "PyTorch reports no error. Do that."


def test_a_simulated_gpu_is_called_so_in_every_sentence_of_ours() -> None:
    assert of_gpu("On the GPU, the GPU's memory", simulated=True) == "On the simulated GPU, the simulated GPU's memory"
    assert of_gpu("a simulated GPU", simulated=True) == "a simulated GPU"
    assert of_gpu("the GPU", simulated=False) == "the GPU"


@pytest.mark.parametrize(("there_and_back", "answer"), [(10, 0), (20, 1), (60, 2)])
def test_the_bytes_that_crossed_answer_the_third_scene(there_and_back: int, answer: int) -> None:
    told = copies([placed("resident", 10), placed("moved", 10 * MIB), placed("pingpong", there_and_back * MIB)])
    assert told.answer == answer
    assert not SPEED.search(told.sentence)


def test_speeds_of_the_placements_are_told_of_a_real_gpu_only() -> None:
    runs = [placed(name, 10 * MIB, "cuda:0") for name in ("resident", "moved", "pingpong")]
    assert "Throughput: resident 100 items/s" in copies(runs).sentence


@pytest.mark.parametrize(("after", "answer"), [(2.0, 1), (2.01, 1), (2.2, 0), (1.8, 2)])
def test_on_a_simulated_gpu_the_losses_answer_and_speed_is_not_spoken_of(after: float, answer: int) -> None:
    told = both_trained([trained("cpu", 2.0, 100.0), trained("sim:0", after, 900.0)])
    assert told.answer == answer
    assert "nothing is said of speed" in told.sentence and not SPEED.search(told.sentence)
    assert not SPEED.search(told_training(trained("sim:0", after, 900.0)))


@pytest.mark.parametrize(
    ("speed", "answer", "words"),
    [(50.0, 0, "cpu was 2.0 times as fast"), (103.0, 0, "took as long"), (300.0, 1, "3.0 times"), (1200.0, 2, "12 ti")],
)
def test_on_a_real_gpu_the_measured_speeds_answer(speed: float, answer: int, words: str) -> None:
    told = both_trained([trained("cpu", 2.0, 100.0), trained("cuda:0", 2.0, speed)])
    assert told.answer == answer and words in told.sentence


@pytest.mark.parametrize(("largest", "answer"), [("weights", 0), ("activations", 1), ("optimizer_state", 2)])
def test_the_largest_category_answers_the_last_scene(largest: str, answer: int) -> None:
    held = {"weights": 2 * MIB, "activations": 2 * MIB, "optimizer_state": 2 * MIB, largest: 400 * MIB}
    fix = {"keep_intermediates": False, "batch": 1024}
    told = fixed([out_of_memory(**held), summary(spec=fix)])
    assert told.answer == answer
    assert told.sentence.endswith("With keep intermediates off the run finished all 10 steps.")


def test_a_category_no_guess_stands_for_answers_none() -> None:
    assert fixed([out_of_memory(workspace=MIB), None]).answer is None


def test_a_mend_that_failed_says_so() -> None:
    failed = summary(status="failed", error={"message": "It broke.", "remedy": ""}, spec={"batch": 512})
    assert fixed([out_of_memory(activations=MIB), failed]).sentence.endswith(
        "With batch 512 instead of 1024 it still did not come to its end: It broke."
    )


def test_a_larger_cap_is_the_mend_where_no_field_was_changed() -> None:
    first = out_of_memory(activations=MIB)
    assert (
        "With a larger memory cap the run finished all 10 steps."
        in fixed([first, summary(spec=first["spec"])]).sentence
    )


def test_running_out_is_told_by_what_was_asked_for_and_what_had_been_kept() -> None:
    assert ran_out(out_of_memory(activations=MIB)) == (
        "Step 34 asked for 12 MiB more, and they were not to be had: 4 MiB of every step had been kept."
    )


@pytest.mark.parametrize("measured", [moved_and_back, mistakes, copies, both_trained, fixed])
def test_a_scene_whose_runs_never_began_has_nothing_to_tell(measured: object) -> None:
    for runs in ([], [None], [None, None, None], [summary(status="cancelled")]):
        told = measured(runs)  # type: ignore[operator]
        assert told.answer is None and "nothing to show" in told.sentence


def test_a_run_that_was_stopped_says_so() -> None:
    assert ending(summary(status="cancelled")) == "was stopped"
