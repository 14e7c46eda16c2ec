"""Faults of the simulator are answer as its own, with the line and what to do; torch's refusals stay the code's."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from gpudash.agent.predicting.held_writes import HeldWrites
from gpudash.simulator.dry_run.refusals import WATCH_INSTEAD
from gpudash.simulator.faults import SimulatorError, UnsupportedError, is_fault
from tests.programs import output_of, told_by
from tests.unit.simulator.failing_families import AROUND, CALLS, FAMILIES, NOT_COMPUTED, NOT_DRY

HERE = "tests/unit/simulator/failing_families.py"

Answers = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def predicted() -> Answers:
    """What dry runs say of each family, from one process."""
    found: Answers = told_by("unit.simulator.failing_families", "dry")
    return found


@pytest.fixture(scope="module")
def computed() -> Answers:
    """What each family raises where numbers are computed, from one process."""
    found: Answers = told_by("unit.simulator.failing_families", "computed")
    return found


def test_every_family_of_operations_is_let_fail() -> None:
    assert set(CALLS) == set(FAMILIES), "a call that comes to a new family belongs into CALLS"


@pytest.mark.process
@pytest.mark.parametrize("family", [family for family in FAMILIES if family not in NOT_DRY])
def test_what_a_dry_run_cannot_do_is_said_of_gpudash_with_the_line_and_a_way_out(
    family: str, predicted: Answers
) -> None:
    answer = predicted[family]
    assert answer["failed"], "the call did not come to the family"
    where, operation = rf"{HERE}:\d+", r"aten::\w+(\.\w+)?"
    assert re.fullmatch(
        rf"gpudash cannot predict the code at {where}: it cannot simulate {operation} there "
        r"\(IndexError: list index out of range\)\.",
        answer["message"],
    )
    assert answer["kind"] == "gpudash" and answer["remedy"] == WATCH_INSTEAD
    assert answer["logged"] == [True]


@pytest.mark.process
@pytest.mark.parametrize("module", AROUND)
def test_a_fault_around_the_operations_is_said_of_gpudash_too(module: str, predicted: Answers) -> None:
    answer = predicted[module]
    assert answer["failed"], "the call did not come to the module"
    assert re.match(
        rf"gpudash cannot predict the code at {HERE}:\d+: it(s simulator failed| cannot)", answer["message"]
    )
    assert answer["kind"] == "gpudash" and answer["logged"] == [True]


@pytest.mark.process
@pytest.mark.parametrize("family", [family for family in FAMILIES if family not in NOT_COMPUTED])
def test_what_a_simulated_gpu_cannot_do_is_said_of_gpudash(family: str, computed: Answers) -> None:
    answer = computed[family]
    assert answer["failed"] and answer["cause"] == "IndexError"
    assert re.match(r"gpudash cannot simulate (aten|c10d)::\w+(\.\w+)? with these arguments \(Index", answer["message"])


@pytest.mark.process
def test_nothing_is_printed_where_no_log_is_configured() -> None:
    assert output_of("unit.simulator.failing_families", "dry").count("\n") == 1


@pytest.mark.usefixtures("sim")
def test_what_torch_refuses_on_a_gpu_too_is_raised_in_its_words() -> None:
    one, image = torch.rand(4, 4, device="sim"), torch.rand(2, 4, 8, 8, device="sim")
    query = torch.rand(2, 4, 8, 16, device="sim")
    refused = [
        (lambda: one @ torch.rand(5, 4, device="sim"), "mat1 and mat2 shapes cannot be multiplied|must have same"),
        (lambda: one.view(3, 5), "shape '\\[3, 5\\]' is invalid"),
        (lambda: nn.Conv2d(3, 4, 3).to("sim")(image), "to have 3 channels, but got 4|Invalid channel dimensions"),
        (lambda: functional.scaled_dot_product_attention(query, query[..., :8], query), "size"),
        (lambda: one + torch.rand(4, 4), "same device"),
        (lambda: torch.zeros(4, 4, device="sim").index_select(0, torch.tensor([9], device="sim")), "out of range"),
    ]
    for call, words in refused:
        with pytest.raises((RuntimeError, IndexError), match=words) as raised:
            call()
        assert not isinstance(raised.value, SimulatorError)


@pytest.mark.usefixtures("sim")
def test_a_layout_that_no_simulated_gpu_has_is_refused_in_one_sentence() -> None:
    with pytest.raises(UnsupportedError, match=r"A simulated GPU keeps dense tensors only, .* use device='cpu'"):
        torch.rand(4, 4).to_sparse().to("sim")


def test_a_file_that_is_not_there_is_no_fault_where_writing_is_held_back(tmp_path: Path) -> None:
    held = HeldWrites(str(tmp_path), [], [])
    with pytest.raises(FileNotFoundError) as raised:
        held._making_folder(tmp_path / "none" / "below")
    assert not is_fault(raised.value)
