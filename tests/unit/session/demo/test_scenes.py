"""The scenes' sentences, pictures and answers, from results made by hand."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from gpudash.drawing.stages import StageBox
from gpudash.session.demo.demo_scenes import SCENES
from gpudash.session.demo.ladder import CARD_BYTES, MODEL_RUNGS, OWN_RUNGS, RungResult, ladder
from gpudash.session.demo.pictures import StagePicture
from gpudash.session.demo.scenes import LinesAct, PlayedScene, Result, RunAct, Scene
from gpudash.units import GIB, MIB
from tests.unit.session.demo.summaries import estimate, placed, summary, trained
from tests.unit.session.demo.traces import leak, three_lines

MOVE, WRONG, COPY, DEVICES, FULL, PRECISIONS, LADDER, MINE = SCENES

SPEED = re.compile(r"/s\b|times as fast")
"""What would be a word on speed."""


def last(scene: Scene, *results: Result, device: str = "sim:0") -> StagePicture:
    return scene.pictures(scene, PlayedScene(results, device=device))[-1]


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.title)
def test_a_scene_has_a_first_step_before_anything_is_known_which_says_what_happens(scene: Scene) -> None:
    first = scene.pictures(scene, PlayedScene(device="sim:0"))
    assert len(first) == 1 and first[0].title == scene.title and first[0].question == scene.subject
    assert first[0].sentence and first[0].code
    assert scene.pictures(scene, PlayedScene(device="sim:0", waiting="Wait."))[0].sentence == "Wait."


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.title)
def test_at_most_one_question_suits_a_device_and_it_has_three_different_choices(scene: Scene) -> None:
    for kind in ("cuda", "sim"):
        assert sum(kind in question.kinds for question in scene.questions) <= 1
    for question in scene.questions:
        assert len(set(question.choices)) == 3


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.title)
def test_every_run_is_possible_where_it_is_played(scene: Scene) -> None:
    for act in scene.acts:
        if isinstance(act, RunAct):
            devices = {"cpu": ["cpu"], "gpu": ["cuda:0", "sim:0"], "best": ["cpu", "cuda:0", "sim:0"]}[act.where]
            assert all(act.spec.problems(device) == [] for device in devices)


def test_no_two_scenes_have_one_title() -> None:
    assert len({scene.title for scene in SCENES}) == len(SCENES) == 8


def test_lines_that_are_shown_fit_the_stage() -> None:
    acts = [act for scene in SCENES for act in scene.acts if isinstance(act, LinesAct)]
    assert all(len(act.source.splitlines()) <= 7 for act in acts)
    assert all(len(line) <= 42 for act in acts for line in act.source.splitlines())


def test_what_fills_the_memory_is_answered_by_what_was_held_most() -> None:
    assert FULL.answer([leak(), three_lines()]) == 1
    assert FULL.answer([three_lines()]) == 0
    assert FULL.answer(["It could not be run."]) is None


def test_the_peak_answers_the_first_question() -> None:
    assert MOVE.answer([three_lines()]) == 2


def test_bytes_that_crossed_are_columns_and_there_and_back_is_told_by_how_often() -> None:
    runs = [placed("resident", 3 * MIB), placed("moved", 10 * MIB), placed("pingpong", 20 * MIB)]
    picture = last(COPY, *runs)
    assert picture.chart is not None and [column.bytes for column in picture.chart.columns] == [
        3 * MIB,
        10 * MIB,
        20 * MIB,
    ]
    assert "20 MiB crossed, 2.0 times as much" in picture.sentence
    assert COPY.answer(runs) == 1
    assert [line.figure for line in picture.code] == ["3 MiB", "10 MiB", "20 MiB"]


@pytest.mark.parametrize(("after", "answer"), [(2.0, 1), (2.01, 1), (2.2, 0), (1.8, 2)])
def test_on_a_simulated_gpu_the_losses_answer_and_speed_is_not_compared(after: float, answer: int) -> None:
    runs = [trained("cpu", 2.0, 100.0), trained("sim:0", after, 900.0)]
    picture = last(DEVICES, *runs)
    assert DEVICES.answer(runs) == answer
    assert not SPEED.search(picture.sentence) and "says nothing about speed" in picture.remark
    assert [name for name, _value in picture.panels[1].figures] == ["loss", "items/s, CPU"]


@pytest.mark.parametrize(("speed", "answer"), [(50.0, 0), (103.0, 0), (300.0, 1), (1200.0, 2)])
def test_on_a_real_gpu_the_measured_speeds_answer(speed: float, answer: int) -> None:
    runs = [trained("cpu", 2.0, 100.0), trained("cuda:0", 2.0, speed)]
    assert DEVICES.answer(runs) == answer
    assert f"{speed / 100:.1f} times as fast" in last(DEVICES, *runs, device="cuda:0").remark


def test_the_axis_of_copies_stays_as_it_is_while_columns_appear() -> None:
    runs = (placed("resident", 2720 * 1024), placed("moved", 8 * MIB), placed("pingpong", 16 * MIB))
    pictures = COPY.pictures(COPY, PlayedScene(runs, device="sim:0"))
    charts = [COPY.pictures(COPY, PlayedScene(device="sim:0"))[0].chart, *(picture.chart for picture in pictures)]
    frame = StageBox(0.0, 0.0, 900.0, 400.0)
    axes = [chart.placed(frame, line=40.0, axis=60.0, header=30.0).ticks for chart in charts if chart]
    assert len(axes) == 4 and all(axis == axes[0] for axis in axes)
    first = pictures[0]
    assert first.chart is not None and first.chart.columns[0].figure == "2.7"
    assert first.code[0].figure == "2.7 MiB"
    assert first.sentence == "Copied once, 2.7 MiB crossed in 10 steps."


def test_losses_that_are_shown_as_equal_are_told_once() -> None:
    assert last(DEVICES, trained("cpu", 2.2361), trained("sim:0", 2.2364)).sentence == (
        "Loss 2.236 on both: the same within 1 %."
    )
    assert "Loss 2.236 on cpu and 2.240 on" in last(DEVICES, trained("cpu", 2.236), trained("sim:0", 2.24)).sentence


def test_the_figures_of_every_device_stand_in_one_order() -> None:
    runs = (trained("cpu", 2.0), trained("sim:0", 2.0, peak=23 * MIB))
    first, second = last(DEVICES, *runs).panels
    assert [name for name, _value in second.figures][: len(first.figures)] == [name for name, _value in first.figures]


def test_precisions_are_told_by_memory_and_loss_and_on_a_simulated_gpu_by_no_speed() -> None:
    runs = [
        trained("sim:0", 2.5, 100.0, 40 * MIB),
        trained("sim:0", 2.51, 80.0, 30 * MIB),
        trained("sim:0", 2.5, 70.0, 30 * MIB),
    ]
    picture = last(PRECISIONS, *runs)
    assert picture.sentence == "bf16 takes 25 % less memory than fp32; losses differ by 0.40 % at most."
    assert picture.chart is not None and [column.bytes // MIB for column in picture.chart.columns] == [40, 30, 30]
    assert [line.figure for line in picture.code] == ["40 MiB", "30 MiB", "30 MiB"]
    assert [(block.name, block.remark) for block in picture.blocks][1] == ("bf16", "loss 2.5100")
    assert picture.remark == "simulated: says nothing about speed" and not picture.panels
    first = PRECISIONS.pictures(PRECISIONS, PlayedScene(tuple(runs), device="sim:0"))[0]
    assert first.sentence == "fp32 takes 40 MiB at its peak."
    assert PRECISIONS.answer(runs) == 1
    assert "simulated" in picture.corner


def test_on_a_real_gpu_the_speed_of_bf16_is_told() -> None:
    runs = [trained("cuda:0", 2.5, speed, 40 * MIB) for speed in (100.0, 180.0, 170.0)]
    assert last(PRECISIONS, *runs, device="cuda:0").remark == "bf16 1.8 times as fast"


@pytest.mark.parametrize("scene", [COPY, DEVICES, PRECISIONS], ids=lambda scene: scene.title)
def test_a_run_that_is_on_tells_its_step_of_how_many(scene: Scene) -> None:
    running = {**trained("sim:0", 3.0), "status": "running", "steps": 7}
    steps = scene.acts[0].spec.steps
    picture = scene.pictures(scene, PlayedScene((), running, "sim:0"))[0]
    assert picture.remark == f"step 7 of {steps}" and "Training" in picture.sentence


def test_losses_that_are_next_to_equal_are_not_called_equal() -> None:
    runs = [trained("sim:0", loss, 100.0, 40 * MIB) for loss in (2.5, 2.50001, 2.5)]
    assert last(PRECISIONS, *runs).sentence.endswith("losses differ by less than 0.01 %.")


def test_a_run_that_is_on_shows_its_curve_so_far() -> None:
    running = {**trained("sim:0", 3.0), "status": "running", "losses": [4.0, 3.5]}
    picture = DEVICES.pictures(DEVICES, PlayedScene((), running, "sim:0"))[0]
    assert picture.panels[0].losses == (4.0, 3.5) and picture.panels[1].losses == ()
    assert picture.panels[0].figures == (("loss", "3.0000"), ("items/s, CPU", "–"))


@pytest.mark.parametrize("scene", [COPY, DEVICES, PRECISIONS], ids=lambda scene: scene.title)
def test_a_run_that_did_not_come_to_its_end_says_why(scene: Scene) -> None:
    failed = summary(status="failed", error={"message": "It broke.", "remedy": ""})
    assert last(scene, failed).title == scene.title
    first = scene.pictures(scene, PlayedScene((failed,), device="sim:0"))[0]
    assert (first.sentence, first.tone) == ("It broke.", "wrong")
    stopped = scene.pictures(scene, PlayedScene((summary(status="cancelled"),), device="sim:0"))[0]
    assert stopped.sentence == "The run was stopped."
    assert scene.pictures(scene, PlayedScene(("No GPU.",), device="cpu"))[0].sentence == "No GPU."


def test_the_ladder_has_the_six_remedies_and_each_rung_keeps_those_before() -> None:
    assert [rung.short for rung in MODEL_RUNGS] == [
        "start",
        "batch",
        "accumulate",
        "AMP",
        "checkpoint",
        "8-bit",
        "offload",
    ]
    assert OWN_RUNGS[:3] == MODEL_RUNGS[:3]
    _model, rungs, specs = ladder()
    assert len(rungs) == len(specs) == len(LADDER.acts)
    assert specs[-1].model_dump()["checkpointing"] is True and specs[-1].model_dump()["batch"] == 3


def test_a_rung_is_told_by_what_it_saves_and_what_is_spare_of_the_card() -> None:
    rungs = ladder()[1]
    results = [RungResult(rungs[0], estimate(6 * GIB)), RungResult(rungs[1], estimate(3 * GIB))]
    pictures = LADDER.pictures(LADDER, PlayedScene(tuple(results), device="sim:0"))
    assert len(pictures) == 3
    assert (pictures[0].tone, pictures[0].remark) == ("wrong", "2.00 GiB short")
    assert pictures[0].sentence == "batch = 12 needs 6.00 GiB: it does not fit."
    assert pictures[1].sentence == "3.00 GiB less: a step learns from fewer samples."
    assert (pictures[1].tone, pictures[1].remark) == ("good", "1.00 GiB spare")
    chart = pictures[1].chart
    assert chart is not None and chart.limit == CARD_BYTES
    assert chart.columns[1].bytes == 3 * GIB and not chart.columns[2].blocks
    assert "predicted" in pictures[1].corner and "dry run" in pictures[2].sentence


def test_all_rungs_are_in_one_unit_and_blocks_that_are_shown_as_one_have_one_colour() -> None:
    parts = {"weights": 200 * MIB, "optimizer state": 300 * MIB, "gradients": 100 * MIB, "activations": 90 * MIB}
    small = replace(estimate(949 * MIB), by_category=parts)
    large = replace(estimate(7 * GIB), by_category={**parts, "activations": 6 * GIB})
    results = [RungResult(rung, one) for rung, one in zip(ladder()[1], (large, small), strict=False)]
    before, *pictures = LADDER.pictures(LADDER, PlayedScene(tuple(results), device="sim:0"))
    assert [line.figure for line in pictures[0].code][:2] == ["7.00 GiB", "0.93 GiB"]
    rests = [block for picture in (before, pictures[0]) for block in picture.blocks if block.name.endswith(" more")]
    assert len(rests) == 2 and rests[0].kind == rests[1].kind


def test_the_parts_of_a_rung_beside_its_code_add_up_to_its_column() -> None:
    parts = {"weights": 400 * MIB, "optimizer state": 800 * MIB, "gradients": 400 * MIB, "activations": 900 * MIB}
    result = RungResult(ladder()[1][0], replace(estimate(3 * GIB), by_category={**parts, "workspace": 16 * MIB}))
    picture = LADDER.pictures(LADDER, PlayedScene((result,), device="sim:0"))[0]
    assert picture.chart is not None and picture.chart.columns[0].bytes == 3 * GIB
    assert sum(block.bytes for block in picture.blocks) == 3 * GIB
    assert picture.blocks[-1].name.endswith(" more")


def test_a_rung_that_cannot_be_predicted_says_why() -> None:
    rungs = ladder()[1]
    result = RungResult(rungs[0], None, "transformers is not there.")
    picture = LADDER.pictures(LADDER, PlayedScene((result,), device="sim:0"))[0]
    assert picture.sentence == "transformers is not there." and picture.code[0].figure == "not predicted"
