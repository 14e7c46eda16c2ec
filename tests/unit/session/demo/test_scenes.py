from __future__ import annotations

import pytest

from gpudash.session.demo import SCENES, Act, Scene
from gpudash.units import GIB

ACTS = [(scene, act) for scene in SCENES for act in scene.acts]


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.title)
def test_a_scene_says_in_one_sentence_what_to_look_at(scene: Scene) -> None:
    assert scene.look.startswith("Watch ") and scene.look.endswith(".") and scene.look.count(". ") == 0


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
