"""The lessons: what is asked, what answers it, and that each comes to its end."""

from __future__ import annotations

import pytest

from gpudash.session.demo.lines import LinesProcess
from gpudash.session.demo.scenes import LinesAct, PlayedScene, RunAct, RungAct, Scene
from gpudash.session.lessons.lesson_list import listed_lessons
from gpudash.session.lessons.lessons import MINE, Lesson, find_lesson, lessons
from tests.unit.session.demo.summaries import summary
from tests.unit.session.demo.traces import failed, leak, three_lines

EACH = pytest.mark.parametrize("lesson", lessons(), ids=lambda lesson: lesson.name)

SCENES = [(lesson, scene) for lesson in lessons() for scene in lesson.scenes]

EACH_SCENE = pytest.mark.parametrize(
    ("lesson", "scene"), SCENES, ids=[f"{lesson.name}: {scene.title}" for lesson, scene in SCENES]
)

MOST_STEPS = 180
"""Steps of training that a lesson takes; those of its demo scenes take less than a minute on two cores."""

ANSWERS = {
    "Move a tensor": 128,
    "Two names, one block": 128,
    "A copy without a name": 1,
    "Two devices in one sum": 2,
    "Whose gradient is it?": 1,
    "An array of what is on the GPU": 1,
    "Half of the bytes": 128,
    "Too large for fp16": 2,
    "Too fine for bf16": 1,
    "Kept for the backward pass": 64,
    "The same without a gradient": 32,
    "A step with Adam": 256,
    "Run out of memory, and fix it": 1,
    "In place, or beside it": 2,
    "A piece at a time": 80,
}
"""Of scenes of lines: the place of a choice, or MiB, worked out by hand."""


def by_title(name: str, title: str) -> Scene:
    return next(scene for scene in find_lesson(name).scenes if scene.title == title)


def test_there_are_six_and_the_list_of_them_agrees() -> None:
    assert [lesson.name for lesson in lessons()] == ["move", "devices", "precision", "training", "remedies", "worth"]
    assert [(one.name, one.title) for one in listed_lessons()] == [(one.name, one.title) for one in lessons()]


@EACH
def test_each_ends_with_the_learner_s_own_lines(lesson: Lesson) -> None:
    last = lesson.scenes[-1]
    assert last.title == MINE and last.editable_lines is not None
    assert [scene.editable for scene in lesson.scenes].count(True) == 1
    assert len({scene.title for scene in lesson.scenes}) == len(lesson.scenes), "the sheet knows them by their titles"


@EACH_SCENE
def test_a_guess_comes_first_and_a_reason_at_the_end(lesson: Lesson, scene: Scene) -> None:
    for kind in ("cuda", "sim"):
        question = scene.question(kind)
        assert question is not None and question.text.endswith(("?", "…"))
        assert question.why or scene.editable
        assert len(set(question.choices)) == 3 if question.choices else question.unit in ("MiB", "times")


@EACH_SCENE
def test_its_lines_fit_the_stage_and_its_runs_are_possible(lesson: Lesson, scene: Scene) -> None:
    for act in scene.acts:
        if isinstance(act, LinesAct):
            lines = act.source.splitlines()
            assert len(lines) <= 7 and max(map(len, lines)) <= 42
        elif isinstance(act, RunAct):
            devices = {"cpu": ["cpu"], "gpu": ["cuda:0", "sim:0"], "best": ["cpu", "cuda:0", "sim:0"]}[act.where]
            assert all(act.spec.problems(device) == [] for device in devices)


@EACH
def test_a_lesson_is_short(lesson: Lesson) -> None:
    specs = [act.spec for scene in lesson.scenes for act in scene.acts if isinstance(act, RunAct)]
    assert sum(getattr(spec, "steps", 0) for spec in specs) <= MOST_STEPS
    assert sum(isinstance(act, RungAct) for scene in lesson.scenes for act in scene.acts) <= 7
    assert 3 <= len(lesson.scenes) <= 5


@pytest.mark.process
def test_the_answers_of_lines_come_out_as_worked_out_by_hand() -> None:
    process = LinesProcess()
    found = {}
    try:
        for _lesson, scene in SCENES:
            acts = [act for act in scene.acts if isinstance(act, LinesAct)]
            if not acts or scene.editable:
                continue
            traces = []
            for act in acts:
                process.ask(act.source, act.limit)
                while (trace := process.poll()) is None:
                    process.wait(1.0)
                traces.append(trace)
            found[scene.title] = scene.answer(traces)
    finally:
        process.close()
    assert found == pytest.approx(ANSWERS, rel=0.01)


def test_what_did_not_come_to_its_end_answers_nothing() -> None:
    for _lesson, scene in SCENES:
        assert scene.answer(["It could not be played."]) is None
        assert scene.answer([]) is None
    assert by_title("move", MINE).answer([failed()]) is None, "a peak before a failure is no answer"
    assert by_title("precision", "Too large for fp16").answer([three_lines()]) is None
    stopped = summary("cpu", status="cancelled")
    assert by_title("worth", "A small piece and a large one").answer([stopped, stopped]) is None


def test_how_lines_end_is_told_apart() -> None:
    scene = by_title("remedies", "In place, or beside it")
    assert [scene.answer([trace]) for trace in (three_lines(), failed(), leak())] == [0, 1, 2]


def test_a_comparison_is_told_with_what_is_measured_and_what_is_predicted() -> None:
    scene = by_title("worth", "A small piece and a large one")
    result = {
        "headline": "An RTX 4090 is predicted to be 300× as fast.",
        "measured": {"step_seconds": 0.3},
        "card": {"name": "RTX 4090", "time": {"median_s": 0.001}},
    }
    run = summary("cpu", workload="comparison", result=result)
    pictures = scene.pictures(scene, PlayedScene((run, run)))
    assert scene.answer([run, run]) == pytest.approx(300)
    assert pictures[1].sentence == result["headline"]
    assert pictures[1].panels[1].figures == (
        ("this CPU, measured", "300 ms"),
        ("RTX 4090, predicted", "1.00 ms"),
        ("as fast as this CPU", "300×"),
    )
    assert "predicted" in pictures[0].corner
    stopped = scene.pictures(scene, PlayedScene((summary("cpu", status="cancelled"),)))[0]
    assert (stopped.sentence, stopped.tone) == ("The run was stopped.", "wrong")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("precison", "There is no lesson 'precison' (did you mean precision?). There is: move, "),
        ("", "There is no lesson ''. There is: move, "),
        ("x" * 500, f"There is no lesson '{'x' * 40}…'. There is: move, "),
    ],
)
def test_a_lesson_there_is_not_is_said_in_a_sentence(name: str, said: str) -> None:
    with pytest.raises(ValueError, match="There is no lesson") as refused:
        find_lesson(name)
    assert str(refused.value).startswith(said) and "\n" not in str(refused.value)


def test_a_name_is_found_however_it_is_written() -> None:
    assert find_lesson(" Precision ").name == "precision"
