"""Dry runs of users' code answer rightly or in one sentence that names the line."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from gpudash.simulator.device.backend import Backend
from gpudash.simulator.dry_run.generating import TO_THE_END
from gpudash.simulator.dry_run.line_search import SEARCHES
from gpudash.simulator.dry_run.missing_numbers import ALL_PICKED, FINITE, ORDINARY
from gpudash.simulator.dry_run.own_code import AS_ONE, AS_ZEROS, FALLS
from gpudash.simulator.dry_run.uncompiled import CUDA_GRAPHS, INDUCTOR, UNCOMPILED
from tests.programs import output_of
from tests.unit.simulator.followed_callables import COMPILING, MISTAKES, TRANSFORMED, beams

pytestmark = pytest.mark.process

SOURCE = Path(__file__).with_name("followed_callables.py").read_text(encoding="utf-8").splitlines()
SHOWN = "tests/unit/simulator/followed_callables.py"

Answers = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def answers() -> Answers:
    """Of every callable, from one process of dry runs."""
    *printed, told = output_of("unit.simulator.followed_callables", warns=False).splitlines()
    found: Answers = json.loads(told)
    found["printed"]["lines"] = printed
    return found


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("item of a copy", "reads a number out of a tensor"),
        ("int of a copy", "reads a number out of a tensor"),
        ("condition on what a copy gave", "decides by a number of a tensor"),
        ("condition on a copy", "decides by a number of a tensor"),
        ("into a host tensor", "copies numbers from the device into a tensor that lies on the CPU"),
        ("branch", "decides by a number of a tensor (as an if on a tensor or on .item() does)"),
        ("index", "reads a number out of a tensor"),
        ("unique", "calls unique, whose result cannot be known without the numbers in a tensor"),
    ],
)
def test_code_that_needs_numbers_is_refused_in_one_sentence_that_names_its_line(
    name: str, said: str, answers: Answers
) -> None:
    told = answers[name]
    assert told["kind"] == "data_dependent"
    assert f"The code {said}" in told["message"] and told["message"].count(". ") == 0
    line = 1 + next(number for number, text in enumerate(SOURCE) if text.strip().startswith(f'"{name}":'))
    assert f" at {SHOWN}:{line}; a dry run has none" in told["message"]


@pytest.mark.parametrize(
    "name",
    [
        "item",
        "shown",
        "hits",
        "bounded",
        "best",
        "plain",
        "into a tensor",
        "of a list",
        "masked",
        "beside numbers",
        "all finished",
        "custom operation",
        "checkpointed",
        "to list",
        "copy to list",
        "copy to numpy",
        "copy and host tensor",
        "compared on the cpu",
        "saved",
        "kept copy",
        "printed",
        "on the cpu",
        "saved on the cpu",
        "pinned on the cpu",
        "scaler",
        "cycle",
        "after a cycle",
    ],
)
def test_code_that_decides_by_no_number_is_predicted(name: str, answers: Answers) -> None:
    assert answers[name].get("peak", 0) > 0, answers[name]


def test_text_is_generated_as_long_as_it_may_become(sim: Backend, answers: Answers) -> None:
    device = torch.device("sim", 0)
    torch.manual_seed(0)
    step = beams(device)
    for _ in range(3):
        step()
    assert answers["beams"]["peak"] == torch.sim.max_memory_allocated(device)
    assert all(one.endswith(f": {TO_THE_END}") for one in answers["beams"]["assumed"])


@pytest.mark.parametrize("name", TRANSFORMED)
def test_transforms_of_torch_func_are_predicted_as_they_run_on_the_simulated_device(
    name: str, sim: Backend, answers: Answers
) -> None:
    device = torch.device("sim", 0)
    step = TRANSFORMED[name](device)
    for _ in range(3):
        step()
    assert answers[name]["peak"] == torch.sim.max_memory_allocated(device)


def test_a_number_of_each_sample_within_vmap_is_refused_in_torchs_words(answers: Answers) -> None:
    assert "vmap: It looks like you're calling .item() on a Tensor" in answers["item of each"]["message"]


@pytest.mark.parametrize("name", [name for name in COMPILING if name != "uncompiled"])
def test_code_is_left_uncompiled_and_that_is_said(name: str, answers: Answers) -> None:
    assert answers[name].get("peak") == answers["uncompiled"]["peak"], answers[name]
    assumed = answers[name]["assumed"]
    assert assumed and all(f"{SHOWN}:" in one and f": {UNCOMPILED}" in one for one in assumed)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("compiled", INDUCTOR),
        ("compiled by a decorator", INDUCTOR),
        ("compiled in place", INDUCTOR),
        ("compiled as a graph", CUDA_GRAPHS),
        ("compiled without Inductor", UNCOMPILED),
        ("compiled before", UNCOMPILED),
    ],
)
def test_what_the_compiler_is_known_to_change_is_said(name: str, said: str, answers: Answers) -> None:
    [assumed] = answers[name]["assumed"]
    assert assumed.endswith(f": {said}")


def test_what_is_taken_for_granted_is_said_with_its_line(answers: Answers) -> None:
    def lines_of(text: str) -> int:
        return 1 + next(number for number, line in enumerate(SOURCE) if text in line)

    assert answers["item"]["assumed"] == answers["hits"]["assumed"] == answers["masked"]["assumed"] == []
    improved = f"{SHOWN}:{lines_of('if loss.item() < self.loss')}"
    assert answers["best"]["assumed"] == [f"{improved}: {FINITE}", f"{improved}: {FALLS}"]
    assert answers["bounded"]["assumed"] == [f"{SHOWN}:{lines_of('if not loss.item() > 0.0')}: {FINITE}"]
    guarded = f"{SHOWN}:{lines_of('if math.isnan(loss.item())')}"
    ordinary = f"{SHOWN}:{lines_of('if not torch.isfinite(loss)')}"
    assert answers["shown"]["assumed"] == [f"{guarded}: {FINITE}", f"{ordinary}: {ORDINARY}"]
    for name in ("plain", "into a tensor", "of a list"):
        assert answers[name]["assumed"] == [f"{SHOWN}:{lines_of(chr(34) + name + chr(34))}: {AS_ONE}"]


@pytest.mark.parametrize(
    ("name", "what", "asking"),
    [
        ("scaled by parameters", FINITE, ["scale = max(1e-3"]),
        ("L-BFGS", SEARCHES, ["return lambda: optimizer.step(loss)"]),
        ("L-BFGS with a line search", SEARCHES, ["return lambda: optimizer.step(loss)"]),
        ("pictures", AS_ZEROS, ["pictures = (", "same = np.asarray"]),
        ("copy to numpy", AS_ZEROS, ['"copy to numpy"']),
        ("mask", ALL_PICKED, ['"mask"']),
        ("many masked", ALL_PICKED, ['"many masked"']),
        (
            "detector",
            ALL_PICKED,
            ["kept = torch.where(", "boxes, scores = boxes[scores > 0.0]", "best = ", "chosen = torch.where("],
        ),
    ],
)
def test_code_that_needs_numbers_is_predicted_where_what_is_assumed_of_them_can_be_said(
    name: str, what: str, asking: list[str], answers: Answers
) -> None:
    places = [1 + next(number for number, line in enumerate(SOURCE) if text in line) for text in asking]
    assert answers[name].get("peak", 0) > 0, answers[name]
    assert answers[name]["assumed"] == [f"{SHOWN}:{place}: {what}" for place in places]


def test_a_step_that_is_a_whole_training_is_taken_once_and_its_steps_are_counted(answers: Answers) -> None:
    assert answers["whole training"]["followed"] == [1, 5]
    assert answers["meta-learning"]["followed"] == answers["item"]["followed"] == [3, 3]


def test_a_search_fills_its_history_and_a_mask_that_is_not_known_picks_everything(answers: Answers) -> None:
    parameters = 4 * 65 * 1024
    assert answers["L-BFGS"]["peak"] > 2 * 13 * parameters  # of 15 iterations two have nothing to remember yet
    assert answers["many masked"]["peak"] > 3 * 2**19 * 2 * 8


def test_a_loss_that_is_the_best_yet_is_followed_where_it_improves(answers: Answers) -> None:
    assert answers["best"]["peak"] - answers["item"]["peak"] > 11 * 2**20  # three of 4 MiB


@pytest.mark.parametrize("name", ["sharded", "ranks", "wrapped"])
def test_code_that_asks_for_other_processes_is_told_at_once_how_its_share_is_predicted(
    name: str, answers: Answers
) -> None:
    assert answers[name]["kind"] == "several_gpus"
    assert f"The code asks for other processes at {SHOWN}:" in answers[name]["message"]
    assert "gpudash estimate training --devices sim:0,sim:1 --parallel fsdp" in answers[name]["remedy"]


@pytest.mark.parametrize("where", ["", ", on cuda"])
@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_told_as_the_codes_also_where_the_device_answers_for_cuda(
    name: str, where: str, answers: Answers
) -> None:
    assert answers[name + where]["kind"] == "raised", answers[name + where]
    assert f"the code raised {MISTAKES[name][1]}" in answers[name + where]["message"]


def test_a_function_that_returns_no_step_is_told_so(answers: Answers) -> None:
    assert answers["no step"]["kind"] == "callable"
    assert "returned nothing in place of its step" in answers["no step"]["message"]


def test_a_printed_tensor_shows_its_sizes_in_place_of_numbers(answers: Answers) -> None:
    expected = "tensor(..., device='sim:0', size=(4, 8)) tensor(..., device='cpu', size=())"
    assert answers["printed"]["lines"] == [expected] * 3


def test_trusted_code_reads_zeros_and_never_what_lay_in_the_hosts_memory(answers: Answers) -> None:
    assert answers["trusted"]["read"] == [0.0]


def test_what_a_run_left_in_a_cycle_is_not_counted_in_the_next(answers: Answers) -> None:
    assert answers["after a cycle"] == answers["again"]


@pytest.mark.parametrize(("name", "said"), [("exit", "SystemExit"), ("interrupt", "KeyboardInterrupt")])
def test_code_that_ends_the_program_is_told_like_any_error(name: str, said: str, answers: Answers) -> None:
    assert answers[name]["kind"] == "raised"
    assert re.match(rf"At {SHOWN}:\d+ the code raised {said}\b", answers[name]["message"])


def test_code_with_data_parallel_is_told_why_nothing_is_predicted_and_torch_is_left_as_it_was(
    answers: Answers,
) -> None:
    told = answers["data parallel"]
    assert told["kind"] == "data_parallel"
    assert "from one process" in told["message"] and "DistributedDataParallel" in told["remedy"]
    assert answers["data parallel again"] == {"works": 2}


def test_a_module_that_exits_as_it_is_imported_is_told_in_words(answers: Answers) -> None:
    assert answers["module that exits"]["kind"] == "callable"
    assert "cannot be loaded (SystemExit: 3)" in answers["module that exits"]["message"]


def test_only_an_error_that_no_device_can_change_is_said_to_happen_anywhere(answers: Answers) -> None:
    assert answers["unknown name"]["remedy"] == "Fix that first; it happens without a GPU too."
    assert "happens without a GPU" not in answers["division"]["remedy"]
