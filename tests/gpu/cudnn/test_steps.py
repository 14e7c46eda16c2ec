"""The steps on a card, where there is none; what they call is there all the same."""

from __future__ import annotations

import ctypes
import json
from pathlib import Path

import pytest
import torch
from torch.nn.attention import SDPBackend

from gpudash.simulator.convolutions.cudnn_process import (
    CHAR,
    DEVICE,
    DEVICE_JSON,
    CudnnLibrary,
    CudnnRefusedError,
    DevicelessCard,
    properties_of,
)
from tests.gpu import collect, image_models
from tests.gpu.child import asked
from tests.gpu.cudnn import asking, questions, steps
from tests.unit.simulator.test_convolutions import library, needs_cudnn


@pytest.mark.parametrize("name", steps.STEPS)
def test_without_a_card_a_step_says_so_in_a_sentence(name: str) -> None:
    found = steps.measure(name, "sim:0", dict)
    assert found == {"error": "There is no CUDA card here (sim:0) to hold cuDNN's answers against."}


def test_the_steps_come_first_and_each_writes_a_file_with_hardware_and_date(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collect, "stop_at", lambda _moment: None)  # it holds for the whole process
    collection = collect.Collection(tmp_path, "cuda:7", small=True)
    assert list(collection.plan())[:6] == ["hardware", *steps.STEPS]
    collection.found["hardware"] = {"product": "none"}
    collection._take("cudnn_card", lambda: steps.measure("cudnn_card", "sim:0", dict))
    found = json.loads((tmp_path / "cudnn_card.json").read_text())
    assert set(found) == {"date", "hardware", "cudnn_card"}
    assert sum(steps.LIMITS_S.values()) <= 310 and steps.LIMITS_S.keys() == steps.STEPS.keys()


def test_what_is_drawn_is_the_same_again_and_convolutions_of_cudnn() -> None:
    cases = questions.drawn(200, (8, 0))
    assert cases == questions.drawn(200, (8, 0))
    assert {case["part"] for case in cases} == set(questions.PARTS)
    assert {len(case["stride"]) for case in cases} == {1, 2, 3}
    assert all(json.loads(json.dumps(questions.question(case))) for case in cases)
    assert not any(case["dtype"] == "bfloat16" for case in questions.drawn(50, (7, 5)))


def test_the_names_of_torch_are_there() -> None:
    assert callable(torch.cuda._compile_kernel)
    assert SDPBackend.CUDNN_ATTENTION
    for case in questions.drawn(3, (8, 0)) + questions.recorded()[:3]:
        assert questions.call(questions.arguments(case), case["part"]).numel()


@needs_cudnn
def test_cudnn_writes_the_properties_that_it_was_given_and_asks_a_card_for_its_own() -> None:
    cudnn = CudnnLibrary(library())
    card = DevicelessCard(cudnn, properties_of("9.0"))
    size = cudnn.get(card._device.handle, DEVICE_JSON, CHAR, 0, None)
    text = ctypes.create_string_buffer(size)
    cudnn.get(card._device.handle, DEVICE_JSON, CHAR, size, text)
    assert json.loads(text.raw) == properties_of("9.0")
    one = cudnn.make(DEVICE)
    one.numbers(asking.DEVICE_ID, asking.INT32, 0)  # a name and a type that it knows
    if not torch.cuda.is_available():
        with pytest.raises(CudnnRefusedError, match="cudaDeviceGetAttribute"):
            asking.card_in_sight(cudnn, 0)


@needs_cudnn
def test_a_hidden_card_is_asked_until_the_time_is_over() -> None:
    argument = {"set": "recorded", "capability": [9, 0], "seconds": 30}
    found = asked(asking.ask_hidden, "none", argument, environment={"GPUDASH_CUDNN": library()})
    taken = [case["taken"] for case in questions.recorded()]
    exact = [answer["workspace"] == bytes_ for answer, bytes_ in zip(found["answers"], taken, strict=True)]
    assert sum(exact) >= 23
    assert "answers" in asked(asking.ask_hidden, "none", {**argument, "seconds": -1})


def test_what_two_ways_answer_alike_is_counted_by_part_and_clusters() -> None:
    cases = [{"part": "forward"}, {"part": "forward"}, {"part": "of_weight"}, {"part": "of_weight"}]
    answers = {
        "hidden": [{"workspace": 1, "clusters": False}, {"workspace": 2, "clusters": False}, None, None],
        "taken": [{"workspace": 1}, {"workspace": 3}, {"workspace": 4}],
    }
    found = steps._agreements(cases, answers)
    assert found["asked"] == {"hidden": 4, "taken": 3}
    counts = {"forward: of": 2, "forward: to the byte": 1, "forward: the same block": 2, "refused by one": 1}
    assert found["agree"] == {"hidden and taken": counts}
    assert found["different"] == [{"part": "forward", "hidden": 2, "taken": 3, "clusters": False}]


@pytest.mark.parametrize("name", image_models.MODELS)
def test_every_image_model_can_be_trained(name: str) -> None:
    if name.startswith("diffusion"):
        pytest.importorskip("diffusers")
    make, size = image_models.MODELS[name]
    with torch.device("meta"):
        found = make()(torch.empty(size), *[torch.zeros(size[0])] * (name == "diffusion_unet"))
    assert getattr(found, "sample", found).requires_grad
